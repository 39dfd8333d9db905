//! Undo: what was done is undone, each step after those that followed it, independent branches side by
//! side. What undoes a step is a step like any other: claimed, fenced, retried, supervised.

use super::{Draft, first_fault};
use crate::{
    task::{
        aggregate::{Task, TaskState, Undo},
        alert::AlertChange,
        command::Refusal,
        expansion::ItemGroup,
        open_reply::StepHolder,
        positions::Positions,
        step::{Step, StepState, StepStatus},
        step_list::StepList,
    },
    template::payload::Payload,
    values::{
        fault::{Effect, Fault, FaultKind},
        ids::{StepIndex, WorkerName},
    },
};

impl Draft {
    pub(super) fn undo(&mut self, reason: Option<String>) -> Result<(), Refusal> {
        if self.task.undo.is_some() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: if self.task.is_cancelled() {
                    "it is being cancelled, and ends with the steps of its `finally`"
                } else {
                    "it is already being undone; retry, resolve or skip the steps that block the undo"
                },
            });
        }
        if self.task.runs_finally() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "the steps of its `finally` are running, which have begun with how it ends: undo it when they have ended; retry, resolve or skip those in error",
            });
        }
        if let TaskState::Processed { at } = self.task.state
            && let Some(within) = self.task.details.definition.policies.undoable_for
            && at + within < self.now
        {
            return Err(Refusal::UndoExpired { at, within });
        }
        if let Some(pivot) = self.task.passed_pivot() {
            return Err(Refusal::PastPivot {
                step: self.task.definition(pivot).name.clone(),
                status: self.task.step(pivot).status(),
            });
        }
        self.task.paused = false;
        self.begin_undo(reason, None);
        self.settle(None);
        Ok(())
    }

    /// The policy of a step that is in error has the task undone, unless a pivot was passed: then a person decides.
    pub(super) fn undo_because_of(&mut self, index: StepIndex, fault: Fault) {
        let name = &self.task.definition(index).name;
        let Some(pivot) = self.task.passed_pivot() else {
            let cause = Fault {
                step: Some(name.clone()),
                undo_on_resume: false,
                ..fault
            };
            self.begin_undo(None, Some(cause));
            return;
        };
        let message = format!(
            "step {name}: {}; the task can no longer be undone, because its pivot {} is {}",
            fault.message,
            self.task.definition(pivot).name,
            self.task.step(pivot).status().as_str(),
        );
        self.raise_with(index, &fault, message);
    }

    /// Has policies begin the undo of a paused task at once, as instances did that know no undo that waits for the resumption. One of
    /// them that resumed the task would leave it in error.
    #[must_use]
    pub fn undoing_paused_tasks(mut self, undoes_paused: bool) -> Self {
        self.undoes_paused = undoes_paused;
        self
    }

    /// Returns whether an undo by policy waits until an operator resumes the task.
    pub(super) fn holds_undos(&self) -> bool {
        self.task.paused && !self.undoes_paused
    }

    /// The undo begins that has waited until an operator resumed the task. The first fault is its cause.
    pub(super) fn begin_waiting_undo(&mut self) {
        for (index, fault) in self.take_waiting_undos() {
            if self.task.undo.is_none() {
                self.undo_because_of(index, fault);
            }
        }
        self.look_at_failed_children();
    }

    /// No undo waits any more for the resumption. Returns the steps whose policies asked for one, in the order of their faults.
    pub(super) fn take_waiting_undos(&mut self) -> Vec<(StepIndex, Fault)> {
        let waiting = self.task.faults_that_undo_on_resume();
        let mut faults: Vec<_> = waiting
            .map(|(index, fault)| (index, fault.clone()))
            .collect();
        faults.sort_by_key(|(index, fault)| (fault.at, *index));
        for (index, fault) in &mut faults {
            fault.undo_on_resume = false;
            self.task.step_mut(*index).state = StepState::Error(fault.clone());
            self.touch(*index);
        }
        faults
    }

    /// Starts the undo: steps that have not begun never will, and running ones are ended. No policy gets here while an operator
    /// has paused the task: its undo waits until the task is resumed.
    pub(super) fn begin_undo(&mut self, reason: Option<String>, error: Option<Fault>) {
        // Each step that is undone has a row beside that of its undo, which a damaged task is put together by.
        self.touch_all();
        self.take_waiting_undos();
        let remains: Vec<StepIndex> = { self.task.forward() }
            .filter(|index| self.remains_at_the_end(*index))
            .collect();
        let before = self.task.status().as_str();
        self.ready.clear();
        self.task.undo = Some(Undo {
            at: self.now,
            by: self.by.clone(),
            reason: reason.clone(),
            error,
            cancels: false,
        });
        self.task.state = TaskState::Undoing;
        self.task.start_at = None;
        self.task.waits = false;
        self.record_task(before, reason);
        self.make_undos();
        self.end_unbegun_items("the task is undone");
        for index in self.task.forward() {
            if remains.contains(&index) {
                continue;
            }
            match self.task.step(index).state {
                StepState::Waiting | StepState::Pending { .. } => {
                    self.abandon(index, "the task is undone");
                }
                StepState::Processing { .. } if self.task.waits_for_child(index) => {
                    self.leave_child(index);
                }
                StepState::Processing { .. } if self.task.waits_for_event(index) => {
                    self.abandon(index, "the task is undone");
                }
                // It is being dropped, or its service is asked to cancel the work: the undo waits for that.
                StepState::Processing { .. } if self.task.is_withdrawn(index) => {}
                StepState::Processing { .. } => {
                    // Its attempt lasts until its holder has confirmed that no try can follow. What it
                    // did is not asked before: the answer could be wrong a moment later.
                    if self.task.is_awaited(index) && self.task.is_to_be_dropped(index) {
                        self.drop_open_reply(index);
                    } else if self.task.is_to_be_dropped(index) {
                        self.have_dropped(index, true);
                        self.note_drop(index);
                    }
                }
                StepState::Error(_) => self.alerts.push(AlertChange::Close { step: index }),
                StepState::Processed { .. }
                | StepState::Skipped { .. }
                | StepState::Cancelled { .. }
                | StepState::Undone { .. } => {}
            }
        }
        self.open_undos();
    }

    /// Makes the undos of the steps, and of the items of groups.
    pub(super) fn make_undos(&mut self) {
        let definition = &self.task.details.definition;
        let mut undos = StepList::from(vec![Step::new(); definition.undos.len()]);
        let groups = self.task.groups().iter();
        let items: usize = groups.map(|group| group.undos.len()).sum();
        undos.push_items(vec![Step::new(); items]);
        let first = self.task.steps.len();
        for at in first..first + undos.len() {
            // There are at most as many steps as an index can count.
            self.touch(StepIndex(at as u16));
        }
        self.task.undos = undos;
    }

    fn note_drop(&mut self, index: StepIndex) {
        let step = self.task.step(index);
        let instance = match &step.state {
            StepState::Processing { held_by, .. } => held_by.instance(),
            _ => None,
        };
        let instance = instance.map_or("nobody", |instance| instance.as_str());
        let reason =
            format!("the task is undone; its call is being dropped by instance {instance}");
        self.note_attempt(index, "step.dropping", step.attempt, reason);
    }

    /// Returns whether the step is one that the task, being undone, only waits for.
    pub(super) fn is_left_behind(&self, index: StepIndex) -> bool {
        !self.task.is_current(index) || self.task.is_lost(index)
    }

    /// Ends a step that is not tried again, because the task is undone.
    pub(super) fn abandon(&mut self, index: StepIndex, reason: &str) {
        let cancelled = StepState::Cancelled { at: self.now };
        let reason = Some(reason.to_owned());
        self.change(index, "step.cancelled", cancelled, reason);
    }

    /// Ends the attempt of a step that the task, being undone, only waits for. False: the task runs the step itself.
    pub(super) fn leave_behind(&mut self, index: StepIndex, reason: &str) -> bool {
        if !self.is_left_behind(index) {
            return false;
        }
        self.abandon(index, reason);
        self.open_undos();
        self.open_reverts(index);
        self.settle(None);
        true
    }

    /// Opens what undoes the steps whose followers are all undone.
    pub(super) fn open_undos(&mut self) {
        if self.task.undo.is_none() {
            return;
        }
        let definition = self.task.details.definition.clone();
        // Backward, so that one that is passed over lets those before it be looked at next.
        for undone in definition.order.iter().rev().copied() {
            if self.task.has_items(undone) {
                self.open_undos_of_items(undone);
            }
            if definition.step(undone).undo.is_some() && self.may_be_undone(undone) {
                self.open_undo(undone);
            }
        }
    }

    /// Opens what undoes the items of a group. The same steps follow all of them, but for iterations: each of these is undone
    /// after those that followed it.
    fn open_undos_of_items(&mut self, group: StepIndex) {
        let Some(group) = self.task.group(group).cloned() else {
            return;
        };
        let is_repeated = self.task.is_repeated(group.step);
        let waiting = self.task.undos.find_in(&group.undos, StepStatus::Waiting);
        let mut waiting: Vec<_> = waiting.collect();
        if is_repeated {
            waiting.reverse();
        }
        let first_undo = self.task.steps.len();
        // There are at most as many steps as an index can count.
        let index = |at: usize| StepIndex((first_undo + at) as u16);
        let Some(first) = waiting.first().map(|at| self.task.subject(index(*at))) else {
            return;
        };
        if self.task.has_undone_before(first) {
            return;
        }
        if is_repeated && !self.are_undone_after(&group, waiting[0]) {
            return;
        }
        for at in waiting {
            let item = self.task.subject(index(at));
            let is_running = self.task.step(item).status() == StepStatus::Processing;
            if !is_running {
                let step = self.task.step(item);
                if step.attempt.0 == 0 && !step.may_have_taken_effect() {
                    self.leave_out(item);
                } else {
                    self.open_undo(item);
                }
            }
            if is_repeated && !self.task.undos[at].is_done() {
                return;
            }
        }
    }

    /// Returns whether the iterations after one are undone. `undo`: the position of that iteration's undo.
    fn are_undone_after(&self, group: &ItemGroup, undo: usize) -> bool {
        let mut after = group.undos.iter().rev().take_while(|at| *at > undo);
        after.all(|at| self.task.undos[at].is_done())
    }

    /// An item that never began: the history says that of all such items together.
    fn leave_out(&mut self, item: StepIndex) {
        if let Some(undo) = self.task.definition(item).undo {
            self.task.step_mut(undo).state = StepState::Skipped {
                output: None,
                at: self.now,
            };
            self.touch(undo);
        }
    }

    fn may_be_undone(&self, undone: StepIndex) -> bool {
        let Some(undo) = self.task.definition(undone).undo else {
            return false;
        };
        self.task.step(undo).state == StepState::Waiting
            && self.task.step(undone).status() != StepStatus::Processing
            && !self.task.has_undone_before(undone)
    }

    fn open_undo(&mut self, undone: StepIndex) {
        let Some(undo) = self.task.definition(undone).undo else {
            return;
        };
        if self.task.step(undone).may_have_taken_effect() {
            let pending = StepState::Pending { ready_at: self.now };
            self.change(undo, "step.ready", pending, None);
            if self.task.definition(undo).is_call() {
                self.offer(undo);
            } else {
                self.await_event(undo);
            }
        } else {
            let name = &self.task.definition(undone).name;
            let reason = match self.task.step(undone).state {
                StepState::Undone { .. } => format!("{name} is undone already"),
                _ => format!("{name} never took effect"),
            };
            self.pass_over(undo, reason);
        }
    }

    /// The step is left out, and with it what it has had of items; for an undo, there is nothing to undo.
    pub(super) fn pass_over(&mut self, index: StepIndex, reason: String) {
        let skipped = StepState::Skipped {
            output: None,
            at: self.now,
        };
        self.change(index, "step.skipped", skipped, Some(reason));
        self.leave_out_items(index, "its group is skipped");
    }

    /// Continues with the steps before, now that the undo of a step is done, or was skipped by an operator.
    pub(super) fn after_undo(&mut self, undo: StepIndex) {
        if let StepState::Processed { .. } = self.task.step(undo).state {
            let undone = self.task.subject(undo);
            let step = self.task.step_mut(undone);
            step.set_effect(Effect::Known);
            let state = StepState::Undone {
                output: step.output().cloned(),
                at: self.now,
            };
            self.change(undone, "step.undone", state, None);
        }
        self.go_on_after_undo(undo);
    }

    /// Begins the steps that waited for the end of an undo.
    pub(super) fn go_on_after_undo(&mut self, undo: StepIndex) {
        self.open_undos();
        if self.task.is_revert(undo) && self.task.undo.is_none() {
            self.open_followers(undo);
        }
    }

    /// The state of a task that is undone: the steps themselves no longer count.
    pub(super) fn undoing_state(&self) -> TaskState {
        let task = &self.task;
        if let Some(fault) = first_fault(task) {
            let is_undo = task.undos.first_faults().next().is_some();
            TaskState::Error(Fault {
                kind: match is_undo {
                    true => FaultKind::UndoFailed,
                    false => fault.kind,
                },
                ..fault
            })
        } else if task.may_begin_finally() && task.has_ended_finally() {
            match task.is_cancelled() {
                true => TaskState::Cancelled { at: self.now },
                false => TaskState::Undone { at: self.now },
            }
        } else if task.paused {
            TaskState::Paused
        } else {
            TaskState::Undoing
        }
    }

    /// Records what a probe found out about a step before it is undone.
    pub(super) fn took_effect(&mut self, step: StepIndex, output: Payload) {
        let found = self.task.step_mut(step);
        found.set_effect(Effect::Known);
        found.response = None;
        let processed = StepState::Processed {
            output,
            at: self.time_of_success(step),
        };
        let reason = Some("its probe found that it took effect".to_owned());
        self.change(step, "step.processed", processed, reason);
    }
}

/// The number of items of each group that are named.
const ITEMS_NAMED: usize = 10;

/// The steps that must end before a step is undone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OutstandingUndos {
    pub named: Vec<StepIndex>,
    /// The number of items that are not named.
    pub more: u32,
}

impl OutstandingUndos {
    /// Adds `count` items, of which the first are named.
    fn add(&mut self, items: impl Iterator<Item = usize>, count: u32) {
        let before = self.named.len();
        // There are at most as many steps as an index can count.
        let named = items.take(ITEMS_NAMED).map(|at| StepIndex(at as u16));
        self.named.extend(named);
        let named = self.named.len() - before;
        self.more += count.saturating_sub(named as u32);
    }
}

impl Task {
    /// The steps in error whose policy has the task undone as soon as an operator resumes it.
    pub fn faults_that_undo_on_resume(&self) -> impl Iterator<Item = (StepIndex, &Fault)> {
        self.forward()
            .filter_map(|index| match &self.step(index).state {
                StepState::Error(fault) if fault.undo_on_resume => Some((index, fault)),
                _ => None,
            })
    }

    /// Returns whether the call of a step is to be dropped, because the task is to be undone, and its holder has yet to
    /// confirm that it was.
    pub fn is_to_be_dropped(&self, index: StepIndex) -> bool {
        self.undo.is_some()
            && matches!(self.step(index).state, StepState::Processing { .. })
            && self.definition(index).is_dropped_by_undo()
    }

    /// Returns whether a service has promised a later reply to the current attempt.
    pub fn is_awaited(&self, index: StepIndex) -> bool {
        match &self.step(index).state {
            StepState::Processing { held_by, .. } => matches!(held_by, StepHolder::Service(_)),
            _ => false,
        }
    }

    /// Returns whether the step has begun, and waits for a time or a signal.
    pub fn waits_for_event(&self, index: StepIndex) -> bool {
        self.is_event(index) && !self.definition(index).has_child()
    }

    /// The worker that has fetched a step and works on it.
    pub fn worker(&self, index: StepIndex) -> Option<&WorkerName> {
        match &self.step(index).state {
            StepState::Processing { held_by, .. } => held_by.worker(),
            _ => None,
        }
    }

    /// Returns whether a service has promised a later reply that it sends by itself. Takes any index, also one that the
    /// task lacks.
    pub fn is_open(&self, index: StepIndex) -> bool {
        self.has_step(index) && self.is_awaited(index) && self.due_at(index).is_none()
    }

    /// Returns the steps that one follows: for an undo, the undos of the steps that follow the step it undoes.
    pub fn after(&self, index: StepIndex) -> Vec<StepIndex> {
        let definition = self.definition(index);
        match definition.undoes {
            None if definition.item.is_none() => self.details.definition.follows(index),
            None => definition.after.to_vec(),
            Some(_) if self.is_revert(index) => definition.after.to_vec(),
            Some(undone) => self.followers(undone, |step| self.definition(step).undo),
        }
    }

    /// Returns the work that must end before a step is undone: the running calls of the steps that follow it, directly
    /// or indirectly, and their undos. Of the items of each group only the first few are named.
    pub(crate) fn undone_before(&self, step: StepIndex) -> OutstandingUndos {
        let mut outstanding = OutstandingUndos::default();
        let own = self.group_of(step);
        // Iterations are undone one by one, the last of them first.
        if self.is_repeated(own)
            && let Some(undo) = self.definition(step).undo
            && let Some(group) = self.group(own)
        {
            let first = self.steps.len();
            let mut later = group.undos.iter().filter(|at| first + at > undo.at());
            if let Some(next) = later.find(|at| !self.undos[*at].is_done()) {
                outstanding.add([first + next].into_iter(), 1);
                return outstanding;
            }
        }
        let mut seen = vec![false; self.details.definition.steps.len()];
        let mut path = vec![own];
        while let Some(index) = path.pop() {
            for follower in &*self.details.definition.step(index).followers {
                if std::mem::replace(&mut seen[follower.at()], true) {
                    continue;
                }
                let is_open = match self.group(*follower) {
                    Some(group) => {
                        self.add_outstanding(&group.undos, &mut outstanding)
                            || self.add_running(&group.items, &mut outstanding)
                    }
                    None => match self.outstanding(*follower) {
                        Some(step) => {
                            outstanding.named.push(step);
                            true
                        }
                        None => false,
                    },
                };
                if !is_open {
                    path.push(*follower);
                }
            }
        }
        outstanding
    }

    /// The running call of a step that is no item, or what undoes it.
    fn outstanding(&self, step: StepIndex) -> Option<StepIndex> {
        if let StepState::Processing { .. } = self.step(step).state {
            return Some(step);
        }
        let undo = self.definition(step).undo?;
        (!self.step(undo).is_done()).then_some(undo)
    }

    /// Adds the undos of items that are not done. False: there are none.
    fn add_outstanding(&self, undos: &Positions, outstanding: &mut OutstandingUndos) -> bool {
        // Items in error come first, because an operator must look at them; items that run come second.
        const ORDER: [StepStatus; 5] = [
            StepStatus::Error,
            StepStatus::Processing,
            StepStatus::Pending,
            StepStatus::Waiting,
            StepStatus::Cancelled,
        ];
        let counts = self.undos.counts_of(undos);
        let count = counts.total() - counts.done();
        let found = ORDER
            .iter()
            .flat_map(|status| self.undos.find_in(undos, *status));
        let first = self.steps.len();
        outstanding.add(found.map(|at| first + at), count);
        count > 0
    }

    /// Adds the items that run and that nothing undoes. False: there are none.
    fn add_running(&self, items: &Positions, outstanding: &mut OutstandingUndos) -> bool {
        let count = self.steps.counts_of(items).count(StepStatus::Processing);
        outstanding.add(self.steps.find_in(items, StepStatus::Processing), count);
        count > 0
    }

    /// Returns whether [`Task::undone_before`] would find anything. The items of a group are not looked at one by one.
    fn has_undone_before(&self, step: StepIndex) -> bool {
        let mut seen = vec![false; self.details.definition.steps.len()];
        let mut path = vec![self.group_of(step)];
        while let Some(index) = path.pop() {
            for follower in &*self.details.definition.step(index).followers {
                if std::mem::replace(&mut seen[follower.at()], true) {
                    continue;
                }
                let is_open = match self.group(*follower) {
                    Some(group) => {
                        let undos = self.undos.counts_of(&group.undos);
                        let items = self.steps.counts_of(&group.items);
                        undos.done() < undos.total() || items.count(StepStatus::Processing) > 0
                    }
                    None => {
                        let undo = self.definition(*follower).undo;
                        let waits = undo.is_some_and(|undo| !self.step(undo).is_done());
                        waits || self.step(*follower).status() == StepStatus::Processing
                    }
                };
                if is_open {
                    return true;
                }
                path.push(*follower);
            }
        }
        false
    }

    /// Goes from a step to those that follow it, and further where `found` gives nothing.
    fn followers(
        &self,
        step: StepIndex,
        found: impl Fn(StepIndex) -> Option<StepIndex>,
    ) -> Vec<StepIndex> {
        let mut all = Vec::new();
        let mut seen = vec![false; self.steps.len()];
        let mut path = vec![step];
        while let Some(index) = path.pop() {
            for follower in &*self.definition(index).followers {
                if !std::mem::replace(&mut seen[follower.at()], true) {
                    match found(*follower) {
                        Some(step) => all.push(step),
                        None => path.push(*follower),
                    }
                }
            }
        }
        all
    }
}
