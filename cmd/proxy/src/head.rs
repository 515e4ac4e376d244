//! The strict grammar of HTTP/1.1 message heads (RFC 9112). There is one parser of what a sandbox sends, it refuses
//! whatever another parser could read differently, and what is forwarded is written anew from what it understood
//! (`proxy_cases.md`, cases 43 to 45).

use std::ops::Range;

/// The longest head that is read, in bytes.
pub const MAX_HEAD: usize = 128 * 1024;

/// The most fields in a head.
const MAX_FIELDS: usize = 256;

/// The most members of a `Connection` field: each is compared with the name of every field.
const MAX_CONNECTION_MEMBERS: usize = 32;

/// Why a head is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Longer than [`MAX_HEAD`], or more fields or members of `Connection` than are read.
    #[error("the header section is too large")]
    TooLarge,
    /// CR without LF, LF without CR, NUL or another control character.
    #[error("the header section has a bare CR or LF, or a control character")]
    Control,
    /// The first line is no request or status line.
    #[error("the first line is malformed")]
    StartLine,
    /// Not HTTP/1.1.
    #[error("only HTTP/1.1 is served")]
    Version,
    /// A field without colon, with white space around its name, or folded over lines.
    #[error("a header field is malformed")]
    Field,
    /// More than one of `Content-Length`, `Transfer-Encoding`, both, or a value that is not plain.
    #[error("the length of the body is ambiguous: Content-Length and Transfer-Encoding must be plain and not both")]
    Framing,
}

impl HeadError {
    /// The status that a client gets whose request has it (RFC 6585, section 5; RFC 9110, section 15.6.6).
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::TooLarge => 431,
            Self::Version => 505,
            Self::Control | Self::StartLine | Self::Field | Self::Framing => 400,
        }
    }
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the connection ends; responses only.
    UntilClose,
}

/// A head, checked and split.
pub struct Head {
    raw: Vec<u8>,
    start: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

/// Looks for the end of a head in what was read so far; `scanned` is how much an earlier call has seen. Returns the
/// length of the head with its empty line.
///
/// # Errors
///
/// As soon as what was read cannot become a head.
pub fn find_end(buffer: &[u8], scanned: usize) -> Result<Option<usize>, HeadError> {
    let from = scanned.saturating_sub(3);
    for (index, byte) in buffer.iter().enumerate().skip(from) {
        let previous = index.checked_sub(1).and_then(|at| buffer.get(at)).copied();
        match byte {
            b'\n' if previous != Some(b'\r') => return Err(HeadError::Control),
            b'\n' if index >= 3 && buffer.get(index - 3..=index) == Some(b"\r\n\r\n") => {
                return if index < MAX_HEAD {
                    Ok(Some(index + 1))
                } else {
                    Err(HeadError::TooLarge)
                };
            }
            b'\n' => {}
            _ if previous == Some(b'\r') => return Err(HeadError::Control),
            b'\r' | b'\t' => {}
            0..0x20 | 0x7f => return Err(HeadError::Control),
            _ => {}
        }
    }
    if buffer.len() >= MAX_HEAD {
        Err(HeadError::TooLarge)
    } else {
        Ok(None)
    }
}

impl Head {
    /// Splits a head that [`find_end`] has delimited.
    ///
    /// # Errors
    ///
    /// When a field is malformed.
    pub fn parse(raw: Vec<u8>) -> Result<Self, HeadError> {
        let mut lines = Vec::new();
        let mut at = 0;
        while let Some(length) = raw
            .get(at..)
            .and_then(|rest| rest.windows(2).position(|pair| pair == b"\r\n"))
        {
            lines.push(at..at + length);
            at += length + 2;
        }
        // The last line is the empty one.
        lines.pop();
        let mut lines = lines.into_iter();
        let start = lines
            .next()
            .filter(|line| !line.is_empty())
            .ok_or(HeadError::StartLine)?;
        if lines.len() > MAX_FIELDS {
            return Err(HeadError::TooLarge);
        }
        let fields = lines.map(|line| split_field(&raw, line)).collect::<Result<_, _>>()?;
        let head = Self { raw, start, fields };
        if head.members("connection").count() > MAX_CONNECTION_MEMBERS {
            return Err(HeadError::TooLarge);
        }
        Ok(head)
    }

    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.raw.get(range.clone()).unwrap_or_default()
    }

    /// Method and target of a request in HTTP/1.1.
    ///
    /// # Errors
    ///
    /// When the line is not exactly `METHOD SP target SP HTTP/1.1`.
    pub fn request_line(&self) -> Result<(&str, &str), HeadError> {
        let line = self.bytes(&self.start);
        let mut parts = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(HeadError::StartLine);
        };
        if method.is_empty() || !method.iter().copied().all(is_token) || target.is_empty() {
            return Err(HeadError::StartLine);
        }
        if version != b"HTTP/1.1" {
            return Err(if version.starts_with(b"HTTP/") {
                HeadError::Version
            } else {
                HeadError::StartLine
            });
        }
        // Bytes that are not UTF-8 are for the target's own grammar to refuse.
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| HeadError::StartLine);
        Ok((text(method)?, text(target)?))
    }

    /// Version and status of a response: `(minor version, code)`.
    ///
    /// # Errors
    ///
    /// When the line is no HTTP/1.0 or 1.1 status line.
    pub fn status_line(&self) -> Result<(u8, u16), HeadError> {
        let line = self.bytes(&self.start);
        let minor = match line.get(..9) {
            Some(b"HTTP/1.1 ") => 1,
            Some(b"HTTP/1.0 ") => 0,
            _ => return Err(HeadError::StartLine),
        };
        let digits = line.get(9..12).ok_or(HeadError::StartLine)?;
        let code = digits.iter().try_fold(0_u16, |code, digit| match digit {
            b'0'..=b'9' => Ok(code * 10 + u16::from(digit - b'0')),
            _ => Err(HeadError::StartLine),
        })?;
        let reason = line.get(12..).unwrap_or_default();
        if !(100..600).contains(&code) || !(reason.is_empty() || reason.starts_with(b" ")) {
            return Err(HeadError::StartLine);
        }
        Ok((minor, code))
    }

    /// What follows the version in a status line, to forward it as it is: ` 200 OK`.
    #[must_use]
    pub fn status_text(&self) -> &[u8] {
        self.bytes(&self.start).get(8..).unwrap_or_default()
    }

    /// The fields in their order: name as received, and value without surrounding white space.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields
            .iter()
            .map(|(name, value)| (self.bytes(name), self.bytes(value)))
    }

    /// The values of a field, compared without regard to case.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The members of a comma-separated field over all its lines, trimmed, empty ones left out.
    pub fn members<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|member| !member.is_empty())
    }

    /// Whether a comma-separated field has this member.
    #[must_use]
    pub fn has_member(&self, name: &str, member: &str) -> bool {
        self.members(name)
            .any(|found| found.eq_ignore_ascii_case(member.as_bytes()))
    }

    /// `Content-Length` or `Transfer-Encoding: chunked`, at most one of them, once and plain.
    fn declared_framing(&self) -> Result<Option<Framing>, HeadError> {
        let mut lengths = self.values("content-length");
        let mut encodings = self.values("transfer-encoding");
        match (lengths.next(), encodings.next()) {
            (None, None) => Ok(None),
            (None, Some(encoding)) if encoding.eq_ignore_ascii_case(b"chunked") && encodings.next().is_none() => {
                Ok(Some(Framing::Chunked))
            }
            (Some(length), None) if lengths.next().is_none() => {
                let plain = (1..=18).contains(&length.len()) && length.iter().all(u8::is_ascii_digit);
                let value = std::str::from_utf8(length)
                    .ok()
                    .filter(|_| plain)
                    .and_then(|text| text.parse().ok());
                value
                    .map(|length| Some(Framing::Length(length)))
                    .ok_or(HeadError::Framing)
            }
            _ => Err(HeadError::Framing),
        }
    }

    /// How long the body of a request is.
    ///
    /// # Errors
    ///
    /// When two parsers could disagree about it.
    pub fn request_framing(&self) -> Result<Framing, HeadError> {
        Ok(self.declared_framing()?.unwrap_or(Framing::Empty))
    }

    /// How long the body of a response is (RFC 9112, section 6.3).
    ///
    /// # Errors
    ///
    /// When two parsers could disagree about it.
    pub fn response_framing(&self, request_method: &str, status: u16) -> Result<Framing, HeadError> {
        let declared = self.declared_framing()?;
        if request_method == "HEAD" || status < 200 || matches!(status, 204 | 304) {
            return Ok(Framing::Empty);
        }
        Ok(declared.unwrap_or(Framing::UntilClose))
    }
}

/// RFC 9110, section 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

fn split_field(raw: &[u8], line: Range<usize>) -> Result<(Range<usize>, Range<usize>), HeadError> {
    let bytes = raw.get(line.clone()).unwrap_or_default();
    let colon = bytes.iter().position(|byte| *byte == b':').ok_or(HeadError::Field)?;
    let (name, value) = bytes.split_at(colon);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(HeadError::Field);
    }
    // Whoever delimited the head: what is written anew must end its lines where this does.
    if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(HeadError::Control);
    }
    let blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
    let lead = 1 + value.iter().skip(1).take_while(blank).count();
    let trail = value.iter().skip(lead).rev().take_while(blank).count();
    Ok((
        line.start..line.start + colon,
        line.start + colon + lead..line.end - trail,
    ))
}

#[cfg(test)]
mod tests;
