//! Who may talk to a server: tokens that were real once, or are real elsewhere, tried on the real API server's reviews.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cli_mcp_demo::session::{Endpoint, Token};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// The status and the body that a request with this token gets.
async fn answer(endpoint: &Endpoint, token: &str) -> Result<(u16, String)> {
    let endpoint = Endpoint {
        token: Some(Token(token.to_owned())),
        ..endpoint.clone()
    };
    let url = format!("{}/sessions/access", endpoint.base_url);
    let reply = endpoint.http_client(None)?.delete(url).send().await?;
    Ok((reply.status().as_u16(), reply.text().await?))
}

/// How many tokens the server has turned away.
async fn turned_away(endpoint: &Endpoint) -> Result<u64> {
    let url = format!("{}/metrics", endpoint.base_url);
    let metrics = endpoint.http_client(None)?.get(url).send().await?.text().await?;
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix("cli_mcp_server_auth_decisions_total{result=\"bad_token\"} "));
    Ok(count.unwrap_or("0").parse()?)
}

fn client_token(shared: &Instance, more: &[&str]) -> Result<String> {
    let account = format!("cli-mcp-{}-client", shared.name);
    let words = ["-n", &shared.namespace, "create", "token", &account];
    Ok(kubectl::ok(&[&words, more].concat())?.trim().to_owned())
}

/// A token as the API server would have issued it with an end this far from now, signed by its own key.
fn reissued(token: &str, ends: impl Fn(SystemTime) -> SystemTime) -> Result<String> {
    let (head, rest) = token.split_once('.').context("the token is no JWT")?;
    let (claims, _) = rest.split_once('.').context("the token is no JWT")?;
    let mut claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    let end = ends(SystemTime::now()).duration_since(UNIX_EPOCH)?;
    claims["exp"] = json!(end.as_secs());
    claims["iat"] = json!((end - 2 * HOUR).as_secs());
    claims["nbf"] = claims["iat"].clone();
    let signed = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));

    let key = Command::new("openssl")
        .args(["pkcs8", "-topk8", "-nocrypt", "-outform", "DER", "-in"])
        .arg(cluster::setting("DEVCLUSTER_SIGNING_KEY")?)
        .output()?;
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.stdout, &random)
        .map_err(|error| anyhow::anyhow!("the cluster's signing key: {error}"))?;
    let signature = key
        .sign(&random, signed.as_bytes())
        .map_err(|error| anyhow::anyhow!("cannot sign: {error}"))?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_over_revoked_forged_or_for_another_audience_is_turned_away() -> Result<()> {
    let shared = instance::shared()?;
    let endpoint = &shared.endpoint;
    let good = client_token(shared, &[])?;
    ensure!(answer(endpoint, &good).await?.0 == 204);
    let before = turned_away(endpoint).await?;

    let mut bad = vec![("for another audience", client_token(shared, &["--audience=another"])?)];

    // A token that is bound to an object ends with it.
    kubectl::ok(&["-n", &shared.namespace, "create", "secret", "generic", "short-lived"])?;
    let revoked = client_token(
        shared,
        &["--bound-object-kind=Secret", "--bound-object-name=short-lived"],
    )?;
    kubectl::ok(&["-n", &shared.namespace, "delete", "secret", "short-lived"])?;
    bad.push(("revoked", revoked));

    let (signed, _) = good.rsplit_once('.').context("the token is no JWT")?;
    let other = client_token(shared, &["--duration=30m"])?;
    let (_, foreign) = other.rsplit_once('.').context("the token is no JWT")?;
    bad.push(("forged", format!("{signed}.{foreign}")));

    if cluster::is_dev() {
        let control = reissued(&good, |now| now + HOUR)?;
        let (status, body) = answer(endpoint, &control).await?;
        ensure!(status == 204, "a token that this test has signed: {status} {body}");
        bad.push(("expired", reissued(&good, |now| now - HOUR)?));
    }

    for (what, token) in &bad {
        let (status, body) = answer(endpoint, token).await?;
        ensure!(status == 401, "{what}: {status} {body}");
        ensure!(
            body.contains("token") && !body.contains(token.as_str()),
            "{what}: {body}"
        );
    }
    ensure!(
        turned_away(endpoint).await? >= before + bad.len() as u64,
        "refusals are not counted"
    );

    let server = format!("deployment/cli-mcp-{}", shared.name);
    let log = kubectl::ok(&["-n", &shared.namespace, "logs", &server, "--tail=-1"])?;
    ensure!(log.contains("access"), "the log has nothing of these requests: {log}");
    for (what, token) in bad.iter().chain([&("good", good.clone())]) {
        let signature = token.rsplit('.').next().unwrap_or(token);
        ensure!(!log.contains(signature), "the log holds the token that is {what}");
    }
    Ok(())
}
