//! A change of the request body of a step in error, for many tasks: a JSON Merge Patch (RFC 7396) whose texts may have
//! expressions. They read what the expressions of the step itself read.

use thiserror::Error;

use crate::{
    task::{
        aggregate::Task,
        command::Command,
        decide::{Secrets, call},
        status::TaskStatus,
        step::StepStatus,
    },
    template::{Budget, JsonTemplate, Origin, Payload, RenderError},
    values::{FieldFault, StepIndex, Timestamp},
};

/// A patch of a request body.
#[derive(Debug)]
pub struct BodyPatch(JsonTemplate);

/// The request body of a step before and after its patch.
#[derive(Clone, Debug)]
pub struct PatchedBody {
    pub step: StepIndex,
    pub before: Payload,
    pub after: Payload,
}

impl PatchedBody {
    /// Returns the command that retries the step with the patched body.
    pub fn retry(&self, reason: Option<String>) -> Command {
        Command::Retry {
            step: Some(self.step),
            body: Some(self.after.clone()),
            reason,
        }
    }
}

/// The reason why the body of a task's step cannot be patched.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PatchFault {
    #[error("the task is {}, and only a task with a step in error can be retried", .0.as_str())]
    NoneInError(TaskStatus),
    #[error(
        "several steps of the task are in error: name the one whose request is patched in `step`"
    )]
    SeveralInError,
    #[error("the request body of the step cannot be made: {0}")]
    Request(RenderError),
    #[error("the patch cannot be made: {0}")]
    Patch(RenderError),
}

impl BodyPatch {
    /// Parses a patch. The faults have their pointers relative to the patch.
    pub fn parse(patch: &Payload, budget: &Budget) -> Result<Self, Vec<FieldFault>> {
        let parsed = JsonTemplate::parse(patch, Origin::Submitted(budget));
        parsed.map(Self).map_err(|faults| {
            let faults = faults.into_iter();
            faults
                .map(|fault| FieldFault::new(fault.pointer, fault.message))
                .collect()
        })
    }

    /// Patches the request body of a step in error: the step with this name, or the only one in error.
    pub fn patch(
        &self,
        task: &Task,
        name: Option<&str>,
        now: Timestamp,
    ) -> Result<PatchedBody, PatchFault> {
        self.patched(task, name, now, Secrets::Sent { reply_url: None })
    }

    /// Does the same for people to look at: where the request reads secret headers, as that of an undo may, the bodies have
    /// `***` in place of them.
    pub fn preview(
        &self,
        task: &Task,
        name: Option<&str>,
        now: Timestamp,
    ) -> Result<PatchedBody, PatchFault> {
        self.patched(task, name, now, Secrets::Hidden)
    }

    fn patched(
        &self,
        task: &Task,
        name: Option<&str>,
        now: Timestamp,
        secrets: Secrets<'_>,
    ) -> Result<PatchedBody, PatchFault> {
        let step = find(task, name)?;
        let (before, after) = match task.probe_before(step) {
            // The retry is refused, because the outcome of the step is unknown.
            Some(_) => (Payload::null(), Payload::null()),
            None => self.bodies(task, step, now, secrets)?,
        };
        Ok(PatchedBody {
            step,
            before,
            after,
        })
    }

    fn bodies(
        &self,
        task: &Task,
        step: StepIndex,
        now: Timestamp,
        secrets: Secrets<'_>,
    ) -> Result<(Payload, Payload), PatchFault> {
        let budget = Budget::evaluation();
        let body = match &task.step(step).body {
            Some(body) => body.clone(),
            None if task.definition(step).reads_reply => {
                return Err(PatchFault::Request(RenderError::new(
                    "reply.url",
                    "it is secret, and a patched body would keep it: patch the input, or retry the step with a whole body",
                )));
            }
            None => {
                let call = call(task, step, now, now, &budget, secrets);
                let call = call.map_err(PatchFault::Request)?;
                let body = call.body.as_deref().unwrap_or("null").to_owned();
                Payload::parse(body).unwrap_or_else(Payload::null)
            }
        };
        let patch = self.0.render(&task.scope(step, &budget));
        let patch = patch.map_err(PatchFault::Patch)?;
        // A rendered template is JSON.
        let patch = Payload::parse(patch).unwrap_or_else(Payload::null);
        let patched = body.merged(patch.raw());
        Ok((body, patched))
    }
}

fn find(task: &Task, name: Option<&str>) -> Result<StepIndex, PatchFault> {
    let in_error = task
        .indexes()
        .filter(|step| task.is_current(*step) && !task.has_items(*step))
        .filter(|step| task.step(*step).status() == StepStatus::Error)
        .filter(|step| name.is_none_or(|name| task.definition(*step).name.as_str() == name));
    let found: Vec<_> = in_error.take(2).collect();
    match found[..] {
        [] => Err(PatchFault::NoneInError(task.status())),
        [step] => Ok(step),
        _ => Err(PatchFault::SeveralInError),
    }
}
