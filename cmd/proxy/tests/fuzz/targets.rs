//! What is fuzzed, and what must hold for each input.

use cli_mcp_api::v1alpha1::Target as InstanceTarget;
use cli_mcp_kubeconfig::{Authority, Credential, Kubeconfig, Routes, dummy};
use cli_mcp_proxy::body::Decoder;
use cli_mcp_proxy::connect::parse_connect;
use cli_mcp_proxy::head::{Framing, Head, find_end};
use cli_mcp_proxy::path::Target;
use cli_mcp_proxy::policy::Rules;
use cli_mcp_proxy::strip;

use crate::engine::run;

#[test]
fn connect_accepts_one_spelling_and_refuses_with_400_or_403() {
    run(
        "connect",
        &[
            "CONNECT api.example:6443 HTTP/1.1\r\nHost: api.example:6443\r\n\r\n",
            "CONNECT [2001:db8::1]:443 HTTP/1.0\r\n\r\n",
            "CONNECT 10.0.0.1:6443 HTTP/1.1\r\nUser-Agent: x\r\nProxy-Connection: keep-alive\r\n\r\n",
            "GET http://api.example/ HTTP/1.1\r\n\r\n",
        ],
        &[
            "CONNECT ",
            " HTTP/1.1\r\n",
            "\r\n",
            "\n",
            "\r",
            ":",
            "443",
            ":0443",
            ":+1",
            ":65536",
            "[",
            "]",
            "::1",
            "::ffff:",
            "@",
            "user:pw@",
            "%2e",
            ".",
            "127.1",
            "0x7f",
            "xn--",
            "\u{e9}",
            "/",
            "?",
            "#",
            "://",
            "\t",
            " ",
            "\0",
            "Host: a\r\n",
            "Content-Length: 1\r\n",
            "Transfer-Encoding: chunked\r\n",
        ],
        |input| {
            let Ok(Some(end)) = find_end(input, 0) else {
                return (0, String::new());
            };
            match parse_connect(&input[..end]) {
                Ok(authority) => {
                    let canonical = authority.to_string();
                    assert_eq!(Authority::parse(&canonical).as_ref(), Ok(&authority));
                    let line = input.split(|byte| *byte == b'\r').next().unwrap();
                    let line = std::str::from_utf8(line).unwrap();
                    let spelled = line.split(' ').nth(1).unwrap();
                    assert_eq!(Authority::parse(spelled).as_ref(), Ok(&authority));
                    assert!(!spelled.contains(['@', '/', '%', '?', '#']) && spelled.is_ascii());
                    (1, String::new())
                }
                Err((refusal, shown)) => {
                    assert!([400, 403].contains(&refusal.status));
                    assert!(!shown.contains('@') && shown.chars().count() <= 300);
                    (2, refusal.message.chars().rev().take(40).collect())
                }
            }
        },
    );
}

/// Decodes as a lenient server would: what it reads must be what was judged.
fn decoded_once(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            out.push(byte);
        }
    }
    out
}

#[test]
fn an_accepted_path_has_a_canonical_form_that_parses_and_is_judged_like_itself() {
    run(
        "path",
        &[
            "/api/v1/namespaces/ns/pods/p/log?follow=true",
            "/apis/apps/v1/watch/namespaces/ns/deployments/d?watch=1&fieldSelector=metadata.name%3Dx",
            "/api/v1/nodes/https:n:10250/proxy/run/a/b?access_token=x&limit=5",
            "/api/v1/namespaces/ns/pods/p/%65xec?command=id",
            "/k8s/clusters/c-1/api/v1/secrets",
            "/",
        ],
        &[
            "/",
            "//",
            "/./",
            "/../",
            "%2e",
            "%2F",
            "%5c",
            "%25",
            "%00",
            "%7F",
            "%c3%a9",
            ";",
            "..;",
            "?",
            "&",
            "=",
            "+",
            "#",
            "*",
            "exec",
            "proxy",
            "watch",
            "namespaces",
            "status",
            "api",
            "apis",
            "v1",
            "pods",
            "token",
            "%",
            "%zz",
            "\\",
            "\u{e9}",
            " ",
            "\t",
            "watch=1",
            "access_token=",
            "https://",
            "EXEC",
        ],
        |input| {
            let Ok(raw) = std::str::from_utf8(input) else {
                return (0, 0, 0, String::new());
            };
            let target = match Target::parse(raw) {
                Ok(target) => target,
                Err(error) => return (1, 0, 0, format!("{error:?}")),
            };
            let sent = target.to_canonical(|_| false);
            let again = Target::parse(&sent).unwrap();
            assert_eq!(again, target);
            assert_eq!(again.to_canonical(|_| false), sent);
            assert!(sent.bytes().all(|byte| byte.is_ascii_graphic()));
            let path = sent.split('?').next().unwrap();
            assert_eq!(decoded_once(path), target.decoded_path().into_bytes());
            assert_eq!(
                decoded_once(&target.decoded_path()),
                target.decoded_path().into_bytes(),
                "a second decoding"
            );
            for segment in target.segments() {
                assert!(!["", ".", ".."].contains(&segment.as_str()) && !segment.contains(['/', '\\', ';', '%']));
            }
            let forwarded = Target::parse(&target.to_canonical(strip::is_token_parameter)).unwrap();
            let mut shape = 0;
            for (index, method) in ["GET", "POST", "DELETE", "OPTIONS"].iter().enumerate() {
                let decision = Rules::default().decide(method, &target, None);
                assert_eq!(Rules::default().decide(method, &again, None), decision);
                assert_eq!(
                    Rules::default().decide(method, &forwarded, None).verdict,
                    decision.verdict
                );
                shape |= usize::from(decision.verdict.is_ok()) << index;
            }
            let info = Rules::default().decide("GET", &target, None).info;
            (
                2,
                shape,
                target.segments().len(),
                format!("{}/{}", info.verb, info.subresource),
            )
        },
    );
}

#[test]
fn a_head_that_is_read_forwards_no_identity_and_reads_the_same_again() {
    run(
        "head",
        &[
            "GET /api HTTP/1.1\r\nHost: a\r\nAccept: x\r\nAuthorization: Bearer mine\r\nConnection: X-Hop, close\r\nX-Hop: mine\r\n\r\n",
            "POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nImpersonate-User: mine\r\nX-Remote-Group: mine\r\n\r\n",
            "GET /w?watch=1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: a, base64url.bearer.authorization.k8s.io.mine\r\n\r\n",
        ],
        &[
            "\r\n",
            "\n",
            "\r",
            " ",
            "\t",
            "\r\t",
            ":",
            ",",
            "Authorization: mine\r\n",
            "Cookie: mine\r\n",
            "Connection: ",
            "Host: b\r\n",
            "Impersonate_Group: mine\r\n",
            "X.Remote.User: mine\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\n",
            "Content_Length: 1\r\n",
            "\u{e9}",
            "\0",
            " HTTP/1.1\r\n",
            "chunked",
            "0x",
            "Proxy-A: mine\r\n",
        ],
        |input| {
            let Ok(Some(end)) = find_end(input, 0) else {
                return (0, String::new());
            };
            let head = match Head::parse(input[..end].to_vec()) {
                Ok(head) => head,
                Err(error) => return (1, format!("{error:?}")),
            };
            let line = head.request_line().map(|(method, _)| method.to_owned());
            let framing = head.request_framing();
            let mut out = b"GET / HTTP/1.1\r\n".to_vec();
            strip::write_request_fields(&head, &mut out);
            out.extend_from_slice(b"\r\n");
            assert_eq!(find_end(&out, 0), Ok(Some(out.len())));
            let again = Head::parse(out.clone()).unwrap();
            assert_eq!(again.request_framing(), Ok(Framing::Empty));
            for (name, _) in again.fields() {
                let name = String::from_utf8_lossy(name)
                    .to_ascii_lowercase()
                    .replace(['_', '.'], "-");
                assert!(
                    ![
                        "authorization",
                        "cookie",
                        "connection",
                        "host",
                        "upgrade",
                        "transfer-encoding",
                        "content-length"
                    ]
                    .contains(&name.as_str())
                        && !["impersonate", "x-remote-", "proxy-"]
                            .iter()
                            .any(|family| name.starts_with(family)),
                    "{name}"
                );
            }
            let mut twice = b"GET / HTTP/1.1\r\n".to_vec();
            strip::write_request_fields(&again, &mut twice);
            twice.extend_from_slice(b"\r\n");
            assert_eq!(twice, out);
            (
                2,
                format!("{:?} {:?} {}", line.is_ok(), framing.is_ok(), again.fields().count()),
            )
        },
    );
}

/// What a chunked body forwards and leaves when it is read in pieces of this size; `None` when it is malformed.
fn follow(input: &[u8], piece: usize) -> Option<(Vec<u8>, u64, usize, bool)> {
    let mut decoder = Decoder::new(Framing::Chunked);
    let (mut out, mut content, mut used) = (Vec::new(), 0, 0);
    for part in input.chunks(piece) {
        let mut rest = part;
        while !rest.is_empty() && !decoder.is_done() {
            let step = decoder.step(rest).ok()?;
            out.extend_from_slice(&rest[step.forward.clone()]);
            content += step.content;
            used += step.consumed;
            rest = &rest[step.consumed..];
        }
    }
    Some((out, content, used, decoder.is_done()))
}

#[test]
fn chunks_read_the_same_however_they_are_cut_and_forward_what_reads_the_same() {
    run(
        "chunks",
        &[
            "5\r\nhello\r\n0\r\n\r\n",
            "A\r\n0123456789\r\n3\r\nabc\r\n0\r\nX: y\r\nAuthorization: z\r\n\r\nGET / HTTP/1.1\r\n",
        ],
        &[
            "\r\n",
            "\n",
            "\r",
            "0\r\n",
            "0",
            ";",
            ";a=b",
            "ffffffffffffffff",
            " ",
            "0x",
            "-",
            "+",
            "X: y\r\n",
            "1\r\nz\r\n",
            "\t",
        ],
        |input| {
            let whole = follow(input, usize::MAX);
            for piece in [1, 2, 3, 7] {
                assert_eq!(follow(input, piece), whole);
            }
            let Some((forwarded, content, used, done)) = whole else {
                return (0, 0);
            };
            assert!(used <= input.len());
            if done {
                let again = follow(&forwarded, usize::MAX).unwrap();
                assert_eq!(again, (forwarded.clone(), content, forwarded.len(), true));
            }
            (1 + usize::from(done), forwarded.len().min(64))
        },
    );
}

fn has_run(text: &str, secret: &[u8]) -> bool {
    secret
        .windows(8)
        .any(|run| text.as_bytes().windows(8).any(|window| window == run))
}

#[test]
fn a_kubeconfig_that_is_read_gives_routes_that_fit_it_and_a_dummy_file_without_secrets() {
    run(
        "kubeconfig",
        &[
            "apiVersion: v1\nkind: Config\nclusters:\n- name: k\n  cluster: {server: https://api.example:6443}\nusers:\n- name: u\n  user: {token: s3cr3t-t0ken-0123456789}\ncontexts:\n- name: c\n  context: {cluster: k, user: u, namespace: n}\ncurrent-context: c\n",
            "{\"clusters\": [{\"name\": \"k\", \"cluster\": {\"server\": \"https://r.example/k8s/clusters/c-1\"}}], \"users\": [{\"name\": \"u\", \"user\": {\"token\": \"abcdefghijklmnop\", \"as\": \"x\", \"as-groups\": [\"g\"], \"as-user-extra\": {\"a/b\": [\"c\"]}}}], \"contexts\": [{\"name\": \"c\", \"context\": {\"cluster\": \"k\", \"user\": \"u\"}}]}",
        ],
        &[
            "token: ",
            "tokenFile: x\n",
            "exec: {}\n",
            "password: hunter2hunter2\n",
            "certificate-authority-data: AAAA\n",
            "insecure-skip-tls-verify: true\n",
            "https://",
            "http://",
            "127.0.0.1",
            "localhost",
            "[::1]",
            ":443",
            "/",
            "..",
            "%2f",
            "&a ",
            "*a",
            "<<: *a\n",
            "---\n",
            "- ",
            "{",
            "}",
            "[",
            "]",
            "\n",
            "  ",
            "\t",
            "\r\n",
            "\u{feff}",
            "\"",
            "'",
            "|\n",
            "!!binary ",
            "null",
            "~",
            "as: ",
            "name: k",
            "users:\n",
            "clusters:\n",
            "\u{e9}",
            "#",
        ],
        |input| {
            let kubeconfig = match Kubeconfig::parse(input) {
                Ok(kubeconfig) => kubeconfig,
                Err(invalid) => {
                    assert!(invalid.problems().count() > 0);
                    return (0, invalid.to_string().chars().take(60).collect::<String>());
                }
            };
            let rendered = dummy::render(Some(&kubeconfig), "CA", "http://p:8080");
            let shown = format!("{rendered}{kubeconfig:?}{}", kubeconfig.warnings().join("\n"));
            for user in kubeconfig.users() {
                if let Credential::Token(token) = &user.credential {
                    assert!(!has_run(&shown, token.expose()), "{shown}");
                    assert!(token.expose().iter().all(u8::is_ascii_graphic));
                }
                for (name, value) in user.impersonation.headers() {
                    let line = format!("GET / HTTP/1.1\r\n{name}: {value}\r\n\r\n");
                    assert_eq!(find_end(line.as_bytes(), 0), Ok(Some(line.len())));
                    assert_eq!(Head::parse(line.into_bytes()).unwrap().fields().count(), 1);
                }
            }
            let document: serde_yaml::Value = serde_yaml::from_str(&rendered).unwrap();
            assert_eq!(
                document["contexts"].as_sequence().unwrap().len(),
                kubeconfig.contexts().len()
            );
            let targets: Vec<InstanceTarget> = serde_yaml::from_str("[{type: kubernetes}]").unwrap();
            let routes = Routes::build(&targets, Some(&kubeconfig)).unwrap();
            assert_eq!(Routes::from_json(routes.to_json().as_bytes()).unwrap(), routes);
            assert_eq!(
                routes.resolve(Some(&kubeconfig)).unwrap().len(),
                kubeconfig.endpoints().len()
            );
            for endpoint in kubeconfig.endpoints() {
                let server = endpoint.cluster.server.to_string();
                assert!(
                    Target::parse(&format!("{}/api", endpoint.cluster.server.prefix)).is_ok(),
                    "{server}"
                );
            }
            (
                1,
                format!("{} {}", kubeconfig.endpoints().len(), kubeconfig.warnings().len()),
            )
        },
    );
}
