//! The report of a search, in words.

use std::fmt::{self, Write};

use crate::explore::WorldReport;

impl fmt::Display for WorldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            most_troubles,
            states,
            expanded,
            transitions,
            depth,
            at_rest,
            runs,
            unproven,
            counterexample,
        } = self;
        write!(
            f,
            "with up to {most_troubles} troubles: {states} states, {transitions} transitions, depth {depth}, {at_rest} at rest; "
        )?;
        match states - expanded {
            0 => f.write_str("all of them explored")?,
            left => write!(
                f,
                "{left} not explored further, {runs} runs from there got to rest; {unproven} states get to rest only by way of those"
            )?,
        }
        if let Some(found) = counterexample {
            write!(f, "\nBROKEN {}", found.breach)?;
            for (number, sentence) in found.path.iter().enumerate() {
                f.write_char('\n')?;
                write!(f, "  {number:3}. {sentence}")?;
            }
        }
        Ok(())
    }
}
