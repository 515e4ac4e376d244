//! The server's real binary between a real MCP client and a fake cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the lints know tests by their attribute, not the functions that tests share"
)]

mod access;
mod calls;
mod claims;
mod clients;
mod deaths;
mod ends;
mod gate;
mod hostile;
mod reach;
mod requests;
mod sessions;
mod stdio;
mod support;
mod tracing;
