//! Faults under load, on the development cluster. `make test-chaos` starts one, installs the operator and runs this.
//!
//! `CHAOS_SEED` (a number) chooses another order of the faults, `CHAOS_PASSES` how often they come, `CHAOS_FAULTS` which: the
//! first of each order, by number, or those whose names, as they are printed, contain one of the words (`Lease,kubelet`).

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cli_mcp_chaos::balancer;
use cli_mcp_chaos::deletion;
use cli_mcp_chaos::fault::{self, Fault};
use cli_mcp_chaos::invariants::Before;
use cli_mcp_chaos::load::{Client, Work};
use cli_mcp_chaos::node;
use cli_mcp_chaos::order::Order;
use cli_mcp_chaos::witness::Witness;
use cli_mcp_e2e::cluster;
use cli_mcp_e2e::instance::Instance;

/// What the sessions do, one each.
const SESSIONS: [Work; 4] = [Work::Short, Work::Long, Work::Followed, Work::Short];
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

/// The faults of a pass.
fn chosen(order: &mut Order) -> Result<Vec<Fault>> {
    let mut faults = fault::ALL.to_vec();
    order.shuffle(&mut faults);
    let Ok(choice) = std::env::var("CHAOS_FAULTS") else {
        return Ok(faults);
    };
    if let Ok(number) = choice.parse() {
        faults.truncate(number);
    } else {
        faults.retain(|fault| choice.split(',').any(|word| format!("{fault:?}").contains(word)));
    }
    ensure!(!faults.is_empty(), "CHAOS_FAULTS: no fault is named by {choice:?}");
    Ok(faults)
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
    let witness = Witness::from_now()?;
    let clients: Vec<_> = SESSIONS
        .into_iter()
        .enumerate()
        .map(|(number, work)| Client::start(&instance.endpoint, &format!("chaos-{number}"), work))
        .collect();
    let children = fault::ALL.iter().filter_map(|fault| match fault {
        Fault::Delete(kind, suffix) => Some((*kind, *suffix)),
        _ => None,
    });
    deletion::nothing_is_left_out(&instance, children)?;
    // The sandboxes come into being.
    Before::look(&instance, &clients)?
        .compare(&instance, &clients, POOL, &BTreeSet::new(), cluster::PATIENCE)
        .await?;
    for pass in 0..number("CHAOS_PASSES", 1)? {
        for (number, fault) in chosen(&mut order)?.into_iter().enumerate() {
            let which = format!("seed {seed}, pass {pass}, fault {number}: {fault:?}");
            let began = Instant::now();
            strike(fault, &mut instance, &clients, &witness, &mut order)
                .await
                .with_context(|| which.clone())?;
            writeln!(
                std::io::stderr().lock(),
                "{which}: whole after {:.1} s",
                began.elapsed().as_secs_f32()
            )?;
        }
    }
    clients.iter().for_each(Client::stop);
    for client in &clients {
        client.compare().await?;
    }
    Ok(())
}

async fn strike(
    fault: Fault,
    instance: &mut Instance,
    clients: &[Client],
    witness: &Witness,
    order: &mut Order,
) -> Result<()> {
    node::forget_restarts_of_the_operator()?;
    let before = Before::look(instance, clients)?;
    let ended = fault.strike(instance, clients, order).await?;
    before
        .compare(instance, clients, POOL, &ended, fault.ready_within())
        .await?;
    witness.compare(clients).await?;
    for client in clients {
        client.compare().await?;
    }
    Ok(())
}
