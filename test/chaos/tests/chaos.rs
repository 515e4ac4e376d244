//! Faults under load, on the development cluster. `make test-chaos` starts one, installs the operator and runs this.
//!
//! `CHAOS_SEED` (a number) chooses another order of the faults, and `CHAOS_PASSES` how often all of them come.

use std::io::Write;

use anyhow::{Context, Result};
use cli_mcp_chaos::balancer;
use cli_mcp_chaos::fault::{self, Fault};
use cli_mcp_chaos::invariants::Before;
use cli_mcp_chaos::load::Client;
use cli_mcp_chaos::order::Order;
use cli_mcp_e2e::cluster;
use cli_mcp_e2e::instance::Instance;

const SESSIONS: usize = 4;
const POOL: usize = 1;

const SPEC: &str = "  replicas: 2
  sandbox:
    warmPoolSize: 1
    resources:
      requests: {cpu: 20m, memory: 32Mi}
      limits: {cpu: 500m, memory: 256Mi, ephemeral-storage: 256Mi}
  proxy:
    replicas: 2
    targets:
    - {type: kubernetes, access: ReadOnly}
";

fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}: {text:?} is no number")),
        Err(_) => Ok(default),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_leaves_every_session_whole() -> Result<()> {
    if !cluster::is_dev() {
        // Processes and components can be killed on the repository's own cluster only.
        return Ok(());
    }
    let seed = number("CHAOS_SEED", 1)?;
    let mut order = Order::new(seed);
    let mut instance = Instance::create("chaos", "chaos", SPEC)?;
    let port = balancer::start(&instance).await?;
    instance.endpoint.base_url = format!("https://localhost:{port}");
    let clients: Vec<_> = (0..SESSIONS)
        .map(|number| Client::start(&instance.endpoint, &format!("chaos-{number}")))
        .collect();
    // The sandboxes come into being.
    Before::look(&instance, &clients)?
        .compare(&instance, &clients, POOL, true)
        .await?;
    for pass in 0..number("CHAOS_PASSES", 1)? {
        let mut faults = fault::ALL;
        order.shuffle(&mut faults);
        for (number, fault) in faults.into_iter().enumerate() {
            writeln!(
                std::io::stderr().lock(),
                "seed {seed}, pass {pass}, fault {number}: {fault:?}"
            )?;
            strike(fault, &instance, &clients, &mut order)
                .await
                .with_context(|| format!("seed {seed}, pass {pass}, fault {number}: {fault:?}"))?;
        }
    }
    clients.iter().for_each(Client::stop);
    for client in &clients {
        client.compare().await?;
    }
    Ok(())
}

async fn strike(fault: Fault, instance: &Instance, clients: &[Client], order: &mut Order) -> Result<()> {
    let before = Before::look(instance, clients)?;
    fault.strike(instance, order).await?;
    before
        .compare(instance, clients, POOL, fault.may_end_sandboxes())
        .await?;
    for client in clients {
        client.compare().await?;
    }
    Ok(())
}
