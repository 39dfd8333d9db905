//! From which value to which one.

use std::ops::{RangeFrom, RangeInclusive, RangeToInclusive};

/// The bounds of a field's value: of a number itself, of the characters of a text, of the items of a list or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    pub least: Option<T>,
    pub most: Option<T>,
}

impl<T> Bounds<T> {
    pub const ANY: Self = Self {
        least: None,
        most: None,
    };
}

impl<T: PartialOrd> Bounds<T> {
    pub fn contains(&self, value: &T) -> bool {
        self.least.as_ref().is_none_or(|least| value >= least)
            && self.most.as_ref().is_none_or(|most| value <= most)
    }
}

impl<T: std::fmt::Display> Bounds<T> {
    /// `1 to 100`, `at least 1` or `at most 100`; `None` where nothing bounds it.
    pub fn words(&self) -> Option<String> {
        match (&self.least, &self.most) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}")),
            (Some(least), None) => Some(format!("at least {least}")),
            (None, Some(most)) => Some(format!("at most {most}")),
            (None, None) => None,
        }
    }
}

impl<T> From<RangeInclusive<T>> for Bounds<T> {
    fn from(range: RangeInclusive<T>) -> Self {
        let (least, most) = range.into_inner();
        Self {
            least: Some(least),
            most: Some(most),
        }
    }
}

impl<T> From<RangeFrom<T>> for Bounds<T> {
    fn from(range: RangeFrom<T>) -> Self {
        Self {
            least: Some(range.start),
            most: None,
        }
    }
}

impl<T> From<RangeToInclusive<T>> for Bounds<T> {
    fn from(range: RangeToInclusive<T>) -> Self {
        Self {
            least: None,
            most: Some(range.end),
        }
    }
}
