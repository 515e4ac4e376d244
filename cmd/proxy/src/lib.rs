//! The credential proxy: a forward proxy that terminates TLS, so that whatever a sandbox sends, the API sees exactly
//! one identity, and nothing else is reachable.
//!
//! A connection goes through [`connect`] (CONNECT and TLS with a certificate of [`mint`]) into a [`tunnel`], whose
//! requests are read by [`head`] and [`body`], planned by [`plan`]: resolved by [`path`] and [`request_info`], judged by [`policy`] and [`deny_set`], freed of
//! credentials by [`strip`], and exchanged with an upstream by [`exchange`] over a connection of [`dial`] and [`pool`].
//! [`reload`] swaps the [`state`] that all of them read. What they hold, they count against one budget, in [`memory`], with
//! the [`kernel`]'s part.
//!
//! The HTTP/1.1 of both sides is written here and not taken from a library. A library reads leniently, and what it has
//! merged or dropped can no longer be refused; here one strict parser sees every byte of a sandbox once, and what goes
//! upstream is written from what it understood. It is also what lets an idle watch hold no buffer at all.

pub mod audit;
pub mod body;
pub mod config;
pub mod connect;
pub mod deny_set;
pub mod dial;
pub mod exchange;
pub mod head;
pub mod health;
pub mod kernel;
pub mod large_heads;
pub mod memory;
pub mod metrics;
pub mod mint;
pub mod path;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod proxy;
pub mod pump;
pub mod refusal;
pub mod reload;
pub mod request_info;
pub mod server;
pub mod socket;
pub mod state;
pub mod strip;
pub mod tls;
pub mod tunnel;

use std::sync::Arc;

use cli_mcp_serving::logging::{self, Stream};
use cli_mcp_serving::shutdown;

use crate::config::Args;
use crate::dial::SystemResolver;
use crate::proxy::Timeouts;
use crate::reload::Directories;
use crate::server::{Proxy, Settings, StartError};

/// Why the program ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It did not start: a flag, a file or a port is wrong.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It could not go on.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Runs the program until SIGTERM.
///
/// # Errors
///
/// When it cannot start or go on.
pub async fn run(args: Args) -> Result<(), RunError> {
    logging::init(Stream::Stdout);
    raise_file_limit();
    let shutdown = shutdown::on_signal()?;
    let proxy = Proxy::bind(Settings {
        listen: args.listen,
        health_listen: args.health_listen,
        directories: Directories {
            routes: args.routes_dir,
            kubeconfig: args.kubeconfig_dir,
            ca: args.ca_dir,
            ssl_cert_file: args.ssl_cert_file,
        },
        max_connections: args.max_connections,
        max_connections_per_client: args.max_connections_per_client,
        memory_budget: args.memory_budget,
        drain_timeout: args.drain_timeout.0,
        timeouts: Timeouts::default(),
        resolver: Arc::new(SystemResolver),
        audit: audit::stdout(),
    })
    .await?;
    tracing::info!(listen = %proxy.address()?, health = %proxy.health_address()?, "Serving");
    proxy.run(shutdown).await?;
    Ok(())
}

/// Each tunnel takes two descriptors, and a container's soft limit may be as low as 1,024; the hard one is what the
/// administrator means.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
        } else {
            Ok(())
        }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "Cannot raise the limit of open files");
    }
}
