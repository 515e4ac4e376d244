//! The real proxy between raw clients and a TLS upstream that records what it received: the rows of
//! `proxy_cases.md`, request smuggling, faults, limits and reloads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod authority;
mod bad_files;
mod carriers;
mod client;
mod clients;
mod exhaustion;
mod faults;
mod harness;
mod paths;
mod refusals;
mod reload;
mod serving;
mod smuggling;
mod trust;
mod unopened;
mod unreachable;
mod upgrades;
mod upstream;
