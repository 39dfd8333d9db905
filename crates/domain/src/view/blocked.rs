//! The reason why a step is not running, as one word and one sentence.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::{adaptive::AdaptedLimit, breaker::SlowStartLimit, endpoint::AgentStop},
    definition::StepWork,
    queue::task_limits::AwaitedKey,
    task::{
        aggregate::Task,
        status::TaskStatus,
        step::{StepState, StepStatus},
    },
    values::{
        ids::{AgentName, InstanceId, StepIndex, StepName, WorkflowName},
        time::Timestamp,
    },
};

/// The reason why a step is not running.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Blocked {
    /// It follows steps that are not done. The undo of a step follows the undos of the steps after it.
    #[schema(title = "BlockedBySteps")]
    Steps {
        #[schema(value_type = Vec<String>, example = json!(["reserve"]))]
        steps: Vec<StepName>,
        /// The number of steps that are not named: only the first ten items of a list are. Absent if all are named.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(example = 20)]
        more: Option<u32>,
    },
    /// The task begins at this time.
    #[schema(title = "BlockedByStart")]
    Start { until: Timestamp },
    /// It will be retried later.
    #[schema(title = "BlockedByTime")]
    Time { until: Timestamp },
    /// It is a wait, and its time has not come.
    #[schema(title = "BlockedByWait")]
    Wait { until: Timestamp },
    /// Its signal has not come. It is awaited until this time.
    #[schema(title = "BlockedBySignal")]
    Signal { until: Timestamp },
    /// It waits for its task to end, or to be undone. A task in error needs an operator.
    #[schema(title = "BlockedByChild")]
    Child {
        /// Absent until it is made.
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<uuid::Uuid>,
        /// `error` if the task needs an operator; otherwise null.
        #[schema(value_type = Option<TaskStatus>, required)]
        state: Option<&'static str>,
    },
    /// It is run for each item of a list, or repeated, and the items have not all ended.
    #[schema(title = "BlockedByItems")]
    Items {
        /// The number of items that have not begun.
        #[schema(example = 30)]
        waiting: u32,
        /// The number of items that run, or will run as soon as there is a free slot.
        #[schema(example = 10)]
        running: u32,
        /// The number of items that need an operator.
        #[schema(example = 1)]
        error: u32,
    },
    /// It is repeated, and the next iteration begins at this time.
    #[schema(title = "BlockedByRepeat")]
    Repeat {
        until: Timestamp,
        /// The number of iterations that have begun.
        #[schema(value_type = u32, example = 3)]
        iterations: usize,
        #[schema(example = 20)]
        at_most: u16,
    },
    /// It is an item of a list, and `max_parallel` other items run. An item that waits for a retry competes again once
    /// the retry is due.
    #[schema(title = "BlockedByMaxParallel")]
    MaxParallel {
        #[schema(example = 10)]
        max_parallel: u16,
    },
    /// Its agent has no free slot: the step is in the agent's queue.
    #[schema(title = "BlockedByCapacity")]
    Capacity {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        /// The number of steps that are ahead of this one in the agent's queue. Counted only when a single task is
        /// read, for the first four agents in whose queues the task has steps; null in all other cases.
        #[schema(required, example = 12)]
        ahead: Option<u64>,
        /// True if the count of `ahead` stopped at a thousand steps of other tasks: there may be more.
        #[schema(example = false)]
        ahead_is_at_least: bool,
        /// Only if its agent is `adaptive`, and its limit is lower than the maximum.
        #[serde(skip_serializing_if = "Option::is_none")]
        adaptive: Option<AdaptedLimit>,
        /// Only while endpoints of its agent have just recovered, and get few calls at first.
        #[serde(skip_serializing_if = "Option::is_none")]
        slow_start: Option<SlowStartLimit>,
    },
    /// It is in the queue of an agent with the mode `pull`, and no worker has fetched it yet.
    #[schema(title = "BlockedByWorker")]
    Worker {
        #[schema(value_type = String, example = "video")]
        agent: AgentName,
        /// As for `capacity`.
        #[schema(required, example = 12)]
        ahead: Option<u64>,
        /// As for `capacity`.
        #[schema(example = false)]
        ahead_is_at_least: bool,
    },
    /// Its agent has `max_open`, and that number of its replies is awaited: the step is in the agent's queue.
    #[schema(title = "BlockedByOpenReplies")]
    OpenReplies {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        #[schema(example = 1000)]
        max_open: u32,
    },
    /// Its agent has a `rate_limit`, and no further call may begin now: the step is in the agent's queue.
    #[schema(title = "BlockedByRateLimit")]
    RateLimit {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        #[schema(example = "50/s")]
        rate: String,
    },
    /// As many steps with its key run, or began recently, as the `limits` of its agent or its workflow allow: the step
    /// is in the agent's queue.
    #[schema(title = "BlockedByKeyLimit")]
    KeyLimit {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        /// The workflow that has the limit; null for a limit of the agent.
        #[schema(value_type = Option<String>, required, example = "order")]
        workflow: Option<WorkflowName>,
        /// The key of the limit that is reached. The limit is named by its template, `by`.
        #[schema(example = "acme")]
        key: String,
        #[schema(example = "{{ task.labels.customer }}")]
        by: String,
        #[schema(required, example = 5)]
        max_in_flight: Option<u32>,
        #[schema(required, example = "10/s")]
        rate: Option<String>,
    },
    /// The service of its agent asked for no calls until this time, by `Retry-After`: the step is in the agent's queue.
    #[schema(title = "BlockedByThrottled")]
    Throttled {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        until: Timestamp,
        #[schema(example = "the service responded 429 Too Many Requests")]
        message: String,
    },
    /// An operator has paused its agent: the step is in the agent's queue.
    #[schema(title = "BlockedByAgentPaused")]
    AgentPaused {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        /// Null: until an operator resumes the agent.
        #[schema(required)]
        until: Option<Timestamp>,
        /// The reason that the operator gave.
        #[schema(required, example = "maintenance of the database")]
        message: Option<String>,
    },
    /// No endpoint of its agent takes calls, and breakers are open or half-open: the step is in the agent's queue.
    #[schema(title = "BlockedByBreaker")]
    Breaker {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        /// The time at which a few calls are made again; null while some are made, and if an operator opened the
        /// breaker.
        #[schema(required)]
        until: Option<Timestamp>,
        #[schema(example = "20 of 24 calls in 30s failed")]
        message: String,
    },
    /// The checks of all endpoints of its agent fail: the step is in the agent's queue.
    #[schema(title = "BlockedByUnhealthy")]
    Unhealthy {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        /// The approximate time at which one of the endpoints is checked again.
        #[schema(required)]
        until: Option<Timestamp>,
        #[schema(
            example = "3 checks in a row failed; the last one: GET /health responded 503 Service Unavailable"
        )]
        message: String,
    },
    /// The instance that returned this response lacks a secret that its agent names: the step is in the agent's queue,
    /// and an instance that has the secret takes it.
    #[schema(title = "BlockedBySecret")]
    Secret {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
        #[schema(example = "the secret `payments-token` cannot be used: its file does not exist")]
        message: String,
    },
    /// The instance that returned this response is held: it claims nothing until `POST /v1/hold/release`.
    #[schema(title = "BlockedByHeld")]
    Held,
    /// Its agent is no longer registered.
    #[schema(title = "BlockedByAgent")]
    Agent {
        #[schema(value_type = String, example = "payments")]
        agent: AgentName,
    },
    /// It undoes a step whose call is being dropped: `instance` has yet to confirm that the call has ended. If the
    /// instance is lost, its lease ends and the step is recovered.
    #[schema(title = "BlockedByDrop")]
    Drop {
        #[schema(value_type = String, example = "charge")]
        step: StepName,
        #[schema(value_type = String, example = "node-1")]
        instance: InstanceId,
    },
    /// The task has not begun: as many tasks with one of its keys run as the `limits` of its workflow allow, or older
    /// tasks wait.
    #[schema(title = "BlockedByTaskLimit")]
    TaskLimit {
        #[schema(max_items = 4)]
        keys: Vec<AwaitedKey>,
    },
    /// The task is paused until an operator resumes it.
    #[schema(title = "BlockedByPaused")]
    Paused,
    /// It is in error until an operator retries, skips or resolves it.
    #[schema(title = "BlockedByOperator")]
    Operator,
}

/// The most steps that are named.
const MOST_NAMED: usize = 1000;

impl Task {
    /// Returns the steps for which a waiting step still waits.
    fn awaited(&self, index: StepIndex) -> Blocked {
        let undoes = self.definition(index).undoes;
        let (awaited, more) = match undoes.filter(|_| !self.is_revert(index)) {
            Some(undone) if self.step(undone).status() == StepStatus::Processing => {
                (vec![undone], 0)
            }
            Some(undone) => {
                let before = self.undone_before(undone);
                (before.named, before.more)
            }
            None => (self.steps_before(index), 0),
        };
        let unnamed = awaited.len().saturating_sub(MOST_NAMED) as u32;
        let names = awaited.into_iter().take(MOST_NAMED);
        Blocked::Steps {
            steps: names
                .map(|step| self.definition(step).name.clone())
                .collect(),
            more: Some(more + unnamed).filter(|more| *more > 0),
        }
    }

    /// Returns the reason why a step is not running, `None` for a step that is running or has ended. The position in
    /// the agent's queue is not filled in: only the store knows it, and counting it costs a read.
    pub fn blocked_by(&self, index: StepIndex, now: Timestamp) -> Option<Blocked> {
        match self.step(index).state {
            StepState::Waiting
                if (self.is_to_be_dropped(self.subject(index))
                    || self.is_withdrawn(self.subject(index)))
                    && !self.is_awaited(self.subject(index)) =>
            {
                let step = self.subject(index);
                Some(Blocked::Drop {
                    step: self.definition(step).name.clone(),
                    instance: match &self.step(step).state {
                        StepState::Processing { held_by, .. } => held_by.instance()?.clone(),
                        _ => return None,
                    },
                })
            }
            StepState::Waiting
                if self.start_at.is_some() && self.definition(index).after.is_empty() =>
            {
                self.start_at.map(|until| Blocked::Start { until })
            }
            StepState::Waiting
                if let Some(item) = self.definition(index).item
                    && self.waits_for_event(item.group) =>
            {
                let group = self.definition(item.group);
                let rule = group.group_rule().filter(|_| self.is_current(index))?;
                match rule.repeat() {
                    // An iteration is run again, after the iterations before it.
                    Some(_) => Some(Blocked::Steps {
                        steps: vec![group.name.clone()],
                        more: None,
                    }),
                    None => Some(Blocked::MaxParallel {
                        max_parallel: self.max_parallel(self.group_of(index)),
                    }),
                }
            }
            StepState::Waiting => Some(self.awaited(index)),
            StepState::Pending { .. } if self.paused => Some(Blocked::Paused),
            StepState::Pending { .. } if self.waits => Some(Blocked::TaskLimit {
                keys: self.details.awaited_keys(),
            }),
            StepState::Pending { ready_at } if ready_at > now => {
                Some(Blocked::Time { until: ready_at })
            }
            StepState::Pending { .. } if self.step(index).awaits_turn => {
                Some(Blocked::MaxParallel {
                    max_parallel: self.max_parallel(self.group_of(index)),
                })
            }
            StepState::Pending { .. } => Some(Blocked::Capacity {
                agent: self.definition(index).agent()?.clone(),
                ahead: None,
                ahead_is_at_least: false,
                adaptive: None,
                slow_start: None,
            }),
            StepState::Processing { complete_by, .. } if self.waits_for_event(index) => {
                let until = complete_by;
                if let Some(group) = self.group(index) {
                    if let Some(until) = self.next_begin(index) {
                        return Some(Blocked::Repeat {
                            until,
                            iterations: group.items.len(),
                            at_most: group.at_most().unwrap_or_default(),
                        });
                    }
                    // One iteration runs: the reason why it is blocked also blocks the group.
                    if group.at_most().is_some()
                        && let Some(at) = group.items.iter().rev().find(|at| {
                            let status = self.steps[*at].status();
                            matches!(status, StepStatus::Pending | StepStatus::Processing)
                        })
                        // There are at most as many steps as an index can count.
                        && let Some(blocked) = self.blocked_by(StepIndex(at as u16), now)
                    {
                        return Some(blocked);
                    }
                    let counts = self.steps.counts_of(&group.items);
                    return Some(Blocked::Items {
                        waiting: counts.count(StepStatus::Waiting),
                        running: counts.live(),
                        error: counts.count(StepStatus::Error),
                    });
                }
                Some(match self.definition(index).work {
                    StepWork::Signal(_) => Blocked::Signal { until },
                    _ => Blocked::Wait { until },
                })
            }
            StepState::Processing { .. } if self.waits_for_child(index) => {
                // An undo waits for the child of the step that it undoes.
                let made = self.step(self.subject(index)).child.as_ref();
                let child = self.step(index).child.as_ref().or(made);
                let in_error = child.filter(|child| child.state == TaskStatus::Error);
                Some(Blocked::Child {
                    task: child.map(|child| child.id.0),
                    state: in_error.map(|child| child.state.as_str()),
                })
            }
            StepState::Error(_) if self.is_current(index) && !self.is_ended() => {
                Some(Blocked::Operator)
            }
            // Steps that an undo abandoned wait for nothing.
            StepState::Error(_)
            | StepState::Processing { .. }
            | StepState::Processed { .. }
            | StepState::Skipped { .. }
            | StepState::Cancelled { .. }
            | StepState::Undone { .. } => None,
        }
    }
}

impl AgentStop {
    /// Returns what a step of the agent waits for.
    pub fn blocks(self, agent: AgentName) -> Blocked {
        match self {
            Self::Paused(pause) => Blocked::AgentPaused {
                agent,
                until: pause.until,
                message: pause.reason,
            },
            Self::Throttled(throttle) => Blocked::Throttled {
                agent,
                until: throttle.until,
                message: throttle.reason,
            },
            Self::Rate(limit) => Blocked::RateLimit {
                agent,
                rate: limit.rate.to_string(),
            },
            Self::Secret(message) => Blocked::Secret { agent, message },
            Self::Unhealthy { until, reason } => Blocked::Unhealthy {
                agent,
                until,
                message: reason,
            },
            Self::Breaker { until, reason } => Blocked::Breaker {
                agent,
                until,
                message: reason,
            },
        }
    }
}
