use super::*;
use crate::agent::queue::gate::Wants;
use crate::domain::agent::{AgentControl, Breaker, BreakerState};

const A: &str = "http://a";
const B: &str = "http://b";
const NOW: Timestamp = Timestamp::from_millis(0);

/// Two endpoints with four calls each, whose breakers open at the second failure.
fn guard() -> (Guard, Arc<Bulkhead>, Arc<Reports>) {
    let spec: AgentSpec = serde_json::from_str(
        r#"{ "breaker": { "min_calls": 2 }, "endpoints": [
            { "url": "http://a", "max_in_flight": 4 }, { "url": "http://b", "max_in_flight": 4 }] }"#,
    )
    .unwrap();
    let agent = AgentName::new("payments");
    let bulkhead = Arc::new(Bulkhead::new(
        agent.clone(),
        8,
        Arc::default(),
        Wants::default(),
        meters::CallMetrics::new("payments").in_flight,
    ));
    let reports = Arc::new(Reports::default());
    let instance = InstanceId::new("one");
    let guard = Guard::new(agent, instance, bulkhead.clone(), reports.clone());
    guard.configure(&spec);
    (guard, bulkhead, reports)
}

fn call<'a>(guard: &'a Guard, url: &'a str) -> WatchedCall<'a> {
    guard.begin(url, Instant::now()).unwrap()
}

fn trip(guard: &Guard, url: &str) {
    for _ in 0..2 {
        call(guard, url).ended(Err("503"), LoadSample::Unclear);
    }
}

fn record(version: u64, open: &[&str]) -> ControlRecord {
    let breaker = Breaker {
        state: BreakerState::Open { until: NOW },
        reason: "2 of 2 calls failed".to_owned(),
        by: "one".to_owned(),
        since: NOW,
    };
    let open = open.iter();
    let control = AgentControl {
        breakers: open
            .map(|url| ((*url).to_owned(), breaker.clone()))
            .collect(),
        ..AgentControl::default()
    };
    ControlRecord { version, control }
}

/// Returns the guard of one endpoint with `max_in_flight` 9, whose adaptive limit has grown to `limit`.
fn adapted(limit: u32) -> (Guard, Arc<Bulkhead>) {
    let (guard, bulkhead, _) = guard();
    let spec: AgentSpec = serde_json::from_str(
        r#"{ "adaptive": { "least": 1 }, "breaker": { "canaries": 2, "min_calls": 9, "window": "1s" },
            "endpoints": [{ "url": "http://a", "max_in_flight": 9 }] }"#,
    )
    .unwrap();
    guard.configure(&spec);
    while bulkhead.free() < limit as usize {
        load(&guard, &bulkhead, 1, LoadSample::Served);
    }
    (guard, bulkhead)
}

/// Makes `calls` calls, one after the other, while every slot is taken.
fn load(guard: &Guard, bulkhead: &Arc<Bulkhead>, calls: u32, sample: LoadSample<'_>) {
    for _ in 0..calls {
        let slots: Vec<_> = std::iter::from_fn(|| bulkhead.try_take()).collect();
        call(guard, A).ended(Ok(()), sample);
        drop(slots);
    }
}

const REFUSED: LoadSample<'static> = LoadSample::Refused("503");

#[test]
fn a_limit_adapts_between_the_least_and_the_most_and_says_so() {
    let (guard, bulkhead) = adapted(1);
    assert_eq!(bulkhead.free(), 1, "it begins with the least");
    let limited = guard.adapted_limit().unwrap();
    assert_eq!((limited.limit, limited.most, limited.message), (1, 9, None));
    load(&guard, &bulkhead, 300, LoadSample::Served);
    assert_eq!(bulkhead.free(), 9);
    assert_eq!(guard.adapted_limit(), None, "nothing keeps calls from it");
    load(&guard, &bulkhead, 2, REFUSED);
    assert_eq!(bulkhead.free(), 6);
    let why = guard.adapted_limit().unwrap().message.unwrap();
    assert!(why.starts_with("fell from 9 to 6: "), "{why}");
    // Not used, it does not grow.
    for _ in 0..100 {
        call(&guard, A).ended(Ok(()), LoadSample::Served);
    }
    assert_eq!(bulkhead.free(), 6);
    let known = state_spec(&guard);
    guard.configure(&AgentSpec {
        adaptive: None,
        ..known
    });
    assert_eq!(bulkhead.free(), 9);
}

fn state_spec(guard: &Guard) -> AgentSpec {
    guard.state.lock().machine.spec().clone()
}

#[test]
fn of_a_slow_start_canaries_and_an_adapted_limit_the_lowest_holds() {
    let (guard, bulkhead) = adapted(9);
    load(&guard, &bulkhead, 4, REFUSED);
    assert_eq!(bulkhead.free(), 4);
    guard.take(record(1, &[A]), NOW, RecordSource::Read);
    assert_eq!(bulkhead.free(), 0, "its breaker is open");
    guard.take(record(2, &[]), NOW, RecordSource::Read);
    let mut most = vec![bulkhead.free()];
    for _ in 0..4 {
        call(&guard, A).ended(Ok(()), LoadSample::Unclear);
        most.push(bulkhead.free());
    }
    assert_eq!(most, [2, 3, 4, 4, 4]);
    // One call that hangs does not keep the only canary of a limit of one from beginning.
    let (guard, bulkhead) = adapted(1);
    let hanging = (bulkhead.try_take(), call(&guard, A));
    guard.take(record(1, &[A]), NOW, RecordSource::Read);
    let mut probed = record(2, &[A]);
    let breaker = probed.control.breakers.get_mut(A).unwrap();
    breaker.state = BreakerState::HalfOpen {
        prober: InstanceId::new("one"),
        until: NOW,
    };
    guard.take(probed, NOW, RecordSource::Read);
    assert_eq!(bulkhead.free(), 1);
    drop(hanging);
}

#[test]
fn calls_under_way_to_an_open_endpoint_take_no_slot_from_the_others() {
    let (guard, bulkhead, _) = guard();
    let slots: Vec<_> = (0..4).filter_map(|_| bulkhead.try_take()).collect();
    let hanging: Vec<_> = (0..4).map(|_| call(&guard, A)).collect();
    trip(&guard, A);
    assert_eq!(bulkhead.free(), 4);
    for (slot, call) in slots.into_iter().zip(hanging) {
        drop(call);
        drop(slot);
        assert_eq!(bulkhead.free(), 4);
    }
    let hanging = call(&guard, A);
    trip(&guard, B);
    assert_eq!(bulkhead.free(), 0);
    assert!(!bulkhead.is_open(), "no call may begin");
    drop(hanging);
}

#[test]
fn a_report_counts_until_its_endpoint_has_another_breaker() {
    let (guard, bulkhead, reports) = guard();
    trip(&guard, A);
    trip(&guard, B);
    let [of_a, of_b] = reports.take().try_into().unwrap();
    assert_eq!(guard.counts_for(&of_a), Some(0));
    guard.take(record(1, &[A]), NOW, RecordSource::Report(A));
    assert_eq!(guard.counts_for(&of_a), None);
    assert_eq!(guard.counts_for(&of_b), Some(1), "the change is another's");
    assert!(!bulkhead.is_open());
    // Another instance has opened it, and an operator has closed it since.
    guard.take(record(2, &[A, B]), NOW, RecordSource::Read);
    assert_eq!(guard.counts_for(&of_b), None);
    guard.take(record(3, &[]), NOW, RecordSource::Read);
    assert_eq!(bulkhead.free(), 6, "both start slowly");
    // A breaker that has opened here closes if the record does not have it open after the report, even if the guard got
    // a later record first.
    trip(&guard, A);
    guard.take(record(5, &[]), NOW, RecordSource::Read);
    assert!(guard.counts_for(&reports.take()[0]).is_some());
    guard.take(record(4, &[A]), NOW, RecordSource::Report(A));
    assert_eq!(bulkhead.free(), 6);
}

#[test]
fn an_endpoint_that_has_recovered_gets_more_calls_while_they_succeed() {
    let (guard, bulkhead, _) = guard();
    let spec: AgentSpec = serde_json::from_str(
        r#"{ "breaker": { "canaries": 2, "min_calls": 9 }, "endpoints": [{ "url": "http://a", "max_in_flight": 9 }] }"#,
    )
    .unwrap();
    guard.configure(&spec);
    assert_eq!(bulkhead.free(), 9);
    guard.take(record(1, &[A]), NOW, RecordSource::Read);
    guard.take(record(2, &[]), NOW, RecordSource::Read);
    let mut most = vec![bulkhead.free()];
    for result in [Ok(()), Ok(()), Ok(()), Err("503"), Ok(())] {
        call(&guard, A).ended(result, LoadSample::Unclear);
        most.push(bulkhead.free());
    }
    assert_eq!(most, [2, 3, 4, 5, 2, 3]);
    for _ in 0..6 {
        call(&guard, A).ended(Ok(()), LoadSample::Served);
    }
    assert_eq!(bulkhead.free(), 9);
    call(&guard, A).ended(Err("503"), LoadSample::Unclear);
    assert_eq!(bulkhead.free(), 9, "it has started");
}

#[test]
fn a_call_that_hangs_takes_no_slot_from_those_that_begin_slowly() {
    let (guard, bulkhead, _) = guard();
    let spec: AgentSpec = serde_json::from_str(
        r#"{ "breaker": { "canaries": 1, "min_calls": 9 }, "endpoints": [{ "url": "http://a", "max_in_flight": 9 }] }"#,
    )
    .unwrap();
    guard.configure(&spec);
    let slot = bulkhead.try_take();
    let hanging = call(&guard, A);
    guard.take(record(1, &[A]), NOW, RecordSource::Read);
    guard.take(record(2, &[]), NOW, RecordSource::Read);
    assert_eq!(bulkhead.free(), 1);
    drop(hanging);
    assert_eq!(bulkhead.free(), 0, "it has ended, but its slot is taken");
    drop(slot);
    assert_eq!(bulkhead.free(), 1);
}
