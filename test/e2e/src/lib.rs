//! What the end-to-end tests stand on: the cluster, its node, kubectl, and instances made the way a user makes them.

pub mod admin;
pub mod cluster;
pub mod instance;
pub mod kubectl;
pub mod metrics;
pub mod node;
pub mod secret_search;
pub mod setup;
