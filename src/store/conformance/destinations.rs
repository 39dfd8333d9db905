//! Destinations that fail, and what waits for them.

use std::time::Duration;

use super::harness::{Harness, New};
use crate::{
    domain::{
        DeliveryDecision, DeliveryPolicy, Destination, DestinationFailure, InstanceId,
        MessageAction, ReceiverName, ReleaseReason, ReplyTo, Span, Timestamp,
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
        let told = New {
            reply_to: Some(ReplyTo {
                url: Some(format!("{SHOP}{path}").into()),
                receiver: None,
                events: ["task.accepted"].map(Into::into).into(),
            }),
            ..New::default()
        };
        h.submit(told).await;
    }
}

async fn round(h: &Harness, by: &str, round: ClaimRequest) -> ClaimResponse {
    let by = InstanceId::new(by);
    h.store.claim_queues(round, by, LONG).await.unwrap()
}

async fn take(h: &Harness, by: &str) -> ClaimResponse {
    let asked = ClaimRequest {
        limit: 100,
        ..ClaimRequest::default()
    };
    round(h, by, asked).await
}

async fn wanted(h: &Harness, by: &str, path: &str, most: usize) -> Vec<QueueClaim> {
    let asked = ClaimRequest {
        backlogs: vec![(at(path), most)],
        ..ClaimRequest::default()
    };
    round(h, by, asked).await.claims
}

/// Waits until the pause is over.
async fn probe(h: &Harness, by: &str, path: &str) -> QueueClaim {
    loop {
        if let Some(claim) = wanted(h, by, path, 10).await.pop() {
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

/// Tried, with its destination failing: to be tried again much later by itself.
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
        },
    }
}

async fn fail(h: &Harness, by: &str, claim: &QueueClaim) -> ClaimResponse {
    let began = now(h).await;
    let asked = ClaimRequest {
        releases: vec![failed(h, claim).await],
        failures: vec![failure(claim, began)],
        ..ClaimRequest::default()
    };
    round(h, by, asked).await
}

fn handed_back(claim: &QueueClaim) -> QueueRelease {
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
        },
    }
}

/// So many messages wait for the destination, one of which was tried and failed with it.
async fn failing(h: &Harness, path: &str, count: usize) {
    submit(h, path, count).await;
    let mut claim = take(h, "a").await.claims;
    let first = claim.remove(0);
    fail(h, "a", &first).await;
    let asked = ClaimRequest {
        releases: claim.iter().map(handed_back).collect(),
        ..ClaimRequest::default()
    };
    round(h, "a", asked).await;
    while due_work(h).await.is_due {
        let taken = take(h, "a").await;
        assert!(taken.claims.is_empty(), "the destination fails");
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

pub async fn a_destination_that_fails_delays_no_other_of_its_receiver(h: Harness) {
    failing(&h, "/dead", 3).await;
    submit(&h, "/dead", 2).await;
    submit(&h, "/good", 2).await;
    let taken = take(&h, "a").await;
    assert_eq!(taken.moved_to_backlog, 2, "those to the one that fails");
    let destinations: Vec<_> = taken
        .claims
        .iter()
        .map(|claim| &claim.destination)
        .collect();
    assert_eq!(destinations, [&at("/good"); 2]);
    assert!(taken.claims.iter().all(|claim| !claim.is_probe));
    // What waits is in nobody's way when it is looked for what is due.
    let seen = due_work(&h).await;
    assert!(!seen.is_due && seen.backlogged.is_empty(), "{seen:?}");
    assert_eq!(of_shop(&h, MessageState::Pending).await.len(), 7);
}

pub async fn a_destination_that_fails_is_asked_by_one_message_whoever_sends_it(h: Harness) {
    failing(&h, "/dead", 4).await;
    let claim = probe(&h, "a", "/dead").await;
    assert!(wanted(&h, "b", "/dead", 10).await.is_empty());
    assert!(due_work(&h).await.failing.is_empty());
    // Not made after all: another instance may.
    let asked = ClaimRequest {
        releases: vec![handed_back(&claim)],
        cancelled_probes: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    round(&h, "a", asked).await;
    assert_eq!(
        due_work(&h).await.failing,
        [(at("/dead"), ReceiverName::new(SHOP))]
    );
    probe(&h, "b", "/dead").await;
    // Neither is it lost with who makes it.
    assert!(wanted(&h, "a", "/dead", 1).await.is_empty());
    h.store
        .release_queues(Some(InstanceId::new("b")))
        .await
        .unwrap();
    let claim = probe(&h, "a", "/dead").await;
    // One that was tried comes again after those that were not.
    fail(&h, "a", &claim).await;
    assert_eq!(
        take(&h, "a").await.moved_to_backlog,
        2,
        "those that were handed back"
    );
    let next = probe(&h, "b", "/dead").await;
    assert_ne!(next.subject, claim.subject);
}

pub async fn the_first_message_that_is_taken_ends_the_pause_for_all(h: Harness) {
    failing(&h, "/dead", 6).await;
    let claim = probe(&h, "a", "/dead").await;
    fail(&h, "a", &claim).await;
    let claim = probe(&h, "a", "/dead").await;
    let asked = ClaimRequest {
        releases: vec![delivered(&h, &claim).await],
        recovered: vec![at("/dead")],
        backlogs: vec![(at("/dead"), 2)],
        ..ClaimRequest::default()
    };
    let taken = round(&h, "a", asked).await;
    assert_eq!(taken.claims.len(), 2, "as many as it has slots for");
    assert!(taken.claims.iter().all(|claim| !claim.is_probe));
    assert!(taken.drained.is_empty());
    // Those whose own time has not come, too: they failed with it.
    let others = wanted(&h, "b", "/dead", 10).await;
    assert_eq!(others.len(), 3);
    let seen = due_work(&h).await;
    assert!(
        seen.failing.is_empty() && seen.backlogged.is_empty(),
        "{seen:?}"
    );
    submit(&h, "/dead", 1).await;
    assert_eq!(take(&h, "b").await.claims.len(), 1);
}

pub async fn what_an_instance_knows_from_before_changes_nothing(h: Harness) {
    let long_ago = now(&h).await;
    failing(&h, "/dead", 6).await;
    let claim = probe(&h, "a", "/dead").await;
    let asked = ClaimRequest {
        releases: vec![delivered(&h, &claim).await],
        recovered: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    round(&h, "a", asked).await;
    // A try that hung meanwhile, elsewhere.
    let late = ClaimRequest {
        failures: vec![failure(&claim, long_ago)],
        cancelled_probes: vec![at("/dead")],
        ..ClaimRequest::default()
    };
    round(&h, "b", late).await;
    let taken = wanted(&h, "a", "/dead", 10).await;
    assert_eq!(taken.len(), 5, "it answers");
    // That it answers is no news while nothing says otherwise.
    let asked = ClaimRequest {
        recovered: vec![at("/dead"), at("/never")],
        cancelled_probes: vec![at("/never")],
        postponed: vec![at("/never")],
        ..ClaimRequest::default()
    };
    round(&h, "b", asked).await;
    assert!(due_work(&h).await.failing.is_empty());
}

pub async fn what_has_waited_for_its_time_is_given_up_in_batches_with_one_alert(h: Harness) {
    failing(&h, "/dead", 600).await;
    submit(&h, "/good", 1).await;
    let claim = probe(&h, "a", "/dead").await;
    let began = now(&h).await;
    let asked = ClaimRequest {
        releases: vec![failed(&h, &claim).await],
        failures: vec![failure(&claim, began)],
        policy: within(Span::from_millis(0)),
        ..ClaimRequest::default()
    };
    let mut given_up = round(&h, "a", asked).await.expiries;
    let mut rounds = 1;
    while given_up.iter().any(|given_up| given_up.has_more) {
        assert_eq!(given_up[0].messages, 200);
        let asked = ClaimRequest {
            expiries: std::mem::take(&mut given_up),
            policy: within(Span::from_millis(0)),
            ..ClaimRequest::default()
        };
        given_up = round(&h, "a", asked).await.expiries;
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
    // Their queues are gone with them; what goes elsewhere is not.
    while due_work(&h).await.failing.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(wanted(&h, "a", "/dead", 1).await.is_empty());
    let seen = due_work(&h).await;
    assert!(seen.failing.is_empty() && seen.is_due, "{seen:?}");
    let taken = take(&h, "a").await.claims;
    assert!(taken.iter().any(|claim| claim.destination == at("/good")));
}

pub async fn nothing_is_given_up_that_has_not_had_its_time(h: Harness) {
    failing(&h, "/dead", 3).await;
    h.database
        .execute("UPDATE messages SET created_at = created_at - 400000")
        .await;
    h.database
        .execute("UPDATE queues SET waits_since = waits_since - 400000")
        .await;
    // It has not failed for so long.
    let five_minutes = Span::from_secs(300);
    let fails = async |policy: DeliveryPolicy| {
        let claim = probe(&h, "a", "/dead").await;
        let began = now(&h).await;
        let asked = ClaimRequest {
            releases: vec![failed(&h, &claim).await],
            failures: vec![failure(&claim, began)],
            policy,
            ..ClaimRequest::default()
        };
        round(&h, "a", asked).await.expiries
    };
    assert_eq!(fails(within(five_minutes)).await, []);
    h.database
        .execute("UPDATE destinations SET failing_since = failing_since - 400000")
        .await;
    submit(&h, "/dead", 1).await;
    take(&h, "a").await;
    let given_up = fails(within(five_minutes)).await;
    assert_eq!(given_up[0].messages, 3, "all but the new one");
    // Redelivered, a dead letter has all of its time again.
    let dead = of_shop(&h, MessageState::Dead).await;
    let ids: Vec<MessageId> = dead.iter().map(|letter| letter.id).collect();
    let revived = h
        .store
        .apply_message_action(MessageAction::Redeliver, ids)
        .await;
    assert_eq!(revived.unwrap().len(), 3);
    take(&h, "a").await;
    assert_eq!(fails(within(five_minutes)).await, []);
    assert_eq!(of_shop(&h, MessageState::Pending).await.len(), 4);
}

pub async fn a_receiver_that_asks_for_time_gets_it_from_all_its_messages_unless_an_operator_asks(
    h: Harness,
) {
    submit(&h, "/busy", 1).await;
    let claim = take(&h, "a").await.claims.remove(0);
    let began = now(&h).await;
    let asked = ClaimRequest {
        releases: vec![failed(&h, &claim).await],
        failures: vec![DestinationFailure {
            retry_after: Some(LONG.duration()),
            ..failure(&claim, began)
        }],
        ..ClaimRequest::default()
    };
    round(&h, "a", asked).await;
    submit(&h, "/busy", 1).await;
    assert!(take(&h, "b").await.claims.is_empty());
    assert!(wanted(&h, "b", "/busy", 1).await.is_empty());
    let waiting = of_shop(&h, MessageState::Pending).await;
    let (new, old) = (&waiting[0], &waiting[1]);
    for message in [new, old] {
        assert!(message.next_try_at.unwrap() >= began + LONG, "{message:?}");
    }
    let hurried = h
        .store
        .apply_message_action(MessageAction::Redeliver, vec![old.id])
        .await;
    assert_eq!(hurried.unwrap(), [old.id]);
    let probed = probe(&h, "b", "/busy").await;
    assert_eq!(probed.subject, claim.subject, "the one that was asked for");
}

pub async fn what_comes_due_for_a_destination_at_rest_is_tried(h: Harness) {
    submit(&h, "/dead", 1).await;
    let claim = take(&h, "a").await.claims.remove(0);
    fail(&h, "a", &claim).await;
    // Nothing is due in its backlog: it is not looked at until then.
    while due_work(&h).await.failing.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(wanted(&h, "a", "/dead", 1).await.is_empty());
    let seen = due_work(&h).await;
    assert!(seen.failing.is_empty(), "{seen:?}");
    assert!(seen.next_at.unwrap() > now(&h).await + Span::from_secs(300));
    submit(&h, "/dead", 1).await;
    assert_eq!(take(&h, "b").await.moved_to_backlog, 1);
    assert_ne!(probe(&h, "b", "/dead").await.subject, claim.subject);
}

pub async fn nothing_is_kept_of_destinations_that_nothing_waits_for(h: Harness) {
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
    let hurried = vec![dead.unwrap().id];
    h.store
        .apply_message_action(MessageAction::Redeliver, hurried)
        .await
        .unwrap();
    let claim = probe(&h, "a", "/dead").await;
    let dead = QueueRelease {
        reason: ReleaseReason::Attempted {
            message: message(&h, &claim).await,
            decision: DeliveryDecision::Dead {
                reason: "503".to_owned(),
            },
        },
        claim: claim.clone(),
    };
    let asked = ClaimRequest {
        releases: vec![dead],
        failures: vec![failure(&claim, now(&h).await)],
        ..ClaimRequest::default()
    };
    round(&h, "a", asked).await;
    assert_eq!(purge(Timestamp::from_millis(0)).await, 0, "for a while");
    assert_eq!(purge(soon).await, 1);
    assert_eq!(purge(soon).await, 0);
    // It begins anew.
    submit(&h, "/dead", 1).await;
    let taken = take(&h, "a").await.claims;
    assert!(taken.iter().any(|claim| claim.destination == at("/dead")));
}
