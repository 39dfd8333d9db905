//! Why a step is not running, as one word and one sentence.

use serde::Serialize;

use crate::{
    adaptive::AdaptedLimit,
    breaker::SlowStartLimit,
    definition::StepWork,
    ids::{AgentName, InstanceId, StepIndex, StepName, WorkflowName},
    step::{StepState, StepStatus},
    task::{Task, TaskStatus},
    task_limits::AwaitedKey,
    time::Timestamp,
};

/// `blocked_by` of a step.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Blocked {
    /// It follows steps that are not done. What undoes a step follows the undos of the steps after it.
    Steps {
        steps: Vec<StepName>,
        /// The number of steps that are not named: only the first few items of a list are.
        #[serde(skip_serializing_if = "Option::is_none")]
        more: Option<u32>,
    },
    /// The task begins then.
    Start { until: Timestamp },
    /// It will be retried later.
    Time { until: Timestamp },
    /// It is a wait, and its time has not come.
    Wait { until: Timestamp },
    /// Its signal has not come. It is awaited until then.
    Signal { until: Timestamp },
    /// It waits for its task, the child: to end, or to be undone. Where the child is in error, that needs an operator.
    Child {
        /// Null until it is made.
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<uuid::Uuid>,
        /// `error` where it needs an operator. Otherwise the child says more.
        state: Option<&'static str>,
    },
    /// It is the group of a list or of iterations, and its items have not all ended.
    Items {
        /// How many have not begun.
        waiting: u32,
        /// How many run, or will as soon as there is a free slot.
        running: u32,
        /// How many need an operator.
        error: u32,
    },
    /// It is repeated, and the next iteration begins then.
    Repeat {
        until: Timestamp,
        /// How many iterations have begun.
        iterations: usize,
        at_most: u16,
    },
    /// It is an item of a list, and so many others run as may at once. One that waits for a retry takes part in that again once
    /// it is due.
    MaxParallel { max_parallel: u16 },
    /// Its agent has no free slot: the step is in the agent's queue.
    Capacity {
        agent: AgentName,
        /// How many steps are ahead of this one in the agent's queue. Counted only when a single task is read, for
        /// the first four agents in whose queues the task has steps; null everywhere else.
        ahead: Option<u64>,
        /// Whether the count of `ahead` stopped at a thousand steps of other tasks: there may be more.
        ahead_is_at_least: bool,
        /// Its agent is `adaptive`, and its limit is lower than the most.
        #[serde(skip_serializing_if = "Option::is_none")]
        adaptive: Option<AdaptedLimit>,
        /// Endpoints of its agent have just recovered, and get few calls at first.
        #[serde(skip_serializing_if = "Option::is_none")]
        slow_start: Option<SlowStartLimit>,
    },
    /// It is in the queue of an agent with the mode `pull`, and no worker has fetched it yet.
    Worker {
        agent: AgentName,
        /// As for `capacity`.
        ahead: Option<u64>,
        ahead_is_at_least: bool,
    },
    /// Its agent has `max_open`, and so many of its replies are awaited: the step is in the agent's queue.
    OpenReplies { agent: AgentName, max_open: u32 },
    /// Its agent has a `rate_limit`, and no further call may begin now: the step is in the agent's queue.
    RateLimit { agent: AgentName, rate: String },
    /// So many steps of its key run, or began of late, as the `limits` of its agent or its workflow allow: the step is in the
    /// agent's queue.
    KeyLimit {
        agent: AgentName,
        /// The workflow whose limit it is; `None`: the limit is the agent's.
        workflow: Option<WorkflowName>,
        /// Of the limit that is reached, which is named by its template, `by`.
        key: String,
        by: String,
        max_in_flight: Option<u32>,
        rate: Option<String>,
    },
    /// The service of its agent asked to be left alone until then, by `Retry-After`: the step is in the agent's queue.
    Throttled {
        agent: AgentName,
        until: Timestamp,
        message: String,
    },
    /// An operator has paused its agent: the step is in the agent's queue.
    AgentPaused {
        agent: AgentName,
        /// `None`: until an operator resumes it.
        until: Option<Timestamp>,
        message: Option<String>,
    },
    /// No endpoint of its agent takes calls, and breakers are open or half-open: the step is in the agent's queue.
    Breaker {
        agent: AgentName,
        /// When a few calls are made again; `None` while some are made, and where an operator decides.
        until: Option<Timestamp>,
        message: String,
    },
    /// The checks of all endpoints of its agent fail: the step is in the agent's queue.
    Unhealthy {
        agent: AgentName,
        /// When one of them is checked again, about.
        until: Option<Timestamp>,
        message: String,
    },
    /// The instance that returned this response lacks a secret that its agent names: the step is in the agent's queue, and
    /// an instance that has the secret takes it.
    Secret { agent: AgentName, message: String },
    /// The instance that returned this response is held: it claims nothing until `POST /v1/hold/release`.
    Held,
    /// Its agent is no longer registered.
    Agent { agent: AgentName },
    /// It undoes a step whose call is being dropped: `instance` has yet to confirm that the call has ended. If the
    /// instance is lost, its lease ends and the step is recovered.
    Drop {
        step: StepName,
        instance: InstanceId,
    },
    /// The task has not begun: so many tasks of one of its keys run as the `limits` of its workflow allow, or older ones
    /// wait.
    TaskLimit { keys: Vec<AwaitedKey> },
    /// The task is paused until an operator resumes it.
    Paused,
    /// It is in error until an operator retries, skips or resolves it.
    Operator,
}

/// So many of the steps are named that one waits for.
const MOST_NAMED: usize = 1000;

impl Task {
    /// The steps that a waiting one still waits for.
    fn awaited(&self, index: StepIndex) -> Blocked {
        let (awaited, more) = match self.definition(index).undoes {
            Some(undone) if self.step(undone).status() == StepStatus::Processing => {
                (vec![undone], 0)
            }
            Some(undone) => {
                let before = self.undone_before(undone);
                (before.named, before.more)
            }
            None => {
                let after = self.definition(index).after.iter().copied();
                let after = after.filter(|step| !self.step(*step).is_done());
                (after.collect(), 0)
            }
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

    /// `None` for a step that is running or has ended. The position in the agent's queue is not filled in: only the
    /// store knows it, and counting it costs a read.
    pub fn blocked_by(&self, index: StepIndex, now: Timestamp) -> Option<Blocked> {
        match self.step(index).state {
            StepState::Waiting
                if self.is_to_be_dropped(self.subject(index))
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
                    // An iteration that is run again, after those before it.
                    Some(_) => Some(Blocked::Steps {
                        steps: vec![group.name.clone()],
                        more: None,
                    }),
                    None => Some(Blocked::MaxParallel {
                        max_parallel: rule.max_parallel(),
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
                let group = self.definition(self.group_of(index));
                Some(Blocked::MaxParallel {
                    max_parallel: group.group_rule()?.max_parallel(),
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
                    // One iteration runs: what keeps it from its end keeps the group.
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
                // An undo waits for the task that its step has made.
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
