//! What one stream of one call leaves in the reply: all of it, or head and rolling tail around one line (limits of the
//! shell page). Memory is bounded whatever comes; the producer is never held up.

use crate::spill::{Spill, SpillFolder};
use crate::stream::{complete_prefix, next_boundary};

/// One stream of one call.
#[derive(Debug)]
pub struct Capture {
    name: &'static str,
    limit: usize,
    folder: SpillFolder,
    total: u64,
    head: Vec<u8>,
    overflow: Option<Overflow>,
}

#[derive(Debug)]
struct Overflow {
    tail: Tail,
    spill: Spill,
}

/// The last `capacity` bytes.
#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    capacity: usize,
    /// Where the oldest byte is, once `bytes` is full.
    start: usize,
}

impl Tail {
    fn new(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
            capacity,
            start: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.capacity)..];
        let (fill, wrap) = bytes.split_at(bytes.len().min(self.capacity - self.bytes.len()));
        self.bytes.extend_from_slice(fill);
        let (end, begin) = wrap.split_at(wrap.len().min(self.capacity - self.start));
        self.bytes[self.start..self.start + end.len()].copy_from_slice(end);
        self.bytes[..begin.len()].copy_from_slice(begin);
        if self.capacity > 0 {
            self.start = (self.start + wrap.len()) % self.capacity;
        }
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.rotate_left(self.start);
        self.bytes
    }
}

/// The text of a stream, and whether it was cut.
#[derive(Debug, PartialEq, Eq)]
pub struct Captured {
    /// What stands in the reply.
    pub text: String,
    /// Bytes the command wrote.
    pub total: u64,
    /// Whether the reply has less.
    pub truncated: bool,
}

impl Capture {
    /// An empty capture that keeps `limit` bytes; `name` is the stream's.
    #[must_use]
    pub fn new(name: &'static str, limit: usize, folder: SpillFolder) -> Self {
        Self {
            name,
            limit,
            folder,
            total: 0,
            head: Vec::new(),
            overflow: None,
        }
    }

    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if let Some(overflow) = &mut self.overflow {
            overflow.tail.push(bytes);
            overflow.spill.write(bytes);
        } else if self.head.len() + bytes.len() <= self.limit {
            self.head.extend_from_slice(bytes);
        } else {
            let mut overflow = Overflow {
                tail: Tail::new(self.limit - self.limit / 2),
                spill: self.folder.create(self.name),
            };
            overflow.spill.write(&self.head);
            overflow.spill.write(bytes);
            let kept_of_new = (self.limit / 2).saturating_sub(self.head.len());
            overflow.tail.push(&self.head[self.head.len().min(self.limit / 2)..]);
            self.head.truncate(self.limit / 2);
            self.head.extend_from_slice(&bytes[..kept_of_new]);
            overflow.tail.push(&bytes[kept_of_new..]);
            self.overflow = Some(overflow);
        }
    }

    /// The stream's text.
    #[must_use]
    pub fn finish(self) -> Captured {
        let Some(overflow) = self.overflow else {
            let text = String::from_utf8(self.head)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
            return Captured {
                text,
                total: self.total,
                truncated: false,
            };
        };
        let tail = overflow.tail.into_bytes();
        let head = &self.head[..complete_prefix(&self.head)];
        let tail = &tail[next_boundary(&tail, 0)..];
        let dropped = self.total - (head.len() + tail.len()) as u64;
        let line = format!("[{dropped} bytes dropped here; {}]", overflow.spill.describe());
        let break_before = if head.ends_with(b"\n") || head.is_empty() {
            ""
        } else {
            "\n"
        };
        let text = format!(
            "{}{break_before}{line}\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(tail)
        );
        Captured {
            text,
            total: self.total,
            truncated: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capture(limit: usize, pieces: &[&[u8]]) -> Captured {
        let workspace = tempfile::tempdir().unwrap();
        let mut capture = Capture::new("stdout", limit, SpillFolder::new(workspace.path()));
        for piece in pieces {
            capture.push(piece);
        }
        capture.finish()
    }

    #[test]
    fn what_fits_is_exact() {
        assert_eq!(
            capture(4, &[b"ab", b"cd"]),
            Captured {
                text: "abcd".into(),
                total: 4,
                truncated: false
            }
        );
        assert_eq!(capture(9, &[b"a\xffb\0"]).text, "a\u{fffd}b\0");
    }

    #[test]
    fn a_cut_keeps_head_and_tail_on_character_boundaries() {
        let captured = capture(8, &["ab你好x你好cd".as_bytes()]);
        let lines: Vec<&str> = captured.text.split('\n').collect();
        assert_eq!((lines[0], lines[2]), ("ab", "cd"), "{captured:?}");
        assert!(
            lines[1].starts_with("[13 bytes dropped here; the full text is in /"),
            "{captured:?}"
        );
        assert!(captured.truncated);
    }

    proptest! {
        #[test]
        fn head_tail_and_count_agree_with_the_whole(
            pieces in proptest::collection::vec(proptest::collection::vec(b'a'..=b'z', 0..40), 0..12),
            limit in 1_usize..60,
        ) {
            let whole: Vec<u8> = pieces.concat();
            let captured = capture(limit, &pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!(captured.total, whole.len() as u64);
            prop_assert_eq!(captured.truncated, whole.len() > limit);
            let whole = String::from_utf8(whole).unwrap();
            if captured.truncated {
                let (head, rest) = captured.text.split_once('[').unwrap();
                let head = head.trim_end();
                let tail = rest.split_once("]\n").unwrap().1;
                prop_assert_eq!(head.len() + tail.len(), limit);
                prop_assert!(whole.starts_with(head) && whole.ends_with(tail));
                let dropped: usize = rest.split(' ').next().unwrap().parse().unwrap();
                prop_assert_eq!(dropped, whole.len() - limit);
            } else {
                prop_assert_eq!(captured.text, whole);
            }
        }
    }
}
