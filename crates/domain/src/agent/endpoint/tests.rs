mod properties;

use std::time::Duration;

use super::{phase::Phase, *};
use crate::{
    agent::{
        adaptive::LoadSample,
        control::{
            AgentControl, Breaker, BreakerState, ControlChange, Observation, Pause, Throttle,
        },
        ejection::Ejection,
        endpoint_state::EndpointState,
        health::Unhealthy,
        spec::AgentSpec,
    },
    values::{
        ids::{AgentName, InstanceId},
        time::{Span, Timestamp},
    },
};

const A: &str = "http://a";
const B: &str = "http://b";
const C: &str = "http://c";
const FAILED: HealthSample<'static> = HealthSample::Failed("503");
const REFUSED: LoadSample<'static> = LoadSample::Refused("503");

fn store_time(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Three endpoints with four calls each. Two calls open a breaker, two failures in a row eject an endpoint.
fn all_kinds() -> AgentSpec {
    spec(
        r#"{ "breaker": { "min_calls": 2, "canaries": 2, "slow_after": "1s" }, "ejection": { "after": 3 },
            "health": { "path": "/health" }, "endpoints": [
            { "url": "http://a", "max_in_flight": 4 },
            { "url": "http://b", "max_in_flight": 4 },
            { "url": "http://c", "max_in_flight": 4 }] }"#,
    )
}

/// Two endpoints with four calls each, whose breakers open at the second failure.
fn two_endpoints() -> AgentSpec {
    spec(
        r#"{ "breaker": { "min_calls": 2 }, "endpoints": [
            { "url": "http://a", "max_in_flight": 4 }, { "url": "http://b", "max_in_flight": 4 }] }"#,
    )
}

fn spec(json: &str) -> AgentSpec {
    serde_json::from_str(json).unwrap()
}

/// The guard in the instance `one`.
fn guard(spec: &AgentSpec) -> AgentGuard {
    let mut guard = AgentGuard::new(AgentName::new("payments"), InstanceId::new("one"));
    assert_eq!(guard.configure(spec, at(0)), [""; 0]);
    guard
}

fn read(guard: &mut AgentGuard, version: u64, control: AgentControl) -> GuardChanges {
    guard.take_record(version, control, RecordSource::Read, store_time(0), at(0))
}

/// A call that began at the start and has ended now.
fn call(guard: &mut AgentGuard, url: &str, health: HealthSample<'_>, now: u64) -> GuardChanges {
    let permit = guard.begin(url, at(0), false).unwrap();
    guard.end(url, permit, health, LoadSample::Unclear, at(now))
}

fn trip(guard: &mut AgentGuard, url: &str) -> Vec<BreakerReport> {
    assert_eq!(call(guard, url, FAILED, 0).reports, []);
    call(guard, url, FAILED, 0).reports
}

fn free(guard: &mut AgentGuard) -> u32 {
    guard.capacity(at(0)).calls
}

fn phase(guard: &AgentGuard, url: &str) -> &'static str {
    let mut endpoints = guard.endpoints().iter();
    let endpoint = endpoints.find(|known| known.url() == url).unwrap();
    match endpoint.phase {
        Phase::Closed(_) => "closed",
        Phase::ForcedClosed => "forced closed",
        Phase::Open { .. } => "open",
        Phase::HalfOpen(_) => "half-open",
        Phase::Out { .. } => "out",
    }
}

fn breaker(state: BreakerState) -> Breaker {
    Breaker {
        state,
        reason: "2 of 2 calls failed".to_owned(),
        by: "two".to_owned(),
        since: store_time(0),
    }
}

fn half_open(prober: &str) -> BreakerState {
    BreakerState::HalfOpen {
        prober: InstanceId::new(prober),
        until: store_time(0),
    }
}

/// A record in which these endpoints have this breaker.
fn breakers(urls: &[&str], state: &BreakerState) -> AgentControl {
    let urls = urls.iter();
    AgentControl {
        breakers: urls
            .map(|url| ((*url).to_owned(), breaker(state.clone())))
            .collect(),
        ..AgentControl::default()
    }
}

fn open(urls: &[&str]) -> AgentControl {
    let until = store_time(0);
    breakers(urls, &BreakerState::Open { until })
}

fn ejected(until: i64) -> AgentControl {
    let ejection = Ejection {
        until: store_time(until),
        times: 1,
        reason: "503".to_owned(),
        by: "two".to_owned(),
        since: store_time(0),
    };
    AgentControl {
        ejections: [(A.to_owned(), ejection)].into(),
        ..AgentControl::default()
    }
}

fn unhealthy(mut control: AgentControl) -> AgentControl {
    let known = Unhealthy {
        reason: "503".to_owned(),
        by: "two".to_owned(),
        since: store_time(0),
    };
    control.unhealthy.insert(A.to_owned(), known);
    control
}

/// Records of the endpoint A, each with its phase and the calls that it may get after another phase.
fn records() -> Vec<(AgentControl, &'static str, u32)> {
    vec![
        (AgentControl::default(), "closed", 2),
        (open(&[A]), "open", 0),
        (breakers(&[A], &half_open("one")), "half-open", 2),
        (breakers(&[A], &half_open("two")), "open", 0),
        (breakers(&[A], &BreakerState::ForcedOpen), "open", 0),
        (
            breakers(&[A], &BreakerState::ForcedClosed),
            "forced closed",
            4,
        ),
        (ejected(10_000), "out", 0),
        (ejected(0), "closed", 2),
        (unhealthy(AgentControl::default()), "out", 0),
        (unhealthy(open(&[A])), "out", 0),
        // Checks do not keep calls from an endpoint whose breaker an operator closed.
        (
            unhealthy(breakers(&[A], &BreakerState::ForcedClosed)),
            "forced closed",
            4,
        ),
    ]
}

#[test]
fn from_every_phase_the_record_leads_to_every_other() {
    for (before, first, _) in records() {
        for (after, second, most) in records() {
            let mut guard = guard(&all_kinds());
            let changes = read(&mut guard, 1, before.clone());
            assert!(changes.capacity);
            assert_eq!(phase(&guard, A), first);
            let epoch = guard.endpoints()[0].epoch;
            let _ = read(&mut guard, 2, after.clone());
            assert_eq!(phase(&guard, A), second, "{before:?} {after:?}");
            let has_moved = guard.endpoints()[0].epoch != epoch;
            assert_eq!(has_moved, first != second, "{before:?} {after:?}");
            let expected = match (first, second) {
                // It has always been called, or was by an operator's wish.
                ("closed" | "forced closed", "closed") => 4,
                _ => most,
            };
            let (_, known) = guard.endpoint_calls().next().unwrap();
            assert_eq!(known, expected, "{before:?} {after:?}");
            assert_eq!(phase(&guard, B), "closed", "the record says nothing of it");
        }
    }
}

#[test]
fn calls_lead_from_phase_to_phase_and_each_change_is_reported_once() {
    use HealthSample::{Succeeded, Unclear};
    let closed = AgentControl::default();
    let canaries = breakers(&[A], &half_open("one"));
    let forced = breakers(&[A], &BreakerState::ForcedClosed);
    let out = unhealthy(AgentControl::default());
    let tripped = "2 of 2 calls in 30s failed; the last one: 503";
    let slow = "2 of 2 calls in 30s took longer than 1s";
    let quick: u64 = 1000;
    // The record, the calls with how long each took, the phase after them, and the reports.
    type Case<'a> = (
        &'a AgentControl,
        &'a [(HealthSample<'a>, u64)],
        &'a str,
        &'a [&'a str],
    );
    let cases: &[Case<'_>] = &[
        (&closed, &[(FAILED, quick)], "closed", &[]),
        (&closed, &[(FAILED, quick); 2], "open", &[tripped]),
        (&closed, &[(FAILED, quick); 3], "open", &[tripped]),
        (&closed, &[(Succeeded, 1001); 2], "open", &[slow]),
        (&closed, &[(Succeeded, quick); 9], "closed", &[]),
        (&closed, &[(Unclear, 1001); 9], "closed", &[]),
        (&canaries, &[(Succeeded, quick)], "half-open", &[]),
        (&canaries, &[(Unclear, 1001); 9], "half-open", &[]),
        (
            &canaries,
            &[(Succeeded, quick); 2],
            "half-open",
            &["recovered"],
        ),
        (
            &canaries,
            &[(Succeeded, quick), (Succeeded, quick), (FAILED, quick)],
            "half-open",
            &["recovered"],
        ),
        (
            &canaries,
            &[(Succeeded, quick), (FAILED, quick), (FAILED, quick)],
            "open",
            &["it was tried again and failed: 503"],
        ),
        (
            &canaries,
            &[(Succeeded, 1001)],
            "open",
            &["it was tried again and took 1s1ms"],
        ),
        (&forced, &[(FAILED, quick); 9], "forced closed", &[]),
        (&out, &[(FAILED, quick); 9], "out", &[]),
        (&open(&[A]), &[(FAILED, quick); 9], "open", &[]),
        (&open(&[A]), &[(Succeeded, quick); 9], "open", &[]),
    ];
    for (record, calls, after, reports) in cases {
        let mut guard = guard(&all_kinds());
        let _ = read(&mut guard, 1, (*record).clone());
        let mut reported = Vec::new();
        for (health, took) in *calls {
            reported.extend(call(&mut guard, A, *health, *took).reports);
        }
        assert_eq!(phase(&guard, A), *after, "{record:?} {calls:?}");
        let words: Vec<_> = reported.iter().map(in_words).collect();
        assert_eq!(words, *reports, "{record:?} {calls:?}");
        let awaited = reported
            .iter()
            .filter(|report| guard.counts_for(report) == Some(1));
        assert_eq!(awaited.count(), reports.len());
    }
}

fn in_words(report: &BreakerReport) -> String {
    assert_eq!(report.agent, AgentName::new("payments"));
    match &report.change {
        ControlChange::Endpoint { url, seen } => {
            assert_eq!(url, A);
            match seen {
                Observation::Tripped { reason }
                | Observation::Relapsed { reason }
                | Observation::Failing { reason } => reason.clone(),
                Observation::Recovered => "recovered".to_owned(),
                Observation::Due => "due".to_owned(),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_in_a_row_eject_an_endpoint_unless_too_few_would_stay() {
    let mut guard = guard(&AgentSpec {
        breaker: None,
        ..all_kinds()
    });
    let mut seen = |url: &str, health| {
        let changes = call(&mut guard, url, health, 0);
        (phase(&guard, url), changes.reports.len())
    };
    for health in [FAILED, FAILED, HealthSample::Succeeded, FAILED, FAILED] {
        assert_eq!(seen(A, health), ("closed", 0));
    }
    assert_eq!(seen(A, FAILED), ("out", 1));
    for _ in 0..9 {
        assert_eq!(seen(B, FAILED), ("closed", 0), "one of three is out");
    }
}

#[test]
fn an_ejected_endpoint_comes_back_when_its_time_is_over() {
    let mut guard = guard(&all_kinds());
    let _ = read(&mut guard, 1, ejected(10_000));
    for (now, expected) in [(0, "out"), (9_999, "out"), (10_000, "closed")] {
        let _ = guard.look(store_time(now), at(0));
        assert_eq!(phase(&guard, A), expected);
        let is_ejected = matches!(guard.endpoints()[0].state(), EndpointState::Ejected(_));
        assert_eq!(is_ejected, expected == "out");
    }
}

#[test]
fn endpoints_with_few_calls_each_open_together() {
    let mut guard = guard(&AgentSpec {
        ejection: None,
        ..all_kinds()
    });
    assert_eq!(call(&mut guard, A, FAILED, 0).reports, []);
    let changes = call(&mut guard, B, FAILED, 0);
    assert_eq!(changes.reports.len(), 2);
    let phases = [A, B, C].map(|url| phase(&guard, url));
    assert_eq!(phases, ["open", "open", "closed"], "one had no call");
}

#[test]
fn a_report_counts_until_its_endpoint_has_another_breaker() {
    let mut guard = guard(&two_endpoints());
    let [of_a] = trip(&mut guard, A).try_into().unwrap();
    let [of_b] = trip(&mut guard, B).try_into().unwrap();
    assert_eq!(guard.counts_for(&of_a), Some(0));
    let report = |url| RecordSource::Report(url);
    let _ = guard.take_record(1, open(&[A]), report(A), store_time(0), at(0));
    assert_eq!(guard.counts_for(&of_a), None);
    assert_eq!(guard.counts_for(&of_b), Some(1), "the change is another's");
    assert_eq!(free(&mut guard), 0);
    // Another instance has opened it, and an operator has closed it since.
    let _ = read(&mut guard, 2, open(&[A, B]));
    assert_eq!(guard.counts_for(&of_b), None);
    let _ = read(&mut guard, 3, open(&[]));
    assert_eq!(free(&mut guard), 6, "both start slowly");
    // An observation that the record does not take over does not hold, even if a later record came first.
    let reports = trip(&mut guard, A);
    let _ = read(&mut guard, 5, open(&[]));
    assert!(guard.counts_for(&reports[0]).is_some());
    let _ = guard.take_record(4, open(&[A]), report(A), store_time(0), at(0));
    assert_eq!(free(&mut guard), 6);
}

#[test]
fn an_endpoint_that_has_recovered_gets_more_calls_while_they_succeed() {
    let spec = spec(
        r#"{ "breaker": { "canaries": 2, "min_calls": 9 }, "endpoints": [{ "url": "http://a", "max_in_flight": 9 }] }"#,
    );
    let mut guard = guard(&spec);
    assert_eq!(free(&mut guard), 9);
    let _ = read(&mut guard, 1, open(&[A]));
    let _ = read(&mut guard, 2, open(&[]));
    assert_eq!(guard.slow_starts(), [Some(2)]);
    let mut most = vec![free(&mut guard)];
    let good = HealthSample::Succeeded;
    for health in [good, good, good, FAILED, good] {
        let _ = call(&mut guard, A, health, 0);
        most.push(free(&mut guard));
    }
    assert_eq!(most, [2, 3, 4, 5, 2, 3]);
    for _ in 0..6 {
        let _ = call(&mut guard, A, good, 0);
    }
    assert_eq!(free(&mut guard), 9);
    assert_eq!(guard.slow_starts(), [None]);
    let _ = call(&mut guard, A, FAILED, 0);
    assert_eq!(free(&mut guard), 9, "it has started");
}

/// One endpoint with nine calls whose limit has grown to this one.
fn adapted(limit: u32) -> AgentGuard {
    let spec = spec(
        r#"{ "adaptive": { "least": 1 }, "breaker": { "canaries": 2, "min_calls": 9, "window": "1s" },
            "endpoints": [{ "url": "http://a", "max_in_flight": 9 }] }"#,
    );
    let mut guard = guard(&spec);
    while free(&mut guard) < limit {
        let _ = full_call(&mut guard, LoadSample::Served);
    }
    guard
}

/// A call with every slot taken.
fn full_call(guard: &mut AgentGuard, load: LoadSample<'_>) -> GuardChanges {
    let permit = guard.begin(A, at(0), true).unwrap();
    guard.end(A, permit, HealthSample::Succeeded, load, at(0))
}

#[test]
fn of_a_slow_start_canaries_and_an_adapted_limit_the_lowest_holds() {
    let mut guard = adapted(9);
    let fell = (0..4).map(|_| full_call(&mut guard, REFUSED).limit_fell);
    assert_eq!(fell.collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(free(&mut guard), 4);
    let _ = read(&mut guard, 1, open(&[A]));
    assert_eq!(free(&mut guard), 0, "its breaker is open");
    let _ = read(&mut guard, 2, open(&[]));
    let mut most = vec![free(&mut guard)];
    for _ in 0..4 {
        let _ = call(&mut guard, A, HealthSample::Succeeded, 0);
        most.push(free(&mut guard));
    }
    assert_eq!(most, [2, 3, 4, 4, 4]);
    // One call that hangs does not keep the only canary of a limit of one from beginning.
    let mut guard = adapted(1);
    let hanging = guard.begin(A, at(0), true).unwrap();
    let _ = read(&mut guard, 1, open(&[A]));
    let _ = read(&mut guard, 2, breakers(&[A], &half_open("one")));
    assert_eq!(free(&mut guard), 2, "of which one is taken");
    let _ = guard.end(A, hanging, FAILED, LoadSample::Unclear, at(0));
    assert_eq!(free(&mut guard), 1);
    assert_eq!(
        phase(&guard, A),
        "half-open",
        "it began before the canaries"
    );
}

#[test]
fn canaries_that_hang_until_their_time_is_over_make_room_for_others() {
    let mut guard = guard(&all_kinds());
    let mut record = breakers(&[A], &half_open("one"));
    let _ = read(&mut guard, 1, record.clone());
    let most = |guard: &AgentGuard| guard.endpoint_calls().next().unwrap().1;
    let begin = |guard: &mut AgentGuard| guard.begin(A, at(0), false).unwrap();
    let (first, second) = (begin(&mut guard), begin(&mut guard));
    assert_eq!(most(&guard), 2);
    record.breakers.get_mut(A).unwrap().since = store_time(1);
    let _ = read(&mut guard, 2, record);
    assert_eq!(most(&guard), 4, "two that hang, and two others");
    let _third = begin(&mut guard);
    let unclear = HealthSample::Unclear;
    let _ = guard.end(A, first, unclear, LoadSample::Unclear, at(0));
    assert_eq!(most(&guard), 3);
    let _ = guard.end(A, second, unclear, LoadSample::Unclear, at(0));
    assert_eq!(most(&guard), 2, "never more canaries");
}

#[test]
fn a_call_to_an_endpoint_that_was_removed_says_nothing_of_the_one_that_came_later() {
    let both = two_endpoints();
    let mut one = both.clone();
    one.endpoints.remove(0);
    let mut guard = guard(&both);
    let calls = [(); 3].map(|()| guard.begin(A, at(0), false).unwrap());
    assert_eq!(guard.configure(&one, at(0)), [A]);
    assert_eq!(guard.begin(A, at(0), false), None);
    assert_eq!(guard.configure(&both, at(0)), [""; 0]);
    for permit in calls {
        let changes = guard.end(A, permit, FAILED, LoadSample::Unclear, at(0));
        assert_eq!(changes, GuardChanges::default());
    }
    assert_eq!(phase(&guard, A), "closed");
}

#[test]
fn the_time_without_calls_has_a_reason_while_it_lasts_and_after_it() {
    let until = Some(store_time(9_000));
    let pause = Pause {
        until,
        reason: Some("it moves".to_owned()),
        by: "operator:ann".to_owned(),
        since: store_time(0),
    };
    let throttle = Throttle {
        until: store_time(9_000),
        reason: "429".to_owned(),
        by: "one".to_owned(),
        since: store_time(0),
    };
    let paused = AgentControl {
        pause: Some(pause.clone()),
        ..AgentControl::default()
    };
    let throttled = AgentControl {
        throttle: Some(throttle.clone()),
        ..AgentControl::default()
    };
    let opens = BreakerState::Open {
        until: store_time(9_000),
    };
    let opened = breakers(&[A, B], &opens);
    let mut out = unhealthy(AgentControl::default());
    let known = out.unhealthy[A].clone();
    out.unhealthy.insert(B.to_owned(), known);
    let reason = "2 of 2 calls failed".to_owned();
    let cases = [
        (
            paused,
            AgentStop::Paused(pause),
            "it was paused by operator:ann: it moves",
        ),
        (
            throttled,
            AgentStop::Throttled(throttle),
            "its service asked for that: 429",
        ),
        (
            opened,
            AgentStop::Breaker { until, reason },
            "its breaker was open: 2 of 2 calls failed",
        ),
        (
            out,
            AgentStop::Unhealthy {
                until: Some(store_time(10_000)),
                reason: "503".to_owned(),
            },
            "its checks failed: 503",
        ),
    ];
    let spec = AgentSpec {
        health: all_kinds().health,
        ..two_endpoints()
    };
    for (record, stop, words) in cases {
        let mut guard = guard(&spec);
        let _ = read(&mut guard, 1, record);
        assert_eq!(guard.stop(at(0)), Some(stop));
        let stopped = guard.capacity(at(0));
        assert_eq!((stopped.calls, stopped.past_stop), (0, None));
        let _ = read(&mut guard, 2, AgentControl::default());
        assert_eq!(guard.stop(at(0)), None);
        let past = guard.capacity(at(5)).past_stop.unwrap();
        assert_eq!((past.until, past.why.as_str()), (store_time(5), words));
        assert_eq!(guard.capacity(at(5)).past_stop, None);
    }
}

#[test]
fn a_pause_and_a_throttle_are_announced_once_when_they_begin_and_end() {
    let mut guard = guard(&two_endpoints());
    let paused = AgentControl {
        pause: Some(Pause {
            until: Some(store_time(1_000)),
            reason: None,
            by: "operator:ann".to_owned(),
            since: store_time(0),
        }),
        ..AgentControl::default()
    };
    assert_eq!(read(&mut guard, 1, paused).is_paused, Some(true));
    assert_eq!(guard.look(store_time(999), at(0)).is_paused, None);
    assert_eq!(guard.look(store_time(1_000), at(0)).is_paused, Some(false));
    // Until the record has the throttle, this process ends its own.
    let wait = Span::from_secs(2).duration();
    let changes = guard.throttle(wait, "429", at(0));
    assert_eq!(
        (changes.is_throttled, changes.reports.len()),
        (Some(true), 1)
    );
    assert_eq!(free(&mut guard), 0);
    assert_eq!(
        guard.throttle(wait, "429", at(0)),
        GuardChanges::default(),
        "it is no later"
    );
    let is_throttled = |changes: GuardChanges| changes.is_throttled;
    assert_eq!(is_throttled(guard.look(store_time(1_000), at(1_999))), None);
    let ended = guard.look(store_time(1_000), at(2_000));
    assert_eq!(is_throttled(ended), Some(false));
    assert_eq!(free(&mut guard), 8);
}
