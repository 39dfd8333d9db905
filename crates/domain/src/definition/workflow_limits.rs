//! The limits that a workflow declares: how many of its tasks with one key run at once, and how many of their steps.

use std::{ops::RangeInclusive, sync::Arc};

use provost_object::{Bounds, Object};
use serde::Serialize;
use serde_json::value::RawValue;

use super::key_limit::{KeyLimit, LONGEST_SOURCE, parse_key};
use crate::{
    template::{Origin, Template},
    values::{
        FieldFault, Fields,
        rate::{MOST_BURST, Rate, RateLimitSpec},
    },
};

const MOST_LIMITS: usize = 4;
pub const MOST_RUNNING: RangeInclusive<i64> = 1..=10_000;

/// A limit of a workflow on its steps.
#[derive(Debug)]
pub struct StepLimit {
    pub(crate) key: Template,
    pub limit: KeyLimit,
}

impl StepLimit {
    pub(crate) fn new(limit: KeyLimit) -> Self {
        let key = Template::parse(&limit.by, Origin::Stored);
        Self {
            key: key.unwrap_or_else(|_| Template::literal("")),
            limit,
        }
    }
}

/// A limit of the tasks with one key that run at once.
#[derive(Debug)]
pub struct TaskLimit {
    /// The template of the key, as it was submitted.
    pub by: String,
    pub(crate) key: Template,
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

/// The treatment of a task for which the limit has no room.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnConflict {
    /// It waits until there is room: the oldest first.
    Wait,
    /// It is refused.
    Reject,
    /// The tasks that run are cancelled, and it waits for their end.
    Replace,
}

impl OnConflict {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

impl TaskLimit {
    /// Reads the limits of a definition, and takes them out of its fields. Returns those of its tasks, and those of
    /// their steps.
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
    let max_in_flight = fields.integer("max_in_flight", 1..=i64::from(KeyLimit::MOST_IN_FLIGHT));
    let has_rate = given(&fields, "rate");
    let rate: Option<Rate> = fields.take("rate", &Bounds::ANY);
    let burst = fields.integer("burst", 1..=i64::from(MOST_BURST));
    if burst.is_some() && !has_rate {
        fields.missing("rate", "`burst` is the burst of a rate");
    }
    let burst = burst.map(|burst| burst as u32);
    let rate_limit = rate.map(|rate| RateLimitSpec { rate, burst });
    if let Some(rate_limit) = &rate_limit {
        fields.extend(rate_limit.object_faults(pointer));
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
