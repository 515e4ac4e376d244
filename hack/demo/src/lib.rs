//! The demo's conversation with an instance, and the client that it talks with, for the end-to-end tests too.

pub mod steps;

pub use cli_mcp_client::{session, stream};
