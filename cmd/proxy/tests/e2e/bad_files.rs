//! Each way in which new files cannot be used: the earlier ones stay in use, the reason is shown and counted, and what is
//! right again is used. And the end of a CA that nobody has changed for years.

use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::metrics::ReloadLabels;
use cli_mcp_proxy::proxy::Timeouts;
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::harness::{Ca, Lab, TOKEN};
use crate::upstream::{pem, self_signed};

/// Replaces a file by something else for one test of it.
fn replaced(path: &Path, content: Option<&str>) {
    if path.is_dir() {
        std::fs::remove_dir(path).unwrap();
    } else {
        std::fs::remove_file(path).unwrap();
    }
    match content {
        Some(content) => std::fs::write(path, content).unwrap(),
        None => std::fs::create_dir(path).unwrap(),
    }
}

#[tokio::test]
async fn cases_77_78_each_file_that_cannot_be_used_keeps_the_earlier_ones() {
    let lab = Lab::new().await;
    let folder = lab.directory.path();
    let (mut reloader, shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let (status, now) = (reloader.status(), OffsetDateTime::now_utc());
    let kubeconfig = std::fs::read_to_string(folder.join("kubeconfig/kubeconfig")).unwrap();
    let routes = std::fs::read_to_string(folder.join("routes/proxy-config.json")).unwrap();
    let ca_data = STANDARD.encode(lab.upstream.ca.pem());
    let no_anchor = STANDARD.encode(pem(&vec![1, 2, 3].into()));
    let other = Ca::new("other");
    let (leaf, _) = self_signed(&["x.test"]);
    let mut failures = 0;
    for (name, content, word) in [
        ("routes/proxy-config.json", Some("{".to_owned()), "proxy-config.json"),
        ("routes/proxy-config.json", Some(String::new()), "proxy-config.json"),
        (
            "routes/proxy-config.json",
            Some(routes.replace("api.test", "other.test")),
            "in the routes",
        ),
        ("routes/proxy-config.json", None, "cannot read"),
        ("kubeconfig/kubeconfig", Some("kind: [".to_owned()), "kubeconfig: "),
        (
            "kubeconfig/kubeconfig",
            Some(kubeconfig.replace(&ca_data, &no_anchor)),
            "trust anchor",
        ),
        ("kubeconfig/kubeconfig", None, "cannot read"),
        ("ca/ca.crt", Some("x".to_owned()), "no PEM certificate"),
        ("ca/ca.crt", Some(other.pem()), "not the key of ca.crt"),
        ("ca/ca.crt", Some(pem(&leaf)), "not the key of ca.crt"),
        ("ca/ca.crt", None, "cannot read"),
        ("ca/ca.key", Some("x".to_owned()), "private key"),
        ("ca/ca.key", Some(other.key_pem()), "not the key of ca.crt"),
        ("ca/ca.key", None, "cannot read"),
    ] {
        let path = folder.join(name);
        let good = std::fs::read_to_string(&path).unwrap();
        let before = shared.state.load_full();
        replaced(&path, content.as_deref());
        for _ in 0..3 {
            reloader.check(&shared, now);
        }
        let error = status.error().unwrap();
        assert!(error.contains(word) && !error.contains(TOKEN), "{name}: {error}");
        assert!(Arc::ptr_eq(&before, &shared.state.load_full()), "{name}: {error}");
        failures += 1;
        let counted = shared
            .metrics
            .reloads
            .get_or_create(&ReloadLabels { result: "failure" });
        assert_eq!(counted.get(), failures, "{name}: {error}: a reason is counted once");
        drop(counted);
        assert_eq!(shared.metrics.reload_failing.get(), 1, "{name}");

        replaced(&path, Some(&good));
        for _ in 0..2 {
            reloader.check(&shared, now);
        }
        assert_eq!(status.error(), None, "{name}");
        assert_eq!(shared.metrics.reload_failing.get(), 0, "{name}");
    }
}

/// Keeps the texts of warnings.
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn case_65_a_ca_that_nears_its_end_is_warned_of_once_though_no_file_changes() {
    let lab = Lab::new().await;
    let (mut reloader, shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = |of: &Mutex<Vec<String>>| std::mem::take(&mut *of.lock().unwrap());
    let now = OffsetDateTime::now_utc();
    // The lab's CA is valid for 3,650 days.
    let day = time::Duration::days(1);
    tracing::subscriber::with_default(Warnings(warnings.clone()), || {
        reloader.check(&shared, now + 3619 * day);
        assert!(heard(&warnings).is_empty());
        for ahead in [3621, 3622, 3651] {
            reloader.check(&shared, now + ahead * day);
        }
        let told = heard(&warnings);
        assert!(
            told.len() == 1 && told[0].contains("The proxy's CA ends soon"),
            "{told:?}"
        );

        // Another CA that ends soon is another warning.
        let next = Ca::valid("next", -day, 10 * day);
        std::fs::write(lab.directory.path().join("ca/ca.crt"), next.pem()).unwrap();
        std::fs::write(lab.directory.path().join("ca/ca.key"), next.key_pem()).unwrap();
        for _ in 0..4 {
            reloader.check(&shared, now);
        }
        assert_eq!(heard(&warnings).len(), 1);
    });
}
