//! Loads all that a batch decides on: the heads of the agent queues to claim from, and the tasks, from the cache or in
//! one read.

use std::collections::hash_map::Entry;

use super::{BatchDraft, LoadedTask, Unreadable};
use crate::{
    domain::{
        queue::{LaneRule, QueueRank, QueuedStep, left_to_others},
        task::{Command, Task},
        values::{AgentName, StepRef, TaskId, Timestamp},
    },
    store::{
        LocalScheduler, StoreError, Transaction, UnreadableTask,
        writer::{
            Cache, Damage, Halted,
            command_queue::BatchGuard,
            known_queues::{FoundQueue, KnownQueues},
            load_budget::LoadBudget,
            request::Request,
        },
    },
};
use parking_lot::Mutex;

/// The least number of steps that are read from a queue from which no other instance claims.
const AHEAD: usize = 256;

/// The queues from which a batch may claim.
pub(in crate::store::writer) struct Queues<'w, 'g> {
    pub heads: &'w KnownQueues,
    /// The tasks that this batch decides on.
    pub taken: &'g mut BatchGuard<'w>,
    /// True if no other committer saves anything in the meantime.
    pub may_read: bool,
    pub is_shared: bool,
}

/// Bounds for reading a queue.
struct ReadBounds {
    free: usize,
    /// True if the steps that other instances have just enqueued are left to them.
    leaves_some: bool,
}

/// If a part of an agent's queue is damaged, the batch continues with the queues of other agents.
pub(super) fn damaged(error: StoreError, agent: &AgentName) -> Halted {
    match error {
        StoreError::Unreadable(_) => Halted::Damaged(Damage {
            tasks: Vec::new(),
            queues: vec![agent.clone()],
        }),
        error => error.into(),
    }
}

impl BatchDraft {
    /// Plans claims from the queues whose heads are known, and from those that must be read.
    pub(in crate::store::writer) async fn plan_claims(
        &mut self,
        requests: &[Request],
        queues: &mut Queues<'_, '_>,
        tx: &mut Transaction<'_>,
        local: &dyn LocalScheduler,
    ) -> Result<(), Halted> {
        for request in requests {
            if let Request::ClaimQueued {
                agents,
                leaves_some,
                ..
            } = request
            {
                for agent in agents {
                    // The free slots are read before the rule, because the agent may get slots together with a rule.
                    let free = local.free(agent);
                    let rule = local.lane_rule(agent);
                    let limited = || queues.heads.is_limited(agent);
                    let rule = rule.or_else(|| limited().then(|| LaneRule::undivided().into()));
                    if let Some(rule) = rule {
                        queues.heads.forget(agent);
                        match queues.may_read {
                            true => self.read_lanes(agent, rule, queues, tx, local).await?,
                            false => self.is_unread = true,
                        }
                        continue;
                    }
                    match queues.heads.is_usable(agent) {
                        true => {}
                        false if queues.may_read => {
                            let leaves_some = *leaves_some && local.leaves_to_others(agent);
                            let bounds = ReadBounds { free, leaves_some };
                            self.read_queue(agent, bounds, queues, tx).await?;
                        }
                        // Since the batch began, the known head has become empty or doubtful.
                        false => self.is_unread = true,
                    }
                }
            }
        }
        let (claims, faults) = (&mut self.claims, &self.faults);
        queues.heads.known(|agent, head| {
            let free = local.free(agent);
            if local.lane_rule(agent).is_none()
                && !queues.heads.is_limited(agent)
                && let Some(read) = claims.read(agent, free, 0)
            {
                let task = |position: &QueueRank| position.step().task;
                let steps = head.steps().filter(|position| {
                    !faults.rests(task(position)) && queues.taken.take_task(task(position))
                });
                claims.add_known(agent, read, steps, head.is_whole());
            }
        });
        Ok(())
    }

    async fn read_queue(
        &mut self,
        agent: &AgentName,
        bounds: ReadBounds,
        queues: &Queues<'_, '_>,
        tx: &mut Transaction<'_>,
    ) -> Result<(), Halted> {
        let ReadBounds { free, leaves_some } = bounds;
        let is_shared = queues.is_shared;
        if self.left_out.queues.contains(agent) {
            return Ok(());
        }
        let Some(mut read) = self.claims.read(agent, free, self.faults.len()) else {
            return Ok(());
        };
        if !is_shared {
            // On a shared store the steps that are read are locked, and other instances would pass them over.
            read.limit = read.limit.max(AHEAD);
        }
        let leaves_some = leaves_some && is_shared && !queues.heads.has_own(agent);
        let left = match leaves_some {
            true => left_to_others(self.now),
            false => Timestamp::MAX..Timestamp::MAX,
        };
        let steps = match tx.queued(agent, left, read.limit).await {
            Ok(steps) => steps,
            Err(error) => return Err(damaged(error, agent)),
        };
        let mut is_whole = steps.len() < read.limit;
        if leaves_some {
            is_whole = steps.is_empty() && !tx.has_queued(agent).await?;
        }
        let is_left_alone = |task| self.faults.rests(task);
        let found = steps.iter().map(QueuedStep::rank).collect();
        self.claims.add(agent, read, found, is_whole, is_left_alone);
        self.claimed.found.push(FoundQueue {
            agent: agent.clone(),
            is_whole,
            steps,
        });
        Ok(())
    }

    pub(in crate::store::writer) fn first_queued(&self) -> Option<StepRef> {
        self.claims.first()
    }

    /// Gathers all that the batch reads: from the cache, and the rest in one read.
    pub(in crate::store::writer) async fn gather(
        &mut self,
        requests: &[Request],
        tx: &mut Transaction<'_>,
        cache: &Mutex<Cache>,
    ) -> Result<(), Halted> {
        let mut wanted = Vec::new();
        let mut keys = Vec::new();
        for request in requests {
            match request {
                Request::Submit { idempotency, .. } => {
                    keys.extend(idempotency.as_ref().map(|known| known.key.as_str()));
                }
                Request::Apply { apply, .. } => {
                    wanted.push(apply.task);
                    keys.extend(apply.idempotency.as_ref().map(|known| known.key.as_str()));
                }
                Request::ClaimQueued { .. } | Request::Write(_) | Request::Leases(_) => {}
            }
        }
        if !keys.is_empty() {
            let known = tx.idempotency(&keys).await?;
            self.keys = known.into_iter().map(|k| (k.key.clone(), k)).collect();
        }
        wanted.extend(self.claims.steps().map(|step| step.task));
        let mut missing = self.look_up(wanted, cache);
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            let out = self.left_out.tasks.iter().map(|out| out.task);
            let out: Vec<_> = out.collect();
            let is_left_out = |task: &TaskId| out.contains(task);
            let (left_out, mut missing): (Vec<_>, Vec<_>) =
                missing.into_iter().partition(is_left_out);
            if missing.len() > 1 {
                self.make_room(requests, &mut missing, tx).await?;
            }
            let mut loaded = tx.load(&missing).await?;
            if loaded.is_spoilt {
                return Err(Halted::Damaged(Damage {
                    tasks: loaded.unreadable,
                    queues: Vec::new(),
                }));
            }
            for task in loaded.tasks {
                self.tasks
                    .insert(task.id(), LoadedTask::on(task, false, &self.terms));
            }
            let of_batch = |out: &&UnreadableTask| left_out.contains(&out.task);
            let left_out = self.left_out.tasks.iter().filter(of_batch).cloned();
            loaded.unreadable.extend(left_out);
            for why in loaded.unreadable {
                let cancels = |request: &Request| match request {
                    Request::Apply { apply, .. } => {
                        apply.task == why.task && matches!(apply.command, Command::Cancel { .. })
                    }
                    _ => false,
                };
                let salvaged = match requests.iter().any(cancels) {
                    // A record that makes a transaction unusable must not be read again.
                    true => {
                        let with_details = !is_left_out(&why.task);
                        tx.salvage(why.task, with_details).await?
                    }
                    false => None,
                };
                let met_by_operator = |request: &Request| {
                    request.task() == Some(why.task) && request.is_by_operator()
                };
                let unreadable = Unreadable {
                    needs_alert: !requests.iter().any(met_by_operator),
                    why,
                    salvaged: salvaged.map(|task| LoadedTask::on(task, false, &self.terms)),
                };
                self.unreadable.insert(unreadable.why.task, unreadable);
            }
            self.note_missing();
        }
        Ok(())
    }

    /// Leaves out the requests and claims whose tasks would be too large to be loaded together.
    async fn make_room(
        &mut self,
        requests: &[Request],
        missing: &mut Vec<TaskId>,
        tx: &mut Transaction<'_>,
    ) -> Result<(), StoreError> {
        let sizes = match tx.sizes(missing).await {
            Ok(sizes) => sizes,
            // The tasks are read next, and that finds which of them is damaged.
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut budget = LoadBudget::new(&sizes);
        self.most_requests = budget.for_requests(requests, &mut self.claims);
        let mut fitting = requests.iter().take(self.most_requests);
        // If no request asks for claims, they come last.
        let is_last = || self.most_requests == requests.len();
        let claims =
            fitting.any(Request::claims) || is_last() && self.claims.cut(|task| budget.takes(task));
        if !claims {
            self.claims.clear();
        }
        missing.retain(|task| budget.has(*task) || !sizes.contains_key(task));
        Ok(())
    }

    /// A queued step without a task would stay in the queue for ever.
    fn note_missing(&mut self) {
        for StepRef { task, .. } in self.claims.steps() {
            if !self.tasks.contains_key(&task) && !self.unreadable.contains_key(&task) {
                let why = UnreadableTask {
                    task,
                    reason: "the row of the task is missing".to_owned(),
                };
                let unreadable = Unreadable {
                    why,
                    needs_alert: true,
                    salvaged: None,
                };
                self.unreadable.insert(task, unreadable);
            }
        }
    }

    /// Returns the tasks that could not be read and need an alert.
    pub(in crate::store::writer) fn unreadable(&self) -> impl Iterator<Item = &UnreadableTask> {
        let unreported = self.unreadable.values().filter(|found| found.needs_alert);
        unreported.map(|unreadable| &unreadable.why)
    }

    /// Takes the cached tasks into the batch, and returns the others.
    fn look_up(&mut self, wanted: Vec<TaskId>, cache: &Mutex<Cache>) -> Vec<TaskId> {
        let mut cache = cache.lock();
        let mut missing = Vec::new();
        for id in wanted {
            if let Entry::Vacant(entry) = self.tasks.entry(id) {
                match cache.get(&id) {
                    Some(task) => {
                        let cached = true;
                        entry.insert(LoadedTask::on(Task::clone(task), cached, &self.terms));
                    }
                    None => missing.push(id),
                }
            }
        }
        missing
    }
}
