//! Lists of steps without repeats, of which there may be thousands.

use std::collections::HashSet;

use crate::values::ids::StepIndex;

/// So long a list is looked through.
const SHORT: usize = 64;

/// The members of a list that has become long, as a set.
#[derive(Debug, Default)]
pub(super) struct Marks(HashSet<StepIndex>);

impl Marks {
    /// Adds the step unless the list has it. No other code adds to the list; but steps may have been removed from it.
    pub fn add(&mut self, list: &mut Vec<StepIndex>, index: StepIndex) {
        if list.len() < SHORT {
            if !list.contains(&index) {
                list.push(index);
            }
            return;
        }
        if self.0.len() != list.len() {
            self.0 = list.iter().copied().collect();
        }
        if self.0.insert(index) {
            list.push(index);
        }
    }
}
