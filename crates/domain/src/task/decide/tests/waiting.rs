//! Tasks that have not begun: nothing of them begins whatever is asked, and each of them ends once it is freed.

use super::*;
use crate::{
    definition::TaskLimit,
    task::{
        ask::AskAnswer,
        child_record::{ChildEnd, ChildReport},
        open_reply::ReplyDigest,
    },
    values::{fields::Fields, ids::WorkerName},
};

/// The reason why a task has not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Limit,
    StartAt,
    /// Once it has started it waits for the limit of its workflow.
    StartAtThenLimit,
    PausedAndLimit,
    PausedAndStartAt,
    /// An operator has paused it, and resumed it before it was freed.
    ResumedAndLimit,
    ResumedAndStartAt,
    /// Nothing but an operator holds it, from before its first step on.
    Paused,
}

const WAYS: [Way; 8] = [
    Way::Limit,
    Way::StartAt,
    Way::StartAtThenLimit,
    Way::PausedAndLimit,
    Way::PausedAndStartAt,
    Way::ResumedAndLimit,
    Way::ResumedAndStartAt,
    Way::Paused,
];

/// The kinds of first steps. Each is followed by a call.
fn first_steps() -> Vec<(&'static str, Value)> {
    let ask = json!({ "title": "Refund?", "of": ["ops@x"], "approvals": 1 });
    vec![
        ("call", json!({ "agent": "x" })),
        ("worker", json!({ "agent": "pull" })),
        ("left out", json!({ "agent": "x", "when": "false" })),
        ("wait", json!({ "wait": { "for": "1h" } })),
        ("wait that is over", json!({ "wait": { "for": "0s" } })),
        (
            "wait left out",
            json!({ "wait": { "for": "1h" }, "when": "false" }),
        ),
        ("signal", json!({ "signal": { "within": "1h" } })),
        (
            "signal in time",
            json!({ "signal": { "within": "1h", "on_timeout": "skip" } }),
        ),
        ("ask", json!({ "signal": { "within": "1h", "ask": ask } })),
        (
            "list",
            json!({ "agent": "x", "for_each": [1, 2, 3], "max_parallel": 2 }),
        ),
        ("empty list", json!({ "agent": "x", "for_each": [] })),
        (
            "no list",
            json!({ "agent": "x", "for_each": "{{ input.total }}" }),
        ),
        (
            "list of waits",
            json!({ "wait": { "for": "0s" }, "for_each": [1, 2] }),
        ),
        (
            "repeat",
            json!({ "agent": "x", "repeat": { "until": "index >= 1", "at_most": 3, "every": "1s" } }),
        ),
        (
            "repeated wait",
            json!({ "wait": { "for": "0s" },
                                  "repeat": { "until": "index >= 1", "at_most": 3, "every": "0s" } }),
        ),
        ("child", json!({ "task": { "workflow": "ship" } })),
        (
            "list of children",
            json!({ "task": { "workflow": "ship" }, "for_each": [1, 2] }),
        ),
        (
            "condition in error",
            json!({ "agent": "x", "when": "input.missing > 1" }),
        ),
        (
            "undone by its condition",
            json!({ "agent": "x", "when": "input.missing > 1", "on_permanent": "undo" }),
        ),
    ]
}

fn steps(first: &Value, after: bool) -> Value {
    let mut first = first.clone();
    first["name"] = json!("first");
    let undo = json!({ "request": { "path": "/undo" } });
    let side = json!({ "name": "side", "after": [], "agent": "x", "undo": undo });
    let mut steps = vec![
        first,
        json!({ "name": "next", "after": ["first"], "agent": "x" }),
    ];
    steps.push(side);
    if after {
        steps.push(json!({ "name": "more", "after": ["next"], "agent": "x" }));
    }
    Value::Array(steps)
}

fn limited_definition(steps: &Value) -> Arc<Definition> {
    let limits = Payload::from_value(&json!({ "limits": [{ "by": "{{ task.key }}" }] }));
    let mut fields = Fields::of(limits.raw(), "").unwrap();
    let mut policies = Policies::default();
    policies.limits = TaskLimit::read_all(&mut fields, "limits").0;
    assert_eq!(policies.limits.len(), 1);
    let steps = Payload::from_value(steps);
    let parsed = parse_steps(&steps, "/steps", &policies, &Limits::default(), &Accepted);
    Arc::new(parsed.unwrap_or_else(|faults| panic!("{faults:?}")))
}

fn waiting(way: Way, first: &Value) -> Bench {
    let now = Timestamp::from_millis(1_000_000);
    let plain = Arc::into_inner(details(&steps(first, false), None)).unwrap();
    let has_limit = matches!(
        way,
        Way::Limit | Way::StartAtThenLimit | Way::PausedAndLimit | Way::ResumedAndLimit
    );
    let is_later = matches!(
        way,
        Way::StartAt
            | Way::StartAtThenLimit
            | Way::PausedAndStartAt
            | Way::ResumedAndStartAt
            | Way::Paused
    );
    let details = Arc::new(Details {
        workflow: Some(WorkflowRef {
            name: WorkflowName::new("order"),
            version: 1,
        }),
        definition: match has_limit {
            true => limited_definition(&steps(first, false)),
            false => plain.definition.clone(),
        },
        start_at: is_later.then_some(now + Span::from_secs(3600)),
        ..plain
    });
    let draft = match has_limit && !is_later {
        true => Draft::submit_keeping(details, true, MOST_OF_TASK, now),
        false => Draft::submit(details, now),
    };
    let mut bench = Bench {
        draft,
        now,
        by: Actor::operator("test"),
    };
    let is_held = matches!(
        way,
        Way::PausedAndLimit
            | Way::PausedAndStartAt
            | Way::ResumedAndLimit
            | Way::ResumedAndStartAt
            | Way::Paused
    );
    // Some end at once, by their condition.
    if is_held && !bench.draft.task.is_ended() {
        bench.apply(Command::Pause { reason: None }).unwrap();
    }
    if matches!(way, Way::ResumedAndLimit | Way::ResumedAndStartAt) && !bench.draft.task.is_ended()
    {
        bench.apply(Command::Resume { reason: None }).unwrap();
    }
    if way == Way::Paused && !bench.draft.task.is_ended() {
        let reason = None;
        bench.apply(Command::Start { reason }).unwrap();
        assert!(bench.draft.task.is_ended() || bench.draft.task.paused);
    }
    bench
}

const COMMANDS: [&str; 22] = [
    "pause",
    "resume",
    "start",
    "admit",
    "overdue",
    "skip",
    "skip side",
    "resolve",
    "retry all",
    "retry",
    "rerun",
    "skip failed",
    "resolve failed",
    "signal",
    "decide",
    "expire",
    "claim",
    "fetch",
    "child",
    "migrate",
    "undo",
    "cancel",
];

fn command(bench: &Bench, version: &Arc<VersionMove>, name: &str) -> Command {
    let (reason, output) = (None, None);
    let step = bench.step("first");
    let side = bench.step("side");
    let attempt = bench.record("first").attempt;
    let payload = Payload::from_value(&json!({ "by": "operator" }));
    let digest = ReplyDigest("d".to_owned());
    match name {
        "pause" => Command::Pause { reason },
        "resume" => Command::Resume { reason },
        "start" => Command::Start { reason },
        "admit" => Command::Admit,
        "overdue" => Command::Overdue,
        "skip" => Command::Skip {
            step,
            output,
            reason,
        },
        "skip side" => Command::Skip {
            step: side,
            output,
            reason,
        },
        "resolve" => Command::Resolve {
            step,
            output: payload,
            reason,
        },
        "retry all" => Command::Retry {
            step: None,
            body: None,
            reason,
        },
        "retry" => Command::Retry {
            step: Some(step),
            body: None,
            reason,
        },
        "rerun" => Command::RetryFrom { step, reason },
        "skip failed" => Command::SkipFailed {
            step: None,
            output,
            reason,
        },
        "resolve failed" => Command::ResolveFailed {
            step: crate::values::ids::StepName::new("first"),
            output: payload,
            reason,
        },
        "signal" => Command::Signal {
            step,
            payload,
            digest,
        },
        "decide" => Command::Decide {
            step,
            attempt,
            person: 0,
            answer: approval(),
        },
        "expire" => Command::Expire {
            step,
            attempt,
            cause: Expiry::CompleteBy,
        },
        "claim" => Command::Claim {
            step,
            by: Claimant::Instance(InstanceId::new("node-1")),
        },
        "fetch" => Command::Claim {
            step,
            by: Claimant::Worker(WorkerName::new("w-1")),
        },
        "child" => Command::ChildReport {
            step,
            attempt,
            report: ended(),
        },
        "migrate" => Command::Migrate {
            to: version.clone(),
            reason,
        },
        "undo" => Command::Undo { reason },
        "cancel" => Command::Cancel { reason },
        name => panic!("{name}"),
    }
}

fn approval() -> AskAnswer {
    AskAnswer {
        choice: "approve".to_owned(),
        comment: None,
        fields: BTreeMap::new(),
    }
}

fn ended() -> ChildReport {
    ChildReport::Ended {
        child: None,
        end: ChildEnd::Processed(Payload::null()),
    }
}

/// Nothing of a task has begun that was not free to begin before.
fn check(bench: &Bench, was_free: bool) -> Result<(), String> {
    let task = &bench.draft.task;
    let status = task.status();
    if task.is_ended() || task.undo.is_some() {
        return match task.waits {
            true => Err(format!("it is {status:?}, and waits")),
            false => Ok(()),
        };
    }
    let is_unbegun = matches!(
        status,
        TaskStatus::Pending | TaskStatus::Paused | TaskStatus::Error
    );
    if task.has_not_begun() && !is_unbegun {
        return Err(format!("it waits, and is {status:?}"));
    }
    if task.may_begin() || was_free {
        return Ok(());
    }
    let has_begun =
        |index: &StepIndex| task.step(*index).attempt.0 > 0 || task.due_at(*index).is_some();
    match task.indexes().find(has_begun) {
        Some(index) => Err(format!("{} has begun", task.definition(index).name)),
        None if !bench.draft.ready.is_empty() => Err("a step is offered".to_owned()),
        None => Ok(()),
    }
}

/// Does what others do until the task ends: time, an operator, the admission, services, callers, people and children.
fn go_on(bench: &mut Bench, mut was_free: bool) -> Result<(), String> {
    for _ in 0..60 {
        let task = &bench.draft.task;
        if task.is_ended() {
            return Ok(());
        }
        let reason = None;
        let command = if task.paused {
            Command::Resume { reason }
        } else if let Some(start_at) = task.start_at {
            bench.now = bench.now.max(start_at);
            Command::Overdue
        } else if task.error().is_some() {
            let (step, output) = (None, None);
            Command::SkipFailed {
                step,
                output,
                reason,
            }
        } else if task.waits {
            Command::Admit
        } else {
            work(bench)?;
            continue;
        };
        bench
            .apply(command)
            .map_err(|refusal| format!("refused: {refusal}"))?;
        was_free |= bench.draft.task.may_begin();
        check(bench, was_free)?;
    }
    Err("it does not end".to_owned())
}

fn work(bench: &mut Bench) -> Result<(), String> {
    let task = &bench.draft.task;
    let is_due = |index: &StepIndex| {
        task.due_at(*index).is_some_and(|due| due <= bench.now)
            || matches!(task.step(*index).state, StepState::Processing { .. })
    };
    let due: Vec<_> = task.indexes().filter(is_due).collect();
    if due.is_empty() {
        return Err("nothing goes on".to_owned());
    }
    for step in due {
        let task = &bench.draft.task;
        let attempt = task.step(step).attempt;
        let cause = Expiry::CompleteBy;
        let command = match &task.step(step).state {
            StepState::Pending { .. } => {
                let by = Claimant::Instance(InstanceId::new("node-1"));
                let _ = bench.apply(Command::Claim { step, by });
                let attempt = bench.draft.task.step(step).attempt;
                let outcome = success(json!({}));
                Command::Reply {
                    step,
                    attempt,
                    outcome,
                }
            }
            StepState::Processing { .. } if task.waits_for_child(step) => {
                let report = ended();
                Command::ChildReport {
                    step,
                    attempt,
                    report,
                }
            }
            StepState::Processing { .. } if task.step(step).ask.is_some() => {
                let (person, answer) = (0, approval());
                Command::Decide {
                    step,
                    attempt,
                    person,
                    answer,
                }
            }
            StepState::Processing { .. } => Command::Expire {
                step,
                attempt,
                cause,
            },
            _ => continue,
        };
        let _ = bench.apply(command);
    }
    bench.later(Span::from_secs(3600));
    Ok(())
}

/// Every command after each of some others, for every kind of first step and every way of waiting.
#[test]
fn whatever_is_asked_of_a_task_that_waits_nothing_begins_and_it_ends_once_it_is_freed() {
    const BEFORE: [&str; 6] = ["nothing", "pause", "resume", "skip", "signal", "migrate"];
    let mut broken = Vec::new();
    let mut count = 0;
    for way in WAYS {
        for (kind, first) in first_steps() {
            let base = waiting(way, &first);
            let version =
                Arc::new(base.version(&steps(&json!({ "agent": "x", "when": "1 == 1" }), true), 2));
            for before in BEFORE {
                for command in COMMANDS {
                    let mut bench = Bench {
                        draft: Draft::on(base.draft.task.clone()),
                        now: base.now,
                        by: base.by.clone(),
                    };
                    count += 1;
                    if let Err(why) = run(&mut bench, &version, [before, command]) {
                        broken.push(format!(
                            "{way:?}, {kind}: {before}, {command}: {why}; {:?}",
                            bench.events()
                        ));
                    }
                }
            }
        }
    }
    let shown = &broken[..broken.len().min(40)];
    assert!(broken.is_empty(), "{} of {count}: {shown:#?}", broken.len());
}

fn run(bench: &mut Bench, version: &Arc<VersionMove>, asked: [&str; 2]) -> Result<(), String> {
    let mut was_free = false;
    check(bench, was_free)?;
    for name in asked {
        if name != "nothing" {
            let command = command(bench, version, name);
            // Many are refused.
            let _ = bench.apply(command);
            was_free |= bench.draft.task.may_begin();
            check(bench, was_free)?;
        }
    }
    go_on(bench, was_free)?;
    changes_are_told(&bench.draft)
}
