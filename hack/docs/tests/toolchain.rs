//! The version of Rust that the workspace asks for is the one that it is built, tested and shipped with, wherever that is written.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use cli_mcp_docs::{read, repository};

/// What stands between `before` and the next quote or end of the line.
fn behind<'a>(text: &'a str, before: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap();
    rest.split(['"', '\n']).next().unwrap()
}

#[test]
fn one_rust_is_asked_for_and_used() {
    let asked = env!("CARGO_PKG_RUST_VERSION");
    let toolchain = read(&repository().join("rust-toolchain.toml")).unwrap();
    let (minor, _patch) = behind(&toolchain, "channel = \"").rsplit_once('.').unwrap();
    assert_eq!(minor, asked, "rust-toolchain.toml and rust-version");
    for program in ["agent", "operator", "proxy", "server"] {
        let file = format!("Containerfile.{program}");
        let text = read(&repository().join(&file)).unwrap();
        assert_eq!(
            behind(&text, "docker.io/library/rust:"),
            asked,
            "{file} and rust-version"
        );
    }
}
