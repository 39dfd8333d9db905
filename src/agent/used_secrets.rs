//! The secrets that agents have sent to their services since the start, those that were replaced since included: a reply
//! that comes later may echo what its request contained.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::domain::{AgentName, Redactor};

/// The number of former texts of each agent that are kept: access tokens above all, which change often.
const MOST_FORMER: usize = 32;

#[derive(Default)]
pub(super) struct UsedSecrets {
    is_any: AtomicBool,
    known: Mutex<KnownTexts>,
}

#[derive(Default)]
struct KnownTexts {
    /// The texts of each agent that were in use last.
    texts: HashMap<AgentName, Vec<Arc<str>>>,
    redactors: HashMap<AgentName, Redactor>,
    /// Hides the texts of all agents. It is made when it is needed.
    all: Option<Redactor>,
}

impl UsedSecrets {
    /// These are what an agent sends from now on. Returns what hides them, and those before.
    pub fn add(&self, agent: &AgentName, texts: &[String]) -> Redactor {
        let mut known = self.known.lock();
        let kept = known.texts.entry(agent.clone()).or_default();
        let is_known = |text: &String| kept.iter().any(|known| **known == **text);
        if texts.iter().all(is_known)
            && let Some(redactor) = known.redactors.get(agent)
        {
            return redactor.clone();
        }
        let kept = known.texts.entry(agent.clone()).or_default();
        kept.retain(|known| !texts.iter().any(|text| **text == **known));
        let surplus = kept.len().saturating_sub(MOST_FORMER);
        kept.drain(..surplus);
        kept.extend(texts.iter().map(|text| Arc::from(&**text)));
        let redactor = Redactor::of(kept.iter().map(|text| &**text));
        known.redactors.insert(agent.clone(), redactor.clone());
        known.all = None;
        self.is_any.store(true, Ordering::Release);
        redactor
    }

    /// Hides the secrets of all agents; `None` if there are none.
    pub fn all(&self) -> Option<Redactor> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        let mut known = self.known.lock();
        let KnownTexts { texts, all, .. } = &mut *known;
        let all =
            all.get_or_insert_with(|| Redactor::of(texts.values().flatten().map(|text| &**text)));
        Some(all.clone())
    }

    /// Hides the secrets of one agent.
    pub fn of(&self, agent: &AgentName) -> Redactor {
        let known = self.known.lock();
        known.redactors.get(agent).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_were_replaced_are_still_known_but_not_for_ever() {
        let used = UsedSecrets::default();
        let (agent, other) = (
            AgentName::new("a".to_owned()),
            AgentName::new("b".to_owned()),
        );
        assert!(used.all().is_none());
        used.add(
            &agent,
            &["first-secret".to_owned(), "token-0000".to_owned()],
        );
        used.add(&other, &["of-the-other".to_owned()]);
        for number in 1..=MOST_FORMER {
            let texts = ["first-secret".to_owned(), format!("token-{number:04}")];
            used.add(&agent, &texts);
        }
        let (of_agent, all) = (used.of(&agent), used.all().unwrap());
        for text in ["first-secret", "token-0000", "token-0001", "token-0032"] {
            assert!(
                of_agent.finds(text.as_bytes()) && all.finds(text.as_bytes()),
                "{text}"
            );
        }
        assert!(!of_agent.finds(b"of-the-other") && all.finds(b"of-the-other"));
        assert!(!used.of(&other).finds(b"first-secret"));
        used.add(
            &agent,
            &["first-secret".to_owned(), "token-next".to_owned()],
        );
        used.add(
            &agent,
            &["first-secret".to_owned(), "token-last".to_owned()],
        );
        assert!(!used.of(&agent).finds(b"token-0000"));
        assert!(used.of(&agent).finds(b"token-0032"));
    }
}
