//! An hour of mixed load on the development cluster, as `make soak` runs it, or the minutes that `SOAK_SECONDS` says: memory,
//! descriptors, threads and zombies of every program, and its requests to the API server, do not grow with time.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cli_mcp_chaos::balancer;
use cli_mcp_chaos::gauge::{self, Held, Requests};
use cli_mcp_chaos::node::OPERATOR;
use cli_mcp_chaos::order::Order;
use cli_mcp_demo::session::Endpoint;
use cli_mcp_e2e::cluster;
use cli_mcp_e2e::instance::Instance;

const NAMESPACE: &str = "soak";

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

/// What the calls do: command, and the exit code that it must have.
const COMMANDS: [(&str, i32); 8] = [
    ("echo $RANDOM; x=$((x+1))", 0),
    ("nosuch", 127),
    ("exit 3", 3),
    ("seq 20000", 0),
    ("head -c 2000000 /dev/zero | tr '\\0' x", 0),
    ("(sleep 0.2 &) ; sleep 0.05", 0),
    ("kubectl get --raw /version >/dev/null", 0),
    ("kubectl get pods -A >/dev/null", 0),
];

/// What half of the load began with, and what it asked of the API server.
struct Half {
    held: BTreeMap<&'static str, Held>,
    calls: u64,
    requests: BTreeMap<String, u64>,
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
        let (command, code) = COMMANDS[order.below(COMMANDS.len())];
        let result = session.bash(command).await?;
        ensure!(result.exit_code == Some(code), "{id}: {command}: {result:?}");
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
async fn at_rest() -> Result<BTreeMap<&'static str, Held>> {
    cluster::eventually("the sandboxes of the sessions and the pool", async || {
        let held = gauge::held(&[NAMESPACE, OPERATOR])?;
        let agents = held.get("agent").context("no agent")?.processes;
        ensure!(agents == SESSIONS + 1, "{agents} sandboxes");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    gauge::held(&[NAMESPACE, OPERATOR])
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows_under_a_steady_load() -> Result<()> {
    if !cluster::is_dev() {
        // The node's processes and the audit log can be read on the repository's own cluster only.
        return Ok(());
    }
    let length = Duration::from_secs(seconds()?);
    let mut instance = Instance::create(NAMESPACE, "soak", SPEC)?;
    let port = balancer::start(&instance).await?;
    instance.endpoint.base_url = format!("https://localhost:{port}");
    for number in 0..SESSIONS {
        instance.session(&format!("soak-{number}")).await?;
    }
    // What is allocated once is there after this.
    load(&instance.endpoint, length / 4).await?;
    let mut before: Option<Half> = None;
    for half in ["first", "second"] {
        let held = at_rest().await?;
        let requests = Requests::from_now()?;
        let calls = load(&instance.endpoint, length * 3 / 8).await?;
        let now = at_rest().await?;
        let requests = requests.count(&[NAMESPACE, OPERATOR])?;
        writeln!(
            std::io::stderr().lock(),
            "{half} half: {calls} calls\n  before {held:?}\n  after {now:?}\n  requests {requests:?}"
        )?;
        for (program, figures) in &now {
            let earlier = before.as_ref().map_or(&held, |half| &half.held);
            figures
                .flat_since(&earlier[program], 4096)
                .with_context(|| format!("{program}, {half} half"))?;
        }
        if let Some(first) = &before {
            for (account, count) in &requests {
                let (earlier, now) = (
                    per_call(&first.requests, account, first.calls),
                    *count as f64 / calls as f64,
                );
                ensure!(
                    now <= earlier * 1.5 + 0.1,
                    "{account}: {earlier:.2} requests to the API server a call, then {now:.2}"
                );
            }
        }
        before = Some(Half { held, calls, requests });
    }
    Ok(())
}

fn per_call(requests: &BTreeMap<String, u64>, account: &str, calls: u64) -> f64 {
    requests.get(account).copied().unwrap_or_default() as f64 / calls as f64
}
