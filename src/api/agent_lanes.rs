//! The limits of keys and the fairness of an agent, as the API takes and shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{App, Problem};
use crate::{
    agent::Agent,
    domain::{
        AgentSpec, Fairness, FieldFault, Fields, KeyLimit, RateLimitSpec, StepLane, read_rate,
    },
};

/// The longest template of a key.
const LONGEST_TEMPLATE: usize = 500;
/// The longest key that has a weight.
const LONGEST_KEY: usize = 64;
/// How many lanes a response lists.
const MOST_LANES: usize = 20;
/// How far the steps of a lane are counted.
const MOST_QUEUED: usize = 1000;

/// How many steps of one key may run at once, or how many may begin in a time. `max_in_flight`, `rate` or both.
#[derive(ToSchema)]
#[schema(as = KeyLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct KeyLimitBody {
    /// A template of the key, made of `task` and `input`, at most 500 bytes long. Tasks for which it cannot be made share the empty key.
    #[schema(pattern = "[{][{]", example = "{{ task.labels.customer }}")]
    by: String,
    /// The most steps of one key that run at once, all instances together. Steps whose reply is awaited count too.
    #[schema(minimum = 1, maximum = 10_000, example = 5)]
    max_in_flight: Option<u32>,
    /// How many steps of one key may begin in a second (`s`), a minute (`m`) or an hour (`h`), all instances together.
    #[schema(pattern = "^[0-9]+/[smh]$", example = "10/s")]
    rate: Option<String>,
    /// How many may begin at once after a rest. Default: what the rate gives in a tenth of a second, at least 1.
    #[schema(minimum = 1, maximum = 100_000, example = 10)]
    burst: Option<u32>,
}

/// Keys take turns at the agent, however many steps of one are queued.
#[derive(ToSchema)]
#[schema(as = Fairness)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct FairnessBody {
    /// A template of the key, made of `task` and `input`, at most 500 bytes long. Tasks for which it cannot be made share the empty key.
    #[schema(pattern = "[{][{]", example = "{{ task.labels.customer }}")]
    by: String,
    /// How many steps a key has in its turn, 1 to 100. Default: 1.
    #[schema(example = json!({"acme": 3}))]
    weights: Option<BTreeMap<String, u32>>,
}

/// The steps of an agent that have the same keys.
#[derive(Serialize, ToSchema)]
#[schema(as = Lane)]
pub struct LaneView {
    /// One key for each template that `limits` and `fairness` name, each template once, in their order.
    #[schema(max_items = 5, example = json!(["acme"]))]
    keys: Vec<String>,
    #[schema(example = 120)]
    queued: u64,
    /// Whether the count stopped at a thousand.
    queued_is_at_least: bool,
    #[schema(example = 5)]
    running: u32,
}

impl LaneView {
    /// The first lanes with queued steps.
    pub async fn first(app: &App, agent: &Agent) -> Result<Option<Vec<Self>>, Problem> {
        let Some(rule) = agent.lane_rule() else {
            return Ok(None);
        };
        let reader = &app.store.reader;
        let lanes = reader.lanes(agent.name(), MOST_LANES, MOST_QUEUED).await?;
        let names: Vec<_> = lanes.iter().map(|(lane, _)| rule.runs_in(lane)).collect();
        let usage = reader.key_usage(agent.name(), Some(&names), &[]).await?;
        let mut views: Vec<Self> = Vec::new();
        for ((lane, queued), runs_in) in lanes.into_iter().zip(names) {
            let Some(keys) = rule.keys(&lane) else {
                continue;
            };
            let is_at_least = queued >= MOST_QUEUED as u64;
            // Steps with one key of the agent may stand apart, because their workflows limit them.
            match views.iter_mut().find(|view| view.keys == keys) {
                Some(view) => {
                    view.queued += queued;
                    view.queued_is_at_least |= is_at_least;
                }
                None => views.push(Self {
                    keys,
                    queued,
                    queued_is_at_least: is_at_least,
                    running: usage.running.get(&runs_in).copied().unwrap_or(0),
                }),
            }
        }
        Ok(Some(views))
    }
}

/// The queued steps of an agent that one workflow limits.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkflowSteps)]
pub struct WorkflowStepsView {
    #[schema(example = "sync")]
    workflow: String,
    #[schema(example = 120)]
    queued: u64,
    /// Whether there may be more: of each key a thousand are counted, of the first twenty keys.
    queued_is_at_least: bool,
}

impl WorkflowStepsView {
    /// `None` if no workflow limits a step that is queued.
    pub async fn first(app: &App, agent: &Agent) -> Result<Option<Vec<Self>>, Problem> {
        let reader = &app.store.reader;
        let lanes = reader.lanes(agent.name(), MOST_LANES, MOST_QUEUED).await?;
        let has_more = lanes.len() >= MOST_LANES;
        let mut views: Vec<Self> = Vec::new();
        for (lane, queued) in lanes {
            let Some(StepLane { workflow, .. }) = StepLane::of(&lane) else {
                continue;
            };
            let is_at_least = has_more || queued >= MOST_QUEUED as u64;
            match views.iter_mut().find(|view| view.workflow == workflow) {
                Some(view) => {
                    view.queued += queued;
                    view.queued_is_at_least |= is_at_least;
                }
                None => views.push(Self {
                    workflow,
                    queued,
                    queued_is_at_least: is_at_least,
                }),
            }
        }
        Ok((!views.is_empty()).then_some(views))
    }
}

pub fn read(fields: &mut Fields<'_>, spec: &mut AgentSpec) {
    let limits = fields.array("limits").unwrap_or_default();
    for (at, limit) in limits.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("limits"));
        match read_limit(limit, &pointer) {
            Ok(limit) => spec.limits.push(limit),
            Err(faults) => fields.extend(faults),
        }
    }
    let fairness = fields.object("fairness").map(read_fairness);
    match fairness.transpose() {
        Ok(fairness) => spec.fairness = fairness,
        Err(faults) => fields.extend(faults),
    }
}

fn read_limit(limit: &RawValue, pointer: &str) -> Result<KeyLimit, Vec<FieldFault>> {
    let mut fields = Fields::of(limit, pointer)?;
    let by = read_key(&mut fields);
    let max_in_flight = fields.integer("max_in_flight", KeyLimit::MOST_IN_FLIGHT);
    let rate = read_rate(&mut fields);
    let burst = fields.integer("burst", RateLimitSpec::BURSTS);
    fields.finish()?;
    Ok(KeyLimit {
        by: by.ok_or_else(Vec::new)?,
        max_in_flight: max_in_flight.map(|most| most as u32),
        rate,
        burst: burst.map(|burst| burst as u32),
    })
}

fn read_fairness(mut fields: Fields<'_>) -> Result<Fairness, Vec<FieldFault>> {
    let by = read_key(&mut fields);
    let mut weights = BTreeMap::new();
    for (key, pointer, weight) in fields.entries("weights") {
        let fault = match serde_json::from_str::<u32>(weight.get()) {
            _ if key.len() > LONGEST_KEY => {
                format!("its name must be at most {LONGEST_KEY} bytes long")
            }
            Ok(weight) => {
                weights.insert(key, weight);
                continue;
            }
            Err(_) => "must be a whole number from 1 to 100".to_owned(),
        };
        fields.extend([FieldFault::new(pointer, fault)]);
    }
    fields.finish()?;
    Ok(Fairness {
        by: by.ok_or_else(Vec::new)?,
        weights,
    })
}

fn read_key(fields: &mut Fields<'_>) -> Option<String> {
    if fields.peek("by").is_none() {
        let remedy = "give a template of the key, such as \"{{ task.labels.customer }}\"";
        fields.missing("by", remedy);
    }
    fields.string("by", LONGEST_TEMPLATE)
}
