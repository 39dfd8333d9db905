//! The secrets of agents: those that this instance cannot use, and the agents that wait for one.

use super::Agents;
use crate::agent::secret::reader::SecretStore;
use crate::domain::{
    agent::{AgentSecretFault, AgentSpec, UnusableSecrets, unusable_secrets},
    task::Redactor,
    values::{AgentName, SecretName},
};

impl Agents {
    /// A secret is another one: agents that waited for it are called.
    pub fn secrets_changed(&self) {
        for agent in self.list() {
            if let Some(access) = &agent.wire.access {
                agent.note_secret_fault();
                access.refresh();
                self.shared.gate.freed(&agent.name);
            }
        }
    }

    /// The secrets of this instance.
    pub fn secrets(&self) -> &SecretStore {
        &self.shared.settings.secrets
    }

    /// Hides the secrets of all agents that this process knows; `None` if there are none.
    pub fn all_secrets(&self) -> Option<Redactor> {
        self.shared.settings.secrets.used.all()
    }

    /// Hides the secrets that an agent has sent to its service.
    pub fn secrets_of(&self, name: &AgentName) -> Redactor {
        self.shared.settings.secrets.used.of(name)
    }

    /// Returns the secrets that an agent with this specification may not use on this instance: the JSON pointer of
    /// each, and the reason.
    pub fn secret_faults(&self, name: &AgentName, spec: &AgentSpec) -> Vec<(String, String)> {
        let is_configured = self.shared.settings.configured.contains(name);
        self.shared.settings.secrets.faults(spec, is_configured)
    }

    /// Returns why a secret that an agent may use does not fit what the agent uses it for.
    pub fn misfit(&self, name: &AgentName, secret: &SecretName) -> Option<String> {
        let registered = self.registered.load();
        let fault = registered.get(name)?.secret_fault()?;
        let is_of_it = fault.secret.as_ref() == Some(secret);
        is_of_it.then_some(fault.message)
    }

    /// Returns the secrets that stop calls of this instance: each secret that it cannot use, with the agents that name
    /// it, and each agent whose secrets exist but do not fit.
    pub fn unusable_secrets(&self) -> UnusableSecrets {
        let without_value = self.secrets().without_value();
        let registered = self.registered.load();
        let faults = registered.values().filter_map(|agent| {
            let fault = agent.secret_fault()?;
            Some(AgentSecretFault {
                agent: &agent.name,
                spec: &agent.spec,
                refused: self.secret_faults(&agent.name, &agent.spec),
                secret: fault.secret,
                message: fault.message,
            })
        });
        unusable_secrets(without_value, faults.collect())
    }
}
