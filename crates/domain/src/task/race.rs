//! Races: the state of a join that needs fewer than all of the steps before it. Nothing of it is on record: it follows
//! from the states of the competitors and the times at which they succeeded.

use crate::{
    definition::{RaceRest, RaceRule},
    task::{
        aggregate::Task,
        step::{StepState, StepStatus},
    },
    values::{ids::StepIndex, time::Timestamp},
};

impl Task {
    /// Returns the competitors that have won the race before a join, in the order in which they succeeded: at most as many
    /// as it needs. Where the join has ended without them, these are the ones that had succeeded by then.
    pub fn winners(&self, join: StepIndex) -> Vec<StepIndex> {
        let Some(race) = &self.details.definition.step(join).race else {
            return Vec::new();
        };
        let mut winners: Vec<_> = self.successes(race).collect();
        winners.sort_unstable();
        winners.truncate(usize::from(race.any));
        if winners.len() < usize::from(race.any)
            && let Some(end) = self.end_of_join(join)
        {
            winners.retain(|(at, _)| *at <= end);
        }
        winners.into_iter().map(|(_, index)| index).collect()
    }

    /// Returns the time at which a join has ended, if it has.
    fn end_of_join(&self, join: StepIndex) -> Option<Timestamp> {
        let step = self.step(join);
        step.ended_at().filter(|_| step.has_ended_for_good())
    }

    fn successes(&self, race: &RaceRule) -> impl Iterator<Item = (Timestamp, StepIndex)> {
        race.of
            .iter()
            .filter_map(|index| match self.step(*index).state {
                StepState::Processed { at, .. } if self.has_succeeded(*index) => Some((at, *index)),
                _ => None,
            })
    }

    /// Returns whether enough competitors have succeeded.
    pub fn is_won(&self, race: &RaceRule) -> bool {
        self.successes(race)
            .nth(usize::from(race.any) - 1)
            .is_some()
    }

    /// Returns whether too few competitors are left for the join to begin.
    pub fn cannot_be_won(&self, race: &RaceRule) -> bool {
        let is_left = |index: &&StepIndex| match self.step(**index).status() {
            StepStatus::Skipped | StepStatus::Cancelled | StepStatus::Undone => false,
            StepStatus::Processed => self.has_succeeded(**index),
            StepStatus::Waiting
            | StepStatus::Pending
            | StepStatus::Processing
            | StepStatus::Error => true,
        };
        race.of.iter().filter(is_left).count() < usize::from(race.any)
    }

    /// Returns whether everything that the step follows is done, so that it may begin.
    pub fn is_ready_to_begin(&self, index: StepIndex) -> bool {
        let definition = self.definition(index);
        match &definition.race {
            Some(race) => self.is_won(race),
            None if self.is_revert(index) => self.is_revert_due(index),
            None if definition.is_finally && !self.may_begin_finally() => false,
            None => definition
                .after
                .iter()
                .all(|step| self.step(*step).is_done()),
        }
    }

    /// Returns whether the race before a join is over: it is won, or the join has ended without it.
    pub(crate) fn is_race_over(&self, join: StepIndex) -> bool {
        let Some(race) = &self.details.definition.step(join).race else {
            return false;
        };
        self.step(join).has_ended_for_good() || self.is_won(race)
    }

    /// Returns what becomes of a step that is not needed any more, because a race is over and its competitor has not won.
    /// The most thorough of several races counts. `None`: the step is needed.
    pub fn loss(&self, index: StepIndex) -> Option<RaceRest> {
        let definition = self.definition(index);
        let lanes = match definition.item {
            Some(item) if definition.undoes.is_none() => &self.definition(item.group).lanes,
            _ => &definition.lanes,
        };
        let mut loss = None;
        for lane in &**lanes {
            let Some(race) = &self.details.definition.step(lane.join).race else {
                continue;
            };
            if self.is_race_over(lane.join) && !self.winners(lane.join).contains(&lane.competitor) {
                loss = match race.rest {
                    RaceRest::Undo => return Some(RaceRest::Undo),
                    rest => Some(rest),
                };
            }
        }
        loss.or_else(|| self.is_not_needed(index).then_some(RaceRest::Cancel))
    }

    /// Returns whether a step that has not ended is not needed, because the task is stopped or enough items of its list have
    /// succeeded.
    fn is_not_needed(&self, index: StepIndex) -> bool {
        let definition = self.definition(index);
        let is_undo = definition.undoes.is_some();
        if self.step(index).has_ended_for_good() || is_undo || definition.is_finally {
            return false;
        }
        let has_enough = |group: StepIndex| {
            self.step(group).status() == StepStatus::Processed && self.has_enough(group)
        };
        let item = definition.item;
        self.stopped_by().is_some() || item.is_some_and(|item| has_enough(item.group))
    }

    /// Returns the step that has ended the task as processed, if one has.
    pub fn stopped_by(&self) -> Option<StepIndex> {
        let stops = self.details.definition.stops.iter().copied();
        let mut done = stops.filter(|stop| self.step(*stop).status() == StepStatus::Processed);
        done.next()
    }

    pub fn is_lost(&self, index: StepIndex) -> bool {
        self.loss(index).is_some()
    }

    /// Returns the earliest time that a success of a competitor can have: the winners are those that succeeded first, so no
    /// two may have succeeded at one time, and none at the time at which the join has ended without it.
    pub(crate) fn earliest_success(&self, index: StepIndex) -> Option<Timestamp> {
        let joins = self.definition(index).followers.iter().copied();
        let others = joins.filter_map(|join| {
            let race = self.definition(join).race.as_ref()?;
            let last = self.successes(race).map(|(at, _)| at).max();
            last.max(self.end_of_join(join))
        });
        others
            .max()
            .map(|at| Timestamp::from_millis(at.as_millis() + 1))
    }

    /// Returns whether the step is one of the definition that undoes another one where that has lost a race.
    pub fn is_revert(&self, index: StepIndex) -> bool {
        index.at() < self.details.definition.steps.len() && self.definition(index).undoes.is_some()
    }

    /// Returns the steps that undo this one: where it has lost a race, and with the task.
    pub fn undos_of(&self, index: StepIndex) -> impl Iterator<Item = StepIndex> {
        let definition = self.definition(index);
        let followers = definition.followers.iter().copied();
        let reverts = followers.filter(move |step| {
            self.is_revert(*step) && self.definition(*step).undoes == Some(index)
        });
        let undo = definition.undo.filter(|undo| self.has_step(*undo));
        reverts.chain(undo)
    }

    /// Returns the joins whose races say whether the step is undone.
    fn joins_that_undo(&self, index: StepIndex) -> impl Iterator<Item = StepIndex> {
        let lanes = self.definition(index).lanes.iter();
        let joins = lanes.map(|lane| lane.join);
        joins.filter(|join| {
            let race = self.details.definition.step(*join).race.as_ref();
            race.is_some_and(|race| race.rest == RaceRest::Undo)
        })
    }

    /// Returns whether it is known whether the step that a revert undoes has lost, and its own end and that of the reverts
    /// before.
    fn is_revert_due(&self, revert: StepIndex) -> bool {
        let subject = self.subject(revert);
        let is_known = self.is_lost(subject)
            || self
                .joins_that_undo(subject)
                .all(|join| self.is_race_over(join));
        let before = self.definition(revert).after.iter();
        let mut before = before.filter(|step| **step != subject);
        is_known
            && self.step(subject).has_ended_for_good()
            && before.all(|step| self.step(*step).is_done())
    }

    /// Returns the steps for which a step that has not begun still waits.
    pub(crate) fn steps_before(&self, index: StepIndex) -> Vec<StepIndex> {
        let definition = self.definition(index);
        let after = definition.after.iter().copied();
        let open: Vec<_> = match &definition.race {
            Some(_) => after
                .filter(|step| !self.step(*step).has_ended_for_good())
                .collect(),
            None => after.filter(|step| !self.step(*step).is_done()).collect(),
        };
        if open.is_empty() && definition.is_finally {
            return self.open_before_finally();
        }
        if open.is_empty() && self.is_revert(index) {
            let joins = self.joins_that_undo(self.subject(index));
            return joins.filter(|join| !self.is_race_over(*join)).collect();
        }
        open
    }
}
