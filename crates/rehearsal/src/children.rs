//! The child of a step, as a file mocks it. The mocked response of the step decides how the child ends: a success is a
//! child that was processed, with this output; any other status is a child that was undone, or for an undo one that
//! cannot be undone.

use http::StatusCode;
use provost_domain::{
    task::{ChildEnd, ChildReport, Command, Task},
    template::{Budget, Payload},
    values::{Attempt, Span, StepIndex},
};
use serde_json::json;

use crate::mock::{Behaviour, Mock};

/// A step that waits for its child.
pub(crate) struct ChildStep {
    pub step: StepIndex,
    pub attempt: Attempt,
    pub workflow: String,
    pub is_undo: bool,
    /// The input with which the child is submitted, or the reason why it cannot be.
    pub input: Result<Payload, String>,
    /// False if the step is done as soon as its child is made.
    pub is_awaited: bool,
    /// True if the task of the step is being undone, so that the child must be undone before.
    pub is_left: bool,
}

impl ChildStep {
    /// Returns a step whose child has not been handled yet. `known` returns whether it has.
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
                workflow: rule.source.in_words(),
                is_undo,
                is_awaited: rule.is_awaited || is_undo,
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

    /// The child is made, and nobody waits for it. A rehearsal makes none, so the output has no id.
    pub fn begun(&self) -> Command {
        let end = ChildEnd::Processed(Payload::from_value(&json!({ "id": null })));
        self.report(ChildReport::Ended { child: None, end })
    }

    pub fn undone(&self) -> Command {
        let end = ChildEnd::Undone(None);
        self.report(ChildReport::Ended { child: None, end })
    }

    pub fn refused(&self, message: String) -> Command {
        self.report(ChildReport::Refused(message))
    }

    /// Returns the end of the child, and when it comes. `None`: the child does not end.
    pub fn end(&self, mock: &Mock) -> Result<Option<(Span, Command)>, String> {
        if !self.is_awaited {
            return Ok(Some((Span::default(), self.begun())));
        }
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
