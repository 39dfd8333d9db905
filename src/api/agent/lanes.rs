//! The queued steps of an agent by their keys, as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::{App, Problem};
use crate::{agent::Agent, domain::queue::StepLane};

/// The maximum number of lanes in a response.
const MOST_LANES: usize = 20;
/// The steps of a lane are counted up to this number.
const MOST_QUEUED: usize = 1000;

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
    /// Returns the first lanes with queued steps; `None` if the queue is not divided into lanes.
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
    /// Returns the queued steps by workflow; `None` if no workflow limits a queued step.
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
