//! The parts of a task as JSON documents, so that one walk compares them all. They hold nothing that the views of tasks,
//! workflows and attempts hide.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Serialize;

use crate::{
    task::{
        aggregate::{Details, Task},
        attempt_record::{AttemptExchange, AttemptRecord, BodyRecord},
        step::StepState,
    },
    template::payload::Payload,
    values::{
        fields::entries,
        hidden::{HIDDEN, step_without_secrets},
        ids::StepIndex,
        time::{Span, Timestamp},
    },
    view::task::{LONGEST_LIST, ReplyToView},
};

/// Headers of requests that each attempt has for itself, and those that follow from the body.
const OF_ATTEMPT: [&str; 4] = [
    "idempotency-key",
    "traceparent",
    "tracestate",
    "content-length",
];
/// The begin of the names of headers that Provost sets.
const OWN_HEADERS: &str = "provost-";
/// The headers of responses that say more than which response it is.
const OF_RESPONSE: [&str; 7] = [
    "content-type",
    "content-encoding",
    "server",
    "via",
    "location",
    "retry-after",
    "www-authenticate",
];

/// Returns a document. Its parts are JSON, and so it always is.
fn document(value: &impl Serialize) -> Payload {
    let json = serde_json::to_string(value).ok().and_then(Payload::parse);
    json.unwrap_or_else(Payload::null)
}

/// Returns the definition with its steps by name, each with the steps that it follows.
pub(super) fn definition(details: &Details) -> Payload {
    #[derive(Serialize)]
    struct DefinitionDocument {
        steps: BTreeMap<String, BTreeMap<String, Payload>>,
        #[serde(flatten)]
        policies: BTreeMap<String, Payload>,
    }
    let definition = &details.definition;
    let own = |raw: &serde_json::value::RawValue| Payload::new(raw.to_owned());
    let mut steps = BTreeMap::new();
    for step in definition.sources() {
        let hidden = step_without_secrets(&step.source);
        let source = hidden.as_deref().unwrap_or(&step.source);
        let members = entries(source).unwrap_or_default().into_iter();
        let members = members.filter(|(name, _)| match &**name {
            "name" => false,
            // The steps in a block are shown themselves.
            "steps" | "switch" => !step.is_block,
            _ => true,
        });
        let mut members: BTreeMap<_, _> = members
            .map(|(name, value)| (name.into_owned(), own(value)))
            .collect();
        let name = step.name;
        if let Some(index) = definition.find(&name) {
            let after = definition.step(index).after.iter();
            let mut after: Vec<_> = after
                .map(|step| definition.step(*step).name.as_str())
                .collect();
            after.sort_unstable();
            members.insert("after".to_owned(), document(&after));
        }
        steps.insert(name, members);
    }
    let policies = definition.policies.to_raw();
    let policies = policies.as_deref().and_then(entries).unwrap_or_default();
    document(&DefinitionDocument {
        steps,
        policies: (policies.into_iter())
            .filter(|(name, _)| name != "finally")
            .map(|(name, value)| (name.into_owned(), own(value)))
            .collect(),
    })
}

/// Returns the fields of the submission that are no part of the definition, without the key and the input.
pub(super) fn submission(details: &Details) -> Payload {
    #[derive(Serialize)]
    struct SubmittedFields<'d> {
        priority: i64,
        labels: &'d BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        complete_within: Option<Span>,
        #[serde(skip_serializing_if = "Option::is_none")]
        start_at: Option<Timestamp>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reply_to: Option<ReplyToView<'d>>,
    }
    document(&SubmittedFields {
        priority: details.priority.get(),
        labels: &details.labels,
        complete_within: details.complete_within,
        start_at: details.start_at,
        reply_to: details.reply_to.as_deref().map(ReplyToView::new),
    })
}

/// Returns two requests, without what cannot be compared. A request that was rendered again lacks its endpoint and what
/// its agent added.
pub(super) fn requests(a: &AttemptExchange, b: &AttemptExchange) -> [Payload; 2] {
    #[derive(Serialize)]
    struct RequestDocument<'e> {
        method: &'e str,
        path: Cow<'e, str>,
        headers: BTreeMap<&'e str, &'e str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<Payload>,
        #[serde(skip_serializing_if = "Option::is_none")]
        body_sha256: Option<&'e str>,
    }
    let is_as_sent = a.is_as_sent && b.is_as_sent;
    let [body_a, body_b] = [a, b].map(|one| one.request.body.as_ref());
    let are_known = [body_a, body_b].map(|body| body.is_none_or(|body| body.start.is_some()));
    let are_whole = [body_a, body_b].map(|body| body.is_none_or(is_whole));
    let other_names = |other: &AttemptExchange, name: &str| {
        let mut headers = other.request.headers.iter();
        headers.any(|(known, _)| known == name)
    };
    [(a, b), (b, a)].map(|(one, other)| {
        let headers = one.request.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_str()));
        let body = one.request.body.as_ref();
        document(&RequestDocument {
            method: &one.request.method,
            path: path(one, is_as_sent),
            headers: headers
                .filter(|(name, _)| {
                    let is_own = OF_ATTEMPT.contains(name) || name.starts_with(OWN_HEADERS);
                    !is_own && (one.is_as_sent == other.is_as_sent || other_names(other, name))
                })
                .collect(),
            body: body
                .filter(|_| are_known == [true, true])
                .and_then(content_of),
            body_sha256: body
                .filter(|_| are_whole != [true, true])
                .map(|body| body.sha256.as_str()),
        })
    })
}

/// Returns the part of the URL after that of the endpoint, which each attempt chooses for itself.
fn path(exchange: &AttemptExchange, is_as_sent: bool) -> Cow<'_, str> {
    let url = exchange.request.url.as_str();
    let endpoint = exchange.endpoint.as_deref().unwrap_or_default();
    let endpoint = endpoint.trim_end_matches('/');
    let path = match url.strip_prefix(endpoint) {
        Some(path) if !endpoint.is_empty() && path.starts_with(['/', '?']) => path,
        _ => match url.split_once("://") {
            Some((_, rest)) => rest.find(['/', '?']).map_or("/", |at| &rest[at..]),
            None => url,
        },
    };
    // The query of the address of a step is hidden in what was sent, and no part of what is rendered again.
    let path = match is_as_sent {
        true => path,
        false => path.strip_suffix(&format!("?{HIDDEN}")).unwrap_or(path),
    };
    match path.starts_with('/') {
        true => path.into(),
        false => format!("/{path}").into(),
    }
}

fn is_whole(body: &BodyRecord) -> bool {
    let start = body.start.as_ref();
    start.is_some_and(|start| start.len() as u64 == body.bytes)
}

/// Returns the body as JSON if it is JSON and was recorded whole, or its beginning as a text.
fn content_of(body: &BodyRecord) -> Option<Payload> {
    let start = body.start.as_ref()?;
    let json = is_whole(body).then(|| Payload::parse(start.clone()));
    Some(
        json.flatten()
            .unwrap_or_else(|| Payload::from_string(start)),
    )
}

/// A response, as far as it is known.
#[derive(Default)]
pub(super) struct LastResponse<'t> {
    pub status: Option<u16>,
    headers: Option<BTreeMap<&'t str, &'t str>>,
    body: Option<Payload>,
}

impl<'t> LastResponse<'t> {
    /// Returns what is known of the last response to a step, from its record and from the step's output.
    pub fn of(task: &Task, index: StepIndex, record: Option<&'t AttemptRecord>) -> Self {
        let step = task.step(index);
        let exchange = record.and_then(|record| record.exchange.as_deref());
        let response = exchange.and_then(|exchange| exchange.response.as_ref());
        let fault = record.and_then(|record| record.error.as_ref());
        let fault = fault.or(match &step.state {
            StepState::Error(fault) => Some(fault),
            _ => None,
        });
        let is_group = task.definition(index).group_rule().is_some();
        let output = match &step.state {
            StepState::Processed { output, .. } => Some(output.clone()),
            StepState::Skipped { output, .. } => output.clone(),
            _ => None,
        };
        let output = output.filter(|output| !is_group || output.as_json().len() <= LONGEST_LIST);
        let text = response.and_then(|response| response.body.as_deref());
        let text = text.or_else(|| fault.and_then(|fault| fault.body.as_deref()));
        let received = text.map(|text| {
            let json = Payload::parse(text.to_owned());
            json.unwrap_or_else(|| Payload::from_string(text))
        });
        Self {
            status: match response {
                Some(response) => Some(response.status),
                None => fault.and_then(|fault| fault.status),
            },
            headers: response.map(|response| {
                let headers = response.headers.iter();
                let headers = headers.map(|(name, value)| (name.as_str(), value.as_str()));
                headers
                    .filter(|(name, _)| OF_RESPONSE.contains(name))
                    .collect()
            }),
            body: output.or(received),
        }
    }

    fn is_known(&self) -> bool {
        self.status.is_some() || self.headers.is_some() || self.body.is_some()
    }
}

/// Returns two responses, with the parts that are known of both. `None` if one of them is not known.
pub(super) fn responses(a: &LastResponse<'_>, b: &LastResponse<'_>) -> Option<[Payload; 2]> {
    #[derive(Serialize)]
    struct ResponseDocument<'r> {
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        #[serde(skip_serializing_if = "Option::is_none")]
        headers: Option<&'r BTreeMap<&'r str, &'r str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<&'r Payload>,
    }
    let both = [a, b];
    let are_known = both.iter().all(|one| one.is_known());
    let has_status = both.iter().all(|one| one.status.is_some());
    let has_headers = both.iter().all(|one| one.headers.is_some());
    let has_body = both.iter().all(|one| one.body.is_some());
    are_known.then(|| {
        both.map(|one| {
            document(&ResponseDocument {
                status: one.status.filter(|_| has_status),
                headers: one.headers.as_ref().filter(|_| has_headers),
                body: one.body.as_ref().filter(|_| has_body),
            })
        })
    })
}
