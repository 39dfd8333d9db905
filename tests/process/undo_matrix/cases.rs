//! The cases: every fault at every step, forward and during undo.

use serde_json::{Value, json};

use super::{
    graph::{self, DROPPED, LAST, Probe},
    services::{Effect, Fault, Kind, Plan, Then},
};

pub struct Case {
    pub name: String,
    pub tuning: Vec<(&'static str, Value)>,
    pub plans: Vec<Plan>,
    pub turn: Turn,
    /// The state in which the task ends.
    pub end: &'static str,
    /// The step that ends in error first, which an operator retries.
    pub stops: Option<String>,
}

/// The part of the test itself during the task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Turn {
    None,
    /// The test requests the undo while a call is held, and then releases the call.
    Ask,
    /// The test releases one of two held calls, and the other once the task is being undone.
    Behind(&'static str),
}

/// A complete-by that is short for a call that hangs. A call with a response needs a small part of it, and if it were
/// too short, the case would still end in the same way.
const SHORT: &str = "700ms";
const HANGS: [(&str, Effect); 3] = [
    ("before", Effect::Never),
    ("after", Effect::Done),
    ("late", Effect::Late),
];
const BREAKS: [(&str, Effect); 2] = [("before", Effect::Never), ("after", Effect::Done)];

fn case(name: String, end: &'static str) -> Case {
    Case {
        name,
        tuning: Vec::new(),
        plans: Vec::new(),
        turn: Turn::None,
        end,
        stops: None,
    }
}

impl Case {
    fn tune(mut self, step: &'static str, change: Value) -> Self {
        self.tuning.push((step, change));
        self
    }

    fn meets(mut self, kind: Kind, step: &'static str, faults: &[Fault]) -> Self {
        self.plans.push(Plan {
            at: (kind, step),
            faults: faults.iter().copied().collect(),
            for_ever: false,
        });
        self
    }

    fn for_ever(mut self, kind: Kind, step: &'static str, faults: &[Fault]) -> Self {
        self = self.meets(kind, step, faults);
        self.plans.last_mut().unwrap().for_ever = true;
        self
    }

    fn turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    /// Makes the last planned faults last until an operator acts on this step.
    fn stops(mut self, step: impl Into<String>) -> Self {
        self.stops = Some(step.into());
        self.plans.last_mut().unwrap().for_ever = true;
        self
    }

    /// Returns whether the effect of the step's own work was ever unknown.
    pub fn leaves_unknown(&self, step: &str) -> bool {
        self.plans.iter().any(|plan| {
            plan.at == (Kind::Work, plan.at.1)
                && plan.at.1 == step
                && plan.faults.iter().any(|fault| match fault {
                    Fault::Hang(_) | Fault::Drop(_) | Fault::Kill(_) => true,
                    Fault::Hold(then) => *then == Then::Drop || step == DROPPED,
                    Fault::Refuse(_) | Fault::Garble => false,
                })
        })
    }
}

fn patient() -> Value {
    json!({ "complete_within": SHORT, "max_failures": 20 })
}

fn impatient() -> Value {
    json!({ "complete_within": SHORT, "max_failures": 0 })
}

/// Returns faults on the way forward: with the policy undo, with the policy error, and faults that are only retried.
pub fn forward() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in graph::all() {
        let named = |what: &str| format!("forward/{step}/{what}");
        let work = Kind::Work;
        cases.push(case(named("refused"), "undone").meets(work, step, &[Fault::Refuse(402)]));
        cases.push(
            case(named("refused, an operator retries"), "processed")
                .tune(step, json!({ "on_permanent": "error" }))
                .meets(work, step, &[Fault::Refuse(402)])
                .stops(step),
        );
        cases.push(case(named("done, its answer garbled"), "undone").meets(
            work,
            step,
            &[Fault::Garble],
        ));
        for (when, effect) in HANGS {
            let hang = [Fault::Hang(effect)];
            cases.push(
                case(named(&format!("expired {when} its effect")), "undone")
                    .tune(step, impatient())
                    .meets(work, step, &hang),
            );
            cases.push(
                case(
                    named(&format!("expired {when} its effect, again")),
                    "processed",
                )
                .tune(step, patient())
                .meets(work, step, &hang),
            );
        }
        cases.push(
            case(named("expired, an operator retries"), "processed")
                .tune(step, impatient())
                .tune(step, json!({ "on_exhausted": "error" }))
                .meets(work, step, &[Fault::Hang(Effect::Never)])
                .stops(step),
        );
        for (when, effect) in BREAKS {
            cases.push(
                case(named(&format!("broken {when} its effect")), "undone")
                    .tune(step, impatient())
                    .for_ever(work, step, &[Fault::Drop(effect)]),
            );
            cases.push(
                case(
                    named(&format!("broken {when} its effect, again")),
                    "processed",
                )
                .tune(step, json!({ "max_failures": 20 }))
                .meets(work, step, &[Fault::Drop(effect)]),
            );
        }
        cases.push(
            case(named("undo asked meanwhile"), "undone")
                .meets(work, step, &[Fault::Hold(Then::Answer)])
                .turn(Turn::Ask),
        );
        if graph::find(step).probe == Probe::None {
            // The retry meets the first call, which is still running.
            cases.push(
                case(named("expired, then in conflict with itself"), "undone")
                    .tune(step, patient())
                    .for_ever(work, step, &[Fault::Hang(Effect::Late), Fault::Refuse(409)]),
            );
        }
    }
    cases
}

/// Returns cases in which a call is running when another step has the task undone.
pub fn left_behind() -> Vec<Case> {
    let outcomes = [
        ("done", Then::Answer),
        ("refused", Then::Refuse),
        ("done, its answer lost", Then::Drop),
    ];
    let mut cases = Vec::new();
    for step in ["quote", "pack", "label", "insure"] {
        for (what, then) in outcomes {
            cases.push(
                case(format!("behind/{step}/{what}"), "undone")
                    .meets(Kind::Work, step, &[Fault::Hold(then)])
                    .meets(Kind::Work, "charge", &[Fault::Hold(Then::Refuse)])
                    .turn(Turn::Behind("charge")),
            );
        }
    }
    cases
}

/// Sets the begin of the undo: the last step is refused, or an operator requests the undo while that step is running.
fn begun(case: Case, asked: bool) -> Case {
    match asked {
        true => case
            .meets(Kind::Work, LAST, &[Fault::Hold(Then::Answer)])
            .turn(Turn::Ask),
        false => case.meets(Kind::Work, LAST, &[Fault::Refuse(402)]),
    }
}

/// Returns faults during the undo.
pub fn backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (start, asked) in [("refused", false), ("asked", true)] {
        for step in graph::undoable().filter(|step| asked || *step != LAST) {
            let named = |what: String| case(format!("back, {start}/{step}/{what}"), "undone");
            let undo = |change: Value| json!({ "undo": change });
            let stops = format!("{step}.undo");
            let mut add = |case: Case| cases.push(begun(case, asked));
            add(named("refused".to_owned())
                .meets(Kind::Undo, step, &[Fault::Refuse(402)])
                .stops(&stops));
            for (when, effect) in BREAKS {
                let hang = [Fault::Hang(effect)];
                add(named(format!("expired {when} its effect"))
                    .tune(step, undo(impatient()))
                    .meets(Kind::Undo, step, &hang)
                    .stops(&stops));
                if asked {
                    // The undo is the same however it began.
                    continue;
                }
                add(named(format!("expired {when} its effect, again"))
                    .tune(step, undo(patient()))
                    .meets(Kind::Undo, step, &hang));
                add(named(format!("broken {when} its effect")).meets(
                    Kind::Undo,
                    step,
                    &[Fault::Drop(effect)],
                ));
            }
        }
    }
    cases
}

/// Returns faults of a probe that is sent before another attempt or before an undo.
pub fn probes() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in graph::probed() {
        for (effect_when, effect) in HANGS {
            let faults = [
                ("refused", Fault::Refuse(401)),
                ("expired", Fault::Hang(Effect::Never)),
                ("broken", Fault::Drop(Effect::Never)),
            ];
            for (what, fault) in faults {
                if effect == Effect::Never && what != "refused" {
                    continue;
                }
                let named = |way: &str, end| {
                    case(
                        format!("probe, {way}/{step}/{what}, expired {effect_when} its effect"),
                        end,
                    )
                    .meets(Kind::Work, step, &[Fault::Hang(effect)])
                    .meets(Kind::Probe, step, &[fault])
                    .tune(step, json!({ "probe": { "complete_within": SHORT } }))
                };
                let stops = |case: Case, name: String| match fault {
                    Fault::Refuse(_) => case.stops(name),
                    _ => case,
                };
                cases.push(stops(
                    named("forward", "processed").tune(step, patient()),
                    step.to_owned(),
                ));
                cases.push(stops(
                    named("back", "undone")
                        .tune(step, impatient())
                        .tune(step, json!({ "undo": { "max_failures": 20 } })),
                    format!("{step}.undo"),
                ));
            }
        }
    }
    cases
}

/// Returns cases with a SIGKILL while a call is running, before or after it took effect: one call in each case, and one
/// kill for all of them.
pub fn kills() -> Vec<Case> {
    let mut cases = Vec::new();
    for (when, effect) in BREAKS {
        let kill = [Fault::Kill(effect)];
        for step in graph::all() {
            let named = |way: &str| format!("killed {when} the effect, {way}/{step}");
            cases.push(case(named("forward"), "processed").meets(Kind::Work, step, &kill));
            cases.push(
                case(named("undo asked"), "undone")
                    .meets(Kind::Work, step, &kill)
                    .turn(Turn::Ask),
            );
            if step != LAST {
                cases.push(begun(
                    case(named("then undone"), "undone").meets(Kind::Work, step, &kill),
                    false,
                ));
            }
        }
        for step in graph::undoable().filter(|step| *step != LAST) {
            let named = format!("killed {when} the effect, back/{step}");
            cases.push(begun(
                case(named, "undone").meets(Kind::Undo, step, &kill),
                false,
            ));
        }
    }
    for step in graph::probed() {
        let probed = |way: &str, end| {
            case(format!("killed at the probe, {way}/{step}"), end)
                .meets(Kind::Work, step, &[Fault::Hang(Effect::Done)])
                .meets(Kind::Probe, step, &[Fault::Kill(Effect::Never)])
        };
        cases.push(probed("forward", "processed").tune(step, patient()));
        cases.push(probed("back", "undone").tune(step, impatient()));
    }
    cases
}
