//! The client that the demo talks with, for the end-to-end tests too.

pub use cli_mcp_client::session;
