//! The one parse of a request target: what is checked is what is sent (`proxy.md`, step 4; `proxy_cases.md`, cases 1 to
//! 3 and 15). The path is decoded once, judged by its segments, and sent in the canonical encoding of those segments.

use std::fmt::Write as _;

/// The longest target that is read, in bytes. The API server's own limit of a request line and headers is 1 MiB; a
/// label selector of a big client still fits in this.
pub const MAX_TARGET: usize = 64 * 1024;

/// Why a target is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// `*`, absolute-form or authority-form.
    #[error("only a path is a request target inside a tunnel, neither a URL nor `*`")]
    NotOriginForm,
    /// A byte outside RFC 3986, such as a control character, a backslash or non-ASCII.
    #[error("the request target has a byte that RFC 3986 does not allow there")]
    Byte,
    /// `%` that is not followed by two hexadecimal digits.
    #[error("the request target has a broken percent-encoding")]
    Encoding,
    /// `.` or `..` as a segment, however encoded.
    #[error("the path has a dot segment")]
    DotSegment,
    /// `//`.
    #[error("the path has an empty segment")]
    EmptySegment,
    /// An encoded slash, backslash, percent sign, control or non-ASCII character, or a semicolon.
    #[error("the path has an encoded separator, or a character that servers read differently")]
    Separator,
    /// A semicolon in the query, which servers read as `&` or not.
    #[error("the query has a raw semicolon: write %3B")]
    Semicolon,
    /// Too long.
    #[error("the request target is too long")]
    TooLong,
}

impl TargetError {
    /// The status that the client gets (RFC 9112, section 3, demands the one for a long target).
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::TooLong => 414,
            Self::NotOriginForm
            | Self::Byte
            | Self::Encoding
            | Self::DotSegment
            | Self::EmptySegment
            | Self::Separator
            | Self::Semicolon => 400,
        }
    }
}

/// A target in the form in which it is judged and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    segments: Vec<String>,
    trailing_slash: bool,
    query: Option<String>,
}

const fn is_unreserved_or_sub_delim(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

impl Target {
    /// Reads an origin-form target strictly.
    ///
    /// # Errors
    ///
    /// Whatever two readers could take for two targets.
    pub fn parse(raw: &str) -> Result<Self, TargetError> {
        if raw.len() > MAX_TARGET {
            return Err(TargetError::TooLong);
        }
        let Some(rest) = raw.strip_prefix('/') else {
            return Err(TargetError::NotOriginForm);
        };
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let query = query.map(check_query).transpose()?;
        let (path, trailing_slash) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let mut segments = Vec::new();
        if !path.is_empty() {
            for segment in path.split('/') {
                segments.push(decode_segment(segment)?);
            }
        } else if trailing_slash {
            return Err(TargetError::EmptySegment);
        }
        Ok(Self {
            segments,
            trailing_slash,
            query: query.map(str::to_owned),
        })
    }

    /// The decoded segments.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// The decoded path, for the audit line. No control character can be in it.
    #[must_use]
    pub fn decoded_path(&self) -> String {
        let mut path = String::new();
        for segment in &self.segments {
            path.push('/');
            path.push_str(segment);
        }
        if self.trailing_slash || path.is_empty() {
            path.push('/');
        }
        path
    }

    /// What is sent: the canonical encoding of what was judged, with the given query parameters left out.
    #[must_use]
    pub fn to_canonical(&self, drop_parameter: impl Fn(&str) -> bool) -> String {
        let mut out = String::with_capacity(64);
        for segment in &self.segments {
            out.push('/');
            for byte in segment.bytes() {
                if is_unreserved_or_sub_delim(byte) {
                    out.push(char::from(byte));
                } else {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "%{byte:02X}");
                }
            }
        }
        if self.trailing_slash || out.is_empty() {
            out.push('/');
        }
        append_query(self.query.as_deref(), drop_parameter, &mut out);
        out
    }

    /// The decoded values of a query parameter, in order, as Go's `url.ParseQuery` reads them.
    pub fn parameter(&self, name: &str) -> impl Iterator<Item = String> {
        self.query
            .as_deref()
            .unwrap_or_default()
            .split('&')
            .filter_map(|parameter| {
                let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
                (!parameter.is_empty() && decode_query(key) == name).then(|| decode_query(value))
            })
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// An origin-form target of a public server, whose paths are its own affair: sent as it is, with the given query
/// parameters left out.
///
/// # Errors
///
/// When it is no origin-form target, or has a byte that no target may have.
pub fn raw_target_without_parameters(raw: &str, drop_parameter: impl Fn(&str) -> bool) -> Result<String, TargetError> {
    if !raw.starts_with('/') {
        return Err(TargetError::NotOriginForm);
    }
    if raw.len() > MAX_TARGET {
        return Err(TargetError::TooLong);
    }
    if !raw.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(TargetError::Byte);
    }
    let (path, query) = match raw.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (raw, None),
    };
    let mut out = path.to_owned();
    append_query(query, drop_parameter, &mut out);
    Ok(out)
}

fn append_query(query: Option<&str>, drop_parameter: impl Fn(&str) -> bool, out: &mut String) {
    let Some(query) = query else { return };
    let is_dropped = |parameter: &str| {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        drop_parameter(&decode_query(name))
    };
    let mut separator = '?';
    for parameter in query.split('&') {
        if is_dropped(parameter) {
            continue;
        }
        // Some servers end a parameter at a semicolon too.
        let kept: Vec<&str> = parameter.split(';').filter(|part| !is_dropped(part)).collect();
        if !kept.is_empty() {
            out.push(separator);
            out.push_str(&kept.join(";"));
            separator = '&';
        }
    }
}

fn hex(byte: Option<u8>) -> Result<u8, TargetError> {
    byte.and_then(|byte| char::from(byte).to_digit(16))
        .and_then(|digit| u8::try_from(digit).ok())
        .ok_or(TargetError::Encoding)
}

fn decode_segment(segment: &str) -> Result<String, TargetError> {
    if segment.is_empty() {
        return Err(TargetError::EmptySegment);
    }
    let mut decoded = String::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let value = hex(bytes.next())? << 4 | hex(bytes.next())?;
                if matches!(value, b'/' | b'\\' | b'%') || !(0x20..0x7f).contains(&value) {
                    return Err(TargetError::Separator);
                }
                value
            }
            byte if is_unreserved_or_sub_delim(byte) => byte,
            _ => return Err(TargetError::Byte),
        };
        if byte == b';' {
            return Err(TargetError::Separator);
        }
        decoded.push(char::from(byte));
    }
    if matches!(decoded.as_str(), "." | "..") {
        return Err(TargetError::DotSegment);
    }
    Ok(decoded)
}

fn check_query(query: &str) -> Result<&str, TargetError> {
    let mut bytes = query.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b';' => return Err(TargetError::Semicolon),
            b'%' => {
                hex(bytes.next())?;
                hex(bytes.next())?;
            }
            b'/' | b'?' => {}
            byte if is_unreserved_or_sub_delim(byte) => {}
            _ => return Err(TargetError::Byte),
        }
    }
    Ok(query)
}

/// Decodes a name or value of a query whose encoding was checked: `+` is a space.
fn decode_query(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => match (hex(bytes.next()), hex(bytes.next())) {
                (Ok(high), Ok(low)) => high << 4 | low,
                _ => b'%',
            },
            byte => byte,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
