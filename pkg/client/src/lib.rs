//! A small MCP client for one session of an instance, on the unmodified SDK: the demo prints with it, the kubectl plugin
//! runs commands with it, the end-to-end tests assert with it.

mod call;
pub mod cause;
pub mod session;
pub mod stream;
