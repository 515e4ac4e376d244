//! The store against single events, and against random histories of a watch.

use std::collections::BTreeMap;

use cli_mcp_api::labels;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::fixtures::{pod, session};
use super::*;

#[test]
fn an_answer_that_is_newer_than_the_watch_stays() {
    let mut store = SandboxStore::default();
    store.apply(&Event::Apply(pod("p", "u", 5, None)));
    store.observe(&pod("p", "u", 9, Some("s1")));
    store.apply(&Event::Apply(pod("p", "u", 7, None)));
    assert_eq!(store.of_session(&session("s1")).len(), 1);
    assert!(store.claimable(&session("s2"), "h").is_empty());
}

#[test]
fn only_the_watch_tells_up_to_where_the_store_is() {
    let mine = Sandbox::from_pod(&pod("mine", "m", 8, Some("s1"))).unwrap();
    let mut store = SandboxStore::default();
    store.observe(&pod("mine", "m", 8, Some("s1")));
    assert!(!store.is_up_to(&mine), "an answer tells of one pod alone");
    store.apply(&Event::Apply(pod("other", "o", 7, None)));
    assert!(!store.is_up_to(&mine));
    store.apply(&Event::Delete(pod("other", "o", 9, None)));
    assert!(store.is_up_to(&mine), "events come in their order");

    store.apply(&Event::Init);
    store.apply(&Event::InitApply(pod("mine", "m", 3, None)));
    assert!(store.is_up_to(&mine), "until a LIST is whole");
    store.apply(&Event::InitDone);
    assert!(!store.is_up_to(&mine), "versions begin anew after a restore");
    let mut odd = mine.clone();
    odd.resource_version = "none".to_owned();
    assert!(!store.is_up_to(&odd) && !SandboxStore::default().is_up_to(&odd));
}

#[test]
fn a_pod_of_another_owner_is_neither_used_nor_claimed() {
    let mut store = SandboxStore::of_owner(Some("uid-demo".to_owned()));
    let owned = |mut pod: Pod, uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "CliMcpInstance", "name": "demo", "uid": uid}]);
        pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        pod
    };
    store.apply(&Event::Init);
    store.apply(&Event::InitApply(owned(pod("listed", "u1", 1, None), "earlier")));
    store.apply(&Event::InitDone);
    store.apply(&Event::Apply(pod("watched", "u2", 2, None)));
    store.observe(&pod("answered", "u3", 3, Some("s1")));
    store.apply(&Event::Apply(owned(pod("ours", "u4", 4, None), "uid-demo")));
    assert!(store.of_session(&session("s1")).is_empty());
    let claimable = store.claimable(&session("s1"), "h");
    assert_eq!(
        claimable.iter().map(|sandbox| &sandbox.name).collect::<Vec<_>>(),
        ["ours"]
    );
}

#[test]
fn a_late_answer_does_not_bring_a_deleted_pod_back() {
    let mut store = SandboxStore::default();
    store.apply(&Event::Delete(pod("p", "u", 9, Some("s1"))));
    store.observe(&pod("p", "u", 5, Some("s1")));
    assert!(store.of_session(&session("s1")).is_empty());
}

#[test]
fn a_create_during_a_relist_survives_it_and_not_the_next() {
    let mut store = SandboxStore::default();
    store.apply(&Event::Init);
    store.observe(&pod("p", "u", 9, Some("s1")));
    store.apply(&Event::InitDone);
    assert_eq!(store.of_session(&session("s1")).len(), 1);
    store.apply(&Event::Init);
    store.apply(&Event::InitDone);
    assert!(store.of_session(&session("s1")).is_empty());
}

#[test]
fn a_lost_sandbox_is_remembered_until_the_next_is_here_and_an_ended_one_never() {
    let mut store = SandboxStore::default();
    let mut evicted = pod("p", "u", 2, Some("s1"));
    evicted.status = Some(PodStatus {
        phase: Some("Failed".into()),
        reason: Some("Evicted".into()),
        ..PodStatus::default()
    });
    store.apply(&Event::Apply(pod("p", "u", 1, Some("s1"))));
    store.apply(&Event::Delete(evicted));
    assert_eq!(store.loss(&session("s1")).as_deref(), Some("Evicted"));
    assert_eq!(
        store.loss(&session("s1")).as_deref(),
        Some("Evicted"),
        "it stands until the next is here"
    );
    store.apply(&Event::Apply(pod("p2", "u2", 5, Some("s1"))));
    assert_eq!(store.loss(&session("s1")), None, "another server's sandbox carries it");

    let mut ended = pod("q", "v", 4, Some("s2"));
    ended.metadata.annotations = Some(BTreeMap::from([(ENDED_ANNOTATION.to_owned(), "client".to_owned())]));
    store.apply(&Event::Apply(pod("q", "v", 3, Some("s2"))));
    store.apply(&Event::Delete(ended));
    assert_eq!(store.loss(&session("s2")), None);
}

#[test]
fn of_the_deleted_pods_the_last_are_remembered() {
    let mut store = SandboxStore::default();
    let deleted = |n: usize| pod(&format!("p{n}"), &format!("u{n}"), 9, Some("s1"));
    for n in 0..=REMEMBERED_DELETIONS {
        store.apply(&Event::Delete(deleted(n)));
    }
    assert_eq!(store.deleted.len(), REMEMBERED_DELETIONS);
    store.observe(&deleted(1));
    store.observe(&deleted(REMEMBERED_DELETIONS));
    assert!(store.of_session(&session("s1")).is_empty());
}

#[test]
fn what_a_client_was_told_does_not_come_back_by_an_older_event() {
    let replacing = |version| {
        let mut pod = pod("p", "u", version, Some("s1"));
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(REPLACES_ANNOTATION.to_owned(), "Evicted".to_owned());
        pod
    };
    let mut store = SandboxStore::default();
    // A pod of the pool that is claimed gets the note with the claim.
    store.apply(&Event::Apply(pod("p", "u", 1, None)));
    store.observe(&replacing(2));
    let noted = store.get("p").unwrap().clone();
    assert_eq!(noted.replaces.as_deref(), Some("Evicted"));
    store.told(&noted);
    store.apply(&Event::Apply(replacing(3)));
    assert_eq!(store.get("p").unwrap().replaces, None);
}

#[test]
fn the_order_of_the_pool_depends_on_the_session_alone() {
    let mut store = SandboxStore::default();
    for n in 0..20 {
        store.apply(&Event::Apply(pod(&format!("p{n}"), &format!("u{n}"), n, None)));
    }
    let order = |id: &str| {
        store
            .claimable(&session(id), "h")
            .iter()
            .map(|s| s.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(order("a"), order("a"));
    assert_ne!(order("a"), order("b"));
    assert!(store.claimable(&session("a"), "other").is_empty());
}

#[test]
fn a_claimed_pod_comes_before_a_created_one_and_terminating_ones_last() {
    let mut store = SandboxStore::default();
    let created = cli_mcp_sandbox::pod::session_pod_name("demo", "s1");
    store.apply(&Event::Apply(pod(&created, "u1", 1, Some("s1"))));
    store.apply(&Event::Apply(pod("z-pool", "u2", 2, Some("s1"))));
    let mut terminating = pod("a-pool", "u3", 3, Some("s1"));
    terminating.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    store.apply(&Event::Apply(terminating));
    let names: Vec<String> = store
        .of_session(&session("s1"))
        .iter()
        .map(|s| s.name.clone())
        .collect();
    assert_eq!(names, ["z-pool".to_owned(), created, "a-pool".to_owned()]);
    assert_eq!(store.sessions(), 1);
}

/// When the store is given the answer to a write: never when another server wrote, late when the watch was faster.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Never,
    AtOnce,
    Late,
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![Just(Answer::Never), Just(Answer::AtOnce), Just(Answer::Late)]
}

/// A step of a history: the cluster changes, and the watch reports it, lags behind, breaks and relists.
#[derive(Clone, Debug)]
enum Step {
    Create {
        name: u8,
        session: Option<u8>,
        answer: Answer,
    },
    Assign {
        name: u8,
        session: u8,
        answer: Answer,
    },
    Delete {
        name: u8,
    },
    Deliver,
    /// A late answer arrives.
    Answer,
    /// The watch ends with 410 Gone: undelivered events are lost, a LIST follows, in two pages with changes between.
    Relist {
        during: Vec<Step>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let leaf = prop_oneof![
        (0..6u8, proptest::option::of(0..3u8), answer()).prop_map(|(name, session, answer)| Step::Create {
            name,
            session,
            answer
        }),
        (0..6u8, 0..3u8, answer()).prop_map(|(name, session, answer)| Step::Assign { name, session, answer }),
        (0..6u8).prop_map(|name| Step::Delete { name }),
        Just(Step::Deliver),
        Just(Step::Answer),
    ];
    leaf.prop_recursive(2, 24, 6, |inner| {
        proptest::collection::vec(inner, 0..6).prop_map(|during| Step::Relist { during })
    })
}

/// The API server's side of a history.
#[derive(Default)]
struct Model {
    version: u64,
    pods: BTreeMap<String, Pod>,
    pending: VecDeque<Event<Pod>>,
    late: VecDeque<Pod>,
    store: SandboxStore,
    /// The latest version that the store had of each pod, by UID.
    seen: BTreeMap<String, u64>,
}

impl Model {
    /// What holds at every moment, however far the watch is behind: no pod goes back to an earlier version, none that
    /// lives is forgotten, and up to where the store says that it is nothing is missing.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for sandbox in self.store.by_name.values() {
            let version: u64 = sandbox.resource_version.parse().unwrap();
            let seen = self.seen.entry(sandbox.uid.clone()).or_insert(version);
            prop_assert!(version >= *seen, "{} went back to {version} from {seen}", sandbox.name);
            *seen = version;
        }
        let held = self.store.uids();
        for pod in self.pods.values() {
            let uid = pod.metadata.uid.as_ref().unwrap();
            prop_assert!(held.contains(uid) || !self.seen.contains_key(uid), "{uid} is forgotten");
            let written = Sandbox::from_pod(pod).unwrap();
            if self.store.is_up_to(&written) {
                let known = self.store.get(&written.name);
                prop_assert!(
                    known.is_some_and(|known| known.uid == written.uid && known.version() >= written.version())
                );
            }
        }
        Ok(())
    }

    fn write(&mut self, name: u8, uid: Option<String>, session: Option<&str>, answer: Answer) {
        self.version += 1;
        let name = format!("p{name}");
        let uid = uid.unwrap_or_else(|| format!("u{}", self.version));
        let pod = pod(&name, &uid, self.version, session);
        self.pods.insert(name, pod.clone());
        self.pending.push_back(Event::Apply(pod.clone()));
        match answer {
            Answer::Never => {}
            Answer::AtOnce => self.store.observe(&pod),
            Answer::Late => self.late.push_back(pod),
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Create { name, session, answer } => {
                if !self.pods.contains_key(&format!("p{name}")) {
                    self.write(*name, None, session.map(|n| format!("s{n}")).as_deref(), *answer);
                }
            }
            Step::Assign { name, session, answer } => {
                if let Some(uid) = self
                    .pods
                    .get(&format!("p{name}"))
                    .and_then(|pod| pod.metadata.uid.clone())
                {
                    self.write(*name, Some(uid), Some(&format!("s{session}")), *answer);
                }
            }
            Step::Delete { name } => {
                if let Some(mut pod) = self.pods.remove(&format!("p{name}")) {
                    self.version += 1;
                    pod.metadata.resource_version = Some(self.version.to_string());
                    self.pending.push_back(Event::Delete(pod));
                }
            }
            Step::Deliver => {
                if let Some(event) = self.pending.pop_front() {
                    self.store.apply(&event);
                }
            }
            Step::Answer => {
                if let Some(pod) = self.late.pop_front() {
                    self.store.observe(&pod);
                }
            }
            Step::Relist { during } => {
                self.pending.clear();
                // One that is later than a whole LIST is not told from a new pod, unless the store had it: a list names no
                // version of its own.
                let known = self.store.uids();
                self.late
                    .retain(|pod| pod.metadata.uid.as_ref().is_some_and(|uid| known.contains(uid)));
                self.store.apply(&Event::Init);
                let listed: Vec<Pod> = self.pods.values().cloned().collect();
                let half = listed.len() / 2;
                for pod in &listed[..half] {
                    self.store.apply(&Event::InitApply(pod.clone()));
                }
                for step in during
                    .iter()
                    .filter(|step| !matches!(step, Step::Relist { .. } | Step::Deliver))
                {
                    self.run(step)?;
                }
                for pod in &listed[half..] {
                    self.store.apply(&Event::InitApply(pod.clone()));
                }
                self.store.apply(&Event::InitDone);
            }
        }
        self.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_watch_does_the_store_ends_as_the_cluster_is(steps in proptest::collection::vec(step(), 0..60)) {
        let mut model = Model::default();
        for step in &steps {
            model.run(step)?;
        }
        while let Some(event) = model.pending.pop_front() {
            model.store.apply(&event);
        }
        while let Some(pod) = model.late.pop_front() {
            model.store.observe(&pod);
        }
        let mut expected: Vec<(String, String, Option<String>)> = model.pods.values().map(|pod| {
            let session = pod.metadata.labels.as_ref().unwrap().get(labels::SESSION_ID).cloned();
            (pod.metadata.name.clone().unwrap(), pod.metadata.uid.clone().unwrap(), session)
        }).collect();
        expected.sort();
        let store = &model.store;
        let mut found: Vec<(String, String, Option<String>)> = store.by_name.values()
            .map(|s| (s.name.clone(), s.uid.clone(), s.session.as_ref().map(ToString::to_string)))
            .collect();
        found.sort();
        prop_assert_eq!(&found, &expected);
        let indexed: usize = store.by_session.values().map(BTreeSet::len).sum::<usize>() + store.pool.len();
        prop_assert_eq!(indexed, expected.len());
        for (session, names) in &store.by_session {
            for name in names {
                prop_assert_eq!(store.by_name[name].session.as_ref(), Some(session));
            }
        }
    }
}
