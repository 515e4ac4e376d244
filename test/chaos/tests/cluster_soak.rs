//! An hour of mixed load on the development cluster, as `make soak` runs it, or the minutes that `SOAK_SECONDS` says: memory,
//! descriptors, threads, tasks and zombies of every program, and its requests to the API server, do not grow with time.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cli_mcp_chaos::balancer;
use cli_mcp_chaos::gauge::{self, Held, Requests};
use cli_mcp_chaos::node::OPERATOR;
use cli_mcp_chaos::order::Order;
use cli_mcp_demo::session::{Endpoint, Session, SessionError};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{admin, cluster, kubectl};
use serde_json::json;

const NAMESPACE: &str = "soak";
const INSTANCE: &str = "soak";

const SPEC: &str = "  replicas: 2
  sandbox:
    warmPoolSize: 1
    resources:
      requests: {cpu: 20m, memory: 32Mi}
      limits: {cpu: 500m, memory: 256Mi}
  proxy:
    targets:
    - {type: kubernetes, access: ReadOnly}
";

/// Sessions that live as long as the load.
const SESSIONS: u64 = 3;

/// So often the programs are looked at, after as much load as lets what is allocated once be there.
const ROUNDS: u32 = 8;

/// What is allocated once is there after a load of this length, or of a quarter of the run: in a shorter one, allocators and pools of
/// connections still grow to their size.
const WARM_UP: Duration = Duration::from_secs(60);

/// From this length on a run tells slow growth of memory from what allocators happen to hold.
const TELLS_SLOW_GROWTH: Duration = Duration::from_secs(600);

/// What a call does.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// A command, and the exit code that it must have.
    Ends(&'static str, i32),
    /// A command whose output is followed.
    Followed(&'static str),
    /// A command that lasts longer than its timeout.
    TimesOut,
    /// A command whose client goes away while it runs.
    Cancelled,
}

const CALLS: [Call; 12] = [
    Call::Ends("echo $RANDOM; x=$((x+1))", 0),
    Call::Ends("nosuch", 127),
    Call::Ends("exit 3", 3),
    Call::Ends("seq 20000", 0),
    Call::Ends("head -c 2000000 /dev/zero | tr '\\0' x", 0),
    Call::Ends("(sleep 0.2 &) ; sleep 0.05", 0),
    Call::Ends("kubectl get --raw /version >/dev/null", 0),
    Call::Ends("kubectl get pods -A >/dev/null", 0),
    Call::Ends("timeout 2 kubectl get pods -A --watch >/dev/null", 124),
    Call::Followed("for number in 1 2 3; do echo $number; sleep 0.1; done"),
    Call::TimesOut,
    Call::Cancelled,
];

/// Makes a call, and sees that it ended as it must.
async fn make(call: Call, session: &Session, endpoint: &Endpoint, id: &str) -> Result<()> {
    match call {
        Call::Ends(command, code) => {
            let result = session.bash(command).await?;
            ensure!(result.exit_code == Some(code), "{result:?}");
        }
        Call::Followed(command) => {
            let mut shown = String::new();
            let arguments = json!({ "command": command });
            let result = session
                .follow(arguments, |_, text| {
                    shown.push_str(text);
                    Ok::<_, SessionError>(())
                })
                .await?;
            ensure!(
                result.exit_code == Some(0) && shown == result.stdout && !shown.is_empty(),
                "{shown:?} of {result:?}"
            );
        }
        Call::TimesOut => {
            let result = session.call(json!({"command": "sleep 9", "timeout": 1})).await?;
            ensure!(result.timed_out && result.exit_code == Some(124), "{result:?}");
        }
        Call::Cancelled => {
            // Its connection is of its own, and ends with it.
            let another = endpoint.connect(id).await?;
            let patience = Duration::from_millis(300);
            let ended = tokio::time::timeout(patience, another.bash("sleep 50")).await;
            ensure!(ended.is_err(), "{ended:?}");
        }
    }
    Ok(())
}

fn seconds() -> Result<u64> {
    match std::env::var("SOAK_SECONDS") {
        Ok(text) => text
            .parse()
            .with_context(|| format!("SOAK_SECONDS: {text:?} is no number")),
        Err(_) => Ok(60),
    }
}

/// Calls in one session until the end, in an order of its own; every tenth call of a session that does not `stay` is its last,
/// and the next one begins anew. Returns the number of calls.
async fn calls(endpoint: Endpoint, number: u64, stays: bool, until: Instant) -> Result<u64> {
    let mut order = Order::new(number);
    let id = format!("soak-{number}");
    let mut session = endpoint.connect(&id).await?;
    let mut count = 0;
    while Instant::now() < until {
        let call = CALLS[order.below(CALLS.len())];
        make(call, &session, &endpoint, &id)
            .await
            .with_context(|| format!("{id}: {call:?}"))?;
        count += 1;
        if !stays && count % 10 == 0 {
            ensure!(session.delete().await? == 204, "{id} was not deleted");
            session = endpoint.connect(&id).await?;
        }
    }
    if !stays {
        session.delete().await?;
    }
    Ok(count)
}

/// The load for so long. Returns its calls.
async fn load(endpoint: &Endpoint, length: Duration) -> Result<u64> {
    let until = Instant::now() + length;
    let tasks: Vec<_> = (0..=SESSIONS)
        .map(|number| tokio::spawn(calls(endpoint.clone(), number, number < SESSIONS, until)))
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(count)
}

/// Looks once nothing is going on: the pool is full, and no sandbox is on its way out.
async fn at_rest(scraper: &str) -> Result<BTreeMap<&'static str, Held>> {
    cluster::eventually("the sandboxes of the sessions and the pool", async || {
        let held = gauge::held(&[NAMESPACE, OPERATOR])?;
        let agents = held.get("agent").context("no agent")?.processes;
        ensure!(agents == SESSIONS + 1, "{agents} sandboxes");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut held = gauge::held(&[NAMESPACE, OPERATOR])?;
    for (program, held) in &mut held {
        held.tasks = match *program {
            "operator" => gauge::tasks_of_operator(scraper)?,
            // It exports none.
            "agent" => 0,
            program => gauge::tasks(NAMESPACE, program)?,
        };
    }
    Ok(held)
}

/// A token of somebody who may get the operator's metrics.
fn scraper() -> Result<String> {
    kubectl::ok(&["-n", NAMESPACE, "create", "serviceaccount", "scraper"])?;
    kubectl::ok(&["delete", "clusterrolebinding", "soak-scraper", "--ignore-not-found"])?;
    let account = format!("--serviceaccount={NAMESPACE}:scraper");
    let role = "--clusterrole=cli-mcp-operator-metrics-reader";
    kubectl::ok(&["create", "clusterrolebinding", "soak-scraper", role, &account])?;
    let token = kubectl::ok(&["-n", NAMESPACE, "create", "token", "scraper", "--duration=12h"])?;
    Ok(token.trim().to_owned())
}

/// The proxies get another credential of the same ServiceAccount, while calls go on that use it.
fn rotate() -> Result<()> {
    let account = "cli-mcp-investigator";
    let token = kubectl::ok(&["-n", NAMESPACE, "create", "token", account, "--duration=12h"])?;
    admin::replace_credential(NAMESPACE, INSTANCE, token.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows_under_a_steady_load() -> Result<()> {
    if !cluster::is_dev() {
        // The node's processes and the audit log can be read on the repository's own cluster only.
        return Ok(());
    }
    let length = Duration::from_secs(seconds()?);
    let mut instance = Instance::create(NAMESPACE, INSTANCE, SPEC)?;
    let port = balancer::start(&instance).await?;
    instance.endpoint.base_url = format!("https://localhost:{port}");
    for number in 0..SESSIONS {
        instance.session(&format!("soak-{number}")).await?;
    }
    let scraper = scraper()?;
    load(&instance.endpoint, WARM_UP.max(length / 4)).await?;
    let mut series: BTreeMap<&'static str, Vec<Held>> = BTreeMap::new();
    let mut asked: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let held = at_rest(&scraper).await?;
        let requests = Requests::from_now()?;
        let rotation = tokio::task::spawn_blocking(rotate);
        let calls = load(&instance.endpoint, length * 3 / 4 / ROUNDS).await?;
        rotation.await??;
        let requests = requests.count(&[NAMESPACE, OPERATOR])?;
        writeln!(
            std::io::stderr().lock(),
            "round {round}: {calls} calls\n  before {held:?}\n  requests {requests:?}"
        )?;
        for (program, held) in held {
            series.entry(program).or_default().push(held);
        }
        for (account, count) in requests {
            asked.entry(account).or_default().push(count as f64);
        }
    }
    for (program, held) in at_rest(&scraper).await? {
        series.entry(program).or_default().push(held);
    }
    let memory = if length < TELLS_SLOW_GROWTH {
        gauge::MEMORY_IN_MINUTES
    } else {
        gauge::MEMORY
    };
    for (program, series) in &series {
        gauge::is_flat(series, memory).with_context(|| (*program).to_owned())?;
    }
    for (account, requests) in &asked {
        gauge::asks_no_more(requests).with_context(|| account.clone())?;
    }
    Ok(())
}
