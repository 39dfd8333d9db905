//! Tests like [`super::tests`], for lists, children, moves, schedules, asks and tasks for later.

use std::time::Duration;

use super::{
    At, Decision, Deed, Evidence, Found, Kind, Record, Rule, Run, Scheduled,
    evidence::{Accepted, Parent, PlannedAsk, PlannedItems, PlannedStep},
    tests::{at, call, effect, entry, finds, planned, processed, record},
};

/// Adds a list of two items, one after the other, that is done.
fn listed(evidence: &mut Evidence) {
    processed(evidence);
    let item = |name: &str| PlannedStep {
        of: Some("all".to_owned()),
        ..planned(name, &[])
    };
    let group = PlannedStep {
        uncalled: true,
        undo: false,
        items: Some(PlannedItems {
            count: 2,
            at_once: 1,
            iterations: None,
        }),
        ..planned("all", &[])
    };
    evidence.accepted[0].plan.steps = vec![group, item("all[0]"), item("all[1]")];
    let record = record(evidence);
    record.history = vec![
        entry(0, 1, "task.accepted", "", ">pending"),
        entry(0, 1, "step.ready", "all", "waiting>pending"),
        entry(0, 1, "step.began", "all", "pending>processing"),
        entry(0, 1, "step.ready", "all[0]", "waiting>pending"),
        entry(0, 1, "step.claimed", "all[0]", "pending>processing"),
        entry(0, 1, "task.processing", "", "pending>processing"),
        entry(100, 2, "step.processed", "all[0]", "processing>processed"),
        entry(100, 2, "step.ready", "all[1]", "waiting>pending"),
        entry(100, 2, "step.claimed", "all[1]", "pending>processing"),
        entry(200, 3, "step.processed", "all[1]", "processing>processed"),
        entry(200, 3, "step.processed", "all", "processing>processed"),
        entry(200, 3, "task.processed", "", "processing>processed"),
    ];
    record.steps = ["all", "all[0]", "all[1]"]
        .map(|name| (name.to_owned(), "processed".to_owned()))
        .into();
    evidence.ledger.calls = vec![
        call(50, Kind::Work, "all[0]", Found::Nothing),
        call(120, Kind::Work, "all[1]", Found::Nothing),
    ];
    evidence.ledger.effects = vec![
        effect(50, "all[0]", Deed::Done),
        effect(120, "all[1]", Deed::Done),
    ];
}

#[test]
fn items_that_run_at_once_and_a_group_that_ends_before_them_are_found() {
    finds(&[], listed);
    finds(&[Rule::ItemsTooMany], |evidence| {
        listed(evidence);
        let history = &mut record(evidence).history;
        let early: Vec<_> = history.drain(7..9).collect();
        for mut entry in early.into_iter().rev() {
            (entry.at, entry.version) = (at(0), 1);
            history.insert(5, entry);
        }
        evidence.ledger.calls[1].at = at(60);
        evidence.ledger.effects[1].at = at(60);
    });
    finds(&[Rule::ItemsDisagree], |evidence| {
        listed(evidence);
        record(evidence).history.swap(9, 10);
    });
    finds(&[Rule::ItemsDisagree], |evidence| {
        listed(evidence);
        evidence.accepted[0].plan.steps.push(PlannedStep {
            of: Some("all".to_owned()),
            uncalled: true,
            ..planned("all[2]", &[])
        });
    });
}

/// Does the same for a step with `repeat` of which this number of iterations have ended.
fn repeated(evidence: &mut Evidence, iterations: usize) {
    listed(evidence);
    let steps = &mut evidence.accepted[0].plan.steps;
    steps[0].items = Some(PlannedItems {
        count: 16,
        at_once: 1,
        iterations: Some(iterations),
    });
    steps[2].after = vec!["all[0]".to_owned()];
}

#[test]
fn a_step_that_is_repeated_too_seldom_or_out_of_order_is_found() {
    finds(&[], |evidence| repeated(evidence, 2));
    finds(&[Rule::ItemsDisagree], |evidence| repeated(evidence, 3));
    finds(&[Rule::ForwardOrder, Rule::ItemsTooMany], |evidence| {
        repeated(evidence, 2);
        evidence.ledger.calls[0].at = at(110);
        evidence.ledger.calls[1].at = at(105);
        evidence.ledger.effects[0].at = at(110);
        evidence.ledger.effects[1].at = at(105);
        let history = &mut record(evidence).history;
        history[6].at = at(120);
    });
}

/// Changes the second step to one with a child, which is done.
fn with_child(evidence: &mut Evidence) {
    processed(evidence);
    let step = &mut evidence.accepted[0].plan.steps[1];
    (step.uncalled, step.undo, step.child) = (true, false, Some("part".to_owned()));
    let history = &mut record(evidence).history;
    history[6].kind = "step.began".to_owned();
    let mut note = entry(100, 2, "step.child", "two", "processing>processing");
    note.reason = "its task is c, of workflow part version 1".to_owned();
    history.insert(7, note);
    evidence.ledger.calls.truncate(1);
    evidence.ledger.effects.truncate(1);
    evidence.accepted.push(Accepted {
        id: "c".to_owned(),
        ..Accepted::default()
    });
    let child = Record {
        state: "processed".to_owned(),
        version: 2,
        workflow: Some(("part".to_owned(), 1)),
        parent: Some(Parent {
            task: "t".to_owned(),
            step: "two".to_owned(),
            attempt: 1,
        }),
        history: vec![
            entry(100, 1, "task.accepted", "", ">pending"),
            entry(150, 2, "task.processed", "", "pending>processed"),
        ],
        ..Record::default()
    };
    evidence.records.insert("c".to_owned(), child);
}

#[test]
fn a_child_that_nobody_asked_for_or_that_is_gone_or_ends_otherwise_is_found() {
    let child = |evidence: &mut Evidence, change: fn(&mut Record)| {
        with_child(evidence);
        change(evidence.records.get_mut("c").unwrap());
    };
    finds(&[], with_child);
    finds(&[Rule::ChildUnasked], |evidence| {
        child(evidence, |child| child.history[0].at = at(110));
    });
    finds(&[Rule::ChildUnasked], |evidence| {
        child(evidence, |child| {
            child.workflow = Some(("other".to_owned(), 1))
        });
    });
    finds(&[Rule::ChildDisagrees], |evidence| {
        child(evidence, |child| child.history[1].at = at(250));
    });
    finds(&[Rule::ChildMissing, Rule::ChildDisagrees], |evidence| {
        with_child(evidence);
        evidence.records.remove("c");
        evidence.accepted.pop();
    });
    finds(&[Rule::ChildStands], |evidence| {
        child(evidence, |child| {
            child.state = "error".to_owned();
            child.history[1] = entry(150, 2, "task.error", "", "pending>error");
        });
        let record = record(evidence);
        record.history.truncate(8);
        record.history.extend([
            entry(200, 3, "step.cancelled", "two", "processing>cancelled"),
            entry(200, 3, "task.cancelled", "", "processing>cancelled"),
        ]);
        record.state = "cancelled".to_owned();
        record
            .steps
            .insert("two".to_owned(), "cancelled".to_owned());
    });
}

#[test]
fn a_task_that_has_moved_and_does_what_another_version_says_is_found() {
    let moved = |evidence: &mut Evidence, version: u32| {
        processed(evidence);
        let record = record(evidence);
        let mut moved = entry(100, 2, "task.migrated", "", "processing>processing");
        moved.versions = Some((1, 2));
        record.history.insert(7, moved);
        record.workflow = Some(("order".to_owned(), version));
    };
    finds(&[], |evidence| moved(evidence, 2));
    finds(&[Rule::MoveBroken], |evidence| moved(evidence, 3));
    finds(&[Rule::MoveBroken], |evidence| {
        moved(evidence, 2);
        evidence.accepted[0].plan.steps[1].made_by = 2;
    });
    finds(&[Rule::MoveBroken], |evidence| {
        moved(evidence, 2);
        evidence.accepted[0].plan.steps.push(PlannedStep {
            uncalled: true,
            ..planned("new", &[])
        });
    });
}

fn run(number: u64, fires: i64, task: Option<&str>) -> Run {
    Run {
        number,
        first: at(fires),
        last: at(fires),
        is_triggered: false,
        state: "skipped".to_owned(),
        task: task.map(str::to_owned),
    }
}

/// Changes the task to one of a schedule that fires each second.
fn scheduled(evidence: &mut Evidence) {
    processed(evidence);
    record(evidence).schedule = Some("tick".to_owned());
    evidence.schedules.push(Scheduled {
        name: "tick".to_owned(),
        every: Duration::from_secs(1),
        is_alone: true,
        from: at(500),
        to: at(2500),
        triggered: Vec::new(),
        unclear: 0,
        runs: vec![run(1, 1000, Some("t")), run(2, 2000, None)],
    });
}

#[test]
fn a_time_of_a_schedule_without_a_run_or_with_two_and_runs_at_once_are_found() {
    finds(&[], scheduled);
    finds(&[Rule::FireMissing], |evidence| {
        scheduled(evidence);
        evidence.schedules[0].runs.pop();
    });
    finds(&[Rule::FireMissing], |evidence| {
        scheduled(evidence);
        evidence.schedules[0].triggered.push(3);
    });
    finds(&[Rule::FiredTwice], |evidence| {
        scheduled(evidence);
        evidence.schedules[0].runs.push(run(3, 2000, None));
    });
    finds(&[Rule::FiredTwice], |evidence| {
        scheduled(evidence);
        evidence.schedules[0].runs[0].task = None;
    });
    finds(&[Rule::RunsOverlap], |evidence| {
        scheduled(evidence);
        evidence.schedules[0].runs[1].task = Some("u".to_owned());
        evidence.accepted.push(Accepted {
            id: "u".to_owned(),
            ..Accepted::default()
        });
        let other = Record {
            state: "processed".to_owned(),
            version: 2,
            schedule: Some("tick".to_owned()),
            history: vec![
                entry(150, 1, "task.accepted", "", ">pending"),
                entry(300, 2, "task.processed", "", "pending>processed"),
            ],
            ..Record::default()
        };
        evidence.records.insert("u".to_owned(), other);
    });
}

#[test]
fn a_task_that_begins_before_its_time_is_found() {
    finds(&[Rule::StartedEarly], |evidence| {
        processed(evidence);
        evidence.accepted[0].plan.start_at = Some(at(80));
    });
    finds(&[], |evidence| {
        processed(evidence);
        evidence.accepted[0].plan.start_at = Some(At(0));
    });
}

/// Changes the first step to an approval by two people, who have sent it.
fn approved(evidence: &mut Evidence) {
    processed(evidence);
    let step = &mut evidence.accepted[0].plan.steps[0];
    (step.uncalled, step.undo) = (true, false);
    step.ask = Some(PlannedAsk {
        of: vec!["ann".to_owned(), "bob".to_owned()],
        approvals: 2,
    });
    record(evidence).history[2].kind = "step.began".to_owned();
    for (place, version, person) in [(4, 1, "ann"), (5, 2, "bob")] {
        let millis = if version == 1 { 0 } else { 100 };
        let mut decided = entry(
            millis,
            version,
            "step.decided",
            "one",
            "processing>processing",
        );
        decided.by = format!("person:{person}");
        decided.reason = format!("{person} chose approve");
        record(evidence).history.insert(place, decided);
        evidence.decisions.push(Decision {
            task: "t".to_owned(),
            step: "one".to_owned(),
            person: person.to_owned(),
            choice: "approve".to_owned(),
            sent: at(-10),
            answered: at(110),
            status: 200,
        });
    }
    evidence.ledger.calls.remove(0);
    evidence.ledger.effects.remove(0);
}

#[test]
fn a_decision_that_nobody_sent_or_that_is_lost_or_counts_twice_is_found() {
    finds(&[], approved);
    finds(&[Rule::DecidedByNobody], |evidence| {
        approved(evidence);
        evidence.decisions.pop();
    });
    finds(&[Rule::DecidedByNobody, Rule::DecisionLost], |evidence| {
        approved(evidence);
        record(evidence).history.remove(4);
    });
    finds(&[Rule::DecidedTwice, Rule::DecidedByNobody], |evidence| {
        approved(evidence);
        record(evidence).history[5].by = "person:ann".to_owned();
        evidence.decisions.pop();
    });
}
