//! When a task will be complete, by what is known now: the steps that it has left, how long their agents take of late,
//! and what waits before it in their queues. Nothing here decides anything: it is what operators are shown.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    definition::StepWork,
    ids::{AgentName, ReceiverName, StepIndex},
    step::{StepState, StepStatus},
    task::{Task, TaskState},
    time::{Span, Timestamp},
    turn::Turn,
};

/// While its queue was never empty, an agent's pace is measured over this time.
const MEASURED: Span = Span::from_secs(60);
/// A measurement says something once it has taken so many times as long as a step.
const STEP_TIMES: u32 = 2;
/// So much of the time that is left, as a divisor, must a task gain before it is no longer at risk: otherwise it would
/// go to and fro.
const MARGIN: i64 = 10;

/// Steps of an agent that are complete, counted since a process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CompleteSteps {
    pub steps: u64,
    /// Those of them that needed one attempt. Between the attempts of others, they may have waited for an operator.
    pub timed: u64,
    /// How long these took, from their claims to their responses.
    pub millis: u64,
}

impl CompleteSteps {
    /// `took`: of a step that needed one attempt.
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

    /// What came since `before`. A process that began again has counted from zero.
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

/// How fast an agent works, as looks at it show.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pace {
    complete: u64,
    step_time: Duration,
    /// When so many steps were complete. Its queue was not empty since.
    queued_since: VecDeque<(Timestamp, u64)>,
}

impl Pace {
    /// What is complete since the last look, and whether steps are in its queue now.
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

    /// How long a step takes of late.
    pub fn step_time(&self) -> Duration {
        self.step_time
    }

    /// How many of its steps are complete in a second while others wait. `None`: nobody knows yet.
    pub fn per_second(&self, now: Timestamp) -> Option<f64> {
        let (since, complete_then) = *self.queued_since.front()?;
        let measured = now.since(since);
        let is_new = self.queued_since.len() < 3;
        if is_new || measured < self.step_time.saturating_mul(STEP_TIMES) || measured.is_zero() {
            return None;
        }
        // One that has completed none may complete the first one now.
        let complete = ((self.complete - complete_then) as f64).max(0.5);
        Some(complete / measured.as_secs_f64())
    }
}

/// What waits for an agent: so many steps from one turn to another, for several such ranges.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct QueueOutline(pub Vec<QueueRange>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRange {
    pub first: Turn,
    pub last: Turn,
    pub steps: u64,
}

impl QueueOutline {
    /// About how many steps are ahead of one with this turn.
    pub fn ahead_of(&self, turn: Turn) -> f64 {
        let ahead = self.0.iter().map(|range| {
            let (first, last) = (range.first.as_millis(), range.last.as_millis());
            let share = match (turn.as_millis() - first) as f64 / (last - first) as f64 {
                // All are of one turn.
                share if share.is_nan() => 0.5,
                share => share.clamp(0.0, 1.0),
            };
            range.steps as f64 * share
        });
        ahead.sum()
    }
}

/// From when an agent is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CalledFrom {
    #[default]
    Now,
    At(Timestamp),
    /// An operator must resume it.
    Unknown,
}

/// What is known of an agent.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AgentOutlook {
    pub step_time: Duration,
    pub per_second: Option<f64>,
    pub queue: QueueOutline,
    pub called_from: CalledFrom,
}

impl AgentOutlook {
    /// How long a step waits at most. `None`: nobody knows.
    pub fn longest_wait(&self, now: Timestamp) -> Option<Duration> {
        let steps = self.queue.0.iter().map(|range| range.steps).sum::<u64>();
        let queue = self.wait(steps as f64);
        let called_from = match self.called_from {
            CalledFrom::Now => Duration::ZERO,
            CalledFrom::At(at) => at.since(now),
            CalledFrom::Unknown => return None,
        };
        Some(queue.max(called_from))
    }

    /// Whether steps wait, and nobody knows yet for how long.
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
    /// That most of the time goes to.
    pub agent: AgentName,
}

/// What is shown of a task that will be late by what is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AtRisk {
    /// When it will be complete if all goes on as it does; null if an operator must resume the agent first.
    pub predicted_end: Option<Timestamp>,
    /// The agent that most of the time goes to.
    pub agent: AgentName,
    /// Since when it is known.
    pub since: Timestamp,
}

/// Under which the alert about tasks that an agent makes late is open at most once. No configured receiver and no origin
/// has such a name.
pub fn at_risk_subject(agent: &AgentName) -> ReceiverName {
    ReceiverName::new(format!("at-risk:{agent}"))
}

/// A step on the way to the end of its task.
#[derive(Clone, Copy)]
struct Reached {
    /// `None`: nobody knows.
    at: Option<i64>,
    /// How long it takes from the end of the last step that it follows.
    own: i64,
    follows: Option<StepIndex>,
}

impl Reached {
    fn key(&self) -> i64 {
        self.at.unwrap_or(i64::MAX)
    }
}

/// When the task will be complete if it goes on as it does. `None` where that is not to be known, as with a step in error,
/// or where no step takes any time.
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
    let done = Reached {
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
            .run()
            .agent()
            .and_then(&outlook)
            .unwrap_or(&unknown);
        let step = task.step(*index);
        let ready = match &step.state {
            StepState::Waiting => ready,
            StepState::Pending { ready_at } => Some(ready_at.as_millis().max(now_millis)),
            // Its items go on. How many iterations follow is not known.
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
                reached[index.at()] = Reached {
                    at: Some(at),
                    own: 0,
                    follows: None,
                };
                continue;
            }
            // Its task has a prediction of its own, and may be done at any moment.
            StepState::Processing { .. } if definition.has_child() => {
                reached[index.at()] = done;
                continue;
            }
            StepState::Processing { .. } => {
                let since = step.started_at.unwrap_or(now);
                let end = since + agent.step_time.into();
                reached[index.at()] = Reached {
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
            // No agent makes it longer or shorter.
            let end = rule.known_end(Timestamp::from_millis(ready));
            let end = end.map_or(ready, |end| end.as_millis().max(ready));
            reached[index.at()] = Reached {
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
            // It may be skipped.
            (Some(_), _) => ready,
            (None, None) => None,
            (None, Some(ready)) => {
                // What is ahead is worked off while it waits for the steps that it follows.
                let queue = now + agent.wait(agent.queue.ahead_of(task.turn())).into();
                let called_from = match agent.called_from {
                    CalledFrom::Now => Some(now),
                    CalledFrom::At(at) => Some(at),
                    CalledFrom::Unknown => None,
                };
                called_from.map(|called_from| {
                    let begins = called_from.max(queue).as_millis().max(ready);
                    let takes = agent.step_time.saturating_mul(rounds_left(task, *index));
                    begins.saturating_add(Span::from(takes).as_millis())
                })
            }
        };
        let begun = ready.unwrap_or(now_millis);
        reached[index.at()] = Reached {
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
        agent: task.definition(longest).run().agent()?.clone(),
    })
}

/// How often a step runs one after the other: of a group with many items more than once.
fn rounds_left(task: &Task, index: StepIndex) -> u32 {
    let (Some(group), Some(rule)) = (task.group(index), task.definition(index).group_rule()) else {
        return 1;
    };
    let counts = task.steps.counts_of(&group.items);
    let left = counts.live() + counts.count(StepStatus::Waiting);
    left.div_ceil(rule.max_parallel().into()).max(1)
}

impl Prediction {
    /// Whether the task will be late. One that `was` at risk must gain some time first.
    pub fn is_late(&self, complete_by: Timestamp, now: Timestamp, was: bool) -> bool {
        let Some(end) = self.end else { return true };
        let left = end.as_millis().saturating_sub(now.as_millis()).max(0);
        let margin = if was { left / MARGIN } else { 0 };
        end.as_millis().saturating_add(margin) > complete_by.as_millis()
    }

    /// Whether it says something else than the one before, which is worth a write.
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
