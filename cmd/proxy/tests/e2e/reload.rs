//! Files that change, rightly and wrongly, under open streams; and the end of the process.

use std::sync::Arc;
use std::time::Duration;

use cli_mcp_kubeconfig::Authority;
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::metrics::ReloadLabels;
use cli_mcp_proxy::proxy::Timeouts;
use cli_mcp_proxy::state::Backend;
use time::OffsetDateTime;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::harness::{Ca, Lab, Responder, TOKEN, Upstream, ok, patiently, write_inputs};

/// Answers a watch with an event each time it is told to, and everything else with 200.
fn watchable(next: Arc<Notify>) -> Responder {
    Arc::new(move |request, stream| {
        let next = next.clone();
        Box::pin(async move {
            let mut stream = stream.lock().await;
            if !request.line().contains("watch") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    .await?;
                stream.flush().await?;
                return Ok(true);
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await?;
            loop {
                stream.flush().await?;
                next.notified().await;
                stream.write_all(b"5\r\nevent\r\n").await?;
            }
        })
    })
}

fn kubeconfig_of(lab: &Lab) -> String {
    std::fs::read_to_string(lab.directory.path().join("kubeconfig/kubeconfig")).unwrap()
}

async fn health_until(lab: &Lab, fits: impl Fn(&str) -> bool) {
    patiently(async {
        while !fits(&lab.health("/health").await.1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn case_77_a_rotated_token_is_used_and_open_watches_go_on() {
    let next = Arc::new(Notify::new());
    let lab = Lab::answering(watchable(next.clone())).await;
    let mut watch = lab.watch().await;
    let mut kept = lab.tunnel().await;
    let rotated = kubeconfig_of(&lab).replace(TOKEN, "rotated-token-rotated");
    std::fs::write(lab.directory.path().join("kubeconfig/kubeconfig"), rotated).unwrap();
    // The same tunnel, opened before the rotation, carries the new token.
    patiently(async {
        loop {
            kept.send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
                .await;
            assert_eq!(kept.response().await.status, 200);
            let last = lab.upstream.received().pop().unwrap();
            if last.values("authorization") == ["Bearer rotated-token-rotated"] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    next.notify_one();
    assert_eq!(watch.chunk().await.unwrap(), b"event");
    let (_, metrics) = lab.health("/metrics").await;
    assert!(
        metrics.contains("cli_mcp_proxy_reloads_total{result=\"success\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn cases_77_78_an_invalid_file_keeps_the_old_and_shows_on_health_until_it_is_right() {
    let lab = Lab::new().await;
    let good = kubeconfig_of(&lab);
    let path = lab.directory.path().join("kubeconfig/kubeconfig");
    for bad in [
        good.replace("token: ", "exec: {command: x}, token: "),
        "kind: [".to_owned(),
        String::new(),
        good.chars().take(good.len() / 2).collect(),
        good.replace("api.test", "other.test"),
    ] {
        std::fs::write(&path, bad).unwrap();
        health_until(&lab, |body| body.contains("reloadError")).await;
        let (status, body) = lab.health("/health").await;
        assert_eq!(status, 200, "a restart would only lose the earlier files");
        assert!(!body.contains(TOKEN), "{body}");
        assert_eq!(lab.get("/api").await.status, 200);
        assert_eq!(
            lab.upstream.received().pop().unwrap().values("authorization"),
            [format!("Bearer {TOKEN}")]
        );
        std::fs::write(&path, &good).unwrap();
        health_until(&lab, |body| !body.contains("reloadError")).await;
    }
    let (_, metrics) = lab.health("/metrics").await;
    assert!(metrics.contains("cli_mcp_proxy_reload_failing 0"), "{metrics}");
}

#[tokio::test]
async fn half_of_a_file_that_is_being_written_is_not_used() {
    let lab = Lab::new().await;
    let text: serde_yaml::Value = serde_yaml::from_str(&kubeconfig_of(&lab)).unwrap();
    let server = text["clusters"][0]["cluster"]["server"].as_str().unwrap();
    let ca = text["clusters"][0]["cluster"]["certificate-authority-data"]
        .as_str()
        .unwrap();
    let whole = format!(
        "clusters:\n- name: k\n  cluster: {{server: \"{server}\", certificate-authority-data: {ca}}}\ncontexts:\n- name: c\n  \
         context: {{cluster: k, user: u}}\nusers:\n- name: u\n  user:\n    token: rotated-token-rotated\n"
    );
    let half = whole.strip_suffix("-rotated\n").unwrap();
    cli_mcp_kubeconfig::Kubeconfig::parse(half.as_bytes()).expect("half of it is valid too");
    let (mut reloader, shared) = lab.parts(LargeHeads::new(1, 1), Timeouts::default());
    let token = || {
        let state = shared.state.load();
        match &state
            .destination(&Authority::parse(&lab.authority()).unwrap())
            .unwrap()
            .target
        {
            Backend::Kubernetes(servers) => {
                String::from_utf8(servers.iter().next().unwrap().token.clone().unwrap()).unwrap()
            }
            Backend::Allowlist(_) => panic!("no kubernetes target"),
        }
    };
    let path = lab.directory.path().join("kubeconfig/kubeconfig");
    // Each look falls between two writes; only what stays from one look to the next is used.
    for content in [half, whole.as_str(), half, whole.as_str()] {
        std::fs::write(&path, content).unwrap();
        reloader.check(&shared, OffsetDateTime::now_utc());
        assert_eq!(token(), TOKEN);
    }
    reloader.check(&shared, OffsetDateTime::now_utc());
    assert_eq!(token(), "rotated-token-rotated");
}

#[tokio::test]
async fn a_ca_that_becomes_valid_is_used_though_no_file_changes() {
    let lab = Lab::new().await;
    let hour = time::Duration::hours(1);
    let (mut reloader, shared) = lab.parts(LargeHeads::new(1, 1), Timeouts::default());
    let first = shared.state.load_full();
    let early = Ca::valid("early", hour, 1000 * hour);
    std::fs::write(lab.directory.path().join("ca/ca.crt"), early.pem()).unwrap();
    std::fs::write(lab.directory.path().join("ca/ca.key"), early.key_pem()).unwrap();
    let now = OffsetDateTime::now_utc();
    for _ in 0..3 {
        reloader.check(&shared, now);
    }
    assert!(reloader.status().error().unwrap().contains("not valid now"));
    assert!(Arc::ptr_eq(&first, &shared.state.load_full()));
    let failures = shared
        .metrics
        .reloads
        .get_or_create(&ReloadLabels { result: "failure" })
        .get();
    assert_eq!(failures, 1, "the same reason is told once");
    reloader.check(&shared, now + 2 * hour);
    assert_eq!(reloader.status().error(), None);
    assert!(!Arc::ptr_eq(&first, &shared.state.load_full()));
}

#[tokio::test]
async fn public_roots_that_change_are_taken_like_the_other_files() {
    let upstream = Upstream::start(ok()).await;
    let roots = upstream.ca.pem();
    let lab = Lab::with(upstream, |setup| setup.public_ca = Some(roots.clone())).await;
    let path = lab.directory.path().join("public.crt");
    std::fs::write(&path, "none").unwrap();
    health_until(&lab, |body| body.contains("no usable certificate")).await;
    std::fs::remove_file(&path).unwrap();
    health_until(&lab, |body| body.contains("SSL_CERT_FILE: cannot read")).await;
    std::fs::write(&path, &roots).unwrap();
    health_until(&lab, |body| !body.contains("reloadError")).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_for_a_while_is_an_error_for_that_while() {
    let lab = Lab::new().await;
    let (path, away) = (
        lab.directory.path().join("routes/proxy-config.json"),
        lab.directory.path().join("away"),
    );
    std::fs::rename(&path, &away).unwrap();
    health_until(&lab, |body| body.contains("cannot read")).await;
    assert_eq!(lab.get("/api").await.status, 200);
    std::fs::rename(&away, &path).unwrap();
    health_until(&lab, |body| !body.contains("reloadError")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_watches_live_over_a_reload() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const WATCHES: usize = 1000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    assert!(hard > 5 * WATCHES as u64, "this test needs {} open files", 5 * WATCHES);
    let next = Arc::new(Notify::new());
    let upstream = Upstream::start(watchable(next.clone())).await;
    let lab = Lab::with(upstream, |setup| setup.max_connections_per_client = 2 * WATCHES).await;
    let mut watches = Vec::new();
    while watches.len() < WATCHES {
        let (a, b, c, d) = tokio::join!(lab.watch(), lab.watch(), lab.watch(), lab.watch());
        watches.extend([a, b, c, d]);
    }
    let rotated = kubeconfig_of(&lab).replace(TOKEN, "rotated-token-rotated");
    std::fs::write(lab.directory.path().join("kubeconfig/kubeconfig"), rotated).unwrap();
    patiently(async {
        while lab.get("/api").await.status != 200
            || lab.upstream.received().pop().unwrap().values("authorization") != ["Bearer rotated-token-rotated"]
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    next.notify_waiters();
    for watch in &mut watches {
        assert_eq!(watch.chunk().await.unwrap(), b"event");
    }
}

#[tokio::test]
async fn a_target_that_is_gone_takes_no_new_request_and_cuts_no_open_stream() {
    let next = Arc::new(Notify::new());
    let lab = Lab::answering(watchable(next.clone())).await;
    let mut watch = lab.watch().await;
    let mut kept = lab.tunnel().await;
    write_inputs(
        lab.directory.path(),
        None,
        "[{type: allowlist, domains: [example.test]}]",
        &lab.ca,
    );
    patiently(async {
        while lab.try_tunnel(&lab.authority(), "api.test").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    kept.send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
        .await;
    assert_eq!(kept.response().await.status, 403);
    next.notify_one();
    assert_eq!(watch.chunk().await.unwrap(), b"event");
}

#[tokio::test]
async fn case_65_a_rotated_ca_signs_new_tunnels_and_leaves_the_open_ones_alone() {
    let next = Arc::new(Notify::new());
    let mut lab = Lab::answering(watchable(next.clone())).await;
    let mut watch = lab.watch().await;
    let new = Ca::new("next proxy CA");
    // Between the two writes the pair does not fit: the old one must stay in use.
    std::fs::write(lab.directory.path().join("ca/ca.crt"), new.pem()).unwrap();
    health_until(&lab, |body| body.contains("not the key of")).await;
    assert_eq!(lab.get("/api").await.status, 200);
    std::fs::write(lab.directory.path().join("ca/ca.key"), new.key_pem()).unwrap();
    health_until(&lab, |body| !body.contains("reloadError")).await;
    assert!(
        lab.try_tunnel(&lab.authority(), "api.test").await.is_err(),
        "the old CA signs no more"
    );
    lab.ca = new;
    assert_eq!(lab.get("/api").await.status, 200);
    next.notify_one();
    assert_eq!(watch.chunk().await.unwrap(), b"event");
}

#[tokio::test]
async fn the_kubelets_way_of_swapping_a_volume_is_followed() {
    let lab = Lab::new().await;
    let folder = lab.directory.path().join("kubeconfig");
    let content = kubeconfig_of(&lab);
    std::fs::remove_file(folder.join("kubeconfig")).unwrap();
    let publish = |version: &str, content: &str| {
        std::fs::create_dir(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("kubeconfig"), content).unwrap();
        std::os::unix::fs::symlink(version, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    publish("..1", &content);
    std::os::unix::fs::symlink("..data/kubeconfig", folder.join("kubeconfig")).unwrap();
    publish("..2", &content.replace(TOKEN, "second-token-second"));
    std::fs::remove_dir_all(folder.join("..1")).unwrap();
    patiently(async {
        loop {
            assert_eq!(lab.get("/api").await.status, 200);
            if lab.upstream.received().pop().unwrap().values("authorization") == ["Bearer second-token-second"] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn case_65_a_proxy_does_not_start_with_a_ca_that_cannot_sign() {
    use cli_mcp_proxy::mint::Minter;
    let day = time::Duration::days(1);
    let expired = Ca::valid("expired", -10 * day, -day);
    let future = Ca::valid("future", day, 10 * day);
    let good = Ca::new("good");
    let (leaf, leaf_key) = good.issue(&["x.test"]);
    let pem = |label: &str, der: &[u8]| {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    for (certificate, key, word) in [
        (expired.pem(), expired.key_pem(), "not valid now"),
        (future.pem(), future.key_pem(), "not valid now"),
        (good.pem(), expired.key_pem(), "not the key"),
        (
            pem("CERTIFICATE", &leaf),
            pem("PRIVATE KEY", leaf_key.secret_der()),
            "no certificate authority",
        ),
        ("x".into(), good.key_pem(), "no PEM certificate"),
        (good.pem(), "x".into(), "private key"),
    ] {
        let error = Minter::new(certificate.as_bytes(), key.as_bytes(), OffsetDateTime::now_utc())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_drain_ends_idle_tunnels_at_once_and_lets_streams_finish() {
    let next = Arc::new(Notify::new());
    let mut lab = Lab::answering(watchable(next.clone())).await;
    let mut watch = lab.watch().await;
    let mut idle = lab.tunnel().await;
    lab.shutdown.cancel();
    assert!(idle.is_closed().await);
    assert!(TcpStream::connect(lab.proxy).await.is_err(), "no new connection");
    assert_eq!(lab.health("/readyz").await.0, 503);
    assert_eq!(lab.health("/healthz").await.0, 200);
    next.notify_one();
    assert_eq!(watch.chunk().await.unwrap(), b"event");
    drop(watch);
    patiently(lab.running.take().unwrap()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_drain_ends_with_its_grace_period() {
    let next = Arc::new(Notify::new());
    let upstream = Upstream::start(watchable(next)).await;
    let mut lab = Lab::with(upstream, |setup| setup.drain_timeout = Duration::from_millis(50)).await;
    let _watch = lab.watch().await;
    assert!(lab.audit().is_empty());
    lab.shutdown.cancel();
    patiently(lab.running.take().unwrap()).await.unwrap().unwrap();
    let lines = lab.audit();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["verb"], &lines[0]["status"]), (&"watch".into(), &200.into()));
    assert!(
        lines[0]["reason"].as_str().unwrap().contains("the proxy ended"),
        "{}",
        lines[0]
    );
}
