//! Writes the operator's roles below a folder: `make manifests` writes them to `config/`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use cli_mcp_controllers::rights::manifests;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return fail("no folder was given: rolegen FOLDER", 2);
    };
    for manifest in manifests() {
        let file = folder.join(manifest.path);
        if let Err(error) = std::fs::write(&file, manifest.text) {
            return fail(&format!("{} cannot be written: {error}", file.display()), 1);
        }
    }
    ExitCode::SUCCESS
}

fn fail(text: &str, code: u8) -> ExitCode {
    // Nothing is left to report to when stderr is gone too.
    let _ = writeln!(std::io::stderr().lock(), "error: {text}");
    ExitCode::from(code)
}
