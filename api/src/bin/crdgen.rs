//! Prints the CustomResourceDefinition: `make manifests` writes it to `config/crd/bases`.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let written = match cli_mcp_api::crd::yaml() {
        Ok(yaml) => std::io::stdout().lock().write_all(yaml.as_bytes()),
        Err(error) => Err(std::io::Error::other(error)),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to report to when stderr is gone too.
            let _ = writeln!(
                std::io::stderr().lock(),
                "error: the CustomResourceDefinition cannot be written: {error}"
            );
            ExitCode::FAILURE
        }
    }
}
