//! The request of an attempt: the call that an agent makes, to do the work of a step, to undo it or to probe it.

use std::sync::Arc;

use serde_json::Value;

use super::Draft;
use crate::{
    definition::{RequestTemplate, StepWork},
    task::{
        aggregate::Task,
        call::{Call, DroppedBy, Purpose},
        command::Refusal,
        render,
        step::StepStatus,
    },
    template::{Budget, RenderError, payload::Payload},
    values::{
        hidden::{HIDDEN, hide_secrets, is_secret_header},
        ids::{Attempt, StepIndex, StepRef},
        time::{Span, Timestamp},
        trace::CallTrace,
    },
};

/// The form in which a request has what is secret in it: the headers of a step's request that its undo reads, and the
/// address for the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Secrets<'a> {
    /// It is as it is sent. The address for the reply is known only where a step is claimed.
    Sent { reply_url: Option<&'a str> },
    /// The text that replaces it where the request is shown.
    Hidden,
}

impl<'a> Secrets<'a> {
    fn reply_url(self) -> Option<&'a str> {
        match self {
            Secrets::Sent { reply_url } => reply_url,
            Secrets::Hidden => Some(HIDDEN),
        }
    }
}

/// Renders what the agent needs to do the work, or to ask whether it was done.
pub(crate) fn call(
    task: &Task,
    index: StepIndex,
    complete_by: Timestamp,
    now: Timestamp,
    budget: &Budget,
    secrets: Secrets<'_>,
) -> Result<Call, RenderError> {
    let definition = task.definition(index);
    let StepWork::Call { target, request } = &definition.work else {
        let reason = "it calls no service".to_owned();
        return Err(RenderError::new(definition.name.as_str(), reason));
    };
    let step = task.step(index);
    let subject = task.subject(index);
    let probe = task.probe_before(index);
    // The probe runs next, whether the work or the probe breaks off, and that counts as a failure; or no attempt is left.
    let needs_new_connection = task.definition(subject).probe.is_some()
        && step.failure_count >= definition.max_failures
        || task.has_last_attempt(index);
    let own = step.body.as_ref();
    let (rendered, purpose) = match (probe, definition.undoes) {
        (Some(probe), _) => (
            render::render_request(&probe.request, &task.scope(subject, budget), None)?,
            Purpose::Probe(task.idempotency_key(subject)),
        ),
        (None, Some(_)) => (
            undo_request(task, index, request, budget, secrets)?,
            Purpose::Undo(task.idempotency_key(subject)),
        ),
        (None, None) => {
            let mut scope = task.scope(index, budget);
            scope.reply_url = secrets.reply_url();
            (render::render_request(request, &scope, own)?, Purpose::Work)
        }
    };
    let at = StepRef {
        task: task.id(),
        step: index,
    };
    Ok(Call {
        step: at,
        step_name: definition.name.clone(),
        task_key: task.details.key.clone(),
        attempt: step.attempt,
        transient_faults: step.tries,
        idempotency_key: task.idempotency_key(index),
        target: target.clone(),
        method: rendered.method,
        path: rendered.path,
        headers: rendered.headers,
        body: rendered.body,
        complete_by,
        wall_complete_by: complete_by,
        complete_within: Span::from_millis(complete_by.since(now).as_millis() as u64),
        trace: CallTrace::of(task.details.trace.as_ref(), at, step.attempt),
        purpose,
        needs_new_connection,
        dropped_by: match definition.is_dropped_by_undo() {
            true => DroppedBy::Undo,
            false => DroppedBy::Withdrawal,
        },
        reply_mode: definition.reply.mode(),
        heartbeat_within: definition.heartbeat_within,
        reply_url: match secrets {
            Secrets::Sent { reply_url } if probe.is_none() => reply_url.map(Arc::from),
            _ => None,
        },
        rules: match probe {
            Some(probe) => probe.attempts.clone(),
            None => definition.attempts.clone(),
        },
    })
}

/// An undo may read the request that it undoes. That is rendered again: the definition, the input and the outputs
/// of the steps before it are on record. Where they are about to change, the request is kept: see
/// [`Draft::keep_sent_requests`].
fn undo_request(
    task: &Task,
    index: StepIndex,
    request: &RequestTemplate,
    budget: &Budget,
    secrets: Secrets<'_>,
) -> Result<render::Rendered, RenderError> {
    let definition = task.definition(index);
    let mut scope = task.scope(index, budget);
    scope.reply_url = secrets.reply_url();
    let recorded;
    let subject = task.subject(index);
    if definition.reads_request
        && let Some(request) = task.definition(subject).request()
    {
        recorded = match &task.step(subject).sent_request {
            Some(sent) if secrets == Secrets::Hidden => without_secret_headers(sent),
            Some(sent) => sent.clone(),
            None => recorded_request(task, subject, request, budget, secrets)?,
        };
        scope.request = Some(&recorded);
    }
    let own = task.step(index).body.as_ref();
    render::render_request(request, &scope, own)
}

/// Returns a request as it is shown.
fn without_secret_headers(request: &Payload) -> Payload {
    let Ok(mut shown) = serde_json::from_str::<Value>(request.as_json()) else {
        return Payload::null();
    };
    let headers = shown.get_mut("headers").and_then(Value::as_object_mut);
    for (name, value) in headers.into_iter().flatten() {
        if is_secret_header(name) {
            *value = HIDDEN.into();
        }
    }
    // It is JSON, because it was made from JSON.
    Payload::parse(shown.to_string()).unwrap_or_else(Payload::null)
}

impl Draft {
    /// Keeps the requests of steps that were called and that an undo may read, before the command changes what they
    /// would be rendered from. A request that cannot be rendered now could not be read by the undo either.
    pub(super) fn keep_sent_requests(
        &mut self,
        steps: impl IntoIterator<Item = StepIndex>,
        is_read: impl Fn(&Task, StepIndex) -> bool,
    ) -> Result<(), Refusal> {
        let mut kept = Vec::new();
        for index in steps {
            let task = &self.task;
            let step = task.step(index);
            let was_called = step.attempt > Attempt::default()
                && (step.status() == StepStatus::Processing || step.may_have_taken_effect());
            if !was_called || step.sent_request.is_some() || !is_read(task, index) {
                continue;
            }
            let Some(request) = task.definition(index).request() else {
                continue;
            };
            let sent = Secrets::Sent { reply_url: None };
            let sent = recorded_request(task, index, request, &self.budget, sent);
            if self.budget.spent() >= Budget::EVALUATION {
                return Err(self.refuse_step(
                    index,
                    "the requests that its undo and those of the steps after it read are too costly to be kept: undo the task instead",
                ));
            }
            kept.extend(sent.ok().map(|sent| (index, sent)));
        }
        self.check_room_for_requests(&kept)?;
        for (index, sent) in kept {
            self.task.step_mut(index).sent_request = Some(sent);
            self.touch(index);
        }
        Ok(())
    }
}

impl Task {
    /// Returns whether the undo of a step reads its request.
    pub(super) fn undo_reads_request(&self, index: StepIndex) -> bool {
        let undo = self.definition(index).undo;
        undo.is_some_and(|undo| self.definition(undo).reads_request)
    }
}

fn recorded_request(
    task: &Task,
    index: StepIndex,
    request: &RequestTemplate,
    budget: &Budget,
    secrets: Secrets<'_>,
) -> Result<Payload, RenderError> {
    let own = task.step(index).body.as_ref();
    let mut scope = task.scope(index, budget);
    // It is a credential of the step's service, and of no use to others.
    scope.reply_url = Some(HIDDEN);
    let mut rendered = render::render_request(request, &scope, own)?;
    if secrets == Secrets::Hidden {
        hide_secrets(&mut rendered.headers);
    }
    Ok(rendered.as_payload())
}
