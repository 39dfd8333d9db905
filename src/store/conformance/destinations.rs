//! Failing destinations and their backlogs.

use std::time::Duration;

use super::harness::{Harness, New};
use crate::{
    domain::{
        message::{
            DeliveryDecision, DeliveryPolicy, DestinationFailure, MessageAction, ReleaseReason,
        },
        task::ReplyTo,
        values::{Destination, InstanceId, ReceiverName, Span, Timestamp},
    },
    store::{
        AlertQuery, ClaimRequest, ClaimResponse, DueWork, MessageId, MessageQuery, MessageRecord,
        MessageState, QueueClaim, QueueHead, QueueRelease,
    },
};

const SHOP: &str = "http://shop:9000";
const LONG: Span = Span::from_secs(600);

fn at(path: &str) -> Destination {
    Destination::new(format!("{SHOP}{path}"))
}

async fn submit(h: &Harness, path: &str, count: usize) {
    for _ in 0..count {
        let messages = New {
            reply_to: Some(ReplyTo {
                url: Some(format!("{SHOP}{path}").into()),
                events: ["task.accepted"].map(Into::into).into(),
                ..ReplyTo::default()
            }),
            ..New::default()
        };
        h.submit(messages).await;
    }
}

async fn claim_queues(h: &Harness, by: &str, request: ClaimRequest) -> ClaimResponse {
    let by = InstanceId::new(by);
    h.store.claim_queues(request, by, LONG).await.unwrap()
}

async fn claim_due(h: &Harness, by: &str) -> ClaimResponse {
    let request = ClaimRequest {
        limit: 100,
        ..ClaimRequest::default()
    };
    claim_queues(h, by, request).await
}

async fn claim_from_backlog(h: &Harness, by: &str, path: &str, most: usize) -> Vec<QueueClaim> {
    let request = ClaimRequest {
        backlogs: vec![(at(path), most)],
        ..ClaimRequest::default()
    };
    claim_queues(h, by, request).await.claims
}

/// Waits until the pause is over.
async fn probe(h: &Harness, by: &str, path: &str) -> QueueClaim {
    loop {
        if let Some(claim) = claim_from_backlog(h, by, path, 10).await.pop() {
            assert!(claim.is_probe);
            return claim;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn now(h: &Harness) -> Timestamp {
    h.store.reader.now().await.unwrap()
}

async fn due_work(h: &Harness) -> DueWork {
    h.store.reader.due_work(10, false).await.unwrap()
}

async fn message(h: &Harness, claim: &QueueClaim) -> uuid::Uuid {
    let queue_heads = h
        .store
        .reader
        .next_messages(std::slice::from_ref(claim))
        .await;
    match queue_heads.unwrap().remove(0) {
        QueueHead::Message(head) => head.id,
        found => panic!("{found:?}"),
    }
}

fn failure(claim: &QueueClaim, began: Timestamp) -> DestinationFailure {
    DestinationFailure {
        destination: claim.destination.clone(),
        receiver: claim.receiver.clone(),
        began,
        retry_after: None,
        reason: "the receiver responded 503".to_owned(),
        chance: 1.0,
    }
}

/// An attempt that failed with its destination; its own next attempt is much later.
async fn failed(h: &Harness, claim: &QueueClaim) -> QueueRelease {
    let decision = DeliveryDecision::Retry {
        at: now(h).await + LONG,
        reason: "503".to_owned(),
        in_backlog: true,
    };
    QueueRelease {
        claim: claim.clone(),
        reason: ReleaseReason::Attempted {
            message: message(h, claim).await,
            decision,
            tried: None,
        },
    }
}

async fn fail(h: &Harness, by: &str, claim: &QueueClaim) -> ClaimResponse {
    let began = now(h).await;
    let request = ClaimRequest {
        releases: vec![failed(h, claim).await],
        failures: vec![failure(claim, began)],
        ..ClaimRequest::default()
    };
    claim_queues(h, by, request).await
}

fn not_attempted(claim: &QueueClaim) -> QueueRelease {
    QueueRelease {
        claim: claim.clone(),
        reason: ReleaseReason::NotAttempted,
    }
}

async fn delivered(h: &Harness, claim: &QueueClaim) -> QueueRelease {
    QueueRelease {
        claim: claim.clone(),
        reason: ReleaseReason::Attempted {
            message: message(h, claim).await,
            decision: DeliveryDecision::Delivered,
            tried: None,
        },
    }
}

/// Makes the destination fail: `count` messages wait for it, one of which was attempted and failed with it.
async fn failing(h: &Harness, path: &str, count: usize) {
    submit(h, path, count).await;
    let mut claim = claim_due(h, "a").await.claims;
    let first = claim.remove(0);
    fail(h, "a", &first).await;
    let request = ClaimRequest {
        releases: claim.iter().map(not_attempted).collect(),
        ..ClaimRequest::default()
    };
    claim_queues(h, "a", request).await;
    while due_work(h).await.is_due {
        let response = claim_due(h, "a").await;
        assert!(response.claims.is_empty(), "the destination fails");
    }
}

async fn of_shop(h: &Harness, state: MessageState) -> Vec<MessageRecord> {
    let query = MessageQuery {
        state: Some(state),
        receiver: Some(ReceiverName::new(SHOP)),
        limit: 1000,
        ..MessageQuery::default()
    };
    h.store.reader.messages(&query).await.unwrap()
}

async fn alerts(h: &Harness) -> usize {
    let query = AlertQuery {
        state: None,
        task: None,
        part_of: None,
        cause: None,
        id: None,
        before: None,
        limit: 10,
    };
    h.store.reader.alerts(&query).await.unwrap().len()
}

fn within(give_up_after: Span) -> DeliveryPolicy {
    DeliveryPolicy {
        give_up_after,
        ..DeliveryPolicy::default()
    }
}

pub async fn a_failing_destination_delays_no_other_of_its_receiver(h: Harness) {
    failing(&h, "/dead", 3).await;
    submit(&h, "/dead", 2).await;
    submit(&h, "/good", 2).await;
    let response = claim_due(&h, "a").await;
    assert_eq!(response.moved_to_backlog, 2, "those to the one that fails");
    let destinations: Vec<_> = response
        .claims
        .iter()
        .map(|claim| &claim.destination)
        .collect();
    assert_eq!(destinations, [&at("/good"); 2]);
    assert!(response.claims.iter().all(|claim| !claim.is_probe));
    // Queries for due queues do not find the backlog.
    let due = due_work(&h).await;
    assert!(!due.is_due && due.backlogged.is_empty(), "{due:?}");
    assert_eq!(of_shop(&h, MessageState::Pending).await.len(), 7);
}

pub async fn a_failing_destination_is_probed_by_one_message_of_all_instances(h: Harness) {
    failing(&h, "/dead", 4).await;
    let claim = probe(&h, "a", "/dead").await;
    assert!(claim_from_backlog(&h, "b", "/dead", 10).await.is_empty());
    assert!(due_work(&h).await.failing.is_empty());
    // The probe was not sent, so another instance may send one.
    let request = ClaimRequest {
        releases: vec![not_attempted(&claim)],
        cancelled_probes: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "a", request).await;
    assert_eq!(
        due_work(&h).await.failing,
        [(at("/dead"), ReceiverName::new(SHOP))]
    );
    probe(&h, "b", "/dead").await;
    // Nor is a probe lost with its instance.
    assert!(claim_from_backlog(&h, "a", "/dead", 1).await.is_empty());
    h.store
        .release_queues(Some(InstanceId::new("b")))
        .await
        .unwrap();
    let claim = probe(&h, "a", "/dead").await;
    // A message that was attempted comes after those that were not.
    fail(&h, "a", &claim).await;
    assert_eq!(
        claim_due(&h, "a").await.moved_to_backlog,
        2,
        "those that were handed back"
    );
    let next = probe(&h, "b", "/dead").await;
    assert_ne!(next.subject, claim.subject);
}

pub async fn the_first_delivered_message_ends_the_pause_for_all(h: Harness) {
    failing(&h, "/dead", 6).await;
    let claim = probe(&h, "a", "/dead").await;
    fail(&h, "a", &claim).await;
    let claim = probe(&h, "a", "/dead").await;
    let request = ClaimRequest {
        releases: vec![delivered(&h, &claim).await],
        recovered: vec![at("/dead")],
        backlogs: vec![(at("/dead"), 2)],
        ..ClaimRequest::default()
    };
    let response = claim_queues(&h, "a", request).await;
    assert_eq!(response.claims.len(), 2, "as many as it has slots for");
    assert!(response.claims.iter().all(|claim| !claim.is_probe));
    assert!(response.drained.is_empty());
    // The claims include messages whose next attempt is later, because they failed with the destination.
    let others = claim_from_backlog(&h, "b", "/dead", 10).await;
    assert_eq!(others.len(), 3);
    let due = due_work(&h).await;
    assert!(
        due.failing.is_empty() && due.backlogged.is_empty(),
        "{due:?}"
    );
    submit(&h, "/dead", 1).await;
    assert_eq!(claim_due(&h, "b").await.claims.len(), 1);
}

pub async fn an_earlier_failure_or_recovery_changes_nothing(h: Harness) {
    let long_ago = now(&h).await;
    failing(&h, "/dead", 6).await;
    let claim = probe(&h, "a", "/dead").await;
    let request = ClaimRequest {
        releases: vec![delivered(&h, &claim).await],
        recovered: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "a", request).await;
    // Another instance reports an attempt that took long.
    let late = ClaimRequest {
        failures: vec![failure(&claim, long_ago)],
        cancelled_probes: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "b", late).await;
    let response = claim_from_backlog(&h, "a", "/dead", 10).await;
    assert_eq!(response.len(), 5, "it answers");
    // A recovery changes nothing while no failure is recorded.
    let request = ClaimRequest {
        recovered: vec![at("/dead"), at("/never")],
        cancelled_probes: vec![at("/never")],
        postponed: vec![at("/never")],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "b", request).await;
    assert!(due_work(&h).await.failing.is_empty());
}

pub async fn expired_messages_become_dead_letters_in_batches_with_one_alert(h: Harness) {
    failing(&h, "/dead", 600).await;
    submit(&h, "/good", 1).await;
    let claim = probe(&h, "a", "/dead").await;
    let began = now(&h).await;
    let request = ClaimRequest {
        releases: vec![failed(&h, &claim).await],
        failures: vec![failure(&claim, began)],
        policy: within(Span::from_millis(0)),
        ..ClaimRequest::default()
    };
    let mut expiries = claim_queues(&h, "a", request).await.expiries;
    let mut rounds = 1;
    while expiries.iter().any(|expiries| expiries.has_more) {
        assert_eq!(expiries[0].messages, 200);
        let request = ClaimRequest {
            expiries: std::mem::take(&mut expiries),
            policy: within(Span::from_millis(0)),
            ..ClaimRequest::default()
        };
        expiries = claim_queues(&h, "a", request).await.expiries;
        rounds += 1;
    }
    assert_eq!(rounds, 4, "until nothing is left");
    let dead = of_shop(&h, MessageState::Dead).await;
    assert_eq!(dead.len(), 600);
    assert!(dead.iter().all(|letter| letter.died_at.is_some()));
    let tries: u32 = dead.iter().map(|letter| letter.tries).sum();
    assert_eq!(tries, 2, "those that were tried, each as often as it was");
    let error = dead[0].error.as_deref().unwrap();
    assert!(
        error.starts_with("the receiver responded 503; no message"),
        "{error}"
    );
    assert_eq!(alerts(&h).await, 1);
    // Their queues are deleted too. Messages to other destinations remain.
    while due_work(&h).await.failing.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(claim_from_backlog(&h, "a", "/dead", 1).await.is_empty());
    let due = due_work(&h).await;
    assert!(due.failing.is_empty() && due.is_due, "{due:?}");
    let response = claim_due(&h, "a").await.claims;
    assert!(
        response
            .iter()
            .any(|claim| claim.destination == at("/good"))
    );
}

pub async fn no_message_expires_before_its_time(h: Harness) {
    failing(&h, "/dead", 3).await;
    h.database
        .execute("UPDATE messages SET created_at = created_at - 400000")
        .await;
    h.database
        .execute("UPDATE queues SET waits_since = waits_since - 400000")
        .await;
    // The destination has not failed that long.
    let five_minutes = Span::from_secs(300);
    let fails = async |policy: DeliveryPolicy| {
        let claim = probe(&h, "a", "/dead").await;
        let began = now(&h).await;
        let request = ClaimRequest {
            releases: vec![failed(&h, &claim).await],
            failures: vec![failure(&claim, began)],
            policy,
            ..ClaimRequest::default()
        };
        claim_queues(&h, "a", request).await.expiries
    };
    assert_eq!(fails(within(five_minutes)).await, []);
    h.database
        .execute("UPDATE destinations SET failing_since = failing_since - 400000")
        .await;
    submit(&h, "/dead", 1).await;
    claim_due(&h, "a").await;
    let expiries = fails(within(five_minutes)).await;
    assert_eq!(expiries[0].messages, 3, "all but the new one");
    // A redelivered dead letter has its whole time again.
    let dead = of_shop(&h, MessageState::Dead).await;
    let ids: Vec<MessageId> = dead.iter().map(|letter| letter.id).collect();
    let requeued = h
        .store
        .apply_message_action(MessageAction::Redeliver, ids)
        .await;
    assert_eq!(requeued.unwrap().len(), 3);
    claim_due(&h, "a").await;
    assert_eq!(fails(within(five_minutes)).await, []);
    assert_eq!(of_shop(&h, MessageState::Pending).await.len(), 4);
}

pub async fn a_receiver_that_asks_for_time_gets_it_from_all_its_messages_unless_an_operator_asks(
    h: Harness,
) {
    submit(&h, "/busy", 1).await;
    let claim = claim_due(&h, "a").await.claims.remove(0);
    let began = now(&h).await;
    let request = ClaimRequest {
        releases: vec![failed(&h, &claim).await],
        failures: vec![DestinationFailure {
            retry_after: Some(LONG.duration()),
            ..failure(&claim, began)
        }],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "a", request).await;
    submit(&h, "/busy", 1).await;
    assert!(claim_due(&h, "b").await.claims.is_empty());
    assert!(claim_from_backlog(&h, "b", "/busy", 1).await.is_empty());
    let waiting = of_shop(&h, MessageState::Pending).await;
    let (new, old) = (&waiting[0], &waiting[1]);
    for message in [new, old] {
        assert!(message.next_try_at.unwrap() >= began + LONG, "{message:?}");
    }
    let expedited = h
        .store
        .apply_message_action(MessageAction::Redeliver, vec![old.id])
        .await;
    assert_eq!(expedited.unwrap(), [old.id]);
    let probed = probe(&h, "b", "/busy").await;
    assert_eq!(probed.subject, claim.subject, "the one that was asked for");
}

pub async fn a_message_that_becomes_due_for_an_idle_destination_is_tried(h: Harness) {
    submit(&h, "/dead", 1).await;
    let claim = claim_due(&h, "a").await.claims.remove(0);
    fail(&h, "a", &claim).await;
    // No queue in the backlog is due, so the destination is idle until one is.
    while due_work(&h).await.failing.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(claim_from_backlog(&h, "a", "/dead", 1).await.is_empty());
    let due = due_work(&h).await;
    assert!(due.failing.is_empty(), "{due:?}");
    assert!(due.next_at.unwrap() > now(&h).await + Span::from_secs(300));
    submit(&h, "/dead", 1).await;
    assert_eq!(claim_due(&h, "b").await.moved_to_backlog, 1);
    assert_ne!(probe(&h, "b", "/dead").await.subject, claim.subject);
}

pub async fn destinations_without_waiting_messages_are_purged(h: Harness) {
    failing(&h, "/dead", 1).await;
    failing(&h, "/waited-for", 2).await;
    let soon = now(&h).await + LONG;
    let purge = async |before| h.store.purge_destinations(before, 10).await.unwrap();
    assert_eq!(purge(soon).await, 0, "something waits for each");
    let ids = of_shop(&h, MessageState::Pending).await;
    let dead = ids.iter().find(|message| {
        let url = message.url.as_deref();
        url == Some(&*format!("{SHOP}/dead"))
    });
    let expedited = vec![dead.unwrap().id];
    h.store
        .apply_message_action(MessageAction::Redeliver, expedited)
        .await
        .unwrap();
    let claim = probe(&h, "a", "/dead").await;
    let dead = QueueRelease {
        reason: ReleaseReason::Attempted {
            message: message(&h, &claim).await,
            decision: DeliveryDecision::Dead {
                reason: "503".to_owned(),
            },
            tried: None,
        },
        claim: claim.clone(),
    };
    let request = ClaimRequest {
        releases: vec![dead],
        failures: vec![failure(&claim, now(&h).await)],
        ..ClaimRequest::default()
    };
    claim_queues(&h, "a", request).await;
    assert_eq!(purge(Timestamp::from_millis(0)).await, 0, "for a while");
    assert_eq!(purge(soon).await, 1);
    assert_eq!(purge(soon).await, 0);
    // The destination is recorded again without failures.
    submit(&h, "/dead", 1).await;
    let response = claim_due(&h, "a").await.claims;
    assert!(
        response
            .iter()
            .any(|claim| claim.destination == at("/dead"))
    );
}
