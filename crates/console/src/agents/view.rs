//! An agent as `GET /v1/agents` has it, and the trouble that it is in.

use std::borrow::Borrow;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{
    assets::hex,
    changed::LineRow,
    parts::{actor, counted, duration_in_words},
};

/// A page of `GET /v1/agents`.
#[derive(Deserialize)]
pub struct AgentPage {
    pub items: Vec<Agent>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Agent {
    pub name: String,
    pub source: String,
    pub spec: Box<RawValue>,
    pub in_flight: u64,
    pub capacity: u64,
    pub pause: Option<Pause>,
    pub throttle: Option<Throttle>,
    #[serde(default)]
    pub breakers: Vec<Breaker>,
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub secrets: Vec<Secret>,
    #[serde(default)]
    pub limited_by_workflows: Vec<WaitingSteps>,
}

#[derive(Deserialize)]
pub struct Pause {
    pub until: Option<String>,
    pub reason: Option<String>,
    pub by: String,
    pub since: String,
}

#[derive(Deserialize)]
pub struct Throttle {
    pub until: String,
    pub reason: String,
    pub since: String,
}

#[derive(Deserialize)]
pub struct Breaker {
    pub endpoint: String,
    pub state: String,
    pub reason: Option<String>,
    pub by: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
}

#[derive(Clone, Deserialize)]
pub struct Endpoint {
    pub url: String,
    pub state: String,
    pub reason: Option<String>,
    pub by: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
    /// Unknown for an endpoint that is only in the specification.
    pub in_flight: Option<u64>,
}

/// The endpoints of a specification.
#[derive(Deserialize)]
struct SpecifiedEndpoints {
    #[serde(default)]
    endpoints: Vec<SpecifiedEndpoint>,
}

#[derive(Deserialize)]
struct SpecifiedEndpoint {
    #[serde(default)]
    url: Option<String>,
}

#[derive(Deserialize)]
pub struct Secret {
    pub name: String,
    pub fault: Option<String>,
}

#[derive(Deserialize)]
pub struct WaitingSteps {
    pub workflow: String,
    pub queued: u64,
}

/// The reason why calls do not reach an agent.
#[derive(Debug)]
pub struct Trouble {
    pub class: &'static str,
    pub shape: &'static str,
    pub word: &'static str,
    pub sentence: String,
}

impl Endpoint {
    /// Returns the class and the shape of the state.
    pub fn badge(&self) -> (&'static str, &'static str) {
        match self.state.as_str() {
            "healthy" | "gets its calls" => ("ok", "ok"),
            "draining" => ("paused", "paused"),
            "ejected" | "unhealthy" => ("error", "open"),
            _ => ("pending", "pending"),
        }
    }
}

impl Breaker {
    pub fn badge(&self) -> (&'static str, &'static str) {
        match self.state.as_str() {
            "closed" => ("ok", "ok"),
            "open" | "forced_open" => ("error", "open"),
            _ => ("paused", "open"),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state.as_str(), "open" | "forced_open")
    }

    pub fn word(&self) -> String {
        self.state.replace('_', " ")
    }
}

impl Agent {
    /// Returns the specification, with its numbers as they came.
    pub fn spec_text(&self) -> String {
        crate::json::pretty(self.spec.get())
    }

    /// Returns the endpoints with their states. The API has no states of an agent whose endpoints get all of their calls.
    pub fn all_endpoints(&self) -> Vec<Endpoint> {
        if !self.endpoints.is_empty() {
            return self.endpoints.clone();
        }
        let spec: Option<SpecifiedEndpoints> = serde_json::from_str(self.spec.get()).ok();
        let specified = spec.map_or_else(Vec::new, |spec| spec.endpoints);
        let urls = specified.into_iter().filter_map(|endpoint| endpoint.url);
        let endpoint = |url| Endpoint {
            url,
            state: String::from("gets its calls"),
            reason: None,
            by: None,
            since: None,
            until: None,
            in_flight: None,
        };
        urls.map(endpoint).collect()
    }

    /// Returns the changes that the agent is still under: nothing else of an agent is on record.
    pub fn changes(&self) -> Vec<LineRow> {
        let pause = self
            .pause
            .iter()
            .map(|pause| LineRow::done(&pause.since, &pause.by, "paused", pause.reason.as_deref()));
        let breakers = self.breakers.iter().filter_map(|breaker| {
            let what = format!("breaker of {}: {}", breaker.endpoint, breaker.word());
            let (since, by) = (breaker.since.as_deref()?, breaker.by.as_deref()?);
            Some(LineRow::done(since, by, what, breaker.reason.as_deref()))
        });
        pause.chain(breakers).collect()
    }

    /// Returns a text that differs once an operator has paused or resumed the agent, or has commanded its breakers. The
    /// ETag of the API is that of the specification, which these commands do not change.
    pub fn commanded(&self) -> String {
        let mut hash = Sha256::new();
        // A breaker that moves by itself is no command.
        let is_commanded = |line: &LineRow| line.bold == "paused" || line.by.contains("operator");
        for line in self.changes().into_iter().filter(is_commanded) {
            for part in [&line.at, &line.by, &line.bold, &line.rest] {
                hash.update(part);
                hash.update([0]);
            }
        }
        hex(&hash.finalize()[..8])
    }

    /// Returns the most important reason why calls do not reach the agent.
    pub fn trouble(&self, now: impl Borrow<Timestamp>) -> Option<Trouble> {
        if let Some(secret) = self.secrets.iter().find(|secret| secret.fault.is_some()) {
            let fault = secret.fault.as_deref().unwrap_or_default();
            let sentence = format!("the secret {} cannot be used: {fault}", secret.name);
            return Some(Trouble::new("error", "warn", "secret unusable", sentence));
        }
        let health = Health {
            pause: self.pause.as_ref(),
            throttle: self.throttle.as_ref(),
            breakers: &self.breakers,
            endpoints: &self.endpoints,
            all: Some(self.endpoints.len().max(self.breakers.len())),
        };
        health.trouble(*now.borrow())
    }
}

impl Trouble {
    pub fn new(
        class: &'static str,
        shape: &'static str,
        word: &'static str,
        sentence: impl Into<String>,
    ) -> Self {
        Self {
            class,
            shape,
            word,
            sentence: sentence.into(),
        }
    }
}

/// The state of an agent, as far as it keeps calls from it.
pub struct Health<'a> {
    pub pause: Option<&'a Pause>,
    pub throttle: Option<&'a Throttle>,
    pub breakers: &'a [Breaker],
    pub endpoints: &'a [Endpoint],
    /// The number of all endpoints, if it is known: the lists may have only those in trouble.
    pub all: Option<usize>,
}

impl Health<'_> {
    pub fn trouble(&self, now: Timestamp) -> Option<Trouble> {
        let until = |at: &Option<String>| {
            let at: Option<Timestamp> = at.as_deref().and_then(|at| at.parse().ok());
            at.map(|at| duration_in_words(at.as_second() - now.as_second()))
        };
        let mut open = self.breakers.iter().filter(|breaker| breaker.is_open());
        if let Some(first) = open.next() {
            let count = 1 + open.count();
            let of = match self.all {
                Some(all) => format!(
                    "{count} of {}",
                    counted(all as u64, "endpoint", "endpoints")
                ),
                None => counted(count as u64, "endpoint", "endpoints"),
            };
            let next = until(&first.until).map(|left| format!("; the next look is in {left}"));
            let sentence = format!(
                "no calls to {of}: {}{}",
                first.reason.as_deref().unwrap_or("opened by an operator"),
                next.unwrap_or_default()
            );
            return Some(Trouble::new("error", "open", "breaker open", sentence));
        }
        let is_sick =
            |endpoint: &&Endpoint| matches!(endpoint.state.as_str(), "ejected" | "unhealthy");
        if let Some(sick) = self.endpoints.iter().find(is_sick) {
            let sentence = format!(
                "{} gets no calls: {}",
                sick.url,
                sick.reason.as_deref().unwrap_or(&sick.state)
            );
            return Some(Trouble::new(
                "error",
                "open",
                "endpoint unhealthy",
                sentence,
            ));
        }
        if let Some(pause) = self.pause {
            let left = until(&pause.until).map(|left| format!(" for {left} more"));
            let reason = pause.reason.as_ref().map(|reason| format!(": “{reason}”"));
            let sentence = format!(
                "no calls{} by {}{}",
                left.unwrap_or_default(),
                actor(&pause.by),
                reason.unwrap_or_default()
            );
            return Some(Trouble::new("paused", "paused", "paused", sentence));
        }
        if let Some(throttle) = self.throttle {
            let reason = throttle.reason.as_str();
            return Some(Trouble::new("paused", "clock", "throttled", reason));
        }
        let half = self
            .breakers
            .iter()
            .find(|breaker| breaker.state == "half_open");
        half.map(|breaker| {
            let sentence = format!(
                "a few calls to {} decide whether it closes",
                breaker.endpoint
            );
            Trouble::new("paused", "open", "breaker half open", sentence)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(more: &str) -> Agent {
        let text = format!(
            r#"{{"name":"shipping","source":"api","spec":{{"a":1.0}},"in_flight":0,"capacity":8,"endpoints":[{{"url":"http://a","state":"healthy","in_flight":0}}]{more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_most_important_trouble_is_said() {
        let now: Timestamp = "2026-11-26T03:00:00Z".parse().unwrap();
        assert!(agent("").trouble(now).is_none());
        let pause = r#","pause":{"until":"2026-11-26T04:00:00Z","reason":"stock count","by":"ops","since":"2026-11-26T02:00:00Z"}"#;
        let paused = agent(pause).trouble(now).unwrap();
        assert_eq!(
            paused.sentence,
            "no calls for 1 h more by ops: “stock count”"
        );
        let open = r#","breakers":[{"endpoint":"http://a","state":"open","reason":"5 of 5 calls failed","until":"2026-11-26T03:00:25Z"}]"#;
        let both = agent(&format!("{pause}{open}")).trouble(now).unwrap();
        assert_eq!(both.word, "breaker open");
        assert_eq!(
            both.sentence,
            "no calls to 1 of 1 endpoint: 5 of 5 calls failed; the next look is in 25 s"
        );
    }
}
