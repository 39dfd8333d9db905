//! Random definitions, and other versions of them.

use proptest::{bool::weighted, collection::vec, prelude::*};

use super::*;

/// A random step: which of the earlier ones it follows, and its policies.
#[derive(Clone, Debug)]
pub(super) struct Shape {
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

pub(super) fn shapes() -> impl Strategy<Value = Vec<Shape>> {
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

pub(super) fn steps(shapes: &[Shape]) -> Value {
    let names: Vec<_> = (0..shapes.len()).map(|at| format!("s{at}")).collect();
    named(shapes, &names)
}

/// Another version: some steps are others, one may be gone, and one may have come.
pub(super) fn other_version(shapes: &[Shape], others: &[Shape], change: &Change) -> Value {
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
pub(super) struct Change {
    replaced: Vec<bool>,
    gone: Option<usize>,
    added: Option<usize>,
}

pub(super) fn changes() -> impl Strategy<Value = Change> {
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
