//! The values that templates can read: `input`, `task` (id, key, labels), `steps.<name>.output`; in an undo also the
//! step's own `output` and `request`, in a probe the `response`, in the condition of a signal its payload; in an item
//! of a group its `item` and `index`. No value is read or copied before an expression needs it.

use std::collections::BTreeMap;

use super::{
    Budget, RenderError,
    eval_error::EvalResult,
    number::Number,
    value::{Member, Value},
    write::Out,
};
use crate::{
    template::payload::Payload,
    values::ids::{StepName, TaskId},
};

pub struct Scope<'a> {
    pub task_id: TaskId,
    pub key: Option<&'a str>,
    pub labels: &'a BTreeMap<String, String>,
    pub input: Option<&'a Payload>,
    /// The steps that the definition's `reads` lists. A skipped step without output reads as null.
    pub steps: Vec<(&'a StepName, Option<&'a Payload>)>,
    /// In an undo: the output of the step that is undone.
    pub output: Option<&'a Payload>,
    /// In an undo: the request of the step that is undone, with its `method`, `path`, `headers` and
    /// `body`.
    pub request: Option<&'a Payload>,
    /// In a probe: the response, with its `status` and `body`.
    pub response: Option<&'a Payload>,
    /// In the condition of a signal: its payload.
    pub signal: Option<&'a Payload>,
    /// The item, in an item of a group.
    pub item: Option<ItemScope<'a>>,
    /// The budget of all evaluations that are made with this scope, or share it.
    pub budget: &'a Budget,
}

/// An item of a group as its templates see it: its number counts from 0.
#[derive(Clone, Copy, Debug)]
pub enum ItemScope<'a> {
    /// An item of a list, with its value.
    Value(&'a Payload, u16),
    /// An iteration, with the output of the last one before it that has one.
    Iteration {
        previous: Option<&'a Payload>,
        number: u16,
    },
}

impl<'a> Scope<'a> {
    /// Makes a scope for templates that read nothing.
    pub fn empty(budget: &'a Budget) -> Self {
        static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
        Self {
            task_id: TaskId(uuid::Uuid::nil()),
            key: None,
            labels: &NO_LABELS,
            input: None,
            steps: Vec::new(),
            output: None,
            request: None,
            response: None,
            signal: None,
            item: None,
            budget,
        }
    }

    /// Returns the task's input as it was submitted: it is bounded like a rendered document, and not copied.
    pub fn whole_input(&self) -> Result<Payload, RenderError> {
        let spent = self.budget.spent();
        let input = self.input.cloned().unwrap_or_else(Payload::null);
        Out::new(self.budget)
            .charge(input.as_json().len())
            .map_err(|trouble| RenderError::new("input", trouble.in_words(self.budget, spent)))?;
        Ok(input)
    }

    pub(super) fn step(
        &self,
        name: &str,
        budget: &Budget,
    ) -> EvalResult<Option<Option<&'a Payload>>> {
        budget.charge_each(self.steps.len(), 4)?;
        let mut steps = self.steps.iter();
        let found = steps.find(|(step, _)| step.as_str() == name);
        Ok(found.map(|(_, output)| *output))
    }

    pub(super) fn document(&self, name: &str) -> Option<&'a Payload> {
        match name {
            "input" => self.input,
            "output" => self.output,
            "request" => self.request,
            "response" => self.response,
            "signal" => self.signal,
            "item" => match self.item? {
                ItemScope::Value(value, _) => Some(value),
                ItemScope::Iteration { .. } => None,
            },
            "previous" => match self.item? {
                ItemScope::Value(..) => None,
                ItemScope::Iteration { previous, .. } => previous,
            },
            _ => None,
        }
    }

    pub(super) fn named(&self, name: &'a str, budget: &Budget) -> EvalResult<Value<'a>> {
        if let Some(document) = self.document(name) {
            return value_of(document, budget);
        }
        match (name, self.item) {
            ("index", Some(ItemScope::Value(_, number) | ItemScope::Iteration { number, .. })) => {
                return Ok(Value::Number(Number::int(number.into())));
            }
            // The first iteration has no previous output.
            ("previous", Some(ItemScope::Iteration { .. })) => return Ok(Value::Null),
            _ => {}
        }
        if name != "task" {
            return Ok(Value::Missing(name));
        }
        let mut members: Vec<Member<'a>> = Vec::with_capacity(3);
        for part in ["id", "key", "labels"] {
            if let Some(value) = self.task_value(part, budget)? {
                members.push((Value::Text(part), value));
            }
        }
        Ok(Value::Map(members.into()))
    }

    pub(super) fn task_value(&self, part: &str, budget: &Budget) -> EvalResult<Option<Value<'a>>> {
        Ok(match part {
            "id" => Some(Value::built(&self.task_id.to_string(), budget)?),
            "key" => Some(self.key.map_or(Value::Null, Value::Text)),
            "labels" => {
                budget.allocate(self.labels.len() * size_of::<Member<'_>>())?;
                let labels = self.labels.iter();
                let labels = labels.map(|(name, value)| (Value::Text(name), Value::Text(value)));
                Some(Value::Map(labels.collect::<Vec<_>>().into()))
            }
            _ => None,
        })
    }

    pub(super) fn output_value(
        &self,
        output: Option<&'a Payload>,
        budget: &Budget,
    ) -> EvalResult<Value<'a>> {
        output.map_or(Ok(Value::Null), |output| value_of(output, budget))
    }
}

fn value_of<'a>(document: &'a Payload, budget: &Budget) -> EvalResult<Value<'a>> {
    Value::of(document.document().root(budget)?, budget)
}
