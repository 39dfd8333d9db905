//! One batch: the commands that have arrived are decided on aggregates in memory.

mod claims;
mod lanes;
mod load;
mod publish;
mod task_limits;

use std::{collections::HashMap, sync::Arc};

use self::{
    lanes::LaneClaims,
    task_limits::{Admission, TaskLimits},
};
use super::{
    Damage, Failed, TaskFaults,
    faults::{Culprit, OF_NO_STEP, Panicked, guarded},
    known_queues::ClaimedSteps,
    request::{Apply, Idempotency, Request, WriteResult},
    stale_refusals::StaleRefusals,
};
use crate::{
    clock::Instant,
    domain::{
        message::LinkForm,
        queue::ClaimPlan,
        task::{
            AlertChange, AskChange, AttemptRecord, Command, CommandOutput, Details, Draft, Refusal,
            ReplyAddresses, Task,
        },
        template::Budget,
        values::{AgentName, Attempt, StepRef, TaskId, Timestamp},
        view::{LedgerRecord, LedgerSubject},
    },
    planted,
    store::{
        Batch, CommandError, Dispatch, KnownKey, LocalScheduler, RecordLimits, StoreError,
        Transaction, UnreadableTask, batch::NewKey, record::TaskRowState,
    },
};

pub(super) use {lanes::forget_ended_steps, load::Queues};

pub(super) struct BatchDraft {
    now: Timestamp,
    /// The time `now` by the wall clock of the machine.
    wall: Timestamp,
    /// Taken before `now`, so that a local deadline is never later than the complete-by in the record.
    instant: Instant,
    tasks: HashMap<TaskId, LoadedTask>,
    /// The tasks that exist and cannot be read.
    unreadable: HashMap<TaskId, Unreadable>,
    /// The unreadable tasks that this batch cancels.
    salvaged: Vec<TaskId>,
    keys: HashMap<String, KnownKey>,
    claims: ClaimPlan,
    replies: Vec<PendingReply>,
    dispatches: Vec<Dispatch>,
    claimed: ClaimedSteps,
    pub(super) lanes: LaneClaims,
    pub(super) limits: TaskLimits,
    /// True if a queue was not read from which steps should be claimed.
    is_unread: bool,
    dropped: Vec<(StepRef, Attempt, bool)>,
    /// The agents whose replies are no longer awaited, once for each reply.
    closed: Vec<AgentName>,
    pub(super) stale_refusals: StaleRefusals,
    pub(super) batch: Batch,
    /// The attempts that are saved after their replies.
    pub(super) samples: Vec<(TaskId, AttemptRecord)>,
    /// The culprits of panics when the batch was decided before. They are left out.
    pub(super) culprits: Vec<Culprit>,
    /// The damage that was found when the batch was decided before. It is left out too.
    pub(super) left_out: Damage,
    /// The number of requests for whose tasks there was room.
    most_requests: usize,
    /// The cost of the expressions that were evaluated so far.
    spent: u64,
    /// The claim that is being decided.
    claiming: Option<StepRef>,
    /// True if the untouched steps of a new task, and first claims, are saved without rows.
    pub(super) spares_rows: bool,
    terms: DraftTerms,
    /// The form of links in messages.
    pub(super) links: LinkForm,
    faults: Arc<TaskFaults>,
}

/// Bounds and rules that hold for the commands on every task.
#[derive(Clone, Debug)]
pub(super) struct DraftTerms {
    /// The most bytes that one task may keep.
    pub(super) most_kept: usize,
    /// The limits of the record of attempts.
    pub(super) record: RecordLimits,
    /// True if an instance is on record that does not know that the undo of a paused task waits until the task is
    /// resumed.
    pub(super) undoes_paused: bool,
    /// The addresses that requests name for later replies.
    pub(super) reply_addresses: Option<Arc<ReplyAddresses>>,
}

struct LoadedTask {
    base: Option<u64>,
    /// The state of the task's own row. `None` if the task has no row yet.
    row: Option<TaskRowState>,
    draft: Draft,
    /// True if the task was not read in this transaction, so another instance may have changed it.
    cached: bool,
}

struct Unreadable {
    why: UnreadableTask,
    /// False if an operator's request met the unreadable task, because the response reports it.
    needs_alert: bool,
    /// The parts of the task that can still be read, if a request cancels it. They serve for that one cancel.
    salvaged: Option<LoadedTask>,
}

/// The reply that a caller gets after the commit.
enum PendingReply {
    Task(TaskId),
    Replayed(TaskId),
    Refused(CommandError),
    Claimed(usize),
    Written(WriteResult),
}

impl BatchDraft {
    pub(super) fn new(
        (now, wall): (Timestamp, Timestamp),
        instant: Instant,
        faults: Arc<TaskFaults>,
        one_by_one: bool,
        terms: DraftTerms,
    ) -> Self {
        Self {
            now,
            wall,
            instant,
            tasks: HashMap::new(),
            unreadable: HashMap::new(),
            salvaged: Vec::new(),
            keys: HashMap::new(),
            claims: ClaimPlan::new(one_by_one),
            replies: Vec::new(),
            dispatches: Vec::new(),
            claimed: ClaimedSteps::default(),
            lanes: LaneClaims::default(),
            limits: TaskLimits::default(),
            is_unread: false,
            dropped: Vec::new(),
            closed: Vec::new(),
            stale_refusals: StaleRefusals::default(),
            batch: Batch::default(),
            samples: Vec::new(),
            culprits: Vec::new(),
            left_out: Damage::default(),
            most_requests: usize::MAX,
            spent: 0,
            claiming: None,
            spares_rows: false,
            terms,
            links: LinkForm::Complete,
            faults,
        }
    }

    /// Returns how many requests were decided; the others are for the next batch.
    pub(super) fn count(&self) -> usize {
        self.replies.len()
    }

    /// Returns whether expressions have cost as much as one evaluation may. Further decisions would delay the commit of
    /// the finished ones, and the leases after it.
    fn is_spent(&self) -> bool {
        self.spent >= Budget::EVALUATION
    }

    /// Decides the requests in the order of arrival: all, or as many as the budget and the room of the batch allow.
    pub(super) async fn decide(
        &mut self,
        requests: &[Request],
        tx: &mut Transaction<'_>,
        local: &dyn LocalScheduler,
    ) -> Result<(), Failed> {
        for (at, request) in requests.iter().enumerate() {
            if at > 0 && (self.is_spent() || at >= self.most_requests) {
                break;
            }
            let reply = match request {
                Request::Write(write) => PendingReply::Written(write.run(tx).await?),
                request => self.decide_guarded(at, request, local)?,
            };
            self.replies.push(reply);
        }
        if self.count() == requests.len() {
            // Claims use the slots that these requests have left free, or have freed.
            self.guarded(None, |draft| draft.claim_queued(local))?;
        }
        Ok(())
    }

    /// If the decision panics, nothing that was decided so far can be used.
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
        let culprit = request.task().map(|_| Culprit::Request(at));
        self.guarded(culprit, |draft| draft.decide_one(request, local))
    }

    /// If a claim panics, its step is the culprit.
    fn guarded<T>(
        &mut self,
        culprit: Option<Culprit>,
        decide: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Failed> {
        guarded(|| decide(self)).map_err(|message| {
            let claim = self.claiming.take().map(Culprit::Claim);
            let culprit = claim.or(culprit);
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
                if let Err(refused) = self.submit(details, reason.clone(), local) {
                    return PendingReply::Refused(refused);
                }
                self.remember(idempotency.as_ref(), id);
                PendingReply::Task(id)
            }),
            Request::Apply { apply, .. } => self
                .known(apply.idempotency.as_ref())
                .unwrap_or_else(|| self.apply(apply, local)),
            Request::ClaimQueued { .. } => PendingReply::Claimed(self.claim_queued(local)),
            // These requests are served before the batch.
            Request::Write(_) | Request::Leases(_) => PendingReply::Claimed(0),
        }
    }

    fn submit(
        &mut self,
        details: &Arc<Details>,
        reason: Option<String>,
        local: &dyn LocalScheduler,
    ) -> Result<(), CommandError> {
        let is_later = details.start_at.is_some_and(|start| start > self.now);
        let admission = match is_later {
            true => Admission::Begins,
            false => self.limits.admit(details)?,
        };
        let waits = matches!(admission, Admission::Waits);
        let mut draft =
            Draft::submit_keeping(details.clone(), waits, self.terms.most_kept, self.now)
                .replying_to(self.terms.reply_addresses.clone());
        if !self.spares_rows {
            draft.touch_all();
        }
        let new = LoadedTask {
            base: None,
            row: None,
            draft: draft.because(reason),
            cached: false,
        };
        self.spent += new.draft.spent();
        self.tasks.insert(details.id, new);
        self.claim_ready(details.id, local);
        Ok(())
    }

    /// Adds the task that a step requests, if its parent allows that now.
    fn submit_child(
        &mut self,
        parent: TaskId,
        command: &Command,
        local: &dyn LocalScheduler,
    ) -> Result<(), CommandError> {
        let Command::BeginChild {
            step,
            attempt,
            child,
        } = command
        else {
            return Ok(());
        };
        let Some(loaded) = self.tasks.get_mut(&parent) else {
            return Ok(());
        };
        let draft = &loaded.draft;
        let allowed = match draft.task.has_step(*step) {
            true => draft.check_child(*step, *attempt),
            false => Err(Refusal::NoStep(*step)),
        };
        if let Err(refusal) = allowed {
            let state = draft.task.status().as_str();
            loaded.note_refusal(&mut self.stale_refusals);
            return Err(CommandError::Refused { refusal, state });
        }
        let name = &draft.task.definition(*step).name;
        let reason = format!("for step {name} of task {parent}");
        self.submit(child, Some(reason), local)
    }

    /// Returns the reply to a request whose idempotency key was seen before.
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
        if let Err(refused) = self.submit_child(apply.task, &apply.command, local) {
            return PendingReply::Refused(refused);
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
        let events_before = draft.events.len();
        let was_to_start = draft.task.start_at.is_some();
        let open = apply
            .command
            .step()
            .filter(|step| draft.task.is_open(*step));
        let applied = draft.apply_with(
            apply.command.clone(),
            &apply.by,
            self.now,
            apply.exchange.clone(),
        );
        self.spent += draft.spent() - before;
        if let Some(step) = open.filter(|step| !draft.task.is_open(*step)) {
            self.closed
                .extend(draft.task.definition(step).agent().cloned());
        }
        if was_to_start && draft.task.start_at.is_none() && draft.task.waits {
            self.limits.started(&draft.task.details);
        }
        match applied {
            Ok(CommandOutput::Done) => {}
            // No request is a claim: only `QueuedClaims` and `claim_ready` claim steps, with a permit.
            Ok(CommandOutput::Call(_)) => {}
            Ok(CommandOutput::Unchanged) => {
                loaded.note_unchanged(&mut self.stale_refusals);
                return PendingReply::Replayed(apply.task);
            }
            Ok(CommandOutput::Late(refusal)) => {
                let state = draft.task.status().as_str();
                loaded.note_unchanged(&mut self.stale_refusals);
                return PendingReply::Refused(CommandError::Refused { refusal, state });
            }
            Err(refusal) => {
                let state = draft.task.status().as_str();
                loaded.note_refusal(&mut self.stale_refusals);
                return PendingReply::Refused(CommandError::Refused { refusal, state });
            }
        }
        if let Some(origin) = &apply.origin {
            let draft = &loaded.draft;
            let step = apply
                .command
                .step()
                .filter(|step| draft.task.has_step(*step));
            let mut events = draft.events.iter().skip(events_before);
            let reason =
                events.find_map(|event| event.reason.as_deref().filter(|_| event.by == apply.by));
            let (kind, command, reason) = match &apply.command {
                // The comment of the person is in the history, which fewer may read.
                Command::Decide { answer, .. } => (
                    "ask.decided",
                    None,
                    Some(format!("chose {}", answer.choice)),
                ),
                command => {
                    let name = command.name().to_owned();
                    ("task.command", Some(name), reason.map(str::to_owned))
                }
            };
            let record = LedgerRecord::new(kind, LedgerSubject::Task, apply.task, origin);
            self.batch.commands.push(LedgerRecord {
                step: step.map(|step| draft.task.definition(step).name.to_string()),
                command,
                ..record.because(reason.as_deref())
            });
        }
        let reports = matches!(apply.command, Command::ReportFault { .. });
        if !reports
            && let Some(step) = self.faults.recovered(apply.task, apply.command.step())
            && loaded.draft.task.has_step(step)
        {
            loaded.draft.alerts.push(AlertChange::Close { step });
        }
        if is_salvaged {
            let step = OF_NO_STEP;
            loaded.draft.alerts.push(AlertChange::Close { step });
            loaded.draft.asks.push(AskChange::AllClosed);
            self.salvaged.push(apply.task);
        }
        self.claim_ready(apply.task, local);
        self.remember(apply.idempotency.as_ref(), apply.task);
        PendingReply::Task(apply.task)
    }
}

impl LoadedTask {
    fn on(task: Task, cached: bool, terms: &DraftTerms) -> Self {
        Self {
            base: Some(task.version),
            row: Some(TaskRowState::of(&task)),
            draft: Draft::on(task)
                .keeping(terms.most_kept)
                .undoing_paused_tasks(terms.undoes_paused)
                .replying_to(terms.reply_addresses.clone()),
            cached,
        }
    }

    fn note_refusal(&self, stale_refusals: &mut StaleRefusals) {
        if let Some(version) = self.base.filter(|_| self.cached) {
            stale_refusals.add(self.draft.task.id(), version);
        }
    }

    /// Notes a reply for which nothing is saved. If something is saved, the save compares the version.
    fn note_unchanged(&self, stale_refusals: &mut StaleRefusals) {
        if self.draft.changed.is_empty() {
            self.note_refusal(stale_refusals);
        }
    }

    fn version(&self) -> u64 {
        let unsaved = !self.draft.events.is_empty() || !self.draft.changed.is_empty();
        self.draft.task.version + u64::from(unsaved)
    }
}
