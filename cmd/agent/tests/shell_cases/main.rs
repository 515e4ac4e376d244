//! The public failures of persistent shells, each tried on the real agent with a real bash: one test a case, named by the
//! case's number.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod a_delivery;
mod b_output;
mod c_endings;
mod catalogue;
mod d_descriptors;
mod d_restored;
mod d_state;
mod d_traces;
mod e_interrupts;
mod e_processes;
mod f_humans;
mod g_egress;
mod g_log;
mod g_queue;
mod g_service;
mod h_wire;
