//! The definitions that a server has.

use provost_domain::{agent::AgentSpec, values::Span};
use provost_object::Object;
use serde_json::{Map, Value, value::RawValue};

use super::source::DefinitionKind;
use crate::{
    api::Listing,
    operations::{
        GET_AGENT, GET_SCHEDULE, GET_WORKFLOW, GET_WORKFLOW_VERSION, LIST_AGENTS, LIST_SCHEDULES,
        LIST_WORKFLOWS, Operation,
    },
    outcome::ClientError,
    session::Session,
    shapes::{AgentJson, WorkflowSummaryJson},
};

/// The most definitions of one kind.
const MOST: usize = 100_000;

/// The members of a workflow that its registration has.
const OF_WORKFLOWS: [&str; 12] = [
    "description",
    "complete_within",
    "on_exhausted",
    "on_permanent",
    "on_deadline",
    "undoable_for",
    "limits",
    "output",
    "input_schema",
    "hide_bodies",
    "steps",
    "finally",
];
/// The members of a schedule that its registration has.
const OF_SCHEDULES: [&str; 15] = [
    "cron",
    "timezone",
    "dst",
    "every",
    "overlap",
    "catch_up",
    "jitter",
    "until",
    "description",
    "workflow",
    "workflow_version",
    "input",
    "labels",
    "priority",
    "complete_within",
];
/// The values that the server shows for members that a schedule does not have.
const DEFAULTS_OF_SCHEDULES: [(&str, &str); 4] = [
    ("timezone", "UTC"),
    ("dst", "once"),
    ("overlap", "skip"),
    ("catch_up", "last"),
];
/// The members whose values are durations, which the server writes in its own form.
const DURATIONS: [&str; 4] = ["complete_within", "undoable_for", "every", "jitter"];

/// A definition on the server.
#[derive(Debug)]
pub struct Current {
    pub etag: Option<String>,
    /// The body that would register it.
    pub body: Map<String, Value>,
    /// The version of a workflow.
    pub version: Option<u64>,
    /// The version of a workflow that tasks get which name none.
    pub active_version: Option<u64>,
}

/// Reads a definition; `None` if the server does not have it.
pub async fn read(
    session: &Session,
    kind: DefinitionKind,
    name: &str,
    version: Option<u32>,
) -> Result<Option<Current>, ClientError> {
    let version = version.map(|version| version.to_string());
    let request = match (kind, &version) {
        (DefinitionKind::Agent, _) => session.api.request(&GET_AGENT, &[name]),
        (DefinitionKind::Schedule, _) => session.api.request(&GET_SCHEDULE, &[name]),
        (DefinitionKind::Workflow, None) => session.api.request(&GET_WORKFLOW, &[name]),
        (DefinitionKind::Workflow, Some(version)) => {
            session.api.request(&GET_WORKFLOW_VERSION, &[name, version])
        }
    };
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.problem(404).is_some() => return Ok(None),
        Err(error) => return Err(error),
    };
    let members: Map<String, Value> = response.read()?;
    Ok(Some(Current {
        etag: response.etag.clone(),
        version: members.get("version").and_then(Value::as_u64),
        active_version: members.get("active_version").and_then(Value::as_u64),
        body: body_of(kind, members),
    }))
}

/// Returns all definitions of a kind.
pub async fn list(session: &Session, kind: DefinitionKind) -> Result<Listing, ClientError> {
    let operation: &Operation = match kind {
        DefinitionKind::Agent => &LIST_AGENTS,
        DefinitionKind::Workflow => &LIST_WORKFLOWS,
        DefinitionKind::Schedule => &LIST_SCHEDULES,
    };
    session.api.list(operation, &[], &[], MOST).await
}

/// Returns the names of all definitions of a kind that the API can change.
pub async fn names(session: &Session, kind: DefinitionKind) -> Result<Vec<String>, ClientError> {
    let listing = list(session, kind).await?;
    if kind == DefinitionKind::Agent {
        // The configuration file defines the others.
        let agents = listing.read::<AgentJson>()?.into_iter();
        return Ok(agents
            .filter(|agent| agent.source == "api")
            .map(|agent| agent.name)
            .collect());
    }
    let named = listing.read::<WorkflowSummaryJson>()?.into_iter();
    Ok(named.map(|named| named.name).collect())
}

/// Returns the body that would register what a response shows.
fn body_of(kind: DefinitionKind, mut members: Map<String, Value>) -> Map<String, Value> {
    let wanted: &[&str] = match kind {
        DefinitionKind::Agent => {
            return match members.shift_remove("spec") {
                Some(Value::Object(spec)) => without_null(spec),
                _ => Map::new(),
            };
        }
        DefinitionKind::Workflow => &OF_WORKFLOWS,
        DefinitionKind::Schedule => &OF_SCHEDULES,
    };
    let is_paused = kind == DefinitionKind::Schedule
        && members.get("state").is_some_and(|state| state == "paused");
    let reply_to = members
        .remove("reply_to")
        .filter(|_| kind == DefinitionKind::Schedule);
    let mut body = without_null(members);
    body.retain(|name, _| wanted.contains(&name.as_str()));
    if is_paused {
        body.insert("paused".to_owned(), Value::Bool(true));
    }
    body.extend(
        reply_to
            .filter(|reply_to| !reply_to.is_null())
            .map(|reply_to| ("reply_to".to_owned(), reply_to)),
    );
    body
}

fn without_null(mut members: Map<String, Value>) -> Map<String, Value> {
    members.retain(|_, value| !value.is_null());
    members
}

/// Returns a body as the server would write it, so that a comparison finds no difference in the form alone. What the server
/// would refuse stays as it is.
pub fn normal(kind: DefinitionKind, body: &str) -> Map<String, Value> {
    let written: Map<String, Value> = serde_json::from_str(body).unwrap_or_default();
    let mut members = match kind {
        DefinitionKind::Agent => return spec_as_written(body).unwrap_or(written),
        _ => without_null(written),
    };
    for name in DURATIONS {
        let Some(Value::String(text)) = members.get_mut(name) else {
            continue;
        };
        if let Some(span) = Span::parse(text) {
            *text = span.to_string();
        }
    }
    if kind == DefinitionKind::Schedule {
        members.retain(|name, value| {
            let is_default = DEFAULTS_OF_SCHEDULES
                .iter()
                .any(|(known, default)| known == name && value == default);
            let is_unpaused = name == "paused" && *value == Value::Bool(false);
            !(is_default || is_unpaused)
        });
    }
    members
}

fn spec_as_written(body: &str) -> Option<Map<String, Value>> {
    let raw: &RawValue = serde_json::from_str(body).ok()?;
    let spec = AgentSpec::parse(raw).ok()?;
    match serde_json::to_value(&spec).ok()? {
        Value::Object(members) => Some(without_null(members)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_alone_makes_no_difference() {
        let same = |kind, a: &str, b: &str| assert_eq!(normal(kind, a), normal(kind, b));
        same(
            DefinitionKind::Agent,
            r#"{"endpoints":[{"url":"http://127.0.0.1:9"}]}"#,
            r#"{"endpoints":[{"url":"http://127.0.0.1:9","max_in_flight":64}],"retry":{"initial":"100ms","max":"10s","factor":2}}"#,
        );
        same(
            DefinitionKind::Schedule,
            r#"{"every":"90m","workflow":"order","paused":false,"until":null}"#,
            r#"{"every":"1h30m","workflow":"order","overlap":"skip","dst":"once","catch_up":"last"}"#,
        );
        same(
            DefinitionKind::Workflow,
            r#"{"complete_within":"90m","steps":[]}"#,
            r#"{"complete_within":"1h30m","steps":[],"description":null}"#,
        );
    }
}
