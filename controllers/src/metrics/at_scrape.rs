//! Gauges whose series are made at the moment of a scrape, from what is known then: what is gone has no series.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;

type Series<L> = dyn Fn() -> Vec<(L, i64)> + Send + Sync;

/// A family of gauges without a memory of its own. Clones share the source.
pub(super) struct AtScrape<L>(Arc<OnceLock<Box<Series<L>>>>);

impl<L> AtScrape<L> {
    /// Where the series come from. The first source stays.
    pub(super) fn read_from(&self, series: impl Fn() -> Vec<(L, i64)> + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(series));
    }

    fn series(&self) -> Vec<(L, i64)> {
        self.0.get().map(|series| series()).unwrap_or_default()
    }
}

impl<L> Clone for AtScrape<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<L> Default for AtScrape<L> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<L> fmt::Debug for AtScrape<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AtScrape")
    }
}

impl<L: EncodeLabelSet> EncodeMetric for AtScrape<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in self.series() {
            encoder.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
