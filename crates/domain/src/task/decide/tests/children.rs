//! Steps with tasks of their own, and that parents and children agree in the end whatever happens to them in between.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    definition::RaceRest,
    task::{
        child::{ChildAction, ChildWorkflow, MOST_DEPTH, News, child_actions},
        child_record::{Child, ChildEnd, ChildRecord, ChildReport},
        properties::cases,
    },
    values::ids::{WorkflowName, WorkflowRef},
    view::blocked::Blocked,
};

fn ordering(more: Value) -> Value {
    let mut ship = json!({ "name": "ship", "task": { "workflow": "ship", "key": "p-{{ input.total }}",
                           "input": { "total": "{{ input.total }}" }, "labels": { "of": "{{ task.id }}" } } });
    for (name, value) in more.as_object().unwrap() {
        ship[name] = value.clone();
    }
    json!([{ "name": "first", "agent": "x", "undo": { "request": {} } }, ship, { "name": "last", "agent": "x" }])
}

/// A task, and those of its steps.
pub(super) struct Family {
    pub parent: Bench,
    pub children: Vec<(StepIndex, Attempt, Draft)>,
    pub workflow: ChildWorkflow,
}

impl Family {
    pub fn new(steps: &Value, of_child: &Value) -> Self {
        Self {
            parent: Bench::new(steps.clone()),
            children: Vec::new(),
            workflow: ChildWorkflow {
                workflow: Some(WorkflowRef {
                    name: WorkflowName::new("ship"),
                    version: 1,
                }),
                definition: definition(of_child),
                complete_within: None,
            },
        }
    }

    fn ordering() -> Self {
        let mut family = Self::new(
            &ordering(json!({})),
            &json!([{ "name": "pack", "agent": "y", "undo": { "request": {} } }]),
        );
        family.parent.process("first");
        family
    }

    fn records(&self, step: StepIndex) -> Vec<ChildRecord> {
        let own = self.children.iter().filter(|(of, ..)| *of == step);
        own.map(|(_, attempt, draft)| ChildRecord {
            id: draft.task.id(),
            attempt: *attempt,
            state: draft.task.status(),
            is_undo_requested: draft.task.undo.is_some(),
            version: 0,
        })
        .collect()
    }

    fn actions(&self, step: StepIndex) -> Vec<ChildAction> {
        child_actions(&self.parent.draft.task, step, &self.records(step), false)
    }

    fn child(&mut self, id: TaskId) -> &mut Draft {
        let mut children = self.children.iter_mut();
        let found = children.find(|(.., draft)| draft.task.id() == id);
        &mut found.unwrap().2
    }

    /// As the service does it.
    fn act(&mut self, step: StepIndex, action: &ChildAction) {
        let (by, now) = (self.parent.by.clone(), self.parent.now);
        match action {
            ChildAction::Make(attempt) => {
                let id = TaskId(Uuid::from_u128(100 + self.children.len() as u128));
                let task = &self.parent.draft.task;
                let details = Arc::new(
                    task.child_details(step, &self.workflow, id, None, now)
                        .unwrap(),
                );
                let begun = self.parent.apply(Command::BeginChild {
                    step,
                    attempt: *attempt,
                    child: details.clone(),
                });
                if begun.is_ok() {
                    let draft = Draft::submit(details, now);
                    self.children.push((step, *attempt, draft));
                }
            }
            ChildAction::Cancel(child) => {
                let _ = (self.child(*child)).apply(Command::Cancel { reason: None }, &by, now);
            }
            ChildAction::Undo { child, blocks, .. } => {
                let undone = (self.child(*child)).apply(Command::Undo { reason: None }, &by, now);
                if let (Err(refusal), Some((undo, attempt))) = (undone, blocks)
                    && refusal.prevents_undo()
                {
                    let refused = ChildReport::Refused("it is past its pivot".to_owned());
                    let _ = self.parent.apply(refused.to(*undo, *attempt));
                }
            }
            ChildAction::Report {
                step,
                attempt,
                news,
            } => {
                let report = match news {
                    News::State(child) => ChildReport::State(child.clone()),
                    News::Lost(_) => panic!("no child is ever deleted"),
                    News::Ended(None) => ChildReport::Ended {
                        child: None,
                        end: ChildEnd::Undone(None),
                    },
                    News::Ended(Some(child)) => {
                        let state = self.child(child.id).task.status();
                        let end = match state {
                            TaskStatus::Processed => ChildEnd::Processed(Payload::null()),
                            TaskStatus::Undone => ChildEnd::Undone(None),
                            TaskStatus::Cancelled => ChildEnd::Cancelled,
                            // An operator undoes it.
                            _ => return,
                        };
                        let child = Some(Child {
                            id: child.id,
                            state,
                        });
                        ChildReport::Ended { child, end }
                    }
                };
                let _ = self.parent.apply(report.to(*step, *attempt));
            }
        }
    }

    fn steps(&self) -> Vec<StepIndex> {
        let definition = &self.parent.draft.task.details.definition;
        let steps = definition.forward();
        steps
            .filter(|index| definition.step(*index).has_child())
            .filter(|index| definition.step(*index).undoes.is_none())
            .collect()
    }

    /// Does what is to be done until nothing is.
    pub fn agree(&mut self) {
        for _ in 0..50 {
            let mut acted = false;
            for step in self.steps() {
                for action in self.actions(step) {
                    acted = true;
                    self.act(step, &action);
                }
            }
            if !acted {
                return;
            }
            let waits = self
                .children
                .iter()
                .any(|(.., draft)| !draft.task.is_settled());
            let is_told = |step: &StepIndex| self.actions(*step).is_empty();
            if waits && self.steps().iter().all(is_told) {
                return;
            }
        }
    }

    /// Every call succeeds, and every operator gives up.
    pub fn finish(&mut self) {
        let (by, now) = (
            self.parent.by.clone(),
            self.parent.now + Span::from_secs(7200),
        );
        self.parent.now = now;
        for _ in 0..60 {
            let children = self.children.iter_mut().map(|(.., draft)| draft);
            for draft in children.chain([&mut self.parent.draft]) {
                finish_calls(draft, &by, now);
            }
            for (.., draft) in &mut self.children {
                if draft.task.status() == TaskStatus::Error {
                    let _ = draft.apply(Command::Cancel { reason: None }, &by, now);
                }
            }
            self.agree();
        }
    }
}

pub(super) fn finish_calls(draft: &mut Draft, by: &Actor, now: Timestamp) {
    if draft.task.paused {
        let _ = draft.apply(Command::Resume { reason: None }, by, now);
    }
    for step in draft.task.indexes().collect::<Vec<_>>() {
        let claimant = Claimant::Instance(InstanceId::new("node-1"));
        let _ = draft.apply(Command::Claim { step, by: claimant }, by, now);
        let attempt = draft.task.step(step).attempt;
        let outcome = success(json!({}));
        let _ = draft.apply(
            Command::Reply {
                step,
                attempt,
                outcome,
            },
            by,
            now,
        );
    }
}

#[test]
fn a_step_begins_without_a_call_and_is_done_when_its_child_is() {
    let mut family = Family::ordering();
    let ship = family.parent.step("ship");
    assert!(family.parent.draft.task.waits_for_child(ship));
    assert_eq!(family.parent.draft.task.due_at(ship), None);
    assert_eq!(family.actions(ship), [ChildAction::Make(Attempt(1))]);
    assert_eq!(
        family.parent.draft.task.blocked_by(ship, family.parent.now),
        Some(Blocked::Child {
            task: None,
            state: None
        })
    );
    family.agree();
    assert_eq!(family.children.len(), 1);
    let details = family.children[0].2.task.details.clone();
    assert_eq!(details.key.as_deref(), Some("p-30"));
    assert_eq!(details.input.as_json(), r#"{"total":30}"#);
    assert_eq!(
        details.trace.as_ref().unwrap().id,
        family.parent.draft.task.trace_id()
    );
    let parent = details.parent.as_ref().unwrap();
    assert_eq!(
        (parent.task.0.as_u128(), parent.step.as_str(), parent.depth),
        (7, "ship", 1)
    );
    // A second one is never made.
    family.act(ship, &ChildAction::Make(Attempt(1)));
    assert_eq!(family.children.len(), 1);
    family.finish();
    assert_eq!(family.parent.task(), TaskStatus::Processed);
}

#[test]
fn an_undo_names_the_child_that_it_waits_for_and_the_step_has_the_state_of_its_child_then() {
    let mut family = Family::ordering();
    family.agree();
    let (by, now) = (family.parent.by.clone(), family.parent.now);
    finish_calls(&mut family.children[0].2, &by, now);
    family.agree();
    assert_eq!(family.parent.status("ship"), StepStatus::Processed);
    family.parent.apply(Command::Undo { reason: None }).unwrap();
    let undo = family.parent.step("ship.undo");
    let child = family.children[0].2.task.id();
    let blocked = family.parent.draft.task.blocked_by(undo, now);
    let task = Some(child.0);
    assert_eq!(blocked, Some(Blocked::Child { task, state: None }));
    family.agree();
    finish_calls(&mut family.children[0].2, &by, now);
    family.agree();
    let state = TaskStatus::Undone;
    let expected = Some(Box::new(Child { id: child, state }));
    assert_eq!(family.parent.record("ship").child, expected);
}

#[test]
fn a_pause_of_a_child_does_not_hold_the_undo_that_its_parent_asks_for() {
    let of_child = json!([
        { "name": "pack", "agent": "y", "undo": { "request": {} } },
        { "name": "send", "agent": "y" },
    ]);
    let ordering = |on_error: &str| {
        let mut ship = ordering(json!({}));
        ship[1]["task"]["on_error"] = json!(on_error);
        let mut family = Family::new(&ship, &of_child);
        family.parent.process("first");
        family.agree();
        family
    };
    for on_error in ["undo", "wait"] {
        let mut family = ordering(on_error);
        let (by, now) = (family.parent.by.clone(), family.parent.now);
        let child = &mut family.children[0].2;
        let claim = |step| Command::Claim {
            step: StepIndex(step),
            by: Claimant::Instance(InstanceId::new("node-1")),
        };
        let reply = |step, outcome| Command::Reply {
            step: StepIndex(step),
            attempt: Attempt(1),
            outcome,
        };
        child.apply(claim(0), &by, now).unwrap();
        child.apply(reply(0, success(json!({}))), &by, now).unwrap();
        child.apply(claim(1), &by, now).unwrap();
        child
            .apply(Command::Pause { reason: None }, &by, now)
            .unwrap();
        child.apply(reply(1, refusal(422)), &by, now).unwrap();
        assert!(child.task.paused && child.task.status() == TaskStatus::Error);
        family.agree();
        let paused = family.children[0].2.task.paused;
        assert_eq!(paused, on_error == "wait");
        if paused {
            family.parent.apply(Command::Undo { reason: None }).unwrap();
            family.agree();
        }
        let child = &mut family.children[0].2;
        assert_eq!(child.task.status(), TaskStatus::Undoing);
        finish_calls(child, &by, now);
        assert_eq!(child.task.status(), TaskStatus::Undone);
    }
}

#[test]
fn a_pause_of_the_parent_holds_the_undo_of_its_children_in_error_until_it_is_resumed() {
    let of_child = json!([
        { "name": "pack", "agent": "y", "undo": { "request": {} } },
        { "name": "send", "agent": "y", "after": ["pack"] },
    ]);
    let plain = json!({ "task": { "workflow": "ship", "on_error": "undo" } });
    let mut list = plain.clone();
    list["for_each"] = json!([1, 2]);
    for (more, names) in [(plain, vec!["ship"]), (list, vec!["ship[0]", "ship[1]"])] {
        let mut family = Family::new(&ordering(more), &of_child);
        family.parent.process("first");
        let steps: Vec<_> = names.iter().map(|name| family.parent.step(name)).collect();
        let agree = |family: &mut Family| {
            for step in steps.iter().cycle().take(20) {
                for action in family.actions(*step) {
                    family.act(*step, &action);
                }
            }
        };
        agree(&mut family);
        assert_eq!(family.children.len(), names.len());
        let (by, now) = (family.parent.by.clone(), family.parent.now);
        let run = |child: &mut Draft, step, outcome| {
            let claimant = Claimant::Instance(InstanceId::new("node-1"));
            let step = StepIndex(step);
            let claim = Command::Claim { step, by: claimant };
            child.apply(claim, &by, now).unwrap();
            let attempt = child.task.step(step).attempt;
            let reply = Command::Reply {
                step,
                attempt,
                outcome,
            };
            child.apply(reply, &by, now).unwrap();
        };
        let pause = Command::Pause { reason: None };
        family.parent.apply(pause).unwrap();
        for (.., child) in &mut family.children {
            run(child, 0, success(json!({})));
            run(child, 1, refusal(422));
        }
        agree(&mut family);
        for (.., child) in &family.children {
            assert_eq!(child.task.status(), TaskStatus::Error, "{names:?}");
        }
        assert_eq!(family.parent.task(), TaskStatus::Paused, "{names:?}");

        // One of them is retried meanwhile: it is undone no more.
        let retry = Command::Retry {
            step: None,
            body: None,
            reason: None,
        };
        let first = &mut family.children[0].2;
        first.apply(retry, &by, now).unwrap();
        agree(&mut family);
        let first = family.children[0].2.task.status();
        assert_eq!(first, TaskStatus::Processing, "{names:?}");
        run(&mut family.children[0].2, 1, refusal(422));
        agree(&mut family);

        // The resumption marks each of the steps, so that an instance looks at them.
        family.parent.draft = Draft::on(family.parent.draft.task.clone());
        family
            .parent
            .apply(Command::Resume { reason: None })
            .unwrap();
        let draft = &family.parent.draft;
        assert_eq!(draft.task.steps_to_compare(&draft.changed), steps);
        agree(&mut family);
        for (.., child) in &mut family.children {
            assert_eq!(child.task.status(), TaskStatus::Undoing, "{names:?}");
            finish_calls(child, &by, now);
        }
        agree(&mut family);
        assert_eq!(family.parent.task(), TaskStatus::Error, "{names:?}");
    }
}

#[test]
fn the_undo_of_an_item_with_a_task_is_retried() {
    let mut bench = Bench::new(json!([
        { "name": "ship", "for_each": [1], "task": { "workflow": "ship" } },
    ]));
    let item = bench.step("ship[0]");
    let done = ChildReport::Ended {
        child: Some(Child {
            id: TaskId(Uuid::from_u128(8)),
            state: TaskStatus::Processed,
        }),
        end: ChildEnd::Processed(Payload::null()),
    };
    bench.apply(done.to(item, Attempt(1))).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
    bench.apply(Command::Undo { reason: None }).unwrap();
    let undo = bench.step("ship[0].undo");
    let refused = ChildReport::Refused("it is past its pivot".to_owned());
    bench.apply(refused.to(undo, Attempt(1))).unwrap();
    assert_eq!(bench.status("ship[0].undo"), StepStatus::Error);
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
    assert_eq!(bench.status("ship[0].undo"), StepStatus::Processing);
}

#[test]
fn a_late_or_repeated_report_changes_nothing() {
    let mut family = Family::ordering();
    let ship = family.parent.step("ship");
    family.agree();
    for attempt in [0, 2] {
        let end = ChildEnd::Processed(Payload::null());
        let report = ChildReport::Ended { child: None, end };
        let late = family.parent.apply(report.to(ship, Attempt(attempt)));
        assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    }
    for command in [
        Command::Skip {
            step: ship,
            output: None,
            reason: None,
        },
        Command::RetryFrom {
            step: ship,
            reason: None,
        },
    ] {
        let refused = family.parent.apply(command);
        assert!(
            matches!(refused, Err(Refusal::StepState { .. })),
            "{refused:?}"
        );
    }
    assert!(family.parent.claim("ship").is_err());
    assert!(
        family
            .parent
            .reply("ship", Attempt(1), success(json!(1)))
            .is_err()
    );
    // Its time is that of its child.
    family.parent.later(Span::LONGEST);
    family.parent.expire("ship").unwrap();
    assert!(family.parent.draft.task.waits_for_child(ship));
}

#[test]
fn a_parent_that_is_overdue_leaves_its_children_to_their_own_time() {
    let limit = Some(Span::from_secs(60));
    let mut family = Family::ordering();
    family.parent = Bench::limited(ordering(json!({})), limit);
    family.parent.process("first");
    family.parent.later(Span::from_secs(10));
    family.agree();
    let child = &family.children[0].2.task;
    assert_eq!(child.details.complete_within, Some(Span::from_secs(50)));
    assert_eq!(family.parent.draft.task.overdue_at(), None);
    family.parent.later(Span::from_secs(100));
    assert!(family.parent.apply(Command::Overdue).is_err());
}

#[test]
fn children_of_children_end_at_some_depth() {
    let mut family = Family::ordering();
    let ship = family.parent.step("ship");
    let mut task = family.parent.draft.task.clone();
    let definition = task.details.definition.clone();
    family.workflow.definition = definition;
    for depth in 1..=MOST_DEPTH + 1 {
        let id = TaskId(Uuid::from_u128(u128::from(depth)));
        let details = task.child_details(ship, &family.workflow, id, None, family.parent.now);
        match depth <= MOST_DEPTH {
            true => {
                let details = details.unwrap();
                assert_eq!(details.parent.as_ref().unwrap().root.0.as_u128(), 7);
                task = Draft::submit(Arc::new(details), family.parent.now).task;
            }
            false => assert!(details.unwrap_err().contains("at most 8 are allowed")),
        }
    }
}

/// One event in one of the tasks. Numbers are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Happens {
    /// The actions that are due are found.
    Look(usize),
    /// One of the actions is done, perhaps much later.
    Act(usize),
    Call(usize),
    Reply(usize, bool),
    Undo(usize),
    Cancel(usize),
    Retry(usize),
    Rerun(usize),
    Skip(usize),
    Pause(usize),
    Resume(usize),
}

fn happens() -> impl Strategy<Value = Vec<Happens>> {
    let at = 0..24usize;
    let one = prop_oneof![
        8 => at.clone().prop_map(Happens::Look),
        10 => at.clone().prop_map(Happens::Act),
        6 => at.clone().prop_map(Happens::Call),
        6 => (at.clone(), any::<bool>()).prop_map(|(at, well)| Happens::Reply(at, well)),
        1 => at.clone().prop_map(Happens::Undo),
        1 => at.clone().prop_map(Happens::Cancel),
        2 => at.clone().prop_map(Happens::Retry),
        1 => at.clone().prop_map(Happens::Rerun),
        1 => at.clone().prop_map(Happens::Skip),
        1 => at.clone().prop_map(Happens::Pause),
        1 => at.prop_map(Happens::Resume),
    ];
    vec(one, 0..80)
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn parents_and_children_agree_in_the_end(
        all in happens(),
        policy in prop_oneof![Just("error"), Just("undo"), Just("skip")],
        on_error in prop_oneof![Just("wait"), Just("undo")],
        of_child in prop_oneof![Just("error"), Just("undo")],
        pivot in any::<bool>(),
        unawaited in prop_oneof![2 => Just(None), 1 => Just(Some("leave")), 1 => Just(Some("undo"))],
        rest in prop_oneof![3 => Just(None), 1 => Just(Some("cancel")), 1 => Just(Some("let")), 2 => Just(Some("undo"))],
    ) {
        let step = |name: &str| json!({ "name": name, "on_permanent": policy,
            "task": { "workflow": "ship", "on_error": on_error } });
        let mut left = step("left");
        if let Some(on_undo) = unawaited {
            left["task"]["await"] = json!(false);
            left["task"].as_object_mut().unwrap().remove("on_error");
            left["task"]["on_undo"] = json!(on_undo);
        }
        let mut right = step("right");
        right["after"] = json!(["first"]);
        let after = match rest {
            None => json!(["left", "right"]),
            Some(rest) => json!({ "any": 1, "of": ["left", "right"], "rest": rest }),
        };
        let steps = json!([
            { "name": "first", "agent": "x", "on_permanent": policy, "undo": { "request": {} } },
            left, right,
            { "name": "last", "agent": "x", "after": after, "on_permanent": policy },
        ]);
        let mut pack = json!([
            { "name": "pack", "agent": "y", "on_permanent": of_child, "undo": { "request": {} } },
            { "name": "send", "agent": "y" },
        ]);
        if pivot {
            pack[1]["pivot"] = json!(true);
        }
        let mut family = Family::new(&steps, &pack);
        let mut planned: Vec<(StepIndex, ChildAction)> = Vec::new();
        for one in &all {
            let (by, now) = (family.parent.by.clone(), family.parent.now + Span::from_secs(1));
            family.parent.now = now;
            let count = family.children.len() + 1;
            let on = |family: &mut Family, at: usize, command: &dyn Fn(&Task) -> Command| {
                let draft = match (at % count).checked_sub(1) {
                    None => &mut family.parent.draft,
                    Some(child) => &mut family.children[child].2,
                };
                let command = command(&draft.task);
                let _ = draft.apply(command, &by, now);
            };
            let of_task = |task: &Task, at: usize| StepIndex((at / count % task.indexes().count()) as u16);
            match one {
                Happens::Look(at) => {
                    let steps = family.steps();
                    let step = steps[at % steps.len()];
                    planned.extend(family.actions(step).into_iter().map(|action| (step, action)));
                }
                Happens::Act(at) if !planned.is_empty() => {
                    let (step, action) = planned.remove(at % planned.len());
                    family.act(step, &action);
                }
                Happens::Act(_) => {}
                Happens::Call(at) => on(&mut family, *at, &|task| Command::Claim {
                    step: task.indexes().find(|step| task.due_at(*step).is_some()).unwrap_or(StepIndex(0)),
                    by: Claimant::Instance(InstanceId::new("node-1")),
                }),
                Happens::Reply(at, well) => on(&mut family, *at, &|task| {
                    let runs = |step: &StepIndex| task.step(*step).status() == StepStatus::Processing;
                    let step = task.indexes().find(runs).unwrap_or(StepIndex(0));
                    let outcome = match well {
                        true => success(json!({})),
                        false => refusal(400),
                    };
                    Command::Reply { step, attempt: task.step(step).attempt, outcome }
                }),
                Happens::Undo(at) => on(&mut family, *at, &|_| Command::Undo { reason: None }),
                Happens::Cancel(at) => on(&mut family, *at, &|_| Command::Cancel { reason: None }),
                Happens::Retry(at) => on(&mut family, *at, &|_| Command::Retry { step: None, body: None, reason: None }),
                Happens::Rerun(at) => on(&mut family, *at, &|task| Command::RetryFrom {
                    step: StepIndex((at / count % task.steps.len()) as u16), reason: None }),
                Happens::Skip(at) => on(&mut family, *at, &|task| Command::Skip {
                    step: of_task(task, *at), output: None, reason: None }),
                Happens::Pause(at) => on(&mut family, *at, &|_| Command::Pause { reason: None }),
                Happens::Resume(at) => on(&mut family, *at, &|_| Command::Resume { reason: None }),
            }
        }
        for (step, action) in planned {
            family.act(step, &action);
        }
        family.finish();
        let parent = &family.parent.draft.task;
        prop_assert!(parent.is_settled(), "{:?} {:?}", parent, family.children);
        let mut attempts: Vec<_> = family.children.iter().map(|(step, attempt, _)| (*step, *attempt)).collect();
        let made = attempts.len();
        attempts.sort_unstable();
        attempts.dedup();
        prop_assert_eq!(attempts.len(), made, "an attempt has one child");
        for step in family.steps() {
            prop_assert_eq!(family.actions(step), [], "nothing is left to be done");
        }
        for (step, attempt, child) in &family.children {
            let state = child.task.status();
            prop_assert!(state.is_ended(), "{:?} with a parent {:?}", child.task, parent);
            let record = parent.step(*step);
            let rule = parent.definition(*step).child_rule().unwrap();
            if !rule.ends_with_parent() {
                prop_assert!(child.task.undo.is_none() || unawaited.is_some());
                continue;
            }
            match parent.status() {
                TaskStatus::Undone if !record_was_skipped(parent, *step) => {
                    prop_assert_ne!(state, TaskStatus::Processed, "{:?} {:?}", parent, child.task);
                }
                TaskStatus::Processed if parent.loss(*step) == Some(RaceRest::Undo) && record.attempt == *attempt => {
                    let by_hand = all.iter().any(|one| matches!(one, Happens::Skip(_)));
                    prop_assert!(by_hand || state != TaskStatus::Processed, "{:?} {:?}", parent, child.task);
                }
                _ if rule.is_awaited && record.attempt == *attempt && record.status() == StepStatus::Processed => {
                    prop_assert!(record.child.as_ref().is_some_and(|known| known.state == TaskStatus::Processed));
                }
                _ => {}
            }
        }
    }
}

/// An operator went on without the undo of this step.
fn record_was_skipped(parent: &Task, step: StepIndex) -> bool {
    let undo = parent.definition(step).undo.unwrap();
    parent.step(undo).status() == StepStatus::Skipped
        && parent.step(step).status() != StepStatus::Undone
}

/// The child of `ship` is made, and nobody waits for it.
fn unawaited(on_undo: Option<&str>) -> Family {
    let mut ship = ordering(json!({}));
    ship[1]["task"]["await"] = json!(false);
    if let Some(on_undo) = on_undo {
        ship[1]["task"]["on_undo"] = json!(on_undo);
    }
    let of_child = json!([{ "name": "pack", "agent": "y", "undo": { "request": {} } }]);
    let mut family = Family::new(&ship, &of_child);
    family.parent.process("first");
    family.agree();
    family
}

#[test]
fn a_step_that_does_not_wait_is_done_as_soon_as_its_child_is_made() {
    let mut family = unawaited(None);
    assert_eq!(family.children.len(), 1);
    let child = family.children[0].2.task.id();
    assert_eq!(family.parent.status("ship"), StepStatus::Processed);
    let output: Value =
        serde_json::from_str(family.parent.record("ship").output().unwrap().as_json()).unwrap();
    assert_eq!(
        output,
        json!({ "id": child.0.to_string(), "workflow": "ship", "version": 1 })
    );
    assert_eq!(family.parent.status("last"), StepStatus::Pending);
    family.parent.process("last");
    assert_eq!(family.parent.task(), TaskStatus::Processed);
    assert_eq!(family.children[0].2.task.status(), TaskStatus::Pending);
    family.finish();
    assert_eq!(family.children[0].2.task.status(), TaskStatus::Processed);
}

#[test]
fn a_child_for_which_nobody_waits_is_undone_with_its_parent_only_where_the_step_says_so() {
    for (on_undo, ends) in [(None, false), (Some("leave"), false), (Some("undo"), true)] {
        for command in [
            Command::Undo { reason: None },
            Command::Cancel { reason: None },
        ] {
            let is_undo = matches!(command, Command::Undo { .. });
            let mut family = unawaited(on_undo);
            family.parent.draft.changed.clear();
            family.parent.apply(command).unwrap();
            let task = &family.parent.draft.task;
            let compared = task.steps_to_compare(&family.parent.draft.changed);
            let ship = family.parent.step("ship");
            assert!(!ends || compared.contains(&ship), "{compared:?}");
            family.agree();
            let child = &family.children[0].2.task;
            let expected = match (ends, is_undo) {
                (false, _) => TaskStatus::Pending,
                // Nothing of it was done yet.
                (true, true) => TaskStatus::Undone,
                (true, false) => TaskStatus::Cancelled,
            };
            assert_eq!(child.status(), expected, "{on_undo:?} {is_undo}");
            family.finish();
            assert!(family.parent.draft.task.is_settled());
        }
    }
}

#[test]
fn a_child_that_goes_on_without_its_parent_has_all_the_time_of_its_own() {
    let mut steps = ordering(json!({ "complete_within": "2h" }));
    steps[1]["task"]["await"] = json!(false);
    let within = |steps: &Value| {
        let mut parent = Bench::limited(steps.clone(), Some(Span::from_secs(60)));
        parent.process("first");
        let workflow = Family::ordering().workflow;
        let (step, id) = (parent.step("ship"), TaskId(Uuid::from_u128(100)));
        let details = parent
            .draft
            .task
            .child_details(step, &workflow, id, None, parent.now);
        details.unwrap().complete_within
    };
    assert_eq!(within(&steps), Some(Span::from_secs(7200)));
    steps[1]["task"]["on_undo"] = json!("undo");
    assert_eq!(within(&steps), Some(Span::from_secs(60)));
}
