//! The services that a definition may call, and the people that it may ask.

use crate::values::ids::AgentName;

/// Knows which services can be called under the present policy and registrations. A definition that was compiled before
/// is checked against it again: see [`is_still_allowed`](super::Definition::is_still_allowed).
pub trait KnownAgents {
    fn knows(&self, agent: &AgentName) -> bool;

    /// Returns the agent that was probably meant by an unknown name.
    fn nearest(&self, _: &AgentName) -> Option<AgentName> {
        None
    }

    /// Returns an error that says why the URL is not allowed, and which remedy there is.
    fn allows_url(&self, url: &str) -> Result<(), String>;

    /// Checks that services can reply later. The error says what to do.
    fn takes_later_replies(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that people can be asked. The error says what to do.
    fn reaches_people(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that every instance reads the rules for attempts. The error says what to do.
    fn reads_attempt_rules(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that a receiver or an alert webhook with this name is configured. The error says what to do.
    fn passes_links_on(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Allows every agent and URL. It is for definitions that were accepted before: the agents and the policy of today do
/// not matter to them.
pub struct Accepted;

impl KnownAgents for Accepted {
    fn knows(&self, _: &AgentName) -> bool {
        true
    }

    fn allows_url(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}
