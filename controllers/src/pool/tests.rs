//! The pool's decisions, by example and over random sequences of events.

use proptest::prelude::*;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pod(name: &str) -> Sandbox {
    Sandbox {
        name: name.into(),
        uid: format!("uid-{name}"),
        session: None,
        created: at(0),
        created_at: at(0),
        last_activity: None,
        spec_hash: "now".into(),
        mounts_hash: "files".into(),
        scheduled: true,
        running: true,
        ready: true,
        unready_since: at(0),
        terminating: false,
        ended: false,
        trouble: None,
        egress_open: false,
    }
}

/// It has a node and no container yet.
fn starting(name: &str) -> Sandbox {
    Sandbox {
        running: false,
        ready: false,
        ..pod(name)
    }
}

fn wanted(size: usize) -> Wanted<'static> {
    Wanted {
        size,
        current: Some(BuiltFrom {
            spec_hash: "now",
            mounts_hash: "files",
        }),
        expected: 0,
        gate_open: true,
    }
}

fn deleted(plan: &Plan) -> Vec<(&str, Cause)> {
    plan.delete
        .iter()
        .map(|(sandbox, cause)| (sandbox.name.as_str(), *cause))
        .collect()
}

fn planned(size: usize, sandboxes: &[Sandbox]) -> Plan {
    plan(&wanted(size), sandboxes, &Backoff::default(), at(10))
}

#[test]
fn a_claim_is_followed_by_one_more_sandbox() {
    let claimed = Sandbox {
        session: Some("s".into()),
        ..pod("a")
    };
    let plan = planned(2, &[claimed, pod("b")]);
    assert_eq!((plan.create, plan.ready, plan.delete.len()), (1, 1, 0));
}

#[test]
fn surplus_goes_oldest_first() {
    let old = Sandbox {
        created: at(-50),
        ..pod("z")
    };
    let older = Sandbox {
        created: at(-60),
        ..pod("y")
    };
    let plan = planned(1, &[pod("a"), old, older]);
    assert_eq!(deleted(&plan), [("y", Cause::Surplus), ("z", Cause::Surplus)]);
}

#[test]
fn what_was_built_from_something_else_is_rebuilt_and_sessions_keep_theirs() {
    let old_spec = Sandbox {
        spec_hash: "before".into(),
        ..pod("a")
    };
    let old_files = Sandbox {
        mounts_hash: "before".into(),
        ..pod("b")
    };
    let session = Sandbox {
        session: Some("s".into()),
        spec_hash: "before".into(),
        ..pod("c")
    };
    let plan = planned(2, &[old_spec, old_files, session]);
    assert_eq!(deleted(&plan), [("a", Cause::Outdated), ("b", Cause::Outdated)]);
    assert_eq!(plan.create, 0, "they hold their slots until they are gone");
}

#[test]
fn a_terminating_sandbox_holds_its_slot() {
    let going = Sandbox {
        terminating: true,
        ready: false,
        ..pod("a")
    };
    assert_eq!(planned(1, &[going]).create, 0);
    assert_eq!(planned(1, &[]).create, 1);
}

#[test]
fn nothing_is_created_behind_a_closed_gate_or_while_the_cache_is_behind() {
    let closed = Wanted {
        gate_open: false,
        ..wanted(2)
    };
    assert_eq!(plan(&closed, &[], &Backoff::default(), at(0)).create, 0);
    let behind = Wanted {
        expected: 2,
        ..wanted(2)
    };
    assert_eq!(plan(&behind, &[], &Backoff::default(), at(0)).create, 0);
}

#[test]
fn while_nothing_can_be_built_only_what_ended_or_is_too_much_goes() {
    let planned = |size: usize, expected: usize, sandboxes: &[Sandbox], now: i64| {
        let unknown = Wanted {
            current: None,
            expected,
            ..wanted(size)
        };
        plan(&unknown, sandboxes, &Backoff::default(), at(now))
    };
    let outdated = Sandbox {
        spec_hash: "before".into(),
        mounts_hash: "before".into(),
        ..pod("a")
    };
    let ended = Sandbox {
        ended: true,
        ready: false,
        ..pod("b")
    };
    let found = [outdated, ended, starting("c")];
    let late = 500;
    let plan = planned(2, 0, &found, late);
    assert_eq!(deleted(&plan), [("b", Cause::Ended)], "a stuck one has no successor");
    assert_eq!((plan.ready, plan.create, plan.lacking), (1, 0, 0));
    assert_eq!(plan.again, None, "nothing would be done then");

    let plan = planned(1, 0, &found, late);
    assert_eq!(deleted(&plan), [("b", Cause::Ended), ("a", Cause::Surplus)]);
    let plan = planned(4, 0, &found, late);
    assert_eq!((plan.create, plan.lacking), (0, 2));
    assert_eq!(planned(4, 1, &found, late).lacking, 1, "the cache does not show it yet");
}

#[test]
fn a_sandbox_that_ended_is_replaced_after_a_pause() {
    let ended = Sandbox {
        ended: true,
        ready: false,
        trouble: Some("Evicted: disk".into()),
        ..pod("a")
    };
    let first = planned(1, &[ended]);
    assert!(first.failed);
    assert_eq!(deleted(&first), [("a", Cause::Ended)]);
    assert_eq!(first.trouble.as_deref(), Some("pod a: Evicted: disk"));
    let mut backoff = Backoff::default();
    backoff.fail(at(10), "Evicted".into());
    let paused = plan(&wanted(1), &[], &backoff, at(12));
    assert_eq!((paused.create, paused.again), (0, Some(Duration::from_secs(8))));
    assert_eq!(plan(&wanted(1), &[], &backoff, at(20)).create, 1);
}

#[test]
fn a_sandbox_that_does_not_start_is_tried_again_after_the_pause() {
    let image = [Sandbox {
        trouble: Some("ImagePullBackOff: no such image".into()),
        ..starting("a")
    }];
    let early = plan(&wanted(1), &image, &Backoff::default(), at(20));
    assert_eq!((early.delete.len(), early.again), (0, Some(Duration::from_secs(100))));
    let late = plan(&wanted(1), &image, &Backoff::default(), at(120));
    assert_eq!(deleted(&late), [("a", Cause::Stuck)]);
    let mut backoff = Backoff::default();
    backoff.fail(at(119), String::new());
    let paused = plan(&wanted(1), &image, &backoff, at(120));
    assert_eq!((paused.delete.len(), paused.again), (0, Some(Duration::from_secs(9))));
}

#[test]
fn one_that_waits_for_room_is_told_kept_and_not_looked_at() {
    let waiting = [Sandbox {
        scheduled: false,
        trouble: Some("Unschedulable: 0/1 nodes".into()),
        ..starting("a")
    }];
    for now in [20, 120, 1000] {
        let plan = plan(&wanted(1), &waiting, &Backoff::default(), at(now));
        assert_eq!((plan.delete.len(), plan.again), (0, None), "at {now}");
        assert_eq!(plan.trouble.as_deref(), Some("pod a: Unschedulable: 0/1 nodes"));
    }
}

#[test]
fn a_sandbox_that_hangs_without_a_reason_is_told_and_tried_again() {
    let hanging = [starting("a")];
    let early = plan(&wanted(1), &hanging, &Backoff::default(), at(20));
    assert_eq!((&early.trouble, early.again), (&None, Some(Duration::from_secs(100))));
    let late = plan(&wanted(1), &hanging, &Backoff::default(), at(120));
    assert_eq!(deleted(&late), [("a", Cause::Stuck)]);
    assert_eq!(late.unexplained.as_ref(), Some(&hanging[0]));
    assert!(
        late.failed
            && late
                .trouble
                .is_some_and(|trouble| trouble.contains("kubectl describe pod a"))
    );
    // What one says of itself tells more.
    let image = Sandbox {
        trouble: Some("ImagePullBackOff".into()),
        ..starting("b")
    };
    let both = plan(&wanted(2), &[starting("a"), image], &Backoff::default(), at(120));
    assert_eq!(
        (both.trouble.as_deref(), both.unexplained),
        (Some("pod b: ImagePullBackOff"), None)
    );
}

#[test]
fn one_that_runs_and_is_not_ready_is_told_and_kept() {
    let running = [Sandbox {
        running: true,
        ..starting("a")
    }];
    let late = plan(&wanted(1), &running, &Backoff::default(), at(120));
    assert_eq!((late.delete.len(), late.again), (0, None));
    assert!(late.trouble.is_some());
    // It was ready until just now.
    let blinking = [Sandbox {
        unready_since: at(119),
        ..running[0].clone()
    }];
    let plan = plan(&wanted(1), &blinking, &Backoff::default(), at(120));
    assert_eq!((plan.trouble, plan.again), (None, Some(Duration::from_secs(119))));
}

#[test]
fn a_cause_is_gone_with_a_claim_and_one_of_being_stuck_with_readiness() {
    let claimed = Sandbox {
        session: Some("s".into()),
        ..starting("a")
    };
    for cause in [Cause::Outdated, Cause::Ended, Cause::Stuck, Cause::Surplus] {
        assert!(cause.holds(&starting("a")) && !cause.holds(&claimed), "{cause:?}");
        assert_eq!(cause.holds(&pod("a")), cause != Cause::Stuck, "{cause:?}");
    }
}

#[test]
fn one_that_does_not_go_is_told() {
    let going = [Sandbox {
        terminating: true,
        ..starting("a")
    }];
    let early = plan(&wanted(1), &going, &Backoff::default(), at(20));
    assert_eq!((early.trouble, early.again), (None, Some(Duration::from_secs(100))));
    let late = plan(&wanted(1), &going, &Backoff::default(), at(120));
    assert_eq!((late.create, late.delete.len(), late.again), (0, 0, None));
    assert!(late.trouble.is_some_and(|trouble| trouble.contains("should be gone")));
}

#[test]
fn pauses_double_up_to_five_minutes() {
    let mut backoff = Backoff::default();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        backoff.fail(at(0), String::new());
        pauses.push(backoff.pause(at(0)).unwrap().as_secs());
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
}

/// What may happen to the pods between two reconciles.
#[derive(Clone, Debug)]
enum Happening {
    Ready(usize),
    Claim(usize),
    End(usize),
    Vanish(usize),
    Resize(usize),
    Rebuild,
    Pass(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0_usize..8).prop_map(Happening::Ready),
        (0_usize..8).prop_map(Happening::Claim),
        (0_usize..8).prop_map(Happening::End),
        (0_usize..8).prop_map(Happening::Vanish),
        (0_usize..6).prop_map(Happening::Resize),
        Just(Happening::Rebuild),
        (0_i64..400).prop_map(Happening::Pass),
    ]
}

/// A cluster of pods that the plan acts on.
struct World {
    pods: Vec<Sandbox>,
    size: usize,
    hash: u32,
    now: i64,
    made: usize,
    backoff: Backoff,
}

impl World {
    fn reconcile(&mut self) -> Plan {
        let hash = self.hash.to_string();
        let wanted = Wanted {
            size: self.size,
            current: Some(BuiltFrom {
                spec_hash: &hash,
                mounts_hash: "files",
            }),
            expected: 0,
            gate_open: true,
        };
        let plan = plan(&wanted, &self.pods, &self.backoff, at(self.now));
        if plan.failed {
            self.backoff.fail(at(self.now), String::new());
        }
        for (doomed, _) in &plan.delete {
            let fresh = self
                .pods
                .iter_mut()
                .find(|pod| pod.uid == doomed.uid && pod.session.is_none());
            if let Some(pod) = fresh {
                pod.terminating = true;
                pod.ready = false;
            }
        }
        for _ in 0..plan.create {
            self.made += 1;
            self.pods.push(Sandbox {
                spec_hash: hash.clone(),
                ready: false,
                created: at(self.now),
                unready_since: at(self.now),
                ..pod(&format!("p{}", self.made))
            });
        }
        plan
    }

    fn happen(&mut self, happening: &Happening) {
        let count = self.pods.len();
        let pick = |index: usize| (count > 0).then(|| index % count);
        match happening {
            Happening::Ready(index) => {
                if let Some(pod) = pick(*index).map(|index| &mut self.pods[index])
                    && !pod.terminating
                    && !pod.ended
                {
                    pod.ready = true;
                }
            }
            Happening::Claim(index) => {
                if let Some(pod) = pick(*index).map(|index| &mut self.pods[index])
                    && pod.ready
                {
                    pod.session = Some("s".into());
                }
            }
            Happening::End(index) => {
                if let Some(pod) = pick(*index).map(|index| &mut self.pods[index]) {
                    pod.ended = true;
                    pod.ready = false;
                }
            }
            Happening::Vanish(index) => {
                if let Some(index) = pick(*index) {
                    self.pods.remove(index);
                }
            }
            Happening::Resize(size) => self.size = *size,
            Happening::Rebuild => self.hash += 1,
            Happening::Pass(seconds) => self.now += seconds,
        }
    }
}

proptest! {
    #[test]
    fn there_is_never_a_surplus_by_creating_and_sessions_are_never_planned_away(
        happenings in prop::collection::vec(happening(), 0..40),
    ) {
        let mut world = World { pods: vec![], size: 2, hash: 0, now: 0, made: 0, backoff: Backoff::default() };
        for happening in &happenings {
            world.happen(happening);
            let before = world.pods.iter().filter(|pod| pod.session.is_none()).count();
            let plan = world.reconcile();
            prop_assert!(plan.create == 0 || before + plan.create <= world.size);
            prop_assert!(plan.delete.iter().all(|(pod, _)| pod.session.is_none()));
        }
    }

    #[test]
    fn it_settles_at_the_size_that_is_asked_for(happenings in prop::collection::vec(happening(), 0..40)) {
        let mut world = World { pods: vec![], size: 2, hash: 0, now: 0, made: 0, backoff: Backoff::default() };
        for happening in &happenings {
            world.happen(happening);
            world.reconcile();
        }
        // Then nothing happens but what Kubernetes does by itself.
        for _ in 0..20 {
            world.now += 400;
            world.reconcile();
            world.pods.retain(|pod| !pod.terminating);
            world.pods.iter_mut().filter(|pod| !pod.ended).for_each(|pod| pod.ready = true);
        }
        let hash = world.hash.to_string();
        let pool: Vec<_> = world.pods.iter().filter(|pod| pod.session.is_none()).collect();
        prop_assert_eq!(pool.len(), world.size);
        prop_assert!(pool.iter().all(|pod| pod.spec_hash == hash && pod.ready));
        let plan = world.reconcile();
        prop_assert!(plan.create == 0 && plan.delete.is_empty());
    }
}
