//! Whole kubeconfigs, from the file to what is served of it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod files;
mod fixtures;
mod routes;
