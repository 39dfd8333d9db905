//! The properties that must hold for any commands, in any order.

use std::{collections::HashMap, time::Duration};

use proptest::{bool::weighted, collection::vec, prelude::*};

use super::*;
use crate::definition::RaceRest;
use crate::task::bulk::BulkAction;
use crate::task::expansion::ItemGroup;
use crate::task::open_reply::{Progress, ReplyDigest};
use crate::task::properties::cases;
use crate::task::retry_budget::RetryWait;
use crate::task::step_list::StepCounts;
use crate::values::fault::Effect;
use crate::values::ids::WorkerName;

/// A random step: which of the earlier ones it follows, and its policies.
#[derive(Clone, Debug)]
struct Shape {
    after: Vec<bool>,
    skip: bool,
    extend: bool,
    max_failures: u32,
    when: u8,
    /// Instead of a call.
    wait: bool,
    /// It waits for a signal.
    signal: bool,
    /// The step can be undone, is undone on failure, drops its call, is a pivot, has a probe.
    undo: bool,
    give_up: bool,
    drop: bool,
    pivot: bool,
    probe: bool,
    /// The step is run for each item of a list. The length of the list, the number that run at once, and the policy for
    /// an item in error.
    items: Option<(u8, u8, u8)>,
    /// The step is repeated. The most iterations, the condition that ends them, the seconds between them, and the
    /// policy if the condition is never true.
    repeat: Option<(u8, u8, u8, u8)>,
    /// The step needs only so many of those that it follows, and what becomes of the others.
    race: Option<(usize, usize)>,
    /// The step names values, or ends the task as processed, undone or in error.
    ends: Option<u8>,
    /// Two steps run when all others have ended, or a block does after the first step. Only that of the first step counts.
    finally: Option<u8>,
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let shape = (
        vec(any::<bool>(), 6),
        any::<bool>(),
        any::<bool>(),
        0..3u32,
        0..4u8,
        (weighted(0.2), any::<bool>()),
        (
            weighted(0.7),
            weighted(0.4),
            any::<bool>(),
            weighted(0.1),
            weighted(0.4),
        ),
        proptest::option::weighted(0.35, (0..5u8, 1..4u8, 0..4u8)),
        proptest::option::weighted(0.4, (1..4u8, 0..5u8, 0..2u8, 0..4u8)),
        proptest::option::weighted(0.4, (1..3usize, 0..3usize)),
        proptest::option::weighted(0.1, 0..4u8),
        proptest::option::weighted(0.3, 0..4u8),
    )
        .prop_map(
            |(
                after,
                skip,
                extend,
                max_failures,
                when,
                (wait, signal),
                undo,
                items,
                repeat,
                race,
                ends,
                finally,
            )| {
                let (undo, give_up, drop, pivot, probe) = undo;
                let is_end = matches!(ends, Some(1..));
                Shape {
                    after,
                    skip,
                    extend,
                    max_failures,
                    when,
                    wait,
                    signal,
                    undo: undo && !pivot && !wait && ends.is_none(),
                    give_up,
                    drop,
                    pivot: pivot && !wait && ends.is_none(),
                    probe,
                    items: items.filter(|_| !is_end),
                    repeat: repeat.filter(|_| items.is_none() && !is_end),
                    race,
                    ends,
                    finally,
                }
            },
        );
    vec(shape, 1..7)
}

fn steps(shapes: &[Shape]) -> Value {
    let names: Vec<_> = (0..shapes.len()).map(|at| format!("s{at}")).collect();
    named(shapes, &names)
}

/// Another version: some steps are others, one may be gone, and one may have come.
fn other_version(shapes: &[Shape], others: &[Shape], change: &Change) -> Value {
    let mut names: Vec<_> = (0..shapes.len()).map(|at| format!("s{at}")).collect();
    let mut changed = shapes.to_vec();
    for (at, other) in others.iter().enumerate() {
        if change.replaced[at] && at < changed.len() {
            changed[at] = other.clone();
        }
    }
    if let Some(gone) = change.gone {
        let gone = gone % names.len();
        if names.len() > 1 {
            names.remove(gone);
            changed.remove(gone);
        }
    }
    if let Some(at) = change.added {
        let at = at % (names.len() + 1);
        names.insert(at, "new".to_owned());
        changed.insert(at, others[0].clone());
    }
    named(&changed, &names)
}

#[derive(Clone, Debug)]
struct Change {
    replaced: Vec<bool>,
    gone: Option<usize>,
    added: Option<usize>,
}

fn changes() -> impl Strategy<Value = Change> {
    let at = || proptest::option::of(0..7usize);
    (vec(weighted(0.2), 7), at(), at()).prop_map(|(replaced, gone, added)| Change {
        replaced,
        gone,
        added,
    })
}

fn named(shapes: &[Shape], names: &[String]) -> Value {
    let steps = shapes.iter().enumerate().map(|(position, shape)| {
        let after: Vec<_> = (0..position)
            .filter(|earlier| shape.after[*earlier])
            .map(|earlier| names[earlier].clone())
            .collect();
        let mut step = json!({
            "name": names[position],
            "agent": "x",
            "after": after,
            "max_failures": shape.max_failures,
            "on_undo": if shape.drop { "drop" } else { "wait" },
            "pivot": shape.pivot,
        });
        let behind_pivot = shapes[..position].iter().any(|earlier| earlier.pivot);
        let policy = match (shape.give_up && !behind_pivot, shape.skip) {
            (true, _) => "undo",
            (false, true) => "skip",
            (false, false) => "error",
        };
        step["on_permanent"] = json!(policy);
        step["on_exhausted"] = match shape.extend {
            true => json!({ "extend": "1m", "times": 1, "then": policy }),
            false => json!(policy),
        };
        if shape.undo {
            step["undo"] =
                json!({ "request": { "path": "/undo" }, "max_failures": shape.max_failures });
        }
        if shape.probe {
            step["probe"] = json!({ "request": { "path": "/" } });
        }
        if let Some(end) = shape.ends {
            let step = step.as_object_mut().unwrap();
            step.retain(|field, _| ["name", "after", "on_permanent"].contains(&field.as_str()));
            match end {
                1 => step.insert("stop".to_owned(), json!({ "state": "processed" })),
                2 if !behind_pivot => step.insert("stop".to_owned(), json!({ "state": "undone" })),
                3 => step.insert("stop".to_owned(), json!({ "state": "error" })),
                _ => step.insert("set".to_owned(), json!({ "total": "{{ input.total }}" })),
            };
        } else if shape.wait {
            let step = step.as_object_mut().unwrap();
            step.retain(|field, _| ["name", "after", "on_permanent"].contains(&field.as_str()));
            let span = match shape.when {
                3 => "{{ input.missing }}",
                _ => "10s",
            };
            match shape.signal {
                false => step.insert("wait".to_owned(), json!({ "for": span })),
                true => {
                    let signal = json!({ "within": "10s", "on_timeout": policy });
                    step.insert("signal".to_owned(), signal)
                }
            };
        }
        if let Some((count, at_once, policy)) = shape.items {
            step["for_each"] = match (shape.when, count) {
                (1, 4) => json!("{{ input.total }}"),
                _ => json!((0..count).collect::<Vec<_>>()),
            };
            step["max_parallel"] = json!(at_once);
            if let Some((enough, _)) = shape.race {
                step["enough"] = json!(enough);
            }
            match policy {
                1 => step["on_item_error"] = json!("skip"),
                2 => step["on_item_error"] = json!("error"),
                3 if !behind_pivot => step["on_item_error"] = json!("undo"),
                _ => {}
            }
        }
        if let Some((at_most, until, every, policy)) = shape.repeat {
            const UNTIL: [&str; 5] = [
                "index > 99",
                "index >= 1",
                "output.missing",
                "1 == 1",
                "previous is not none",
            ];
            let until = UNTIL[usize::from(until)];
            step["repeat"] =
                json!({ "until": until, "at_most": at_most, "every": format!("{every}s") });
            match policy {
                1 => step["repeat"]["on_exhausted"] = json!("skip"),
                2 => step["repeat"]["on_exhausted"] = json!("error"),
                3 if !behind_pivot => step["repeat"]["on_exhausted"] = json!("undo"),
                _ => {}
            }
        }
        let is_plain = shape.items.is_none() && shape.repeat.is_none() && shape.ends.is_none();
        if position > 0 && shape.skip && shape.extend && is_plain && !shape.pivot {
            step["while"] = json!(format!("steps['{}'].state != 'processed'", names[0]));
        }
        match shape.when {
            3 if shape.wait || shape.ends.is_some() => {}
            1 => step["when"] = json!("input.total > 100"),
            2 => step["when"] = json!("input.missing > 1"),
            3 => step["request"] = json!({ "path": "/{{ input.missing }}" }),
            _ => {}
        }
        step
    });
    let mut steps: Vec<Value> = steps.collect();
    for (at, shape) in shapes.iter().enumerate() {
        let Some((any, rest)) = shape.race else {
            continue;
        };
        let all = steps[at]["after"].take();
        let rest = ["cancel", "undo", "let"][rest];
        steps[at]["after"] = json!({ "any": any, "of": all, "rest": rest });
        // Some of those that compete cannot.
        if !is_definition(&steps) {
            steps[at]["after"] = steps[at]["after"]["of"].take();
        }
    }
    let finally = shapes.first().and_then(|shape| shape.finally);
    if finally == Some(3) {
        // Some steps of races cannot have others behind them.
        let more = in_block(steps.clone());
        if is_definition(&more) {
            steps = more;
        }
    }
    let Some(finally @ ..3) = finally else {
        return Value::Array(steps);
    };
    let policy = ["error", "skip"][usize::from(shapes[0].skip)];
    let state = "{{ task.state }}";
    let call = json!({
        "name": "f0", "agent": "x", "max_failures": shapes[0].max_failures, "on_permanent": policy,
        "request": { "path": format!("/{state}") }, "probe": { "request": { "path": "/" } },
    });
    let other = match finally {
        0 => json!({ "name": "f1", "set": { "state": state } }),
        1 => json!({ "name": "f1", "wait": { "for": "10s" }, "when": "task.state == 'undone'" }),
        _ => json!({ "name": "f1", "agent": "x", "after": [], "on_undo": "wait" }),
    };
    json!({ "steps": steps, "finally": [call, other] })
}

/// The same steps, and behind them two that run in a block, or are skipped with it.
fn in_block(mut steps: Vec<Value>) -> Vec<Value> {
    let first = steps[0]["name"].clone();
    let condition = format!("steps['{}'].state == 'processed'", first.as_str().unwrap());
    steps.push(json!({ "name": "b", "after": [first], "when": condition, "on_permanent": "skip", "switch": [
        { "when": "input.total > 100", "steps": [{ "name": "c", "wait": { "for": "1s" } }] },
        { "else": [
            { "name": "d", "agent": "x", "after": [], "undo": { "request": { "path": "/undo" } } },
            { "name": "e", "agent": "x", "after": [] },
        ] },
    ] }));
    steps
}

fn is_definition(steps: &[Value]) -> bool {
    let (policies, limits) = (Policies::default(), Limits::default());
    let steps = Payload::from_value(&json!(steps));
    parse_steps(&steps, "/steps", &policies, &limits, &Accepted).is_ok()
}

/// A random command; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Ask {
    Claim(usize),
    Fetch(usize),
    TakeBack(usize, u32),
    Succeed(usize, u32),
    Fail(usize, u32),
    Break(usize, u32),
    Probed(usize, u16),
    Defer(usize, u32, u64),
    Promise(usize, u32),
    LaterReply(usize, u32, bool),
    Heartbeat(usize, u32),
    Release(usize, u32),
    Expire(usize, u32),
    Lose(usize, u32),
    Overdue,
    Signal(usize, bool),
    Retry(Option<usize>),
    Again(usize),
    SkipFailed,
    Skip(usize),
    Resolve(usize),
    CancelStep(usize),
    Cancel,
    Undo,
    Pause,
    Resume,
    Admit,
    Start,
    /// To the other version, or back.
    Migrate,
    Wait(u64),
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    vec(ask(), 0..90)
}

/// The commands to a task that has not begun: pauses, resumptions, admissions, starts, and signals that come early.
fn early_asks() -> impl Strategy<Value = Vec<Ask>> {
    let early = prop_oneof![
        3 => Just(Ask::Pause),
        3 => Just(Ask::Resume),
        2 => Just(Ask::Admit),
        2 => Just(Ask::Start),
        1 => Just(Ask::Overdue),
        2 => (0..12usize).prop_map(Ask::Skip),
        1 => (0..12usize).prop_map(Ask::Resolve),
        3 => (0..12usize, any::<bool>()).prop_map(|(step, first)| Ask::Signal(step, first)),
        1 => (1..100_000u64).prop_map(Ask::Wait),
    ];
    let early = vec(early, 0..8);
    (early, vec(ask(), 0..40)).prop_map(|(mut early, later)| {
        early.extend(later);
        early
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    // Up to six steps, and what undoes them.
    let step = 0..12usize;
    // Mostly the live attempt; sometimes one before it.
    let behind = prop_oneof![4 => Just(0u32), 1 => 1..3u32];
    prop_oneof![
        8 => step.clone().prop_map(Ask::Claim),
        3 => step.clone().prop_map(Ask::Fetch),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::TakeBack(s, b)),
        6 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Succeed(s, b)),
        3 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Fail(s, b)),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Break(s, b)),
        3 => (step.clone(), any::<bool>())
            .prop_map(|(s, done)| Ask::Probed(s, if done { 200 } else { 404 })),
        3 => (step.clone(), behind.clone(), prop_oneof![0..30u64, Just(3600)])
            .prop_map(|(s, b, wait)| Ask::Defer(s, b, wait)),
        3 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Promise(s, b)),
        3 => (step.clone(), behind.clone(), any::<bool>())
            .prop_map(|(s, b, succeeds)| Ask::LaterReply(s, b, succeeds)),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Heartbeat(s, b)),
        2 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Release(s, b)),
        4 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Expire(s, b)),
        2 => (step.clone(), behind).prop_map(|(s, b)| Ask::Lose(s, b)),
        1 => Just(Ask::Overdue),
        3 => (step.clone(), any::<bool>()).prop_map(|(s, b)| Ask::Signal(s, b)),
        3 => proptest::option::of(step.clone()).prop_map(Ask::Retry),
        2 => step.clone().prop_map(Ask::Again),
        1 => Just(Ask::SkipFailed),
        1 => step.clone().prop_map(Ask::Skip),
        1 => step.clone().prop_map(Ask::Resolve),
        2 => step.prop_map(Ask::CancelStep),
        1 => Just(Ask::Cancel),
        2 => Just(Ask::Undo),
        1 => Just(Ask::Pause),
        2 => Just(Ask::Resume),
        3 => Just(Ask::Migrate),
        4 => (1..100_000u64).prop_map(Ask::Wait),
    ]
}

impl Ask {
    fn command(&self, task: &Task, now: Timestamp) -> Option<Command> {
        // Mostly one that the command is meant for, or next to nothing would ever get far.
        let choose = |step: &usize, meant: &dyn Fn(StepIndex) -> bool| {
            let meant: Vec<_> = task.indexes().filter(|index| meant(*index)).collect();
            match meant.get(step % (meant.len() + 1)) {
                Some(index) => *index,
                None => StepIndex((step % task.indexes().count()) as u16),
            }
        };
        let due = |step: &usize| choose(step, &|index| task.due_at(index).is_some());
        let at = |step: &usize| {
            choose(step, &|index| {
                matches!(task.step(index).state, StepState::Processing { .. })
            })
        };
        let attempt = |step: StepIndex, behind: &u32| {
            Attempt(task.step(step).attempt.0.saturating_sub(*behind))
        };
        let fault = || Fault::transient("503", now);
        Some(match self {
            Ask::Claim(step) => Command::Claim {
                step: due(step),
                by: Claimant::Instance(InstanceId::new("node-1")),
            },
            Ask::Fetch(step) => Command::Claim {
                step: due(step),
                by: Claimant::Worker(WorkerName::new("w-1")),
            },
            Ask::TakeBack(step, behind) => Command::Release {
                step: at(step),
                attempt: attempt(at(step), behind),
                why: Release::Undelivered,
            },
            Ask::Succeed(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: success(json!({})),
            },
            Ask::Fail(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: refusal(400),
            },
            Ask::Break(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Crashed(fault()),
            },
            Ask::Probed(step, status) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), &0),
                outcome: CallOutcome::Probed {
                    status: *status,
                    body: Payload::null(),
                },
            },
            Ask::Defer(step, behind, wait) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Transient {
                    fault: fault(),
                    wait: RetryWait {
                        backoff: Duration::from_secs(*wait),
                        parked: Duration::from_secs(*wait / 2),
                    },
                },
            },
            Ask::Promise(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Deferred,
            },
            Ask::LaterReply(step, behind, succeeds) => Command::LaterReply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: match succeeds {
                    true => success(json!({})),
                    false => refusal(400),
                },
                digest: ReplyDigest(succeeds.to_string()),
            },
            Ask::Heartbeat(step, behind) => Command::Heartbeat {
                step: at(step),
                attempt: attempt(at(step), behind),
                progress: Progress {
                    fraction: Some(0.5),
                    ..Progress::default()
                },
            },
            Ask::Release(step, behind) => Command::Release {
                step: at(step),
                attempt: attempt(at(step), behind),
                why: match task.is_to_be_dropped(at(step)) {
                    true => Release::Dropped,
                    false => Release::Restart,
                },
            },
            Ask::Expire(step, behind) => Command::Expire {
                step: at(step),
                attempt: attempt(at(step), behind),
                cause: Expiry::CompleteBy,
            },
            Ask::Lose(step, behind) => Command::Expire {
                step: at(step),
                attempt: attempt(at(step), behind),
                cause: Expiry::InstanceLost,
            },
            Ask::Overdue => Command::Overdue,
            Ask::Signal(step, first) => Command::Signal {
                step: at(step),
                payload: Payload::null(),
                digest: ReplyDigest(first.to_string()),
            },
            Ask::Retry(step) => Command::Retry {
                step: step.as_ref().map(due),
                body: None,
                reason: None,
            },
            Ask::Again(step) => Command::RetryFrom {
                step: StepIndex((step % task.steps.len()) as u16),
                reason: None,
            },
            Ask::SkipFailed => Command::SkipFailed {
                step: None,
                output: None,
                reason: None,
            },
            Ask::Skip(step) => Command::Skip {
                step: due(step),
                output: None,
                reason: None,
            },
            Ask::Resolve(step) => Command::Resolve {
                step: due(step),
                output: Payload::null(),
                reason: None,
            },
            Ask::CancelStep(step) => Command::CancelStep {
                step: choose(step, &|index| {
                    task.step(index).status() == StepStatus::Processing
                }),
                reason: None,
            },
            Ask::Cancel => Command::Cancel { reason: None },
            Ask::Undo => Command::Undo { reason: None },
            Ask::Pause => Command::Pause { reason: None },
            Ask::Resume => Command::Resume { reason: None },
            Ask::Admit => Command::Admit,
            Ask::Start => Command::Start { reason: None },
            Ask::Migrate | Ask::Wait(_) => return None,
        })
    }
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn whatever_is_asked_the_invariants_hold(shapes in shapes(), others in shapes(), change in changes(), asks in asks(), limited: bool) {
        let limit = limited.then(|| Span::from_secs(200));
        let bench = Bench::of_workflow(&steps(&shapes), limit);
        let versions = [steps(&shapes), other_version(&shapes, &others, &change)];
        ask_all(bench, &versions, asks)?;
    }

    #[test]
    fn whatever_is_asked_of_a_task_that_has_not_begun_the_invariants_hold(
        shapes in shapes(), others in shapes(), change in changes(), asks in early_asks(), limited: bool, is_later: bool
    ) {
        let limit = limited.then(|| Span::from_secs(200));
        let bench = Bench::of_workflow(&steps(&shapes), limit);
        let versions = [steps(&shapes), other_version(&shapes, &others, &change)];
        let draft = match is_later {
            true => {
                let details = &bench.draft.task.details;
                let start_at = Some(bench.now + Span::from_secs(60));
                Draft::submit(Arc::new(Details { start_at, ..copy(details) }), bench.now)
            }
            false => {
 let details = bench.draft.task.details.clone();
 Draft::submit_keeping(details, true, MOST_OF_TASK, bench.now)
 },
        };
        ask_all(Bench { draft, ..bench }, &versions, asks)?;
    }
}

fn copy(details: &Details) -> Details {
    Details {
        id: details.id,
        key: details.key.clone(),
        workflow: details.workflow.clone(),
        definition: details.definition.clone(),
        input: details.input.clone(),
        labels: details.labels.clone(),
        priority: details.priority,
        complete_within: details.complete_within,
        start_at: details.start_at,
        key_prefix: details.key_prefix.clone(),
        trace: None,
        reply_to: None,
        parent: None,
    }
}

fn ask_all(mut bench: Bench, versions: &[Value; 2], asks: Vec<Ask>) -> Result<(), TestCaseError> {
    check(&bench.draft.task)?;
    for ask in asks {
        bench.draft.keep_claim();
        let before = bench.draft.task.clone();
        let told = bench.draft.events.len();
        let command = match &ask {
            Ask::Migrate => Some(bench.other_version(versions)),
            ask => ask.command(&before, bench.now),
        };
        let Some(command) = command else {
            if let Ask::Wait(millis) = ask {
                bench.later(Span::from_millis(millis));
            }
            continue;
        };
        bulk_states(&bench)?;
        let outcome = bench.apply(command.clone());
        let after = &bench.draft.task;
        if outcome.is_err() {
            prop_assert_eq!(&before, after, "a refused command changed something");
            prop_assert_eq!(told, bench.draft.events.len());
            continue;
        }
        if let Ok(CommandOutput::Unchanged) = outcome {
            prop_assert_eq!(&before, after, "a repeated command changed something");
            continue;
        }
        if let Ok(CommandOutput::Late(_)) = outcome {
            let rest = without_reply_logs(after, &before);
            prop_assert_eq!(before, rest, "a late reply changed something");
            continue;
        }
        let is_undone =
            matches!(command, Command::Undo { .. }) && before.status() == TaskStatus::Processed;
        prop_assert!(
            is_undone || !before.is_ended(),
            "an ended task accepted {:?}",
            command
        );
        if let Command::Heartbeat { .. } = command {
            check(after)?;
            continue;
        }
        let is_left_alone = matches!(command, Command::Overdue) && before.paused;
        prop_assert!(
            told < bench.draft.events.len() || is_left_alone,
            "no history of {:?}",
            command
        );
        held(&before, after, &command)?;
        check(after)?;
        compare(&before, after, &command)?;
        calls(&before, after, &command)?;
    }
    changes_are_told(&bench.draft).map_err(TestCaseError::fail)?;
    replay(&bench.draft)
}

/// Nothing but an operator has a paused task begin, or be undone.
fn held(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let is_asked = matches!(
        command,
        Command::Resume { .. }
            | Command::Start { .. }
            | Command::Undo { .. }
            | Command::Cancel { .. }
    );
    if before.paused && !is_asked {
        prop_assert!(after.paused, "{command:?} ended its pause");
        // A signal by an operator, and what skips its steps, may end it before it begins.
        let started = before.start_at.is_some() && after.start_at.is_none();
        prop_assert!(!started, "{command:?} started it");
        let is_undone = after.undo.is_some() && before.undo.is_none();
        prop_assert!(!is_undone, "{command:?} began its undo");
    }
    Ok(())
}

/// A task with the reply logs of another: all else must be equal.
fn without_reply_logs(task: &Task, with: &Task) -> Task {
    let mut task = task.clone();
    task.untouched.clone_from(&with.untouched);
    task.own_claim = with.own_claim;
    for index in task.indexes() {
        task.step_mut(index).reply_log = with.step(index).reply_log.clone();
    }
    task
}

/// A bulk command can search all states in which a task accepts it.
fn bulk_states(bench: &Bench) -> Result<(), TestCaseError> {
    let reason = None;
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    let skip = Command::SkipFailed {
        step: None,
        output: None,
        reason: None,
    };
    for (action, command) in [
        (BulkAction::Retry, retry),
        (BulkAction::Skip, skip),
        (BulkAction::Cancel, Command::Cancel { reason: None }),
        (BulkAction::Undo, Command::Undo { reason }),
    ] {
        let state = bench.draft.task.status();
        let mut copy = Draft::on(bench.draft.task.clone());
        let is_accepted = copy.apply(command, &bench.by, bench.now).is_ok();
        let is_searched = action.named_states().contains(&state);
        // Bulk commands do not look for failed steps in paused tasks.
        let mut waiting = bench.draft.task.faults_that_undo_on_resume();
        let undo_waits = waiting.next().is_some();
        prop_assert!(
            is_searched || !is_accepted || undo_waits,
            "{action:?} of a task that is {state:?}"
        );
    }
    Ok(())
}

/// The properties of every task at every moment.
fn check(task: &Task) -> Result<(), TestCaseError> {
    prop_assert!(task.untouched.is_sorted_by(|a, b| a < b));
    for index in &task.untouched {
        let is_own = index.at() < task.details.definition.steps.len();
        prop_assert!(is_own, "{index:?} is no step of the definition");
        prop_assert_eq!(task.step(*index), &Step::new(), "{:?} was touched", index);
    }
    if let Some(index) = task.own_claim {
        prop_assert!(
            task.is_bare_claim(index),
            "more happened in {index:?} than its claim"
        );
    }
    for index in task.forward() {
        if task.definition(index).item.is_some() {
            continue;
        }
        let step = task.step(index);
        let started = !matches!(step.state, StepState::Waiting | StepState::Cancelled { .. });
        let all_done = task.is_ready_to_begin(index);
        let race = task.definition(index).race.as_ref();
        let is_given_up =
            race.is_some_and(|race| task.cannot_be_won(race) || step.has_ended_for_good());
        if started && task.undo.is_none() {
            // A rerun of a join that was skipped opens its race again. What was undone, or need not be, stays so.
            let is_decided = task.is_revert(index) && step.is_done();
            // The steps before it were done, and were undone because they have lost the race as well.
            let mut before = task.definition(index).after.iter();
            let was_done = before.all(|step| {
                let is_undone = task.step(*step).status() == StepStatus::Undone;
                task.step(*step).is_done() || is_undone && task.is_lost(*step)
            });
            let has_lost = task.is_lost(index) && was_done;
            prop_assert!(
                all_done || is_given_up || is_decided || has_lost,
                "{index:?} left waiting too early"
            );
        }
        if step.state == StepState::Waiting {
            let is_later = task.start_at.is_some();
            prop_assert!(!all_done || is_later, "{index:?} waits for nothing");
        }
        if task.undo.is_some() && !task.is_finally(index) {
            let idle = !matches!(step.state, StepState::Waiting | StepState::Pending { .. });
            prop_assert!(idle, "{index:?} may begin although the task is undone");
        }
    }
    for group in task.groups() {
        items(task, group)?;
    }
    races(task)?;
    order_of_undo(task)?;
    for index in task.indexes() {
        let step = task.step(index);
        let over = step.is_done() || step.status() == StepStatus::Undone;
        prop_assert!(
            !over || step.previous_output.is_none(),
            "{index:?} has two outputs"
        );
        prop_assert!(
            !(task.is_ended() && step.is_live()),
            "{index:?} outlived its task"
        );
        if !task.may_begin() {
            let is_poll = matches!(step.state, StepState::Processing { .. });
            prop_assert!(is_poll || task.due_at(index).is_none());
        }
        if !task.definition(index).is_call() {
            prop_assert_eq!(step.effect, Effect::Known, "{:?} took effect", index);
            prop_assert_eq!(task.due_at(index), None);
            let is_idle = matches!(step.state, StepState::Pending { .. }) && task.may_begin();
            prop_assert!(!is_idle, "{index:?} does not begin to wait");
            let has_begun = step.status() == StepStatus::Processing;
            prop_assert_eq!(has_begun, task.waits_for_event(index));
        }
        let waits = matches!(step.state, StepState::Pending { .. });
        prop_assert!(waits || !step.awaits_turn);
        let tried = waits || matches!(step.state, StepState::Processing { .. });
        prop_assert!(tried || step.tries == 0, "{index:?} counts old tries");
        prop_assert_eq!(step.time_left.is_some(), waits && step.tries > 0);
    }
    let is_cancelled = task.undo.as_ref().is_some_and(|undo| undo.cancels);
    if let Some(pivot) = task.forward().find(|index| {
        let definition = task.definition(*index);
        definition.pivot
            && definition.group_rule().is_none()
            && task.step(*index).status() == StepStatus::Processed
    }) {
        prop_assert!(
            task.undo.is_none() || is_cancelled,
            "undone behind pivot {pivot:?}"
        );
    }
    let current = || task.indexes().filter(|index| task.is_current(*index));
    let errors = current().any(|index| task.step(index).status() == StepStatus::Error);
    let is_over = |index: StepIndex| match task.undo {
        Some(_) if !is_cancelled && !task.is_finally(index) => task.step(index).is_done(),
        _ => task.step(index).has_ended_for_good(),
    };
    let done = current().all(is_over);
    if task.has_not_begun() && !task.is_ended() {
        prop_assert!(task.undo.is_none() && task.status() != TaskStatus::Processing);
    }
    match task.status() {
        TaskStatus::Cancelled => {}
        status if task.undo.is_none() => {
            let undo_waits = task.faults_that_undo_on_resume().next().is_some();
            prop_assert!(task.paused || !undo_waits, "its undo does not begin");
            prop_assert_eq!(errors && !undo_waits, status == TaskStatus::Error);
            prop_assert_eq!(done, status == TaskStatus::Processed);
        }
        status => {
            prop_assert_eq!(errors, status == TaskStatus::Error);
            let under_way = task
                .steps
                .iter()
                .any(|step| matches!(step.state, StepState::Processing { .. }));
            prop_assert!(!is_cancelled || !done, "it is cancelled, and goes on");
            prop_assert_eq!(done && !under_way, status == TaskStatus::Undone);
        }
    }
    if task.status() == TaskStatus::Undone {
        for index in task.forward() {
            if task.definition(index).group_rule().is_some() {
                continue;
            }
            let undo = task.definition(index).undo;
            let left = task.step(index).may_have_taken_effect();
            // A step that an operator or a policy skipped stays as it is.
            let skipped = undo.is_none_or(|undo| task.step(undo).status() == StepStatus::Skipped);
            prop_assert!(!left || skipped, "{index:?} was not undone");
        }
    }
    Ok(())
}

/// A race that is over leaves nothing that runs for nothing, and nothing done that it says is undone.
fn races(task: &Task) -> Result<(), TestCaseError> {
    if task.undo.is_some() || task.status() == TaskStatus::Cancelled {
        return Ok(());
    }
    for index in task.forward() {
        let Some(rest) = task.loss(index) else {
            continue;
        };
        let (step, definition) = (task.step(index), task.definition(index));
        let waits_for_end = rest == RaceRest::Undo || definition.has_child() || definition.pivot;
        let is_running =
            step.status() == StepStatus::Processing && (waits_for_end || task.is_withdrawn(index));
        prop_assert!(
            is_running
                || matches!(
                    step.status(),
                    StepStatus::Processed
                        | StepStatus::Skipped
                        | StepStatus::Cancelled
                        | StepStatus::Undone
                ),
            "{index:?} has lost, and is {:?}",
            step.status()
        );
        let revert = definition
            .followers
            .iter()
            .find(|step| task.is_revert(**step));
        let is_left = rest == RaceRest::Undo && step.may_have_taken_effect();
        if let (TaskStatus::Processed, Some(revert)) = (task.status(), revert) {
            // An operator may have skipped what undoes it.
            let is_skipped = task.step(*revert).status() == StepStatus::Skipped;
            prop_assert!(!is_left || is_skipped, "{index:?} has lost, and stands");
        }
    }
    for index in task.own_indexes() {
        if let Some(race) = &task.definition(index).race {
            prop_assert!(task.winners(index).len() <= usize::from(race.any));
            for winner in task.winners(index) {
                let mut reverts = task.definition(winner).followers.iter();
                let revert = reverts.find(|step| task.is_revert(**step));
                let is_undone = revert.is_some_and(|revert| task.step(*revert).is_live());
                // It may have lost another race, to which the join of this one is a competitor.
                let has_lost = task.loss(winner) == Some(RaceRest::Undo);
                prop_assert!(!is_undone || has_lost, "{winner:?} has won, and is undone");
            }
        }
    }
    Ok(())
}

/// Nothing is undone while the undo of something that followed it is outstanding, whatever instance held that undo and lost it.
fn order_of_undo(task: &Task) -> Result<(), TestCaseError> {
    if task.undo.is_none() {
        return Ok(());
    }
    for index in task.forward() {
        let Some(undo) = task.definition(index).undo else {
            continue;
        };
        let status = task.step(undo).status();
        // Nothing is sent for one that was passed over.
        let is_left_out = matches!(status, StepStatus::Skipped | StepStatus::Cancelled);
        if is_left_out || status == StepStatus::Waiting {
            continue;
        }
        let own = task.group_of(index);
        let followers = all_followers(task, own);
        let is_after = |other: StepIndex| {
            let is_later_iteration =
                task.is_repeated(own) && task.group_of(other) == own && other > index;
            is_later_iteration || followers.contains(&task.group_of(other))
        };
        for after in task.forward().filter(|other| is_after(*other)) {
            let name = |index| task.definition(index).name.clone();
            let (first, then) = (name(after), name(index));
            let is_running = matches!(task.step(after).state, StepState::Processing { .. });
            prop_assert!(!is_running, "{then} is undone while {first} runs");
            let undo = task.definition(after).undo;
            let is_over = undo.is_none_or(|undo| task.step(undo).is_done());
            prop_assert!(is_over, "{then} is undone before {first}");
        }
    }
    Ok(())
}

/// The properties of the items of a group.
fn items(task: &Task, group: &ItemGroup) -> Result<(), TestCaseError> {
    let record = task.step(group.step);
    let definition = task.details.definition.step(group.step);
    let saved = record.body.as_ref();
    let saved = saved.and_then(|saved| ItemGroup::from_record(group.step, definition, saved));
    let expected = ItemGroup::new(group.step, group.known.clone(), group.items.clone());
    prop_assert_eq!(saved, Some(expected));
    let counts = StepCounts::of(group.items.iter().map(|at| &task.steps[at]));
    prop_assert_eq!(counts, task.steps.counts_of(&group.items));
    for (number, at) in group.items.iter().enumerate() {
        let index = StepIndex(at as u16);
        let name = task.definition(index).name.as_str();
        prop_assert_eq!(name, format!("{}[{number}]", definition.name));
        prop_assert_eq!(task.find(name), Some(index));
        let undo = task.definition(index).undo;
        let subject = undo.map(|undo| task.definition(undo).undoes);
        prop_assert!(subject.is_none_or(|subject| subject == Some(index)));
    }
    let (live, waiting) = (counts.live(), counts.count(StepStatus::Waiting));
    if task.undo.is_some() || task.is_ended() {
        prop_assert_eq!(waiting, 0, "an item may begin although its task is over");
        return Ok(());
    }
    let rule = task.definition(group.step).group_rule().unwrap();
    let most = u32::from(rule.max_parallel());
    if let Some(at_most) = group.at_most() {
        prop_assert!(live <= most, "{} iterations run at once", live);
        return iterations(task, group, &counts, at_most);
    }
    let own = || group.items.iter().map(|at| &task.steps[at]);
    let awaits = own().filter(|step| step.awaits_turn).count() as u32;
    let mut read = task.clone();
    for at in group.items.iter() {
        read.steps[at].awaits_turn = false;
    }
    read.give_turns();
    prop_assert_eq!(&read, task, "the turns are not those of the record");
    prop_assert!(live - awaits <= most, "{} items run at once", live);
    prop_assert!(awaits == 0 || live - awaits == most, "a turn is free");
    let failed = counts.count(StepStatus::Error);
    let needs = task.enough(group.step).unwrap();
    match &record.state {
        StepState::Processing { .. } => {
            prop_assert!(live > 0, "a group waits for nothing");
            prop_assert!(!task.has_enough(group.step), "enough is not enough");
            prop_assert!(waiting == 0 || live >= most, "too few items run");
        }
        StepState::Processed { output, .. } => {
            let cancelled = counts.count(StepStatus::Cancelled);
            let running = counts.count(StepStatus::Processing);
            prop_assert_eq!(counts.done() + cancelled + running, counts.total());
            prop_assert!(running == 0 || needs.is_some());
            only_ends(task, group)?;
            prop_assert!(cancelled == 0 || needs.is_some());
            // An operator may have resolved a group with too few successes.
            let outputs = serde_json::from_str::<Vec<Value>>(output.as_json()).ok();
            let is_list = outputs.is_some_and(|outputs| outputs.len() == group.items.len());
            prop_assert!(is_list || needs.is_some());
        }
        StepState::Error(fault) => {
            let late = fault.kind == FaultKind::Deadline;
            prop_assert!(late || (live + waiting == 0 && (failed > 0 || needs.is_some())));
        }
        StepState::Skipped { .. } => prop_assert_eq!(counts.done(), counts.total()),
        StepState::Waiting | StepState::Pending { .. } => {
            prop_assert_eq!(waiting, counts.total(), "items run without their group");
        }
        // It has lost a race, or the task is stopped.
        StepState::Cancelled { .. } => {
            let pending = counts.count(StepStatus::Pending);
            prop_assert_eq!(pending + waiting + failed, 0);
            only_ends(task, group)?;
        }
        state => prop_assert!(false, "{state:?}"),
    }
    Ok(())
}

/// The items that run are not needed any more: a pivot is waited for, and another call is being dropped.
fn only_ends(task: &Task, group: &ItemGroup) -> Result<(), TestCaseError> {
    for at in group.items.iter() {
        let item = StepIndex(at as u16);
        let is_running = task.step(item).status() == StepStatus::Processing;
        let ends = task.definition(item).pivot || task.is_withdrawn(item);
        prop_assert!(!is_running || ends, "{item:?} runs for nothing");
    }
    Ok(())
}

/// The properties of iterations while their task is open.
fn iterations(
    task: &Task,
    group: &ItemGroup,
    counts: &StepCounts,
    at_most: u16,
) -> Result<(), TestCaseError> {
    let record = task.step(group.step);
    let is_due_later = task.next_begin(group.step).is_some();
    let statuses: Vec<_> = group
        .items
        .iter()
        .map(|at| task.steps[at].status())
        .collect();
    let open = statuses
        .iter()
        .position(|status| !matches!(status, StepStatus::Processed | StepStatus::Skipped));
    let after = open.map_or(&[][..], |open| &statuses[open + 1..]);
    let never = match record.status() {
        StepStatus::Cancelled => StepStatus::Cancelled,
        _ => StepStatus::Waiting,
    };
    prop_assert!(
        after.iter().all(|status| *status == never),
        "iterations run side by side: {statuses:?}"
    );
    match &record.state {
        StepState::Processing { .. } => {
            prop_assert_eq!(counts.live(), u32::from(!is_due_later));
            prop_assert!(counts.done() + counts.live() <= at_most.into());
        }
        StepState::Processed { .. } | StepState::Skipped { .. } => {
            prop_assert_eq!(counts.done(), counts.total());
        }
        StepState::Error(_) => {}
        StepState::Waiting | StepState::Pending { .. } => {
            let waiting = counts.count(StepStatus::Waiting);
            prop_assert_eq!(
                waiting,
                counts.total(),
                "iterations run without their group"
            );
        }
        StepState::Cancelled { .. } => {
            let begins = [StepStatus::Pending, StepStatus::Waiting];
            prop_assert!(begins.iter().all(|status| counts.count(*status) == 0));
            only_ends(task, group)?;
        }
        state => prop_assert!(false, "{state:?}"),
    }
    Ok(())
}

/// The properties of every claim that does work, from the view of its service.
fn calls(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let Command::Claim { step, .. } = command else {
        return Ok(());
    };
    let claimed = after.step(*step);
    if let Some(undone) = before.definition(*step).undoes {
        prop_assert!(
            !matches!(before.step(undone).state, StepState::Processing { .. }),
            "{undone:?} is undone, or asked about, while a try can follow"
        );
    }
    if !matches!(claimed.state, StepState::Processing { .. }) || claimed.is_probing {
        return Ok(());
    }
    let definition = before.definition(*step);
    let Some(undone) = definition.undoes else {
        let asked = definition.probe.is_none() || before.step(*step).effect == Effect::Known;
        prop_assert!(asked, "{step:?} was repeated without asking its probe");
        return Ok(());
    };
    prop_assert!(
        before.step(undone).may_have_taken_effect(),
        "{undone:?} was undone although it never took effect"
    );
    if before.is_revert(*step) {
        for follower in all_followers(before, undone) {
            let own = before.definition(follower);
            let revert = own.followers.iter().find(|step| before.is_revert(**step));
            let over = revert.is_none_or(|revert| revert == step || before.step(*revert).is_done());
            let shares = own
                .lanes
                .iter()
                .any(|lane| before.definition(undone).lanes.contains(lane));
            prop_assert!(over || !shares, "{undone:?} is undone before {follower:?}");
        }
        return Ok(());
    }
    for follower in all_followers(before, undone) {
        let undo = before.definition(follower).undo;
        let over = undo.is_none_or(|undo| before.step(undo).is_done());
        prop_assert!(over, "{undone:?} is undone before {follower:?}");
    }
    Ok(())
}

fn all_followers(task: &Task, step: StepIndex) -> Vec<StepIndex> {
    let mut all = task.definition(step).followers.to_vec();
    let mut at = 0;
    while let Some(index) = all.get(at).copied() {
        for follower in &*task.definition(index).followers {
            if !all.contains(follower) {
                all.push(*follower);
            }
        }
        at += 1;
    }
    all
}

/// The properties of a task before and after a command.
fn compare(before: &Task, after: &Task, command: &Command) -> Result<(), TestCaseError> {
    let again = matches!(command, Command::RetryFrom { .. });
    let moves = matches!(command, Command::Migrate { .. });
    if moves {
        moved(before, after)?;
    }
    for index in before.indexes() {
        if after.undo.is_some() && before.undo.is_none() && !before.is_current(index) {
            continue;
        }
        let (old, new) = (before.step(index), after.step(index));
        if again && before.definition(index).is_call() {
            prop_assert_eq!(
                old.may_have_taken_effect(),
                new.may_have_taken_effect(),
                "what {:?} did was forgotten",
                index
            );
        }
        let claimed = matches!(command, Command::Claim { step, .. } if *step == index);
        let is_call = before.definition(index).is_call();
        // A wait is not claimed: it begins.
        let begun =
            (!is_call || moves && !after.definition(index).is_call()) && new.attempt != old.attempt;
        let expected = old.attempt.0 + u32::from(claimed || begun);
        prop_assert_eq!(new.attempt.0, expected, "attempts count claims, one by one");
        let is_held = |task: &Task| task.paused || task.has_not_begun();
        prop_assert!(
            new.attempt == old.attempt || !is_held(before) || !is_held(after),
            "{index:?} began while its task was held"
        );
        let most = before.definition(index).max_failures;
        let left_behind =
            !before.is_current(index) || before.is_lost(index) || before.is_withdrawn(index);
        let expired = match command {
            Command::Expire { step, cause, .. } if *step == index && !left_behind && is_call => {
                *cause == Expiry::CompleteBy || old.failure_count < most
            }
            Command::Reply {
                step,
                outcome: CallOutcome::Crashed(_),
                ..
            } => *step == index && !left_behind,
            Command::Reply {
                step,
                outcome: CallOutcome::Transient { .. },
                ..
            } => *step == index && !left_behind && new.tries == 0,
            _ => false,
        };
        let retried =
            (again || moves || matches!(command, Command::Retry { .. })) && new.failure_count == 0;
        if !retried {
            let expected = old.failure_count + u32::from(expired);
            prop_assert_eq!(
                new.failure_count,
                expected,
                "failures are counted one by one"
            );
        }
        let returned = before.is_removed(index) && !after.is_removed(index);
        // An operator has items tried again of which too few have succeeded.
        let is_tried_again = matches!(command, Command::Retry { .. })
            && old.status() == StepStatus::Skipped
            && before.enough(before.group_of(index)).unwrap().is_some();
        let is_reverted = new.status() == StepStatus::Undone && after.is_lost(index);
        let may_change = again || returned || is_tried_again || is_reverted;
        if old.is_done() && after.undo.is_none() && !may_change {
            prop_assert_eq!(old, new, "a step that is done never changes");
        }
    }
    Ok(())
}

/// The properties of a task before and after it moves to another version.
fn moved(before: &Task, after: &Task) -> Result<(), TestCaseError> {
    prop_assert!(
        before
            .details
            .definition
            .names()
            .zip(after.details.definition.names())
            .all(|(a, b)| a == b)
    );
    for index in before.details.definition.forward() {
        let (old, new) = (before.step(index), after.step(index));
        if old.may_have_taken_effect() || old.status() == StepStatus::Processing {
            prop_assert!(!after.is_removed(index), "{index:?} is gone, and had begun");
            // A step of the new version may have the task undone or stopped at once, or win a race, or the running step is not wanted
            // any more: then its call is dropped, and may have had effect.
            let is_ended = after.undo.is_some() || is_given_up(new);
            let is_dropped = is_ended && old.status() == StepStatus::Processing;
            let effects = (old.may_have_taken_effect(), new.may_have_taken_effect());
            prop_assert!(
                effects.0 == effects.1 || is_dropped && effects.1,
                "{effects:?}"
            );
        }
        let runs =
            matches!(old.state, StepState::Processing { .. }) && before.definition(index).is_call();
        if runs && after.undo.is_none() && !is_given_up(new) {
            prop_assert_eq!(old, new, "what runs goes on");
        }
    }
    Ok(())
}

/// Returns whether the running call of a step was dropped, because nothing needs it.
fn is_given_up(step: &Step) -> bool {
    matches!(step.status(), StepStatus::Cancelled | StepStatus::Skipped)
}

/// The history alone tells every state a step and the task went through.
fn replay(draft: &Draft) -> Result<(), TestCaseError> {
    let mut states: HashMap<&str, &str> = HashMap::new();
    let mut task = None;
    for event in &draft.events {
        match &event.step {
            Some(step) => {
                let known = states.get(step.as_str()).copied().unwrap_or("waiting");
                let unbegun = known == "waiting"
                    && step.as_str().contains('[')
                    && matches!(event.from.as_deref(), Some("cancelled" | "skipped"));
                prop_assert!(unbegun || Some(known) == event.from.as_deref(), "{event:?}");
                states.insert(step.as_str(), &event.to);
            }
            None => {
                prop_assert_eq!(task, event.from.as_deref(), "{:?}", event);
                task = Some(&event.to);
            }
        }
    }
    for index in draft.task.indexes() {
        let name = draft.task.definition(index).name.as_str();
        let told = states.get(name).copied().unwrap_or("waiting");
        let status = draft.task.step(index).status();
        // The history says of all items together that they never began.
        let is_item = draft.task.definition(index).item.is_some();
        let unbegun = is_item && told == "waiting" && draft.task.step(index).attempt.0 == 0;
        let ended = matches!(status, StepStatus::Cancelled | StepStatus::Skipped);
        prop_assert!(
            told == status.as_str() || unbegun && ended,
            "{name} is {status:?}, not {told}"
        );
    }
    prop_assert_eq!(task, Some(draft.task.status().as_str()));
    Ok(())
}
