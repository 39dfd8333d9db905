//! One batch: the commands that arrived, decided on aggregates in memory.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use super::{
    Cache, Damage, Failed, Faults, Halted,
    faults::{Culprit, OF_NO_STEP, Panicked, guarded},
    handle::{Apply, Idempotency, Operation, Outcome, Request, Submitted},
    load_budget::LoadBudget,
    purge, registrations,
    stale_refusals::StaleRefusals,
};
use crate::{
    domain::{
        AgentName, AlertChange, Attempt, Call, Command, CommandOutput, Draft, Refusal, Sender,
        StepIndex, StepRef, Task, TaskId, Timestamp, template::Budget,
    },
    planted,
    store::{
        Batch, CommandError, Dispatch, KnownKey, LocalScheduler, Permit, StoreError, Transaction,
        UnreadableTask, Watchers,
        batch::{NewKey, TaskChange},
        metrics::WriterMetrics,
    },
};

/// The most steps claimed from one queue in one transaction.
const CLAIMS: usize = 64;

pub(super) struct BatchDraft {
    now: Timestamp,
    /// Before `now`, so that a local deadline is never later than the complete-by it stands for.
    instant: Instant,
    tasks: HashMap<TaskId, LoadedTask>,
    /// They are there, and cannot be read.
    unreadable: HashMap<TaskId, Unreadable>,
    /// Those of them that are cancelled.
    salvaged: Vec<TaskId>,
    keys: HashMap<String, KnownKey>,
    queues: Vec<QueueHead>,
    replies: Vec<PendingReply>,
    dispatches: Vec<Dispatch>,
    drained: Vec<AgentName>,
    dropped: Vec<(StepRef, Attempt, bool)>,
    pub(super) stale_refusals: StaleRefusals,
    pub(super) batch: Batch,
    /// What panicked when the batch was decided before: it is left out.
    pub(super) culprits: Vec<Culprit>,
    /// What was damaged when the batch was decided before: it is left out too.
    pub(super) left_out: Damage,
    /// The most steps claimed from queues.
    pub(super) most_claims: usize,
    /// The requests whose tasks there was room for.
    most_requests: usize,
    /// What evaluating expressions has cost so far.
    spent: u64,
    /// The claim that is being decided on.
    claiming: Option<StepRef>,
    faults: Arc<Faults>,
}

struct LoadedTask {
    base: Option<u64>,
    draft: Draft,
    /// Not read in this transaction: another instance may have moved it on.
    cached: bool,
}

struct Unreadable {
    why: UnreadableTask,
    /// Not only an operator met it, who is told by the answer.
    is_untold: bool,
    /// Good for one cancel, where one was asked for.
    salvaged: Option<LoadedTask>,
}

pub(super) struct QueueHead {
    agent: AgentName,
    /// Nobody else stands in it.
    is_whole: bool,
    pub(super) steps: Vec<StepRef>,
    /// There was no room for the others.
    pub(super) is_cut: bool,
}

/// The reply that a caller gets after the commit.
enum PendingReply {
    Task(TaskId),
    Replayed(TaskId),
    Refused(CommandError),
    Claimed(usize),
    Other(Outcome),
}

impl BatchDraft {
    pub(super) fn new(now: Timestamp, instant: Instant, faults: Arc<Faults>) -> Self {
        Self {
            now,
            instant,
            tasks: HashMap::new(),
            unreadable: HashMap::new(),
            salvaged: Vec::new(),
            keys: HashMap::new(),
            queues: Vec::new(),
            replies: Vec::new(),
            dispatches: Vec::new(),
            drained: Vec::new(),
            dropped: Vec::new(),
            stale_refusals: StaleRefusals::default(),
            batch: Batch::default(),
            culprits: Vec::new(),
            left_out: Damage::default(),
            most_claims: CLAIMS,
            most_requests: usize::MAX,
            spent: 0,
            claiming: None,
            faults,
        }
    }

    /// Reads the queues that are to be claimed from.
    pub(super) async fn read_queues(
        &mut self,
        requests: &[Request],
        tx: &mut dyn Transaction,
        local: &dyn LocalScheduler,
    ) -> Result<(), Halted> {
        for request in requests {
            if let Request::ClaimQueued { agents, .. } = request {
                for agent in agents {
                    self.read_queue(agent, tx, local).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn first_queued(&self) -> Option<StepRef> {
        self.queues
            .iter()
            .flat_map(|queue| &queue.steps)
            .next()
            .copied()
    }

    /// Brings together all that the batch will look at: from the cache, and the rest in one read.
    pub(super) async fn gather(
        &mut self,
        requests: &[Request],
        tx: &mut dyn Transaction,
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
                Request::ClaimQueued { .. }
                | Request::Other { .. }
                | Request::Leases { .. }
                | Request::Outbox { .. } => {}
            }
        }
        if !keys.is_empty() {
            let known = tx.idempotency(&keys).await?;
            self.keys = known.into_iter().map(|k| (k.key.clone(), k)).collect();
        }
        let queued = self.queues.iter().flat_map(|queue| &queue.steps);
        wanted.extend(queued.map(|step| step.task));
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
                self.tasks.insert(task.id(), LoadedTask::on(task, false));
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
                    // What spoils a transaction must not be looked at again.
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
                    is_untold: !requests.iter().any(met_by_operator),
                    why,
                    salvaged: salvaged.map(|task| LoadedTask::on(task, false)),
                };
                self.unreadable.insert(unreadable.why.task, unreadable);
            }
            self.note_missing();
        }
        Ok(())
    }

    /// Puts off what would be too much to load at once.
    async fn make_room(
        &mut self,
        requests: &[Request],
        missing: &mut Vec<TaskId>,
        tx: &mut dyn Transaction,
    ) -> Result<(), StoreError> {
        let sizes = match tx.sizes(missing).await {
            Ok(sizes) => sizes,
            // They are read next: that finds out which of them it is.
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut budget = LoadBudget::new(&sizes);
        self.most_requests = budget.for_requests(requests, &mut self.queues);
        let claims = requests
            .iter()
            .take(self.most_requests)
            .any(Request::claims);
        if !claims {
            self.queues.clear();
        }
        missing.retain(|task| budget.has(*task) || !sizes.contains_key(task));
        Ok(())
    }

    /// A queued step without a task would stay in the queue for ever.
    fn note_missing(&mut self) {
        for StepRef { task, .. } in self.queues.iter().flat_map(|queue| &queue.steps) {
            if !self.tasks.contains_key(task) && !self.unreadable.contains_key(task) {
                let why = UnreadableTask {
                    task: *task,
                    reason: "the row of the task is missing".to_owned(),
                };
                let unreadable = Unreadable {
                    why,
                    is_untold: true,
                    salvaged: None,
                };
                self.unreadable.insert(*task, unreadable);
            }
        }
    }

    /// The tasks that were met and cannot be read, and that somebody has to be told of.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = &UnreadableTask> {
        let untold = self.unreadable.values().filter(|found| found.is_untold);
        untold.map(|unreadable| &unreadable.why)
    }

    /// Answers what is not cached.
    fn look_up(&mut self, wanted: Vec<TaskId>, cache: &Mutex<Cache>) -> Vec<TaskId> {
        // A panic while holding the lock leaves the cache valid.
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing = Vec::new();
        for id in wanted {
            if let Entry::Vacant(entry) = self.tasks.entry(id) {
                match cache.get(&id) {
                    Some(task) => {
                        let cached = true;
                        entry.insert(LoadedTask::on(Task::clone(task), cached));
                    }
                    None => missing.push(id),
                }
            }
        }
        missing
    }

    async fn read_queue(
        &mut self,
        agent: &AgentName,
        tx: &mut dyn Transaction,
        local: &dyn LocalScheduler,
    ) -> Result<(), Halted> {
        if self.left_out.queues.contains(agent)
            || self.queues.iter().any(|queue| queue.agent == *agent)
        {
            return Ok(());
        }
        let free = local.free(agent).min(self.most_claims);
        let one_by_one = self.most_claims < CLAIMS;
        if free == 0 || (one_by_one && self.first_queued().is_some()) {
            return Ok(());
        }
        // Steps that are left alone stay queued, and must not take the slots of others.
        let most = free + self.faults.len();
        let mut steps = match tx.queued(agent, most).await {
            // The queues of other agents go on.
            Err(StoreError::Unreadable(_)) => {
                return Err(Halted::Damaged(Damage {
                    tasks: Vec::new(),
                    queues: vec![agent.clone()],
                }));
            }
            steps => steps?,
        };
        let is_whole = steps.len() < most;
        steps.retain(|step| !self.faults.rests(step.task));
        steps.truncate(free);
        self.queues.push(QueueHead {
            agent: agent.clone(),
            is_whole,
            steps,
            is_cut: false,
        });
        Ok(())
    }

    /// How many requests were decided on; the others are for the next batch.
    pub(super) fn count(&self) -> usize {
        self.replies.len()
    }

    /// Expressions have cost as much as one evaluation may: what is still to be decided would hold up the
    /// commit of what is decided, and the leases behind it.
    fn is_spent(&self) -> bool {
        self.spent >= Budget::EVALUATION
    }

    /// Decides the requests in the order of arrival: all, or those before the batch is spent or out of room.
    pub(super) async fn decide(
        &mut self,
        requests: &[Request],
        tx: &mut dyn Transaction,
        local: &dyn LocalScheduler,
    ) -> Result<(), Failed> {
        for (at, request) in requests.iter().enumerate() {
            if at > 0 && (self.is_spent() || at >= self.most_requests) {
                break;
            }
            let reply = match request {
                Request::Other { operation, .. } => {
                    PendingReply::Other(operate(operation, tx).await?)
                }
                request => self.decide_guarded(at, request, local)?,
            };
            self.replies.push(reply);
        }
        Ok(())
    }

    /// Where the decision panics, all that was decided so far is good for nothing.
    fn decide_guarded(
        &mut self,
        at: usize,
        request: &Request,
        local: &dyn LocalScheduler,
    ) -> Result<PendingReply, Failed> {
        let is_culprit = |culprit: &Culprit| match culprit {
            Culprit::Request(other) => *other == at,
            Culprit::Task(task) => request.task() == Some(*task),
            Culprit::Claim(_) => false,
        };
        if self.culprits.iter().any(is_culprit) {
            return Ok(PendingReply::Refused(CommandError::Panicked));
        }
        guarded(|| self.decide_one(request, local)).map_err(|message| {
            let claim = self.claiming.take().map(Culprit::Claim);
            let culprit = match (claim, request.task()) {
                (None, None) => None,
                (claim, _) => Some(claim.unwrap_or(Culprit::Request(at))),
            };
            Failed::Panicked(Panicked { culprit, message })
        })
    }

    fn decide_one(&mut self, request: &Request, local: &dyn LocalScheduler) -> PendingReply {
        match request {
            Request::Submit {
                details,
                reason,
                idempotency,
                ..
            } => self.known(idempotency.as_ref()).unwrap_or_else(|| {
                planted::strike(details.key.as_deref(), "submit");
                let id = details.id;
                let draft = Draft::submit(details.clone(), self.now).because(reason.clone());
                let new = LoadedTask {
                    base: None,
                    draft,
                    cached: false,
                };
                self.spent += new.draft.spent();
                self.tasks.insert(id, new);
                self.claim_ready(id, local);
                self.remember(idempotency.as_ref(), id);
                PendingReply::Task(id)
            }),
            Request::Apply { apply, .. } => self
                .known(apply.idempotency.as_ref())
                .unwrap_or_else(|| self.apply(apply, local)),
            Request::ClaimQueued { .. } => PendingReply::Claimed(self.claim_queued(local)),
            // Served elsewhere.
            Request::Other { .. } | Request::Leases { .. } | Request::Outbox { .. } => {
                PendingReply::Other(Outcome::Done)
            }
        }
    }

    /// The answer to a request whose idempotency key was seen before.
    fn known(&self, idempotency: Option<&Idempotency>) -> Option<PendingReply> {
        let idempotency = idempotency?;
        let known = self.keys.get(&idempotency.key)?;
        Some(if known.fingerprint == idempotency.fingerprint {
            PendingReply::Replayed(known.task)
        } else {
            PendingReply::Refused(CommandError::KeyReused)
        })
    }

    fn remember(&mut self, idempotency: Option<&Idempotency>, task: TaskId) {
        if let Some(Idempotency { key, fingerprint }) = idempotency.cloned() {
            self.batch.keys.push(NewKey {
                key: key.clone(),
                fingerprint: fingerprint.clone(),
                task,
            });
            self.keys.insert(
                key.clone(),
                KnownKey {
                    key,
                    fingerprint,
                    task,
                },
            );
        }
    }

    fn apply(&mut self, apply: &Apply, local: &dyn LocalScheduler) -> PendingReply {
        let mut is_salvaged = false;
        if let Some(unreadable) = self.unreadable.get_mut(&apply.task) {
            match (&apply.command, unreadable.salvaged.take()) {
                (Command::Cancel { .. }, Some(salvaged)) => {
                    self.tasks.insert(apply.task, salvaged);
                    is_salvaged = true;
                }
                _ => {
                    let why = unreadable.why.clone();
                    return PendingReply::Refused(StoreError::Task(why).into());
                }
            }
        }
        let Some(loaded) = self.tasks.get_mut(&apply.task) else {
            return PendingReply::Refused(CommandError::NoTask);
        };
        let current = loaded.version();
        if let Some(expected) = apply.if_version.filter(|expected| *expected != current) {
            loaded.note_refusal(&mut self.stale_refusals);
            return PendingReply::Refused(CommandError::VersionMismatch { expected, current });
        }
        let draft = &mut loaded.draft;
        planted::strike(draft.task.details.key.as_deref(), apply.command.name());
        let before = draft.spent();
        let applied = draft.apply(apply.command.clone(), &apply.by, self.now);
        self.spent += draft.spent() - before;
        match applied {
            Ok(CommandOutput::Done) => {}
            // Claims are made by this file alone, with a permit in hand.
            Ok(CommandOutput::Call(_)) => {}
            Err(refusal) => {
                let state = draft.task.status().as_str();
                loaded.note_refusal(&mut self.stale_refusals);
                return PendingReply::Refused(CommandError::Refused { refusal, state });
            }
        }
        let reports = matches!(apply.command, Command::ReportFault { .. });
        if !reports
            && let Some(step) = self.faults.recovered(apply.task, apply.command.step())
            && loaded.draft.task.has(step)
        {
            loaded.draft.alerts.push(AlertChange::Close { step });
        }
        if is_salvaged {
            let step = OF_NO_STEP;
            loaded.draft.alerts.push(AlertChange::Close { step });
            self.salvaged.push(apply.task);
        }
        self.claim_ready(apply.task, local);
        self.remember(apply.idempotency.as_ref(), apply.task);
        PendingReply::Task(apply.task)
    }

    /// Claims what has just become ready, as far as the agents of this process have free slots.
    fn claim_ready(&mut self, id: TaskId, local: &dyn LocalScheduler) {
        let Some(loaded) = self.tasks.get_mut(&id) else {
            return;
        };
        if self.faults.rests(id) {
            // The ready steps stay queued.
            return loaded.draft.ready.clear();
        }
        // A claim whose request cannot be made may make further steps ready.
        while !loaded.draft.ready.is_empty() {
            for step in std::mem::take(&mut loaded.draft.ready) {
                if self.spent >= Budget::EVALUATION {
                    // It stays queued.
                    continue;
                }
                let definition = loaded.draft.task.definition(step);
                let claim = StepRef { task: id, step };
                if self.culprits.contains(&Culprit::Claim(claim)) {
                    continue;
                }
                let Some(permit) = local.try_take(definition.agent()) else {
                    continue;
                };
                self.claiming = Some(claim);
                if let Ok(Some(call)) = loaded.claim(step, local, self.now, &mut self.spent) {
                    self.dispatches.push(dispatch(call, self.instant, permit));
                }
                self.claiming = None;
            }
        }
    }

    fn claim_queued(&mut self, local: &dyn LocalScheduler) -> usize {
        let mut claimed = 0;
        for queue in std::mem::take(&mut self.queues) {
            if self.is_spent() {
                // The claimer looks again.
                return claimed.max(1);
            }
            let mut is_drained = queue.is_whole && !queue.is_cut;
            if queue.is_cut {
                // The claimer looks again.
                claimed = claimed.max(1);
            }
            for claim in queue.steps {
                if self.is_spent() {
                    is_drained = false;
                    claimed = claimed.max(1);
                    break;
                }
                let StepRef { task, step } = claim;
                let culprits = [Culprit::Claim(claim), Culprit::Task(task)];
                if culprits
                    .iter()
                    .any(|culprit| self.culprits.contains(culprit))
                {
                    continue;
                }
                let Some(loaded) = self.tasks.get_mut(&task) else {
                    continue;
                };
                let Some(permit) = local.take_for_queued(&queue.agent) else {
                    break;
                };
                self.claiming = Some(claim);
                let claimed_one = loaded.claim(step, local, self.now, &mut self.spent);
                self.claiming = None;
                if claimed_one.is_ok()
                    && let Some(step) = self.faults.recovered(task, Some(step))
                {
                    loaded.draft.alerts.push(AlertChange::Close { step });
                }
                match claimed_one {
                    Ok(Some(call)) => {
                        self.dispatches.push(dispatch(call, self.instant, permit));
                        claimed += 1;
                    }
                    // Its request could not be made.
                    Ok(None) => {}
                    // By the record it is still queued.
                    Err(_) => loaded.note_refusal(&mut self.stale_refusals),
                }
                self.claim_ready(task, local);
            }
            if is_drained {
                self.drained.push(queue.agent);
            }
        }
        claimed
    }

    /// Turns the drafts that changed into what is saved.
    pub(super) fn collect(
        &mut self,
        sender: &Arc<Sender>,
        local: &dyn LocalScheduler,
    ) -> Result<(), Failed> {
        self.batch.sender = sender.clone();
        for (id, loaded) in std::mem::take(&mut self.tasks) {
            guarded(|| self.collect_one(loaded, sender, local)).map_err(|message| {
                let culprit = Some(Culprit::Task(id));
                Failed::Panicked(Panicked { culprit, message })
            })?;
        }
        // In the order of ids, so that instances sharing a database lock rows in one order.
        self.batch
            .changes
            .sort_unstable_by_key(|change| change.task.id());
        Ok(())
    }

    fn collect_one(&mut self, loaded: LoadedTask, sender: &Sender, local: &dyn LocalScheduler) {
        let LoadedTask {
            base, mut draft, ..
        } = loaded;
        if draft.events.is_empty() && draft.changed.is_empty() {
            return;
        }
        planted::strike(draft.task.details.key.as_deref(), "collect");
        draft.task.version += 1;
        if draft.task.details.reply_to.is_some() {
            let told = sender.replies(&draft.task, &draft.events, self.now, Uuid::now_v7);
            self.batch.messages.extend(told);
        }
        let task = draft.task.id();
        let (own, others): (Vec<_>, Vec<_>) = draft
            .dropped
            .into_iter()
            .partition(|dropped| dropped.held_by == *local.instance());
        let own = own.into_iter().map(|dropped| {
            let step = dropped.step;
            (StepRef { task, step }, dropped.attempt, dropped.confirm)
        });
        self.dropped.extend(own);
        let alerts = draft.alerts.into_iter();
        self.batch.changes.push(TaskChange {
            task: Arc::new(draft.task),
            base,
            steps: draft.changed,
            events: draft.events,
            alerts: alerts.map(|alert| (Uuid::now_v7(), alert)).collect(),
            drops_elsewhere: !others.is_empty(),
            at: self.now,
        });
    }

    /// Tells this process what has just been committed.
    pub(super) fn publish(
        &mut self,
        local: &dyn LocalScheduler,
        watchers: &Watchers,
        outbox: &Notify,
    ) {
        for task in self.salvaged.drain(..) {
            self.faults.forget(task);
        }
        for (step, attempt, confirm) in self.dropped.drain(..) {
            local.dropped(step, attempt, confirm);
        }
        // Before the pending steps: a queue may have been drained and have grown again in one batch.
        for agent in self.drained.drain(..) {
            local.queue_drained(&agent);
        }
        for change in &self.batch.changes {
            change.log_errors();
            for step in &change.steps {
                if let Some(due_at) = change.task.due_at(*step) {
                    local.pending(change.task.definition(*step).agent(), due_at, self.now);
                }
            }
        }
        if !self.dispatches.is_empty() {
            local.dispatch(std::mem::take(&mut self.dispatches));
        }
        if self.batch.tells_somebody() {
            outbox.notify_one();
        }
        watchers.tell(self.batch.changes.iter().map(|change| &change.task));
    }

    pub(super) fn send_replies(self, requests: Vec<Request>, metrics: &WriterMetrics) {
        let changes = &self.batch.changes;
        let task = |id: TaskId| {
            let found = changes.binary_search_by_key(&id, |change| change.task.id());
            found.map(|at| changes[at].task.clone())
        };
        for (request, reply) in requests.into_iter().zip(self.replies) {
            // A caller that is gone needs no answer.
            match (request, reply) {
                (Request::Submit { answer, .. } | Request::Apply { answer, .. }, reply) => {
                    let _ = answer.send(match reply {
                        PendingReply::Task(id) => task(id)
                            .map(Submitted::New)
                            .map_err(|_| CommandError::NoTask),
                        PendingReply::Replayed(id) => Ok(Submitted::Replayed(id)),
                        PendingReply::Refused(error) => {
                            metrics.refused(&error);
                            Err(error)
                        }
                        PendingReply::Claimed(_) | PendingReply::Other(_) => {
                            Err(CommandError::NoTask)
                        }
                    });
                }
                (Request::ClaimQueued { answer, .. }, PendingReply::Claimed(claimed)) => {
                    let _ = answer.send(Ok(claimed));
                }
                (Request::Other { answer, .. }, PendingReply::Other(outcome)) => {
                    let _ = answer.send(Ok(outcome));
                }
                // There is one reply for each request, in the order of the requests.
                (request, _) => request.refuse(&StoreError::Stopping),
            }
        }
    }
}

impl LoadedTask {
    fn on(task: Task, cached: bool) -> Self {
        Self {
            base: Some(task.version),
            draft: Draft::on(task),
            cached,
        }
    }

    fn note_refusal(&self, stale_refusals: &mut StaleRefusals) {
        if let Some(version) = self.base.filter(|_| self.cached) {
            stale_refusals.add(self.draft.task.id(), version);
        }
    }

    fn version(&self) -> u64 {
        let unsaved = !self.draft.events.is_empty();
        self.draft.task.version + u64::from(unsaved)
    }

    fn claim(
        &mut self,
        step: StepIndex,
        local: &dyn LocalScheduler,
        now: Timestamp,
        spent: &mut u64,
    ) -> Result<Option<Call>, Refusal> {
        planted::strike(self.draft.task.details.key.as_deref(), "claim");
        let before = self.draft.spent();
        let command = Command::Claim {
            step,
            by: local.instance().clone(),
        };
        let applied = self.draft.apply(command, local.actor(), now);
        *spent += self.draft.spent() - before;
        Ok(match applied? {
            CommandOutput::Call(call) => Some(*call),
            CommandOutput::Done => None,
        })
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.keys.is_empty()
    }

    /// Whether it may have written messages.
    fn tells_somebody(&self) -> bool {
        let tells_of_alerts = !self.sender.webhooks.is_empty();
        !self.messages.is_empty()
            || tells_of_alerts && self.changes.iter().any(|change| !change.alerts.is_empty())
    }
}

fn dispatch(call: Call, instant: Instant, permit: Permit) -> Dispatch {
    Dispatch {
        deadline: instant + call.complete_within.duration(),
        call,
        permit,
    }
}

async fn operate(operation: &Operation, tx: &mut dyn Transaction) -> Result<Outcome, StoreError> {
    Ok(match operation {
        Operation::Promote => Outcome::Promoted(tx.promote().await?),
        Operation::PutWorkflow(name, body, condition) => {
            Outcome::Registered(registrations::put_workflow(tx, name, body, condition).await?)
        }
        Operation::PutAgent(name, spec, condition) => {
            Outcome::Registered(registrations::put_agent(tx, name, spec, condition).await?)
        }
        Operation::DeleteAgent(name, condition) => {
            Outcome::Registered(registrations::delete_agent(tx, name, condition).await?)
        }
        Operation::Acknowledge(alert, by) => Outcome::Alert(tx.acknowledge(*alert, by).await?),
        Operation::Purge(tasks, ended_before) => {
            Outcome::Purged(purge::purge(tx, tasks, *ended_before).await?)
        }
        Operation::PromoteOne(step) => {
            tx.promote_one(*step).await?;
            Outcome::Done
        }
        Operation::GiveBack(pages) => {
            let began = Instant::now();
            tx.give_back(*pages).await?;
            Outcome::GivenBack(began.elapsed())
        }
        Operation::Heartbeat => {
            tx.heartbeat().await?;
            Outcome::Done
        }
    })
}
