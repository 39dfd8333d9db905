//! The report of a search, in words.

use std::fmt::Write;

use crate::{explore::WorldReport, world::SmallWorld};

impl WorldReport {
    pub fn in_words(&self, world: &SmallWorld) -> String {
        let left = self.states - self.expanded;
        let mut text = format!(
            "{} ({}): {} states, {} transitions, depth {}, {} at rest; {}",
            world.name,
            world.about,
            self.states,
            self.transitions,
            self.depth,
            self.at_rest,
            match left {
                0 => "all of them explored".to_owned(),
                _ => format!(
                    "{left} at the frontier, {} runs from there got to rest; {} other states are known to get to rest only by way of the frontier",
                    self.runs, self.unproven
                ),
            }
        );
        if let Some(found) = &self.counterexample {
            let _ = write!(text, "\nBROKEN {}", found.breach);
            for (number, sentence) in found.path.iter().enumerate() {
                let _ = write!(text, "\n  {number:3}. {sentence}");
            }
        }
        text
    }
}
