//! Fuzzing of everything that reads what a sandbox or an admin wrote: each target has invariants that no input may break.
//!
//! `cargo test` tries a fixed number of inputs, the same in each run. `make fuzz-proxy FUZZ_SECONDS=600` tries others for
//! as long; a failure prints its input. The engine is this crate's own, because libFuzzer needs an unstable compiler: it
//! mutates seeds with a dictionary, and keeps inputs that end in a way not seen before as further seeds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed"
)]

mod engine;
mod targets;
