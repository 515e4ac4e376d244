//! The output of a running command, put together from progress notifications: in order, each byte once, whatever came
//! late or not at all.

use std::collections::BTreeMap;

/// Key of a notification's `_meta` that names the stream of its text.
pub(crate) const STREAM_META: &str = "cli-mcp.redhat.com/stream";

/// Bytes that no result is longer than: what the server reads of an agent's answer.
const LONGEST_RESULT: usize = 64 * 1024 * 1024;

/// Bytes that chunks may hold while they wait for a missing one: as many as are kept of each stream for the result.
const MOST_WAITING: usize = LONGEST_RESULT;

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

impl Chunk {
    /// Bytes that it holds while it waits. A server that sends a byte at a time costs more than its bytes.
    fn held(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }
}

/// Orders the chunks of one call, and knows what the result adds to them.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    waiting: BTreeMap<u64, Chunk>,
    held: usize,
    next: u64,
    stdout: Shown,
    stderr: Shown,
}

/// What was shown of a stream, as long as a result may repeat it.
#[derive(Debug, Default)]
struct Shown {
    text: String,
    is_longer: bool,
}

impl Shown {
    fn add(&mut self, text: &str) {
        if self.is_longer || self.text.len() + text.len() > LONGEST_RESULT {
            *self = Self {
                text: String::new(),
                is_longer: true,
            };
        } else {
            self.text.push_str(text);
        }
    }

    fn rest<'a>(&self, result: &'a str) -> &'a str {
        if self.is_longer {
            ""
        } else {
            result.strip_prefix(self.text.as_str()).unwrap_or("")
        }
    }
}

impl Assembly {
    /// Takes a chunk; `show` gets it and every one that waited for it. One that too much waits for is given up: the output goes
    /// on without it.
    ///
    /// # Errors
    ///
    /// The first error of `show`: what comes after it is not shown.
    pub(crate) fn add<E>(
        &mut self,
        chunk: Chunk,
        show: &mut impl FnMut(Stream, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = chunk.end.saturating_sub(chunk.text.len() as u64);
        // What was shown or given up comes too late, and of nothing there is nothing to show.
        if start < self.next || chunk.text.is_empty() {
            return Ok(());
        }
        self.held += chunk.held();
        if let Some(same) = self.waiting.insert(start, chunk) {
            self.held -= same.held();
        }
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() > self.next && self.held <= MOST_WAITING {
                break;
            }
            let (start, chunk) = first.remove_entry();
            self.held -= chunk.held();
            if start < self.next {
                continue;
            }
            self.next = chunk.end;
            self.shown(chunk.stream).add(&chunk.text);
            show(chunk.stream, &chunk.text)?;
        }
        Ok(())
    }

    /// What the result holds and no chunk showed: lines of the agent's own, and all of it where the client got no
    /// notification. A result that was cut in the middle repeats nothing.
    pub(crate) fn rest<'a>(&self, stdout: &'a str, stderr: &'a str) -> [(Stream, &'a str); 2] {
        [
            (Stream::Stdout, self.stdout.rest(stdout)),
            (Stream::Stderr, self.stderr.rest(stderr)),
        ]
    }

    fn shown(&mut self, stream: Stream) -> &mut Shown {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn chunk(stream: Stream, text: &str, end: u64) -> Chunk {
        Chunk {
            stream,
            text: text.to_owned(),
            end,
        }
    }

    fn unread(_: Stream, _: &str) -> Result<(), Infallible> {
        Ok(())
    }

    #[test]
    fn what_is_longer_than_any_result_is_not_kept() {
        let mut assembly = Assembly::default();
        let long = "a".repeat(LONGEST_RESULT);
        for (text, kept) in [(long.as_str(), LONGEST_RESULT), ("b", 0), ("c", 0)] {
            let end = assembly.next + text.len() as u64;
            assembly.add(chunk(Stream::Stdout, text, end), &mut unread).unwrap();
            assert_eq!(assembly.stdout.text.len(), kept);
        }
        let end = assembly.next + 2;
        assembly.add(chunk(Stream::Stderr, "cd", end), &mut unread).unwrap();
        let rest = assembly.rest("a[cut]c", "cd\nnote\n");
        assert_eq!(rest, [(Stream::Stdout, ""), (Stream::Stderr, "\nnote\n")]);
    }

    #[test]
    fn chunks_are_shown_in_order_and_the_result_adds_what_is_missing() {
        let (mut assembly, mut shown) = (Assembly::default(), String::new());
        for chunk in [
            chunk(Stream::Stderr, "cd", 4),
            chunk(Stream::Stdout, "ab", 2),
            chunk(Stream::Stdout, "é", 6),
        ] {
            let mut show = |_, text: &str| {
                shown.push_str(text);
                Ok::<_, Infallible>(())
            };
            assembly.add(chunk, &mut show).unwrap();
        }
        assert_eq!(shown, "abcdé");
        assert_eq!(
            assembly.rest("abéf", "cd\ncli-mcp: timed out\n"),
            [(Stream::Stdout, "f"), (Stream::Stderr, "\ncli-mcp: timed out\n")]
        );
    }

    #[test]
    fn a_chunk_that_never_comes_holds_up_no_more_than_a_result() {
        let (mut assembly, mut shown) = (Assembly::default(), Vec::new());
        let quarter = "a".repeat(LONGEST_RESULT / 4);
        let mut add = |chunk: Chunk| {
            let mut show = |stream, text: &str| {
                shown.push((stream, text.len()));
                Ok::<_, Infallible>(())
            };
            assembly.add(chunk, &mut show).unwrap();
            (assembly.held, shown.clone())
        };
        let at = |part: u64| chunk(Stream::Stdout, &quarter, 2 + part * quarter.len() as u64);
        add(at(1));
        // The same again takes the place of the first.
        add(at(1));
        add(at(3));
        add(at(2));
        let (held, before) = add(chunk(Stream::Stderr, "", 9));
        assert_eq!((held, before), (3 * at(1).held(), vec![]));
        // The bytes alone are still as many as a result may have.
        let (held, all) = add(at(4));
        assert_eq!((held, all), (0, vec![(Stream::Stdout, quarter.len()); 4]));
        // What was given up, and what comes twice.
        for late in [chunk(Stream::Stderr, "cd", 2), at(4)] {
            let (held, after) = add(late);
            assert_eq!((held, after.len()), (0, 4));
        }
        let (held, after) = add(chunk(Stream::Stderr, "e", at(4).end + 1));
        assert_eq!((held, after.last()), (0, Some(&(Stream::Stderr, 1))));
    }

    #[test]
    fn chunks_that_overlap_show_no_byte_twice() {
        let (mut assembly, mut shown) = (Assembly::default(), String::new());
        for chunk in [
            chunk(Stream::Stdout, "d", 4),
            chunk(Stream::Stdout, "bcde", 5),
            chunk(Stream::Stdout, "a", 1),
            chunk(Stream::Stdout, "f", 6),
        ] {
            let mut show = |_, text: &str| {
                shown.push_str(text);
                Ok::<_, Infallible>(())
            };
            assembly.add(chunk, &mut show).unwrap();
        }
        assert_eq!((shown.as_str(), assembly.held), ("abcdef", 0));
    }

    #[test]
    fn a_cut_result_repeats_nothing_and_a_silent_call_shows_all() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.rest("all", "")[0], (Stream::Stdout, "all"));
        assembly.add(chunk(Stream::Stdout, "long", 4), &mut unread).unwrap();
        assert_eq!(assembly.rest("l[cut]g", "")[0], (Stream::Stdout, ""));
    }
}
