//! Predicts when a task will be complete, from the steps that it has left, the recent duration of their agents' steps,
//! and the steps that are ahead of them in the agent queues. No rule depends on a prediction: operators see it.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    definition::StepWork,
    task::{
        aggregate::{Task, TaskState},
        step::{StepState, StepStatus},
        turn::Turn,
    },
    values::{
        ids::{AgentName, ReceiverName, StepIndex},
        time::{Span, Timestamp},
    },
};

/// An agent's pace is measured over this time, in which its queue was never empty.
const MEASURED: Span = Span::from_secs(60);
/// A measurement is valid once it has taken this many times as long as a step.
const STEP_TIMES: u32 = 2;
/// A task that is at risk must gain one part in this many of the time that is left before it is no longer at risk.
/// Without this margin it would alternate between the two.
const MARGIN: i64 = 10;

/// The completed steps of an agent, counted since a process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CompleteSteps {
    pub steps: u64,
    /// The steps that needed one attempt. Other steps may have waited for an operator between their attempts.
    pub timed: u64,
    /// The total time, in ms, from the claims of the `timed` steps to their responses.
    pub millis: u64,
}

impl CompleteSteps {
    /// Counts a step. `took` is its duration if it needed one attempt.
    pub fn add(&mut self, took: Option<Duration>) {
        self.steps += 1;
        if let Some(took) = took {
            let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            self.timed += 1;
            self.millis = self.millis.saturating_add(millis);
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            timed: self.timed + other.timed,
            millis: self.millis.saturating_add(other.millis),
        }
    }

    /// Returns the steps since `before`. A process that has restarted has counted from zero: all of its steps are
    /// returned.
    pub fn since(self, before: Self) -> Self {
        let steps = self.steps.checked_sub(before.steps);
        let timed = self.timed.checked_sub(before.timed);
        let millis = self.millis.checked_sub(before.millis);
        match (steps, timed, millis) {
            (Some(steps), Some(timed), Some(millis)) => Self {
                steps,
                timed,
                millis,
            },
            _ => self,
        }
    }
}

/// The speed at which an agent works, measured by regular looks at its counts.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pace {
    complete: u64,
    step_time: Duration,
    /// The count of completed steps at each look since which the queue was never empty.
    queued_since: VecDeque<(Timestamp, u64)>,
}

impl Pace {
    /// Records the steps that were completed since the last look, and whether steps are in the queue now.
    pub fn look(&mut self, now: Timestamp, complete: CompleteSteps, is_queued: bool) {
        if let Some(mean) = complete.millis.checked_div(complete.timed) {
            let mean = Duration::from_millis(mean);
            self.step_time = match self.step_time {
                Duration::ZERO => mean,
                known => (known + mean) / 2,
            };
        }
        self.complete += complete.steps;
        let went_back = self.queued_since.back().is_some_and(|(at, _)| *at > now);
        if !is_queued || went_back {
            self.queued_since.clear();
        }
        if !is_queued {
            return;
        }
        self.queued_since.push_back((now, self.complete));
        let enough = self.step_time.saturating_mul(2 * STEP_TIMES).into();
        let long: Span = MEASURED.max(enough);
        while self.queued_since.len() > 1 && self.queued_since[1].0 + long <= now {
            self.queued_since.pop_front();
        }
    }

    /// Returns the recent mean duration of a step.
    pub fn step_time(&self) -> Duration {
        self.step_time
    }

    /// Returns the number of steps that the agent completes in a second while others wait. `None` while it is not
    /// known.
    pub fn per_second(&self, now: Timestamp) -> Option<f64> {
        let (since, complete_then) = *self.queued_since.front()?;
        let measured = now.since(since);
        let is_new = self.queued_since.len() < 3;
        if is_new || measured < self.step_time.saturating_mul(STEP_TIMES) || measured.is_zero() {
            return None;
        }
        // An agent that has completed no step may complete the first one now.
        let complete = ((self.complete - complete_then) as f64).max(0.5);
        Some(complete / measured.as_secs_f64())
    }
}

/// The steps that wait for an agent, as a number of steps for each of several ranges of turns.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct QueueOutline(pub Vec<QueueRange>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRange {
    pub first: Turn,
    pub last: Turn,
    pub steps: u64,
}

impl QueueOutline {
    /// Returns about how many steps are ahead of one with this turn.
    pub fn ahead_of(&self, turn: Turn) -> f64 {
        let ahead = self.0.iter().map(|range| {
            let (first, last) = (range.first.as_millis(), range.last.as_millis());
            let share = match (turn.as_millis() - first) as f64 / (last - first) as f64 {
                // All steps of the range have one turn.
                share if share.is_nan() => 0.5,
                share => share.clamp(0.0, 1.0),
            };
            range.steps as f64 * share
        });
        ahead.sum()
    }
}

/// The time from which an agent is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AgentAvailability {
    #[default]
    Now,
    At(Timestamp),
    /// An operator must resume the agent first.
    Unknown,
}

/// The data about an agent that a prediction uses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AgentOutlook {
    pub step_time: Duration,
    pub per_second: Option<f64>,
    pub queue: QueueOutline,
    pub called_from: AgentAvailability,
}

impl AgentOutlook {
    /// Returns the longest time that a step waits. `None` while an operator must resume the agent.
    pub fn longest_wait(&self, now: Timestamp) -> Option<Duration> {
        let steps = self.queue.0.iter().map(|range| range.steps).sum::<u64>();
        let queue = self.wait(steps as f64);
        let called_from = match self.called_from {
            AgentAvailability::Now => Duration::ZERO,
            AgentAvailability::At(at) => at.since(now),
            AgentAvailability::Unknown => return None,
        };
        Some(queue.max(called_from))
    }

    /// Returns whether steps wait for an unknown time, because the agent's pace is not known yet.
    pub fn has_unknown_wait(&self) -> bool {
        !self.queue.0.is_empty() && self.per_second.is_none()
    }

    fn wait(&self, ahead: f64) -> Duration {
        let per_second = self.per_second.filter(|per_second| *per_second > 0.0);
        let wait = per_second.map_or(0.0, |per_second| ahead / per_second);
        Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// `None`: not before an operator resumes the agent.
    pub end: Option<Timestamp>,
    /// The agent that most of the time goes to.
    pub agent: AgentName,
}

/// The prediction for a task that will be late.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct AtRisk {
    /// When the task will be complete if the pace stays as it is; null if an operator must resume the agent first.
    #[schema(required)]
    pub predicted_end: Option<Timestamp>,
    /// The agent that most of the time goes to.
    #[schema(value_type = String, example = "payments")]
    pub agent: AgentName,
    /// When the task became at risk.
    pub since: Timestamp,
}

/// Returns the subject of the alert about tasks that an agent makes late: at most one alert with it is open. No
/// configured receiver and no origin has such a name.
pub fn at_risk_subject(agent: &AgentName) -> ReceiverName {
    ReceiverName::new(format!("at-risk:{agent}"))
}

/// A step on the way to the end of its task.
#[derive(Clone, Copy)]
struct StepForecast {
    /// When the step ends, in ms. `None` if an operator must resume its agent first.
    at: Option<i64>,
    /// The time, in ms, from the end of the last step that it follows to its own end.
    own: i64,
    follows: Option<StepIndex>,
}

impl StepForecast {
    fn key(&self) -> i64 {
        self.at.unwrap_or(i64::MAX)
    }
}

/// Predicts when the task will be complete if the pace of its agents stays as it is. Returns `None` if that cannot be
/// known, as with a step in error, or if no step takes any time.
pub fn predict<'o>(
    task: &Task,
    now: Timestamp,
    outlook: impl Fn(&AgentName) -> Option<&'o AgentOutlook>,
) -> Option<Prediction> {
    let goes_on = matches!(task.state, TaskState::Pending | TaskState::Processing);
    if !goes_on || task.paused || task.undo.is_some() {
        return None;
    }
    let unknown = AgentOutlook::default();
    let now_millis = now.as_millis();
    let done = StepForecast {
        at: Some(now_millis),
        own: 0,
        follows: None,
    };
    let mut reached = vec![done; task.steps.len()];
    for index in &task.details.definition.order {
        let definition = task.definition(*index);
        let before = definition.after.iter().copied();
        let follows = before.max_by_key(|before| reached[before.at()].key());
        let ready = follows.map_or(Some(now_millis), |before| reached[before.at()].at);
        let agent = definition
            .rule_to_run()
            .agent()
            .and_then(&outlook)
            .unwrap_or(&unknown);
        let step = task.step(*index);
        let ready = match &step.state {
            StepState::Waiting => ready,
            StepState::Pending { ready_at } => Some(ready_at.as_millis().max(now_millis)),
            // The items of the group continue. The number of iterations that follow is not known.
            StepState::Processing { .. } if task.has_items(*index) => {
                let next = task.next_begin(*index).unwrap_or(now);
                Some(next.as_millis().max(now_millis))
            }
            // The end of a wait is known. A signal may come at any moment.
            StepState::Processing { complete_by, .. } if task.waits_for_event(*index) => {
                let at = match definition.work {
                    StepWork::Signal(_) => now_millis,
                    _ => complete_by.as_millis().max(now_millis),
                };
                reached[index.at()] = StepForecast {
                    at: Some(at),
                    own: 0,
                    follows: None,
                };
                continue;
            }
            // The child has a prediction of its own, and may end at any moment.
            StepState::Processing { .. } if definition.has_child() => {
                reached[index.at()] = done;
                continue;
            }
            StepState::Processing { .. } => {
                let since = step.started_at.unwrap_or(now);
                let end = since + agent.step_time.into();
                reached[index.at()] = StepForecast {
                    at: Some(end.as_millis().max(now_millis)),
                    own: (end.as_millis() - now_millis).max(0),
                    follows: None,
                };
                continue;
            }
            StepState::Error(_) => return None,
            _ => continue,
        };
        if let (StepWork::Wait(rule), None, Some(ready)) =
            (&definition.work, &definition.when, ready)
        {
            // No agent makes a wait longer or shorter.
            let end = rule.known_end(Timestamp::from_millis(ready));
            let end = end.map_or(ready, |end| end.as_millis().max(ready));
            reached[index.at()] = StepForecast {
                at: Some(end),
                own: 0,
                follows,
            };
            continue;
        }
        let condition = definition.when.as_ref();
        let condition = condition.filter(|_| !task.has_items(*index));
        let at = match (condition, ready) {
            (_, ready) if definition.has_child() => ready,
            // The step may be skipped.
            (Some(_), _) => ready,
            (None, None) => None,
            (None, Some(ready)) => {
                // The agent works through the steps that are ahead while this one waits for the steps that it follows.
                let queue = now + agent.wait(agent.queue.ahead_of(task.turn())).into();
                let called_from = match agent.called_from {
                    AgentAvailability::Now => Some(now),
                    AgentAvailability::At(at) => Some(at),
                    AgentAvailability::Unknown => None,
                };
                called_from.map(|called_from| {
                    let begins = called_from.max(queue).as_millis().max(ready);
                    let takes = agent.step_time.saturating_mul(rounds_left(task, *index));
                    begins.saturating_add(Span::from(takes).as_millis())
                })
            }
        };
        let begun = ready.unwrap_or(now_millis);
        reached[index.at()] = StepForecast {
            at,
            own: at.unwrap_or(i64::MAX).saturating_sub(begun),
            follows,
        };
    }
    let last = task.details.definition.order.iter().copied();
    let last = last.max_by_key(|index| reached[index.at()].key())?;
    let end = reached[last.at()].at;
    let path = std::iter::successors(Some(last), |step| reached[step.at()].follows);
    let longest = path.max_by_key(|step| reached[step.at()].own)?;
    if reached[longest.at()].own == 0 {
        return None;
    }
    Some(Prediction {
        end: end.map(Timestamp::from_millis),
        agent: task.definition(longest).rule_to_run().agent()?.clone(),
    })
}

/// Returns how many times a step runs one after the other: more than once for a group with many items.
fn rounds_left(task: &Task, index: StepIndex) -> u32 {
    let Some(group) = task.group(index) else {
        return 1;
    };
    let counts = task.steps.counts_of(&group.items);
    let left = counts.live() + counts.count(StepStatus::Waiting);
    left.div_ceil(task.max_parallel(index).into()).max(1)
}

impl Prediction {
    /// Returns whether the task will be late. A task that `was` at risk must gain some time before it is not.
    pub fn is_late(&self, complete_by: Timestamp, now: Timestamp, was: bool) -> bool {
        let Some(end) = self.end else { return true };
        let left = end.as_millis().saturating_sub(now.as_millis()).max(0);
        let margin = if was { left / MARGIN } else { 0 };
        end.as_millis().saturating_add(margin) > complete_by.as_millis()
    }

    /// Returns whether this differs enough from the prediction before to be worth a write.
    pub fn differs(&self, before: &Self, now: Timestamp) -> bool {
        match (self.end, before.end) {
            (Some(end), Some(before)) => {
                let left = before.as_millis().saturating_sub(now.as_millis()).abs();
                (end.as_millis() - before.as_millis()).abs() > (left / MARGIN).max(1000)
            }
            (end, before) => end != before,
        }
    }
}
