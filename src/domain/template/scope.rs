//! What templates see: `input`, `task` (id, key, labels), `steps.<name>.output`; in an undo also the
//! step's own `output` and `request`, in a probe the `response`. Nothing is parsed or copied before an expression reads it.

use std::{collections::BTreeMap, sync::Arc};

use minijinja::{
    Value,
    value::{Enumerator, Object},
};

use crate::domain::{Payload, StepName, TaskId};

pub struct Scope<'a> {
    pub task_id: TaskId,
    pub key: Option<&'a str>,
    pub labels: &'a BTreeMap<String, String>,
    pub input: &'a Payload,
    /// The steps that the definition's `reads` lists. A skipped step without output reads as null.
    pub steps: Vec<(&'a StepName, Option<&'a Payload>)>,
    /// In an undo: the output of the step that is undone.
    pub output: Option<&'a Payload>,
    /// In an undo: the request of the step that is undone, with its `method`, `path`, `headers` and
    /// `body`.
    pub request: Option<&'a Payload>,
    /// In a probe: the answer, with its `status` and `body`.
    pub response: Option<&'a Payload>,
}

impl<'a> Scope<'a> {
    pub(super) fn step(&self, name: &str) -> Option<Option<&'a Payload>> {
        self.steps
            .iter()
            .find(|(step, _)| step.as_str() == name)
            .map(|(_, output)| *output)
    }

    pub(super) fn task_value(&self, key: &str) -> Option<Value> {
        match key {
            "id" => Some(Value::from(self.task_id.to_string())),
            "key" => Some(Value::from(self.key)),
            "labels" => Some(Value::from_pairs(
                self.labels
                    .iter()
                    .map(|(label, value)| (label.as_str(), value.as_str())),
            )),
            _ => None,
        }
    }

    /// The context of an evaluation. `task` is built only for those that read it.
    pub(super) fn root(&self, reads_task: bool) -> Value {
        let task = reads_task.then(|| {
            Value::from_pairs(
                ["id", "key", "labels"]
                    .into_iter()
                    .filter_map(|key| Some((key, self.task_value(key)?))),
            )
        });
        let steps = self
            .steps
            .iter()
            .map(|(name, output)| ((*name).clone(), output.cloned()))
            .collect();
        Value::from_object(Root {
            task,
            input: self.input.clone(),
            steps: Value::from_object(Steps(steps)),
            output: self.output.cloned(),
            request: self.request.cloned(),
            response: self.response.cloned(),
        })
    }
}

pub(super) fn output_value(output: Option<&Payload>) -> Value {
    output.map_or_else(|| Value::from(()), |output| output.value().clone())
}

#[derive(Debug)]
struct Root {
    task: Option<Value>,
    input: Payload,
    steps: Value,
    output: Option<Payload>,
    request: Option<Payload>,
    response: Option<Payload>,
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "input" => Some(self.input.value().clone()),
            "task" => self.task.clone(),
            "steps" => Some(self.steps.clone()),
            "output" => Some(self.output.as_ref()?.value().clone()),
            "request" => Some(self.request.as_ref()?.value().clone()),
            "response" => Some(self.response.as_ref()?.value().clone()),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Steps(Vec<(StepName, Option<Payload>)>);

impl Object for Steps {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let name = key.as_str()?;
        let (_, output) = self.0.iter().find(|(step, _)| step.as_str() == name)?;
        let output = output_value(output.as_ref());
        Some(Value::from_pairs([("output", output)]))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let names = self.0.iter().map(|(name, _)| Value::from(name.as_str()));
        Enumerator::Values(names.collect())
    }
}
