//! The table and the JSON line.

use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A figure; with a target, one that must not be exceeded.
pub(crate) struct Row {
    figure: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
}

pub(crate) fn row(figure: &'static str, value: f64, unit: &'static str) -> Row {
    Row {
        figure,
        value,
        unit,
        target: None,
    }
}

pub(crate) fn met(figure: &'static str, value: f64, unit: &'static str, target: f64) -> Row {
    Row {
        target: Some(target),
        ..row(figure, value, unit)
    }
}

pub(crate) fn print(rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for row in rows {
        let verdict = match row.target {
            Some(target) if row.value <= target => format!("<= {target} met"),
            Some(target) => format!("<= {target} NOT MET"),
            None => String::new(),
        };
        writeln!(out, "{:<72} {:>10.3} {:<4} {verdict}", row.figure, row.value, row.unit)?;
    }
    let json: serde_json::Map<String, Value> = rows
        .iter()
        .map(|row| {
            (
                row.figure.to_owned(),
                json!({"value": row.value, "unit": row.unit, "target": row.target}),
            )
        })
        .collect();
    writeln!(out, "{}", Value::Object(json))?;
    let missed = rows
        .iter()
        .any(|row| row.target.is_some_and(|target| row.value > target));
    ensure!(!missed, "a figure is not met");
    Ok(())
}

pub(crate) fn percentile(samples: &[Duration], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}
