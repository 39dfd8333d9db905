//! The task of a step, as a file mocks it: how it ends is said by the response of the step. A success is a task that was
//! processed, with this output; any other status is one that was undone, or for an undo one that cannot be undone.

use http::StatusCode;
use provost_domain::{
    Attempt, ChildEnd, ChildReport, Command, Payload, Span, StepIndex, Task, template::Budget,
};

use crate::mock::{Behaviour, Mock};

/// A step that waits for its task.
pub(crate) struct ChildStep {
    pub step: StepIndex,
    pub attempt: Attempt,
    pub workflow: String,
    pub is_undo: bool,
    /// What its task is submitted with, or why it cannot be.
    pub input: Result<Payload, String>,
    /// The task of the step is undone, and its own before it.
    pub is_left: bool,
}

impl ChildStep {
    /// A step whose task has not been asked for yet, as far as `known` says.
    pub fn find(task: &Task, known: impl Fn(StepIndex, Attempt, bool) -> bool) -> Option<Self> {
        task.indexes().find_map(|step| {
            let definition = task.definition(step);
            let rule = definition.child_rule()?;
            let attempt = task.step(step).attempt;
            let is_undo = definition.undoes.is_some();
            let is_left = task.undo.is_some() && !is_undo;
            if !task.waits_for_child(step) || known(step, attempt, is_left) {
                return None;
            }
            let budget = Budget::evaluation();
            let fields = rule.render(&task.scope(step, &budget));
            Some(Self {
                step,
                attempt,
                workflow: rule.workflow.to_string(),
                is_undo,
                input: match is_undo {
                    true => Ok(Payload::null()),
                    false => fields
                        .map(|fields| fields.input)
                        .map_err(|error| format!("its task could not be made: {error}")),
                },
                is_left,
            })
        })
    }

    pub fn method(&self) -> &'static str {
        match self.is_undo {
            true => "UNDO",
            false => "TASK",
        }
    }

    fn report(&self, report: ChildReport) -> Command {
        report.to(self.step, self.attempt)
    }

    pub fn undone(&self) -> Command {
        let end = ChildEnd::Undone(None);
        self.report(ChildReport::Ended { child: None, end })
    }

    pub fn refused(&self, message: String) -> Command {
        self.report(ChildReport::Refused(message))
    }

    /// What comes of its task, and when. `None`: it does not end.
    pub fn end(&self, mock: &Mock) -> Result<Option<(Span, Command)>, String> {
        let response = match &mock.behaviour {
            Behaviour::Responds(response) if response.later.is_none() => response,
            Behaviour::Never => return Ok(None),
            _ => {
                return Err(format!(
                    "the task of a step ends with `status` and `body`, or `never`, and not in any other way (workflow {})",
                    self.workflow
                ));
            }
        };
        let status: StatusCode = response.status;
        let command = match (status.is_success(), self.is_undo) {
            (true, _) => {
                let output = response.body.clone().unwrap_or_else(Payload::null);
                let end = ChildEnd::Processed(output);
                self.report(ChildReport::Ended { child: None, end })
            }
            (false, true) => self.refused("its task cannot be undone, as it is mocked".to_owned()),
            (false, false) => {
                let why = Some(format!("as it is mocked, with {}", status.as_u16()));
                let end = ChildEnd::Undone(why);
                self.report(ChildReport::Ended { child: None, end })
            }
        };
        Ok(Some((mock.delay, command)))
    }
}
