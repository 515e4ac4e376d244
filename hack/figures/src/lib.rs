//! What a bench found: figures beside their floors and bars, as a table for people and as JSON. A bar that is missed is told,
//! and is no error: a bench fails only where it could not measure.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    /// A figure is no number: nothing was measured, or its floor is zero.
    #[error("{0}: could not be measured")]
    NotMeasured(String),
    /// The report cannot be written.
    #[error("the report cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    compared: Option<(f64, f64)>,
    bar: Option<f64>,
}

impl Figure {
    /// A figure with its unit, such as `ms`; `x` is a ratio.
    #[must_use]
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            value,
            unit,
            compared: None,
            bar: None,
        }
    }

    /// What it was made of: the floor, and what was measured beside it in the same run.
    #[must_use]
    pub fn of(self, floor: f64, measured: f64) -> Self {
        Self {
            compared: Some((floor, measured)),
            ..self
        }
    }

    /// The bar: what it should not exceed.
    #[must_use]
    pub fn at_most(self, bar: f64) -> Self {
        Self { bar: Some(bar), ..self }
    }

    /// `met` or `missed`; nothing without a bar.
    fn verdict(&self) -> Option<&'static str> {
        self.bar.map(|bar| if self.value <= bar { "met" } else { "missed" })
    }
}

/// The table, the line that counts the bars, and on the last line the JSON.
///
/// # Errors
///
/// When a figure is no number.
pub fn report(figures: &[Figure]) -> Result<String, FiguresError> {
    if let Some(figure) = figures.iter().find(|figure| !figure.value.is_finite()) {
        return Err(FiguresError::NotMeasured(figure.what.clone()));
    }
    let mut text = "| figure | floor | measured | value | bar | |\n|---|---|---|---|---|---|\n".to_owned();
    for figure in figures {
        let (floor, measured) = figure
            .compared
            .map(|(floor, measured)| (format!("{floor:.3}"), format!("{measured:.3}")))
            .unwrap_or_default();
        let bar = figure
            .bar
            .map(|bar| format!("{bar} {}", figure.unit))
            .unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {floor} | {measured} | {:.3} {} | {} | {} |",
            figure.what,
            figure.value,
            figure.unit,
            bar.trim_end(),
            figure.verdict().unwrap_or_default()
        );
    }
    let verdicts: Vec<&str> = figures.iter().filter_map(Figure::verdict).collect();
    let missed = verdicts.iter().filter(|verdict| **verdict == "missed").count();
    let _ = writeln!(text, "\nbars: {missed} of {} missed", verdicts.len());
    let json: Value = figures
        .iter()
        .map(|figure| {
            let (floor, measured) = figure.compared.unzip();
            json!({
                "figure": figure.what, "value": figure.value, "unit": figure.unit,
                "floor": floor, "measured": measured, "bar": figure.bar, "verdict": figure.verdict(),
            })
        })
        .collect();
    let _ = writeln!(text, "{json}");
    Ok(text)
}

/// Writes the report to standard output.
///
/// # Errors
///
/// When a figure is no number, or nobody reads.
pub fn print(figures: &[Figure]) -> Result<(), FiguresError> {
    let report = report(figures)?;
    Ok(std::io::stdout().lock().write_all(report.as_bytes())?)
}

/// A percentile in milliseconds; no number where there are no samples.
#[must_use]
pub fn percentile(samples: &[Duration], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_is_told_and_no_error() {
        let text = report(&[
            Figure::new("ratio", 2.0, "x").of(1.0, 2.0).at_most(1.5),
            Figure::new("memory", 4.0, "MiB").at_most(4.0),
            Figure::new("calls", 7.0, ""),
        ])
        .unwrap();
        assert!(
            text.contains("| ratio | 1.000 | 2.000 | 2.000 x | 1.5 x | missed |"),
            "{text}"
        );
        assert!(text.contains("| memory |  |  | 4.000 MiB | 4 MiB | met |"), "{text}");
        assert!(text.contains("\nbars: 1 of 2 missed\n"), "{text}");
        let json: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&json[0]["verdict"], &json[0]["floor"]),
            (&json!("missed"), &json!(1.0))
        );
        assert_eq!((&json[2]["verdict"], &json[2]["bar"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn what_was_not_measured_is_an_error() {
        for value in [f64::NAN, f64::INFINITY] {
            let error = report(&[Figure::new("p50", value, "ms")]).unwrap_err();
            assert_eq!(error.to_string(), "p50: could not be measured");
        }
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<Duration> = [3, 1, 2].map(Duration::from_millis).into();
        assert_eq!(
            [0, 50, 99, 100].map(|percent| percentile(&samples, percent)),
            [1.0, 2.0, 2.0, 3.0]
        );
    }
}
