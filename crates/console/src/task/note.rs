//! The first sentence of the page: the state of a task, why it is in it, and whether a person must act.

use jiff::Timestamp;

use super::{
    record::{Step, Task, between, millis, span},
    words,
};

pub struct Note {
    pub class: &'static str,
    pub bold: String,
    pub rest: String,
    /// The time of what happened, if `bold` says how long ago it was.
    pub since: Option<String>,
}

impl Note {
    /// Returns the sentence in bold: what precedes the time that has passed, that time as in `5 s ago`, and what follows.
    pub fn parts(&self, now: &Timestamp) -> (&str, &str, &str) {
        let since = self.since.as_deref().and_then(millis);
        let passed = since.map(|at| format!("{} ago", span(now.as_millisecond() - at)));
        let begin = passed.as_deref().and_then(|passed| self.bold.find(passed));
        match (begin, passed) {
            (Some(begin), Some(passed)) => {
                let (before, rest) = self.bold.split_at(begin);
                let (ago, after) = rest.split_at(passed.len());
                (before, ago, after)
            }
            _ => (&self.bold, "", ""),
        }
    }
}

/// Returns the sentence about a task.
pub fn note(task: &Task, now: i64) -> Note {
    let ago = |at: Option<&str>| {
        at.and_then(millis)
            .map_or_else(String::new, |at| format!(" {} ago", span(now - at)))
    };
    let runs: Vec<&str> = task
        .steps
        .iter()
        .filter(|step| matches!(step.state.as_str(), "processing" | "pending"))
        .map(|step| step.name.as_str())
        .collect();
    let took = || {
        between(Some(&task.created_at), task.ended_at.as_deref())
            .map_or_else(String::new, |took| format!(" in {}", span(took)))
    };
    match task.state.as_str() {
        "error" => error_note(task, now, &runs),
        "paused" => Note {
            class: "paused",
            bold: String::from("It is paused: no step begins until somebody resumes it."),
            rest: if runs.is_empty() {
                String::new()
            } else {
                format!(" {} would go on.", runs.join(", "))
            },
            since: None,
        },
        "undoing" => {
            let by = task.undo.as_ref().map_or_else(String::new, |undo| {
                let reason = undo
                    .reason
                    .as_deref()
                    .map_or_else(String::new, |reason| format!(", “{reason}”"));
                format!(
                    " It was requested{} by {}{reason}.",
                    ago(Some(&undo.at)),
                    undo.by
                )
            });
            Note {
                class: "undoing",
                bold: String::from(
                    "It is being undone: what took effect is taken back, the last first.",
                ),
                rest: by,
                since: None,
            }
        }
        "undone" => Note {
            class: "undoing",
            bold: format!("It was undone{}.", ago(task.ended_at.as_deref())),
            rest: task
                .undo
                .as_ref()
                .filter(|undo| !undo.passed_over.is_empty())
                .map_or_else(String::new, |undo| {
                    format!(
                        " The effects of {} remain: they have no undo.",
                        undo.passed_over.join(", ")
                    )
                }),
            since: task.ended_at.clone(),
        },
        "processed" => Note {
            class: "ok",
            bold: format!("It was processed{}.", took()),
            rest: String::from(" Nothing needs to be done."),
            since: None,
        },
        "cancelled" => Note {
            class: "",
            bold: format!("It was cancelled{}.", ago(task.ended_at.as_deref())),
            rest: String::from(" What it had done remains."),
            since: task.ended_at.clone(),
        },
        _ => running_note(task, now),
    }
}

fn error_note(task: &Task, now: i64, runs: &[&str]) -> Note {
    let Some(step) = task.failed_step() else {
        let why = task
            .error
            .as_ref()
            .map_or("it is in error", |fault| fault.message.as_str());
        return Note {
            class: "error",
            bold: format!("It stopped: {why}."),
            rest: String::new(),
            since: None,
        };
    };
    let at = task
        .error
        .as_ref()
        .map(|fault| fault.at.as_str())
        .and_then(millis);
    let ago = at.map_or_else(String::new, |at| format!(" {} ago", span(now - at)));
    // The error of a list counts its items; that of the task is the one of an item.
    let own = step.error.as_ref().filter(|_| step.items.is_none());
    let fault = own.or(task.error.as_ref());
    let who = step.agent.as_deref().unwrap_or("it");
    let said = fault.map_or_else(String::new, |fault| {
        let words = fault
            .words()
            .map_or_else(String::new, |words| format!(", “{words}”"));
        match (fault.kind.as_str(), fault.status) {
            // A response of a success may be one that cannot be used, such as one that is too long.
            ("permanent", Some(400..)) => {
                format!("{who} refused permanently with {}{words}", fault.short())
            }
            (_, Some(_)) => format!("{who} responded {}{words}", fault.short()),
            _ => fault.short().to_owned(),
        }
    });
    let bold = match &step.items {
        Some(items) => format!(
            "{} of {} items of {} are in error: {said}.",
            crate::parts::number(items.in_state("error")),
            crate::parts::number(items.count()),
            step.name
        ),
        None => format!("It stopped at {}{ago}: {said}.", step.name),
    };
    let others: Vec<_> = { task.steps.iter() }
        .filter(|other| other.state == "error" && other.name != step.name)
        .map(|other| other.name.as_str())
        .collect();
    let others = match others.as_slice() {
        [] => String::new(),
        [other] => format!(" {other} is in error, too."),
        others => format!(" {} other steps are in error, too: {}.", others.len(), {
            let named: Vec<_> = others.iter().take(5).copied().collect();
            named.join(", ") + if others.len() > 5 { ", …" } else { "" }
        }),
    };
    let unknown = fault.is_some_and(|fault| fault.outcome.is_some());
    let effect = match (&step.items, unknown) {
        (Some(items), _) => format!(
            " {} are processed.",
            crate::parts::number(items.in_state("processed"))
        ),
        (None, true) => format!(
            " {} may have taken effect: its outcome is unknown.",
            step.name
        ),
        (None, false) => format!(" {} did not take effect.", step.name),
    };
    let rest = match runs {
        _ if task.is_paused() => " An operator has paused the task, too: what is retried begins once it is resumed.".to_owned(),
        [] => " Nothing runs, and nothing happens until an operator retries, skips, resolves or undoes.".to_owned(),
        runs => format!(" {} still run; what follows {} waits for an operator.", runs.join(", "), step.name),
    };
    Note {
        class: "error",
        bold,
        rest: format!("{effect}{others}{rest}"),
        since: task.error.as_ref().map(|fault| fault.at.clone()),
    }
}

fn running_note(task: &Task, now: i64) -> Note {
    let class = "processing";
    if let Some(start) = task.start_at.as_deref().and_then(millis) {
        let bold = format!("It begins in {}.", span(start - now));
        return Note {
            class: "",
            bold,
            rest: String::from(" Nothing needs to be done."),
            since: None,
        };
    }
    let open = |state: &str| {
        task.steps
            .iter()
            .filter(|step| step.state == state)
            .collect::<Vec<_>>()
    };
    let calls = open("processing")
        .into_iter()
        .filter(|step| step.blocked_by.is_none());
    let (lost, calls): (Vec<_>, Vec<_>) =
        calls.partition(|step| step.lost.as_deref() == Some("undo"));
    if calls.is_empty() && !lost.is_empty() {
        return Note {
            class,
            bold: lost_words(&lost),
            rest: String::from(" Nothing needs to be done."),
            since: None,
        };
    }
    if let [first, ..] = calls.as_slice() {
        let names: Vec<&str> = calls
            .iter()
            .map(|step| step.name.as_str())
            .take(5)
            .collect();
        let since = first
            .started_at
            .as_deref()
            .and_then(millis)
            .map_or_else(String::new, |at| format!(", for {}", span(now - at)));
        let is_cancelled = |step: &&&Step| {
            let fault = step.last_fault.as_ref();
            fault.is_some_and(|fault| fault.cancelled)
        };
        if let Some(cancelled) = calls.iter().find(is_cancelled) {
            return Note {
                class,
                bold: match &cancelled.last_fault {
                    Some(why) => {
                        let why = why.message.trim_end_matches('.');
                        format!("{} is being cancelled: {why}.", cancelled.name)
                    }
                    None => format!("{} is being cancelled.", cancelled.name),
                },
                rest: String::from(
                    " It ends once its call is known to have ended, or its service was asked to cancel the work; cancel it again if the service does not respond.",
                ),
                since: None,
            };
        }
        let verb = if names.len() == 1 { "runs" } else { "run" };
        return Note {
            class,
            bold: format!("{} {verb}{since}.", names.join(", ")),
            rest: match lost.is_empty() {
                true => String::from(" Nothing needs to be done."),
                false => format!(" {} Nothing needs to be done.", lost_words(&lost)),
            },
            since: None,
        };
    }
    let blocked = task.steps.iter().find_map(|step| {
        let blocked = step
            .blocked_by
            .as_ref()
            .filter(|blocked| blocked.reason != "steps")?;
        Some((step, words::why(blocked)))
    });
    let Some((step, why)) = blocked else {
        return Note {
            class,
            bold: String::from("It is under way."),
            rest: String::new(),
            since: None,
        };
    };
    let fault = step
        .last_fault
        .as_ref()
        .filter(|_| step.state == "pending")
        .map_or_else(String::new, |fault| {
            let words = fault
                .words()
                .map_or_else(String::new, |words| format!(", “{words}”"));
            let agent = step.agent.as_deref().unwrap_or("it");
            let attempt = step.attempt;
            match fault.status {
                Some(_) => {
                    let said = fault.short();
                    format!("{agent} responded {said}{words} on attempt {attempt}; ")
                }
                None => format!("attempt {attempt} failed, {}; ", fault.short()),
            }
        });
    let until = why.until.as_ref().and_then(|(word, at)| {
        let left = millis(at)? - now;
        Some(if left > 0 {
            format!(" in {}", span(left)).replace(
                " in ",
                if *word == "until" {
                    ", for another "
                } else {
                    " in "
                },
            )
        } else {
            String::from(" now")
        })
    });
    let reason = step
        .blocked_by
        .as_ref()
        .map(|blocked| blocked.reason.as_str());
    let is_in_error = { step.blocked_by.as_ref() }
        .is_some_and(|blocked| blocked.state.as_deref() == Some("error"));
    let needs = match reason {
        _ if step.ask.is_some() => " A person must decide.",
        Some("agent") => " Register the agent, or cancel the task.",
        Some("secret") => " Correct the secret: it does not go on before.",
        Some("held") => " Release the instance: it does not go on before.",
        Some("agent_paused") if why.until.is_none() => {
            " Resume the agent: it does not go on before."
        }
        Some("breaker") if why.until.is_none() => {
            " Reset the breaker of the agent: it does not go on before."
        }
        Some("operator") => " An operator must act.",
        Some("child") if is_in_error => {
            " That task needs an operator: the step leads to it. This one goes on when it does."
        }
        Some("signal") => " It goes on once its signal comes, and not by itself.",
        _ => " Nothing needs to be done for it: it goes on by itself.",
    };
    Note {
        class,
        bold: format!(
            "It waits at {}{}{}.",
            step.name,
            waits_for(&fault, &why.words),
            until.unwrap_or_default()
        ),
        rest: needs.to_owned(),
        since: None,
    }
}

/// Returns the sentence about steps that run although they have lost, until what they did is undone.
fn lost_words(lost: &[&Step]) -> String {
    let names: Vec<_> = lost.iter().take(5).map(|step| &*step.name).collect();
    match names.as_slice() {
        [name] => format!("{name} has lost: its end is awaited, and what it did is undone."),
        names => format!(
            "{} have lost: their ends are awaited, and what they did is undone.",
            names.join(", ")
        ),
    }
}

/// Returns what the step waits for, after its name: the verb is there already.
fn waits_for(fault: &str, words: &str) -> String {
    match words.strip_prefix("waits") {
        Some("") if fault.is_empty() => String::new(),
        Some(what) if fault.is_empty() && what.starts_with(' ') => what.to_owned(),
        _ => format!(": {fault}{words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_is_said_once() {
        assert_eq!(waits_for("", "waits"), "");
        assert_eq!(waits_for("", "waits for a signal"), " for a signal");
        assert_eq!(
            waits_for("", "the agent is paused"),
            ": the agent is paused"
        );
        assert_eq!(
            waits_for("it broke; ", "waits for a slot"),
            ": it broke; waits for a slot"
        );
    }
}
