//! The head of an agent's queue, as far as an instance knows it without reading the record.
//!
//! The head is a hint: the next steps are claimed by it in the transaction that saves other changes. The record is the
//! fence. The head has the steps that the instance enqueued itself. The instance finds the steps of others when it
//! reads the record: at every poll, and whenever the head has run out.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    queue::claim_order::QueueRank,
    task::turn::Turn,
    values::{Span, ids::StepRef, time::Timestamp},
};

/// The most steps of one queue.
const MOST: usize = 1024;

/// A step that another instance enqueued waits no longer than this after the steps that this instance enqueued. After
/// that, the queue is claimed from as it is in the record.
const OTHERS_WAIT: Span = Span::from_millis(1000);

/// For this time, a step that another instance enqueued is left to that instance, which usually claims it with the next
/// slot that one of its calls frees: it has the task in memory, and its callers wait for the task there.
pub const LEFT_TO_OTHERS: Span = Span::from_millis(25);
/// A step that is due later than this after now was not enqueued just now: the clock of the store was set back.
const CLOCK_SET_BACK: Span = Span::from_secs(10);

/// Returns the due times of the steps that are left to other instances.
pub fn left_to_others(now: Timestamp) -> Range<Timestamp> {
    let since = Timestamp::from_millis(now.as_millis() - LEFT_TO_OTHERS.as_millis() + 1);
    since..now + CLOCK_SET_BACK
}

/// A step in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedStep {
    pub step: StepRef,
    pub turn: Turn,
    pub due_at: Timestamp,
}

impl QueuedStep {
    pub fn rank(&self) -> QueueRank {
        QueueRank::new(self.step, self.turn)
    }
}

#[derive(Debug)]
pub struct KnownQueue {
    steps: BTreeSet<QueueRank>,
    /// True if there may be steps after the last one.
    is_cut: bool,
    /// True if the record is read before the next claim.
    must_read: bool,
}

impl Default for KnownQueue {
    fn default() -> Self {
        Self {
            steps: BTreeSet::new(),
            is_cut: false,
            must_read: true,
        }
    }
}

impl KnownQueue {
    /// Adds a step that this instance has enqueued.
    pub fn add(&mut self, step: StepRef, turn: Turn) {
        let position = QueueRank::new(step, turn);
        let is_behind = self.steps.last().is_none_or(|last| position > *last);
        if self.is_cut && is_behind && !self.must_read {
            return;
        }
        self.steps.insert(position);
        if self.steps.len() > MOST {
            self.steps.pop_last();
            self.is_cut = true;
        }
    }

    /// Removes a step that is no longer in the queue.
    pub fn remove(&mut self, step: StepRef, turn: Turn) {
        self.steps.remove(&QueueRank::new(step, turn));
    }

    /// Removes a step as [`KnownQueue::remove`] does, if only its reference is known. It is one of the first.
    pub fn remove_first(&mut self, step: StepRef) {
        let found = self.steps.iter().find(|position| position.step() == step);
        if let Some(position) = found.copied() {
            self.steps.remove(&position);
        }
    }

    /// Has the record read before the next claim, because the queue may have changed in another way.
    pub fn require_read(&mut self) {
        self.must_read = true;
    }

    /// Returns whether the order of the next steps is known. Other instances may have enqueued steps since, which do
    /// not wait for long.
    pub fn is_known(&self) -> bool {
        !self.must_read
    }

    /// Returns whether there are no steps after the known ones.
    pub fn is_whole(&self) -> bool {
        !self.is_cut
    }

    /// Returns whether no step that this instance has enqueued is known.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns whether steps can be claimed without reading the record.
    pub fn is_usable(&self) -> bool {
        !self.must_read && !self.steps.is_empty()
    }

    /// Returns whether no step is queued, if no other instance enqueues any.
    pub fn is_drained(&self) -> bool {
        !self.must_read && !self.is_cut && self.steps.is_empty()
    }

    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = QueueRank> {
        self.steps.iter().copied()
    }

    /// Replaces the head by what was read from the record, which no other instance shares. `is_whole`: these are all
    /// steps.
    pub fn replace(&mut self, found: &[QueuedStep], is_whole: bool) {
        self.steps = found.iter().map(QueuedStep::rank).collect();
        self.is_cut = !is_whole;
        self.must_read = false;
    }

    /// Compares the head with what was read from the record, if other instances claim from the queue as well. While the
    /// queue has steps that this instance does not know and that should not wait, the next claim reads the record too.
    pub fn compare(&mut self, found: &[QueuedStep], now: Timestamp) {
        if self.steps.is_empty() {
            // Steps that had no room are found in the record, as if others had enqueued them.
            self.is_cut = false;
        }
        let first = self.steps.first();
        self.must_read = found.iter().any(|found| {
            let position = found.rank();
            let is_more_important = first.is_some_and(|first| position.is_more_important(*first));
            let waits = found.due_at + OTHERS_WAIT < now;
            (is_more_important || waits) && !self.steps.contains(&position)
        });
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::values::ids::{StepIndex, TaskId};

    fn step(number: u128) -> StepRef {
        StepRef {
            task: TaskId(Uuid::from_u128(number)),
            step: StepIndex(0),
        }
    }

    /// The turn of a task with a head start of this many hours over tasks that all came at once.
    fn ahead(hours: i64) -> Turn {
        Turn::from_millis(-hours * 3_600_000)
    }

    fn queued(number: u128, important: i64, due_at: i64) -> QueuedStep {
        QueuedStep {
            step: step(number),
            turn: ahead(important),
            due_at: Timestamp::from_millis(due_at),
        }
    }

    /// The head of a queue that was read completely.
    fn known(steps: &[QueuedStep]) -> KnownQueue {
        let mut head = KnownQueue::default();
        head.replace(steps, true);
        head
    }

    fn order(head: &KnownQueue) -> Vec<StepRef> {
        head.steps().map(QueueRank::step).collect()
    }

    #[test]
    fn nothing_is_claimed_by_a_head_before_the_record_was_read() {
        let mut head = KnownQueue::default();
        head.add(step(1), ahead(0));
        assert!(!head.is_usable());
        assert!(!head.is_drained());
        head.replace(&[queued(1, 0, 0)], true);
        assert!(head.is_usable());
        head.require_read();
        assert!(!head.is_usable());
    }

    #[test]
    fn the_most_important_step_is_first_and_then_that_of_the_oldest_task() {
        let mut head = known(&[]);
        for (number, important) in [(3, 0), (1, 0), (2, 5), (4, -5)] {
            head.add(step(number), ahead(important));
        }
        assert_eq!(order(&head), [step(2), step(1), step(3), step(4)]);
        head.remove(step(2), ahead(5));
        assert_eq!(order(&head)[0], step(1));
    }

    #[test]
    fn a_queue_that_was_read_whole_is_drained_with_its_last_step() {
        let mut head = known(&[queued(1, 0, 0)]);
        assert!(!head.is_drained());
        head.remove_first(step(1));
        assert!(head.is_drained());
        head.add(step(2), ahead(0));
        assert!(!head.is_drained());
    }

    #[test]
    fn what_stands_behind_a_part_that_is_not_known_is_not_claimed_before_it() {
        let mut head = KnownQueue::default();
        head.replace(&[queued(1, 0, 0), queued(5, 0, 0)], false);
        head.add(step(9), ahead(0));
        head.add(step(3), ahead(0));
        assert_eq!(order(&head), [step(1), step(3), step(5)]);
        for number in [1, 3, 5] {
            head.remove(step(number), ahead(0));
        }
        head.add(step(9), ahead(0));
        assert!(!head.is_usable() && !head.is_drained());
    }

    #[test]
    fn a_long_queue_is_known_as_far_as_there_is_room() {
        let mut head = known(&[]);
        for number in (0..2 * MOST as u128).rev() {
            head.add(step(number), ahead(0));
        }
        assert_eq!(head.steps.len(), MOST);
        assert_eq!(order(&head)[0], step(0));
        for number in 0..MOST as u128 {
            head.remove(step(number), ahead(0));
        }
        assert!(!head.is_drained(), "the others are in the record");
    }

    #[test]
    fn steps_of_others_that_should_not_wait_are_claimed_as_the_record_has_them() {
        let now = Timestamp::from_millis(10_000);
        let own = queued(5, 0, 9_900);
        for (found, is_usable) in [
            (vec![], true),
            (vec![own], true),
            // The step was enqueued just now, and its own instance will claim it.
            (vec![queued(1, 0, 9_500), own], true),
            (vec![queued(1, 0, 8_000), own], false),
            (vec![queued(7, 1, 9_900), own], false),
            // A step that this instance knows may wait for any time.
            (vec![queued(5, 0, 1)], true),
        ] {
            let mut head = known(&[own]);
            head.require_read();
            head.compare(&found, now);
            assert_eq!(head.is_usable(), is_usable, "{found:?}");
        }
    }
}
