//! Whether a figure grows over a run: by the slope of the whole series, not by its ends, of which either may be a moment when
//! something else was going on.

/// What the figure grew by, or shrank, from the first of the series to the last: the median of the slopes between any two
/// (Theil 1950, Sen 1968), times the steps. Up to a quarter of the figures may be anything without moving it much.
#[must_use]
pub fn growth(series: &[f64]) -> f64 {
    let mut slopes: Vec<f64> = (0..series.len())
        .flat_map(|from| (from + 1..series.len()).map(move |to| (series[to] - series[from]) / (to - from) as f64))
        .collect();
    slopes.sort_unstable_by(f64::total_cmp);
    let middle = slopes.len() / 2;
    let median = match slopes.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => slopes[middle],
        _ => f64::midpoint(slopes[middle - 1], slopes[middle]),
    };
    median * series.len().saturating_sub(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn a_slope_is_seen_and_outliers_are_not() {
        assert!(close(growth(&[5.0, 6.0, 7.0, 8.0]), 3.0));
        assert!(close(growth(&[5.0, 5.0, 90.0, 5.0, 5.0, 5.0, 5.0, 5.0]), 0.0));
        // The ends alone would say 0.
        assert!(growth(&[9.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0]) > 5.0);
        assert!(close(growth(&[8.0, 6.0]), -2.0));
        assert!(close(growth(&[3.0]), 0.0));
        assert!(close(growth(&[]), 0.0));
    }
}
