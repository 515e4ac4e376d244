//! The output of a running command, put together from progress notifications: in order, each byte once, whatever came
//! late or not at all.

use std::collections::BTreeMap;

/// Key of a notification's `_meta` that names the stream of its text.
pub(crate) const STREAM_META: &str = "cli-mcp.redhat.com/stream";

/// Where a command wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One notification: the text, and the bytes of both streams up to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) stream: Stream,
    pub(crate) text: String,
    pub(crate) end: u64,
}

/// Orders the chunks of one call, and knows what the result adds to them.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    waiting: BTreeMap<u64, Chunk>,
    next: u64,
    stdout: String,
    stderr: String,
}

impl Assembly {
    /// Takes a chunk; `show` gets it and every one that waited for it.
    pub(crate) fn add(&mut self, chunk: Chunk, show: &mut impl FnMut(Stream, &str)) {
        let start = chunk.end.saturating_sub(chunk.text.len() as u64);
        self.waiting.insert(start, chunk);
        while let Some(chunk) = self.waiting.remove(&self.next) {
            self.next = chunk.end;
            self.shown(chunk.stream).push_str(&chunk.text);
            show(chunk.stream, &chunk.text);
        }
    }

    /// What the result holds and no chunk showed: lines of the agent's own, and all of it where the client got no
    /// notification. A result that was cut in the middle repeats nothing.
    pub(crate) fn rest<'a>(&self, stdout: &'a str, stderr: &'a str) -> [(Stream, &'a str); 2] {
        [
            (Stream::Stdout, stdout.strip_prefix(self.stdout.as_str()).unwrap_or("")),
            (Stream::Stderr, stderr.strip_prefix(self.stderr.as_str()).unwrap_or("")),
        ]
    }

    fn shown(&mut self, stream: Stream) -> &mut String {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(stream: Stream, text: &str, end: u64) -> Chunk {
        Chunk {
            stream,
            text: text.to_owned(),
            end,
        }
    }

    #[test]
    fn chunks_are_shown_in_order_and_the_result_adds_what_is_missing() {
        let (mut assembly, mut shown) = (Assembly::default(), String::new());
        for chunk in [
            chunk(Stream::Stderr, "cd", 4),
            chunk(Stream::Stdout, "ab", 2),
            chunk(Stream::Stdout, "é", 6),
        ] {
            assembly.add(chunk, &mut |_, text| shown.push_str(text));
        }
        assert_eq!(shown, "abcdé");
        assert_eq!(
            assembly.rest("abéf", "cd\ncli-mcp: timed out\n"),
            [(Stream::Stdout, "f"), (Stream::Stderr, "\ncli-mcp: timed out\n")]
        );
    }

    #[test]
    fn a_cut_result_repeats_nothing_and_a_silent_call_shows_all() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.rest("all", "")[0], (Stream::Stdout, "all"));
        assembly.add(chunk(Stream::Stdout, "long", 4), &mut |_, _| {});
        assert_eq!(assembly.rest("l[cut]g", "")[0], (Stream::Stdout, ""));
    }
}
