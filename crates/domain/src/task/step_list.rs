//! The steps of a task. The steps of its definition are a plain list. Items of groups come after them in chunks that
//! the versions of a task share: a command on one of ten thousand items copies only its chunk, and a summary of each
//! chunk is enough to find out something about all steps.

use std::{
    ops::{Index, IndexMut, Range},
    sync::{Arc, OnceLock},
};

use crate::{
    task::{
        positions::Positions,
        step::{Step, StepState, StepStatus},
    },
    values::{ids::Attempt, time::Timestamp},
};

/// The most items that are copied when one of them changes.
const CHUNK: usize = 64;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepList {
    own: Vec<Step>,
    /// The items of all groups. Each chunk is full, except the last.
    chunks: Vec<Arc<Chunk>>,
}

#[derive(Clone, Debug)]
struct Chunk {
    steps: Vec<Step>,
    /// Computed when it is first needed, and dropped when a step may change.
    summary: OnceLock<Summary>,
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.steps == other.steps
    }
}

/// Sums over several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepCounts {
    by_status: [u32; StepStatus::ALL.len()],
    /// The number of steps that have been claimed.
    claimed: u32,
    /// The length of their outputs, in bytes.
    pub output_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Summary {
    counts: StepCounts,
    memory: usize,
    kept_bytes: usize,
    /// The time of the first failure of the steps in error, and the step's index in the chunk.
    first_fault: Option<(Timestamp, usize)>,
    turns: Turns,
    /// The earliest time from which a pending step may be claimed, if the step has its turn.
    first_ready: Option<Timestamp>,
}

/// The turns of several pending steps. The steps get their turns in the order of the times from which they may be
/// claimed, and for equal times in the order of their indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turns {
    /// The number of steps that have their turn.
    pub given: usize,
    pub last_given: Option<(Timestamp, usize)>,
    pub first_awaiting: Option<(Timestamp, usize)>,
}

impl StepCounts {
    pub fn of<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Self {
        let mut counts = Self::default();
        for step in steps {
            counts.by_status[step.status() as usize] += 1;
            counts.claimed += u32::from(step.attempt > Attempt::default());
            counts.output_bytes += step.output().map_or(0, |output| output.as_json().len());
        }
        counts
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.by_status.iter_mut().zip(other.by_status) {
            *count += more;
        }
        self.claimed += other.claimed;
        self.output_bytes += other.output_bytes;
    }

    pub fn count(&self, status: StepStatus) -> u32 {
        self.by_status[status as usize]
    }

    pub fn total(&self) -> u32 {
        self.by_status.iter().sum()
    }

    /// Returns the number of steps that run, or will run when their turn comes.
    pub fn live(&self) -> u32 {
        self.count(StepStatus::Pending) + self.count(StepStatus::Processing)
    }

    pub fn done(&self) -> u32 {
        self.count(StepStatus::Processed) + self.count(StepStatus::Skipped)
    }
}

impl Turns {
    /// Returns the turns of steps, the first of which has the index `first`.
    fn of(first: usize, steps: &[Step]) -> Self {
        let mut turns = Self::default();
        for (at, step) in steps.iter().enumerate() {
            let StepState::Pending { ready_at } = step.state else {
                continue;
            };
            let own = Some((ready_at, first + at));
            turns.add(&match step.awaits_turn {
                true => Self {
                    first_awaiting: own,
                    ..Self::default()
                },
                false => Self {
                    given: 1,
                    last_given: own,
                    ..Self::default()
                },
            });
        }
        turns
    }

    fn add(&mut self, other: &Self) {
        self.given += other.given;
        self.last_given = self.last_given.max(other.last_given);
        let both = [self.first_awaiting, other.first_awaiting].into_iter();
        self.first_awaiting = both.flatten().min();
    }

    /// Returns the same turns with all indexes increased by `by`.
    fn moved(self, by: usize) -> Self {
        let moved =
            |turn: Option<(Timestamp, usize)>| turn.map(|(at, position)| (at, position + by));
        Self {
            given: self.given,
            last_given: moved(self.last_given),
            first_awaiting: moved(self.first_awaiting),
        }
    }
}

/// Counts the steps of lists that have been looked at one by one, so that tests know the cost of a decision.
#[cfg(test)]
pub(crate) mod looks {
    use std::cell::Cell;

    thread_local! {
        static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    pub fn add(steps: usize) {
        LOOKS.set(LOOKS.get() + steps);
    }

    /// Returns the number of steps since the last call.
    pub fn take() -> usize {
        LOOKS.take()
    }
}

impl Chunk {
    /// Returns the number of its steps that are not over.
    fn open(&self) -> usize {
        let counts = self.summary().counts;
        (counts.total() - counts.done() - counts.count(StepStatus::Cancelled)) as usize
    }

    fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| {
            #[cfg(test)]
            looks::add(self.steps.len());
            let faults = self.steps.iter().enumerate();
            let faults = faults.filter_map(|(at, step)| match &step.state {
                StepState::Error(fault) => Some((fault.at, at)),
                _ => None,
            });
            Summary {
                counts: StepCounts::of(&self.steps),
                memory: self.steps.iter().map(Step::memory).sum(),
                kept_bytes: self.steps.iter().map(Step::kept_bytes).sum(),
                first_fault: faults.min(),
                turns: Turns::of(0, &self.steps),
                first_ready: { self.steps.iter() }
                    .filter_map(|step| match step.state {
                        StepState::Pending { ready_at } => Some(ready_at),
                        _ => None,
                    })
                    .min(),
            }
        })
    }
}

impl From<Vec<Step>> for StepList {
    fn from(own: Vec<Step>) -> Self {
        Self {
            own,
            chunks: Vec::new(),
        }
    }
}

impl StepList {
    pub fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        let last = self.chunks.last().map_or(0, |chunk| chunk.steps.len());
        self.own.len() + full + last
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds steps of the definition until there are `count` of them, because another version of the workflow has more
    /// steps. The task must have no items yet.
    pub fn grow_own(&mut self, count: usize) {
        debug_assert!(self.chunks.is_empty(), "items follow the steps");
        self.own.resize_with(count, Step::new);
    }

    /// Adds items.
    pub fn push_items(&mut self, steps: impl IntoIterator<Item = Step>) {
        let mut steps = steps.into_iter();
        if let Some(last) = self.chunks.last_mut()
            && last.steps.len() < CHUNK
        {
            let room = CHUNK - last.steps.len();
            let last = Arc::make_mut(last);
            last.summary = OnceLock::new();
            last.steps.extend(steps.by_ref().take(room));
        }
        loop {
            let steps: Vec<_> = steps.by_ref().take(CHUNK).collect();
            if steps.is_empty() {
                return;
            }
            let summary = OnceLock::new();
            self.chunks.push(Arc::new(Chunk { steps, summary }));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Step> + Clone {
        let chunks = self.chunks().flat_map(|chunk| &chunk.steps);
        self.own.iter().chain(chunks)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> + Clone {
        self.chunks.iter().map(|chunk| &**chunk)
    }

    /// Returns the parts of chunks with these indexes, each with the index of the chunk's first step.
    fn parts(&self, items: &Positions) -> impl Iterator<Item = (usize, &Chunk, Range<usize>)> {
        let own = self.own.len();
        let ranges = items.ranges().iter();
        let ranges = ranges.map(move |range| range.start - own..range.end - own);
        ranges.flat_map(move |range| {
            let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
            chunks.map(move |number| {
                let (chunk, first) = (&*self.chunks[number], number * CHUNK);
                let end = (range.end - first).min(chunk.steps.len());
                let part = range.start.saturating_sub(first)..end;
                (own + first, chunk, part)
            })
        })
    }

    /// Counts these items.
    pub fn counts_of(&self, items: &Positions) -> StepCounts {
        let mut counts = StepCounts::default();
        for (_, chunk, part) in self.parts(items) {
            match part.len() == chunk.steps.len() {
                true => counts.add(&chunk.summary().counts),
                false => counts.add(&StepCounts::of(&chunk.steps[part])),
            }
        }
        counts
    }

    /// Returns the turns of these items.
    pub fn turns_of(&self, items: &Positions) -> Turns {
        let mut turns = Turns::default();
        for (first, chunk, part) in self.parts(items) {
            turns.add(&match part.len() == chunk.steps.len() {
                true => chunk.summary().turns.moved(first),
                false => Turns::of(first + part.start, &chunk.steps[part]),
            });
        }
        turns
    }

    /// Counts the items that are pending and may be claimed now if they have their turns. It stops counting at `most`.
    pub fn ready_in(&self, items: &Positions, now: Timestamp, most: usize) -> usize {
        let is_ready =
            |step: &Step| matches!(step.state, StepState::Pending { ready_at } if ready_at <= now);
        let parts = self.parts(items);
        let parts = parts.filter(|(_, chunk, _)| {
            let first_ready = chunk.summary().first_ready;
            first_ready.is_some_and(|first| first <= now)
        });
        let ready = parts.flat_map(|(_, chunk, part)| {
            #[cfg(test)]
            looks::add(part.len());
            chunk.steps[part].iter().filter(|step| is_ready(step))
        });
        ready.take(most).count()
    }

    /// Returns the indexes of the items that are in this state.
    pub fn find_in(&self, items: &Positions, status: StepStatus) -> impl Iterator<Item = usize> {
        let parts = self.parts(items);
        let parts = parts.filter(move |(_, chunk, _)| chunk.summary().counts.count(status) > 0);
        parts.flat_map(move |(first, chunk, part)| {
            let found = part.filter(move |at| {
                #[cfg(test)]
                looks::add(1);
                chunk.steps[*at].status() == status
            });
            found.map(move |at| first + at)
        })
    }

    /// Returns whether every step is over in a task that is not undone and not cancelled.
    pub fn all_ended(&self) -> bool {
        self.own.iter().all(Step::has_ended_for_good)
            && self.chunks().all(|chunk| chunk.open() == 0)
    }

    /// Returns the number of steps that are not over in a task that is not undone and not cancelled.
    pub fn open(&self) -> usize {
        let own = self.own.iter();
        let own = own.filter(|step| !step.has_ended_for_good()).count();
        own + self.chunks().map(|chunk| chunk.open()).sum::<usize>()
    }

    pub fn all_done(&self) -> bool {
        self.own.iter().all(Step::is_done)
            && self.chunks().all(|chunk| {
                let counts = chunk.summary().counts;
                counts.done() == counts.total()
            })
    }

    pub fn any_live(&self) -> bool {
        self.own.iter().any(Step::is_live)
            || self.chunks().any(|chunk| chunk.summary().counts.live() > 0)
    }

    /// Returns whether any step is held.
    pub fn any_processing(&self) -> bool {
        let own = &mut self.own.iter();
        own.any(|step| step.status() == StepStatus::Processing)
            || self
                .chunks()
                .any(|chunk| chunk.summary().counts.count(StepStatus::Processing) > 0)
    }

    /// Returns the number of steps that are held.
    pub fn processing(&self) -> usize {
        let own = self.own.iter();
        let own = own.filter(|step| step.status() == StepStatus::Processing);
        let items = self.chunks().map(|chunk| {
            let counts = chunk.summary().counts;
            counts.count(StepStatus::Processing) as usize
        });
        own.count() + items.sum::<usize>()
    }

    /// Returns whether any step was claimed or is done.
    pub fn any_begun(&self) -> bool {
        let own = &mut self.own.iter();
        own.any(|step| step.attempt > Attempt::default() || step.is_done())
            || self.chunks().any(|chunk| {
                let counts = chunk.summary().counts;
                counts.claimed > 0 || counts.done() > 0
            })
    }

    /// Returns the steps of the definition that are in error, and from each chunk the item in error that failed first.
    pub fn first_faults(&self) -> impl Iterator<Item = usize> {
        let own = self.own.iter().enumerate();
        let own = own.filter(|(_, step)| matches!(step.state, StepState::Error(_)));
        let chunks = self.chunks.iter().enumerate();
        let items = chunks.filter_map(|(number, chunk)| {
            let (_, at) = chunk.summary().first_fault?;
            Some(self.own.len() + number * CHUNK + at)
        });
        own.map(|(at, _)| at).chain(items)
    }

    /// See [`Task::kept_bytes`](crate::task::aggregate::Task::kept_bytes).
    pub fn kept_bytes(&self) -> usize {
        let own = self.own.iter().map(Step::kept_bytes);
        let items = self.chunks().map(|chunk| chunk.summary().kept_bytes);
        own.chain(items).sum()
    }

    /// Returns the memory of all steps, in bytes.
    pub fn memory(&self) -> usize {
        let own = self.own.iter().map(Step::memory);
        let items = self.chunks().map(|chunk| chunk.summary().memory);
        own.chain(items).sum()
    }
}

impl Index<usize> for StepList {
    type Output = Step;

    fn index(&self, at: usize) -> &Step {
        if let Some(step) = self.own.get(at) {
            return step;
        }
        let at = at - self.own.len();
        &self.chunks[at / CHUNK].steps[at % CHUNK]
    }
}

impl IndexMut<usize> for StepList {
    fn index_mut(&mut self, at: usize) -> &mut Step {
        if at < self.own.len() {
            return &mut self.own[at];
        }
        let at = at - self.own.len();
        let chunk = Arc::make_mut(&mut self.chunks[at / CHUNK]);
        chunk.summary = OnceLock::new();
        &mut chunk.steps[at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{template::payload::Payload, values::fault::Fault};

    fn state(kind: u8, at: i64) -> StepState {
        let at = Timestamp::from_millis(at);
        match kind {
            0 => StepState::Waiting,
            1 => StepState::Pending { ready_at: at },
            2 => StepState::Processed {
                output: Payload::from_string("done"),
                at,
            },
            3 => StepState::Skipped { output: None, at },
            _ => StepState::Error(Fault::permanent("no", at)),
        }
    }

    proptest! {
        #[test]
        fn what_the_list_says_of_all_is_what_its_steps_say(
            own in 0_usize..4,
            groups in prop::collection::vec((0_usize..4, 1_usize..100), 0..9),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..5, 1_i64..9), 0..40),
        ) {
            let mut list = StepList::from(vec![Step::new(); own]);
            let mut plain = vec![Step::new(); own];
            // The items of four groups come in turns.
            let mut all = vec![Positions::default(); 4];
            for (group, length) in groups {
                prop_assert!(all[group].push(plain.len()..plain.len() + length));
                list.push_items(vec![Step::new(); length]);
                plain.extend(vec![Step::new(); length]);
            }
            for (index, kind, at) in changes {
                if plain.is_empty() {
                    break;
                }
                let before = list.clone();
                let position = index.index(plain.len());
                let old = plain[position].clone();
                for step in [&mut list[position], &mut plain[position]] {
                    step.state = state(kind, at);
                    step.awaits_turn = at % 2 == 0;
                }
                prop_assert_eq!(&before[position], &old, "a clone is independent");
                prop_assert_eq!(list.any_live(), plain.iter().any(Step::is_live));
                prop_assert_eq!(list.all_done(), plain.iter().all(Step::is_done));
                prop_assert_eq!(list.memory(), plain.iter().map(Step::memory).sum::<usize>());
                prop_assert_eq!(list.kept_bytes(), plain.iter().map(Step::kept_bytes).sum::<usize>());
                for items in &all {
                    let expected = StepCounts::of(items.iter().map(|at| &plain[at]));
                    prop_assert_eq!(list.counts_of(items), expected);
                    let waiting: Vec<_> = list.find_in(items, StepStatus::Waiting).collect();
                    let expected = items.iter().filter(|at| plain[*at].status() == StepStatus::Waiting);
                    prop_assert_eq!(waiting, expected.collect::<Vec<_>>());
                    let pending = |awaits: Option<bool>| {
                        let turns = items.iter().filter_map(|at| match plain[at].state {
                            StepState::Pending { ready_at } => Some((ready_at, at)),
                            _ => None,
                        });
                        let is_meant = |at: usize| awaits.is_none_or(|awaits| plain[at].awaits_turn == awaits);
                        turns.filter(|(_, at)| is_meant(*at)).collect::<Vec<_>>()
                    };
                    let expected = Turns {
                        given: pending(Some(false)).len(),
                        last_given: pending(Some(false)).into_iter().max(),
                        first_awaiting: pending(Some(true)).into_iter().min(),
                    };
                    prop_assert_eq!(list.turns_of(items), expected);
                    let now = Timestamp::from_millis(4);
                    let ready = pending(None).into_iter().filter(|(ready_at, _)| *ready_at <= now).count();
                    prop_assert_eq!(list.ready_in(items, now, 3), ready.min(3));
                }
                let fault = |at: usize| match &plain[at].state {
                    StepState::Error(fault) => Some(fault.at),
                    _ => None,
                };
                let first = list.first_faults().filter_map(fault).min();
                prop_assert_eq!(first, (0..plain.len()).filter_map(fault).min());
            }
            prop_assert_eq!(list.len(), plain.len());
            prop_assert!(list.iter().eq(plain.iter()));
        }
    }
}
