//! The steps of a task. Those of its definition are a plain list. Items of groups come after them in chunks that the
//! versions of a task share: a command on one of ten thousand items copies its chunk alone, and what is asked of all steps
//! is answered by a summary of each chunk.

use std::{
    ops::{Index, IndexMut, Range},
    sync::{Arc, OnceLock},
};

use crate::{
    ids::Attempt,
    step::{Step, StepState, StepStatus},
    time::Timestamp,
};

/// How many items are copied when one of them changes.
const CHUNK: usize = 64;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepList {
    own: Vec<Step>,
    /// Of each group, in order.
    groups: Vec<GroupSteps>,
}

#[derive(Clone, PartialEq, Debug)]
struct GroupSteps {
    /// The position of its first item.
    first: usize,
    length: usize,
    chunks: Vec<Arc<Chunk>>,
}

#[derive(Clone, Debug)]
struct Chunk {
    steps: Vec<Step>,
    /// Made when it is asked for, and forgotten when a step may change.
    summary: OnceLock<Summary>,
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.steps == other.steps
    }
}

/// What is known of several steps together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepCounts {
    by_status: [u32; StepStatus::ALL.len()],
    /// How many have been claimed.
    claimed: u32,
    /// The bytes of their outputs.
    pub output_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Summary {
    counts: StepCounts,
    memory: usize,
    /// When the first of those in error failed, and its position in the chunk.
    first_fault: Option<(Timestamp, usize)>,
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

    /// Those that run, or will when their turn comes.
    pub fn live(&self) -> u32 {
        self.count(StepStatus::Pending) + self.count(StepStatus::Processing)
    }

    pub fn done(&self) -> u32 {
        self.count(StepStatus::Processed) + self.count(StepStatus::Skipped)
    }
}

impl Chunk {
    fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| {
            let faults = self.steps.iter().enumerate();
            let faults = faults.filter_map(|(at, step)| match &step.state {
                StepState::Error(fault) => Some((fault.at, at)),
                _ => None,
            });
            Summary {
                counts: StepCounts::of(&self.steps),
                memory: self.steps.iter().map(Step::memory).sum(),
                first_fault: faults.min(),
            }
        })
    }
}

impl From<Vec<Step>> for StepList {
    fn from(own: Vec<Step>) -> Self {
        Self {
            own,
            groups: Vec::new(),
        }
    }
}

impl StepList {
    pub fn len(&self) -> usize {
        let last = self.groups.last();
        last.map_or(self.own.len(), |group| group.first + group.length)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds steps of the definition, until there are so many: another version of the workflow has more. It has no groups yet.
    pub fn grow_own(&mut self, count: usize) {
        debug_assert!(self.groups.is_empty(), "items follow the steps");
        self.own.resize_with(count, Step::new);
    }

    /// Adds the steps of a group.
    pub fn push_group(&mut self, steps: Vec<Step>) {
        let (first, length) = (self.len(), steps.len());
        let mut steps = steps.into_iter();
        let mut chunks = Vec::with_capacity(length.div_ceil(CHUNK));
        while steps.len() > 0 {
            chunks.push(Arc::new(Chunk {
                steps: steps.by_ref().take(CHUNK).collect(),
                summary: OnceLock::new(),
            }));
        }
        self.groups.push(GroupSteps {
            first,
            length,
            chunks,
        });
    }

    pub fn iter(&self) -> impl Iterator<Item = &Step> + Clone {
        let chunks = self.chunks().flat_map(|chunk| &chunk.steps);
        self.own.iter().chain(chunks)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> + Clone {
        let chunks = self.groups.iter().flat_map(|group| &group.chunks);
        chunks.map(|chunk| &**chunk)
    }

    /// The chunks of a group, each with the position of its first step.
    fn chunks_of(&self, group: &Range<usize>) -> impl Iterator<Item = (usize, &Chunk)> {
        let first = group.start;
        // Two groups can begin at one position if one of them is empty.
        let length = group.len();
        let found = self.groups.iter();
        let found = found.filter(move |_| length > 0);
        let mut found = found.filter(move |group| group.first == first);
        let found = found.next();
        let chunks = found.into_iter().flat_map(|group| &group.chunks);
        let chunks = chunks.enumerate();
        chunks.map(move |(at, chunk)| (first + at * CHUNK, &**chunk))
    }

    /// Of a group, which is given by its positions.
    pub fn counts_of(&self, group: &Range<usize>) -> StepCounts {
        let mut counts = StepCounts::default();
        for (_, chunk) in self.chunks_of(group) {
            counts.add(&chunk.summary().counts);
        }
        counts
    }

    /// The positions of the steps of a group that are in this state.
    pub fn find_in(&self, group: &Range<usize>, status: StepStatus) -> impl Iterator<Item = usize> {
        let chunks = self.chunks_of(group);
        let chunks = chunks.filter(move |(_, chunk)| chunk.summary().counts.count(status) > 0);
        chunks.flat_map(move |(first, chunk)| {
            let steps = chunk.steps.iter().enumerate();
            steps
                .filter(move |(_, step)| step.status() == status)
                .map(move |(at, _)| first + at)
        })
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

    /// Whether any of them is held.
    pub fn any_processing(&self) -> bool {
        let own = &mut self.own.iter();
        own.any(|step| step.status() == StepStatus::Processing)
            || self
                .chunks()
                .any(|chunk| chunk.summary().counts.count(StepStatus::Processing) > 0)
    }

    /// Whether any of them was claimed, or is done.
    pub fn any_begun(&self) -> bool {
        let own = &mut self.own.iter();
        own.any(|step| step.attempt > Attempt::default() || step.is_done())
            || self.chunks().any(|chunk| {
                let counts = chunk.summary().counts;
                counts.claimed > 0 || counts.done() > 0
            })
    }

    /// The items in error that failed first, one of each chunk, and the steps in error that are no items.
    pub fn first_faults(&self) -> impl Iterator<Item = usize> {
        let own = self.own.iter().enumerate();
        let own = own.filter(|(_, step)| matches!(step.state, StepState::Error(_)));
        let groups = self.groups.iter().flat_map(|group| {
            let chunks = group.chunks.iter().enumerate();
            chunks.filter_map(|(number, chunk)| {
                let (_, at) = chunk.summary().first_fault?;
                Some(group.first + number * CHUNK + at)
            })
        });
        own.map(|(at, _)| at).chain(groups)
    }

    /// In bytes.
    pub fn memory(&self) -> usize {
        let own = self.own.iter().map(Step::memory);
        let groups = self.chunks().map(|chunk| chunk.summary().memory);
        own.chain(groups).sum()
    }

    /// The group of an item and its place there.
    fn place(&self, at: usize) -> (usize, usize) {
        let after = self.groups.partition_point(|group| group.first <= at);
        let group = after.saturating_sub(1);
        (group, at - self.groups[group].first)
    }
}

impl Index<usize> for StepList {
    type Output = Step;

    fn index(&self, at: usize) -> &Step {
        if let Some(step) = self.own.get(at) {
            return step;
        }
        let (group, at) = self.place(at);
        &self.groups[group].chunks[at / CHUNK].steps[at % CHUNK]
    }
}

impl IndexMut<usize> for StepList {
    fn index_mut(&mut self, at: usize) -> &mut Step {
        if at < self.own.len() {
            return &mut self.own[at];
        }
        let (group, at) = self.place(at);
        let chunk = Arc::make_mut(&mut self.groups[group].chunks[at / CHUNK]);
        chunk.summary = OnceLock::new();
        &mut chunk.steps[at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        fault::{Effect, Fault, FaultKind},
        payload::Payload,
    };

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
            _ => StepState::Error(Fault {
                kind: FaultKind::Permanent,
                message: "no".to_owned(),
                status: None,
                body: None,
                at,
                effect: Effect::Known,
                step: None,
            }),
        }
    }

    proptest! {
        #[test]
        fn what_the_list_says_of_all_is_what_its_steps_say(
            own in 0_usize..4,
            groups in prop::collection::vec(1_usize..200, 0..4),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..5, 1_i64..9), 0..40),
        ) {
            let mut list = StepList::from(vec![Step::new(); own]);
            let mut plain = vec![Step::new(); own];
            let mut ranges = Vec::new();
            for length in groups {
                ranges.push(plain.len()..plain.len() + length);
                list.push_group(vec![Step::new(); length]);
                plain.extend(vec![Step::new(); length]);
            }
            for (index, kind, at) in changes {
                if plain.is_empty() {
                    break;
                }
                let before = list.clone();
                let position = index.index(plain.len());
                let old = plain[position].clone();
                list[position].state = state(kind, at);
                plain[position].state = state(kind, at);
                prop_assert_eq!(&before[position], &old, "a clone is independent");
                prop_assert_eq!(list.any_live(), plain.iter().any(Step::is_live));
                prop_assert_eq!(list.all_done(), plain.iter().all(Step::is_done));
                prop_assert_eq!(list.memory(), plain.iter().map(Step::memory).sum::<usize>());
                for range in &ranges {
                    prop_assert_eq!(list.counts_of(range), StepCounts::of(&plain[range.clone()]));
                    let waiting: Vec<_> = list.find_in(range, StepStatus::Waiting).collect();
                    let expected = range.clone().filter(|at| plain[*at].status() == StepStatus::Waiting);
                    prop_assert_eq!(waiting, expected.collect::<Vec<_>>());
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
