//! Steps that are run for each item of a list.

use super::*;
use crate::{
    definition::{Policies, for_each::MOST_ITEMS},
    task::step_list::looks,
    view::{
        blocked::Blocked,
        prediction::{AgentOutlook, predict},
        task::TaskView,
    },
};

fn group(fields: Value) -> Value {
    let mut step = json!({ "name": "all", "agent": "x", "for_each": [10, 20, 30], "max_parallel": 2,
        "request": { "path": "/{{ item }}/{{ index }}" },
        "undo": { "request": { "path": "/undo/{{ item }}/{{ index }}" } } });
    let fields = fields.as_object().unwrap().clone();
    step.as_object_mut().unwrap().extend(fields);
    step
}

fn bench(fields: Value) -> Bench {
    Bench::new(json!([group(fields), { "name": "last", "agent": "x" }]))
}

fn claimed_path(bench: &mut Bench, name: &str) -> String {
    let step = bench.step(name);
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step, by }).unwrap() {
        CommandOutput::Call(call) => call.path,
        other => panic!("{other:?}"),
    }
}

fn refuse(bench: &mut Bench, name: &str) {
    let attempt = bench.claim(name).unwrap();
    bench.reply(name, attempt, refusal(422)).unwrap();
}

fn retry(bench: &mut Bench, name: &str) -> Result<CommandOutput, Refusal> {
    let step = Some(bench.step(name));
    bench.apply(Command::Retry {
        step,
        body: None,
        reason: None,
    })
}

#[test]
fn so_many_items_run_at_once_as_the_step_says_and_the_next_begins_when_one_ends() {
    let mut bench = bench(json!({}));
    assert_eq!(bench.status("all"), StepStatus::Processing);
    assert_eq!(bench.status("all[1]"), StepStatus::Pending);
    assert_eq!(bench.status("all[2]"), StepStatus::Waiting);
    assert!(bench.claim("all[2]").is_err());
    assert!(bench.claim("all").is_err());
    assert_eq!(claimed_path(&mut bench, "all[1]"), "/20/1");
    bench
        .reply("all[1]", Attempt(1), success(json!(1)))
        .unwrap();
    bench.process("all[2]");
    assert_eq!(bench.status("last"), StepStatus::Waiting);
    bench.process("all[0]");
    let output = bench.record("all").output().unwrap().as_json();
    assert_eq!(output, r#"[{"id":"all[0]"},1,{"id":"all[2]"}]"#);
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

#[test]
fn an_item_that_waits_for_a_retry_lets_others_run_and_takes_its_turn_again_when_it_is_due() {
    let mut bench = bench(json!({ "for_each": [1, 2, 3, 4], "max_parallel": 2 }));
    let wait = Duration::from_secs(20);
    bench.defer("all[0]", 503, wait);
    assert_eq!(
        bench.status("all[2]"),
        StepStatus::Pending,
        "its turn is free"
    );
    bench.defer("all[1]", 503, wait);
    for name in ["all[2]", "all[3]"] {
        assert!(bench.draft.ready.contains(&bench.step(name)));
        bench.claim(name).unwrap();
    }
    // The time of the retries has come, and two others run.
    bench.later(Span::from_secs(20));
    for name in ["all[0]", "all[1]"] {
        let index = bench.step(name);
        assert_eq!(bench.draft.task.due_at(index), None);
        let blocked = bench.draft.task.blocked_by(index, bench.now);
        assert_eq!(blocked, Some(Blocked::MaxParallel { max_parallel: 2 }));
        assert!(bench.claim(name).is_err());
    }
    let attempt = bench.record("all[2]").attempt;
    bench.reply("all[2]", attempt, success(json!(3))).unwrap();
    assert_eq!(bench.draft.ready.last(), Some(&bench.step("all[0]")));
    assert!(bench.claim("all[1]").is_err());
    bench.process("all[0]");
    bench.process("all[1]");
    let attempt = bench.record("all[3]").attempt;
    bench.reply("all[3]", attempt, success(json!(4))).unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processed);
}

/// Counts the items that a reply to one of them looks at, while all others wait for their retries.
fn looks_at_reply(items: usize) -> usize {
    let values: Vec<_> = (0..items).collect();
    let mut bench = bench(json!({ "for_each": values, "max_parallel": 2 }));
    for item in 0..items {
        let wait = Duration::from_secs(3600 + item as u64);
        bench.defer(&format!("all[{item}]"), 503, wait);
    }
    bench.later(Span::from_secs(7200));
    bench.claim("all[0]").unwrap();
    bench.claim("all[1]").unwrap();
    let attempt = bench.record("all[0]").attempt;
    looks::take();
    let output = success(json!(1));
    bench.reply("all[0]", attempt, output).unwrap();
    let looks = looks::take();
    assert!(bench.claim("all[3]").is_err());
    bench.claim("all[2]").unwrap();
    looks
}

#[test]
fn a_reply_to_an_item_costs_the_same_however_many_others_wait_for_their_retries() {
    let (few, many) = (looks_at_reply(500), looks_at_reply(5_000));
    assert!(many <= 2 * few, "{few} looks of 500 items, {many} of 5000");
}

/// One that is due again goes before those that have not begun, and after those that were due before it.
#[test]
fn items_take_turns_in_the_order_in_which_they_became_due() {
    let mut bench = bench(json!({ "for_each": [1, 2, 3, 4, 5], "max_parallel": 1 }));
    bench.defer("all[0]", 503, Duration::from_secs(30));
    bench.defer("all[1]", 503, Duration::from_secs(10));
    bench.claim("all[2]").unwrap();
    bench.later(Span::from_secs(10));
    let attempt = bench.record("all[2]").attempt;
    bench.reply("all[2]", attempt, success(json!(3))).unwrap();
    assert_eq!(bench.status("all[3]"), StepStatus::Waiting);
    bench.claim("all[1]").unwrap();
    bench.later(Span::from_secs(30));
    let attempt = bench.record("all[1]").attempt;
    bench.reply("all[1]", attempt, success(json!(2))).unwrap();
    assert_eq!(bench.status("all[3]"), StepStatus::Waiting);
    for name in ["all[0]", "all[3]", "all[4]"] {
        bench.process(name);
    }
    assert_eq!(bench.status("all"), StepStatus::Processed);
}

/// A failure after its time, and an attempt that lost its instance, wait in the same way.
#[test]
fn an_item_that_is_late_lets_others_run_until_it_is_retried() {
    let mut bench =
        bench(json!({ "for_each": [1, 2], "max_parallel": 1, "complete_within": "5s" }));
    bench.claim("all[0]").unwrap();
    bench.later(Span::from_secs(5));
    bench.expire("all[0]").unwrap();
    assert_eq!(bench.status("all[0]"), StepStatus::Pending);
    bench.process("all[1]");
    bench.later(Span::from_secs(60));
    bench.process("all[0]");
    assert_eq!(bench.status("all"), StepStatus::Processed);
}

#[test]
fn a_group_with_items_in_error_waits_for_the_others_and_goes_on_with_a_retry() {
    let mut bench = bench(json!({}));
    refuse(&mut bench, "all[0]");
    assert_eq!(bench.task(), TaskStatus::Error);
    assert_eq!(bench.status("all"), StepStatus::Processing);
    bench.process("all[1]");
    assert!(!bench.draft.task.is_settled());
    refuse(&mut bench, "all[2]");
    assert_eq!(bench.status("all"), StepStatus::Error);
    assert!(bench.draft.task.is_settled());
    let fault = bench.draft.task.error().unwrap();
    assert_eq!(fault.step.as_ref().unwrap().as_str(), "all[0]");
    let alerts = bench.draft.alerts.iter();
    let raised = alerts.filter(|alert| matches!(alert, AlertChange::Raise { .. }));
    assert_eq!(
        raised.count(),
        2,
        "the items have alerts, and the group has none"
    );
    retry(&mut bench, "all").unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processing);
    assert_eq!(bench.task(), TaskStatus::Processing);
    bench.process("all[0]");
    bench.process("all[2]");
    assert_eq!(bench.status("all"), StepStatus::Processed);
    assert!(matches!(
        retry(&mut bench, "all"),
        Err(Refusal::StepState { .. })
    ));
}

#[test]
fn the_policy_of_items_is_their_own() {
    let mut skips = bench(json!({ "on_item_error": "skip", "on_permanent": "undo" }));
    refuse(&mut skips, "all[0]");
    assert_eq!(skips.status("all[0]"), StepStatus::Skipped);
    let mut undoes = bench(json!({ "on_item_error": "undo" }));
    undoes.process("all[1]");
    refuse(&mut undoes, "all[0]");
    assert_eq!(undoes.task(), TaskStatus::Undoing);
    assert_eq!(undoes.status("all[2]"), StepStatus::Cancelled);
    assert_eq!(claimed_path(&mut undoes, "all[1].undo"), "/undo/20/1");
    let mut own = bench(json!({ "on_permanent": "skip" }));
    refuse(&mut own, "all[1]");
    assert_eq!(own.status("all[1]"), StepStatus::Skipped);
}

#[test]
fn a_rerun_runs_the_items_again_with_the_list_that_they_had() {
    let mut bench = bench(json!({ "max_parallel": 3 }));
    for name in ["all[0]", "all[1]", "all[2]"] {
        bench.process(name);
    }
    let item = bench.step("all[1]");
    let again = |step| Command::RetryFrom { step, reason: None };
    assert!(matches!(
        bench.apply(again(item)),
        Err(Refusal::StepState { .. })
    ));
    let all = bench.step("all");
    bench.apply(again(all)).unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processing);
    assert_eq!(bench.status("all[2]"), StepStatus::Pending);
    assert_eq!(claimed_path(&mut bench, "all[2]"), "/30/2");
}

#[test]
fn outputs_that_find_no_room_put_their_items_in_error_and_may_have_taken_effect() {
    let mut bench = bench(json!({ "max_parallel": 3 }));
    let long = success(json!("x".repeat(5 << 20)));
    let first = bench.claim("all[0]").unwrap();
    bench.reply("all[0]", first, long.clone()).unwrap();
    let second = bench.claim("all[1]").unwrap();
    bench.reply("all[1]", second, long).unwrap();
    assert_eq!(bench.status("all[1]"), StepStatus::Error);
    assert_eq!(bench.record("all[1]").effect, Effect::Unknown);
    bench.process("all[2]");
    let step = bench.step("all[1]");
    let resolve = |output: Value| Command::Resolve {
        step,
        output: Payload::from_value(&output),
        reason: None,
    };
    assert!(bench.apply(resolve(json!("x".repeat(5 << 20)))).is_err());
    bench.apply(resolve(json!("short"))).unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processed);
}

#[test]
fn a_task_shows_the_counts_of_ten_thousand_items_and_the_first_errors_only() {
    let list: Vec<_> = (0..MOST_ITEMS).collect();
    let mut bench = bench(json!({ "for_each": list, "max_parallel": 1000 }));
    for at in 0..300 {
        refuse(&mut bench, &format!("all[{at}]"));
    }
    let view = TaskView::new(&bench.draft.task, bench.now);
    let view = serde_json::to_value(&view).unwrap();
    assert!(view.to_string().len() < 10_000);
    let items = &view["steps"][0]["items"];
    assert_eq!(items["total"], MOST_ITEMS);
    assert_eq!(items["states"]["error"], 300);
    assert_eq!(items["errors"].as_array().unwrap().len(), 10);
    let causes: std::collections::HashSet<_> = bench
        .draft
        .alerts
        .iter()
        .filter_map(|alert| match alert {
            AlertChange::Raise { cause, .. } => cause.as_ref().map(|cause| cause.text.clone()),
            AlertChange::Close { .. } => None,
        })
        .collect();
    assert_eq!(causes.len(), 1, "{causes:?}");
    let plan = crate::view::undo_plan::undo_plan(&bench.draft.task, bench.now);
    let plan = serde_json::to_value(&plan).unwrap();
    assert!(
        plan.to_string().len() < 200_000,
        "{}",
        plan.to_string().len()
    );
    assert_eq!(plan["more_items"][0]["passed_over"], MOST_ITEMS - 50);
}

#[test]
fn a_prediction_counts_the_rounds_of_items_that_are_left() {
    let list: Vec<_> = (0..100).collect();
    let bench = bench(json!({ "for_each": list, "max_parallel": 10 }));
    let outlook = AgentOutlook {
        step_time: Duration::from_secs(2),
        ..AgentOutlook::default()
    };
    let predicted = predict(&bench.draft.task, bench.now, |_| Some(&outlook)).unwrap();
    // Ten rounds, and the step after them.
    assert_eq!(predicted.end, Some(bench.now + Span::from_secs(22)));
}

#[test]
fn names_of_items_are_seen_only_where_there_is_one() {
    let steps = json!([
        { "name": "a", "agent": "x", "request": { "path": "/{{ index }}" } },
        { "name": "b", "agent": "x", "for_each": "{{ item }}", "when": "index > 1",
          "probe": { "request": { "path": "/{{ item }}" } },
          "request": { "path": "/{{ itm }}" } },
        { "name": "c", "agent": "x", "for_each": {}, "on_item_error": "retry" },
        { "name": "d", "agent": "x", "max_parallel": 2 },
    ]);
    let source = Payload::from_value(&steps);
    let limits = Limits::default();
    let faults = parse_steps(&source, "", &Policies::default(), &limits, &Accepted).unwrap_err();
    let mut found: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "/0/request/path",
            "/1/for_each",
            "/1/request/path",
            "/1/when",
            "/2/for_each",
            "/2/on_item_error",
            "/3/max_parallel",
        ],
        "{faults:?}"
    );
    let unknown = faults
        .iter()
        .find(|fault| fault.pointer == "/1/request/path");
    assert!(
        unknown.unwrap().message.contains("`item` and `index`"),
        "{unknown:?}"
    );
}

/// In bytes and allocations: a reply of one item, decided on a copy of the task.
#[test]
fn a_reply_of_an_item_costs_the_same_however_many_there_are() {
    let cost = |count: usize| {
        let list: Vec<_> = (0..count).collect();
        let mut bench = bench(json!({ "for_each": list, "max_parallel": 64 }));
        for at in 0..64.min(count) {
            bench.claim(&format!("all[{at}]")).unwrap();
        }
        let task = bench.draft.task.clone();
        let step = bench.step("all[3]");
        let decide = || {
            let mut draft = Draft::on(task.clone());
            let reply = Command::Reply {
                step,
                attempt: Attempt(1),
                outcome: success(json!(1)),
            };
            draft.apply(reply, &bench.by, bench.now).unwrap();
            draft.task.memory()
        };
        decide();
        let begin = std::time::Instant::now();
        for _ in 0..20 {
            decide();
        }
        println!("{count} items: {:?} a reply", begin.elapsed() / 20);
        let measured = allocation_counter::measure(|| {
            decide();
        });
        (measured.count_total, measured.bytes_total)
    };
    let (few, few_bytes) = cost(100);
    for count in [1_000, MOST_ITEMS] {
        let (many, many_bytes) = cost(count);
        assert!(many <= few + 20, "{many} allocations, not {few}");
        assert!(
            many_bytes <= few_bytes + 32_768,
            "{many_bytes} bytes, not {few_bytes}"
        );
    }
}

/// Items that have tasks of their own.
fn children(more: Value) -> Bench {
    let mut step = json!({ "name": "all", "for_each": [1, 2], "task": { "workflow": "w" } });
    let more = more.as_object().unwrap().clone();
    step.as_object_mut().unwrap().extend(more);
    Bench::new(json!([step, { "name": "last", "agent": "x" }]))
}

fn child_is_processed(bench: &mut Bench, name: &str, output: &Value) {
    let index = bench.step(name);
    let attempt = bench.record(name).attempt;
    let end = crate::task::child_record::ChildEnd::Processed(Payload::from_value(output));
    let report = crate::task::child_record::ChildReport::Ended { child: None, end };
    bench.apply(report.to(index, attempt)).unwrap();
}

#[test]
fn a_task_of_an_item_whose_output_finds_no_room_is_undone_with_the_others() {
    let mut bench = children(json!({}));
    let long = json!("x".repeat(5 << 20));
    child_is_processed(&mut bench, "all[0]", &long);
    child_is_processed(&mut bench, "all[1]", &long);
    assert_eq!(bench.status("all[1]"), StepStatus::Error);
    assert_eq!(bench.record("all[1]").effect, Effect::Unknown);
    bench.apply(Command::Undo { reason: None }).unwrap();
    assert_eq!(bench.status("all[0].undo"), StepStatus::Processing);
    assert_eq!(bench.status("all[1].undo"), StepStatus::Processing);
}

#[test]
fn signals_that_come_early_for_items_find_room_among_the_outputs_or_are_refused() {
    let steps = json!([{ "name": "all", "for_each": [1, 2, 3], "max_parallel": 1, "signal": { "within": "1h" } }]);
    let mut bench = Bench::new(steps);
    let mut signal = |name: &str, length: usize| {
        let step = bench.step(name);
        let payload = Payload::from_value(&json!("x".repeat(length)));
        let digest = crate::task::open_reply::ReplyDigest(name.to_owned());
        bench.apply(Command::Signal {
            step,
            payload,
            digest,
        })
    };
    signal("all[2]", 5 << 20).unwrap();
    assert!(signal("all[1]", 5 << 20).is_err(), "8 MiB for all of them");
    signal("all[1]", 2 << 20).unwrap();
    signal("all[0]", 100).unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processed);
}

#[test]
fn a_task_in_error_only_by_its_group_is_not_retried_but_its_items_are() {
    let mut bench = bench(json!({}));
    refuse(&mut bench, "all[0]");
    bench.process("all[1]");
    bench.process("all[2]");
    assert_eq!(bench.status("all"), StepStatus::Error);
    let retry = Command::Retry {
        step: None,
        body: None,
        reason: None,
    };
    bench.apply(retry.clone()).unwrap();
    assert_eq!(bench.status("all[0]"), StepStatus::Pending);
    assert!(
        bench.apply(retry).is_err(),
        "nothing is in error that could be retried"
    );
}

/// The group itself is no step that an operator could run again: it goes on when one of its items does.
#[test]
fn a_retry_of_a_task_retries_its_failed_items_and_does_not_begin_their_group_again() {
    let bench = |name: Option<&str>| {
        let mut bench = bench(json!({ "max_parallel": 3 }));
        refuse(&mut bench, "all[0]");
        refuse(&mut bench, "all[1]");
        bench.process("all[2]");
        assert_eq!(bench.status("all"), StepStatus::Error);
        let before = bench.draft.events.len();
        let retry = Command::Retry {
            step: name.map(|name| bench.step(name)),
            body: None,
            reason: None,
        };
        bench.apply(retry).unwrap();
        let events = bench.draft.events[before..].iter();
        let said: Vec<_> = events
            .filter_map(|event| Some((event.kind.to_string(), event.step.as_ref()?.to_string())))
            .collect();
        (bench, said)
    };
    let (task, said) = bench(None);
    let retried = said.iter().filter(|(kind, _)| kind == "step.retried");
    let retried: Vec<_> = retried.map(|(_, step)| step.as_str()).collect();
    assert_eq!(retried, ["all[0]", "all", "all[1]"]);
    assert_eq!(task.status("all"), StepStatus::Processing);
    assert_eq!(task.record("all").attempt, Attempt(1));
    // As if the group had been named.
    assert_eq!(said, bench(Some("all")).1);
}

#[test]
fn a_skip_of_all_that_failed_skips_items_and_leaves_their_group_its_list() {
    for step in [None, Some(crate::values::ids::StepName::new("all"))] {
        let mut bench = bench(json!({ "max_parallel": 3 }));
        refuse(&mut bench, "all[0]");
        refuse(&mut bench, "all[1]");
        bench.process("all[2]");
        let skip = Command::SkipFailed {
            step,
            output: None,
            reason: None,
        };
        bench.apply(skip).unwrap();
        assert_eq!(bench.status("all"), StepStatus::Processed);
        let output = bench.record("all").output().unwrap().as_json();
        assert_eq!(output, r#"[null,null,{"id":"all[2]"}]"#);
        assert_eq!(bench.status("last"), StepStatus::Pending);
    }
}

#[test]
fn a_resolve_of_a_list_by_its_name_resolves_its_items_in_error_and_no_other_step() {
    let mut bench = bench(json!({ "max_parallel": 3 }));
    refuse(&mut bench, "all[0]");
    refuse(&mut bench, "all[1]");
    bench.process("all[2]");
    let resolve = |step: &str| Command::ResolveFailed {
        step: crate::values::ids::StepName::new(step),
        output: Payload::from_value(&json!({ "id": 7 })),
        reason: None,
    };
    bench.apply(resolve("last")).unwrap_err();
    bench.apply(resolve("all")).unwrap();
    assert_eq!(bench.status("all"), StepStatus::Processed);
    let output = bench.record("all").output().unwrap().as_json();
    assert_eq!(output, r#"[{"id":7},{"id":7},{"id":"all[2]"}]"#);
    assert_eq!(bench.status("last"), StepStatus::Pending);
}

/// Names the steps that block the undo of the step before a list.
fn blocked_undo(bench: &Bench) -> (Vec<String>, Option<u32>) {
    let undo = bench.step("first.undo");
    match bench.draft.task.blocked_by(undo, bench.now) {
        Some(Blocked::Steps { steps, more }) => (
            steps.iter().map(|step| step.as_str().to_owned()).collect(),
            more,
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_undo_before_a_list_names_the_items_that_it_waits_for() {
    let values: Vec<_> = (0..13).collect();
    let first =
        json!({ "name": "first", "agent": "x", "undo": { "request": { "path": "/first" } } });
    let mut bench = Bench::new(json!([
        first,
        group(json!({ "for_each": values, "max_parallel": 13 }))
    ]));
    bench.process("first");
    for item in 0..13 {
        bench.process(&format!("all[{item}]"));
    }
    bench.apply(Command::Undo { reason: None }).unwrap();
    let named = |items: std::ops::Range<usize>| {
        items
            .map(|item| format!("all[{item}].undo"))
            .collect::<Vec<_>>()
    };
    assert_eq!(blocked_undo(&bench), (named(0..10), Some(3)));
    bench.process("all[1].undo");
    refuse(&mut bench, "all[12].undo");
    let mut expected = named(12..13);
    expected.extend(named(0..1));
    expected.extend(named(2..10));
    assert_eq!(blocked_undo(&bench), (expected, Some(2)));
    for item in (2..12).rev() {
        bench.process(&format!("all[{item}].undo"));
    }
    assert_eq!(
        blocked_undo(&bench),
        ([named(12..13), named(0..1)].concat(), None)
    );
}

/// A list in error whose items were to run again: the time of the task was over before it began.
fn begun_too_late(more: Value) -> Bench {
    let mut list = json!({ "name": "a", "agent": "x", "for_each": [0, 1], "request": { "path": "/{{ input.missing }}" } });
    let more = more.as_object().unwrap().clone();
    list.as_object_mut().unwrap().extend(more);
    let mut bench = Bench::limited(json!([list]), Some(Span::from_secs(60)));
    for name in ["a[0]", "a[1]"] {
        bench.claim(name).unwrap();
    }
    assert_eq!(bench.status("a"), StepStatus::Error);
    bench.apply(Command::Pause { reason: None }).unwrap();
    let step = bench.step("a");
    let again = Command::RetryFrom { step, reason: None };
    bench.apply(again).unwrap();
    bench.later(Span::from_secs(100));
    bench.apply(Command::Resume { reason: None }).unwrap();
    assert_eq!(bench.status("a"), StepStatus::Error);
    assert_eq!(bench.status("a[0]"), StepStatus::Waiting);
    bench
}

#[test]
fn a_list_in_error_whose_items_wait_is_skipped_with_them_or_goes_on() {
    for more in [json!({}), json!({ "enough": 1 })] {
        for all in [true, false] {
            let mut bench = begun_too_late(more.clone());
            let step = bench.step("a");
            let output = None;
            let reason = None;
            let skip = match all {
                true => Command::SkipFailed {
                    step: None,
                    output,
                    reason,
                },
                false => Command::Skip {
                    step,
                    output,
                    reason,
                },
            };
            bench.apply(skip).unwrap();
            assert_eq!(bench.status("a[1]"), StepStatus::Skipped);
            assert_eq!(bench.task(), TaskStatus::Processed);
            changes_are_told(&bench.draft).unwrap();
            let mut bench = begun_too_late(more.clone());
            let retry = Command::Retry {
                step: (!all).then_some(step),
                body: None,
                reason: None,
            };
            bench.apply(retry).unwrap();
            assert_eq!(bench.status("a"), StepStatus::Processing);
            assert_eq!(bench.status("a[0]"), StepStatus::Pending);
            changes_are_told(&bench.draft).unwrap();
        }
    }
}
