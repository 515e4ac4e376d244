//! Message bodies: where they end, and which bytes of them are forwarded. Chunked framing is checked byte by byte
//! against a grammar without extensions; trailers are dropped (`proxy.md`, steps 3 and 5).

use std::ops::Range;

use crate::head::Framing;

/// The largest chunk, in bytes: far above any real one, and far from overflow.
const MAX_CHUNK: u64 = 1 << 48;

/// The most bytes of trailers that are skipped.
const MAX_TRAILERS: usize = 16 * 1024;

/// The body does not follow its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chunked body is malformed, or has chunk extensions")]
pub struct Malformed;

/// Follows a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// This many bytes are still to come.
    Length(u64),
    /// Chunks.
    Chunked(Chunked),
    /// Everything until the end of the connection.
    UntilClose,
}

/// Where in a chunked body the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// In a chunk size: its value and number of digits so far.
    Size(u64, u8),
    /// Before the LF after a chunk size.
    SizeEnd(u64),
    /// In chunk data.
    Data(u64),
    /// Before the CR after chunk data.
    DataCr,
    /// Before the LF after chunk data.
    DataLf,
    /// At the start of a trailer line or the final CRLF; bytes of trailers so far.
    Trailer(usize),
    /// In a trailer line.
    TrailerLine(usize),
    /// Before the LF of a trailer line.
    TrailerLf(usize),
    /// Before the last LF.
    EndLf,
    /// Complete.
    End,
}

/// What a piece of input means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How much of the input was understood.
    pub consumed: usize,
    /// Which of it is forwarded as it is.
    pub forward: Range<usize>,
    /// How many bytes of content are in there.
    pub content: u64,
}

impl Decoder {
    /// The decoder for a framing.
    #[must_use]
    pub const fn new(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Length(0),
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunked::Size(0, 0)),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Whether the body is complete.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunked::End))
    }

    /// Follows the body through the next bytes; call again with the rest until the input is used up or
    /// [`Self::is_done`].
    ///
    /// # Errors
    ///
    /// When the bytes do not follow the framing.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, Malformed> {
        match self {
            Self::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= take as u64;
                Ok(Step {
                    consumed: take,
                    forward: 0..take,
                    content: take as u64,
                })
            }
            Self::UntilClose => Ok(Step {
                consumed: input.len(),
                forward: 0..input.len(),
                content: input.len() as u64,
            }),
            Self::Chunked(state) => step_chunked(state, input),
        }
    }
}

fn step_chunked(state: &mut Chunked, input: &[u8]) -> Result<Step, Malformed> {
    let mut at = 0;
    let mut content = 0;
    let mut dropped_from = None;
    while let Some(&byte) = input.get(at) {
        if let Chunked::Data(left) = *state {
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len() - at);
            at += take;
            content += take as u64;
            let left = left - take as u64;
            *state = if left == 0 {
                Chunked::DataCr
            } else {
                Chunked::Data(left)
            };
            continue;
        }
        // A trailer ends the forwarded range; what comes after it is the next step's.
        let in_trailer = match *state {
            Chunked::Trailer(_) => byte != b'\r',
            Chunked::TrailerLine(_) | Chunked::TrailerLf(_) => true,
            _ => false,
        };
        if in_trailer && dropped_from.is_none() {
            dropped_from = Some(at);
        }
        if dropped_from.is_some() && matches!(*state, Chunked::Trailer(_)) && byte == b'\r' {
            break;
        }
        *state = match (*state, byte) {
            (Chunked::Size(value, digits), _) if byte.is_ascii_hexdigit() && digits < 16 => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                let value = value * 16 + digit;
                if value > MAX_CHUNK {
                    return Err(Malformed);
                }
                Chunked::Size(value, digits + 1)
            }
            (Chunked::Size(value, digits), b'\r') if digits > 0 => Chunked::SizeEnd(value),
            (Chunked::SizeEnd(0), b'\n') => Chunked::Trailer(0),
            (Chunked::SizeEnd(size), b'\n') => Chunked::Data(size),
            (Chunked::DataCr, b'\r') => Chunked::DataLf,
            (Chunked::DataLf, b'\n') => Chunked::Size(0, 0),
            (Chunked::Trailer(_), b'\r') => Chunked::EndLf,
            (Chunked::EndLf, b'\n') => Chunked::End,
            (Chunked::TrailerLine(seen), b'\r') => Chunked::TrailerLf(seen),
            (Chunked::TrailerLf(seen), b'\n') => Chunked::Trailer(seen + 1),
            (Chunked::Trailer(seen) | Chunked::TrailerLine(seen), 0x20.. | b'\t') if seen < MAX_TRAILERS => {
                Chunked::TrailerLine(seen + 1)
            }
            _ => return Err(Malformed),
        };
        at += 1;
        if *state == Chunked::End {
            break;
        }
    }
    // A step that begins inside a trailer forwards nothing.
    let forward = 0..dropped_from.unwrap_or(at);
    Ok(Step {
        consumed: at,
        forward,
        content,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a decoder over input cut into pieces: what is forwarded, what is left over, and the content's length.
    fn run(mut decoder: Decoder, pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, u64), Malformed> {
        let (mut out, mut left, mut content) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            let mut input = *piece;
            while !input.is_empty() && !decoder.is_done() {
                let step = decoder.step(input)?;
                out.extend_from_slice(input.get(step.forward.clone()).unwrap());
                content += step.content;
                input = input.get(step.consumed..).unwrap();
            }
            left.extend_from_slice(input);
        }
        Ok((out, left, content))
    }

    fn chunked(text: &str) -> Result<(String, String, u64), Malformed> {
        let (out, left, content) = run(Decoder::new(Framing::Chunked), &[text.as_bytes()])?;
        Ok((
            String::from_utf8(out).unwrap(),
            String::from_utf8(left).unwrap(),
            content,
        ))
    }

    #[test]
    fn follows_chunks_to_their_end() {
        assert_eq!(
            chunked("3\r\nabc\r\n0\r\n\r\nGET").unwrap(),
            ("3\r\nabc\r\n0\r\n\r\n".into(), "GET".into(), 3)
        );
        assert_eq!(chunked("A\r\n0123456789\r\n00\r\n\r\n").unwrap().2, 10);
    }

    #[test]
    fn drops_trailers() {
        let (out, left, _) = chunked("1\r\nx\r\n0\r\nAuthorization: Bearer t\r\nX: y\r\n\r\nrest").unwrap();
        assert_eq!((out.as_str(), left.as_str()), ("1\r\nx\r\n0\r\n\r\n", "rest"));
    }

    #[test]
    fn refuses_extensions_and_lenient_framing() {
        for text in [
            "3;a=b\r\nabc\r\n0\r\n\r\n",
            "3 \r\nabc\r\n0\r\n\r\n",
            " 3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "-1\r\n",
            "\r\n",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabc\r0\r\n",
            "fffffffffffffffff\r\n",
            "ffffffffffffffff\r\n",
            "0\r\n\n",
            "0\r\nX: y\n\r\n",
            "0\r\nX: y\rz\r\n\r\n",
        ] {
            assert_eq!(chunked(text), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn length_leaves_the_next_message_alone() {
        let (out, left, _) = run(Decoder::new(Framing::Length(3)), &[b"ab", b"cGET /"]).unwrap();
        assert_eq!((out.as_slice(), left.as_slice()), (&b"abc"[..], &b"GET /"[..]));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_matter(text in "([1-3]\r\n[ab]{1,3}\r\n){0,3}0\r\n(X: y\r\n){0,2}\r\n[a]{0,3}|[0-3a;\r\n]{0,16}", cut in 0_usize..40) {
            let bytes = text.as_bytes();
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(
                run(Decoder::new(Framing::Chunked), &[bytes]),
                run(Decoder::new(Framing::Chunked), &[first, second])
            );
        }
    }
}
