//! Messages in their queues.

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{Harness, New, refusal, success};
use crate::{
    domain::{
        message::{
            DeliveryDecision, DeliveryTry, KEPT_TRIES, MessageAction, MessageEvent, MessageStatus,
            ReceiverAlert, ReleaseReason,
        },
        task::{Command, ReplyTo},
        values::{InstanceId, ReceiverName, Span, TaskId, Timestamp},
    },
    store::{
        AlertQuery, ClaimRequest, ClaimResponse, DueWork, MessageId, MessageQuery, MessageRecord,
        MessageState, QueueClaim, QueueHead, QueueRelease,
    },
};

const SHOP: &str = "http://shop:9000";
const LONG: Span = Span::from_secs(600);

fn with_replies() -> New {
    New {
        reply_to: Some(ReplyTo {
            url: Some(format!("{SHOP}/r").into()),
            events: ["task.accepted", "task.processed"].map(Into::into).into(),
            ..ReplyTo::default()
        }),
        ..New::default()
    }
}

async fn submit(h: &Harness) -> TaskId {
    h.submit(with_replies()).await.id()
}

async fn listed(h: &Harness, query: MessageQuery) -> Vec<MessageRecord> {
    let query = MessageQuery {
        limit: 100,
        ..query
    };
    h.store.reader.messages(&query).await.unwrap()
}

async fn all(h: &Harness) -> Vec<MessageRecord> {
    listed(h, MessageQuery::default()).await
}

async fn claim_queues(h: &Harness, by: &str, hold: Span, request: ClaimRequest) -> ClaimResponse {
    let by = InstanceId::new(by);
    h.store.claim_queues(request, by, hold).await.unwrap()
}

/// Claims due queues of the shop. There may be messages to webhooks about alerts, too.
async fn claim_due(h: &Harness, by: &str, most: usize, hold: Span) -> Vec<QueueClaim> {
    let mut claim: Vec<QueueClaim> = Vec::new();
    while claim.len() < most {
        let request = ClaimRequest {
            limit: 1,
            ..ClaimRequest::default()
        };
        let Some(response) = claim_queues(h, by, hold, request).await.claims.pop() else {
            break;
        };
        if response.receiver.as_str() == SHOP {
            claim.push(response);
        }
    }
    claim
}

async fn due_work(h: &Harness) -> DueWork {
    h.store.reader.due_work(10, true).await.unwrap()
}

async fn release(h: &Harness, by: &str, claim: &QueueClaim, reason: ReleaseReason) {
    let claim = claim.clone();
    let request = ClaimRequest {
        releases: vec![QueueRelease { claim, reason }],
        ..ClaimRequest::default()
    };
    claim_queues(h, by, LONG, request).await;
}

async fn head(h: &Harness, claim: &QueueClaim) -> crate::store::NextMessage {
    let claim = std::slice::from_ref(claim);
    let mut queue_heads = h.store.reader.next_messages(claim).await.unwrap();
    match queue_heads.remove(0) {
        QueueHead::Message(head) => head,
        found => panic!("{found:?}"),
    }
}

/// Records an attempt of the first message of a claimed queue, with this decision.
async fn tried(h: &Harness, by: &str, claim: &QueueClaim, decision: DeliveryDecision) {
    let message = head(h, claim).await.id;
    release(h, by, claim, tried_as(message, decision)).await;
}

fn tried_as(message: uuid::Uuid, decision: DeliveryDecision) -> ReleaseReason {
    ReleaseReason::Attempted {
        message,
        decision,
        tried: None,
    }
}

fn dead() -> DeliveryDecision {
    let reason = "410 Gone".to_owned();
    DeliveryDecision::Dead { reason }
}

async fn alerts(h: &Harness) -> Vec<crate::store::Alert> {
    let query = AlertQuery {
        state: None,
        task: None,
        part_of: None,
        cause: None,
        id: None,
        before: None,
        limit: 10,
    };
    h.store.reader.alerts(&query).await.unwrap()
}

pub async fn a_message_is_saved_with_its_change_and_deleted_when_delivered(h: Harness) {
    h.slots("x", 1);
    let id = submit(&h).await;
    let saved = all(&h).await;
    assert_eq!(saved.len(), 1);
    assert_eq!(saved[0].kind, "task.accepted");
    assert_eq!(saved[0].task, Some(id));
    assert_eq!(saved[0].receiver.as_str(), SHOP);
    assert_eq!(saved[0].state, MessageState::Pending);
    assert!(saved[0].next_try_at.is_some() && saved[0].body.is_none());
    h.submit(New::default()).await;
    assert_eq!(
        all(&h).await.len(),
        1,
        "a task without reply_to has no messages"
    );

    let claim = claim_due(&h, "a", 10, LONG).await;
    assert_eq!(claim.len(), 1);
    assert_eq!((claim[0].subject, claim[0].tries), (id.0, 1));
    let first = head(&h, &claim[0]).await;
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!(body["id"], first.id.to_string());
    assert_eq!(body["data"]["task"]["version"], 1);
    tried(&h, "a", &claim[0], DeliveryDecision::Delivered).await;
    assert!(all(&h).await.is_empty());
    assert_eq!(due_work(&h).await, DueWork::default());
}

pub async fn the_last_failed_attempts_of_a_message_are_kept_until_it_leaves(h: Harness) {
    h.slots("x", 1);
    submit(&h).await;
    let message = all(&h).await[0].id;
    let mut time = 1_000;
    let mut failed = async |by: &str, claim: &QueueClaim, decision| {
        time += 1_000;
        let tried = DeliveryTry {
            began: Timestamp::from_millis(time),
            ended: Timestamp::from_millis(time + 7),
            status: Some(503),
        };
        let reason = ReleaseReason::Attempted {
            message: message.0,
            decision,
            tried: Some(tried),
        };
        // The result of a save may be lost: it is saved again.
        release(&h, by, claim, reason.clone()).await;
        release(&h, by, claim, reason).await;
    };
    let retry = || DeliveryDecision::Retry {
        at: Timestamp::from_millis(0),
        reason: "503".to_owned(),
        in_backlog: false,
    };
    for _ in 0..KEPT_TRIES + 3 {
        let claims = claim_due(&h, "a", 1, LONG).await;
        failed("a", &claims[0], retry()).await;
    }
    let claims = claim_due(&h, "a", 1, LONG).await;
    failed("another", &claims[0], retry()).await;
    let tries = async || h.store.reader.message_tries(message).await.unwrap();
    let kept = tries().await;
    let numbers: Vec<_> = kept.iter().map(|tried| tried.number).collect();
    assert_eq!(numbers, (4..=KEPT_TRIES + 3).rev().collect::<Vec<_>>());
    assert_eq!(kept[0].status, Some(503));
    assert_eq!(kept[0].instance.as_str(), "a", "no other one has the claim");
    assert_eq!(kept[0].ended.since(kept[0].began).as_millis(), 7);
    failed("a", &claims[0], dead()).await;
    let last = &tries().await[0];
    assert_eq!((&*last.reason, last.next_at), ("410 Gone", None));
    let redelivered = vec![message];
    let action = MessageAction::Redeliver;
    h.store
        .apply_message_action(action, redelivered)
        .await
        .unwrap();
    let claims = claim_due(&h, "a", 1, LONG).await;
    assert_eq!(claims[0].tries, 1);
    failed("a", &claims[0], DeliveryDecision::Delivered).await;
    let left = all(&h).await;
    let is_of_shop = |left: &MessageRecord| left.receiver.as_str() == SHOP;
    assert!(!left.iter().any(is_of_shop), "{left:?}");
    assert_eq!(tries().await, []);
}

pub async fn the_messages_of_a_task_are_delivered_one_after_the_other(h: Harness) {
    h.slots("x", 1);
    let id = submit(&h).await;
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(all(&h).await.len(), 2);
    let claim = claim_due(&h, "a", 10, LONG).await;
    assert_eq!(claim.len(), 1, "one queue");
    assert!(claim_due(&h, "b", 10, LONG).await.is_empty(), "it is claim");
    assert_eq!(head(&h, &claim[0]).await.kind, "task.accepted");
    tried(&h, "a", &claim[0], DeliveryDecision::Delivered).await;
    let claim = claim_due(&h, "b", 10, LONG).await;
    assert_eq!(claim[0].tries, 1, "counted for each message");
    assert_eq!(head(&h, &claim[0]).await.kind, "task.processed");
    // A message that is added while its queue is claimed comes after the others.
    tried(&h, "b", &claim[0], DeliveryDecision::Delivered).await;
    assert!(all(&h).await.is_empty());
}

pub async fn messages_added_while_a_queue_is_claimed_are_not_lost(h: Harness) {
    h.slots("x", 1);
    let id = submit(&h).await;
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    tried(&h, "a", &claim, DeliveryDecision::Delivered).await;
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!(head(&h, &claim).await.kind, "task.processed");
}

pub async fn a_failed_message_waits_for_its_time_and_counts_its_tries(h: Harness) {
    submit(&h).await;
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    let now = h.store.reader.now().await.unwrap();
    let again = |at: Timestamp| DeliveryDecision::Retry {
        at,
        reason: "500 <oh>".to_owned(),
        in_backlog: false,
    };
    tried(&h, "a", &claim, again(now + LONG)).await;
    assert!(claim_due(&h, "a", 1, LONG).await.is_empty());
    let due = due_work(&h).await;
    assert_eq!((due.is_due, due.next_at), (false, Some(now + LONG)));
    let waiting = all(&h).await.remove(0);
    assert_eq!((waiting.tries, waiting.next_try_at), (1, Some(now + LONG)));
    assert_eq!(waiting.error.as_deref(), Some("500 <oh>"));

    // An operator makes the next attempt due at once. The time of the first attempt stays.
    let id = waiting.id;
    let expedited = h
        .store
        .apply_message_action(MessageAction::Redeliver, vec![id])
        .await;
    assert_eq!(expedited.unwrap(), [id]);
    let once_more = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!((once_more.tries, once_more.since), (2, claim.since));
    release(&h, "a", &once_more, ReleaseReason::NotAttempted).await;
    assert_eq!(claim_due(&h, "a", 1, LONG).await[0].tries, 2);
}

pub async fn a_queue_whose_claim_ran_out_is_claimed_again_and_a_late_failure_changes_nothing(
    h: Harness,
) {
    submit(&h).await;
    let late = claim_due(&h, "a", 1, Span::from_millis(0)).await.remove(0);
    let claim = loop {
        if let Some(claim) = claim_due(&h, "b", 1, LONG).await.pop() {
            break claim;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert_eq!(claim.tries, 2);
    let now = h.store.reader.now().await.unwrap();
    let again = DeliveryDecision::Retry {
        at: now,
        reason: "late".to_owned(),
        in_backlog: false,
    };
    tried(&h, "a", &late, again).await;
    assert!(
        claim_due(&h, "a", 1, LONG).await.is_empty(),
        "b has claimed it"
    );
    // A late delivery counts. The instance that has claimed the queue finds it empty after that.
    tried(&h, "a", &late, DeliveryDecision::Delivered).await;
    assert!(all(&h).await.is_empty());
    let queue_heads = h
        .store
        .reader
        .next_messages(std::slice::from_ref(&claim))
        .await;
    assert_eq!(queue_heads.unwrap(), [QueueHead::Empty]);
    release(&h, "b", &claim, ReleaseReason::QueueEmpty).await;
    assert_eq!(due_work(&h).await, DueWork::default());
}

pub async fn a_process_that_restarts_releases_its_queues(h: Harness) {
    submit(&h).await;
    submit(&h).await;
    claim_due(&h, "a", 1, LONG).await;
    claim_due(&h, "b", 1, LONG).await;
    let free = |by: Option<&str>| h.store.release_queues(by.map(InstanceId::new));
    assert_eq!(free(Some("c")).await.unwrap(), 0);
    assert_eq!(free(Some("a")).await.unwrap(), 1);
    assert_eq!(claim_due(&h, "c", 10, LONG).await.len(), 1);
    assert_eq!(free(None).await.unwrap(), 2);
    assert_eq!(claim_due(&h, "c", 10, LONG).await.len(), 2);
}

pub async fn a_dead_letter_raises_one_alert_that_closes_when_it_is_delivered_after_all(h: Harness) {
    h.slots("x", 2);
    let id = submit(&h).await;
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    tried(&h, "a", &claim, dead()).await;
    // The messages after it are delivered.
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!(head(&h, &claim).await.kind, "task.processed");
    tried(&h, "a", &claim, dead()).await;
    let letters = listed(
        &h,
        MessageQuery {
            state: Some(MessageState::Dead),
            receiver: Some(ReceiverName::new(SHOP)),
            task: Some(id),
            ..MessageQuery::default()
        },
    );
    let letters = letters.await;
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0].error.as_deref(), Some("410 Gone"));
    assert!(letters[0].died_at.is_some() && letters[0].tries == 1);
    let raised = alerts(&h).await;
    assert_eq!(raised.len(), 1, "one for the receiver");
    assert_eq!(raised[0].kind, "message.undeliverable");
    assert_eq!(raised[0].receiver.as_ref().unwrap().as_str(), SHOP);
    assert!(raised[0].message.contains("410 Gone"));
    let resolved = async || {
        h.store
            .reader
            .due_work(10, true)
            .await
            .map(|due| due.resolved)
    };
    assert!(resolved().await.unwrap().is_empty());

    let ids: Vec<MessageId> = letters.iter().map(|letter| letter.id).collect();
    let unknown = MessageId(uuid::Uuid::from_u128(1));
    let request = vec![ids[0], unknown];
    let done = h
        .store
        .apply_message_action(MessageAction::Redeliver, request)
        .await;
    assert_eq!(done.unwrap(), [ids[0]]);
    let refused = h
        .store
        .apply_message_action(MessageAction::Discard, vec![ids[0]])
        .await;
    assert_eq!(refused.unwrap(), [], "it is no dead letter any more");
    let discarded = h
        .store
        .apply_message_action(MessageAction::Discard, vec![ids[1]])
        .await;
    assert_eq!(discarded.unwrap(), [ids[1]]);
    assert!(
        resolved().await.unwrap().is_empty(),
        "one is on its way again"
    );
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!(claim.tries, 1);
    tried(&h, "a", &claim, DeliveryDecision::Delivered).await;
    let resolved = resolved().await.unwrap();
    assert_eq!(resolved, [ReceiverName::new(SHOP)]);
    let request = ClaimRequest {
        resolved,
        ..ClaimRequest::default()
    };
    claim_queues(&h, "a", LONG, request).await;
    assert!(alerts(&h).await[0].closed_at.is_some());
}

pub async fn the_alert_of_a_broker_is_one_and_deliveries_do_not_close_it(h: Harness) {
    let report = async |reason: Option<&str>| {
        let reason = reason.map(str::to_owned);
        h.store.report_broker("main".to_owned(), reason).await
    };
    // No alert is open yet.
    report(None).await.unwrap();
    for _ in 0..2 {
        report(Some("connection refused")).await.unwrap();
    }
    let raised = alerts(&h).await;
    assert_eq!(raised.len(), 1);
    assert_eq!(raised[0].kind, "broker.unreachable");
    assert_eq!(raised[0].receiver.as_ref().unwrap().as_str(), "broker:main");
    assert!(raised[0].message.contains("connection refused"));
    let due = h.store.reader.due_work(10, true).await.unwrap();
    assert!(due.resolved.is_empty(), "{:?}", due.resolved);
    report(None).await.unwrap();
    let closed = alerts(&h).await;
    assert!(closed.len() == 1 && closed[0].closed_at.is_some());
}

pub async fn webhooks_get_one_message_when_an_alert_is_raised_and_one_when_it_closes(h: Harness) {
    h.slots("x", 2);
    let id = h.submit(New::default()).await.id();
    h.reply(id, 0, 1, refusal()).await.unwrap();
    let retry = || Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    h.apply(id, retry()).await.unwrap();
    let messages = all(&h).await;
    let kinds: Vec<_> = messages.iter().rev().map(|m| m.kind.as_str()).collect();
    assert_eq!(kinds, ["alert.raised", "alert.closed"]);
    assert!(messages.iter().all(|m| m.receiver.as_str() == "alerts:ops"));
    assert!(
        messages[0].next_try_at.is_none(),
        "the second waits for the first"
    );
    // No alert was open, so none is closed.
    let skip = Command::Cancel { reason: None };
    h.apply(id, skip).await.unwrap();
    assert_eq!(all(&h).await.len(), 2);
}

pub async fn dead_letters_are_purged_with_age_and_outlive_their_task(h: Harness) {
    h.slots("x", 2);
    let id = submit(&h).await;
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    tried(&h, "a", &claim, dead()).await;
    h.reply(id, 0, 1, success(json!(1))).await.unwrap();
    let soon = h.store.reader.now().await.unwrap() + LONG;
    assert_eq!(h.store.purge(vec![id], soon).await.unwrap().tasks, 1);
    assert_eq!(
        of_shop(&h).await,
        2,
        "the task is gone, its messages are not"
    );
    let long_ago = Timestamp::from_millis(0);
    assert_eq!(h.store.purge_dead_letters(long_ago, 10).await.unwrap(), 0);
    assert_eq!(h.store.purge_dead_letters(soon, 10).await.unwrap(), 1);
    assert_eq!(of_shop(&h).await, 1, "what is pending is not purged");
    assert_eq!(due_work(&h).await.resolved.len(), 1);
}

async fn of_shop(h: &Harness) -> usize {
    let shop = MessageQuery {
        receiver: Some(ReceiverName::new(SHOP)),
        ..MessageQuery::default()
    };
    listed(h, shop).await.len()
}

pub async fn messages_are_listed_in_pages_and_counted(h: Harness) {
    for _ in 0..5 {
        submit(&h).await;
    }
    let mut seen = Vec::new();
    let mut query = MessageQuery {
        limit: 2,
        ..MessageQuery::default()
    };
    loop {
        let page = h.store.reader.messages(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.before = Some(last.id);
        seen.extend(page.iter().map(|message| message.id));
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| a > b));
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    tried(&h, "a", &claim, dead()).await;
    let counts = h.store.reader.counts().await.unwrap();
    // The webhook has a message about the alert.
    assert_eq!((counts.messages_pending, counts.messages_dead), (5, 1));
    let alerts = [("message.undeliverable".to_owned(), 1)];
    assert_eq!(counts.open_alerts, alerts);
}

/// The statements decide with one condition each in the same way as the domain does for a receiver.
pub async fn an_alert_is_raised_and_closed_exactly_when_the_domain_decides_so(h: Harness) {
    let is_open = async || {
        let alerts = alerts(&h).await;
        alerts
            .first()
            .is_some_and(|alert| alert.closed_at.is_none())
    };
    let dead_letters = async || {
        let counts = h.store.reader.counts().await.unwrap();
        counts.messages_dead
    };
    let resolve = async || {
        let request = ClaimRequest {
            resolved: vec![ReceiverName::new(SHOP)],
            ..ClaimRequest::default()
        };
        claim_queues(&h, "a", LONG, request).await;
    };
    // Dead letters are added and removed; after each change the alert is as the domain decides.
    for _ in 0..3 {
        submit(&h).await;
    }
    for _ in 0..3 {
        let was_open = is_open().await;
        let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
        tried(&h, "a", &claim, dead()).await;
        resolve().await;
        let decided = ReceiverAlert::decide(was_open, dead_letters().await);
        assert_eq!(decided == Some(ReceiverAlert::Raise), !was_open);
        assert!(is_open().await);
    }
    let query = MessageQuery {
        state: Some(MessageState::Dead),
        ..MessageQuery::default()
    };
    for letter in listed(&h, query).await {
        assert!(is_open().await);
        let discard = h
            .store
            .apply_message_action(MessageAction::Discard, vec![letter.id]);
        assert_eq!(discard.await.unwrap(), [letter.id]);
        resolve().await;
        let decided = ReceiverAlert::decide(true, dead_letters().await);
        assert_eq!(is_open().await, decided.is_none());
    }
    assert_eq!(
        ReceiverAlert::decide(is_open().await, dead_letters().await),
        None
    );
    assert_eq!(alerts(&h).await.len(), 1);
}

/// The states of a message that the statements store are those that the domain knows, with the actions that it allows.
pub async fn an_operator_can_act_on_a_message_exactly_in_the_states_that_the_domain_allows(
    h: Harness,
) {
    let act = async |action, id| {
        let done = h.store.apply_message_action(action, vec![id]).await;
        !done.unwrap().is_empty()
    };
    let allows =
        |status: MessageStatus, action| status.after(MessageEvent::Action(action)).is_some();
    let (redeliver, discard) = (MessageAction::Redeliver, MessageAction::Discard);
    submit(&h).await;
    let id = all(&h).await[0].id;
    assert_eq!(
        act(discard, id).await,
        allows(MessageStatus::Queued, discard)
    );
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Queued, redeliver)
    );
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!(
        act(discard, id).await,
        allows(MessageStatus::Delivering, discard)
    );
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Delivering, redeliver)
    );
    let retry = |at, in_backlog| DeliveryDecision::Retry {
        at,
        reason: "500".to_owned(),
        in_backlog,
    };
    let later = h.store.reader.now().await.unwrap() + LONG;
    tried(&h, "a", &claim, retry(later, false)).await;
    assert_eq!(
        act(discard, id).await,
        allows(MessageStatus::Retrying, discard)
    );
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Retrying, redeliver)
    );
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    tried(&h, "a", &claim, retry(later, true)).await;
    assert_eq!(
        act(discard, id).await,
        allows(MessageStatus::Backlogged, discard)
    );
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Backlogged, redeliver)
    );
    let backlog = ClaimRequest {
        backlogs: vec![(claim.destination.clone(), 2)],
        ..ClaimRequest::default()
    };
    let claim = claim_queues(&h, "a", LONG, backlog).await.claims.remove(0);
    tried(&h, "a", &claim, dead()).await;
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Dead, redeliver)
    );
    let claim = claim_due(&h, "a", 1, LONG).await.remove(0);
    assert_eq!(claim.tries, 1, "as if for the first time");
    tried(&h, "a", &claim, dead()).await;
    assert_eq!(act(discard, id).await, allows(MessageStatus::Dead, discard));
    assert_eq!(
        act(redeliver, id).await,
        allows(MessageStatus::Discarded, redeliver)
    );
}
