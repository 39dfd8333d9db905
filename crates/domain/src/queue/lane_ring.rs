//! The order in which an instance looks at the lanes of an agent: in turns. The ring is a hint, like
//! [`KnownQueue`](crate::queue::known_queue::KnownQueue): it has the lanes in which something has happened, and the record is read for
//! lanes that this instance does not know of.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use crate::queue::lanes::LaneTurn;

/// The most lanes that are known. Further lanes are found in the record.
const MOST: usize = 4096;
/// The turn of the steps without a key comes after this many turns of other lanes, however many keys there are.
const TURNS_OF_OTHERS: usize = 4;
/// The most lanes of the record that one pass reads. The next pass continues after them.
const MOST_OF_PASS: usize = 1024;

#[derive(Debug)]
pub struct LaneRing {
    turns: VecDeque<(Arc<str>, Option<u32>)>,
    known: HashSet<Arc<str>>,
    /// The last lane of the record that was read; `None`: the next read begins with the first lane.
    after: Option<Arc<str>>,
    /// The number of further lanes of the record that this pass reads.
    to_read: usize,
    /// True if the last pass began with the first lane and found no step.
    is_empty: bool,
    /// True if the last pass began with the first lane and found no lane that has a name.
    is_plain: bool,
}

impl Default for LaneRing {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            known: HashSet::new(),
            after: None,
            to_read: MOST_OF_PASS,
            is_empty: false,
            is_plain: false,
        }
    }
}

impl LaneRing {
    /// Adds a lane in which a step was enqueued or has ended.
    pub fn add(&mut self, lane: &str) {
        self.is_empty = false;
        self.is_plain &= lane.is_empty();
        let has_room = self.known.len() < MOST || lane.is_empty();
        if has_room && !self.known.contains(lane) {
            let lane: Arc<str> = lane.into();
            self.known.insert(lane.clone());
            self.push(lane);
        }
    }

    fn push(&mut self, lane: Arc<str>) {
        let at = match lane.is_empty() {
            true => self.turns.len().min(TURNS_OF_OTHERS),
            false => self.turns.len(),
        };
        self.turns.insert(at, (lane, None));
    }

    /// Starts a pass over the record, because there may be lanes that this instance does not know of.
    pub fn require_read(&mut self) {
        self.to_read = MOST_OF_PASS;
    }

    /// Returns the lane after which the record is to be read for further lanes, `None` if it is not to be read.
    pub fn reads(&self) -> Option<Option<&str>> {
        (self.to_read > 0).then_some(self.after.as_deref())
    }

    /// Adds the lanes that were read from the record. If they are fewer than `limit`, they are the last.
    pub fn add_from_record(&mut self, lanes: &[Arc<str>], limit: usize) {
        let was_at_start = self.after.is_none();
        let is_end = lanes.len() < limit;
        self.to_read = match is_end {
            true => 0,
            false => self.to_read.saturating_sub(limit),
        };
        self.after = lanes.last().filter(|_| !is_end).cloned();
        for lane in lanes {
            self.add(lane);
        }
        self.is_empty = was_at_start && is_end && lanes.is_empty() && self.turns.is_empty();
        let is_plain = |(lane, _): &(Arc<str>, Option<u32>)| lane.is_empty();
        self.is_plain = was_at_start && is_end && self.turns.iter().all(is_plain);
        if is_end && !was_at_start {
            // The next pass reads the lanes before the one with which this pass began.
            self.after = None;
        }
    }

    /// Returns whether no lane has a step, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Returns whether there are only steps without a key, as far as is known.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Returns whether there are lanes to look at beyond the next `count`.
    pub fn has_more_than(&self, count: usize) -> bool {
        self.to_read > 0 || self.turns.len() > count
    }

    /// Returns the next lanes, each with the number of steps that it may have in its turn.
    pub fn next(&self, most: usize, weight: impl Fn(&str) -> u32) -> Vec<LaneTurn> {
        let turns = self.turns.iter().take(most).map(|(lane, credit)| LaneTurn {
            lane: lane.clone(),
            credit: credit.unwrap_or_else(|| weight(lane)),
        });
        turns.collect()
    }

    /// Records that a lane has had `had` steps. If it has more steps, it is first again until its turn is used up. If
    /// not, it is forgotten until something happens in it.
    pub fn finish_turn(&mut self, turn: LaneTurn, had: u32, has_more: bool) {
        if let Some(at) = self.turns.iter().position(|(lane, _)| *lane == turn.lane) {
            self.turns.remove(at);
        }
        if !has_more {
            self.known.remove(&turn.lane);
            return;
        }
        self.known.insert(turn.lane.clone());
        match turn.credit.checked_sub(had).filter(|left| *left > 0) {
            Some(left) => self.turns.push_front((turn.lane, Some(left))),
            None => self.push(turn.lane),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn taken(ring: &mut LaneRing, most: usize) -> Vec<(String, u32)> {
        let weight = |lane: &str| if lane == "heavy" { 3 } else { 1 };
        let turns = ring.next(most, weight);
        for turn in &turns {
            ring.finish_turn(turn.clone(), 1, turn.lane.starts_with("he"));
        }
        let turns = turns.into_iter();
        turns
            .map(|turn| (turn.lane.to_string(), turn.credit))
            .collect()
    }

    fn one(name: &str, credit: u32) -> Vec<(String, u32)> {
        vec![(name.to_owned(), credit)]
    }

    #[test]
    fn lanes_take_turns_and_a_heavy_one_has_several_steps_in_its_turn() {
        let mut ring = LaneRing::default();
        ring.add("heavy");
        ring.add("light");
        ring.add("heavy");
        for credit in [3, 2, 1] {
            assert_eq!(taken(&mut ring, 1), one("heavy", credit));
        }
        assert_eq!(taken(&mut ring, 1), one("light", 1));
        assert_eq!(taken(&mut ring, 9), one("heavy", 3));
    }

    #[test]
    fn steps_without_a_key_wait_for_few_lanes_however_many_there_are() {
        let mut ring = LaneRing::default();
        for number in 0..2 * MOST {
            ring.add(&number.to_string());
        }
        ring.add("");
        for _ in 0..3 {
            let turns = ring.next(usize::MAX, |_| 1);
            let at = turns.iter().position(|turn| turn.lane.is_empty());
            assert!(at.is_some_and(|at| at <= TURNS_OF_OTHERS), "{at:?}");
            for turn in turns.into_iter().take(8) {
                ring.finish_turn(turn, 1, true);
            }
        }
        assert!(!ring.is_plain());
    }

    #[test]
    fn it_is_plain_once_nothing_stands_in_a_lane_with_a_name() {
        let mut ring = LaneRing::default();
        ring.add("a");
        ring.add_from_record(&lanes(&["", "a"]), 9);
        assert!(!ring.is_plain());
        taken(&mut ring, 9);
        ring.require_read();
        ring.add_from_record(&lanes(&[""]), 9);
        assert!(ring.is_plain());
        ring.add("b");
        assert!(!ring.is_plain());
    }

    #[test]
    fn the_record_is_read_to_its_end_and_again_when_there_is_doubt() {
        let mut ring = LaneRing::default();
        assert_eq!(ring.reads(), Some(None));
        ring.add_from_record(&lanes(&["a", "b"]), 2);
        assert_eq!(ring.reads(), Some(Some("b")));
        ring.add_from_record(&lanes(&["c"]), 2);
        assert_eq!(ring.reads(), None);
        assert_eq!(taken(&mut ring, 9).len(), 3);
        ring.require_read();
        assert_eq!(ring.reads(), Some(None));
    }

    #[test]
    fn it_is_empty_once_the_whole_record_was_read_in_vain() {
        let mut ring = LaneRing::default();
        assert!(!ring.is_empty());
        ring.add_from_record(&[], 2);
        assert!(ring.is_empty() && !ring.has_more_than(0));
        ring.add("a");
        assert!(!ring.is_empty() && ring.has_more_than(0));
    }

    #[test]
    fn a_pass_is_bounded_and_the_next_goes_on_where_it_ended() {
        let mut ring = LaneRing::default();
        let mut last = 0;
        while let Some(_after) = ring.reads() {
            let found: Vec<Arc<str>> = (last..last + 128)
                .map(|n| format!("{n:09}").into())
                .collect();
            last += 128;
            ring.add_from_record(&found, 128);
            taken(&mut ring, 128);
        }
        assert_eq!(last, MOST_OF_PASS);
        ring.require_read();
        assert_eq!(ring.reads(), Some(Some("000001023")));
        ring.add_from_record(&[], 128);
        assert!(!ring.is_empty(), "the beginning was not read");
        ring.require_read();
        assert_eq!(ring.reads(), Some(None));
    }

    #[test]
    fn no_more_lanes_are_known_than_there_is_room_for() {
        let mut ring = LaneRing::default();
        for number in 0..2 * MOST {
            ring.add(&number.to_string());
        }
        assert_eq!(taken(&mut ring, usize::MAX).len(), MOST);
    }
}
