//! A reply that comes later: promised, awaited with heartbeats, and accepted once.

use super::{CommandOutput, Draft};
use crate::{
    task::{
        call::CallOutcome,
        command::Refusal,
        open_reply::{AcceptedReply, OpenReply, Progress, ReplyDigest, StepHolder},
        retry_budget::RetryWait,
        step::StepState,
        step_backoff::backoff,
    },
    values::{
        fault::Fault,
        ids::{Attempt, StepIndex},
        time::Span,
    },
};

/// The shortest time between two heartbeats that are saved.
const SAVED_AFTER: Span = Span::from_secs(1);
/// The same where the step requires none and they say nothing new.
const UNREQUIRED_SAVED_AFTER: Span = Span::from_secs(10);
/// So many entries of its progress the history gets at most in the time that an attempt has.
const MOST_ENTRIES: i64 = 100;

impl Draft {
    /// The service has promised to reply later: from now on no instance holds the attempt.
    pub(super) fn defer(&mut self, index: StepIndex) {
        if self.task.is_awaited(index) || self.is_polled(index) {
            return;
        }
        if self.is_probing(index) {
            let message = "its probe failed: the service promised a later reply, but a probe needs its response at once";
            let fault = Fault::permanent(message.to_owned(), self.now);
            self.probe_failed(index, fault);
            return;
        }
        if self.task.is_withdrawn(index) {
            self.withdraw_promise(index);
            return;
        }
        if self.task.is_to_be_dropped(index) {
            self.drop_open_reply(index);
            self.open_undos();
            self.settle(None);
            return;
        }
        let StepState::Processing { complete_by, .. } = self.task.step(index).state else {
            return;
        };
        let within = self.task.definition(index).heartbeat_within;
        let open = StepState::Processing {
            held_by: StepHolder::Service(Box::new(OpenReply::new(self.now, within))),
            complete_by,
        };
        let reason = "the service will reply later".to_owned();
        self.change(index, "step.deferred", open, Some(reason));
    }

    /// The task is undone, and no instance has a call to drop: the reply is no longer awaited. Where the step says how,
    /// the service is asked to cancel its work before that is undone.
    pub(super) fn drop_open_reply(&mut self, index: StepIndex) {
        if self.begin_cancel(index) {
            return;
        }
        self.effect_is_unknown(index);
        let reason = "the task is undone; the promised reply is no longer awaited";
        self.abandon(index, reason);
    }

    /// Returns the last attempt that a later reply has ended.
    pub(super) fn last_accepted(&self, index: StepIndex) -> Attempt {
        let accepted = &self.task.step(index).reply_log.accepted;
        accepted.last().map(|last| last.attempt).unwrap_or_default()
    }

    /// Returns the attempt that a token names: the running one, if the token is for all attempts since the last reply. A probe
    /// has no such reply.
    fn attempt_named(&self, index: StepIndex, named: Attempt) -> Result<Attempt, Refusal> {
        let Some(after) = named.named_after() else {
            return Ok(named);
        };
        let current = self.task.step(index).attempt;
        let is_current = after == self.last_accepted(index) && !self.is_probing(index);
        match is_current {
            true => Ok(current),
            false => Err(Refusal::UsedAddress {
                step: self.task.definition(index).name.clone(),
            }),
        }
    }

    /// A reply that came with the token of an attempt. It ends the attempt as a call's response does; the same
    /// reply again changes nothing.
    pub(super) fn later_reply(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        outcome: CallOutcome,
        digest: ReplyDigest,
    ) -> Result<CommandOutput, Refusal> {
        let named = self.attempt_named(index, attempt);
        let checked = named.and_then(|current| {
            self.check_called(index, current)?;
            Ok(current)
        });
        let current = match checked {
            Ok(current) => current,
            Err(late) => {
                let log = &self.task.step(index).reply_log;
                let is_repeated = |accepted: &AcceptedReply| {
                    let is_of_it = match attempt.named_after() {
                        Some(after) => accepted.attempt > after,
                        None => accepted.attempt == attempt,
                    };
                    is_of_it && accepted.digest == digest
                };
                if log.accepted.iter().any(is_repeated) {
                    return Ok(CommandOutput::Unchanged);
                }
                // No attempt is known that a reply to a used address could be late for.
                if let Refusal::Late { attempt, .. } = &late {
                    self.record_late_reply(index, *attempt);
                }
                return Ok(CommandOutput::Late(late));
            }
        };
        let attempt = current;
        let accepted = AcceptedReply { attempt, digest };
        if self.is_cancelling(index) {
            // Its service has ended the work by itself.
            self.drop_call(index);
        }
        let rules = self.task.definition(index).attempts.clone();
        let step = self.task.step_mut(index);
        step.reply_log.accept(accepted);
        // The reply itself has come: it is not what an instance that polls or cancels just now has found.
        if let StepState::Processing { held_by, .. } = &mut step.state
            && let StepHolder::Poll(_, open) = held_by
        {
            *held_by = StepHolder::Service(open.clone());
        }
        let outcome = match outcome {
            CallOutcome::Transient { fault, .. } => CallOutcome::Transient {
                fault: Fault {
                    at: self.now,
                    ..fault
                },
                wait: {
                    let tries = step.tries.saturating_add(1);
                    let own = rules.as_ref().and_then(|rules| rules.waits());
                    let wait = own.map(|waits| waits.backoff.wait(tries));
                    let wait = wait.unwrap_or_else(|| backoff(tries).duration());
                    RetryWait::from(wait).within_attempts(rules.as_deref())
                },
            },
            outcome => outcome,
        };
        self.reply(index, attempt, outcome)?;
        Ok(CommandOutput::Done)
    }

    /// The fence for what a service sends: no service was called for a wait.
    fn check_called(&self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        match self.task.is_event(index) {
            false => Ok(()),
            true => Err(self.refuse_step(index, "it calls no service")),
        }
    }

    /// Once for each attempt: a service that repeats itself must not fill the history.
    fn record_late_reply(&mut self, index: StepIndex, attempt: Attempt) {
        let step = self.task.step_mut(index);
        if step.reply_log.late.is_some_and(|late| late >= attempt) {
            return;
        }
        step.reply_log.late = Some(attempt);
        let reason = format!("a reply to attempt {attempt} came after its end and changed nothing");
        self.note_attempt(index, "step.late_reply", attempt, reason);
        self.touch(index);
    }

    /// The service is still at work. Not every heartbeat is saved: what it costs is bounded, however many come.
    pub(super) fn heartbeat(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        progress: &Progress,
    ) -> Result<CommandOutput, Refusal> {
        let attempt = match self.attempt_named(index, attempt) {
            Ok(attempt) => attempt,
            Err(late) => return Ok(CommandOutput::Late(late)),
        };
        if let Err(late) = self.check_fence(index, attempt) {
            return Ok(CommandOutput::Late(late));
        }
        let progress = &self.within_room(progress);
        let definition = self.task.definition(index);
        let within = definition.heartbeat_within;
        // Less often if it is only a sign of life.
        let pause = within.map_or(UNREQUIRED_SAVED_AFTER, |within| {
            Span::from_millis(within.as_millis() as u64 / 4).max(SAVED_AFTER)
        });
        let StepState::Processing {
            held_by: StepHolder::Service(open),
            complete_by,
        } = &mut self.task.step_mut(index).state
        else {
            // Its call is still running, and that needs no heartbeat.
            return Ok(CommandOutput::Unchanged);
        };
        let updated = open.progress.updated(progress);
        let has_progressed = updated != open.progress;
        let rest = if has_progressed { SAVED_AFTER } else { pause };
        if open
            .heartbeat_at
            .is_some_and(|saved| self.now < saved + rest)
        {
            return Ok(CommandOutput::Unchanged);
        }
        open.heartbeat_at = Some(self.now);
        // One that comes before the end of the pause is not saved, and must not count for less.
        open.silent_at = within.map(|within| self.now + within + pause);
        open.progress = updated;
        let whole = complete_by.as_millis() - open.since.as_millis();
        let entry_after = Span::from_millis((whole / MOST_ENTRIES).max(0) as u64).max(SAVED_AFTER);
        let is_recorded = has_progressed
            && open
                .recorded_at
                .is_none_or(|recorded| self.now >= recorded + entry_after);
        if is_recorded {
            open.recorded_at = Some(self.now);
            let reason = open.progress.in_words();
            self.note_attempt(index, "step.progress", attempt, reason);
        }
        self.touch(index);
        Ok(CommandOutput::Done)
    }
}
