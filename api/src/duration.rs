//! Durations as Go writes them (`30m`, `1h30m`, `1.5s`, `250ms`): the form of the resource's fields and of every flag.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in the grammar of Go's `time.ParseDuration`, without a sign: a sequence of decimal numbers, each with a
/// unit (`ns`, `us`, `µs`, `ms`, `s`, `m`, `h`). `0` alone is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not follow the grammar.
    #[error("{0:?} is not a duration: write numbers with units, such as 30m, 1h30m or 45s")]
    Grammar(String),
    /// The value does not fit.
    #[error("{0:?} is too long a duration: at most 2540400h (290 years)")]
    Range(String),
}

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let grammar = || DurationError::Grammar(text.to_owned());
        let range = || DurationError::Range(text.to_owned());
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        if text.is_empty() {
            return Err(grammar());
        }
        let mut total: u64 = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let number_end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(grammar)?;
            let (number, tail) = rest.split_at(number_end);
            let unit_end = tail
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            let scale = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, scale)| *scale)
                .ok_or_else(grammar)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return Err(grammar());
            }
            let whole: u64 = if whole.is_empty() {
                0
            } else {
                whole.parse().map_err(|_| range())?
            };
            let mut nanos = whole.checked_mul(scale).ok_or_else(range)?;
            let mut place = scale;
            for digit in fraction.bytes() {
                place /= 10;
                nanos = nanos.checked_add(place * u64::from(digit - b'0')).ok_or_else(range)?;
            }
            total = total.checked_add(nanos).ok_or_else(range)?;
            rest = tail;
        }
        i64::try_from(total).map_err(|_| range())?;
        Ok(Self(Duration::from_nanos(total)))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return formatter.write_str("0s");
        }
        let mut rest = nanos;
        for (unit, scale) in UNITS.iter().rev().filter(|(unit, _)| *unit != "us") {
            let count = rest / u128::from(*scale);
            if count > 0 {
                write!(formatter, "{count}{unit}")?;
                rest %= u128::from(*scale);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Duration, DurationError> {
        text.parse::<GoDuration>().map(|duration| duration.0)
    }

    #[test]
    fn reads_what_go_reads() {
        assert_eq!(parse("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse(".5m"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("250µs"), Ok(Duration::from_micros(250)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn refuses_the_rest_with_a_remedy() {
        for text in [
            "", "30", "m", "-5m", "1d", "1h 30m", "1..5s", ".s", "5 m", "+1s", "1e3s",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("30m"), "{text}: {error}");
        }
        assert!(matches!(parse("9999999999h"), Err(DurationError::Range(_))));
    }

    proptest! {
        #[test]
        fn shows_what_it_reads(nanos in 0..i64::MAX as u64) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }
    }
}
