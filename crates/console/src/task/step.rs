//! The panel of one step: what was sent and what came, of the attempt that is shown.

use super::{
    command::{Command, command_link},
    excerpt::{self, Excerpt},
    record::{AttemptList, AttemptRecord, Step, Task, between, millis, span},
};
use crate::{
    params::{Params, encoded},
    parts::number,
    service::Refusal,
    shell::Shell,
};

pub struct StepPanel {
    pub name: String,
    pub state: String,
    pub kind: String,
    pub retry: Option<String>,
    pub cancel: Option<String>,
    pub attempts: Vec<AttemptLink>,
    pub shown: Option<Exchange>,
    pub refusal: Option<String>,
    pub item: Option<Excerpt>,
    pub output: Option<Excerpt>,
    pub facts: Vec<(&'static str, String)>,
    pub child: Option<(String, String)>,
    pub all_of_it: String,
}

pub struct AttemptLink {
    pub number: u32,
    pub link: String,
    pub words: String,
    pub is_shown: bool,
}

/// One attempt: the request and the response.
pub struct Exchange {
    pub method: String,
    pub url: String,
    pub was_sent: bool,
    pub headers: String,
    pub header_count: usize,
    pub body: Option<Excerpt>,
    pub body_note: Option<String>,
    pub curl: Option<String>,
    pub status: Option<u16>,
    pub reason: &'static str,
    pub answer: Option<Excerpt>,
    pub answer_headers: String,
    pub answer_header_count: usize,
    pub nothing_came: Option<String>,
    pub facts: Vec<(&'static str, String)>,
}

impl StepPanel {
    pub fn new(
        page: &Shell,
        task: &Task,
        step: &Step,
        attempts: Option<Result<(AttemptList, AttemptList), Refusal>>,
        query: &Params,
    ) -> Self {
        let base = page.task(&task.id);
        let wants_all = query.get("body") == Some("all");
        let (list, full, refusal) = match attempts {
            Some(Ok((list, full))) => (list, full, None),
            Some(Err(refusal)) => (
                AttemptList::default(),
                AttemptList::default(),
                Some(refusal.detail),
            ),
            None => (AttemptList::default(), AttemptList::default(), None),
        };
        let shown = full.items.into_iter().next();
        let number = shown.as_ref().map(|attempt| attempt.attempt);
        let attempts = list
            .items
            .iter()
            .filter(|attempt| attempt.purpose != "poll")
            .map(|attempt| AttemptLink {
                number: attempt.attempt,
                link: format!(
                    "{base}?step={}&attempt={}#step",
                    encoded(&step.name),
                    attempt.attempt
                ),
                words: short_result(attempt),
                is_shown: Some(attempt.attempt) == number,
            });
        let may_retry = Command::Retry.obstacle(task, Some(step)).is_none();
        let may_cancel = Command::CancelStep.obstacle(task, Some(step)).is_none();
        let mut facts = Vec::new();
        if let Some(reply) = &step.awaited_reply {
            let by = reply.worker.as_deref().map_or_else(
                || String::from("the service"),
                |worker| format!("worker {worker}"),
            );
            facts.push(("replies", format!("{by}, since {}", reply.since)));
            if let Some(part) = reply.progress {
                let words = reply
                    .message
                    .as_deref()
                    .map_or_else(String::new, |words| format!(", {words}"));
                facts.push(("progress", format!("{:.0} %{words}", part * 100.0)));
            }
            if let Some(at) = &reply.heartbeat_at {
                facts.push(("last heartbeat", at.clone()));
            }
        }
        let lost = match step.lost.as_deref() {
            Some("undo") => Some("its end is awaited, and what it did is undone"),
            Some("cancel") => Some("it is being cancelled"),
            _ => None,
        };
        if let Some(lost) = lost {
            facts.push(("lost", lost.to_owned()));
        }
        if let Some(by) = &step.locked_by {
            facts.push(("run by", by.clone()));
        }
        if let Some(at) = &step.complete_by {
            facts.push(("complete by", at.clone()));
        }
        if let Some(ask) = &step.ask {
            facts.push(("asks", ask.title.clone()));
        }
        if !step.after.is_empty() {
            facts.push(("follows", step.after.join(", ")));
        }
        Self {
            name: step.name.clone(),
            state: step.state.clone(),
            kind: step.kind.clone(),
            retry: may_retry
                .then(|| command_link(page, &task.id, Command::Retry, Some(&step.name))),
            cancel: may_cancel
                .then(|| command_link(page, &task.id, Command::CancelStep, Some(&step.name))),
            attempts: attempts.collect(),
            shown: shown.map(|attempt| Exchange::new(&attempt, step, wants_all)),
            refusal,
            item: step
                .item
                .as_ref()
                .map(|item| excerpt::excerpt(item.get(), wants_all)),
            output: step
                .output
                .as_ref()
                .map(|output| excerpt::excerpt(output.get(), wants_all)),
            facts,
            child: step.child.as_ref().map(|child| {
                (
                    page.task(&child.id),
                    child.state.clone().unwrap_or_default(),
                )
            }),
            all_of_it: format!(
                "{base}{}#step",
                query.with("step", &step.name).with("body", "all").query()
            ),
        }
    }
}

fn short_result(attempt: &AttemptRecord) -> String {
    let status = attempt
        .response
        .as_ref()
        .map(|came| came.status.to_string());
    match (attempt.result.as_deref(), status) {
        (Some("succeeded"), _) => String::from("succeeded"),
        (_, Some(status)) => status,
        (Some(result), None) => result.to_owned(),
        (None, None) => String::from("under way"),
    }
}

impl Exchange {
    fn new(attempt: &AttemptRecord, step: &Step, wants_all: bool) -> Self {
        let sent = attempt.request.as_ref();
        let body = sent.and_then(|sent| sent.body.as_ref());
        let start = body.and_then(|body| body.start.as_deref());
        let whole = body.map_or(0, |body| body.bytes);
        let body_note = match (body, start) {
            (Some(body), Some(start)) if body.bytes > start.len() as u64 => Some(format!(
                "The first {} of {} bytes: the rest is not recorded.",
                number(start.len() as u64),
                number(whole)
            )),
            (Some(body), None) => Some(format!(
                "A body of {} bytes, which is not recorded; SHA-256 {}.",
                number(whole),
                body.sha256
            )),
            _ => None,
        };
        let headers = |headers: &std::collections::BTreeMap<String, String>| {
            headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let came = attempt.response.as_ref();
        let fault = attempt.error.as_ref();
        let nothing_came = came.is_none().then(|| match (attempt.result.as_deref(), fault) {
            (Some("succeeded"), _) => String::from("It succeeded: the response is not recorded, its body is the output of the step."),
            (_, Some(fault)) => fault.message.clone(),
            (None, None) => String::from("Nothing yet: the call is under way."),
            (Some(result), None) => attempt.reason.clone().unwrap_or_else(|| result.to_owned()),
        });
        let answer = came
            .and_then(|came| came.body.as_deref())
            .map(|body| excerpt::excerpt(body, wants_all));
        let output = step
            .output
            .as_ref()
            .filter(|_| came.is_none() && attempt.result.as_deref() == Some("succeeded"));
        Self {
            method: sent.map(|sent| sent.method.clone()).unwrap_or_default(),
            url: sent.map(|sent| sent.url.clone()).unwrap_or_default(),
            was_sent: sent.is_none_or(|sent| sent.as_sent),
            headers: sent.map(|sent| headers(&sent.headers)).unwrap_or_default(),
            header_count: sent.map_or(0, |sent| sent.headers.len()),
            body: start.map(|start| excerpt::excerpt(start, wants_all)),
            body_note,
            curl: sent.filter(|sent| sent.as_sent).map(|sent| {
                let data = start.map_or_else(String::new, |start| format!(" -d {}", quoted(start)));
                let kept = sent.headers.iter().filter(|(name, _)| {
                    !matches!(name.as_str(), "host" | "user-agent" | "accept-encoding")
                });
                let headers: String = kept
                    .map(|(name, value)| format!(" -H {}", quoted(&format!("{name}: {value}"))))
                    .collect();
                format!(
                    "curl -s -X {} {}{headers}{data}",
                    sent.method,
                    quoted(&sent.url)
                )
            }),
            status: came.map(|came| came.status),
            reason: came
                .and_then(|came| {
                    http::StatusCode::from_u16(came.status)
                        .ok()?
                        .canonical_reason()
                })
                .unwrap_or_default(),
            answer: answer
                .or_else(|| output.map(|output| excerpt::excerpt(output.get(), wants_all))),
            answer_headers: came.map(|came| headers(&came.headers)).unwrap_or_default(),
            answer_header_count: came.map_or(0, |came| came.headers.len()),
            nothing_came,
            facts: facts(attempt, step),
        }
    }
}

fn facts(attempt: &AttemptRecord, step: &Step) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let clock = |at: &Option<String>| {
        at.as_deref()
            .map(|at| at.get(11..23).unwrap_or(at).to_owned())
    };
    let by = attempt
        .instance
        .as_deref()
        .map_or_else(String::new, |instance| format!(" by {instance}"));
    let times = match (clock(&attempt.claimed_at), clock(&attempt.ended_at)) {
        (Some(begin), Some(end)) => format!(", {begin} to {end} UTC"),
        (Some(begin), None) => format!(", since {begin} UTC"),
        (None, Some(end)) => format!(", ended {end} UTC"),
        (None, None) => String::new(),
    };
    let purpose = match attempt.purpose.as_str() {
        "work" | "" => String::new(),
        other => format!(" ({other})"),
    };
    facts.push((
        "attempt",
        format!(
            "{} of {}{purpose}{by}{times}",
            attempt.attempt,
            step.attempt.max(attempt.attempt)
        ),
    ));
    let from = attempt
        .times
        .began_at
        .as_deref()
        .or(attempt.claimed_at.as_deref());
    let part = |words: &str, at: &Option<String>| {
        between(from, at.as_deref()).map(|after| format!("{words} {}", span(after)))
    };
    let parts: Vec<String> = [
        between(
            attempt.claimed_at.as_deref(),
            attempt.times.began_at.as_deref(),
        )
        .map(|wait| format!("prepared in {}", span(wait))),
        part("connected", &attempt.times.connected_at),
        part("sent", &attempt.times.sent_at),
        part("first byte", &attempt.times.responded_at),
        part("end", &attempt.ended_at),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !parts.is_empty() {
        facts.push(("time", parts.join(", ")));
    }
    if let Some(endpoint) = &attempt.endpoint {
        facts.push(("endpoint", endpoint.clone()));
    }
    if step.max_failures > 0 {
        let permanent = attempt.result.as_deref() == Some("permanent");
        let more = if permanent {
            "; a permanent error is not retried"
        } else {
            ""
        };
        facts.push((
            "failures",
            format!("{} of {}{more}", step.failure_count, step.max_failures),
        ));
    }
    if let Some(next) = attempt.next_at.as_deref().and_then(millis) {
        let ended = attempt.ended_at.as_deref().and_then(millis).unwrap_or(next);
        facts.push(("next attempt", format!("after {}", span(next - ended))));
    }
    facts
}

/// Returns the text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
