//! Pauses and breakers of agents.

use std::time::Duration;

use uuid::Uuid;

use super::harness::Harness;
use crate::{
    domain::{
        agent::{AgentSpec, BreakerAction, ControlChange, Observation},
        queue::{SlotNeed, SlotShares},
        values::{
            AgentName, DeadHolders, Holder, Incarnation, InstanceId, Precondition, RateLimitSpec,
            Renewal, Span,
        },
    },
    store::{ControlRecord, ControlRequest, ControlResponse, query::AlertQuery},
};

const URL: &str = "http://payments";

fn spec() -> AgentSpec {
    serde_json::from_str(r#"{"endpoints": [{"url": "http://payments"}], "breaker": {}}"#).unwrap()
}

fn saw(seen: Option<u64>, observation: Observation) -> ControlRequest {
    ControlRequest {
        agent: AgentName::new("payments"),
        spec: spec(),
        change: ControlChange::Endpoint {
            url: URL.to_owned(),
            seen: observation,
        },
        seen,
        operator: None,
        instance: InstanceId::new("one"),
    }
}

fn operated(action: BreakerAction) -> ControlRequest {
    ControlRequest {
        change: ControlChange::Breakers {
            endpoints: vec![URL.to_owned()],
            action,
            reason: None,
        },
        operator: Some("ann".to_owned()),
        ..saw(None, Observation::Due)
    }
}

fn tripped() -> Observation {
    Observation::Tripped {
        reason: "20 of 20 calls in 30s failed".to_owned(),
    }
}

async fn change(h: &Harness, request: ControlRequest) -> ControlResponse {
    h.store.change_control(request).await.unwrap()
}

async fn saved(h: &Harness) -> ControlRecord {
    let controls = h.store.reader.agent_controls().await.unwrap();
    let mut of_agent = controls.into_iter();
    let (agent, record) = of_agent.next().unwrap();
    assert_eq!(agent.as_str(), "payments");
    assert!(of_agent.next().is_none());
    record
}

pub async fn what_an_instance_saw_counts_for_the_record_that_it_knew(h: Harness) {
    assert!(h.store.reader.agent_controls().await.unwrap().is_empty());
    let opened = change(&h, saw(Some(0), tripped())).await;
    assert!(opened.is_changed);
    assert_eq!(opened.record, saved(&h).await);
    // Another instance observed the same, with the same or an older control.
    let again = change(&h, saw(Some(1), tripped())).await;
    assert!(!again.is_changed);
    assert_eq!(again.record, opened.record);
    let reset = change(&h, operated(BreakerAction::Reset)).await;
    assert!(reset.is_changed && reset.record.control.is_empty());
    for seen in [0, 1] {
        let late = change(&h, saw(Some(seen), tripped())).await;
        assert!(!late.is_changed);
        assert_eq!(late.record, reset.record);
    }
    let current = change(&h, saw(Some(reset.record.version), tripped())).await;
    assert!(current.is_changed);
    assert_eq!(saved(&h).await.version, 3);
}

pub async fn one_alert_is_open_while_a_breaker_is(h: Harness) {
    let open = async || {
        let all = AlertQuery {
            state: None,
            task: None,
            part_of: None,
            cause: None,
            id: None,
            before: None,
            limit: 100,
        };
        let alerts = h.store.reader.alerts(&all).await.unwrap();
        let open = alerts.iter().filter(|alert| alert.closed_at.is_none());
        (alerts.len(), open.count())
    };
    change(&h, saw(None, tripped())).await;
    change(&h, operated(BreakerAction::Open)).await;
    assert_eq!(open().await, (1, 1));
    change(&h, operated(BreakerAction::Close)).await;
    assert_eq!(open().await, (1, 0));
    change(&h, operated(BreakerAction::Open)).await;
    assert_eq!(open().await, (2, 1));
    // If the agent no longer had the endpoint's breaker, no operator could close it.
    let unprotected = AgentSpec {
        breaker: None,
        ..spec()
    };
    let put = |spec| {
        h.store
            .put_agent(AgentName::new("payments"), spec, Precondition::default())
    };
    put(spec()).await.unwrap();
    assert_eq!(open().await, (2, 1));
    put(unprotected).await.unwrap();
    assert_eq!(open().await, (2, 0));
    assert!(saved(&h).await.control.is_empty());
    change(&h, operated(BreakerAction::Open)).await;
    assert_eq!(open().await, (3, 1));
    // The control of an agent is deleted with the agent.
    let agent = AgentName::new("payments");
    let any = Precondition::default();
    h.store
        .put_agent(agent.clone(), spec(), any.clone())
        .await
        .unwrap();
    assert!(h.store.delete_agent(agent, any, true).await.unwrap());
    assert_eq!(open().await, (3, 0));
    assert!(saved(&h).await.control.is_empty());
}

pub async fn instances_share_the_bucket_of_a_rate(h: Harness) {
    let limit = |json: &str| -> RateLimitSpec { serde_json::from_str(json).unwrap() };
    let grant = async |limit: RateLimitSpec| {
        let wanted = vec![(AgentName::new("payments"), limit)];
        h.store.grant_calls(wanted).await.unwrap()[0].1
    };
    let slow = grant(limit(r#"{"rate": "1/h", "burst": 5}"#)).await;
    assert_eq!(slow.calls, 0, "it begins empty");
    assert!(slow.next_in > Duration::from_secs(3000), "{slow:?}");
    // A faster rate is not delayed by the debt of the slow one.
    let fast = limit(r#"{"rate": "1000/s", "burst": 5}"#);
    let mut granted = grant(fast.clone()).await;
    assert!(granted.calls <= 5);
    let mut asked = 0;
    while granted.calls == 0 {
        assert!(asked < 10_000, "it never fills: {granted:?}");
        asked += 1;
        granted = grant(fast.clone()).await;
    }
}

pub async fn instances_share_the_slots_of_an_agent(h: Harness) {
    let payments = AgentName::new("payments");
    let need = |in_use, wants| {
        let max = 4;
        SlotNeed { in_use, wants, max }
    };
    let settle = async |by: &Holder, need: SlotNeed| {
        let needs = vec![(AgentName::new("payments"), need)];
        h.store.grant_slots(by.clone(), needs).await.unwrap()[0].1
    };
    let holder = |name: &str| Holder {
        instance: InstanceId::new(name),
        incarnation: Incarnation(Uuid::now_v7()),
    };
    let (one, two) = (holder("one"), holder("two"));
    assert_eq!(settle(&one, need(0, 4)).await.slots, 0, "it has no lease");
    for by in [&one, &two] {
        let renewal = Renewal {
            holder: by.clone(),
            version: "1".to_owned(),
            process: "of a test".to_owned(),
            length: Span::from_secs(60),
            known_dead: DeadHolders::None,
            supervise: false,
        };
        h.store.renew(renewal).await.unwrap().outcome.unwrap();
    }
    assert_eq!(settle(&one, need(0, 4)).await.slots, 4);
    let waits = settle(&two, need(0, 4)).await;
    assert_eq!((waits.slots, waits.is_short), (0, true));
    assert_eq!(settle(&one, need(1, 4)).await.slots, 2);
    assert_eq!(settle(&two, need(0, 4)).await.slots, 2);
    let known = h.store.reader.slot_shares().await.unwrap();
    let (agent, shares) = &known.by_agent[0];
    assert_eq!(*agent, payments);
    let held: Vec<_> = shares
        .held()
        .map(|(by, slots)| (by.as_str(), slots))
        .collect();
    assert_eq!(held, [("one", 2), ("two", 2)]);
    assert!(known.live.contains(&one) && known.live.contains(&two));
    h.store.give_up(one.clone()).await.unwrap();
    assert_eq!(settle(&two, need(2, 4)).await.slots, 4);
    let shares = h.store.reader.slots_of(&payments).await.unwrap();
    assert_eq!(
        (
            shares.slots_of(&one.instance),
            shares.slots_of(&two.instance)
        ),
        (0, 4)
    );
    // The shares of an agent are deleted with the agent.
    let any = Precondition::default();
    let put = h.store.put_agent(payments.clone(), spec(), any.clone());
    put.await.unwrap();
    assert!(
        h.store
            .delete_agent(payments.clone(), any, true)
            .await
            .unwrap()
    );
    let shares = h.store.reader.slots_of(&payments).await.unwrap();
    assert_eq!(shares, SlotShares::default());
}
