//! The document and the tests say the same. Needs no cluster, and so runs with the unit tests.

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::table;
use cli_mcp_e2e::cluster;

#[test]
fn the_table_of_the_security_page_is_that_of_the_tests() -> Result<()> {
    let root = cluster::repository();
    let expected = table::table(&root.join("test/attack/tests/attack"))?;
    let path = root.join("docs/security.md");
    let page = std::fs::read_to_string(&path)?;
    let found = table::between_marks(&page).context("docs/security.md has lost the marks of the table")?;
    if found != expected.trim() && std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page.replace(found, expected.trim()))?;
        return Ok(());
    }
    ensure!(
        found == expected.trim(),
        "docs/security.md differs from the tests; run this test with UPDATE_DOCS=1. Expected:\n{expected}"
    );
    Ok(())
}
