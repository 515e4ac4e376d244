//! Reading the answer to `/exec`: one object, or lines of output and the object last.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cli_mcp_sandbox::wire::{ExecResult, StreamChunk, StreamLine};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::{AgentError, OutputSink, read};
use crate::budget::{Held, SMALL_BYTES};

/// The longest result: two streams at the largest limit that an agent is likely given, escaped.
const MAX_RESULT_BYTES: usize = 64 * 1024 * 1024;

/// The longest run of output that is handed on as one piece.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// How long the end of a body may come after its result; a connection without it is not used again.
const END: Duration = Duration::from_millis(100);

pub(super) async fn plain<B>(body: B, held: &Held) -> Result<ExecResult, AgentError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    // A length that is not told may be any.
    if body
        .size_hint()
        .upper()
        .is_none_or(|length| length > SMALL_BYTES as u64)
    {
        held.large_result().await;
    }
    let body = read(body, MAX_RESULT_BYTES).await?;
    serde_json::from_slice(&body).map_err(|error| AgentError::Lost(format!("its answer is no result ({error})")))
}

/// Hands output on as it comes, and returns the result with whether the body ended after it. One that is whole counts,
/// whatever becomes of the connection behind it.
pub(super) async fn streamed<B>(
    mut body: B,
    sink: &mut impl OutputSink,
    held: &Held,
) -> Result<(ExecResult, bool), AgentError>
where
    B: Body<Data = Bytes, Error: std::fmt::Display> + Unpin,
{
    let mut lines = Lines::default();
    let (mut result, mut counted) = (None, false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| AgentError::Lost(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        hand_on(lines.feed(&data)?, sink, &mut result).await;
        if let Some(result) = result {
            let ended = tokio::time::timeout(END, body.frame()).await;
            return Ok((result, matches!(ended, Ok(None))));
        }
        if lines.buffer.len() > SMALL_BYTES && !counted {
            counted = true;
            held.large_result().await;
        }
    }
    // An image of one's own may not end its last line, or not stream at all.
    hand_on(lines.feed(b"\n")?, sink, &mut result).await;
    let result = result.ok_or_else(|| AgentError::Lost("the stream ended before the result".to_owned()))?;
    Ok((result, true))
}

async fn hand_on(lines: Vec<StreamLine>, sink: &mut impl OutputSink, result: &mut Option<ExecResult>) {
    for line in lines {
        match line {
            StreamLine::Chunk(chunk) => sink.chunk(chunk).await,
            StreamLine::Result(last) => *result = Some(last),
        }
    }
}

/// Splits a body into lines, wherever its frames are cut.
#[derive(Default)]
struct Lines {
    buffer: BytesMut,
}

impl Lines {
    /// The lines that `data` completes; neighbouring chunks of one stream become one, so that a burst of small writes
    /// is one notification.
    fn feed(&mut self, data: &[u8]) -> Result<Vec<StreamLine>, AgentError> {
        let mut searched = self.buffer.len();
        self.buffer.extend_from_slice(data);
        let mut lines: Vec<StreamLine> = Vec::new();
        while let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(searched + end + 1);
            searched = 0;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line = serde_json::from_slice(&line)
                .map_err(|error| AgentError::Lost(format!("its answer is no stream of results ({error})")))?;
            match (lines.last_mut(), line) {
                (Some(StreamLine::Chunk(last)), StreamLine::Chunk(next)) if joins(last, &next) => {
                    last.data += &next.data
                }
                (_, line) => lines.push(line),
            }
        }
        if self.buffer.len() > MAX_RESULT_BYTES {
            return Err(AgentError::Lost("its answer is too long".to_owned()));
        }
        Ok(lines)
    }
}

fn joins(last: &StreamChunk, next: &StreamChunk) -> bool {
    last.stream == next.stream && last.data.len() + next.data.len() <= MAX_PIECE_BYTES
}

#[cfg(test)]
mod tests {
    use cli_mcp_sandbox::wire::OutputStream;
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    const BODY: &str = concat!(
        r#"{"stream":"stdout","data":"a\n"}"#,
        "\n",
        r#"{"stream":"stdout","data":"é"}"#,
        "\n",
        r#"{"stream":"stderr","data":"!"}"#,
        "\n",
        r#"{"stdout":"a\né","stderr":"!","exit_code":3,"duration_ms":7}"#,
        "\n"
    );

    proptest! {
        #[test]
        fn frames_may_be_cut_anywhere(cuts in proptest::collection::vec(0..BODY.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.extend([0, BODY.len()]);
            cuts.sort_unstable();
            let mut lines = Lines::default();
            let (mut stdout, mut stderr, mut result) = (String::new(), String::new(), None);
            for pair in cuts.windows(2) {
                for line in lines.feed(&BODY.as_bytes()[pair[0]..pair[1]]).unwrap() {
                    match line {
                        StreamLine::Chunk(StreamChunk { stream: OutputStream::Stdout, data }) => stdout += &data,
                        StreamLine::Chunk(StreamChunk { stream: OutputStream::Stderr, data }) => stderr += &data,
                        StreamLine::Result(last) => result = Some(last),
                    }
                }
            }
            prop_assert_eq!(stdout, "a\né");
            prop_assert_eq!(stderr, "!");
            prop_assert_eq!(result.map(|result| result.exit_code), Some(3));
        }
    }

    struct Nowhere;

    impl OutputSink for Nowhere {
        async fn chunk(&mut self, _chunk: StreamChunk) {}
    }

    #[tokio::test]
    async fn a_whole_result_counts_although_the_connection_breaks_behind_it() {
        let held = Held::default();
        let broken = || Err(std::io::Error::other("reset by peer"));
        let data = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));

        let (result, ended) = streamed(body(vec![data(BODY), broken()]), &mut Nowhere, &held)
            .await
            .unwrap();
        assert_eq!(
            (result.exit_code, ended),
            (3, false),
            "and its connection is not used again"
        );
        let (_, ended) = streamed(body(vec![data(BODY)]), &mut Nowhere, &held).await.unwrap();
        assert!(ended);
        let cut = body(vec![data(&BODY[..BODY.len() - 3]), broken()]);
        let cut = streamed(cut, &mut Nowhere, &held).await;
        assert!(matches!(cut, Err(AgentError::Lost(_))), "{cut:?}");
    }

    /// A body of these frames, whose length is not told.
    fn body(frames: Vec<Result<Bytes, std::io::Error>>) -> impl Body<Data = Bytes, Error = std::io::Error> + Unpin {
        let frames = frames.into_iter().map(|frame| frame.map(hyper::body::Frame::data));
        http_body_util::StreamBody::new(futures::stream::iter(frames.collect::<Vec<_>>()))
    }

    #[tokio::test]
    async fn a_plain_answer_is_a_result_or_leaves_the_fate_open() {
        let held = Held::default();
        let whole = r#"{"stdout":"a","stderr":"","exit_code":3,"duration_ms":7}"#;
        let text = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        let result = plain(body(vec![text(&whole[..9]), text(&whole[9..])]), &held).await;
        assert_eq!(result.unwrap().exit_code, 3);

        let broken = || Err(std::io::Error::other("reset by peer"));
        let megabyte = Bytes::from(vec![b' '; 1024 * 1024]);
        let too_long = vec![megabyte; MAX_RESULT_BYTES / (1024 * 1024) + 1];
        for (frames, why) in [
            (vec![text("<html>")], "no result"),
            (vec![], "no result"),
            (vec![text(r#"{"error":"no"}"#)], "no result"),
            (vec![text(&whole[..9]), broken()], "reset by peer"),
            (too_long.into_iter().map(Ok).collect(), "limit exceeded"),
        ] {
            let failed = plain(body(frames), &held).await;
            assert!(
                matches!(&failed, Err(AgentError::Lost(reason)) if reason.contains(why)),
                "{why}: {failed:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_that_may_be_large_waits_for_its_memory() {
        let budget = Budget::default();
        let mut large = Vec::new();
        let waits = loop {
            let held = budget.request(0).await.unwrap();
            if held.large_result().now_or_never().is_none() {
                break held;
            }
            large.push(held);
        };
        let small = http_body_util::Full::new(Bytes::from_static(b"{}"));
        assert!(plain(small, &waits).now_or_never().is_some());
        let untold = body(vec![Ok(Bytes::from_static(b"{}"))]);
        assert!(plain(untold, &waits).now_or_never().is_none());
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let mut lines = Lines {
            buffer: BytesMut::zeroed(MAX_RESULT_BYTES),
        };
        let failed = lines.feed(b"x");
        assert!(
            matches!(&failed, Err(AgentError::Lost(reason)) if reason.contains("too long")),
            "{failed:?}"
        );
    }

    #[test]
    fn a_burst_of_one_stream_is_one_piece() {
        let lines = Lines::default().feed(BODY.as_bytes()).unwrap();
        assert_eq!(lines.len(), 3);
    }
}
