//! Cutting a byte stream into text without splitting a character (case 101).

/// Decodes bytes as they arrive. What is fed in pieces comes out as `String::from_utf8_lossy` of the whole.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The start of a character whose end has not arrived: at most three bytes.
    pending: Vec<u8>,
}

impl Decoder {
    /// The text that `bytes` completes.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let complete = complete_prefix(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        text
    }

    /// What is left when no more will come.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// How many bytes can be decoded now: all but an unfinished character at the end.
#[must_use]
pub fn complete_prefix(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(4);
    // A character is at most four bytes, so an unfinished one starts in the last three; look no further back.
    let start = (tail..bytes.len())
        .rev()
        .find(|index| bytes[*index] & 0xc0 != 0x80)
        .unwrap_or(bytes.len());
    match std::str::from_utf8(&bytes[start..]) {
        Err(error) if error.error_len().is_none() => start + error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// The first place at or after `index` where a character starts, as far as the bytes are text.
#[must_use]
pub fn next_boundary(bytes: &[u8], index: usize) -> usize {
    // A character has at most three bytes after its first; where more follow, these are no text.
    let starts = |at: &usize| bytes.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (index..=index + 3).find(starts).unwrap_or(index).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_split_character_waits_for_its_end() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(b"a\xe4\xbd"), "a");
        assert_eq!(decoder.push(b"\xa0b"), "你b");
        assert_eq!(decoder.push(b"\xf0\x9f"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_decode_as_the_whole(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..=0xf4], 0..64), cut in 1_usize..7) {
            let mut decoder = Decoder::default();
            let mut text = String::new();
            for piece in bytes.chunks(cut) {
                text.push_str(&decoder.push(piece));
            }
            text.push_str(&decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn text_is_never_cut_inside_a_character(text in "\\PC{0,40}", at in 0_usize..160) {
            let at = at.min(text.len());
            prop_assert!(text.is_char_boundary(next_boundary(text.as_bytes(), at)));
            prop_assert!(text.is_char_boundary(complete_prefix(&text.as_bytes()[..at])));
        }
    }
}
