//! The task, and the fault of each case.

use serde_json::{Value, json};

use super::services::{Fault, Kind, Plan};

/// The number of items of each list.
pub const ITEMS: usize = 3;
/// A complete-by that is short for a call that hangs.
const SHORT: &str = "700ms";
/// The steps and items with faults: before the lists, at an item that begins at once and at one that waits for others,
/// in the child of an item, and after the lists.
const PLACES: [&str; 5] = ["reserve", "import[0]", "import[2]", "ship[1]", "close"];

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Turn {
    None,
    /// The test requests the undo while a call is held.
    Ask,
    /// The test requests the undo once the task is processed.
    Afterwards,
}

/// The reaction of the operator to an error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Operator {
    None,
    Retries,
    Undoes,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Patience {
    Long,
    /// Calls that hang are retried.
    Short,
    /// Calls that hang are not retried.
    None,
}

pub struct Case {
    pub name: String,
    pub plan: Vec<Plan>,
    pub turn: Turn,
    pub operator: Operator,
    pub end: &'static str,
    /// The item that is skipped, and so has no output.
    pub skipped: Option<&'static str>,
    /// True if Provost could not know whether a step took effect.
    pub unknown: bool,
    policy: &'static str,
    patience: Patience,
    has_pivot: bool,
}

fn case(name: String, end: &'static str) -> Case {
    Case {
        name,
        plan: Vec::new(),
        turn: Turn::None,
        operator: Operator::None,
        end,
        skipped: None,
        unknown: false,
        policy: "undo",
        patience: Patience::Long,
        has_pivot: false,
    }
}

impl Case {
    fn meets(mut self, kind: Kind, place: &str, fault: Fault) -> Self {
        self.plan.push(Plan {
            kind,
            place: place.to_owned(),
            fault,
            lasts: false,
        });
        self.unknown |= matches!(fault, Fault::Hang(_) | Fault::Drop(_) | Fault::Kill(_));
        self
    }

    fn lasts(mut self) -> Self {
        self.plan.last_mut().unwrap().lasts = true;
        self
    }

    fn policy(mut self, policy: &'static str) -> Self {
        self.policy = policy;
        self
    }

    fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    fn operator(mut self, operator: Operator) -> Self {
        self.operator = operator;
        self
    }

    fn turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    fn skips(mut self, place: &'static str) -> Self {
        self.policy = "skip";
        self.skipped = Some(place);
        self
    }

    fn with_pivot(mut self) -> Self {
        self.has_pivot = true;
        self
    }

    /// Makes the last step fail permanently, so that everything before it is undone.
    fn then_undone(self) -> Self {
        self.meets(Kind::Work, "close", Fault::Refuse)
    }

    /// Returns whether the child of an item meets a fault.
    pub fn is_at_task(&self) -> bool {
        self.plan.iter().any(|plan| plan.place.starts_with("ship"))
    }

    pub fn submission(&self) -> Value {
        let call = |path: &str, has_undo: bool| {
            let mut step = limits(self.patience);
            step["agent"] = json!("services");
            step["request"] = json!({ "path": path });
            if has_undo {
                step["undo"] = limits(match self.patience {
                    Patience::None => Patience::Long,
                    other => other,
                });
                step["undo"]["request"] = json!({ "method": "DELETE", "path": path });
            }
            step
        };
        let mut reserve = call("/reserve", true);
        reserve["name"] = json!("reserve");
        let mut import = call("/import/{{ index }}/{{ item }}", true);
        import["name"] = json!("import");
        let workflow = match self.patience {
            Patience::Long => "parcel",
            Patience::Short => "parcel-short",
            Patience::None => "parcel-once",
        };
        let mut ship = json!({ "name": "ship", "task": { "workflow": workflow, "key": "{{ task.key }}#{{ index }}",
            "input": { "of": "{{ item }}", "at": "{{ index }}" } } });
        for list in [&mut import, &mut ship] {
            list["for_each"] = json!("{{ input.of }}");
            list["max_parallel"] = json!(2);
            list["on_item_error"] = json!(self.policy);
        }
        let mut steps = vec![reserve, import, ship];
        if self.has_pivot {
            let mut pivot = call("/pivot", false);
            pivot["name"] = json!("pivot");
            pivot["pivot"] = json!(true);
            steps.push(pivot);
        }
        let mut close = call("/close", true);
        close["name"] = json!("close");
        steps.push(close);
        let of_task = match self.policy {
            "error" => "error",
            _ => "undo",
        };
        json!({ "key": self.name, "input": { "of": ["a", "b", "c"] }, "on_exhausted": of_task,
                "on_permanent": of_task, "steps": steps })
    }
}

fn limits(patience: Patience) -> Value {
    match patience {
        Patience::Long => json!({ "complete_within": "60s" }),
        Patience::Short => json!({ "complete_within": SHORT, "max_failures": 40 }),
        Patience::None => json!({ "complete_within": SHORT, "max_failures": 0 }),
    }
}

/// Returns the workflows of the children.
pub fn workflows() -> Vec<(&'static str, Value)> {
    let workflow = |patience: Patience| {
        let path = "/pack/{{ input.at }}/{{ input.of }}";
        let mut pack = limits(patience);
        pack["name"] = json!("pack");
        pack["agent"] = json!("services");
        pack["request"] = json!({ "path": path });
        pack["undo"] = limits(match patience {
            Patience::None => Patience::Long,
            other => other,
        });
        pack["undo"]["request"] = json!({ "method": "DELETE", "path": path });
        json!({ "on_exhausted": "undo", "on_permanent": "undo", "output": "{{ steps.pack.output }}", "steps": [pack] })
    };
    vec![
        ("parcel", workflow(Patience::Long)),
        ("parcel-short", workflow(Patience::Short)),
        ("parcel-once", workflow(Patience::None)),
    ]
}

const WHEN: [(&str, bool); 2] = [("before", false), ("after", true)];

pub fn faults() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in PLACES {
        let work = Kind::Work;
        let named = |what: &str, end| case(format!("{place}, {what}"), end);
        let refused = |what: &str, end| named(what, end).meets(work, place, Fault::Refuse);
        cases.push(refused("refused", "undone"));
        cases.push(
            refused("refused, an operator retries", "processed")
                .policy("error")
                .operator(Operator::Retries),
        );
        cases.push(
            refused("refused, an operator undoes", "undone")
                .policy("error")
                .lasts()
                .operator(Operator::Undoes),
        );
        cases.push(named("done, its answer garbled", "undone").meets(work, place, Fault::Garble));
        cases.push(
            named("undo asked meanwhile", "undone")
                .meets(work, place, Fault::Hold)
                .turn(Turn::Ask),
        );
        let last = refused("refused after a pivot before it", "processed").with_pivot();
        match place {
            "close" => cases.push(last.operator(Operator::Retries)),
            _ => cases.push(refused("refused before a pivot", "undone").with_pivot()),
        }
        for (when, effect) in WHEN {
            let hangs = |what: &str, end| {
                named(&format!("expired {when} its effect{what}"), end).meets(
                    work,
                    place,
                    Fault::Hang(effect),
                )
            };
            cases.push(hangs("", "undone").patience(Patience::None));
            cases.push(hangs(", again", "processed").patience(Patience::Short));
            cases.push(
                hangs(", again, then undone", "undone")
                    .patience(Patience::Short)
                    .turn(Turn::Afterwards),
            );
            let broken = named(&format!("broken {when} its effect"), "processed");
            cases.push(broken.meets(work, place, Fault::Drop(effect)));
            if place.contains('[') {
                // A skipped item may still have taken effect. It is then undone with the others.
                cases.push(
                    hangs(", skipped, then undone", "undone")
                        .skips(place)
                        .patience(Patience::None)
                        .turn(Turn::Afterwards),
                );
            }
        }
        if place.contains('[') {
            cases.push(refused("refused and skipped", "processed").skips(place));
            cases.push(
                refused("refused and skipped, then undone", "undone")
                    .skips(place)
                    .turn(Turn::Afterwards),
            );
        }
    }
    for place in PLACES.into_iter().filter(|place| *place != "close") {
        let undo = Kind::Undo;
        let named = |what: &str| case(format!("{place}, its undo {what}"), "undone").then_undone();
        cases.push(
            named("refused, an operator retries")
                .meets(undo, place, Fault::Refuse)
                .lasts()
                .operator(Operator::Retries),
        );
        for (when, effect) in WHEN {
            let hangs = named(&format!("expired {when} its effect"));
            cases.push(
                hangs
                    .meets(undo, place, Fault::Hang(effect))
                    .patience(Patience::Short),
            );
            let broken = named(&format!("broken {when} its effect"));
            cases.push(broken.meets(undo, place, Fault::Drop(effect)));
        }
    }
    cases
}

pub fn kills() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in PLACES {
        for (when, effect) in WHEN {
            let kill = Fault::Kill(effect);
            let named =
                |what: &str, end| case(format!("{place}, killed {when} its effect, {what}"), end);
            let work = |what: &str, end| named(what, end).meets(Kind::Work, place, kill);
            cases.push(work("then done", "processed"));
            cases.push(work("undo asked", "undone").turn(Turn::Ask));
            cases.push(work("undone afterwards", "undone").turn(Turn::Afterwards));
            cases.push(work("with a pivot", "processed").with_pivot());
            if place != "close" {
                cases.push(work("then undone", "undone").then_undone());
                let back = named("on the way back", "undone").then_undone();
                cases.push(back.meets(Kind::Undo, place, kill));
            }
        }
    }
    cases
}
