//! The reconciler of `CliMcpInstance`, as a library: `cmd/operator` gives it a client and a shutdown token, tests give
//! it a mock.
//!
//! One reconcile is five typed stages, each in the file of its name:
//! [`dereference`] reads everything, [`validate`] decides what can be built, [`build`] makes the children without a
//! client, [`apply`] writes what differs, [`status`] tells. Sandboxes are handled beside them: [`pool`] and [`idle`]
//! decide, [`sandboxes`] executes, and [`escaped`] finds those that lost their labels. [`finalize`] takes an instance down.

pub mod apply;
pub mod auth_delegator;
pub mod build;
pub mod caches;
pub mod context;
pub mod controller;
pub mod dereference;
pub mod difference;
pub mod egress;
pub mod error;
pub mod escaped;
pub mod events;
#[cfg(test)]
mod fake;
pub mod finalize;
pub mod generate;
pub mod idle;
pub mod metrics;
pub mod pool;
pub mod reconcile;
pub mod rights;
pub mod sandboxes;
pub mod settings;
pub mod status;
pub mod trigger;
pub mod trouble;
pub mod validate;

pub use context::Context;
pub use controller::{Controller, Scope};
pub use error::Error;
pub use settings::Settings;
