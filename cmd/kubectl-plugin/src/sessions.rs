//! `sessions`: what the pods and the servers' audit lines say of the sessions.

use std::collections::BTreeMap;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_controllers::trouble;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::cli::{Format, Place, SessionsArguments};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::render;

/// A session.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    namespace: String,
    instance: String,
    session: String,
    pod: String,
    status: String,
    age_seconds: u64,
    idle_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_command: Option<LastCommand>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LastCommand {
    time: Timestamp,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
}

impl LastCommand {
    fn text(&self) -> String {
        match self.exit_code {
            Some(code) if code != 0 => format!("{} ({code})", self.outcome),
            _ => self.outcome.clone(),
        }
    }
}

/// The part of a server's audit line that is looked at.
#[derive(Deserialize)]
struct AuditLine {
    audit: String,
    time: Timestamp,
    session: String,
    outcome: String,
    exit_code: Option<u8>,
}

/// Namespace, instance and session.
type Key = (String, String, String);

/// Lists the sessions.
pub(crate) async fn run(place: &Place, arguments: &SessionsArguments) -> Result<()> {
    let cluster = Cluster::of(place).await?;
    let pods: Api<Pod> = if arguments.all_namespaces {
        Api::all(cluster.client.clone())
    } else {
        cluster.api()
    };
    let list = |component: Component| {
        let selector = selector(arguments.instance.as_deref(), component);
        let pods = pods.clone();
        async move {
            let listed = pods.list(&ListParams::default().labels(&selector)).await;
            listed
                .map(|list| list.items)
                .map_err(Error::api(format!("list the {} pods", component.as_str())))
        }
    };
    let sandboxes = list(Component::Sandbox).await?;
    if let Some(name) = arguments.instance.as_deref().filter(|_| sandboxes.is_empty()) {
        cluster.expect_instance(name, arguments.all_namespaces).await?;
    }
    let mut last = BTreeMap::new();
    if arguments.audit_tail > 0 && sandboxes.iter().any(|pod| session_of(pod).is_some()) {
        for server in list(Component::Server).await? {
            last_commands(&cluster, &server, arguments.audit_tail, &mut last).await;
        }
    }
    let sessions = describe(&sandboxes, &last, Timestamp::now());
    match arguments.output.output {
        Format::Json => render::print_json(&serde_json::json!({ "sessions": sessions }))?,
        Format::Text => render::print(&text(&sessions, arguments.all_namespaces))?,
    }
    Ok(())
}

/// Names of the sessions, of one instance or of all in the namespace.
pub(crate) async fn names(cluster: &Cluster, instance: Option<&str>) -> Result<Vec<String>> {
    let parameters = ListParams::default().labels(&selector(instance, Component::Sandbox));
    let pods = cluster.api::<Pod>().list(&parameters).await;
    let pods = pods.map_err(Error::api("list the sandbox pods"))?;
    let mut names: Vec<String> = pods.iter().filter_map(session_of).cloned().collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn selector(instance: Option<&str>, component: Component) -> String {
    match instance {
        Some(instance) => labels::selector_string(instance, component),
        None => format!("{}={}", labels::COMPONENT, component.as_str()),
    }
}

/// Who may list pods may not be allowed to read logs: then the last commands are not known.
async fn last_commands(cluster: &Cluster, server: &Pod, lines: u32, last: &mut BTreeMap<Key, LastCommand>) {
    let (Some(namespace), Some(instance)) = (server.namespace(), server.labels().get(labels::INSTANCE)) else {
        return;
    };
    let parameters = LogParams {
        tail_lines: Some(i64::from(lines)),
        ..LogParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    if let Ok(log) = pods.logs(&server.name_any(), &parameters).await {
        for (session, command) in audited(&log) {
            let key = (namespace.clone(), instance.clone(), session);
            let newer = last.get(&key).is_none_or(|known| known.time <= command.time);
            if newer {
                last.insert(key, command);
            }
        }
    }
}

fn audited(log: &str) -> impl Iterator<Item = (String, LastCommand)> + '_ {
    log.lines()
        .filter_map(|line| serde_json::from_str::<AuditLine>(line).ok())
        .filter(|line| line.audit == "call")
        .map(|line| {
            let command = LastCommand {
                time: line.time,
                outcome: line.outcome,
                exit_code: line.exit_code,
            };
            (line.session, command)
        })
}

fn session_of(pod: &Pod) -> Option<&String> {
    pod.labels().get(labels::SESSION_ID)
}

fn describe(pods: &[Pod], last: &BTreeMap<Key, LastCommand>, now: Timestamp) -> Vec<Session> {
    let mut sessions: Vec<Session> = pods
        .iter()
        .filter_map(|pod| {
            let session = session_of(pod)?.clone();
            let instance = pod.labels().get(labels::INSTANCE)?.clone();
            let namespace = pod.namespace()?;
            let time = |annotation: &str| pod.annotations().get(annotation)?.parse::<Timestamp>().ok();
            let created = time(labels::CREATED_AT).or_else(|| pod.creation_timestamp().map(|time| time.0))?;
            let active = time(labels::LAST_ACTIVITY).unwrap_or(created);
            let key = (namespace, instance, session);
            let last_command = last.get(&key).filter(|command| command.time >= created).cloned();
            // The annotation is written now and then, so as not to burden the API server.
            let active = last_command.as_ref().map_or(active, |command| active.max(command.time));
            Some(Session {
                last_command,
                pod: pod.name_any(),
                status: status(pod),
                age_seconds: render::since(created, now).as_secs(),
                idle_seconds: render::since(active, now).as_secs(),
                namespace: key.0,
                instance: key.1,
                session: key.2,
            })
        })
        .collect();
    sessions.sort_by(|a, b| (&a.namespace, &a.instance, &a.session).cmp(&(&b.namespace, &b.instance, &b.session)));
    sessions
}

fn status(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        "Ending".to_owned()
    } else if trouble::is_ready(pod) {
        "Ready".to_owned()
    } else {
        trouble::of(pod).unwrap_or_else(|| "Starting".to_owned())
    }
}

fn text(sessions: &[Session], namespaces: bool) -> String {
    if sessions.is_empty() {
        return "No sessions. Start one: kubectl cli-mcp run SESSION -- COMMAND\n".to_owned();
    }
    let mut rows = vec![
        [
            "NAMESPACE",
            "SESSION",
            "INSTANCE",
            "AGE",
            "IDLE",
            "STATUS",
            "LAST COMMAND",
            "POD",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for session in sessions {
        let seconds = |seconds| render::age(std::time::Duration::from_secs(seconds));
        rows.push(vec![
            session.namespace.clone(),
            session.session.clone(),
            session.instance.clone(),
            seconds(session.age_seconds),
            seconds(session.idle_seconds),
            session.status.clone(),
            session
                .last_command
                .as_ref()
                .map_or_else(|| "unknown".to_owned(), LastCommand::text),
            session.pod.clone(),
        ]);
    }
    if !namespaces {
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    render::table(&rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(session: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns",
            "labels": {"cli-mcp.redhat.com/instance": "i", "cli-mcp.redhat.com/session-id": session},
            "annotations": {"cli-mcp.redhat.com/created-at": "2026-01-01T00:00:00Z",
                "cli-mcp.redhat.com/last-activity": "2026-01-01T00:10:00Z"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap()
    }

    fn described(log: &str) -> Vec<Session> {
        let last = audited(log)
            .map(|(session, command)| (("ns".to_owned(), "i".to_owned(), session), command))
            .collect();
        describe(&[pod("s1")], &last, "2026-01-01T00:12:05Z".parse().unwrap())
    }

    #[test]
    fn a_session_is_told_with_its_last_command() {
        let log = "{\"level\":\"INFO\"}\nnot json\n\
            {\"audit\":\"call\",\"time\":\"2026-01-01T00:10:00Z\",\"session\":\"s1\",\"outcome\":\"nonzero_exit\",\"exit_code\":3}\n";
        assert_eq!(
            text(&described(log), false),
            "SESSION   INSTANCE   AGE   IDLE   STATUS   LAST COMMAND       POD\n\
             s1        i          12m   2m5s   Ready    nonzero_exit (3)   p\n"
        );
    }

    #[test]
    fn a_session_is_idle_since_its_last_command() {
        let log = "{\"audit\":\"call\",\"time\":\"2026-01-01T00:12:00Z\",\"session\":\"s1\",\"outcome\":\"ok\",\"exit_code\":0}";
        assert_eq!(described(log)[0].idle_seconds, 5);
        assert_eq!(described("")[0].idle_seconds, 125);
    }

    #[test]
    fn a_command_of_an_earlier_session_of_that_name_is_not_its_last() {
        let log = "{\"audit\":\"call\",\"time\":\"2025-12-31T23:59:00Z\",\"session\":\"s1\",\"outcome\":\"ok\",\"exit_code\":0}";
        assert!(text(&described(log), true).contains("unknown"));
    }

    #[test]
    fn the_warm_pool_has_no_sessions() {
        let mut pool = pod("s1");
        pool.labels_mut().remove(labels::SESSION_ID);
        assert!(describe(&[pool], &BTreeMap::new(), Timestamp::now()).is_empty());
        assert!(text(&[], false).contains("kubectl cli-mcp run"));
    }
}
