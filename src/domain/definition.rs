//! A definition: the business logic of a task, apart from the scheduler that runs it (P6).

mod graph;
mod parse;
mod request;
mod step;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{
    AgentName, Payload, Span, StepIndex, StepName,
    template::{Expression, JsonTemplate, Template},
};
pub use parse::*;

/// A checked, compiled definition. It can only be made by [`parse_steps`], so every index in it is
/// in range, its graph has no cycle, and every template in it compiles.
#[derive(Debug)]
pub struct Definition {
    pub steps: Vec<StepDefinition>,
    /// The JSON array that this was made from, as it was submitted.
    pub source: Payload,
}

#[derive(Debug)]
pub struct StepDefinition {
    pub name: StepName,
    pub target: Target,
    /// The steps that must be done before this one starts.
    pub after: Vec<StepIndex>,
    /// The steps that name this one in `after`: the same edges, read forward.
    pub followers: Vec<StepIndex>,
    /// False when it is this step's turn: the step is skipped.
    pub when: Option<Expression>,
    pub request: RequestTemplate,
    /// The steps whose output the request or the condition reads: all of them come before this one.
    pub reads: Vec<StepIndex>,
    pub complete_within: Span,
    pub max_failures: u32,
    pub on_exhausted: OnExhausted,
    pub on_permanent: OnPermanent,
}

impl StepDefinition {
    /// Whose capacity, breaker and line this step uses.
    pub fn agent(&self) -> &AgentName {
        match &self.target {
            Target::Agent(name) => name,
            Target::Url { origin, .. } => origin,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    Agent(AgentName),
    Url { url: Arc<str>, origin: AgentName },
}

#[derive(Debug)]
pub struct RequestTemplate {
    pub method: Method,
    /// Appended to the agent's endpoint, or to the step's `url`. Starts with `/`, or is empty.
    pub path: Template,
    /// Lower-case names.
    pub headers: Vec<(String, Template)>,
    pub body: Body,
}

#[derive(Debug)]
pub enum Body {
    None,
    /// The default of POST, PUT and PATCH.
    Input,
    Json(JsonTemplate),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub const ALL: [Method; 5] = [
        Method::Get,
        Method::Post,
        Method::Put,
        Method::Patch,
        Method::Delete,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    pub fn sends_body(self) -> bool {
        matches!(self, Method::Post | Method::Put | Method::Patch)
    }
}

/// What happens when `failure_count` passes `max_failures` (P25).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OnExhausted {
    Error,
    /// Wait an extended period, then try again, at most `times`; then `Error`.
    Extend {
        wait: Span,
        times: u32,
    },
}

/// What happens when the remote service refuses for good (P12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPermanent {
    Error,
    Skip,
}
