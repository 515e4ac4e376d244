//! How results look: tables with columns as wide as they must be, ages as kubectl writes them, JSON.

use std::io::Write;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

/// The text with escapes in place of its control characters. Pods carry words of their sandboxes, which must not steer a
/// terminal (CVE-2021-25743 was the same in kubectl).
pub(crate) fn visible(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            visible.push_str(&escape(c));
        } else {
            visible.push(c);
        }
    }
    visible
}

/// Lines of cells, each column as wide as its widest cell, three blanks between. Control characters in cells are made
/// visible.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| visible(cell)).collect())
        .collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// A duration as kubectl's tables write it: `45s`, `5m10s`, `27m`, `3h5m`, `2d4h`, `9d`.
pub(crate) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |whole: u64, unit: &str, part: u64, small: &str| {
        if part == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{part}{small}")
        }
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// The time since then; none where a clock is ahead.
pub(crate) fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a JSON document to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> std::io::Result<()> {
    print(&format!("{}\n", json(value)?))
}

/// serde_json escapes control characters in strings, but for DEL and those above it, which some terminals obey too.
fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let lines = serde_json::to_string_pretty(value)?;
    Ok(escaped(&lines, |c| match c {
        '\n' => c.to_string(),
        c => format!("\\u{:04x}", u32::from(c)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        assert_eq!(table(&[row(&["A", "LONG"]), row(&["bé", ""])]), "A    LONG\nbé\n");
    }

    #[test]
    fn words_of_a_sandbox_do_not_steer_the_terminal() {
        let title = "\x1b]0;x\x07\r\n\u{9b}2J é";
        let text = table(&[vec![title.to_owned(), "B".to_owned()]]);
        assert_eq!(text, "\\u{1b}]0;x\\u{7}\\r\\n\\u{9b}2J é   B\n");
        let text = json(&[title]).unwrap();
        assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [title]);
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (310, "5m10s"),
            (1_640, "27m"),
            (11_100, "3h5m"),
            (40_000, "11h"),
            (187_200, "2d4h"),
            (800_000, "9d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
