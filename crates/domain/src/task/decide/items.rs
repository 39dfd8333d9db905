//! The items of a group: how those of a list come to be, which of them run, and what the group becomes once they have ended.
//! Iterations: see `repeat.rs`.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Draft;
use crate::{
    definition::for_each::{MOST_ITEMS, items_of},
    task::{
        aggregate::Task,
        alert::AlertChange,
        expansion::{Expansion, ItemGroup, KnownItems},
        open_reply::StepHolder,
        positions::Positions,
        step::{Step, StepState, StepStatus},
        step_list::StepCounts,
    },
    template::payload::Payload,
    values::{
        fault::Fault,
        ids::{Attempt, StepIndex},
        time::Timestamp,
    },
};

/// A group is held until its items have ended, and no longer: no time is set for that. The end of the year 9999.
pub(super) const NO_END: Timestamp = Timestamp::from_millis(253_402_300_799_000);

impl Draft {
    /// A pending group begins: its list becomes known, and the first of its items run. True if it is done already.
    pub(super) fn begin_group(&mut self, group: StepIndex) -> bool {
        let step = self.task.step_mut(group);
        step.attempt = step.attempt.next();
        step.started_at.get_or_insert(self.now);
        if self.task.is_repeated(group) {
            return self.begin_repeat(group);
        }
        // If it runs again, so do its items.
        if self.task.group(group).is_none() {
            match self.make_items(group) {
                Ok(0) => {
                    self.hold_group(group, "its list is empty");
                    self.event_came(group, Payload::new(no_items()));
                    return true;
                }
                Ok(_) => {}
                Err(message) => return self.cannot_begin(group, message),
            }
        }
        let items = self.task.group(group).map_or(0, |group| group.items.len());
        let at_once = self.task.max_parallel(group);
        let reason = format!("it has {items} items, {at_once} at once");
        self.hold_group(group, &reason);
        self.run_items(group)
    }

    pub(super) fn hold_group(&mut self, group: StepIndex, reason: &str) {
        let begun = StepState::Processing {
            held_by: StepHolder::Event,
            complete_by: NO_END,
        };
        self.change(group, "step.began", begun, Some(reason.to_owned()));
    }

    /// Adds the items of a group to the task. Returns how many there are.
    fn make_items(&mut self, group: StepIndex) -> Result<usize, String> {
        let definition = self.task.details.definition.clone();
        let rule = definition.step(group).group_rule();
        let Some(rule) = rule.and_then(|rule| rule.for_each()) else {
            return Err("it has no `for_each`".to_owned());
        };
        self.task.check_max_parallel(group)?;
        let json = rule.list(&self.task.scope(group, &self.budget))?;
        // A text that was rendered as JSON is JSON.
        let list = RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let Some(values) = items_of(&list) else {
            let kind = kind_of(&list);
            return Err(format!("`for_each` must give an array, but gives {kind}"));
        };
        let count = values.len();
        if let Some(enough) = self.task.enough(group)?
            && usize::from(enough) > count
        {
            return Err(format!(
                "`enough` needs {enough} items, and its list has {count}"
            ));
        }
        if count == 0 {
            return Ok(0);
        }
        self.check_room_for_list(list.get().len())?;
        let (first, known) = (self.task.steps.len(), KnownItems::Values(values));
        let items = Positions::from(first..first + count);
        let items = ItemGroup::new(group, known, items);
        self.check_items(&items).map_err(|message| {
            format!("`for_each` gives {count} items{message}; split the list over several tasks")
        })?;
        let saved = items.to_record(Some(&list));
        let expansion = self.expanded(items);
        self.task.expansion = Some(Arc::new(expansion.ok_or("it has too many items")?));
        self.task.steps.push_items(vec![Step::new(); count]);
        self.task.step_mut(group).body = Some(saved);
        for at in first..first + count {
            // Counted by `Expansion::of`.
            self.touch(StepIndex(at as u16));
        }
        Ok(count)
    }

    /// Checks that there is room for the items that a group has, or may come to have. The words of the error continue
    /// after their number.
    pub(super) fn check_items(&self, group: &ItemGroup) -> Result<(), String> {
        let groups = self.task.groups().iter();
        let others = groups.filter(|other| other.step != group.step);
        let others: usize = others.map(ItemGroup::most_items).sum();
        if others + group.most_items() > MOST_ITEMS {
            let before = match others {
                0 => String::new(),
                others => format!(" and the other steps have {others}, or may come to have them"),
            };
            return Err(format!("{before}: a task has at most {MOST_ITEMS}"));
        }
        // Each may have what undoes it.
        let definition = &self.task.details.definition;
        let own = definition.steps.len() + definition.undos.len();
        if own + 2 * (others + group.most_items()) > usize::from(u16::MAX) {
            return Err(": with the other steps of the task these are too many".to_owned());
        }
        Ok(())
    }

    /// The task's items with those of this group, in place of those that it has had.
    pub(super) fn expanded(&self, group: ItemGroup) -> Option<Expansion> {
        let known = self.task.expansion.as_ref();
        let mut groups = known.map_or_else(Vec::new, |known| known.recorded());
        groups.retain(|other| other.step != group.step);
        groups.push(group);
        Expansion::of(&self.task.details.definition, groups)
    }

    /// Has items of a group run as long as there are some that wait, and fewer run than may. Once all have ended, the group
    /// is done or in error. True if it has become done.
    pub(super) fn run_items(&mut self, group: StepIndex) -> bool {
        let Some(items) = self.task.group(group).map(|group| group.items.clone()) else {
            return false;
        };
        if self.task.is_repeated(group) {
            return self.go_on(group);
        }
        let most = self.task.max_parallel(group).into();
        match self.task.step(group).status() {
            StepStatus::Processing => {}
            StepStatus::Error
                if self.goes_on(&self.task.steps.counts_of(&items))
                    || self.task.has_enough(group) =>
            {
                self.hold_group_again(group, "its items go on");
            }
            _ => return false,
        }
        let mut taken = self.task.turns_taken(&items, most, self.now);
        loop {
            if self.task.undo.is_some() {
                return false;
            }
            if self.task.has_enough(group) {
                self.end_items_left(group);
                let output = self.outputs_of(group, items.len());
                self.event_came(group, output);
                return true;
            }
            let mut waiting = self.task.steps.find_in(&items, StepStatus::Waiting);
            let (true, Some(next)) = (taken < most, waiting.next()) else {
                break;
            };
            drop(waiting);
            // There are at most as many steps as an index can count.
            let next = StepIndex(next as u16);
            let pending = StepState::Pending { ready_at: self.now };
            self.change(next, "step.ready", pending, None);
            if self.task.definition(next).is_call() {
                self.offer(next);
                taken += 1;
            } else {
                // It may have ended with that.
                self.await_event(next);
                taken = self.task.turns_taken(&items, most, self.now);
            }
        }
        let counts = self.task.steps.counts_of(&items);
        if counts.live() > 0 || counts.count(StepStatus::Waiting) > 0 {
            return false;
        }
        let enough = self.task.enough(group).ok().flatten();
        match counts.count(StepStatus::Error) {
            0 if let Some(enough) = enough => {
                let processed = counts.count(StepStatus::Processed);
                let message = format!(
                    "only {processed} of its {} items have succeeded, and it needs {enough}",
                    counts.total()
                );
                self.cannot_begin(group, message)
            }
            0 => {
                let output = self.outputs_of(group, items.len());
                self.event_came(group, output);
                true
            }
            failed => {
                let message = match counts.total() {
                    1 => "its only item is in error".to_owned(),
                    total => format!("{failed} of its {total} items are in error"),
                };
                let fault = Fault::permanent(message, self.now);
                self.change(group, "step.error", StepState::Error(fault), None);
                false
            }
        }
    }

    /// Returns whether a group in error has items again that run or wait, or none in error any more.
    fn goes_on(&self, counts: &StepCounts) -> bool {
        let waiting = counts.count(StepStatus::Waiting);
        counts.live() + waiting > 0 || counts.count(StepStatus::Error) == 0
    }

    pub(super) fn hold_group_again(&mut self, group: StepIndex, reason: &str) {
        self.alerts.push(AlertChange::Close { step: group });
        let waiting = StepState::Waiting;
        self.change(group, "step.retried", waiting, Some(reason.to_owned()));
        let pending = StepState::Pending { ready_at: self.now };
        self.change(group, "step.ready", pending, None);
        self.hold_group(group, reason);
    }

    /// Lets as many pending items of lists be claimed as `max_parallel` leaves: those that have been due for longest.
    pub(super) fn give_turns(&mut self) {
        for number in 0..self.task.groups().len() {
            while let Some((index, awaits_turn)) = self.task.next_turn_change(number) {
                self.task.step_mut(index).awaits_turn = awaits_turn;
                self.touch(index);
                if awaits_turn {
                    self.ready.retain(|ready| *ready != index);
                } else if self.task.due_at(index).is_some_and(|due| due <= self.now) {
                    self.offer(index);
                }
            }
        }
    }

    /// An item has ended, or is to be retried later: others may run, and the steps after the group may if it was the last to end.
    /// Other steps change nothing.
    pub(super) fn item_ended(&mut self, index: StepIndex) {
        let definition = self.task.definition(index);
        let (Some(item), None) = (definition.item, definition.undoes) else {
            return;
        };
        let is_done = match self.task.is_repeated(item.group) {
            true => self.iteration_ended(index, false),
            false => self.run_items(item.group),
        };
        if is_done {
            self.open_followers(item.group);
        }
    }

    /// Returns the outputs of the first `count` items of the group, as a list.
    pub(super) fn outputs_of(&self, group: StepIndex, count: usize) -> Payload {
        let items = self.task.group(group).map(|group| group.items.clone());
        let items = items.unwrap_or_default();
        let counts = self.task.steps.counts_of(&items);
        let mut list = String::with_capacity(counts.output_bytes + 8 * items.len());
        list.push('[');
        for at in items.iter().take(count) {
            if list.len() > 1 {
                list.push(',');
            }
            let output = self.task.steps[at].output();
            list.push_str(output.map_or("null", Payload::as_json));
        }
        list.push(']');
        // A list of JSON documents is one.
        Payload::parse(list).unwrap_or_else(Payload::null)
    }

    /// Items that were never claimed end with what they belong to: one entry in the history says so for all of them.
    pub(super) fn end_unbegun_items(&mut self, reason: &str) {
        for group in self.task.groups().to_vec() {
            self.end_unbegun_items_of(&group, reason);
        }
    }

    pub(super) fn end_unbegun_items_of(&mut self, group: &ItemGroup, reason: &str) {
        let waiting = self.task.steps.find_in(&group.items, StepStatus::Waiting);
        let unbegun = waiting.filter(|at| self.task.steps[*at].attempt == Attempt::default());
        let waiting: Vec<_> = unbegun.collect();
        for at in &waiting {
            self.task.steps[*at].state = StepState::Cancelled { at: self.now };
            self.touch(StepIndex(*at as u16));
        }
        if !waiting.is_empty() {
            let reason = format!("{reason}: {} of its items never began", waiting.len());
            self.note(group.step, "step.items_cancelled", reason);
        }
    }

    /// Returns whether items of a list have yet to begin: it began again when the time of its task was over.
    pub(super) fn has_waiting_items(&self, group: StepIndex) -> bool {
        let counts =
            { self.task.group(group) }.map(|group| self.task.steps.counts_of(&group.items));
        counts.is_some_and(|counts| counts.count(StepStatus::Waiting) > 0)
    }

    /// The items of a list that were skipped, by their policy or by an operator.
    pub(super) fn skipped_items(&self, group: StepIndex) -> Vec<StepIndex> {
        let Some(group) = self.task.group(group) else {
            return Vec::new();
        };
        let skipped = self.task.steps.find_in(&group.items, StepStatus::Skipped);
        skipped.map(|at| StepIndex(at as u16)).collect()
    }

    /// Too few items of a list have succeeded: those that were skipped run again.
    pub(super) fn try_skipped_items_again(&mut self, group: StepIndex, reason: Option<String>) {
        let reason = reason.unwrap_or_else(|| match self.has_waiting_items(group) {
            true => "its items go on".to_owned(),
            false => "too few of the items have succeeded".to_owned(),
        });
        for item in self.skipped_items(group) {
            let step = self.task.step_mut(item);
            step.failure_count = 0;
            step.extensions_used = 0;
            self.grant_attempts(item);
            self.change(
                item,
                "step.retried",
                StepState::Waiting,
                Some(reason.clone()),
            );
        }
        self.hold_group_again(group, &reason);
        if self.run_items(group) {
            self.open_followers(group);
        }
    }

    /// Items in error, of one group or of all. The groups themselves are in error because of them.
    pub(super) fn failed_items(&self, group: StepIndex) -> Vec<StepIndex> {
        let Some(group) = self.task.group(group) else {
            return Vec::new();
        };
        let failed = self.task.steps.find_in(&group.items, StepStatus::Error);
        failed.map(|at| StepIndex(at as u16)).collect()
    }
}

impl Task {
    /// Returns whether the step is a group with items: the items run, and not the step.
    pub fn has_items(&self, index: StepIndex) -> bool {
        self.group(index).is_some()
    }

    /// Counts the items of a list that run now, or may be claimed now, up to `most`. An item that is to be retried
    /// later does not count: its turn comes again once it is due.
    fn turns_taken(&self, items: &Positions, most: u32, now: Timestamp) -> u32 {
        let running = self.steps.counts_of(items).count(StepStatus::Processing);
        let free = most.saturating_sub(running);
        let ready = self.steps.ready_in(items, now, free as usize);
        running + u32::try_from(ready).unwrap_or(u32::MAX)
    }

    /// Returns how many pending items of a list may have their turns beside those that run. `None` for iterations.
    fn free_turns(&self, group: &ItemGroup) -> Option<usize> {
        let rule = self.definition(group.step).group_rule();
        rule.filter(|rule| rule.repeat().is_none())?;
        let running = self.steps.counts_of(&group.items);
        let running = running.count(StepStatus::Processing);
        let most = u32::from(self.max_parallel(group.step));
        Some(most.saturating_sub(running) as usize)
    }

    /// The next pending item of this group, named by its position among the groups, for which it changes whether it awaits its
    /// turn, and whether it does then. Which of them do depends on nothing but the states of the items: those that are due
    /// first have the turns that the running ones leave. Nothing is asked of each item, because thousands may wait for
    /// their retries.
    fn next_turn_change(&self, group: usize) -> Option<(StepIndex, bool)> {
        let group = self.groups().get(group)?;
        let free = self.free_turns(group)?;
        let turns = self.steps.turns_of(&group.items);
        // There are at most as many steps as an index can count.
        let index = |(_, at): (Timestamp, usize)| StepIndex(at as u16);
        match (turns.last_given, turns.first_awaiting) {
            (Some(given), _) if turns.given > free => Some((index(given), true)),
            (_, Some(awaiting)) if turns.given < free => Some((index(awaiting), false)),
            (Some(given), Some(awaiting)) if awaiting < given => Some((index(given), true)),
            _ => None,
        }
    }

    /// After it was read from the record, which does not say whose turn it is.
    pub fn give_turns(&mut self) {
        for number in 0..self.groups().len() {
            let group = &self.groups()[number];
            let (items, Some(free)) = (group.items.clone(), self.free_turns(group)) else {
                continue;
            };
            let ready_at = |at: usize| match self.steps[at].state {
                StepState::Pending { ready_at } => ready_at,
                _ => NO_END,
            };
            let pending = self.steps.find_in(&items, StepStatus::Pending);
            let mut pending: Vec<_> = pending.map(|at| (ready_at(at), at)).collect();
            if pending.len() > free {
                pending.sort_unstable();
                for (_, at) in pending.drain(free..) {
                    self.steps[at].awaits_turn = true;
                }
            }
        }
    }
}

fn no_items() -> Box<RawValue> {
    RawValue::from_string("[]".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn kind_of(value: &RawValue) -> &'static str {
    match value.get().bytes().next() {
        Some(b'n') => "null",
        Some(b'{') => "an object",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a boolean",
        _ => "a number",
    }
}
