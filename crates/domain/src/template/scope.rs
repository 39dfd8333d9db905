//! The values that templates can read: `input`, `task` (id, key, labels, times), `steps.<name>` with its output, state,
//! error, attempts and items; in an undo also the step's own `output` and `request` and the error that caused it, in a
//! probe the `response`, in the condition of a signal its payload, in a request that is replied to later the address of
//! the `reply`; in an item of a group its `item` and `index`. No value is read or copied before an expression needs it.

use std::collections::BTreeMap;

use super::{
    Budget, RenderError,
    budget::ITEM,
    eval_error::EvalResult,
    number::Number,
    record::{ResponseFacts, StepFacts, TaskRecord},
    value::{ChargedVec, Member, Value},
    write::Out,
};
use crate::{
    template::payload::Payload,
    values::{
        fault::Fault,
        ids::{StepName, TaskId},
        time::Timestamp,
    },
};

/// The members of `steps.<name>`.
pub(super) const STEP_MEMBERS: [&str; 9] = [
    "output", "state", "error", "attempts", "items", "status", "headers", "winner", "winners",
];
/// The members of `task`, but for those of an undo.
pub(super) const TASK_MEMBERS: [&str; 5] = ["id", "key", "labels", "created_at", "started_at"];
/// The members of `task` that only the expressions of a task that exists can read.
pub(super) const TASK_TIMES: [&str; 2] = ["created_at", "started_at"];
/// The members of `task` that the expressions of an undo can read besides.
pub(super) const UNDO_TASK_MEMBERS: [&str; 2] = ["state", "error"];

#[derive(Clone)]
pub struct Scope<'a> {
    pub task_id: TaskId,
    pub key: Option<&'a str>,
    /// The state of the task, or that in which it ends. Only undos and the steps that run when all others have ended read it.
    pub state: &'static str,
    pub labels: &'a BTreeMap<String, String>,
    pub input: Option<&'a Payload>,
    /// The block in which the names of steps are looked up, and then in those around it: the first parts of their names,
    /// each with a dot behind it. The empty text: they are whole.
    pub block: &'a str,
    /// The steps that the definition's `reads` lists. A skipped step without output reads as null.
    pub steps: Vec<(&'a StepName, Option<&'a Payload>)>,
    /// The record of the task. `None` where there is none yet, as in a dry run.
    pub record: Option<&'a dyn TaskRecord>,
    /// In an undo: the output of the step that is undone.
    pub output: Option<&'a Payload>,
    /// In an undo: the request of the step that is undone, with its `method`, `path`, `headers` and
    /// `body`.
    pub request: Option<&'a Payload>,
    /// In a probe: the response, with its `status` and `body`.
    pub response: Option<&'a Payload>,
    /// In the condition of a signal: its payload.
    pub signal: Option<&'a Payload>,
    /// In the request of a step whose service replies later: the address for the reply.
    pub reply_url: Option<&'a str>,
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
            state: "",
            labels: &NO_LABELS,
            input: None,
            block: "",
            steps: Vec::new(),
            record: None,
            output: None,
            request: None,
            response: None,
            signal: None,
            reply_url: None,
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

    /// Returns the whole name of a step, and its output.
    pub(super) fn step(
        &self,
        name: &str,
        budget: &Budget,
    ) -> EvalResult<Option<(&'a str, Option<&'a Payload>)>> {
        let mut block = self.block;
        loop {
            budget.charge_each(self.steps.len(), 4)?;
            let is_named = |step: &str| {
                let own = step.strip_prefix(block);
                own.is_some_and(|own| own == name)
            };
            let mut steps = self.steps.iter();
            if let Some((step, output)) = steps.find(|(step, _)| is_named(step.as_str())) {
                return Ok(Some((step.as_str(), *output)));
            }
            let Some(inside) = block.strip_suffix('.') else {
                return Ok(None);
            };
            // The block around it.
            block = &inside[..inside.rfind('.').map_or(0, |dot| dot + 1)];
        }
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
        if let ("reply", Some(url)) = (name, self.reply_url) {
            budget.allocate(size_of::<Member<'_>>())?;
            return Ok(Value::Map(
                vec![(Value::Text("url"), Value::Text(url))].into(),
            ));
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
            "created_at" => self
                .record
                .map(|record| time_value(Some(record.created_at()), budget))
                .transpose()?,
            "started_at" => match self.record {
                Some(record) => {
                    budget.charge_each(record.step_count(), 4)?;
                    Some(time_value(record.started_at(), budget)?)
                }
                None => None,
            },
            "state" => Some(Value::Text(self.state)),
            "error" => {
                let cause = self.record.and_then(|record| record.undo_cause());
                Some(fault_value(cause, budget)?)
            }
            _ => None,
        })
    }

    /// Returns a member of a step other than its output, or `None` if a step has no such member.
    pub(super) fn step_value(
        &self,
        step: &str,
        output: Option<&'a Payload>,
        part: &str,
        budget: &Budget,
    ) -> EvalResult<Option<Value<'a>>> {
        if part == "items" {
            let Some(record) = self.record else {
                return Ok(None);
            };
            budget.charge_each(record.step_count(), 4)?;
            let Some(items) = record.items(step) else {
                return Ok(None);
            };
            let mut list = ChargedVec::new(budget);
            for item in items {
                list.push(self.whole_step(&item, budget)?)?;
            }
            return Ok(Some(Value::list(list.items)));
        }
        if let "winner" | "winners" = part {
            return self.winners(step, part, budget).map(Some);
        }
        let facts = self.facts(step, output, budget)?;
        Ok(match part {
            "state" => Some(Value::Text(facts.state)),
            "error" => Some(fault_value(facts.error, budget)?),
            "attempts" => Some(Value::Number(Number::int(facts.attempts.into()))),
            "status" => Some(status_value(facts.response)),
            "headers" => Some(headers_value(facts.response, budget)?),
            _ => None,
        })
    }

    /// Returns the name of the step that has won the race before a step, or the list of all that have. Where there is no
    /// race before it, or none has won yet, the name is null and the list is empty.
    fn winners(&self, step: &str, part: &str, budget: &Budget) -> EvalResult<Value<'a>> {
        let Some(record) = self.record else {
            return Ok(Value::Null);
        };
        budget.charge_each(record.step_count(), 4)?;
        let winners = record.winners(step).unwrap_or_default();
        if part == "winner" {
            let first = winners.first();
            return Ok(first.map_or(Value::Null, |name| Value::Text(name)));
        }
        let mut list = ChargedVec::new(budget);
        for name in winners {
            list.push(Value::Text(name))?;
        }
        Ok(Value::list(list.items))
    }

    /// Returns the object of a step. Its items are not among the members: they are read by their name alone.
    pub(super) fn step_object(
        &self,
        step: &str,
        output: Option<&'a Payload>,
        budget: &Budget,
    ) -> EvalResult<Value<'a>> {
        let facts = StepFacts {
            output,
            ..self.facts(step, output, budget)?
        };
        self.whole_step(&facts, budget)
    }

    fn facts(
        &self,
        step: &str,
        output: Option<&'a Payload>,
        budget: &Budget,
    ) -> EvalResult<StepFacts<'a>> {
        let Some(record) = self.record else {
            return Ok(StepFacts::of_output(output));
        };
        budget.charge_each(record.step_count(), 4)?;
        let facts = record.step(step);
        Ok(facts.unwrap_or_else(|| StepFacts::of_output(output)))
    }

    fn whole_step(&self, facts: &StepFacts<'a>, budget: &Budget) -> EvalResult<Value<'a>> {
        let attempts = Number::int(facts.attempts.into());
        let members = [
            ("output", self.output_value(facts.output, budget)?),
            ("state", Value::Text(facts.state)),
            ("error", fault_value(facts.error, budget)?),
            ("attempts", Value::Number(attempts)),
        ];
        if facts.response.is_none() {
            return object(members, budget);
        }
        let [output, state, error, attempts] = members;
        let response = [
            ("status", status_value(facts.response)),
            ("headers", headers_value(facts.response, budget)?),
        ];
        let [status, headers] = response;
        object([output, state, error, attempts, status, headers], budget)
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

fn object<'a, const N: usize>(
    members: [(&'static str, Value<'a>); N],
    budget: &Budget,
) -> EvalResult<Value<'a>> {
    budget.charge_each(N, ITEM)?;
    budget.allocate(N * size_of::<Member<'_>>())?;
    let members = members.map(|(name, value)| (Value::Text(name), value));
    Ok(Value::Map(Vec::from(members).into()))
}

fn time_value<'a>(time: Option<Timestamp>, budget: &Budget) -> EvalResult<Value<'a>> {
    time.map_or(Ok(Value::Null), |time| {
        Value::built(&time.to_string(), budget)
    })
}

/// Returns the status of a kept response; null if none is kept.
fn status_value<'a>(response: Option<ResponseFacts<'a>>) -> Value<'a> {
    response.map_or(Value::Null, |response| {
        Value::Number(Number::int(response.status.into()))
    })
}

fn headers_value<'a>(
    response: Option<ResponseFacts<'a>>,
    budget: &Budget,
) -> EvalResult<Value<'a>> {
    let Some(ResponseFacts { headers, .. }) = response else {
        return Ok(Value::Null);
    };
    budget.charge_each(headers.len(), ITEM)?;
    budget.allocate(headers.len() * size_of::<Member<'_>>())?;
    let headers = headers.iter();
    let headers = headers.map(|(name, value)| (Value::Text(name), Value::Text(value)));
    Ok(Value::Map(headers.collect::<Vec<_>>().into()))
}

/// Returns a fault as expressions read it; null if there is none.
fn fault_value<'a>(fault: Option<&'a Fault>, budget: &Budget) -> EvalResult<Value<'a>> {
    let Some(fault) = fault else {
        return Ok(Value::Null);
    };
    let text = |text: Option<&'a str>| text.map_or(Value::Null, Value::Text);
    let status = fault.status.map(|status| Number::int(status.into()));
    object(
        [
            ("kind", Value::Text(fault.kind.as_str())),
            ("message", Value::Text(&fault.message)),
            ("status", status.map_or(Value::Null, Value::Number)),
            ("body", text(fault.body.as_deref())),
            ("step", text(fault.step.as_ref().map(StepName::as_str))),
        ],
        budget,
    )
}
