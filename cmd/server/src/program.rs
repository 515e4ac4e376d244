//! The program: from the command line to an exit code.

mod clients;
mod wiring;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::Shell;
use cli_mcp_api::names;
use cli_mcp_serving::otlp::Exporter;
use cli_mcp_serving::tls::Certificate;
use cli_mcp_serving::{exit, logging};

use crate::config::Cli;
use crate::config::settings::{ConfigError, Settings, Transport};
use crate::host::HostPolicy;

/// How long the runtime may take to end; a read of standard input cannot be interrupted.
const RUNTIME_END: Duration = Duration::from_millis(500);

/// Parses the command line and runs. Exit code 2 for an invocation that cannot run, 1 for a failure.
pub fn run() -> ExitCode {
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        // It comes alone, without the flags that a run requires.
        match matches.get_one::<Shell>("completion") {
            Some(shell) => Ok(Parsed::Completion(*shell)),
            None => Cli::from_arg_matches(&matches).map(|cli| Parsed::Run(Box::new(cli))),
        }
    });
    let cli = match parsed {
        Ok(Parsed::Run(cli)) => *cli,
        Ok(Parsed::Completion(shell)) => {
            return exit::completion(shell, Cli::command(), "server");
        }
        Err(error) => return exit::without_arguments(&error, "server"),
    };
    let prepared = Settings::try_from(cli).and_then(Prepared::new);
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return exit::refuse(error),
    };
    let stream = match prepared.settings.transport {
        Transport::Stdio { .. } => logging::Stream::Stderr,
        Transport::Http(_) => logging::Stream::Stdout,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::fail(format_args!("the runtime cannot start: {error}")),
    };
    let exporter = {
        let _within = runtime.enter();
        match Exporter::from_env("cli-mcp-server", env!("CARGO_PKG_VERSION")) {
            Ok(exporter) => exporter,
            Err(error) => return exit::refuse(error),
        }
    };
    logging::init_with(stream, exporter.as_ref().map(Exporter::layer));
    let outcome = runtime.block_on(wiring::serve(prepared));
    if let Some(exporter) = exporter {
        exporter.shutdown();
    }
    runtime.shutdown_timeout(RUNTIME_END);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(format_args!("{error:#}")),
    }
}

/// What a command line asks for.
enum Parsed {
    Run(Box<Cli>),
    Completion(Shell),
}

/// A checked invocation, and what can be read from files before anything runs.
struct Prepared {
    settings: Settings,
    certificate: Option<Arc<Certificate>>,
    hosts: Option<HostPolicy>,
}

impl Prepared {
    fn new(settings: Settings) -> Result<Self, ConfigError> {
        // The one crypto provider, also for libraries that ask for the process's default. A second install is no error.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Transport::Http(http) = &settings.transport else {
            return Ok(Self {
                settings,
                certificate: None,
                hosts: None,
            });
        };
        let certificate = match &http.tls {
            None => None,
            Some(files) => Some(
                Certificate::load(&files.certificate, &files.key)
                    .map_err(|error| ConfigError::new(format!("--tls-cert-file, --tls-private-key-file: {error}")))?,
            ),
        };
        let service = names::server(&settings.template.instance);
        let namespace = &settings.template.namespace;
        let service_names = [
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ];
        let hosts = HostPolicy::new(
            &service_names,
            &http.allowed_hosts,
            &http.allowed_origins,
            certificate.clone(),
        )?;
        Ok(Self {
            certificate,
            hosts: Some(hosts),
            settings,
        })
    }
}
