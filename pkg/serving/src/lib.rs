//! What the four programs serve with, so that each does it the same way: logs, shutdown, probes and metrics, TLS
//! listeners that follow their files, and delegated Kubernetes authentication.

#[cfg(feature = "auth")]
pub mod auth;
pub mod exit;
pub mod listener;
pub mod logging;
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod places;
pub mod probes;
pub mod shutdown;
pub mod socket;
#[cfg(feature = "tls")]
pub mod tls;
