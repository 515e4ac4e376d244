//! One request between a client and an upstream that takes little of it, or nothing.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};

use super::*;
use crate::kernel::Kernel;
use crate::large_heads::LargeHeads;
use crate::memory::Memory;

/// Takes so many bytes and says nothing.
struct Deaf(usize);

impl AsyncRead for Deaf {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Poll::Ready(if taken == 0 {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(taken)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Connection for Deaf {
    fn kernel(&self) -> Kernel {
        Kernel::default()
    }

    fn cut(&self) {}
}

fn share(budget: usize) -> Share {
    Memory::new(budget, Gauge::default(), Counter::default()).share([10, 0, 0, 1].into())
}

fn upload(place: &mut Option<LargeHead>) -> Outbound<'_> {
    Outbound {
        method: "POST",
        head: b"POST / HTTP/1.1\r\n\r\n".to_vec(),
        framing: Framing::Length(1_000_000),
        upgrade: None,
        token: None,
        close_client: false,
        head_timeout: None,
        place,
    }
}

#[tokio::test]
async fn what_no_connection_took_is_left_whole_for_another() {
    let (mut client, mut far) = tokio::io::duplex(4096);
    far.write_all(b"the rest").await.unwrap();
    drop(far);
    let (mut inbound, mut progress) = (Inbound::default(), Progress::default());
    inbound.extend(b"the beginning, ");
    let exchange = run(
        &mut client,
        &mut inbound,
        &mut Deaf(0),
        upload(&mut None),
        &mut share(usize::MAX),
        &mut progress,
    )
    .await;
    assert_eq!(exchange.error, Some(ExchangeError::NoResponse));
    assert_eq!(exchange.unsent.unwrap(), b"POST / HTTP/1.1\r\n\r\n");
    assert_eq!(inbound.as_slice(), b"the beginning, ");
}

#[tokio::test]
async fn case_50_a_large_heads_place_is_free_when_the_head_is_sent() {
    let (one, two) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let never = Instant::now() + Duration::from_secs(600);
    let heads = LargeHeads::new(1, 1);
    let mut place = heads.take(one, never).await.ok();
    let (mut client, _far) = tokio::io::duplex(4096);
    let (mut upstream, _unread) = tokio::io::duplex(4096);
    let (mut inbound, mut progress) = (Inbound::default(), Progress::default());
    let mut share = share(usize::MAX);
    let exchange = run(
        &mut client,
        &mut inbound,
        &mut upstream,
        upload(&mut place),
        &mut share,
        &mut progress,
    );
    tokio::select! {
        outcome = exchange => panic!("the body is not sent yet: {:?}", outcome.error),
        taken = heads.take(two, Instant::now() + Duration::from_secs(60)) => assert!(taken.is_ok()),
    }
}

#[tokio::test]
async fn case_52_who_sends_a_body_that_nobody_takes_is_still_seen_to_leave() {
    let (mut client, mut far) = tokio::io::duplex(4096);
    let mut upstream = Deaf(1);
    let mut inbound = Inbound::default();
    let mut progress = Progress::default();
    let mut place = None;
    let mut share = share(usize::MAX);
    let exchange = run(
        &mut client,
        &mut inbound,
        &mut upstream,
        upload(&mut place),
        &mut share,
        &mut progress,
    );
    let leaves = async {
        far.write_all(&[b'x'; 128 * 1024]).await.unwrap();
        drop(far);
    };
    let both = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(exchange, leaves) });
    let (outcome, ()) = both.await.expect("the client is never looked at");
    assert_eq!(outcome.error, Some(ExchangeError::ClientGone));
    assert!(inbound.is_empty());
}

/// The proxy's side of a client and an upstream that are both pipes of 4 KiB.
struct Between {
    client: DuplexStream,
    upstream: DuplexStream,
    inbound: Inbound,
    progress: Progress,
    share: Share,
    place: Option<LargeHead>,
}

impl Between {
    /// Passes on what is made of an upload.
    async fn exchange(&mut self, request: impl for<'a> FnOnce(Outbound<'a>) -> Outbound<'a>) -> Outcome {
        run(
            &mut self.client,
            &mut self.inbound,
            &mut self.upstream,
            request(upload(&mut self.place)),
            &mut self.share,
            &mut self.progress,
        )
        .await
    }
}

/// It, and the far ends of client and upstream.
fn between(budget: usize) -> (Between, DuplexStream, DuplexStream) {
    let (client, far_client) = tokio::io::duplex(4096);
    let (upstream, far_upstream) = tokio::io::duplex(4096);
    let between = Between {
        client,
        upstream,
        inbound: Inbound::default(),
        progress: Progress::default(),
        share: share(budget),
        place: None,
    };
    (between, far_client, far_upstream)
}

#[tokio::test]
async fn what_a_client_sends_ahead_waits_for_its_turn() {
    let (mut proxy, mut far_client, mut far_upstream) = between(usize::MAX);
    let exchange = proxy.exchange(|upload| Outbound {
        framing: Framing::Empty,
        ..upload
    });
    let others = async {
        let mut head = [0; 19];
        far_upstream.read_exact(&mut head).await.unwrap();
        far_client.write_all(b"GET /next").await.unwrap();
        // The exchange reads it before there is an answer.
        tokio::task::yield_now().await;
        far_upstream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let (outcome, ()) = tokio::join!(exchange, others);
    assert_eq!((outcome.error, outcome.client_reusable), (None, true));
    assert_eq!(proxy.inbound.as_slice(), b"GET /next");
}

#[tokio::test]
async fn a_client_that_ends_what_it_switched_to_has_sent_all_and_ends_it_orderly() {
    let (mut proxy, mut far_client, mut far_upstream) = between(usize::MAX);
    let exchange = proxy.exchange(|upload| Outbound {
        method: "GET",
        framing: Framing::Empty,
        upgrade: Some("websocket"),
        ..upload
    });
    let others = async {
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let mut head = [0; 19];
        far_upstream.read_exact(&mut head).await.unwrap();
        far_upstream.write_all(answer).await.unwrap();
        let mut answered = vec![0; answer.len()];
        far_client.read_exact(&mut answered).await.unwrap();
        far_client.write_all(b"frames").await.unwrap();
        far_client.shutdown().await.unwrap();
    };
    let (outcome, ()) = tokio::join!(exchange, others);
    assert_eq!(outcome.error, None);
    assert!(!outcome.client_reusable && !outcome.upstream_reusable);
    assert_eq!((proxy.progress.status, proxy.progress.bytes_in), (101, 6));
    let mut frames = [0; 6];
    far_upstream.read_exact(&mut frames).await.unwrap();
    assert_eq!(&frames, b"frames");
}

#[tokio::test(start_paused = true)]
async fn case_50_an_answer_that_nobody_takes_and_an_upload_that_nobody_takes_are_counted_and_ended() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    for (budget, ended) in [
        (BLOCKED - 1, Some(ExchangeError::OverBudget(OverBudget))),
        (BLOCKED + QUIET, None),
    ] {
        for upload_stalls in [false, true] {
            let (mut proxy, mut far_client, mut far_upstream) = between(budget);
            let exchange = proxy.exchange(|upload| Outbound {
                framing: if upload_stalls { upload.framing } else { Framing::Empty },
                ..upload
            });
            let sends = async {
                if upload_stalls {
                    let _ = far_client.write_all(&[b'x'; 1_000_000]).await;
                } else {
                    let _ = far_upstream.write_all(answer).await;
                    let _ = far_upstream.write_all(&[b'x'; 1_000_000]).await;
                }
                std::future::pending::<()>().await;
            };
            let outcome = tokio::select! {
                outcome = exchange => outcome.error,
                () = sends => None,
                () = tokio::time::sleep(Duration::from_secs(10)) => None,
            };
            assert_eq!(outcome, ended, "{budget} {upload_stalls}");
        }
    }
}
