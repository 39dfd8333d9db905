//! Claims steps in the transaction that made them ready, and queued steps as [`ClaimPlan`] orders them.

use super::{BatchDraft, LoadedTask};
use crate::{
    clock::Instant,
    domain::{
        queue::{ClaimPlan, ClaimSteps, QueueRank, StepClaimResult},
        task::{Actor, AlertChange, Call, Claimant, Command, CommandOutput, Refusal, Task},
        template::Budget,
        values::{AgentName, StepIndex, StepRef, TaskId, Timestamp},
    },
    planted,
    store::{Dispatch, LocalScheduler, SlotPermit, writer::faults::Culprit},
};

impl BatchDraft {
    /// Claims the steps that have just become ready, as far as the agents of this process have free slots.
    pub(super) fn claim_ready(&mut self, id: TaskId, local: &dyn LocalScheduler) {
        let Some(loaded) = self.tasks.get_mut(&id) else {
            return;
        };
        if self.faults.rests(id) {
            // The ready steps stay queued.
            return loaded.draft.ready.clear();
        }
        if loaded.draft.task.has_step_limits() {
            // The running steps have to be counted before these are claimed.
            return loaded.draft.ready.clear();
        }
        // A claim whose request cannot be made may make further steps ready.
        while !loaded.draft.ready.is_empty() {
            for step in std::mem::take(&mut loaded.draft.ready) {
                if self.spent >= Budget::EVALUATION {
                    // The step stays queued.
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

    /// Returns how many steps were claimed; at least 1 if more can be claimed immediately.
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

    fn claim(&mut self, agent: &AgentName, claim: StepRef) -> StepClaimResult {
        let Self { draft, local } = self;
        let StepRef { task, step } = claim;
        let is_culprit = |culprit: &Culprit| match culprit {
            Culprit::Claim(step) => *step == claim,
            Culprit::Task(id) => *id == task,
            Culprit::Request(_) => false,
        };
        if draft.culprits.iter().any(is_culprit) {
            return StepClaimResult::NotClaimed;
        }
        let Some(loaded) = draft.tasks.get_mut(&task) else {
            return StepClaimResult::NotClaimed;
        };
        if !draft.lanes.allows(claim, agent, &loaded.draft.task) {
            return StepClaimResult::NotClaimed;
        }
        if draft.lanes.needs_lane(claim, &loaded.draft.task) {
            // Another instance has enqueued the step. It is claimed once its lane has been read.
            draft.lanes.read_by_lanes(agent);
            draft.is_unread = true;
            return StepClaimResult::NotClaimed;
        }
        if !is_of(&loaded.draft.task, step, agent) {
            // The task has another version now, or had one when the queue was read. The record decides.
            loaded.note_refusal(&mut draft.stale_refusals);
            return StepClaimResult::NotClaimed;
        }
        let Some(permit) = local.take_for_queued(agent) else {
            return StepClaimResult::NoSlot;
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
                StepClaimResult::Claimed
            }
            // The request of the call could not be made.
            Ok(None) => StepClaimResult::NotClaimed,
            Err(_) => {
                local.put_back(permit);
                // According to the record the step is still queued.
                let mut found = draft.claimed.found.iter();
                if draft.lanes.has_found(claim) || found.any(|found| found.agent == *agent) {
                    loaded.note_refusal(&mut draft.stale_refusals);
                }
                StepClaimResult::NotClaimed
            }
        };
        draft.claim_ready(task, *local);
        attempt
    }
}

/// Returns whether the step calls this agent, or is unknown to this version of the task.
fn is_of(task: &Task, step: StepIndex, agent: &AgentName) -> bool {
    !task.has_step(step) || task.definition(step).agent() == Some(agent)
}

/// `instant` and `wall` are the time at which the batch began, by the monotonic clock and by the wall clock.
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
