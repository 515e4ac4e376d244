//! Port-forward to an agent, as the API server and the kubelet do it over a WebSocket.

use std::net::SocketAddr;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures::{SinkExt, StreamExt};
use http::{StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Cluster, status};

const PROTOCOL: &str = "v4.channel.k8s.io";

/// Channel of the first port's data; the next one is that of its errors.
const DATA: u8 = 0;

pub(super) async fn to_pod(
    State(cluster): State<Cluster>,
    Path((_, name)): Path<(String, String)>,
    mut request: Request,
) -> Response {
    let Some(agent) = cluster.lock().agents.get(&name).map(super::Agent::address) else {
        return status(StatusCode::NOT_FOUND, "NotFound");
    };
    let key = derive_accept_key(request.headers()[header::SEC_WEBSOCKET_KEY].as_bytes());
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().unwrap();
    tokio::spawn(async move {
        let stream = upgrade.await.unwrap();
        let client = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, None).await;
        pump(client, agent).await;
    });
    let headers = [
        (header::CONNECTION, "upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_ACCEPT, key),
        (header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL.to_owned()),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Bytes both ways until one side ends.
async fn pump(mut client: WebSocketStream<TokioIo<Upgraded>>, agent: SocketAddr) {
    let Ok(mut agent) = TcpStream::connect(agent).await else {
        return;
    };
    for channel in [DATA, DATA + 1] {
        let mut first = vec![channel];
        first.extend(agent.peer_addr().unwrap().port().to_le_bytes());
        client.send(Message::binary(first)).await.unwrap();
    }
    let mut buffer = [0; 16 * 1024];
    loop {
        tokio::select! {
            message = client.next() => match message {
                Some(Ok(Message::Binary(data))) => {
                    if agent.write_all(&data[1..]).await.is_err() {
                        return;
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return,
            },
            read = agent.read(&mut buffer) => {
                let Ok(count @ 1..) = read else { return };
                let mut data = vec![DATA];
                data.extend_from_slice(&buffer[..count]);
                if client.send(Message::binary(data)).await.is_err() {
                    return;
                }
            }
        }
    }
}
