//! Replies that come later, as the store saves and reads them.

use serde_json::{Value, json};

use super::{
    harness::{Harness, New, success},
    recovery::expire_all,
};
use crate::{
    domain::{
        task::{CallOutcome, Command, Progress, ReplyDigest, TaskStatus},
        template::Payload,
        values::{AgentName, Attempt, StepIndex, TaskId},
    },
    store::{CommandError, Submitted},
};

const STEP: StepIndex = StepIndex(0);

/// Returns a task whose first step waits for a reply.
async fn deferred(h: &Harness, extra: &Value) -> TaskId {
    h.slots("x", 2);
    let mut step = json!({ "name": "a", "agent": "x", "complete_within": "1h" });
    let fields = step.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    let new = New {
        steps: json!([step]),
        ..New::default()
    };
    let id = h.submit(new).await.id();
    h.reply(id, 0, 1, CallOutcome::Deferred).await.unwrap();
    id
}

fn reply(output: Value) -> Command {
    Command::LaterReply {
        step: STEP,
        attempt: Attempt(1),
        digest: ReplyDigest(output.to_string()),
        outcome: success(output),
    }
}

pub async fn a_promised_reply_is_read_back_and_held_by_no_instance(h: Harness) {
    let id = deferred(&h, &json!({ "heartbeat_within": "1m" })).await;
    let beat = Command::Heartbeat {
        step: STEP,
        attempt: Attempt(1),
        progress: Progress {
            fraction: Some(0.4),
            message: Some("4 of 10".to_owned()),
            details: Some(Payload::from_value(&json!({ "page": 4 }))),
        },
    };
    let told = h.apply(id, beat).await.unwrap();
    assert_eq!(h.read(id).await, *told);
    let held = h.store.reader.processing(None, None, 10).await.unwrap();
    assert_eq!(held, [], "a restart hands nothing of it back");
    assert_eq!(h.store.reader.expired(h.instance(), 10).await.unwrap(), []);
    assert_eq!(h.store.reader.counts().await.unwrap().awaited, 1);
    let open = h.store.reader.open_replies().await.unwrap();
    assert_eq!(open, [(AgentName::new("x"), 1)]);
    assert_eq!(*h.notes.closed.lock(), []);

    let task = h.apply(id, reply(json!(1))).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Processed);
    assert_eq!(h.read(id).await, *task);
    assert_eq!(*h.notes.closed.lock(), [AgentName::new("x")]);
    assert_eq!(h.store.reader.open_replies().await.unwrap(), []);
    // The task has left the cache, so the reply is found in the record.
    let again = h.ask(id, reply(json!(1))).await;
    assert!(matches!(again, Ok(Submitted::Replayed(_))), "{again:?}");
    for _ in 0..2 {
        let late = h.ask(id, reply(json!(2))).await;
        assert!(
            matches!(late, Err(CommandError::Refused { .. })),
            "{late:?}"
        );
    }
    let changes = h
        .store
        .reader
        .history(id, 0, 100, usize::MAX)
        .await
        .unwrap()
        .unwrap()
        .changes;
    let entries = changes
        .iter()
        .map(|change| change.events.matches("step.late_reply").count());
    assert_eq!(entries.sum::<usize>(), 1);
    assert_eq!(h.read(id).await.status(), TaskStatus::Processed);
}

pub async fn operations_are_counted_where_they_are_polled(h: Harness) {
    h.slots("x", 4);
    let poll = json!({ "poll": { "until": "response.body.done", "every": "1h" } });
    let step = json!({ "name": "a", "agent": "x", "complete_within": "10h", "reply": poll });
    let mut ids = Vec::new();
    for address in [
        "http://pay:80/jobs/1",
        "http://PAY/jobs/2?key=1",
        "http://pay:81/jobs/3",
    ] {
        let steps = json!([step]);
        let new = New {
            steps,
            ..New::default()
        };
        let id = h.submit(new).await.id();
        let address = address.to_owned();
        let retry_after = None;
        let promise = CallOutcome::PollAt {
            address,
            retry_after,
        };
        h.reply(id, 0, 1, promise).await.unwrap();
        ids.push(id);
    }
    // The service of this step replies by itself.
    deferred(&h, &json!({})).await;
    let agent = AgentName::new("x");
    let reader = &h.store.reader;
    let all = reader.operations(&agent, 10).await.unwrap();
    let at = [
        "http://pay/",
        "http://pay:81",
        "https://pay",
        "amqp://broker/pay",
    ];
    assert_eq!(at.map(|endpoint| all.at(endpoint)), [2, 1, 0, 0]);
    assert!(!all.is_at_least);
    let some = reader.operations(&agent, 2).await.unwrap();
    assert!(some.is_at_least);
    let others = reader.operations(&AgentName::new("y"), 10).await.unwrap();
    assert_eq!(others.at("http://pay"), 0);
    h.apply(ids[0], reply(json!(1))).await.unwrap();
    let left = reader.operations(&agent, 10).await.unwrap();
    assert_eq!(left.at("http://pay"), 1);
}

pub async fn a_silent_service_is_found_by_the_supervisor(h: Harness) {
    let id = deferred(&h, &json!({ "heartbeat_within": "1s" })).await;
    expire_all(&h, 1).await;
    let task = h.read(id).await;
    assert_eq!(task.step(STEP).failure_count, 1);
}
