//! The `CliMcpInstance` resource and the names that every program agrees on. No IO and no client: pure types and
//! functions, so that the programs, the tests and the generated manifests cannot drift apart.

pub mod conditions;
pub mod crd;
pub mod duration;
pub mod labels;
pub mod names;
pub mod v1alpha1;
