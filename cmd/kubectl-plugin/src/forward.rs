//! A port-forward through the API server to one pod, for as long as it is kept.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// A listener on loopback whose connections end in the pod.
pub(crate) struct Forward {
    address: SocketAddr,
    task: AbortHandle,
}

impl Forward {
    pub(crate) async fn start(pods: Api<Pod>, pod: String, port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.spawn(carry(pods.clone(), pod.clone(), port, connection));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            task: task.abort_handle(),
        })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that fails is closed: the HTTP client on it says so.
async fn carry(pods: Api<Pod>, pod: String, port: u16, mut connection: TcpStream) {
    let Ok(mut forwarder) = pods.portforward(&pod, &[port]).await else {
        return;
    };
    if let Some(mut stream) = forwarder.take_stream(port) {
        // Either side may end it at any time.
        let _ = tokio::io::copy_bidirectional(&mut connection, &mut stream).await;
    }
}
