//! `check`: looks at an instance as a person would, from the API server to a sandbox, and says what to do.

mod conversation;
mod credentials;
mod facts;
mod rules;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::cli::{CheckArguments, Format, Place};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::render;

/// How a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it must be.
    Ok,
    /// It works, and will not for long or not for all.
    Warning,
    /// It cannot be seen from here.
    Unknown,
    /// Nothing works before this is mended.
    Problem,
}

impl Level {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Problem => "PROBLEM",
        }
    }
}

/// What was found of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    part: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn new(part: &'static str, level: Level, found: impl Into<String>, remedy: Option<String>) -> Self {
        Self {
            part,
            level,
            found: found.into(),
            remedy,
        }
    }

    fn ok(part: &'static str, found: impl Into<String>) -> Self {
        Self::new(part, Level::Ok, found, None)
    }

    fn warning(part: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(part, Level::Warning, found, Some(remedy.into()))
    }

    fn unknown(part: &'static str, found: impl Into<String>) -> Self {
        Self::new(part, Level::Unknown, found, None)
    }

    fn problem(part: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(part, Level::Problem, found, Some(remedy.into()))
    }
}

/// Checks the instance; whether no problem was found.
pub(crate) async fn run(place: &Place, arguments: &CheckArguments) -> Result<bool> {
    let cluster = Cluster::of(place).await?;
    let (instance, findings) = match cluster.instance(arguments.connection.instance.as_deref()).await {
        Ok(instance) => {
            let mut findings = rules::examine(&facts::gather(&cluster, &instance).await);
            if arguments.call {
                let mut connection = arguments.connection.clone();
                connection.instance = Some(instance.clone());
                findings.push(conversation::hold(place, &connection).await);
            }
            (Some(instance), findings)
        }
        // Which one is meant is for the caller to say.
        Err(error @ Error::Invocation(_)) => return Err(error),
        Err(error) => {
            let served = matches!(error, Error::Failed(_));
            let mut findings = rules::platform(&facts::platform(&cluster).await, served);
            findings.push(Finding::problem(
                "Instance",
                error.to_string(),
                "docs/quick-start.md makes one; kubectl get climcpinstances -A lists those that there are",
            ));
            (None, findings)
        }
    };
    let well = findings.iter().all(|finding| finding.level != Level::Problem);
    match arguments.output.output {
        Format::Json => render::print_json(&serde_json::json!({
            "namespace": cluster.namespace, "instance": instance, "ok": well, "findings": findings}))?,
        Format::Text => render::print(&text(&findings))?,
    }
    Ok(well)
}

fn text(findings: &[Finding]) -> String {
    let rows: Vec<Vec<String>> = findings
        .iter()
        .map(|finding| {
            vec![
                finding.level.word().to_owned(),
                finding.part.to_owned(),
                finding.found.clone(),
            ]
        })
        .collect();
    let mut text = render::table(&rows);
    let remedies: Vec<&Finding> = findings.iter().filter(|finding| finding.remedy.is_some()).collect();
    if remedies.is_empty() {
        return text;
    }
    // The first one is often the cause of the others.
    text.push_str("\nWhat to do, in this order:\n");
    for (number, finding) in remedies.iter().enumerate() {
        let remedy = render::visible(finding.remedy.as_deref().unwrap_or_default());
        text.push_str(&format!("{}. {}: {remedy}\n", number + 1, finding.part));
    }
    text
}
