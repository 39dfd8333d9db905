//! Limits of running tasks: how many tasks of a workflow that have the same key run at once, and what happens with
//! further ones.

use std::{ops::RangeInclusive, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    Details, FieldFault, Fields, KeyLimit, RateLimitSpec,
    lanes::{parse_key, short},
    rate_limit::read_rate,
    step_limits::StepLimit,
    template::{Origin, Template},
};

const MOST_LIMITS: usize = 4;
const LONGEST_SOURCE: usize = 500;
pub const MOST_RUNNING: RangeInclusive<i64> = 1..=10_000;

/// So many tasks of one key run at once.
#[derive(Debug)]
pub struct TaskLimit {
    /// The template of the key, as it was given.
    pub by: String,
    key: Template,
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

/// What happens with a task that has no room.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnConflict {
    /// It waits until there is room: the oldest first.
    Wait,
    /// It is not accepted.
    Reject,
    /// Those that are there are cancelled, and it waits for their end.
    Replace,
}

impl OnConflict {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// What a task counts for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskKey {
    /// The workflow, the template and the key, as one text.
    pub name: String,
    pub by: String,
    pub key: String,
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

/// One key of a task that waits, as a response shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AwaitedKey {
    pub by: String,
    pub key: String,
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

impl TaskLimit {
    /// The limits of a definition, taken out of its fields: those of its tasks, and those of their steps.
    pub(crate) fn read_all(
        fields: &mut Fields<'_>,
        name: &str,
    ) -> (Arc<[TaskLimit]>, Arc<[StepLimit]>) {
        let given = fields.array(name).unwrap_or_default();
        if given.len() > MOST_LIMITS {
            let message = format!(
                "must hold at most {MOST_LIMITS} limits, holds {}",
                given.len()
            );
            fields.fault(name, message);
        }
        let (mut of_tasks, mut of_steps) = (Vec::new(), Vec::<StepLimit>::new());
        for (at, limit) in given.into_iter().enumerate().take(MOST_LIMITS) {
            let pointer = format!("{}/{at}", fields.pointer(name));
            match read_limit(limit, &pointer) {
                Ok((of_task, of_step)) => {
                    let by = of_step.as_ref().map(|step| &step.limit.by);
                    if by.is_some_and(|by| of_steps.iter().any(|other| other.limit.by == *by)) {
                        let message = "is the key of another limit on steps: say both in one limit";
                        fields.extend([FieldFault::new(format!("{pointer}/by"), message)]);
                    }
                    of_tasks.extend(of_task);
                    of_steps.extend(of_step);
                }
                Err(faults) => fields.extend(faults),
            }
        }
        (of_tasks.into(), of_steps.into())
    }
}

fn read_limit(
    limit: &RawValue,
    pointer: &str,
) -> Result<(Option<TaskLimit>, Option<StepLimit>), Vec<FieldFault>> {
    let mut fields = Fields::of(limit, pointer)?;
    if fields.peek("by").is_none() {
        let remedy = "give a template of the key, such as \"{{ task.labels.customer }}\"";
        fields.missing("by", remedy);
    }
    let by = fields.string("by", LONGEST_SOURCE);
    if let Some(Err(message)) = by.as_deref().map(parse_key) {
        fields.fault("by", message);
    }
    let given = |fields: &Fields<'_>, name| fields.peek(name).is_some_and(|value| value != "null");
    let is_of_steps = ["max_in_flight", "rate", "burst"]
        .into_iter()
        .any(|name| given(&fields, name));
    let is_of_tasks = !is_of_steps || given(&fields, "max_running");
    if !is_of_tasks && given(&fields, "on_conflict") {
        fields.fault("on_conflict", "needs `max_running`: it is for tasks");
    }
    let max_running = fields.integer("max_running", MOST_RUNNING);
    let on_conflict = fields.choice("on_conflict", OnConflict::ALL);
    let max_in_flight = fields.integer("max_in_flight", KeyLimit::MOST_IN_FLIGHT);
    let has_rate = given(&fields, "rate");
    let rate = read_rate(&mut fields);
    let burst = fields.integer("burst", RateLimitSpec::BURSTS);
    if burst.is_some() && !has_rate {
        fields.missing("rate", "`burst` is the burst of a rate");
    }
    let burst = burst.map(|burst| burst as u32);
    let rate_limit = rate.map(|rate| RateLimitSpec { rate, burst });
    for (field, message) in rate_limit.iter().flat_map(RateLimitSpec::faults) {
        fields.fault(field, message);
    }
    fields.finish()?;
    let by = by.ok_or_else(Vec::new)?;
    let of_steps = is_of_steps.then(|| {
        StepLimit::new(KeyLimit {
            by: by.clone(),
            max_in_flight: max_in_flight.map(|most| most as u32),
            rate,
            burst,
        })
    });
    let of_tasks = is_of_tasks.then(|| TaskLimit {
        key: Template::parse(&by, Origin::Stored).unwrap_or_else(|_| Template::literal("")),
        by,
        max_running: max_running.map_or(1, |most| most as u32),
        on_conflict: on_conflict.unwrap_or(OnConflict::Wait),
    });
    Ok((of_tasks, of_steps))
}

impl Details {
    /// What the task counts for, in one order for all tasks.
    pub fn task_keys(&self) -> Vec<TaskKey> {
        let Some(workflow) = &self.workflow else {
            return Vec::new();
        };
        let limits = self.definition.policies.limits.iter();
        let keys = limits.map(|limit| {
            let key = short(self.render_key(&limit.key));
            // Texts always serialise.
            let name = serde_json::to_string(&(workflow.name.as_str(), &limit.by, &key));
            TaskKey {
                name: name.unwrap_or_default(),
                by: limit.by.clone(),
                key,
                max_running: limit.max_running,
                on_conflict: limit.on_conflict,
            }
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        keys.dedup_by(|a, b| a.name == b.name);
        keys
    }

    /// [`Details::task_keys`], as a response shows them.
    pub fn awaited_keys(&self) -> Vec<AwaitedKey> {
        let limits = self.definition.policies.limits.iter();
        let keys = limits.map(|limit| AwaitedKey {
            by: limit.by.clone(),
            key: short(self.render_key(&limit.key)),
            max_running: limit.max_running,
            on_conflict: limit.on_conflict,
        });
        keys.collect()
    }
}
