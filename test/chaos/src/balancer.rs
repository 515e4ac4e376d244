//! A way to the server's pods that needs neither API server nor kubelet: a port on this machine whose connections go to
//! the pods in turn. `kubectl port-forward` would die with what is killed here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::kubectl;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;

/// How long a pod may take to accept.
const DIAL: Duration = Duration::from_secs(2);

/// Listens, and passes connections on until the runtime ends. Returns the port.
///
/// # Errors
///
/// When no port can be had.
pub async fn start(instance: &Instance) -> Result<u16> {
    let pods = Arc::new(RwLock::new(addresses(&instance.namespace, &instance.name)?));
    let listener = TcpListener::bind("localhost:0").await?;
    let port = listener.local_addr()?.port();
    let (namespace, name, known) = (instance.namespace.clone(), instance.name.clone(), pods.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let (namespace, name) = (namespace.clone(), name.clone());
            // While the API server is away, the pods of before are the best that is known.
            if let Ok(Ok(found)) = tokio::task::spawn_blocking(move || addresses(&namespace, &name)).await
                && !found.is_empty()
            {
                *known.write().await = found;
            }
        }
    });
    let turn = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (pods, turn) = (pods.clone(), turn.clone());
            tokio::spawn(async move {
                let pods = pods.read().await.clone();
                // Each once, then the client's connection ends and it sees that nobody answers.
                for _ in 0..pods.len() {
                    let pod = &pods[turn.fetch_add(1, Ordering::Relaxed) % pods.len()];
                    if let Ok(Ok(server)) = tokio::time::timeout(DIAL, TcpStream::connect(pod)).await {
                        return join(client, server).await;
                    }
                }
            });
        }
    });
    Ok(port)
}

async fn join(mut client: TcpStream, mut server: TcpStream) {
    // Either end may go at any time; who asked sees it.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

fn addresses(namespace: &str, name: &str) -> Result<Vec<String>> {
    let list = kubectl::ok(&[
        "--request-timeout=5s",
        "-n",
        namespace,
        "get",
        "endpointslices",
        "-l",
        &format!("kubernetes.io/service-name=cli-mcp-{name}"),
        "-o",
        "jsonpath={range .items[*]}{.ports[0].port} {.endpoints[*].addresses[0]}{\"\\n\"}{end}",
    ])?;
    Ok(list
        .lines()
        .filter_map(|line| line.split_once(' '))
        .flat_map(|(port, hosts)| hosts.split(' ').map(move |host| format!("{host}:{port}")))
        .collect())
}
