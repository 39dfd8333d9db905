//! Predicts which tasks will be late. The instance that supervises does this; the others report to it how many steps
//! they complete. It has nothing to do without a task that must be complete at a time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    clock::{self, Instant},
    domain::{
        agent::AgentStop,
        task::Task,
        values::{AgentName, InstanceId, Span, TaskId, Timestamp},
        view::{
            AgentAvailability, AgentOutlook, AtRisk, Pace, Prediction, at_risk_subject, predict,
        },
    },
    instance::LocalLease,
    store::{CountedSteps, LimitedEnd, MOST_AT_RISK, PredictionChanges, Store, StoreError},
};

/// The number of tasks that are loaded together.
const PAGE: usize = 50;
/// The time after which a round starts no further page; the next round continues.
const LONGEST_ROUND: Duration = Duration::from_millis(200);
/// The rest after a round, as a multiple of its duration.
const RESTS: u32 = 20;
/// A task with more steps in sequence may be found late only when its time comes nearer.
const STEPS_IN_A_ROW: u32 = 100;
/// The most agents that have an alert, because steps that name URLs could add any number of agents.
const MOST_ALERTS: usize = 100;

pub(in crate::service) struct Predictions {
    agents: Arc<Agents>,
    store: Store,
    instance: InstanceId,
    local_lease: Arc<LocalLease>,
    interval: Duration,
    /// True if there is an alert for each agent that makes tasks late.
    alerts: bool,
    reported: CountedSteps,
    /// The counters of each process at the last look.
    counted: HashMap<InstanceId, CountedSteps>,
    paces: HashMap<AgentName, Pace>,
    cycle: Option<Cycle>,
}

/// One pass through all tasks that may be late, over several rounds if there are many.
struct Cycle {
    /// The tasks at risk in the store.
    known: HashMap<TaskId, AtRisk>,
    /// The tasks of `known` that still are at risk, and new ones.
    seen: HashSet<TaskId>,
    last: Option<LimitedEnd>,
}

impl PeriodicLoop for Predictions {
    const NAME: &'static str = "predictions";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let begun = clock::instant();
        self.report().await?;
        if self.local_lease.term(begun).is_none() {
            self.rest();
            return Ok(NextRound::AfterInterval);
        }
        let reader = &self.store.housekeeping;
        if !reader.is_anything_predicted().await? {
            self.rest();
            return Ok(NextRound::AfterInterval);
        }
        let mut cycle = match self.cycle.take() {
            Some(cycle) => cycle,
            None => Cycle {
                known: reader.at_risk().await?.into_iter().collect(),
                seen: HashSet::new(),
                last: None,
            },
        };
        self.forget_ended(&mut cycle).await?;
        let now = self.store.housekeeping.now().await?;
        let outlooks = self.outlooks(now).await?;
        let is_over = self.go_on(&mut cycle, &outlooks, now, begun).await?;
        if !is_over {
            self.cycle = Some(cycle);
        }
        let rest = begun.elapsed() * RESTS;
        Ok(NextRound::After(rest.max(self.interval)))
    }
}

impl Predictions {
    pub fn new(
        agents: Arc<Agents>,
        store: Store,
        instance: InstanceId,
        local_lease: Arc<LocalLease>,
        interval: Span,
        alerts: bool,
    ) -> Self {
        Self {
            agents,
            store,
            instance,
            local_lease,
            interval: interval.duration(),
            alerts,
            reported: CountedSteps::new(),
            counted: HashMap::new(),
            paces: HashMap::new(),
            cycle: None,
        }
    }

    /// Rests without a query. The durations of steps on this instance are still measured.
    fn rest(&mut self) {
        self.cycle = None;
        let own = self.store.step_counter.counted();
        let complete = self.complete_since([(self.instance.clone(), own)].into());
        self.paces.retain(|agent, _| complete.contains_key(agent));
        for (agent, complete) in complete {
            let pace = self.paces.entry(agent).or_default();
            pace.look(Timestamp::from_millis(0), complete, false);
        }
    }

    /// Returns the numbers of steps that were completed since the last look, by agent. An instance that was unknown at
    /// the last look adds nothing yet.
    fn complete_since(&mut self, counted: HashMap<InstanceId, CountedSteps>) -> CountedSteps {
        let mut complete = CountedSteps::new();
        for (instance, counted) in &counted {
            let before = self.counted.get(instance);
            for (agent, counted) in counted {
                let of_all = complete.entry(agent.clone()).or_default();
                if let Some(before) = before {
                    let before = before.get(agent).copied().unwrap_or_default();
                    *of_all = of_all.plus(counted.since(before));
                }
            }
        }
        self.counted = counted;
        complete
    }

    /// Reports the counters of this instance to the instance that predicts, if the store is shared.
    async fn report(&mut self) -> Result<(), StoreError> {
        let counted = self.store.step_counter.counted();
        if !self.store.is_shared || counted == self.reported {
            return Ok(());
        }
        let instance = self.instance.clone();
        self.store.report_counted_steps(instance, &counted).await?;
        self.reported = counted;
        Ok(())
    }

    /// Returns the outlook of each agent that has work.
    async fn outlooks(
        &mut self,
        now: Timestamp,
    ) -> Result<HashMap<AgentName, AgentOutlook>, StoreError> {
        let reader = &self.store.housekeeping;
        let mut outlooks = HashMap::new();
        for agent in reader.queued_agents().await? {
            let queue = reader.queue_outline(&agent).await?;
            let outlook = AgentOutlook {
                queue,
                ..AgentOutlook::default()
            };
            outlooks.insert(agent, outlook);
        }
        let mut counted: HashMap<_, _> = match self.store.is_shared {
            true => reader.counted_steps().await?.into_iter().collect(),
            false => HashMap::new(),
        };
        counted.insert(self.instance.clone(), self.store.step_counter.counted());
        let complete = self.complete_since(counted);
        let known: HashSet<_> = complete.keys().chain(outlooks.keys()).cloned().collect();
        self.paces.retain(|agent, _| known.contains(agent));
        for name in known {
            let outlook = outlooks.entry(name.clone()).or_default();
            let counted = complete.get(&name).copied();
            let is_queued = !outlook.queue.0.is_empty();
            let pace = self.paces.entry(name.clone()).or_default();
            pace.look(now, counted.unwrap_or_default(), is_queued);
            outlook.step_time = pace.step_time();
            // The rate of an agent is unknown if no instance counts its steps.
            outlook.per_second = counted.and_then(|_| pace.per_second(now));
        }
        for agent in self.agents.list() {
            if let Some(stopped) = agent.stopped() {
                let outlook = outlooks.entry(agent.name().clone()).or_default();
                outlook.called_from = called_from(&stopped);
            }
        }
        Ok(outlooks)
    }

    /// Looks at as many tasks as one round may. Returns true if all have been looked at.
    async fn go_on(
        &mut self,
        cycle: &mut Cycle,
        outlooks: &HashMap<AgentName, AgentOutlook>,
        now: Timestamp,
        begun: Instant,
    ) -> Result<bool, StoreError> {
        let until = horizon(outlooks, now);
        let is_over = loop {
            let reader = &self.store.housekeeping;
            let page = reader.limited_ends(cycle.last, until, PAGE).await?;
            let ids: Vec<_> = page.iter().map(|end| end.task).collect();
            let mut changes = PredictionChanges::default();
            for task in reader.tasks_of(&ids).await?.tasks {
                cycle.predict(&task, outlooks, now, &mut changes);
            }
            // The changes are saved page by page, so that no command of a caller waits for many rows.
            self.save(changes).await?;
            cycle.last = page.last().copied().or(cycle.last);
            if page.len() < PAGE {
                break true;
            }
            if begun.elapsed() > LONGEST_ROUND {
                break false;
            }
        };
        if is_over {
            let is_gone = |(task, at_risk): &(&TaskId, &AtRisk)| {
                // Another instance knew the rate of the agent, and this one will know it soon.
                let outlook = outlooks.get(&at_risk.agent);
                let is_unknown = outlook.is_some_and(AgentOutlook::has_unknown_wait);
                !cycle.seen.contains(*task) && !is_unknown
            };
            let gone = cycle.known.iter().filter(is_gone).map(|(task, _)| *task);
            let gone: Vec<_> = gone.collect();
            self.remove(cycle, &gone).await?;
        }
        let mut late = BTreeMap::<AgentName, usize>::new();
        for at_risk in cycle.known.values() {
            *late.entry(at_risk.agent.clone()).or_default() += 1;
        }
        self.change_alerts(&late).await?;
        Ok(is_over)
    }

    /// Removes tasks that have ended, so that others may be recorded.
    async fn forget_ended(&self, cycle: &mut Cycle) -> Result<(), StoreError> {
        let ended = self.store.housekeeping.ended_at_risk().await?;
        self.remove(cycle, &ended).await
    }

    async fn remove(&self, cycle: &mut Cycle, tasks: &[TaskId]) -> Result<(), StoreError> {
        for page in tasks.chunks(PAGE) {
            self.save(PredictionChanges {
                remove: page.to_vec(),
                ..PredictionChanges::default()
            })
            .await?;
            for task in page {
                cycle.known.remove(task);
            }
        }
        Ok(())
    }

    /// Raises and closes alerts, so that each of these agents has one with its number of late tasks, or only
    /// [`MOST_ALERTS`] of them.
    async fn change_alerts(&self, late: &BTreeMap<AgentName, usize>) -> Result<(), StoreError> {
        let open = self.store.housekeeping.at_risk_alerts().await?;
        let mut open: HashSet<_> = open.into_iter().collect();
        let late = late.iter().filter(|_| self.alerts);
        let (kept, mut new): (Vec<_>, Vec<_>) =
            late.partition(|(agent, _)| open.remove(&at_risk_subject(agent)));
        new.sort_by_key(|(_, tasks)| Reverse(**tasks));
        new.truncate(MOST_ALERTS.saturating_sub(kept.len()));
        let raise = new.into_iter().map(|(agent, tasks)| {
            let message = format!(
                "tasks will be late by what is known of agent {agent}, {tasks} when this was raised: GET /v1/tasks?at_risk=true lists them"
            );
            (agent.clone(), message)
        });
        self.save(PredictionChanges {
            raise: raise.collect(),
            close: open.into_iter().collect(),
            ..PredictionChanges::default()
        })
        .await
    }

    async fn save(&self, changes: PredictionChanges) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.store.save_predictions(changes).await
    }
}

impl Cycle {
    fn predict(
        &mut self,
        task: &Task,
        outlooks: &HashMap<AgentName, AgentOutlook>,
        now: Timestamp,
        changes: &mut PredictionChanges,
    ) {
        // The state of the agents at the start of a task that has not started cannot be predicted.
        let limit = task.overdue_at().filter(|_| task.start_at.is_none());
        let (Some(complete_by), Some(prediction)) =
            (limit, predict(task, now, |agent| outlooks.get(agent)))
        else {
            return;
        };
        let before = self.known.get(&task.id());
        if !prediction.is_late(complete_by, now, before.is_some()) {
            return;
        }
        self.seen.insert(task.id());
        // A prediction that has improved only a little is not changed.
        let is_known = before.is_some_and(|before| {
            !prediction.is_late(complete_by, now, false)
                || !prediction.differs(&of_record(before), now)
        });
        if is_known || before.is_none() && self.known.len() >= MOST_AT_RISK {
            return;
        }
        let at_risk = AtRisk {
            predicted_end: prediction.end,
            agent: prediction.agent,
            since: before.map_or(now.max(task.created_at), |before| before.since),
        };
        self.known.insert(task.id(), at_risk.clone());
        changes.put.push((task.id(), at_risk));
    }
}

fn of_record(at_risk: &AtRisk) -> Prediction {
    Prediction {
        end: at_risk.predicted_end,
        agent: at_risk.agent.clone(),
    }
}

/// Returns the time after which a task's time limit is so late that the task is not late.
fn horizon(outlooks: &HashMap<AgentName, AgentOutlook>, now: Timestamp) -> Timestamp {
    let step = outlooks.values().map(|outlook| outlook.step_time).max();
    let steps = step.unwrap_or_default().saturating_mul(STEPS_IN_A_ROW);
    let waits = outlooks.values().map(|outlook| outlook.longest_wait(now));
    // The time for which an agent is not called may be unknown.
    let Some(waits) = waits.collect::<Option<Vec<_>>>() else {
        return Timestamp::MAX;
    };
    let wait = waits.into_iter().max().unwrap_or_default();
    now + Span::from(wait.saturating_add(steps))
}

fn called_from(stopped: &AgentStop) -> AgentAvailability {
    let until = match stopped {
        AgentStop::Paused(pause) => pause.until,
        AgentStop::Throttled(throttle) => Some(throttle.until),
        AgentStop::Breaker { until, .. } => *until,
        // The next check may find the endpoint healthy.
        AgentStop::Unhealthy { until, .. } if until.is_none() => return AgentAvailability::Now,
        AgentStop::Unhealthy { until, .. } => *until,
        AgentStop::Rate(_) => return AgentAvailability::Now,
        AgentStop::Secret(_) => None,
    };
    until.map_or(AgentAvailability::Unknown, AgentAvailability::At)
}
