//! What is generated is current, and what must be complete is.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use cli_mcp_docs::{pages, read, repository, source};

fn troubleshoot() -> String {
    read(&repository().join("docs/troubleshoot.md")).unwrap()
}

#[test]
fn generated_pages_are_current() {
    let repository = repository();
    let behind: Vec<String> = pages(&repository)
        .unwrap()
        .into_iter()
        .filter(|page| read(&repository.join(&page.path)).ok().as_ref() != Some(&page.content))
        .map(|page| page.path)
        .collect();
    assert!(behind.is_empty(), "behind the code, run make docs: {behind:?}");
}

#[test]
fn every_reason_and_event_has_a_section() {
    let page = troubleshoot();
    let (_, reasons) = source::constants(&repository().join("api/src/conditions.rs"), "reasons").unwrap();
    let reasons = reasons.into_iter().map(|reason| reason.value);
    let events = source::event_reasons(&repository().join("controllers/src")).unwrap();
    assert!(reasons.len() > 5 && !events.is_empty());
    for reason in reasons.chain(events) {
        assert!(
            page.contains(&format!("\n### {reason}\n")),
            "docs/troubleshoot.md has no section {reason}"
        );
    }
}

#[test]
fn every_outcome_of_a_failed_call_is_explained() {
    let page = troubleshoot();
    let code = read(&repository().join("cmd/server/src/failure.rs")).unwrap();
    // Arms of Failure::outcome: `Self::X… => "word",`
    let outcomes: Vec<&str> = code
        .lines()
        .filter(|line| line.trim_start().starts_with("Self::") || line.trim_start().starts_with("| Self::"))
        .filter_map(|line| line.split("=> \"").nth(1)?.split('"').next())
        .collect();
    assert!(outcomes.len() > 10, "{outcomes:?}");
    for outcome in outcomes {
        assert!(
            page.contains(&format!("`{outcome}`")),
            "docs/troubleshoot.md does not explain {outcome}"
        );
    }
}

#[test]
fn the_inventory_sees_the_texts_of_every_part() {
    let texts = source::texts(&repository()).unwrap();
    for part in [
        "server/",
        "agent/",
        "proxy/",
        "operator/",
        "controllers/",
        "kubeconfig/",
        "serving/",
        "plugin/",
    ] {
        assert!(texts.iter().any(|text| text.key.starts_with(part)), "no text of {part}");
    }
}
