//! The account of a rehearsal, for people and for later runs.

use provost_domain::{
    task::{Event, StepState, StepStatus, task_output},
    values::FaultKind,
};
use serde_json::{Map, Value, json};

use crate::{
    call_name::step_name,
    rehearsal::{Rehearsal, SentRequest},
    schedule::{RehearsedRun, RehearsedSchedule},
};

/// The largest number of lines of a timeline.
const MOST_LINES: usize = 100;

/// Returns a line for each request and for each event that matters to a reader, in order.
pub fn timeline(seen: &Rehearsal) -> Vec<String> {
    let mut lines = Vec::new();
    let mut requests = seen.requests.iter().peekable();
    for (number, (at, event)) in seen.events.iter().enumerate() {
        while let Some(request) = requests.next_if(|request| request.after_events <= number) {
            lines.push(request_line(seen, request));
        }
        lines.extend(event_line(event).map(|line| format!("+{at} {line}")));
    }
    lines.extend(requests.map(|request| request_line(seen, request)));
    shortened(lines)
}

/// Returns a line for each run.
pub fn schedule_timeline(seen: &RehearsedSchedule) -> Vec<String> {
    shortened(seen.runs.iter().map(RehearsedRun::in_words).collect())
}

fn shortened(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MOST_LINES);
    if more > 0 {
        // The middle is left out, because the end of a timeline says most.
        let from = MOST_LINES / 2;
        lines.splice(from..from + more, [format!("… {more} lines more")]);
    }
    lines
}

fn request_line(seen: &Rehearsal, request: &SentRequest) -> String {
    let name = request.name.in_words(&seen.names);
    let SentRequest {
        at,
        to,
        method,
        path,
        response,
        ..
    } = request;
    format!("+{at} {name}: {method} {to} {path} -> {response}")
}

/// Returns `None` if a request shows the event already, or if it is of no interest.
fn event_line(event: &Event) -> Option<String> {
    let kind = event.kind.as_ref();
    if matches!(
        kind,
        "step.ready" | "step.claimed" | "step.processed" | "step.deferred"
    ) {
        return None;
    }
    let step = event
        .step
        .as_ref()
        .map(|step| format!(" {step}"))
        .unwrap_or_default();
    let why = event.reason.as_deref();
    let why = why.or(event.error.as_ref().map(|fault| fault.message.as_str()));
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("{kind}{step}{why}"))
}

/// Returns everything that two runs of the same workflow must have in common. Texts for people are left out, because
/// they may be worded better in another version.
pub fn snapshot(seen: &Rehearsal) -> Value {
    let task = &seen.task;
    let definition = &*seen.names;
    let names = |steps: Vec<_>| -> Vec<String> {
        steps
            .into_iter()
            .map(|step| step_name(definition, step))
            .collect()
    };
    let steps: Map<_, _> = task
        .own_indexes()
        .map(|index| {
            let step = task.step(index);
            let mut shown = Map::new();
            shown.insert("state".to_owned(), step.status().as_str().into());
            let named = seen.named(index);
            if definition.step(named).is_call() {
                shown.insert("attempts".to_owned(), seen.attempts(named).into());
            }
            if let Some(group) = task.group(index) {
                let counts = task.steps.counts_of(&group.items);
                let states = StepStatus::ALL.iter();
                let states = states.map(|status| (status.as_str(), counts.count(*status)));
                let states = states.filter(|(_, count)| *count > 0);
                let states: Map<_, _> = states
                    .map(|(status, count)| (status.to_owned(), count.into()))
                    .collect();
                shown.insert("items".to_owned(), Value::Object(states));
            }
            if let Some(output) = step.output() {
                let output = serde_json::from_str(output.as_json()).unwrap_or(Value::Null);
                shown.insert("output".to_owned(), output);
            }
            if let StepState::Error(fault) = &step.state {
                shown.insert("error".to_owned(), fault_words(fault.kind, fault.status));
            }
            (step_name(definition, named), Value::Object(shown))
        })
        .collect();
    let standing = seen
        .standing()
        .into_iter()
        .map(|effect| effect.step)
        .collect();
    let output = task_output(task).map(|output| match output {
        Ok(output) => serde_json::from_str(output.as_json()).unwrap_or_default(),
        Err(_) => Value::Null,
    });
    let mut shown = json!({
        "state": task.status().as_str(),
        "ended_after": seen.ended_after.to_string(),
        "path": names(seen.path()),
        "undone": names(seen.undone()),
        "stands": names(standing),
        "steps": steps,
        "requests": seen.requests.iter().map(|request| request_value(seen, request)).collect::<Vec<_>>(),
        "history": seen.events.iter().map(|(at, event)| {
            let step = event.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
            let to = &event.to;
            format!("+{at} {}{step}: {to}", event.kind)
        }).collect::<Vec<_>>(),
    });
    if let Some(output) = output {
        shown["output"] = output;
    }
    shown
}

/// Returns the same for the runs of a schedule, each with its task.
pub fn schedule_snapshot(seen: &RehearsedSchedule) -> Value {
    let runs = seen.runs.iter().map(|seen| {
        let run = &seen.run;
        let mut shown = json!({
            "fire_time": run.fire_time.to_string(),
            "source": run.source.as_str(),
            "state": run.state.as_str(),
        });
        if run.count > 1 {
            shown["count"] = run.count.into();
        }
        if let Some(skipped) = run.skipped {
            shown["skipped"] = skipped.as_str().into();
        }
        if let Some(at) = run.started_at {
            shown["started_at"] = at.to_string().into();
        }
        if let Some(task) = &seen.task {
            shown["task"] = snapshot(task);
        }
        shown
    });
    json!({ "runs": runs.collect::<Vec<_>>() })
}

fn fault_words(kind: FaultKind, status: Option<u16>) -> Value {
    match status {
        Some(status) => format!("{} {status}", kind.as_str()).into(),
        None => kind.as_str().into(),
    }
}

fn request_value(seen: &Rehearsal, request: &SentRequest) -> Value {
    let mut shown = Map::new();
    let definition = &*seen.names;
    shown.insert(
        "step".to_owned(),
        request.name.in_words(definition).to_string().into(),
    );
    shown.insert("at".to_owned(), format!("+{}", request.at).into());
    shown.insert("to".to_owned(), request.to.as_str().into());
    shown.insert("method".to_owned(), request.method.into());
    shown.insert("path".to_owned(), request.path.as_str().into());
    if !request.headers.is_empty() {
        let headers = request.headers.iter();
        let headers: Map<_, _> = headers
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        shown.insert("headers".to_owned(), Value::Object(headers));
    }
    if let Some(body) = &request.body {
        let body = serde_json::from_str(body.as_json());
        shown.insert("body".to_owned(), body.unwrap_or(Value::Null));
    }
    shown.insert("response".to_owned(), request.response.as_str().into());
    Value::Object(shown)
}
