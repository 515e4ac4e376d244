//! A cluster in one process for component tests: an API server that lists, watches, creates, patches and deletes, a
//! kubelet that starts and ends pods, agents on loopback addresses of their own, and the server under test as its real
//! binary.

pub(crate) mod agent;
pub(crate) mod api;
pub(crate) mod pool;
pub(crate) mod server;
