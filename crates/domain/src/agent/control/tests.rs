use super::*;
use crate::agent::{breaker::BreakerSpec, endpoint_state::EndpointState};

const URL: &str = "http://payments";

fn spec() -> AgentSpec {
    let mut spec: AgentSpec =
        serde_json::from_str(r#"{"endpoints": [{"url": "http://payments"}]}"#).unwrap();
    spec.breaker = Some(BreakerSpec {
        open_for: Span::from_secs(60),
        ..BreakerSpec::default()
    });
    spec
}

struct Instance(InstanceId);

impl Instance {
    fn sees(&self, control: &mut AgentControl, at: i64, seen: Observation) -> bool {
        let url = URL.to_owned();
        self.does(control, at, None, ControlChange::Endpoint { url, seen })
    }

    fn does(
        &self,
        control: &mut AgentControl,
        at: i64,
        operator: Option<&str>,
        change: ControlChange,
    ) -> bool {
        let by = ControlledBy {
            instance: &self.0,
            operator,
            now: Timestamp::from_millis(at * 1000),
        };
        control.apply(&change, &spec(), by)
    }
}

fn tripped() -> Observation {
    Observation::Tripped {
        reason: "20 of 20 calls failed".to_owned(),
    }
}

fn relapsed() -> Observation {
    Observation::Relapsed {
        reason: "503".to_owned(),
    }
}

fn instances() -> (Instance, Instance) {
    (
        Instance(InstanceId::new("one")),
        Instance(InstanceId::new("two")),
    )
}

#[test]
fn one_instance_opens_and_one_probes() {
    let (one, two) = instances();
    let mut control = AgentControl::default();
    assert!(one.sees(&mut control, 0, tripped()));
    assert_eq!(control.alerted(AlertKind::BreakerOpen).len(), 1);
    assert!(!two.sees(&mut control, 1, tripped()), "it is open");
    assert!(!two.sees(&mut control, 59, Observation::Due), "not yet");
    assert_eq!(
        control.due_probes(&spec(), Timestamp::from_millis(60_000)),
        [URL]
    );
    assert!(two.sees(&mut control, 60, Observation::Due));
    assert!(
        !one.sees(&mut control, 61, Observation::Due),
        "another probes"
    );
    assert!(!one.sees(&mut control, 62, Observation::Recovered));
    assert!(!one.sees(&mut control, 62, relapsed()));
    assert!(two.sees(&mut control, 63, Observation::Recovered));
    assert!(control.is_empty());
}

#[test]
fn a_relapse_opens_it_for_as_long_again() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    one.sees(&mut control, 0, tripped());
    one.sees(&mut control, 60, Observation::Due);
    assert!(one.sees(&mut control, 70, relapsed()));
    let until = Timestamp::from_millis(130_000);
    assert_eq!(control.next_due(Timestamp::from_millis(0)), Some(until));
    assert_eq!(control.breakers[URL].reason, "503");
}

#[test]
fn another_takes_over_from_an_instance_that_is_silent() {
    let (one, two) = instances();
    let mut control = AgentControl::default();
    one.sees(&mut control, 0, tripped());
    one.sees(&mut control, 60, Observation::Due);
    assert!(!two.sees(&mut control, 121, Observation::Due));
    assert!(one.sees(&mut control, 120, Observation::Due), "it lives");
    assert!(!two.sees(&mut control, 181, Observation::Due));
    assert!(two.sees(&mut control, 182, Observation::Due));
    assert!(!one.sees(&mut control, 183, relapsed()), "it is late");
    assert!(!one.sees(&mut control, 183, Observation::Recovered));
    assert!(two.sees(&mut control, 184, Observation::Recovered));
}

#[test]
fn what_an_operator_decides_stands_until_it_is_reset() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    let operate = |control: &mut AgentControl, action| {
        let change = ControlChange::Breakers {
            endpoints: vec![URL.to_owned()],
            action,
            reason: None,
        };
        one.does(control, 5, Some("ann"), change)
    };
    assert!(operate(&mut control, BreakerAction::Open));
    assert_eq!(control.breakers[URL].by, "operator:ann");
    let seen = [
        tripped(),
        Observation::Due,
        Observation::Recovered,
        relapsed(),
    ];
    for seen in seen.clone() {
        assert!(!one.sees(&mut control, 9_999, seen));
    }
    assert!(operate(&mut control, BreakerAction::Close));
    assert!(control.alerted(AlertKind::BreakerOpen).is_empty());
    for seen in seen {
        assert!(!one.sees(&mut control, 9_999, seen));
    }
    assert!(operate(&mut control, BreakerAction::Reset));
    assert!(!operate(&mut control, BreakerAction::Reset));
    assert!(one.sees(&mut control, 9_999, tripped()));
}

#[test]
fn a_pause_ends_by_itself_or_by_an_operator() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    let until = Timestamp::from_millis(10_000);
    let pause = ControlChange::Pause {
        until: Some(until),
        reason: Some("maintenance".to_owned()),
    };
    assert!(one.does(&mut control, 1, Some("ann"), pause));
    let pause = control.pause.clone().unwrap();
    assert!(pause.holds_at(Timestamp::from_millis(9_999)));
    assert!(!pause.holds_at(until));
    assert_eq!(control.next_due(Timestamp::from_millis(0)), Some(until));
    assert_eq!(control.next_due(until), None);
    assert!(one.does(&mut control, 2, Some("ann"), ControlChange::Resume));
    assert!(!one.does(&mut control, 2, Some("ann"), ControlChange::Resume));
}

#[test]
fn a_service_that_asks_for_it_is_left_alone_for_the_longest_time_it_named() {
    let (one, two) = instances();
    let mut control = AgentControl::default();
    let asked = |seconds| ControlChange::Throttle {
        wait: Span::from_secs(seconds),
        reason: "429".to_owned(),
    };
    assert!(
        !one.does(&mut control, 0, None, asked(10)),
        "it has no limit"
    );
    let limited = AgentSpec {
        rate_limit: serde_json::from_str(r#"{"rate": "5/s"}"#).unwrap(),
        ..spec()
    };
    let mut does = |instance: &Instance, at: i64, seconds| {
        let by = ControlledBy {
            instance: &instance.0,
            operator: None,
            now: Timestamp::from_millis(at * 1000),
        };
        control.apply(&asked(seconds), &limited, by);
        control
            .throttle
            .as_ref()
            .map(|throttle| throttle.until.as_millis() / 1000)
    };
    assert_eq!(does(&one, 0, 10), Some(10));
    assert_eq!(does(&two, 1, 5), Some(10));
    assert_eq!(does(&two, 2, 20), Some(22));
    assert_eq!(does(&one, 3, 86_400), Some(303));
    assert_eq!(
        control.next_due(Timestamp::from_millis(0)),
        Some(Timestamp::from_millis(303_000))
    );
    assert_eq!(control.next_due(Timestamp::from_millis(303_000)), None);
    assert!(
        control.alerted(AlertKind::BreakerOpen).is_empty(),
        "no operator is needed"
    );
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    let json = serde_json::to_string(&control).unwrap();
    assert_eq!(json, "{}");
    one.sees(&mut control, 0, tripped());
    one.sees(&mut control, 60, Observation::Due);
    let pause = ControlChange::Pause {
        until: None,
        reason: None,
    };
    one.does(&mut control, 61, Some("ann"), pause);
    let json = serde_json::to_string(&control).unwrap();
    assert_eq!(
        serde_json::from_str::<AgentControl>(&json).unwrap(),
        control
    );
}

#[test]
fn what_the_agent_does_not_have_any_more_is_forgotten() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    one.sees(&mut control, 0, tripped());
    assert!(!control.has_strangers(&spec()));
    assert!(!one.does(&mut control, 1, None, ControlChange::Respecified));
    let unprotected = AgentSpec {
        breaker: None,
        ..spec()
    };
    let mut elsewhere = spec();
    elsewhere.endpoints[0].url = "http://elsewhere".to_owned();
    let later = Timestamp::from_millis(60_000);
    assert!(control.due_probes(&elsewhere, later).is_empty());
    for other in [unprotected, elsewhere] {
        let mut control = control.clone();
        assert!(control.has_strangers(&other));
        let by = ControlledBy {
            instance: &one.0,
            operator: None,
            now: later,
        };
        assert!(control.apply(&ControlChange::Respecified, &other, by));
        assert!(control.is_empty());
    }
}

#[test]
fn breakers_of_endpoints_that_are_gone_are_bounded() {
    let (one, _) = instances();
    let mut control = AgentControl::default();
    for number in 0..200 {
        let change = ControlChange::Breakers {
            endpoints: vec![format!("http://old-{number}"), URL.to_owned()],
            action: BreakerAction::Open,
            reason: None,
        };
        one.does(&mut control, number, Some("ann"), change);
        assert!(control.breakers.len() <= MOST_ENDPOINTS + 1);
        assert!(control.breakers.contains_key(URL));
    }
}

/// Four endpoints, one of them with a breaker that is not closed.
#[test]
fn endpoints_that_fail_in_a_row_are_ejected_while_half_of_them_stay() {
    let (one, two) = instances();
    let spec: AgentSpec = serde_json::from_str(
        r#"{"endpoints": [{"url": "http://a"}, {"url": "http://b"}, {"url": "http://c"}, {"url": "http://d"}],
            "breaker": {}, "ejection": {}}"#,
    )
    .unwrap();
    let mut control = AgentControl::default();
    let mut does = |instance: &Instance, at: i64, url: &str, seen: Option<Observation>| {
        let url = url.to_owned();
        let change = match seen {
            Some(seen) => ControlChange::Endpoint { url, seen },
            None => ControlChange::Breakers {
                endpoints: vec![url],
                action: BreakerAction::Reset,
                reason: None,
            },
        };
        let by = ControlledBy {
            instance: &instance.0,
            operator: None,
            now: Timestamp::from_millis(at * 1000),
        };
        let is_changed = control.apply(&change, &spec, by);
        (is_changed, control.clone())
    };
    let failing = || {
        let reason = "5 calls in a row failed".to_owned();
        Some(Observation::Failing { reason })
    };
    let (is_changed, ejected) = does(&one, 0, "http://a", failing());
    let breakers = ejected.alerted(AlertKind::BreakerOpen);
    assert!(is_changed && breakers.is_empty(), "no alert");
    let until = Timestamp::from_millis(10_000);
    assert_eq!(ejected.next_due(Timestamp::from_millis(0)), Some(until));
    assert_eq!(ejected.next_due(until), None);
    assert!(!does(&two, 1, "http://a", failing()).0, "it is ejected");
    assert!(!does(&two, 1, "http://elsewhere", failing()).0);
    assert!(does(&two, 2, "http://b", Some(tripped())).0);
    assert!(!does(&one, 3, "http://c", failing()).0, "two are out");
    assert!(!does(&one, 10, "http://b", failing()).0, "it is open");
    let (_, ejected) = does(&one, 10, "http://c", failing());
    assert_eq!(
        ejected.ejections["http://c"].until,
        Timestamp::from_millis(20_000)
    );
    let (_, ejected) = does(&one, 20, "http://a", failing());
    let again = &ejected.ejections["http://a"];
    assert_eq!(
        (again.times, again.until),
        (1, Timestamp::from_millis(30_000))
    );
    let (_, ejected) = does(&one, 31, "http://a", failing());
    let again = &ejected.ejections["http://a"];
    assert_eq!(
        (again.times, again.until),
        (2, Timestamp::from_millis(51_000))
    );
    assert_eq!(ejected.ejections.len(), 1, "the other was long ago");
    let json = serde_json::to_string(&ejected).unwrap();
    assert_eq!(
        serde_json::from_str::<AgentControl>(&json).unwrap(),
        ejected
    );
    assert!(ejected.has_strangers(&AgentSpec {
        ejection: None,
        ..spec.clone()
    }));
    let (_, reset) = does(&one, 32, "http://a", None);
    assert!(reset.ejections.is_empty());
}

#[test]
fn an_operator_who_closes_a_breaker_wants_calls_whatever_fails() {
    let mut control = AgentControl::default();
    let (one, _) = instances();
    let spec: AgentSpec = serde_json::from_str(
        r#"{"endpoints": [{"url": "http://a"}, {"url": "http://b"}], "breaker": {}, "ejection": {}}"#,
    )
    .unwrap();
    let by = ControlledBy {
        instance: &one.0,
        operator: None,
        now: Timestamp::from_millis(0),
    };
    let eject = ControlChange::Endpoint {
        url: "http://a".to_owned(),
        seen: Observation::Failing {
            reason: "503".to_owned(),
        },
    };
    assert!(control.apply(&eject, &spec, by));
    assert!(
        !control
            .endpoint_state(&spec.endpoints[0], &spec, by.now)
            .is_healthy()
    );
    let close = ControlChange::Breakers {
        endpoints: vec!["http://a".to_owned()],
        action: BreakerAction::Close,
        reason: None,
    };
    assert!(control.apply(&close, &spec, by));
    assert!(
        control
            .endpoint_state(&spec.endpoints[0], &spec, by.now)
            .is_healthy()
    );
    assert!(!control.apply(&eject, &spec, by));
}

#[test]
fn checks_take_an_endpoint_out_and_bring_it_back() {
    let (one, two) = instances();
    let mut spec = spec();
    spec.health = serde_json::from_str(r#"{"path": "/health"}"#).unwrap();
    let mut control = AgentControl::default();
    let does = |control: &mut AgentControl, instance: &Instance, spec: &AgentSpec, at, change| {
        let by = ControlledBy {
            instance: &instance.0,
            operator: None,
            now: Timestamp::from_millis(at),
        };
        control.apply(&change, spec, by)
    };
    let checked = |url: &str, result: Result<(), &str>| ControlChange::Checked {
        url: url.to_owned(),
        result: result.map_err(str::to_owned),
    };
    let failed = || checked(URL, Err("no response within 2s"));
    assert!(does(&mut control, &one, &spec, 5, failed()));
    assert!(!does(&mut control, &two, &spec, 6, failed()), "it is known");
    assert!(!does(
        &mut control,
        &two,
        &spec,
        6,
        checked("http://gone", Err("503"))
    ));
    assert!(control.alerted(AlertKind::BreakerOpen).is_empty());
    assert_eq!(control.alerted(AlertKind::EndpointUnhealthy).len(), 1);
    let state = |control: &AgentControl| {
        control.endpoint_state(&spec.endpoints[0], &spec, Timestamp::from_millis(7))
    };
    let EndpointState::Unhealthy(unhealthy) = state(&control) else {
        panic!("{control:?}");
    };
    assert_eq!((&*unhealthy.by, unhealthy.since.as_millis()), ("one", 5));
    assert_eq!(control.next_due(Timestamp::from_millis(7)), None);
    // Its breaker is not probed before it is well.
    let trip = ControlChange::Endpoint {
        url: URL.to_owned(),
        seen: tripped(),
    };
    assert!(does(&mut control, &one, &spec, 7, trip));
    let later = Timestamp::from_millis(600_000);
    assert_eq!(control.next_due(later), None);
    assert!(control.due_probes(&spec, later).is_empty());
    let json = serde_json::to_string(&control).unwrap();
    assert_eq!(
        serde_json::from_str::<AgentControl>(&json).unwrap(),
        control
    );
    let unchecked = AgentSpec {
        health: None,
        ..spec.clone()
    };
    assert!(control.has_strangers(&unchecked));
    assert!(!does(
        &mut AgentControl::default(),
        &one,
        &unchecked,
        8,
        failed()
    ));
    assert!(does(&mut control, &two, &spec, 8, checked(URL, Ok(()))));
    assert!(state(&control).is_healthy());
    assert_eq!(control.due_probes(&spec, later), [URL]);
}

#[test]
fn the_longer_of_pause_and_downtime_holds_and_resume_ends_both() {
    let (one, _) = instances();
    let mut spec = spec();
    // The first hour of every day.
    let daily = r#"{"cron": "0 0 * * *", "for": "1h", "reason": "backup"}"#;
    spec.downtime = vec![serde_json::from_str(daily).unwrap()];
    let downtimes = Downtimes::new(&spec.downtime);
    let minutes = |minutes: i64| Timestamp::from_millis(minutes * 60_000);
    let mut control = AgentControl::default();
    let paused = |control: &AgentControl, now: i64| {
        let window = downtimes.holds_at(minutes(now));
        let pause = control.pause_at(window.as_ref(), minutes(now))?;
        Some((pause.by, pause.until))
    };
    let does = |control: &mut AgentControl, at: i64, change: ControlChange| {
        let by = ControlledBy {
            instance: &one.0,
            operator: Some("ann"),
            now: minutes(at),
        };
        control.apply(&change, &spec, by);
    };
    let window = Some(("downtime".to_owned(), Some(minutes(60))));
    assert_eq!(paused(&control, 10), window);
    assert_eq!(paused(&control, 60), None);
    let pause = |until: Option<i64>| ControlChange::Pause {
        until: until.map(minutes),
        reason: None,
    };
    does(&mut control, 10, pause(Some(30)));
    assert_eq!(paused(&control, 10), window);
    does(&mut control, 10, pause(Some(90)));
    let longer = Some(("operator:ann".to_owned(), Some(minutes(90))));
    assert_eq!(paused(&control, 10), longer);
    does(&mut control, 10, pause(None));
    assert_eq!(paused(&control, 10).unwrap().1, None);
    does(&mut control, 11, ControlChange::Resume);
    assert_eq!(paused(&control, 11), None);
    assert_eq!(paused(&control, 59), None);
    assert!(paused(&control, 24 * 60).is_some(), "the next window holds");
    let without = AgentSpec {
        downtime: Vec::new(),
        ..spec.clone()
    };
    assert!(control.has_strangers(&without));
    does(&mut control, 100, ControlChange::Resume);
    assert!(control.is_empty());
}

#[test]
fn the_alert_of_breakers_names_the_endpoints_that_are_open_and_grows_with_them() {
    let (one, _) = instances();
    let open = |control: &AgentControl, url: &str, reason: &str| {
        let mut control = control.clone();
        let state = BreakerState::Open {
            until: Timestamp::from_millis(9),
        };
        let by = ControlledBy {
            instance: &one.0,
            operator: None,
            now: Timestamp::from_millis(1),
        };
        control
            .breakers
            .insert(url.to_owned(), by.breaker(state, reason.to_owned()));
        control
    };
    let kind = AlertKind::BreakerOpen;
    let none = AgentControl::default();
    let first = open(&none, "http://a", "503");
    let again = open(&first, "http://a", "still 503");
    let both = open(&again, "http://b", "500");
    assert_eq!(none.alert_change(&none, kind), None);
    assert_eq!(
        first.alert_change(&none, kind),
        Some(ControlAlertChange::Raise)
    );
    assert_eq!(
        again.alert_change(&first, kind),
        None,
        "one look brings no other"
    );
    let grown = ControlAlertChange::Reword { has_grown: true };
    assert_eq!(both.alert_change(&again, kind), Some(grown));
    let fewer = ControlAlertChange::Reword { has_grown: false };
    assert_eq!(first.alert_change(&both, kind), Some(fewer));
    assert_eq!(
        none.alert_change(&both, kind),
        Some(ControlAlertChange::Close)
    );
    assert_eq!(both.alert_change(&none, AlertKind::EndpointUnhealthy), None);
    let at = Timestamp::from_millis(1);
    let alert = control_alert(kind, Uuid::nil(), &AgentName::new("pay"), &both, 3, at);
    let message = "agent pay: the breakers are open at 2 of 3 endpoints, which get no steps: http://a (still 503), http://b (500)";
    assert_eq!(alert.message, message);
}
