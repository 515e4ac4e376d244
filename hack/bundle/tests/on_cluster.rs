//! The committed bundle is the one that `config/` makes. Run by `make test-e2e`, whose cluster brings kubectl along: the test of
//! the same name in `committed.rs` is skipped where there is none.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

mod drift;

#[test]
fn the_bundle_is_the_one_that_config_makes() {
    assert!(drift::kubectl_is_installed(), "kubectl is not installed");
    assert_eq!(drift::stale(), Vec::<String>::new(), "behind config/: run make bundle");
}
