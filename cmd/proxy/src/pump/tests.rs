//! A pump between a source and a sink that do what they are told.

use std::collections::VecDeque;
use std::task::Waker;

use super::*;
use crate::head::Framing;

/// Gives what it is told to, read by read, and has then nothing yet.
struct Source(VecDeque<io::Result<Vec<u8>>>);

impl AsyncRead for Source {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.0.pop_front() {
            None => Poll::Pending,
            Some(read) => Poll::Ready(read.map(|bytes| out.put_slice(&bytes))),
        }
    }
}

/// Takes so many bytes at a time, and flushes or fails to.
struct Sink {
    taken: Vec<u8>,
    at_once: usize,
    flush: Option<io::ErrorKind>,
}

impl AsyncWrite for Sink {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let count = bytes.len().min(self.at_once);
        self.taken.extend_from_slice(bytes.get(..count).unwrap());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.flush.map_or(Ok(()), |kind| Err(kind.into())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

const ANY: Sink = Sink {
    taken: Vec::new(),
    at_once: usize::MAX,
    flush: None,
};

/// Moves what can be moved at once, and what the sink has then.
fn moved(
    mut pump: Pump,
    before: &[u8],
    reads: impl IntoIterator<Item = io::Result<Vec<u8>>>,
    mut sink: Sink,
) -> (Poll<Result<(), PumpError>>, Vec<u8>) {
    let mut inbound = Inbound::default();
    inbound.extend(before);
    let mut source = Source(reads.into_iter().collect());
    let mut cx = Context::from_waker(Waker::noop());
    let outcome = pump.poll(&mut cx, &mut source, &mut inbound, &mut sink);
    (outcome, sink.taken)
}

fn until_close(head: &[u8], rechunk: bool) -> Pump {
    Pump::new(head.to_vec(), Decoder::UntilClose, rechunk)
}

#[test]
fn what_came_before_a_source_failed_goes_on_first() {
    let reads = || [Ok(vec![b'x'; STREAMING]), Err(io::ErrorKind::ConnectionReset.into())];
    let (outcome, taken) = moved(until_close(b"", false), b"", reads(), ANY);
    assert_eq!(
        outcome,
        Poll::Ready(Err(PumpError::Source(io::ErrorKind::ConnectionReset)))
    );
    assert_eq!(taken, [b'x'; STREAMING]);
}

#[test]
fn a_sink_that_fails_or_takes_nothing_ends_it() {
    let failing = Sink {
        flush: Some(io::ErrorKind::BrokenPipe),
        ..ANY
    };
    let (outcome, _) = moved(until_close(b"head", false), b"", [Ok(b"x".to_vec())], failing);
    assert_eq!(outcome, Poll::Ready(Err(PumpError::Sink(io::ErrorKind::BrokenPipe))));
    let full = Sink { at_once: 0, ..ANY };
    let (outcome, _) = moved(until_close(b"head", false), b"", [], full);
    assert_eq!(outcome, Poll::Ready(Err(PumpError::Sink(io::ErrorKind::WriteZero))));
}

#[test]
fn a_body_until_the_end_is_sent_in_chunks_that_end() {
    for at_once in [1, usize::MAX] {
        let sink = Sink { at_once, ..ANY };
        let reads = [Ok(b"hello".to_vec()), Ok(vec![b'x'; 0x11]), Ok(Vec::new())];
        let (outcome, taken) = moved(until_close(b"head\r\n\r\n", true), b"first", reads, sink);
        assert_eq!(outcome, Poll::Ready(Ok(())));
        let expected = b"head\r\n\r\n5\r\nfirst\r\n5\r\nhello\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n";
        assert_eq!(taken, expected);
    }
}

#[test]
fn a_sink_that_takes_little_at_a_time_gets_all_in_order() {
    let body = b"5\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for at_once in 1..body.len() {
        let pump = Pump::new(b"head".to_vec(), Decoder::new(Framing::Chunked), false);
        let (outcome, taken) = moved(pump, b"", [Ok(body.to_vec())], Sink { at_once, ..ANY });
        assert_eq!(outcome, Poll::Ready(Ok(())), "{at_once}");
        assert_eq!(taken, b"head5\r\nhello\r\n0\r\n\r\n", "{at_once}");
    }
}

#[test]
fn a_body_that_ends_before_its_length_is_cut() {
    let pump = Pump::new(Vec::new(), Decoder::new(Framing::Length(6)), false);
    let (outcome, taken) = moved(pump, b"", [Ok(b"hello".to_vec()), Ok(Vec::new())], ANY);
    assert_eq!(
        outcome,
        Poll::Ready(Err(PumpError::Source(io::ErrorKind::UnexpectedEof)))
    );
    assert_eq!(taken, b"hello");
}

#[test]
fn what_was_used_is_given_back_though_the_buffer_is_never_empty() {
    let mut sent = (0_u8..=255).cycle();
    let mut expected = sent.clone();
    let mut inbound = Inbound::default();
    inbound.extend(&sent.by_ref().take(1000).collect::<Vec<_>>());
    for _ in 0..10_000 {
        inbound.extend(&sent.by_ref().take(100).collect::<Vec<_>>());
        assert_eq!(inbound.take(100), expected.by_ref().take(100).collect::<Vec<_>>());
        assert_eq!(inbound.as_slice().len(), 1000);
    }
    assert!(inbound.buffer.capacity() <= 256 * 1024, "{}", inbound.buffer.capacity());
}
