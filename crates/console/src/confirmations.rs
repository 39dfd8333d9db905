//! The confirmations of previews that this instance has carried out, so that a form that is sent twice leads to what the
//! first one did, and is not compared with tasks that it has changed itself.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The number of confirmations that are kept, the latest ones.
const MOST: usize = 1_000;

#[derive(Default)]
pub struct Confirmations(Mutex<VecDeque<Confirmation>>);

struct Confirmation {
    once: String,
    /// The id of what it made. `None` while it is carried out.
    made: Option<String>,
}

/// The state of a confirmation before it is carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It is the first one: [`Confirmations::end`] must follow.
    First,
    /// The same form was sent before, and is being carried out.
    Running,
    /// The same form was sent before, and has made this.
    Done(String),
}

impl Confirmations {
    /// Begins a confirmation. A form without a key of its own is always the first one.
    pub fn begin(&self, once: &str) -> Begun {
        if once.is_empty() {
            return Begun::First;
        }
        let mut all = self.0.lock();
        if let Some(known) = all.iter().find(|known| known.once == once) {
            return known.made.clone().map_or(Begun::Running, Begun::Done);
        }
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(Confirmation {
            once: once.to_owned(),
            made: None,
        });
        Begun::First
    }

    /// Ends a confirmation with what it has made. One that has made nothing can be sent again.
    pub fn end(&self, once: &str, made: Option<&str>) {
        let mut all = self.0.lock();
        match made {
            Some(made) => {
                if let Some(known) = all.iter_mut().find(|known| known.once == once) {
                    known.made = Some(made.to_owned());
                }
            }
            None => all.retain(|known| known.once != once),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_is_sent_twice_leads_to_what_the_first_one_made() {
        let confirmations = Confirmations::default();
        assert_eq!(confirmations.begin("a"), Begun::First);
        assert_eq!(confirmations.begin("a"), Begun::Running);
        confirmations.end("a", Some("job"));
        assert_eq!(confirmations.begin("a"), Begun::Done("job".to_owned()));
        assert_eq!(confirmations.begin("b"), Begun::First);
        confirmations.end("b", None);
        assert_eq!(confirmations.begin("b"), Begun::First, "it made nothing");
    }

    #[test]
    fn only_the_latest_confirmations_are_kept() {
        let confirmations = Confirmations::default();
        for number in 0..=MOST {
            assert_eq!(confirmations.begin(&number.to_string()), Begun::First);
        }
        assert_eq!(confirmations.begin("0"), Begun::First, "it is forgotten");
        assert_eq!(confirmations.begin("2"), Begun::Running);
    }
}
