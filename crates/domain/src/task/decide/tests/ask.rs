//! Steps that ask people.

use super::*;
use crate::{
    task::{
        ask::{AskAnswer, AskChange},
        open_reply::ReplyDigest,
    },
    view::blocked::Blocked,
};

fn asking(ask: Value) -> Bench {
    let mut bench = Bench::new(json!([
        { "name": "first", "agent": "x" },
        { "name": "approval", "signal": { "within": "1d", "on_timeout": "error", "ask": ask } },
        { "name": "last", "agent": "x", "when": "steps.approval.output.choice == 'approve'" },
    ]));
    bench.process("first");
    bench
}

fn of(people: &[&str], approvals: u32) -> Value {
    json!({ "title": "Refund {{ input.total }} EUR?", "of": people, "approvals": approvals })
}

fn decide_at(
    bench: &mut Bench,
    attempt: Attempt,
    person: u16,
    choice: &str,
) -> Result<CommandOutput, Refusal> {
    let step = bench.step("approval");
    bench.apply(Command::Decide {
        step,
        attempt,
        person,
        answer: AskAnswer {
            choice: choice.to_owned(),
            comment: Some("because".to_owned()),
            fields: BTreeMap::new(),
        },
    })
}

fn decide(bench: &mut Bench, person: u16, choice: &str) -> Result<CommandOutput, Refusal> {
    let attempt = bench.record("approval").attempt;
    decide_at(bench, attempt, person, choice)
}

fn output(bench: &Bench) -> Value {
    let output = bench.record("approval").output().unwrap();
    serde_json::from_str(output.as_json()).unwrap()
}

#[test]
fn the_decision_of_a_person_is_the_output_and_stands_in_the_history() {
    let mut bench = asking(of(&["ops@x", "cfo@x"], 1));
    let step = bench.step("approval");
    assert_eq!(bench.draft.asks, [AskChange::Open(step)]);
    let ask = bench.record("approval").ask.as_ref().unwrap();
    assert_eq!(ask.text.title, "Refund 30 EUR?");
    let blocked = bench.draft.task.blocked_by(step, bench.now);
    assert!(matches!(blocked, Some(Blocked::Signal { .. })));
    decide(&mut bench, 1, "approve").unwrap();
    assert_eq!(bench.status("approval"), StepStatus::Processed);
    let output = output(&bench);
    assert_eq!(output["choice"], "approve");
    assert_eq!(output["by"], "cfo@x");
    assert_eq!(output["decisions"].as_array().unwrap().len(), 1);
    assert_eq!(bench.status("last"), StepStatus::Pending);
    let decided = bench
        .draft
        .events
        .iter()
        .find(|event| event.kind == "step.decided");
    let decided = decided.unwrap();
    assert_eq!(decided.by.to_string(), "person:cfo@x");
    assert_eq!(
        decided.reason.as_deref(),
        Some("cfo@x chose approve: because")
    );
    assert_eq!(
        bench.draft.asks,
        [AskChange::Open(step), AskChange::Closed(step)]
    );
}

#[test]
fn the_same_choice_again_changes_nothing_and_another_one_is_refused() {
    let mut bench = asking(of(&["ops@x", "cfo@x"], 2));
    decide(&mut bench, 0, "approve").unwrap();
    let again = decide(&mut bench, 0, "approve").unwrap();
    assert!(matches!(again, CommandOutput::Unchanged), "{again:?}");
    let other = decide(&mut bench, 0, "reject");
    assert!(matches!(other, Err(Refusal::Decided { .. })), "{other:?}");
    assert_eq!(bench.status("approval"), StepStatus::Processing);
    decide(&mut bench, 1, "approve").unwrap();
    // After its end too.
    let again = decide(&mut bench, 1, "approve").unwrap();
    assert!(matches!(again, CommandOutput::Unchanged), "{again:?}");
    assert!(matches!(
        decide(&mut bench, 1, "reject"),
        Err(Refusal::Decided { .. })
    ));
}

#[test]
fn two_approvals_need_two_people_and_one_who_rejects_ends_it() {
    let mut bench = asking(of(&["a", "b", "c"], 2));
    decide(&mut bench, 2, "approve").unwrap();
    assert_eq!(bench.status("approval"), StepStatus::Processing);
    decide(&mut bench, 0, "approve").unwrap();
    assert_eq!(output(&bench)["by"], "a");
    assert_eq!(output(&bench)["decisions"][0]["by"], "c");
    assert!(matches!(
        decide(&mut bench, 1, "approve"),
        Err(Refusal::StepState { .. })
    ));
    let mut bench = asking(of(&["a", "b", "c"], 2));
    decide(&mut bench, 2, "approve").unwrap();
    decide(&mut bench, 0, "reject").unwrap();
    assert_eq!(output(&bench)["choice"], "reject");
    assert_eq!(bench.status("last"), StepStatus::Skipped);
}

#[test]
fn a_link_is_dead_after_the_time_after_a_skip_and_after_a_retry() {
    let mut bench = asking(of(&["a"], 1));
    let first = bench.record("approval").attempt;
    bench.later(Span::from_secs(86_400));
    assert!(matches!(
        decide(&mut bench, 0, "approve"),
        Err(Refusal::StepState { .. })
    ));
    bench.expire("approval").unwrap();
    let StepState::Error(fault) = &bench.record("approval").state else {
        panic!("not in error");
    };
    assert_eq!(fault.message, "nobody decided within 24h");
    let retry = Command::Retry {
        step: Some(bench.step("approval")),
        body: None,
        reason: None,
    };
    bench.apply(retry).unwrap();
    let old = decide_at(&mut bench, first, 0, "approve");
    assert!(matches!(old, Err(Refusal::StepState { .. })), "{old:?}");
    assert_eq!(bench.status("approval"), StepStatus::Processing);
    let skip = Command::Skip {
        step: bench.step("approval"),
        output: None,
        reason: None,
    };
    bench.apply(skip).unwrap();
    assert!(decide(&mut bench, 0, "approve").is_err());
    let step = bench.step("approval");
    use AskChange::{Closed, Open};
    assert_eq!(
        bench.draft.asks,
        [Open(step), Closed(step), Open(step), Closed(step)]
    );
}

#[test]
fn whoever_is_not_asked_and_what_is_no_choice_is_refused() {
    let mut bench = asking(of(&["a"], 1));
    assert!(decide(&mut bench, 1, "approve").is_err());
    assert!(decide(&mut bench, 0, "maybe").is_err());
    let signal = Command::Signal {
        step: bench.step("approval"),
        payload: Payload::null(),
        digest: ReplyDigest("d".to_owned()),
    };
    let refused = bench.apply(signal).unwrap_err();
    assert!(
        refused.to_string().contains("only their links decide"),
        "{refused}"
    );
    assert_eq!(bench.status("approval"), StepStatus::Processing);
}

#[test]
fn a_cancel_and_an_undo_close_the_question() {
    for command in [
        Command::Cancel { reason: None },
        Command::Undo { reason: None },
    ] {
        let mut bench = asking(of(&["a"], 1));
        bench.apply(command).unwrap();
        let step = bench.step("approval");
        assert_eq!(bench.draft.asks.last(), Some(&AskChange::Closed(step)));
        assert!(decide(&mut bench, 0, "approve").is_err());
    }
}

#[test]
fn what_the_data_gives_is_asked_and_a_fault_in_it_is_an_error() {
    let bench = asking(json!({ "title": "t", "of": "{{ ['a', 'b', 'a'] }}" }));
    assert_eq!(
        bench.record("approval").ask.as_ref().unwrap().text.of,
        ["a", "b"]
    );
    let bench = asking(json!({ "title": "t", "of": ["c", "{{ ['a', 'b'] }}"] }));
    assert_eq!(
        bench.record("approval").ask.as_ref().unwrap().text.of,
        ["c", "a", "b"]
    );
    for (ask, said) in [
        (
            json!({ "title": "{{ input.none }}", "of": ["a"] }),
            "`ask` could not be evaluated",
        ),
        (
            json!({ "title": "{{ '' }}", "of": ["a"] }),
            "`ask.title` must not be empty",
        ),
        (
            json!({ "title": "t", "text": "{{ [1] }}", "of": ["a"] }),
            "`ask.text` must give a text",
        ),
        (
            json!({ "title": "t", "of": "{{ [] }}" }),
            "`ask.of` names nobody",
        ),
        (
            json!({ "title": "t", "of": "{{ [1, 2] }}" }),
            "`ask.of` must give strings",
        ),
        (
            json!({ "title": "t", "of": "{{ ['a\n'] }}", "approvals": 2 }),
            "`ask.of` gives 1 of the 2 people",
        ),
        (
            json!({ "title": "t", "of": ["a", "{{ 'a' }}"], "approvals": 2 }),
            "`ask.of` gives 1 of the 2 people",
        ),
    ] {
        let bench = asking(ask.clone());
        let StepState::Error(fault) = &bench.record("approval").state else {
            panic!("{ask} {:?}", bench.record("approval").state);
        };
        assert!(fault.message.contains(said), "{}", fault.message);
        assert_eq!(bench.draft.asks, []);
    }
}

#[test]
fn the_record_of_a_question_outlives_its_storage() {
    let mut bench = asking(of(&["a", "b"], 2));
    decide(&mut bench, 0, "approve").unwrap();
    let ask = bench.record("approval").ask.clone();
    let json = serde_json::to_string(&ask).unwrap();
    assert_eq!(
        serde_json::from_str::<Option<Box<crate::task::ask::OpenAsk>>>(&json).unwrap(),
        ask
    );
}
