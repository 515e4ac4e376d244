//! Certificates as the strict clients check them (`proxy_cases.md`, cases 61 to 64): the tools of this machine.

use std::process::Command;

use cli_mcp_proxy::mint::Minter;

use crate::harness::{Ca, Lab, Upstream, ok};

/// Runs a program on a thread of its own and returns what it said.
async fn say(program: &str, arguments: &[&str], script: &str) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(arguments);
    for name in [
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ] {
        command.env_remove(name);
    }
    if !script.is_empty() {
        command.args(["-c", script]);
    }
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .expect("the program is installed");
    (
        output.status.success(),
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    )
}

#[tokio::test]
async fn cases_61_62_openssl_accepts_the_chain_strictly() {
    let lab = Lab::new().await;
    let ca = lab.directory.path().join("ca/ca.crt");
    let (good, text) = say(
        "sh",
        &[],
        &format!(
            "openssl s_client -proxy {} -connect {} -servername api.test -verify_hostname api.test -x509_strict \
             -verify_return_error -CAfile {} </dev/null",
            lab.proxy,
            lab.authority(),
            ca.display()
        ),
    )
    .await;
    assert!(good && text.contains("Verify return code: 0 (ok)"), "{text}");
}

#[tokio::test]
async fn case_61_python_accepts_it_with_strict_flags_and_curl_for_an_address() {
    let upstream = Upstream::start(ok()).await;
    let address = upstream.address;
    let lab = Lab::with(upstream, |setup| {
        setup.targets = format!("[{{type: kubernetes}}, {{type: allowlist, domains: [\"{address}\"]}}]");
    })
    .await;
    let ca = lab.directory.path().join("ca/ca.crt");
    let authority = lab.authority();
    let (good, text) = say(
        "python3",
        &[],
        &format!(
            "import ssl, http.client\nc = ssl.create_default_context(cafile='{}')\nc.verify_flags |= ssl.VERIFY_X509_STRICT | \
             getattr(ssl, 'VERIFY_X509_PARTIAL_CHAIN', 0)\nh = http.client.HTTPSConnection('{}', {}, context=c)\n\
             h.set_tunnel('api.test', {})\nh.request('GET', '/api/')\nr = h.getresponse()\nprint(r.status, r.read())",
            ca.display(),
            lab.proxy.ip(),
            lab.proxy.port(),
            authority.split(':').nth(1).unwrap()
        ),
    )
    .await;
    assert!(good && text.contains("200"), "{text}");
    let (through, trusted) = (format!("http://{}", lab.proxy), ca.display().to_string());
    let curl = async |url: &str, told: &str| {
        let flags = [
            "-sS",
            "--max-time",
            "30",
            "-x",
            &through,
            "--cacert",
            &trusted,
            url,
            "-w",
            told,
        ];
        say("curl", &flags, "").await
    };
    let (good, text) = curl(&format!("https://{authority}/version"), "%{http_code} %{http_version}").await;
    assert!(good && text.ends_with("200 1.1"), "{text}");
    // The allowlisted address: its upstream is not in the public roots, which curl hears as a 502 inside valid TLS.
    let (good, text) = curl(&format!("https://{address}/"), "%{http_code}").await;
    assert!(good && text.ends_with("502"), "{text}");
}

#[test]
fn cases_61_to_64_the_leaf_has_what_strict_verifiers_ask_for() {
    use cli_mcp_kubeconfig::Host;
    use x509_parser::prelude::*;

    let ca = Ca::new("proxy CA");
    let (_, issuer) = X509Certificate::from_der(&ca.der())
        .map(|(rest, parsed)| (rest.len(), parsed.subject().to_string()))
        .unwrap();
    let minter = Minter::new(
        ca.pem().as_bytes(),
        ca.key_pem().as_bytes(),
        ::time::OffsetDateTime::now_utc(),
    )
    .unwrap();
    let mut serials = Vec::new();
    for (host, is_address) in [("api.test", false), ("10.0.0.1", true), ("[2001:db8::1]", true)] {
        let der = minter.leaf(&Host::parse(host).unwrap()).unwrap();
        let (_, leaf) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(leaf.issuer().to_string(), issuer);
        assert_ne!(leaf.subject(), leaf.issuer());
        let san = leaf.subject_alternative_name().unwrap().unwrap();
        assert_eq!(san.value.general_names.len(), 1);
        assert_eq!(
            matches!(san.value.general_names[0], GeneralName::IPAddress(_)),
            is_address,
            "{host}"
        );
        let usage = leaf.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.digital_signature() && !usage.value.key_cert_sign());
        assert!(leaf.extended_key_usage().unwrap().unwrap().value.server_auth);
        let days = (leaf.validity().not_after.timestamp() - leaf.validity().not_before.timestamp()) / 86_400;
        assert!((6..=7).contains(&days), "{days}");
        let mut own = None;
        let mut issuers = None;
        for extension in leaf.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(identifier) => own = Some(identifier.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(identifier) => {
                    issuers = identifier
                        .key_identifier
                        .as_ref()
                        .map(|identifier| identifier.0.to_vec());
                }
                _ => {}
            }
        }
        assert!(
            own.is_some() && issuers.is_some() && own != issuers,
            "{own:?} {issuers:?}"
        );
        assert!(leaf.raw_serial().len() >= 8 && leaf.raw_serial()[0] < 0x80);
        serials.push(leaf.raw_serial().to_vec());
    }
    serials.dedup();
    assert_eq!(serials.len(), 3);
}
