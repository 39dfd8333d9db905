//! The indexes of the items of a group among the steps of the task: one range for a list, and several if the iterations
//! of two steps took turns.

use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Positions {
    /// The ranges, in order. None is empty, and none is adjacent to the next.
    ranges: Vec<Range<usize>>,
    /// For each range, the total length of the ranges before it.
    before: Vec<usize>,
    length: usize,
}

impl Positions {
    /// Adds a range after the others. Returns false if it does not come after them.
    pub fn push(&mut self, range: Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        let length = range.len();
        match self.ranges.last_mut() {
            Some(last) if last.end > range.start => return false,
            Some(last) if last.end == range.start => last.end = range.end,
            _ => {
                self.ranges.push(range);
                self.before.push(self.length);
            }
        }
        self.length += length;
        true
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + Clone {
        self.ranges.iter().cloned().flatten()
    }

    pub fn get(&self, number: usize) -> Option<usize> {
        let at = self.before.partition_point(|before| *before <= number);
        let at = at.checked_sub(1)?;
        let range = &self.ranges[at];
        let position = range.start + (number - self.before[at]);
        range.contains(&position).then_some(position)
    }

    pub fn last(&self) -> Option<usize> {
        Some(self.ranges.last()?.end - 1)
    }
}

impl From<Range<usize>> for Positions {
    fn from(range: Range<usize>) -> Self {
        let mut positions = Self::default();
        positions.push(range);
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_counted_over_their_ranges() {
        let mut positions = Positions::from(3..5);
        assert!(positions.push(5..6) && positions.push(8..10) && positions.push(12..12));
        assert_eq!(positions.ranges(), [3..6, 8..10]);
        assert!(positions.iter().eq([3, 4, 5, 8, 9]));
        let by_number: Vec<_> = (0..6).map(|number| positions.get(number)).collect();
        assert_eq!(
            by_number,
            [Some(3), Some(4), Some(5), Some(8), Some(9), None]
        );
        assert_eq!((positions.len(), positions.last()), (5, Some(9)));
        assert!(!positions.push(9..11), "they are taken");
    }
}
