//! The secrets that agents have sent to their services since the start, including replaced ones: a later reply may
//! echo the contents of its request.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::domain::{task::Redactor, values::AgentName};

/// The number of former texts of each agent that are kept. Most are access tokens, which change often.
const MOST_FORMER: usize = 32;

#[derive(Default)]
pub(in crate::agent) struct UsedSecrets {
    is_any: AtomicBool,
    known: Mutex<KnownTexts>,
}

#[derive(Default)]
struct KnownTexts {
    /// The texts of each agent that were in use most recently.
    texts: HashMap<AgentName, Vec<Arc<str>>>,
    redactors: HashMap<AgentName, Redactor>,
    /// Hides the texts of all agents. Made when it is needed.
    all: Option<Redactor>,
}

impl UsedSecrets {
    /// Sets the texts that an agent sends from now on. Returns a redactor that hides these and the former ones.
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

    /// Returns a redactor that hides the secrets of all agents, or `None` if there are none.
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

    /// Returns a redactor that hides the secrets of one agent.
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
