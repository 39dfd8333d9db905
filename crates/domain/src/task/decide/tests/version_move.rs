//! Tasks that move to another version of their workflow.

use super::*;
use crate::task::{
    open_reply::ReplyDigest,
    version_move::{StepChange, check_move},
};

fn order() -> Value {
    json!([
        { "name": "reserve", "agent": "stock", "undo": { "request": { "path": "/cancel" } } },
        { "name": "charge", "agent": "bank", "request": { "path": "/charges" } },
        { "name": "ship", "agent": "carrier" },
    ])
}

fn moves(bench: &mut Bench, steps: &Value) -> Result<CommandOutput, Refusal> {
    let to = Arc::new(bench.version(steps, 2));
    bench.apply(Command::Migrate {
        to,
        reason: Some("because".to_owned()),
    })
}

/// The reasons why the steps do not map.
fn unmapped(bench: &mut Bench, steps: &Value) -> Vec<(String, String)> {
    let before = bench.draft.task.clone();
    let told = bench.draft.events.len();
    let refused = moves(bench, steps).unwrap_err();
    assert_eq!(before, bench.draft.task);
    assert_eq!(told, bench.draft.events.len());
    let Refusal::Unmapped { steps, .. } = refused else {
        panic!("{refused:?}");
    };
    let steps = steps.iter();
    steps
        .map(|step| (step.step.to_string(), step.reason.clone()))
        .collect()
}

fn reason(step: &str, reason: &str) -> Vec<(String, String)> {
    vec![(step.to_owned(), reason.to_owned())]
}

#[test]
fn a_task_that_has_not_begun_gets_the_steps_of_the_new_version() {
    let mut bench = Bench::of_workflow(&order(), None);
    let steps = json!([
        { "name": "check", "agent": "fraud" },
        { "name": "charge", "agent": "bank", "request": { "path": "/v2/charges" } },
    ]);
    moves(&mut bench, &steps).unwrap();
    let task = &bench.draft.task;
    assert_eq!(task.details.workflow.as_ref().unwrap().version, 2);
    let names: Vec<_> = task
        .own_indexes()
        .map(|index| task.definition(index).name.as_str())
        .collect();
    assert_eq!(names, ["check", "charge"]);
    assert_eq!(bench.status("check"), StepStatus::Pending);
    assert_eq!(bench.status("charge"), StepStatus::Waiting);
    assert_eq!(task.status(), TaskStatus::Pending);
    assert!(task.find("ship").is_none());
    assert!(bench.draft.ready.contains(&bench.step("check")));
    let moved = bench
        .draft
        .events
        .iter()
        .find(|event| event.kind == "task.migrated")
        .unwrap();
    let versions = moved.versions.unwrap();
    assert_eq!((versions.from, versions.to), (1, 2));
    assert_eq!(moved.reason.as_deref(), Some("because"));
    assert_eq!(moved.by, bench.by);
    bench.process("check");
    bench.process("charge");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn an_index_is_never_that_of_another_step() {
    let mut bench = Bench::of_workflow(&order(), None);
    let before = ["reserve", "charge", "ship"].map(|name| (name, bench.step(name)));
    let mut steps = order();
    let list = steps.as_array_mut().unwrap();
    list.insert(0, json!({ "name": "first", "agent": "x" }));
    list.remove(2);
    moves(&mut bench, &steps).unwrap();
    for (name, index) in before {
        assert_eq!(bench.draft.task.definition(index).name.as_str(), name);
    }
    assert_eq!(bench.step("first"), StepIndex(3));
    let gone = Command::Skip {
        step: before[1].1,
        output: None,
        reason: None,
    };
    assert!(matches!(bench.apply(gone), Err(Refusal::StepRemoved(_))));
    // Back again, it has its own index.
    let to = Arc::new(bench.version(&order(), 1));
    bench.apply(Command::Migrate { to, reason: None }).unwrap();
    assert_eq!(bench.step("charge"), before[1].1);
    for name in ["reserve", "charge", "ship"] {
        bench.process(name);
    }
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn what_runs_goes_on_and_its_reply_counts() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    let charge = bench.step("charge");
    let mut steps = order();
    steps[1]["complete_within"] = json!("5m");
    steps[1]["undo"] = json!({ "request": { "path": "/refunds" } });
    let list = steps.as_array_mut().unwrap();
    list.insert(2, json!({ "name": "notify", "agent": "mail" }));
    moves(&mut bench, &steps).unwrap();
    assert_eq!(bench.step("charge"), charge);
    bench.reply("charge", attempt, success(json!(1))).unwrap();
    assert_eq!(bench.status("notify"), StepStatus::Pending);
    assert_eq!(bench.status("ship"), StepStatus::Waiting);
    // The undo of the new version is what undoes it.
    bench.apply(Command::Undo { reason: None }).unwrap();
    bench.process("charge.undo");
    bench.process("reserve.undo");
    assert_eq!(bench.task(), TaskStatus::Undone);
}

#[test]
fn every_step_that_does_not_map_is_named_with_the_reason() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    bench.claim("charge").unwrap();
    let steps = json!([
        { "name": "reserve", "agent": "store", "undo": { "request": { "path": "/cancel" } } },
        { "name": "charge", "agent": "bank", "request": { "path": "/v2" } },
    ]);
    assert_eq!(
        unmapped(&mut bench, &steps),
        [
            reason("reserve", "its `agent` differs, and the step is processed"),
            reason("charge", "its `request` differs, and the step is running"),
        ]
        .concat()
    );
    assert_eq!(
        unmapped(&mut bench, &json!([{ "name": "ship", "agent": "carrier" }])),
        [
            reason(
                "reserve",
                "version 2 has no such step, and the step is processed"
            ),
            reason(
                "charge",
                "version 2 has no such step, and the step is running"
            ),
        ]
        .concat()
    );
    let mut steps = order();
    steps
        .as_array_mut()
        .unwrap()
        .insert(0, json!({ "name": "first", "agent": "x" }));
    assert_eq!(
        unmapped(&mut bench, &steps),
        reason(
            "reserve",
            "in version 2 it follows first, which is not done, and the step is processed"
        )
    );
    let mut steps = order();
    steps[1]["pivot"] = json!(true);
    assert_eq!(
        unmapped(&mut bench, &steps),
        reason("charge", "its `pivot` differs, and the step is running")
    );
    let mut steps = order();
    steps[1]["probe"] = json!({ "request": { "path": "/charges/1" } });
    assert_eq!(
        unmapped(&mut bench, &steps),
        reason("charge", "its `probe` differs, and the step is running")
    );
}

#[test]
fn a_step_that_failed_without_effect_gets_its_new_request_and_waits_for_an_operator() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    bench.reply("charge", attempt, refusal(400)).unwrap();
    let mut steps = order();
    steps[1]["request"] = json!({ "path": "/v2/charges" });
    steps[1]["agent"] = json!("new-bank");
    moves(&mut bench, &steps).unwrap();
    assert_eq!(bench.status("charge"), StepStatus::Error);
    assert_eq!(bench.task(), TaskStatus::Error);
    let step = bench.step("charge");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
    let Ok(CommandOutput::Call(call)) = bench.apply(Command::Claim { step, by }) else {
        panic!("no call");
    };
    assert_eq!(call.path, "/v2/charges");
    assert_eq!(call.attempt, Attempt(2));
}

#[test]
fn a_failed_step_that_gets_another_before_it_waits_for_that() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    bench.reply("charge", attempt, refusal(400)).unwrap();
    let mut steps = order();
    steps
        .as_array_mut()
        .unwrap()
        .insert(1, json!({ "name": "token", "agent": "bank" }));
    let to = bench.version(&steps, 2);
    let report = check_move(&bench.draft.task, &to);
    let changes: Vec<_> = report.steps.iter().map(|step| step.change).collect();
    let expected = [
        StepChange::Same,
        StepChange::Added,
        StepChange::Reset,
        StepChange::Same,
    ];
    assert_eq!(changes, expected.map(Some));
    moves(&mut bench, &steps).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processing);
    assert_eq!(bench.status("charge"), StepStatus::Waiting);
    assert!(bench.draft.alerts.contains(&AlertChange::Close {
        step: bench.step("charge")
    }));
    bench.process("token");
    bench.process("charge");
    bench.process("ship");
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_step_that_may_have_taken_effect_keeps_its_request_and_may_get_another_probe() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    let attempt = bench.claim("charge").unwrap();
    bench.lose("charge", attempt).unwrap();
    let mut steps = order();
    steps[1]["request"] = json!({ "path": "/v2/charges" });
    assert_eq!(
        unmapped(&mut bench, &steps),
        reason(
            "charge",
            "its `request` differs, and the step may have taken effect"
        )
    );
    let mut steps = order();
    steps[1]["probe"] = json!({ "request": { "path": "/charges/{{ task.id }}" } });
    moves(&mut bench, &steps).unwrap();
}

#[test]
fn a_promised_reply_counts_after_the_move() {
    let mut bench = Bench::of_workflow(&order(), None);
    let attempt = bench.claim("reserve").unwrap();
    bench
        .reply("reserve", attempt, CallOutcome::Deferred)
        .unwrap();
    let step = bench.step("reserve");
    let mut steps = order();
    steps
        .as_array_mut()
        .unwrap()
        .insert(0, json!({ "name": "beside", "agent": "x" }));
    steps[1]["after"] = json!([]);
    moves(&mut bench, &steps).unwrap();
    bench
        .apply(Command::LaterReply {
            step,
            attempt,
            outcome: success(json!("reserved")),
            digest: ReplyDigest("d".to_owned()),
        })
        .unwrap();
    assert_eq!(bench.status("reserve"), StepStatus::Processed);
    assert_eq!(bench.status("charge"), StepStatus::Pending);
}

#[test]
fn a_late_reply_to_a_step_that_is_gone_changes_nothing() {
    let mut bench = Bench::of_workflow(&order(), None);
    let attempt = bench.claim("reserve").unwrap();
    bench.reply("reserve", attempt, refusal(400)).unwrap();
    let step = bench.step("reserve");
    moves(&mut bench, &json!([{ "name": "other", "agent": "x" }])).unwrap();
    let late = bench.apply(Command::Reply {
        step,
        attempt,
        outcome: success(json!(1)),
    });
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    assert_eq!(bench.task(), TaskStatus::Pending);
}

#[test]
fn a_signal_that_came_early_holds_its_step() {
    let steps = json!([
        { "name": "a", "agent": "x" },
        { "name": "approval", "signal": { "within": "1h" } },
    ]);
    let mut bench = Bench::of_workflow(&steps, None);
    let signal = Command::Signal {
        step: bench.step("approval"),
        payload: Payload::null(),
        digest: ReplyDigest("d".to_owned()),
    };
    bench.apply(signal).unwrap();
    let mut changed = steps.clone();
    changed[1]["signal"]["within"] = json!("2h");
    assert_eq!(
        unmapped(&mut bench, &changed),
        reason("approval", "its signal has come, and its `signal` differs")
    );
    assert_eq!(
        unmapped(&mut bench, &json!([{ "name": "a", "agent": "x" }])),
        reason(
            "approval",
            "version 2 has no such step, and its signal has come"
        )
    );
}

#[test]
fn a_task_with_inline_steps_or_one_that_is_undone_cannot_move() {
    let mut inline = Bench::new(order());
    assert!(matches!(
        moves(&mut inline, &order()),
        Err(Refusal::TaskState { .. })
    ));
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert!(matches!(
        moves(&mut bench, &order()),
        Err(Refusal::TaskState { .. })
    ));
    bench.process("reserve.undo");
    assert!(matches!(
        moves(&mut bench, &order()),
        Err(Refusal::Ended(_))
    ));
}

#[test]
fn a_command_that_was_made_for_other_steps_is_refused() {
    let mut bench = Bench::of_workflow(&order(), None);
    let steps = json!([{ "name": "a", "agent": "x" }, { "name": "reserve", "agent": "stock" }]);
    let stale = Arc::new(bench.version(&steps, 2));
    moves(&mut bench, &json!([{ "name": "b", "agent": "x" }])).unwrap();
    let moved = bench.apply(Command::Migrate {
        to: stale,
        reason: None,
    });
    assert!(matches!(moved, Err(Refusal::MovedMeanwhile)), "{moved:?}");
}

#[test]
fn a_command_that_lacks_steps_that_the_task_has_by_now_is_refused() {
    let mut bench = Bench::of_workflow(&order(), None);
    let stale = Arc::new(bench.version(&order(), 3));
    let mut longer = order();
    let last = json!({ "name": "last", "agent": "x" });
    longer.as_array_mut().unwrap().push(last);
    moves(&mut bench, &longer).unwrap();
    let moved = bench.apply(Command::Migrate {
        to: stale,
        reason: None,
    });
    assert!(matches!(moved, Err(Refusal::MovedMeanwhile)), "{moved:?}");
}

#[test]
fn a_move_to_the_version_that_the_task_has_changes_nothing() {
    let mut bench = Bench::of_workflow(&order(), None);
    moves(&mut bench, &order()).unwrap();
    assert!(matches!(
        moves(&mut bench, &order()),
        Ok(CommandOutput::Unchanged)
    ));
}

#[test]
fn a_task_without_steps_that_are_left_to_do_is_processed() {
    let mut bench = Bench::of_workflow(&order(), None);
    bench.process("reserve");
    moves(&mut bench, &json!([order()[0]])).unwrap();
    assert_eq!(bench.task(), TaskStatus::Processed);
}

#[test]
fn a_competitor_that_comes_after_the_end_of_its_race_never_begins() {
    let join = |of: Value| json!({ "name": "join", "agent": "x", "after": { "any": 1, "of": of } });
    for more in [
        json!({}),
        json!({ "when": "input.missing > 1" }),
        json!({ "wait": { "for": "1h" } }),
    ] {
        let mut late = json!({ "name": "late", "after": [] });
        if more.get("wait").is_none() {
            late["agent"] = json!("x");
        }
        late.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let before = json!([{ "name": "a", "agent": "x", "after": [] }, join(json!(["a"]))]);
        let after =
            json!([{ "name": "a", "agent": "x", "after": [] }, late, join(json!(["a", "late"]))]);
        let mut bench = Bench::of_workflow(&before, None);
        bench.process("a");
        bench.claim("join").unwrap();
        let to = bench.version(&after, 2);
        let reason = None;
        bench
            .apply(Command::Migrate {
                to: Arc::new(to),
                reason,
            })
            .unwrap();
        assert_eq!(bench.status("late"), StepStatus::Cancelled, "{more}");
        assert_eq!(bench.task(), TaskStatus::Processing, "{more}");
    }
}

#[test]
fn a_retry_of_all_that_is_in_error_leaves_what_the_first_of_them_has_ended() {
    let failing = |name: &str| json!({ "name": name, "agent": "bank", "after": [], "when": "input.none.such" });
    let mut bench = Bench::of_workflow(&json!([failing("a"), failing("b")]), None);
    assert_eq!(bench.task(), TaskStatus::Error);
    let stop = json!({ "name": "a", "after": [], "stop": { "state": "processed" } });
    moves(&mut bench, &json!([stop, failing("b")])).unwrap();
    assert_eq!(
        (bench.status("a"), bench.status("b")),
        (StepStatus::Error, StepStatus::Error)
    );
    bench
        .apply(Command::Retry {
            step: None,
            body: None,
            reason: None,
        })
        .unwrap();
    assert_eq!(bench.status("a"), StepStatus::Processed);
    assert_eq!(bench.status("b"), StepStatus::Cancelled);
    assert_eq!(bench.task(), TaskStatus::Processed);
}
