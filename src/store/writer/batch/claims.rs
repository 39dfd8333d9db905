//! Claims steps in the transaction that made them ready, and queued steps as [`ClaimPlan`] orders them.

use tokio::time::Instant;

use super::{BatchDraft, LoadedTask};
use crate::{
    domain::{
        Actor, AgentName, AlertChange, Call, ClaimAttempt, ClaimPlan, ClaimSteps, Claimant,
        Command, CommandOutput, QueueRank, Refusal, StepIndex, StepRef, Task, TaskId, Timestamp,
        template::Budget,
    },
    planted,
    store::{Dispatch, LocalScheduler, SlotPermit, writer::faults::Culprit},
};

impl BatchDraft {
    /// Claims what has just become ready, as far as the agents of this process have free slots.
    pub(super) fn claim_ready(&mut self, id: TaskId, local: &dyn LocalScheduler) {
        let Some(loaded) = self.tasks.get_mut(&id) else {
            return;
        };
        if self.faults.rests(id) {
            // The ready steps stay queued.
            return loaded.draft.ready.clear();
        }
        if loaded.draft.task.has_step_limits() {
            // They are counted before they are claimed.
            return loaded.draft.ready.clear();
        }
        // A claim whose request cannot be made may make further steps ready.
        while !loaded.draft.ready.is_empty() {
            for step in std::mem::take(&mut loaded.draft.ready) {
                if self.spent >= Budget::EVALUATION {
                    // It stays queued.
                    continue;
                }
                let Some(agent) = loaded.draft.task.definition(step).agent().cloned() else {
                    continue;
                };
                let claim = StepRef { task: id, step };
                if self.culprits.contains(&Culprit::Claim(claim)) {
                    continue;
                }
                let Some(permit) = local.try_take(&agent) else {
                    let position = QueueRank::new(claim, loaded.draft.task.turn());
                    self.claims.enqueue(&agent, position);
                    continue;
                };
                self.claiming = Some(claim);
                let claimant = permit.claimant(local.instance());
                if let Ok(Some(call)) =
                    loaded.claim(step, claimant, local.actor(), self.now, &mut self.spent)
                {
                    let dispatch = dispatch(call, self.instant, self.wall, permit);
                    self.dispatches.push(dispatch);
                }
                self.claiming = None;
            }
        }
    }

    /// Returns how many steps were claimed; at least 1 where more can be claimed at once.
    pub(super) fn claim_queued(&mut self, local: &dyn LocalScheduler) -> usize {
        let mut plan = std::mem::replace(&mut self.claims, ClaimPlan::new(false));
        let result = plan.claim(&mut QueuedClaims { draft: self, local });
        let drained = result.drained.into_iter();
        let drained = drained.filter(|agent| !self.lanes.is_to_be_read(agent));
        self.claimed.drained.extend(drained);
        self.claimed.gone.extend(result.gone);
        let is_more = self.is_unread || self.lanes.has_moved();
        result.claimed.max(usize::from(is_more))
    }
}

struct QueuedClaims<'b> {
    draft: &'b mut BatchDraft,
    local: &'b dyn LocalScheduler,
}

impl ClaimSteps for QueuedClaims<'_> {
    fn is_spent(&self) -> bool {
        self.draft.is_spent()
    }

    fn claim(&mut self, agent: &AgentName, claim: StepRef) -> ClaimAttempt {
        let Self { draft, local } = self;
        let StepRef { task, step } = claim;
        let is_culprit = |culprit: &Culprit| match culprit {
            Culprit::Claim(step) => *step == claim,
            Culprit::Task(id) => *id == task,
            Culprit::Request(_) => false,
        };
        if draft.culprits.iter().any(is_culprit) {
            return ClaimAttempt::NotClaimed;
        }
        let Some(loaded) = draft.tasks.get_mut(&task) else {
            return ClaimAttempt::NotClaimed;
        };
        if !draft.lanes.allows(claim, agent, &loaded.draft.task) {
            return ClaimAttempt::NotClaimed;
        }
        if draft.lanes.needs_lane(claim, &loaded.draft.task) {
            // Another instance has put it there: it is claimed once its lane is read.
            draft.lanes.read_by_lanes(agent);
            draft.is_unread = true;
            return ClaimAttempt::NotClaimed;
        }
        if !is_of(&loaded.draft.task, step, agent) {
            // Its task has another version by now, or had when the queue was read: the record decides.
            loaded.note_refusal(&mut draft.stale_refusals);
            return ClaimAttempt::NotClaimed;
        }
        let Some(permit) = local.take_for_queued(agent) else {
            return ClaimAttempt::NoSlot;
        };
        draft.claiming = Some(claim);
        let claimant = permit.claimant(local.instance());
        let claimed = loaded.claim(step, claimant, local.actor(), draft.now, &mut draft.spent);
        draft.claiming = None;
        if claimed.is_ok()
            && let Some(step) = draft.faults.recovered(task, Some(step))
        {
            loaded.draft.alerts.push(AlertChange::Close { step });
        }
        let attempt = match claimed {
            Ok(Some(call)) => {
                if let Some(stop) = local.past_stop(agent, draft.now, draft.instant) {
                    loaded.draft.explain_wait(step, &stop);
                }
                draft.lanes.claimed(claim);
                let dispatch = dispatch(call, draft.instant, draft.wall, permit);
                draft.dispatches.push(dispatch);
                ClaimAttempt::Claimed
            }
            // Its request could not be made.
            Ok(None) => ClaimAttempt::NotClaimed,
            Err(_) => {
                // By the record it is still queued.
                let mut found = draft.claimed.found.iter();
                if draft.lanes.has_found(claim) || found.any(|found| found.agent == *agent) {
                    loaded.note_refusal(&mut draft.stale_refusals);
                }
                ClaimAttempt::NotClaimed
            }
        };
        draft.claim_ready(task, *local);
        attempt
    }
}

/// Whether the step calls this agent, as far as the task has it.
fn is_of(task: &Task, step: StepIndex, agent: &AgentName) -> bool {
    !task.has(step) || task.definition(step).agent() == Some(agent)
}

/// `instant` and `wall` are the moment at which the batch began, by the clock of the process and by that of people.
fn dispatch(call: Call, instant: Instant, wall: Timestamp, permit: SlotPermit) -> Dispatch {
    Dispatch {
        deadline: instant + call.complete_within.duration(),
        call: Call {
            wall_complete_by: wall + call.complete_within,
            ..call
        },
        permit,
    }
}

impl LoadedTask {
    fn claim(
        &mut self,
        step: StepIndex,
        by: Claimant,
        actor: &Actor,
        now: Timestamp,
        spent: &mut u64,
    ) -> Result<Option<Call>, Refusal> {
        planted::strike(self.draft.task.details.key.as_deref(), "claim");
        let before = self.draft.spent();
        let command = Command::Claim { step, by };
        let applied = self.draft.apply(command, actor, now);
        *spent += self.draft.spent() - before;
        Ok(match applied? {
            CommandOutput::Call(call) => Some(*call),
            CommandOutput::Done | CommandOutput::Unchanged | CommandOutput::Late(_) => None,
        })
    }
}
