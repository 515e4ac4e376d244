//! One request between a client and an upstream that takes little of it, or nothing.

use tokio::io::{AsyncWriteExt, ReadBuf};

use super::*;
use crate::large_heads::LargeHeads;

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
    let exchange = run(
        &mut client,
        &mut inbound,
        &mut upstream,
        upload(&mut place),
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
    let exchange = run(
        &mut client,
        &mut inbound,
        &mut upstream,
        upload(&mut place),
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
