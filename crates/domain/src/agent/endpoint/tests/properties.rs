//! Two instances call the endpoints of one agent and share its record. Whatever happens, in whatever order, the rules of
//! breakers, ejections and checks hold.

use std::collections::{BTreeMap, VecDeque};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::agent::control::{BreakerAction, ControlledBy};

const URLS: [&str; 4] = [A, B, C, "http://d"];
const CANARIES: usize = 2;

#[derive(Clone, Debug)]
enum Happening {
    /// A call begins, if the endpoint has room for it.
    Begin {
        instance: usize,
        endpoint: usize,
    },
    /// One of the calls in flight ends.
    End {
        instance: usize,
        call: usize,
        health: HealthSample<'static>,
        load: LoadSample<'static>,
    },
    /// The oldest report is recorded, or is found to be overtaken.
    Record {
        instance: usize,
    },
    /// The instance reads the record.
    Read {
        instance: usize,
    },
    /// The instance looks at what time has changed, and probes what is due.
    Look {
        instance: usize,
    },
    Wait {
        millis: u64,
    },
    Check {
        endpoint: usize,
        is_well: bool,
    },
    Operate {
        endpoint: usize,
        action: BreakerAction,
    },
    /// Both instances get the specification with or without the last endpoint.
    Configure {
        has_last: bool,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let health = prop_oneof![
        4 => Just(HealthSample::Succeeded),
        6 => Just(FAILED),
        3 => Just(HealthSample::Unclear),
    ];
    let load = prop_oneof![
        Just(LoadSample::Served),
        Just(REFUSED),
        Just(LoadSample::Unclear)
    ];
    let instance = prop_oneof![3 => Just(0usize), 1 => Just(1usize)];
    // Most of it concerns one endpoint, which gets far that way.
    let endpoint = prop_oneof![4 => Just(0usize), 1 => 0..URLS.len()];
    let action = prop_oneof![
        1 => Just(BreakerAction::Open),
        1 => Just(BreakerAction::Close),
        4 => Just(BreakerAction::Reset),
    ];
    prop_oneof![
        12 => (instance.clone(), endpoint.clone())
            .prop_map(|(instance, endpoint)| Happening::Begin { instance, endpoint }),
        12 => (instance.clone(), any::<usize>(), health, load)
            .prop_map(|(instance, call, health, load)| Happening::End { instance, call, health, load }),
        5 => instance.clone().prop_map(|instance| Happening::Record { instance }),
        4 => instance.clone().prop_map(|instance| Happening::Read { instance }),
        9 => instance.prop_map(|instance| Happening::Look { instance }),
        5 => (0..3_000u64).prop_map(|millis| Happening::Wait { millis }),
        // A probe has this time.
        2 => (10_000..13_000u64).prop_map(|millis| Happening::Wait { millis }),
        2 => (endpoint.clone(), proptest::bool::weighted(0.8))
            .prop_map(|(endpoint, is_well)| Happening::Check { endpoint, is_well }),
        1 => (endpoint, action)
            .prop_map(|(endpoint, action)| Happening::Operate { endpoint, action }),
        1 => any::<bool>().prop_map(|has_last| Happening::Configure { has_last }),
    ]
}

fn specs() -> impl Strategy<Value = AgentSpec> {
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>());
    let kinds = kinds.prop_filter("one at least", |(a, b, c)| *a || *b || *c);
    kinds.prop_map(|(breaker, ejection, adaptive)| {
        let endpoints = URLS.map(|url| format!(r#"{{ "url": "{url}", "max_in_flight": 4 }}"#));
        let all = format!(
            r#"{{ "adaptive": {{ "least": 1 }}, "health": {{ "path": "/health" }},
                "breaker": {{ "min_calls": 3, "canaries": {CANARIES}, "slow_after": "2s", "open_for": "1s" }},
                "ejection": {{ "after": 2, "for": "1s", "max": "4s" }}, "endpoints": [{}] }}"#,
            endpoints.join(", ")
        );
        let mut spec = spec(&all);
        spec.breaker.take_if(|_| !breaker);
        spec.ejection.take_if(|_| !ejection);
        spec.adaptive.take_if(|_| !adaptive);
        spec
    })
}

struct CallUnderWay {
    url: &'static str,
    permit: CallPermit,
    /// The changes of the endpoint's breaker that the instance had seen.
    round: usize,
    is_canary: bool,
}

struct Instance {
    id: InstanceId,
    guard: AgentGuard,
    reports: VecDeque<BreakerReport>,
    calls: Vec<CallUnderWay>,
    /// As the shell knows it, which asks only when the machine says so.
    known: (u32, Vec<u32>),
    /// The changes of each endpoint's breaker that it has seen.
    rounds: BTreeMap<&'static str, usize>,
}

impl Instance {
    fn follow(&mut self, changes: GuardChanges, now: Duration) {
        if changes.capacity {
            let each = self.guard.endpoint_calls().map(|(_, most)| most).collect();
            self.known = (self.guard.capacity(now).calls, each);
        }
        self.reports.extend(changes.reports);
    }

    fn take(&mut self, cluster: &Shared, source: RecordSource<'_>) {
        let (_, before) = self.guard.record();
        let before = before.breakers.clone();
        let (version, control) = (cluster.version, cluster.control.clone());
        let (store_now, now) = cluster.times();
        let changes = self
            .guard
            .take_record(version, control, source, store_now, now);
        let (_, after) = self.guard.record();
        for url in URLS {
            if before.get(url) != after.breakers.get(url) {
                *self.rounds.entry(url).or_default() += 1;
            }
        }
        self.follow(changes, now);
    }
}

/// The state that both instances share.
struct Shared {
    spec: AgentSpec,
    version: u64,
    control: AgentControl,
    millis: u64,
    /// The last action of an operator on each breaker.
    forced: BTreeMap<String, BreakerAction>,
    has_lost_endpoints: bool,
}

impl Shared {
    fn times(&self) -> (Timestamp, Duration) {
        // The store's clock has nothing to do with that of a process.
        let store_now = store_time(1_000_000 + i64::try_from(self.millis).unwrap());
        (store_now, at(self.millis))
    }

    /// As the store does: not if the record has changed since this version.
    fn change(&mut self, change: &ControlChange, by: &InstanceId, seen: Option<u64>) -> bool {
        if seen.is_some_and(|seen| seen != self.version) {
            return false;
        }
        let by = ControlledBy {
            instance: by,
            operator: None,
            now: self.times().0,
        };
        let is_changed = self.control.apply(change, &self.spec, by);
        self.version += u64::from(is_changed);
        is_changed
    }
}

struct Cluster {
    shared: Shared,
    instances: Vec<Instance>,
}

impl Cluster {
    fn new(spec: AgentSpec) -> Self {
        let instances = ["one", "two"].map(|id| {
            let id = InstanceId::new(id);
            let mut guard = AgentGuard::new(AgentName::new("payments"), id.clone());
            guard.configure(&spec, at(0));
            let most = vec![0; spec.endpoints.len()];
            let mut instance = Instance {
                id,
                guard,
                reports: VecDeque::new(),
                calls: Vec::new(),
                known: (0, most),
                rounds: BTreeMap::new(),
            };
            let changes = instance.guard.look(store_time(1_000_000), at(0));
            instance.follow(changes, at(0));
            instance
        });
        Self {
            shared: Shared {
                spec,
                version: 0,
                control: AgentControl::default(),
                millis: 0,
                forced: BTreeMap::new(),
                has_lost_endpoints: false,
            },
            instances: instances.into(),
        }
    }

    fn happens(&mut self, happening: &Happening) {
        let (_, now) = self.shared.times();
        match happening {
            Happening::Begin { instance, endpoint } => self.begin(*instance, URLS[*endpoint]),
            Happening::End {
                instance,
                call,
                health,
                load,
            } => {
                let instance = &mut self.instances[*instance];
                if !instance.calls.is_empty() {
                    let at = call % instance.calls.len();
                    let call = instance.calls.swap_remove(at);
                    let guard = &mut instance.guard;
                    let changes = guard.end(call.url, call.permit, *health, *load, now);
                    instance.follow(changes, now);
                }
            }
            Happening::Record { instance } => self.record(*instance),
            Happening::Read { instance } => {
                self.instances[*instance].take(&self.shared, RecordSource::Read);
            }
            Happening::Look { instance } => self.look(*instance),
            Happening::Wait { millis } => self.shared.millis += millis,
            Happening::Check { endpoint, is_well } => {
                let result = is_well.then_some(()).ok_or_else(|| "503".to_owned());
                let url = URLS[*endpoint].to_owned();
                let change = ControlChange::Checked { url, result };
                let one = &self.instances[0].id;
                self.shared.change(&change, one, None);
            }
            Happening::Operate { endpoint, action } => {
                let url = URLS[*endpoint].to_owned();
                self.shared.forced.insert(url.clone(), *action);
                let change = ControlChange::Breakers {
                    endpoints: vec![url],
                    action: *action,
                    reason: None,
                };
                let one = &self.instances[0].id;
                self.shared.change(&change, one, None);
            }
            Happening::Configure { has_last } => self.configure(*has_last),
        }
    }

    fn begin(&mut self, instance: usize, url: &'static str) {
        let (_, now) = self.shared.times();
        let instance = &mut self.instances[instance];
        let endpoints = instance.guard.endpoints().iter();
        let most = endpoints.zip(&instance.known.1);
        let most = { most }.find(|(endpoint, _)| endpoint.url() == url);
        let Some((endpoint, most)) = most else {
            return;
        };
        let under_way = { instance.calls.iter() }.filter(|call| call.url == url);
        if under_way.count() >= *most as usize {
            return;
        }
        let is_canary = matches!(endpoint.phase, Phase::HalfOpen(_));
        let is_full = instance.calls.len() + 1 >= instance.known.0 as usize;
        if let Some(permit) = instance.guard.begin(url, now, is_full) {
            instance.calls.push(CallUnderWay {
                url,
                permit,
                round: instance.rounds.get(url).copied().unwrap_or_default(),
                is_canary,
            });
        }
    }

    fn record(&mut self, instance: usize) {
        let instance = &mut self.instances[instance];
        let Some(report) = instance.reports.pop_front() else {
            return;
        };
        let ControlChange::Endpoint { url, .. } = &report.change else {
            panic!("no other report: {report:?}");
        };
        let mut tries = 0..3;
        while let Some(version) = instance.guard.counts_for(&report) {
            assert!(tries.next().is_some(), "the report is never recorded");
            let shared = &mut self.shared;
            let is_changed = shared.change(&report.change, &instance.id, Some(version));
            let source = match is_changed || shared.version <= version {
                true => RecordSource::Report(url),
                false => RecordSource::Change,
            };
            instance.take(shared, source);
        }
    }

    fn look(&mut self, instance: usize) {
        let (store_now, now) = self.shared.times();
        let instance = &mut self.instances[instance];
        let changes = instance.guard.look(store_now, now);
        instance.follow(changes, now);
        if self.shared.spec.breaker.is_none() {
            return;
        }
        let (_, control) = instance.guard.record();
        for url in control.due_probes(&self.shared.spec, store_now) {
            let (version, _) = instance.guard.record();
            let seen = Observation::Due;
            let change = ControlChange::Endpoint { url, seen };
            self.shared.change(&change, &instance.id, Some(version));
            instance.take(&self.shared, RecordSource::Change);
        }
    }

    fn configure(&mut self, has_last: bool) {
        let (_, now) = self.shared.times();
        let last = URLS[URLS.len() - 1];
        let mut spec = self.shared.spec.clone();
        let mut endpoint = spec.endpoints[0].clone();
        endpoint.url = last.to_owned();
        spec.endpoints.retain(|known| known.url != last);
        match has_last {
            true => spec.endpoints.push(endpoint),
            false => self.shared.has_lost_endpoints = true,
        }
        self.shared.spec = spec;
        for instance in &mut self.instances {
            instance.guard.configure(&self.shared.spec, now);
            let changes = GuardChanges {
                capacity: true,
                ..GuardChanges::default()
            };
            instance.follow(changes, now);
        }
    }

    fn check(&self) {
        for instance in &self.instances {
            self.check_instance(instance);
        }
        let control = &self.shared.control;
        for (url, action) in &self.shared.forced {
            let state = control.breakers.get(url).map(|known| &known.state);
            let expected = match action {
                BreakerAction::Open => Some(&BreakerState::ForcedOpen),
                BreakerAction::Close => Some(&BreakerState::ForcedClosed),
                BreakerAction::Reset => continue,
            };
            assert_eq!(state, expected, "until an operator decides otherwise");
        }
        let (store_now, _) = self.shared.times();
        let ejected = { control.ejections.values() }.filter(|known| known.holds_at(store_now));
        if !self.shared.has_lost_endpoints {
            assert!(ejected.count() * 2 <= URLS.len(), "too many are ejected");
        }
    }

    fn check_instance(&self, instance: &Instance) {
        let guard = &instance.guard;
        let each: Vec<_> = guard.endpoint_calls().map(|(_, most)| most).collect();
        assert_eq!(each, instance.known.1, "the shell was not asked to look");
        let (_, control) = guard.record();
        for (endpoint, most) in guard.endpoint_calls() {
            let url = endpoint.url();
            let breaker = { control.breakers.get(url) }.filter(|_| guard.spec().breaker.is_some());
            let is_prober = match breaker.map(|known| &known.state) {
                Some(BreakerState::HalfOpen { prober, .. }) => *prober == instance.id,
                Some(BreakerState::Open { .. } | BreakerState::ForcedOpen) => {
                    assert_eq!(most, 0, "its breaker is open");
                    false
                }
                _ => true,
            };
            if !is_prober {
                assert_eq!(most, 0, "it is half-open for another");
            }
            if !endpoint.state().is_healthy() {
                assert_eq!(most, 0, "it gets no calls");
            }
            let round = instance.rounds.get(url).copied().unwrap_or_default();
            let canaries = instance.calls.iter();
            let canaries = canaries.filter(|call| {
                let is_of_phase = call.permit.epoch == endpoint.epoch;
                call.url == url && call.is_canary && is_of_phase && call.round == round
            });
            assert!(canaries.count() <= CANARIES, "too many canaries at {url}");
            if endpoint.phase.is_reported() {
                let is_awaited = |report| endpoint.awaits(report);
                let is_waiting = instance.reports.iter().any(is_awaited);
                assert!(is_waiting, "its phase would never follow the record again");
            }
            let under_way = instance.calls.iter().filter(|call| call.url == url);
            let counted = endpoint.calls() as usize;
            match self.shared.has_lost_endpoints {
                false => assert_eq!(counted, under_way.count()),
                true => assert!(counted <= under_way.count()),
            }
        }
    }

    /// The service is well from now on, and no operator keeps calls from it.
    fn recover(&mut self) {
        for url in URLS {
            if let Some(BreakerAction::Open | BreakerAction::Close) = self.shared.forced.get(url) {
                let endpoint = URLS.iter().position(|known| *known == url).unwrap();
                let action = BreakerAction::Reset;
                self.happens(&Happening::Operate { endpoint, action });
            }
        }
        for endpoint in 0..URLS.len() {
            let is_well = true;
            self.happens(&Happening::Check { endpoint, is_well });
        }
        for _ in 0..4 {
            for instance in 0..2 {
                self.end_all(instance);
                while !self.instances[instance].reports.is_empty() {
                    self.record(instance);
                }
                for happening in [Happening::Read { instance }, Happening::Look { instance }] {
                    self.happens(&happening);
                    self.check();
                }
                for endpoint in [0, 1, 2, 3, 0, 1, 2, 3] {
                    self.happens(&Happening::Begin { instance, endpoint });
                }
                self.end_all(instance);
                while !self.instances[instance].reports.is_empty() {
                    self.record(instance);
                }
                self.check();
            }
            self.happens(&Happening::Wait { millis: 15_000 });
        }
        for instance in 0..2 {
            for happening in [Happening::Read { instance }, Happening::Look { instance }] {
                self.happens(&happening);
            }
        }
    }

    fn end_all(&mut self, instance: usize) {
        let (health, load) = (HealthSample::Succeeded, LoadSample::Served);
        while !self.instances[instance].calls.is_empty() {
            self.happens(&Happening::End {
                instance,
                call: 0,
                health,
                load,
            });
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_rules_hold_and_all_endpoints_come_back(
        spec in specs(),
        happenings in vec(happening(), 1..300),
    ) {
        let mut cluster = Cluster::new(spec);
        for happening in &happenings {
            cluster.happens(happening);
            cluster.check();
        }
        cluster.recover();
        for instance in &cluster.instances {
            for (endpoint, most) in instance.guard.endpoint_calls() {
                prop_assert_eq!(endpoint.calls(), 0, "every permit has come back");
                let name = phase(&instance.guard, endpoint.url());
                prop_assert_eq!(name, "closed", "{} is called again", endpoint.url());
                prop_assert!(most >= 1);
            }
        }
    }
}
