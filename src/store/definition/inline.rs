//! Compiled inline steps, found by their text. Most tasks are submitted with the same steps as earlier ones: these are
//! compiled once, and their tasks share the result.
//!
//! A definition is kept here only as long as a task in memory uses it. So a flood of different definitions takes no
//! more memory than its tasks do, and a secret in a definition does not stay in memory longer than its tasks.

use std::{
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    sync::{Arc, Weak},
};

use lru::LruCache;
use parking_lot::Mutex;

use crate::domain::definition::Definition;

/// The most definitions that are remembered, used or not. One that no task uses any more takes about 200 bytes.
const MOST: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

#[derive(Debug)]
pub struct InlineDefinitions {
    /// The keys of the hasher are random, so that no caller can choose texts with the same hash.
    hasher: RandomState,
    known: Mutex<LruCache<u64, SharedDefinition>>,
}

#[derive(Debug)]
struct SharedDefinition {
    definition: Weak<Definition>,
    validation: Validation,
}

/// The rules under which a definition was compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validation {
    /// The rules for a submission.
    Submitted,
    /// The rules for a record, which may have been accepted by a version that accepted more.
    Stored,
}

/// The text of inline steps and of the policies around them, with its hash.
#[derive(Clone, Copy, Debug)]
pub struct InlineText<'t> {
    steps: &'t str,
    policies: Option<&'t str>,
    hash: u64,
}

impl InlineText<'_> {
    fn is_of(&self, definition: &Definition) -> bool {
        definition.source.as_json() == self.steps && definition.policies.as_json() == self.policies
    }
}

impl Default for InlineDefinitions {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            known: Mutex::new(LruCache::new(MOST)),
        }
    }
}

impl InlineDefinitions {
    pub fn text<'t>(&self, steps: &'t str, policies: Option<&'t str>) -> InlineText<'t> {
        InlineText {
            steps,
            policies,
            hash: self.hasher.hash_one((steps, policies)),
        }
    }

    /// Returns the definition with exactly this text, if it was compiled under these rules or stricter ones.
    pub fn get(&self, text: &InlineText<'_>, needed: Validation) -> Option<Arc<Definition>> {
        let found = {
            let mut known = self.known.lock();
            let found = known.get(&text.hash)?;
            if needed == Validation::Submitted && found.validation == Validation::Stored {
                return None;
            }
            found.definition.upgrade()
        };
        found.filter(|definition| text.is_of(definition))
    }

    pub fn put(&self, text: &InlineText<'_>, definition: &Arc<Definition>, validation: Validation) {
        let shared = SharedDefinition {
            definition: Arc::downgrade(definition),
            validation,
        };
        self.known.lock().put(text.hash, shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        definition::{Accepted, Limits, Policies, parse_steps},
        template::Payload,
    };

    const STEPS: &str = r#"[{"name":"pay","agent":"bank"}]"#;
    const UNDO: &str = r#"{"on_permanent":"undo"}"#;

    fn compile(steps: &str, policies: Option<&str>) -> Arc<Definition> {
        let steps = Payload::parse(steps.to_owned()).unwrap();
        let policies =
            policies.map_or_else(Policies::default, |json| Policies::parse(json).unwrap());
        let compiled = parse_steps(&steps, "", &policies, &Limits::default(), &Accepted);
        Arc::new(compiled.unwrap())
    }

    #[test]
    fn the_same_text_is_the_same_definition() {
        let definitions = InlineDefinitions::default();
        let compiled = compile(STEPS, Some(UNDO));
        let text = definitions.text(STEPS, Some(UNDO));
        definitions.put(&text, &compiled, Validation::Submitted);
        for needed in [Validation::Submitted, Validation::Stored] {
            let found = definitions.get(&text, needed).unwrap();
            assert!(Arc::ptr_eq(&found, &compiled));
        }
        let others = [
            (STEPS, None),
            (STEPS, Some(r#"{"on_permanent":"skip"}"#)),
            (r#"[{"name":"pay", "agent":"bank"}]"#, Some(UNDO)),
        ];
        for (steps, policies) in others {
            let other = definitions.text(steps, policies);
            assert!(definitions.get(&other, Validation::Stored).is_none());
        }
    }

    #[test]
    fn a_text_with_the_hash_of_another_is_not_taken_for_it() {
        let definitions = InlineDefinitions::default();
        let text = definitions.text(STEPS, None);
        let compiled = compile(STEPS, None);
        definitions.put(&text, &compiled, Validation::Submitted);
        for (steps, policies) in [("[]", None), (STEPS, Some(UNDO))] {
            let collides = InlineText {
                steps,
                policies,
                hash: text.hash,
            };
            assert!(definitions.get(&collides, Validation::Stored).is_none());
        }
    }

    #[test]
    fn what_was_compiled_for_a_record_is_compiled_again_for_a_submission() {
        let definitions = InlineDefinitions::default();
        let text = definitions.text(STEPS, None);
        let compiled = compile(STEPS, None);
        definitions.put(&text, &compiled, Validation::Stored);
        assert!(definitions.get(&text, Validation::Submitted).is_none());
        assert!(definitions.get(&text, Validation::Stored).is_some());
    }

    #[test]
    fn a_definition_that_no_task_uses_is_freed() {
        let definitions = InlineDefinitions::default();
        let text = definitions.text(STEPS, None);
        let compiled = compile(STEPS, None);
        definitions.put(&text, &compiled, Validation::Submitted);
        assert_eq!(Arc::strong_count(&compiled), 1);
        drop(compiled);
        assert!(definitions.get(&text, Validation::Submitted).is_none());
    }

    #[test]
    fn no_more_than_a_fixed_number_is_remembered() {
        let definitions = InlineDefinitions::default();
        let compiled = compile(STEPS, None);
        for number in 0..2 * MOST.get() {
            let steps = number.to_string();
            let text = definitions.text(&steps, None);
            definitions.put(&text, &compiled, Validation::Submitted);
        }
        assert_eq!(definitions.known.lock().len(), MOST.get());
    }
}
