//! Sentences about tasks: why a step does not run, and what each entry of the history means.

use super::record::{Blocked, Entry, Step};
use crate::parts::{counted, number};

/// The reason why a step does not run, and until when.
pub struct Why {
    pub words: String,
    /// The word before the time, such as `until`.
    pub until: Option<(&'static str, String)>,
    /// The agent that the reason is about.
    pub agent: Option<String>,
    /// The class and shape of a badge, with its word, where the reason is trouble.
    pub badge: Option<(&'static str, &'static str, &'static str)>,
}

/// Says why a step does not run. A reason of a later version is shown by its name.
pub fn why(blocked: &Blocked) -> Why {
    let agent = blocked.agent.as_deref().unwrap_or("its agent");
    let message = blocked.message.as_deref().unwrap_or_default();
    let ahead = match blocked.ahead {
        Some(ahead) if blocked.ahead_is_at_least => {
            format!(": {ahead} steps or more are before it")
        }
        Some(1) => String::from(": 1 step is before it"),
        Some(ahead) if ahead > 0 => format!(": {ahead} steps are before it"),
        _ => String::new(),
    };
    let mut until = "until";
    let mut badge = None;
    let words = match blocked.reason.as_str() {
        "steps" => {
            let more = blocked.more.filter(|more| *more > 0);
            let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
            format!("waits for {}{more}", blocked.steps.join(", "))
        }
        "start" => {
            until = "at";
            String::from("the task begins")
        }
        "time" => {
            until = "at";
            String::from("the next attempt begins")
        }
        "wait" => String::from("waits"),
        "signal" => String::from("waits for a signal"),
        "child" => match (&blocked.task, &blocked.state) {
            (Some(_), Some(state)) if state == "error" => {
                String::from("waits for its task, which is in error")
            }
            (Some(_), Some(state)) => format!("waits for its task, which is {state}"),
            _ => String::from("waits for its task"),
        },
        "items" => items(
            blocked.running.unwrap_or(0),
            blocked.waiting.unwrap_or(0),
            blocked.error.unwrap_or(0),
        ),
        "repeat" => {
            until = "at";
            format!(
                "the next iteration begins, after {}",
                blocked.iterations.unwrap_or(0)
            )
        }
        "max_parallel" => match blocked.max_parallel {
            Some(most) => {
                let items = counted(most, "item runs", "items run");
                format!("at most {items} at once")
            }
            None => String::from("waits for other items"),
        },
        "capacity" => format!("waits for a free slot of {agent}{ahead}"),
        "worker" => format!("waits for a worker of {agent} to fetch it{ahead}"),
        "open_replies" => format!("{agent} has as many open replies as it may have"),
        "rate_limit" => format!(
            "waits for the rate limit of {agent}, {}",
            blocked.rate.as_deref().unwrap_or_default()
        ),
        "key_limit" => format!(
            "waits for a limit of {agent} by {}",
            blocked.by.as_deref().unwrap_or("a key")
        ),
        "throttled" => {
            badge = Some(("paused", "clock", "throttled"));
            format!("{agent} asked for fewer calls: {message}")
        }
        "agent_paused" => {
            badge = Some(("paused", "paused", "agent paused"));
            match message {
                "" => format!("{agent} gets no calls"),
                _ => format!("{agent} gets no calls: {message}"),
            }
        }
        "breaker" => {
            badge = Some(("error", "open", "breaker open"));
            format!("{agent} gets no calls: {message}")
        }
        "unhealthy" => {
            badge = Some(("error", "open", "unhealthy"));
            format!("{agent} gets no calls: {message}")
        }
        "secret" => format!("a secret of {agent} cannot be read: {message}"),
        "held" => String::from("the instance is held"),
        "agent" => format!("agent {agent} is not registered"),
        "drop" => format!(
            "waits until its call is dropped by {}",
            blocked.instance.as_deref().unwrap_or("an instance")
        ),
        "task_limit" => String::from("waits for a limit of the workflow"),
        "paused" => String::from("the task is paused"),
        "operator" => String::from("waits for an operator"),
        other => other.replace('_', " "),
    };
    let until = blocked.until.clone().map(|time| (until, time));
    Why {
        words,
        until,
        agent: blocked.agent.clone(),
        badge,
    }
}

/// Says what the items of a step are at: they are what it waits for.
fn items(running: u64, waiting: u64, error: u64) -> String {
    let parts = [
        (running, "running"),
        (waiting, "waiting"),
        (error, "in error"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts
        .map(|(count, word)| format!("{} {word}", number(count)))
        .collect();
    match parts.is_empty() {
        true => String::from("waits for its items"),
        false => format!("waits for its items: {}", parts.join(", ")),
    }
}

/// An entry of the history as a sentence.
pub struct HistoryLine<'e> {
    pub entry: &'e Entry,
    /// The class of the line: `bad`, `good`, `hand` for what an operator did, or none.
    pub class: &'static str,
    pub shape: &'static str,
    /// The words that stand out; `rest` has the others.
    pub bold: String,
    pub rest: String,
}

/// Returns the line of an entry.
pub fn line<'e>(entry: &'e Entry, workflow: Option<(&str, u32)>) -> HistoryLine<'e> {
    let step = entry.step.as_deref().unwrap_or_default();
    let verb = entry.kind.rsplit('.').next().unwrap_or_default();
    let reason = entry.reason.as_deref();
    let because =
        |words: Option<&str>| words.map_or_else(String::new, |words| format!(": {words}"));
    let fault = entry.error.as_ref().map(|fault| match fault.words() {
        Some(words) => format!("{}, “{words}”", fault.short()),
        None => fault.short().to_owned(),
    });
    let attempt = entry.attempt.unwrap_or(0);
    let operator = entry.by.strip_prefix("operator:");
    let make = |class, shape, bold: String, rest: String| HistoryLine {
        entry,
        class,
        shape,
        bold,
        rest,
    };
    if let Some(operator) = operator {
        let what = match (entry.step.as_deref(), verb) {
            (_, "ready" | "claimed" | "processing") => None,
            (_, "pause_began") => Some(String::from("paused")),
            (Some(step), _) => Some(format!("{step} {}", verb.replace('_', " "))),
            (None, "accepted") => Some(String::from("accepted")),
            (None, _) => Some(verb.replace('_', " ")),
        };
        if let Some(what) = what {
            let said = reason.map_or_else(String::new, |reason| format!(": “{reason}”"));
            return make("hand", "hand", format!("{what} by {operator}"), said);
        }
    }
    match entry.kind.as_str() {
        "task.accepted" => {
            let version = workflow.map_or_else(String::new, |(name, version)| {
                format!(" with version {version} of {name}")
            });
            make(
                "",
                "dot",
                String::new(),
                format!("accepted{version}{}", because(reason)),
            )
        }
        "step.claimed" => make(
            "",
            "processing",
            String::new(),
            format!("{step}: attempt {attempt} began"),
        ),
        "step.processed" => {
            let attempts = if attempt > 1 {
                format!(" on attempt {attempt}")
            } else {
                String::new()
            };
            make(
                "good",
                "processed",
                String::new(),
                format!("{step} processed{attempts}{}", because(reason)),
            )
        }
        "step.retrying" => {
            let again = reason.map_or_else(
                || String::from("it is retried"),
                |reason| format!("it is {reason}"),
            );
            make(
                "",
                "clock",
                String::new(),
                format!("{step}: {}; {again}", fault.unwrap_or_default()),
            )
        }
        "step.error" => {
            let how = match entry.error.as_ref().map(|fault| fault.kind.as_str()) {
                Some("permanent") => " failed permanently",
                Some("exhausted") => " failed, and is not retried again",
                _ => " failed",
            };
            let unknown = if entry.outcome.as_deref() == Some("unknown") {
                "; its outcome is unknown"
            } else {
                ""
            };
            make(
                "bad",
                "error",
                format!("{step}{how}"),
                format!("{}{unknown}", because(fault.as_deref().or(reason))),
            )
        }
        "step.expired" => make(
            "bad",
            "clock",
            format!("{step} did not end in time"),
            because(fault.as_deref().or(reason)),
        ),
        "step.skipped" => make(
            "",
            "skipped",
            String::new(),
            format!("{step} skipped{}", because(reason)),
        ),
        "step.undone" => make(
            "good",
            "undone",
            String::new(),
            format!("{step} undone{}", because(reason)),
        ),
        "step.child" => make(
            "",
            "dot",
            String::new(),
            format!("{step}{}", because(reason)),
        ),
        "task.processed" => make(
            "good",
            "processed",
            String::from("the task is processed"),
            because(reason),
        ),
        "task.error" => make(
            "bad",
            "error",
            String::from("the task is in error"),
            String::from(" and waits for an operator"),
        ),
        "task.undoing" => make(
            "",
            "undone",
            String::from("the undo began"),
            because(reason),
        ),
        "task.undone" => make(
            "good",
            "undone",
            String::from("the task is undone"),
            because(reason),
        ),
        "task.cancelled" => make(
            "",
            "cancelled",
            String::from("the task is cancelled"),
            because(reason),
        ),
        "task.paused" => make(
            "",
            "paused",
            String::from("the task is paused"),
            because(reason),
        ),
        "task.migrated" => {
            let versions = entry.versions.as_ref();
            let versions = versions.map_or_else(String::new, |change| {
                format!(" from version {} to {}", change.from, change.to)
            });
            make("", "dot", format!("moved{versions}"), because(reason))
        }
        _ => {
            let words = verb.replace('_', " ");
            let subject = if step.is_empty() { "the task" } else { step };
            let class = if entry.error.is_some() { "bad" } else { "" };
            make(
                class,
                "dot",
                String::new(),
                format!("{subject}: {words}{}", because(fault.as_deref().or(reason))),
            )
        }
    }
}

/// Returns whether an entry only repeats what the next one says: the page leaves it out unless it shows all.
pub fn is_detail(entry: &Entry) -> bool {
    matches!(
        entry.kind.as_str(),
        "step.ready" | "task.processing" | "task.pending"
    )
}

/// Says what a step did, or what it waits for, in a few words. A step that is in order has none.
pub fn state_of(step: &Step) -> Option<String> {
    match step.state.as_str() {
        "error" => step.error.as_ref().map(|fault| match fault.words() {
            Some(words) => format!("{}: “{words}”", fault.short()),
            None => fault.short().to_owned(),
        }),
        "processing" => {
            let reply = step.awaited_reply.as_ref()?;
            let by = reply.worker.as_deref().map_or_else(
                || String::from("the service"),
                |worker| format!("worker {worker}"),
            );
            let progress = reply
                .progress
                .map_or_else(String::new, |part| format!(", {:.0} %", part * 100.0));
            let said = reply
                .message
                .as_deref()
                .map_or_else(String::new, |words| format!(": {words}"));
            Some(format!("{by} replies later{progress}{said}"))
        }
        _ => None,
    }
}
