//! The data that an undo adds to the record: its reason, the undo of each step, unknown effects, and the policies.

use serde_json::json;

use super::{
    harness::{Harness, New, now, refusal, success},
    recovery::{EVERY_ALERT, expire_all},
};
use crate::{
    domain::{
        definition::{Policies, Policy},
        task::{Actor, CallOutcome, Command, Expiry, Release, StepStatus, Task, TaskStatus},
        template::Payload,
        values::{
            Effect, Fault, FaultKind, Precondition, StepIndex, TaskId, Timestamp, WorkflowName,
            WorkflowRef,
        },
    },
    store::AlertState,
};

const CHARGE: StepIndex = StepIndex(1);
const UNDO_RESERVE: StepIndex = StepIndex(3);
const UNDO_CHARGE: StepIndex = StepIndex(4);

/// Returns a task of three steps. The undos of the first two are the fourth and the fifth step.
fn saga() -> New {
    New {
        steps: json!([
            { "name": "reserve", "agent": "x",
              "undo": { "request": { "method": "DELETE", "path": "/{{ output.id }}" } } },
            { "name": "charge", "agent": "x", "complete_within": "100ms",
              "probe": { "request": { "path": "/charges/{{ task.id }}" } },
              "undo": { "request": { "path": "/void" }, "complete_within": "100ms" } },
            { "name": "ship", "agent": "x" },
        ]),
        policies: Policies::parse(r#"{"on_permanent":"undo","on_exhausted":"undo"}"#).unwrap(),
        ..New::default()
    }
}

async fn done(h: &Harness, id: TaskId, step: u16) {
    let task = h.read(id).await;
    let attempt = task.step(StepIndex(step)).attempt.0;
    let output = success(json!({ "id": step }));
    h.reply(id, step, attempt, output).await.unwrap();
}

/// Returns a saga whose first two steps are done and whose third was refused.
async fn refused(h: &Harness) -> Task {
    h.slots("x", 100);
    let id = h.submit(saga()).await.id();
    done(h, id, 0).await;
    done(h, id, 1).await;
    let task = h.reply(id, 2, 1, refusal()).await.unwrap();
    let read = h.read(id).await;
    assert_eq!(read, *task, "it is read back as it was saved");
    read
}

pub async fn an_undo_is_read_back_at_every_step(h: Harness) {
    let task = refused(&h).await;
    let id = task.id();
    assert_eq!(task.status(), TaskStatus::Undoing);
    assert_eq!(task.undos.len(), 2);
    let cause = task.undo.as_ref().unwrap().error.as_ref().unwrap();
    assert_eq!(cause.step.as_ref().unwrap().as_str(), "ship");
    assert_eq!(cause.status, Some(402));
    assert_eq!(task.step(UNDO_CHARGE).status(), StepStatus::Processing);
    assert_eq!(task.step(UNDO_RESERVE).status(), StepStatus::Waiting);
    assert_eq!(h.calls().last(), Some(&(id, 4, 1)), "what is first undone");

    let task = h.reply(id, 4, 1, success(json!(null))).await.unwrap();
    let read = h.read(id).await;
    assert_eq!(read, *task);
    assert_eq!(read.step(CHARGE).status(), StepStatus::Undone);
    let output = read.step(CHARGE).output().map(Payload::as_json);
    assert_eq!(output, Some(r#"{"id":1}"#), "its output is kept");
    assert_eq!(h.calls(), [(id, 3, 1)]);

    let task = h.reply(id, 3, 1, success(json!(null))).await.unwrap();
    assert_eq!(task.status(), TaskStatus::Undone);
    let read = h.read(id).await;
    assert_eq!(read, *task);
    assert!(read.ended_at().is_some());
}

pub async fn policies_are_read_back(h: Harness) {
    let id = h.submit(saga()).await.id();
    let definition = h.read(id).await.details.definition.clone();
    let policies = &definition.policies;
    assert_eq!(policies.on_permanent, Some(Policy::Undo));
    assert_eq!(
        policies.as_json(),
        Some(r#"{"on_exhausted":"undo","on_permanent":"undo"}"#)
    );
    assert_eq!(definition.steps[2].on_permanent, Policy::Undo);
    assert_eq!(definition.undos[1].name.as_str(), "charge.undo");
    let plain = h.submit(New::default()).await.id();
    let plain = h.read(plain).await;
    assert_eq!(plain.details.definition.policies.as_json(), None);
    assert_eq!(plain.undo, None);
}

pub async fn the_policies_of_a_workflow_are_read_back(h: Harness) {
    let (new, name) = (saga(), WorkflowName::new("order"));
    let body = json!({ "policies": { "on_permanent": "undo" }, "steps": new.steps });
    let version = h
        .store
        .put_workflow(
            name.clone(),
            body.to_string(),
            Precondition::default(),
            None,
            Actor::submitter(),
        )
        .await;
    let mut details = h.details(&new);
    details.workflow = Some(WorkflowRef {
        name,
        version: version.unwrap().version,
    });
    // This store has never compiled the workflow, as after a restart.
    let id = now(h.store.submit(details, None, None).await.unwrap()).id();
    let definition = h.read(id).await.details.definition.clone();
    assert_eq!(
        definition.policies.as_json(),
        Some(r#"{"on_permanent":"undo"}"#)
    );
    assert_eq!(definition.steps[2].on_permanent, Policy::Undo);
    assert_eq!(definition.undos.len(), 2);
}

pub async fn a_doubt_is_read_back_until_a_probe_ends_it(h: Harness) {
    h.slots("x", 100);
    let id = h.submit(saga()).await.id();
    done(&h, id, 0).await;
    expire_all(&h, 1).await;
    assert_eq!(h.read(id).await.step(CHARGE).effect, Effect::Unknown);
    // The step is due a second later, or when an operator retries it.
    let retry = Command::Retry {
        step: Some(CHARGE),
        body: None,
        reason: None,
    };
    let task = h.apply(id, retry).await.unwrap();
    assert!(task.step(CHARGE).is_probing);
    assert_eq!(h.read(id).await, *task);
    let found = CallOutcome::Probed {
        status: 200,
        body: Payload::from_value(&json!({ "id": "ch_1" })),
    };
    let task = h.reply(id, 1, 2, found).await.unwrap();
    assert_eq!(task.step(CHARGE).effect, Effect::Known);
    assert_eq!(task.step(CHARGE).status(), StepStatus::Processed);
    assert_eq!(h.read(id).await, *task);
}

pub async fn the_undo_of_a_step_is_queued_expires_and_is_released_like_a_step(h: Harness) {
    h.slots("x", 3);
    let id = h.submit(saga()).await.id();
    done(&h, id, 0).await;
    done(&h, id, 1).await;
    let task = h.reply(id, 2, 1, refusal()).await.unwrap();
    assert_eq!(task.step(UNDO_CHARGE).status(), StepStatus::Pending);
    h.calls();
    h.slots("x", 100);
    let agent = task.definition(UNDO_CHARGE).agent().cloned().unwrap();
    assert_eq!(h.store.claim_queued(vec![agent]).await.unwrap(), 1);
    assert_eq!(h.calls(), [(id, 4, 1)]);

    let held = h.store.reader.processing(None, None, 10).await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].step.step, UNDO_CHARGE);
    assert!(held[0].undoing);
    let (step, attempt) = (held[0].step, held[0].attempt);
    let asked = h.store.reader.held(step, attempt).await.unwrap();
    assert_eq!(asked, Some(held[0]));
    let before = attempt.next();
    assert_eq!(h.store.reader.held(step, before).await.unwrap(), None);
    let command = Command::Release {
        step: UNDO_CHARGE,
        attempt,
        why: Release::Restart,
    };
    let task = h.apply(id, command).await.unwrap();
    assert_eq!(h.read(id).await, *task);
    assert_eq!(h.calls(), [(id, 4, 2)], "at once, under a new attempt");
    expire_all(&h, 1).await;
    let read = h.read(id).await;
    assert_eq!(read.step(UNDO_CHARGE).failure_count, 1);
    let late = h.reply(id, 4, 2, success(json!(null))).await;
    assert!(late.is_err(), "that attempt is over");
}

pub async fn an_undo_that_cannot_finish_alerts_until_it_is_mended(h: Harness) {
    let id = refused(&h).await.id();
    h.reply(id, 4, 1, refusal()).await.unwrap();
    let read = h.read(id).await;
    let error = read.error().unwrap();
    assert_eq!(error.kind, FaultKind::UndoFailed);
    assert_eq!(error.step.as_ref().unwrap().as_str(), "charge.undo");
    let alerts = h.store.reader.alerts(&EVERY_ALERT).await.unwrap();
    assert_eq!(
        alerts.len(),
        1,
        "the refusal that began the undo needs nobody"
    );
    assert_eq!(alerts[0].kind, "task.undo_failed");
    assert_eq!(alerts[0].step.as_ref().unwrap().as_str(), "charge.undo");
    assert_eq!(alerts[0].state, AlertState::Open);
    let skip = Command::Skip {
        step: UNDO_CHARGE,
        output: None,
        reason: None,
    };
    h.apply(id, skip).await.unwrap();
    let alerts = h.store.reader.alerts(&EVERY_ALERT).await.unwrap();
    assert_eq!(alerts[0].state, AlertState::Closed);
}

pub async fn an_instance_lost_while_it_probes_leaves_the_doubt(h: Harness) {
    h.slots("x", 100);
    let id = h.submit(saga()).await.id();
    done(&h, id, 0).await;
    let at = Timestamp::from_millis(0);
    let broken = CallOutcome::Crashed(Fault::transient("the call broke off", at));
    h.reply(id, 1, 1, broken).await.unwrap();
    let task = h.apply(id, Command::Undo { reason: None }).await.unwrap();
    assert_eq!(task.step(CHARGE).status(), StepStatus::Cancelled);
    assert!(task.step(UNDO_CHARGE).is_probing);
    let lost = Command::Expire {
        step: UNDO_CHARGE,
        attempt: task.step(UNDO_CHARGE).attempt,
        cause: Expiry::InstanceLost,
    };
    let task = h.apply(id, lost).await.unwrap();
    assert_eq!(task.step(CHARGE).effect, Effect::Unknown);
    assert!(task.step(UNDO_CHARGE).is_probing, "asked again");
    assert_eq!(task.step(UNDO_CHARGE).attempt.0, 2);
    assert_eq!(h.read(id).await, *task);
}
