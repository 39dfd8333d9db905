//! The findings that follow from the observations of a check.

use super::*;
use crate::template::payload::Payload;
use uuid::Uuid;

use CheckStatus::{Failed, Inconclusive, NotApplicable, Passed};

fn json(text: &str) -> Payload {
    Payload::parse(text.to_owned()).unwrap()
}

/// The task that a check makes this call for.
fn task(number: u32) -> TaskId {
    let ends = [7, 10, 14, 16, 19, 22];
    let task = ends.iter().filter(|end| number > **end).count();
    TaskId(Uuid::from_u128(0xabc_0000 + task as u128))
}

fn call(number: u32, answer: CheckAnswer) -> CheckedCall {
    CheckedCall {
        task: task(number),
        exchanges: vec![number],
        answer,
        count: None,
        millis: 5,
    }
}

fn output(number: u32, id: u32) -> CheckedCall {
    call(
        number,
        CheckAnswer::Output(json(&format!(r#"{{"id": {id}}}"#))),
    )
}

fn done(number: u32, id: u32) -> CheckedCall {
    call(
        number,
        CheckAnswer::Done(json(&format!(r#"{{"id":{id}}}"#))),
    )
}

fn not_done(number: u32) -> CheckedCall {
    call(number, CheckAnswer::NotDone)
}

/// The observations of a service that passes every point.
fn perfect() -> CheckObservations {
    CheckObservations {
        probe_before: Some(not_done(1)),
        work: Some(output(2, 1)),
        two_keys: Some([(24, 6), (25, 7)].map(|(number, id)| CheckedCall {
            task: TaskId(Uuid::from_u128(0xabc_1000 + u128::from(number))),
            ..output(number, id)
        })),
        probe_after: Some(done(3, 1)),
        again: Some(output(4, 1)),
        undo: Some(call(5, CheckAnswer::Output(Payload::null()))),
        probe_after_undo: Some(not_done(6)),
        undo_again: Some(call(7, CheckAnswer::Output(Payload::null()))),
        at_once: Some([output(8, 2), output(9, 2)]),
        probe_during: Some((call(10, CheckAnswer::InProgress), true)),
        dropped: Some(DroppedAnswer {
            exchange: 11,
            probe: Some(done(12, 3)),
            repeat: output(13, 3),
            probe_after: Some(done(14, 3)),
        }),
        complete_by: Some([output(15, 4), output(16, 4)]),
        late: Some(LateArrival {
            call: call(17, CheckAnswer::Refused(409)),
            probe: Some(not_done(18)),
            in_time: Some(output(19, 5)),
        }),
        undo_before: Some(call(20, CheckAnswer::Output(Payload::null()))),
        work_after_undo: Some((call(21, CheckAnswer::Refused(409)), Some(not_done(22)))),
        invalid: Some(call(23, CheckAnswer::Refused(422))),
        waits: vec![AskedWait {
            exchange: 9,
            status: 503,
            wait: Ok(1000),
        }],
        largest: Some((10, 2)),
        slowest: Some((5, 2)),
        ..CheckObservations::new(CheckedStep {
            has_undo: true,
            undo_is_delete: true,
            has_probe: true,
            sends_body: true,
            names_invalid: false,
            complete_within_millis: 1000,
            max_output: 100,
        })
    }
}

fn status(seen: &CheckObservations, name: CheckPoint) -> CheckStatus {
    let findings = judge(seen);
    let found = findings.iter().find(|finding| finding.name == name);
    found.unwrap().status
}

/// The points that did not pass.
fn others(seen: &CheckObservations) -> Vec<(CheckPoint, CheckStatus)> {
    let findings = judge(seen).into_iter();
    let others = findings.filter(|finding| finding.status != Passed);
    others
        .map(|finding| (finding.name, finding.status))
        .collect()
}

/// The points that do not pass if one observation is changed.
fn changed(change: impl FnOnce(&mut CheckObservations)) -> Vec<(CheckPoint, CheckStatus)> {
    let mut seen = perfect();
    change(&mut seen);
    others(&seen)
}

#[test]
fn a_service_that_holds_everything_passes_every_point_once() {
    let findings = judge(&perfect());
    let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
    assert_eq!(names, CheckPoint::ALL);
    assert_eq!(others(&perfect()), []);
    assert_eq!(CheckVerdict::of(&findings), CheckVerdict::Passed);
    assert!(findings.iter().all(|finding| !finding.exchanges.is_empty()));
}

#[test]
fn nothing_seen_is_nothing_known() {
    let step = perfect().step;
    let findings = judge(&CheckObservations::new(step));
    let known = |finding: &&CheckFinding| matches!(finding.status, Passed | Failed);
    assert_eq!(findings.iter().find(known), None);
    assert_eq!(CheckVerdict::of(&findings), CheckVerdict::Incomplete);
}

#[test]
fn another_output_under_the_same_key_is_work_done_twice() {
    let failed = changed(|seen| seen.at_once = Some([output(8, 2), output(9, 3)]));
    assert_eq!(failed, [(CheckPoint::TwiceAtOnce, Failed)]);
    let failed = changed(|seen| seen.complete_by = Some([output(15, 4), output(16, 5)]));
    assert_eq!(failed, [(CheckPoint::AfterCompleteBy, Failed)]);
    // A service that does repeated work twice anyway fails no further point because of its complete-by.
    let failed = changed(|seen| {
        seen.again = Some(output(4, 9));
        seen.complete_by = Some([output(15, 4), output(16, 5)]);
    });
    assert_eq!(
        failed,
        [
            (CheckPoint::Again, Failed),
            (CheckPoint::AfterCompleteBy, Inconclusive)
        ]
    );
}

#[test]
fn a_refusal_of_the_second_request_fails_unless_it_is_retried_in_the_end() {
    for answer in [
        CheckAnswer::Refused(409),
        CheckAnswer::Transient(503),
        CheckAnswer::Silent,
    ] {
        let failed = changed(|seen| seen.again = Some(call(4, answer)));
        assert_eq!(failed[0], (CheckPoint::Again, Failed));
    }
}

#[test]
fn outputs_that_are_the_same_for_every_key_show_nothing() {
    let found = changed(|seen| {
        seen.at_once = Some([output(8, 1), output(9, 1)]);
        seen.complete_by = Some([output(15, 1), output(16, 1)]);
        seen.dropped.as_mut().unwrap().probe = Some(done(12, 1));
        seen.dropped.as_mut().unwrap().probe_after = Some(done(14, 1));
    });
    let expected = [
        CheckPoint::Again,
        CheckPoint::TwiceAtOnce,
        CheckPoint::AfterDroppedAnswer,
        CheckPoint::AfterCompleteBy,
    ];
    assert_eq!(found, expected.map(|point| (point, Inconclusive)));
}

#[test]
fn equal_outputs_for_one_request_under_two_keys_show_nothing() {
    let echo = |seen: &mut CheckObservations| {
        for call in seen.two_keys.as_mut().unwrap() {
            // It repeats a part of the request that is the same for both, and the key.
            let output = format!(r#"{{"ref":"5f2c","key":"{}:charge"}}"#, call.task.0);
            call.answer = CheckAnswer::Output(json(&output));
        }
    };
    let points = [
        CheckPoint::Again,
        CheckPoint::TwiceAtOnce,
        CheckPoint::AfterDroppedAnswer,
        CheckPoint::AfterCompleteBy,
    ];
    let expected = points.map(|point| (point, Inconclusive));
    assert_eq!(changed(echo), expected);
    let mut seen = perfect();
    echo(&mut seen);
    let again = &judge(&seen)[1];
    assert!(
        again.seen.contains("one request under two keys"),
        "{again:?}"
    );
    // Other evidence counts: different outputs under one key, and a count.
    let failed = changed(|seen| {
        echo(seen);
        seen.again = Some(output(4, 9));
    });
    assert_eq!(failed[0], (CheckPoint::Again, Failed));
    let counted = changed(|seen| {
        echo(seen);
        seen.count_after_again = Some(CheckedCall {
            count: Some(Ok(1)),
            ..done(4, 1)
        });
    });
    assert_eq!(counted, expected[1..]);
    // A service that refuses the second key, because it knows the request, is judged as before.
    let refused = changed(|seen| {
        seen.two_keys.as_mut().unwrap()[1].answer = CheckAnswer::Refused(409);
    });
    assert_eq!(refused, []);
}

#[test]
fn a_count_says_how_often_work_was_done_whose_outputs_are_equal() {
    let counted = |before: Option<EffectCount>, after: EffectCount| {
        let mut seen = perfect();
        let probe = |number| CheckedCall {
            count: Some(after.clone()),
            ..done(number, 1)
        };
        seen.probe_before.as_mut().unwrap().count = before;
        seen.count_after_again = Some(probe(4));
        seen.at_once = Some([output(8, 1), output(9, 1)]);
        seen.count_after_both = Some(probe(10));
        seen.complete_by = Some([output(15, 1), output(16, 1)]);
        seen.count_after_complete_by = Some(probe(16));
        let dropped = seen.dropped.as_mut().unwrap();
        dropped.probe = Some(done(12, 1));
        dropped.probe_after = Some(probe(14));
        let points = [
            CheckPoint::Again,
            CheckPoint::TwiceAtOnce,
            CheckPoint::AfterDroppedAnswer,
            CheckPoint::AfterCompleteBy,
        ];
        points.map(|point| status(&seen, point))
    };
    assert_eq!(counted(Some(Ok(0)), Ok(1)), [Passed; 4]);
    let unreadable = || Err("`response.body.charges` does not exist".to_owned());
    // A probe before the work finds no work of this key, so its count may be unreadable.
    assert_eq!(counted(Some(unreadable()), Ok(1)), [Passed; 4]);
    assert_eq!(
        counted(None, Ok(2)),
        [Failed, Failed, Failed, Inconclusive],
        "what repeats anyway says nothing more after the complete-by"
    );
    for (before, after) in [
        (Ok(3), Ok(4)),
        (Ok(1), Ok(1)),
        (Ok(0), Ok(0)),
        (Ok(0), unreadable()),
    ] {
        assert_eq!(counted(Some(before), after), [Inconclusive; 4]);
    }
}

/// Judges a service without a probe whose outputs are made like this, from a key and the number of a call.
fn with_outputs(output: impl Fn(TaskId, u32) -> String) -> Vec<CheckStatus> {
    let mut seen = perfect();
    seen.step.has_probe = false;
    let output = |number| {
        let made = json(&output(task(number), number));
        call(number, CheckAnswer::Output(made))
    };
    seen.work = Some(output(2));
    seen.again = Some(output(4));
    seen.at_once = Some([output(8), output(9)]);
    seen.dropped = None;
    seen.complete_by = Some([output(15), output(16)]);
    seen.late.as_mut().unwrap().in_time = Some(output(19));
    let points = [
        CheckPoint::Again,
        CheckPoint::TwiceAtOnce,
        CheckPoint::AfterCompleteBy,
    ];
    points.map(|point| status(&seen, point)).to_vec()
}

#[test]
fn only_an_id_that_the_service_gives_shows_that_work_was_done_once() {
    let constant = with_outputs(|_, _| r#"{"ok":true}"#.to_owned());
    assert_eq!(constant, [Inconclusive; 3]);
    // An output that repeats the key differs between keys, even if the work is done once.
    let echo = |key: TaskId, _| format!(r#"{{"ok":true,"for":"provost-check-{}"}}"#, key.0);
    assert_eq!(with_outputs(echo), [Inconclusive; 3]);
    let simple = |key: TaskId, _| format!(r#"{{"{:X}":[1]}}"#, key.0.simple());
    assert_eq!(with_outputs(simple), [Inconclusive; 3]);
    let id = |key: TaskId, _| format!(r#"{{"id":{},"for":"{}"}}"#, key.0.as_u128() % 97, key.0);
    assert_eq!(with_outputs(id), [Passed; 3]);
    let new_id = with_outputs(|_, number| format!(r#"{{"id":{number}}}"#));
    assert_eq!(new_id, [Failed, Failed, Inconclusive]);
}

#[test]
fn times_in_outputs_show_nothing() {
    let only_times = |_, number| format!(r#"{{"ok":true,"at":"2026-01-31T09:30:{number:02}Z"}}"#);
    assert_eq!(with_outputs(only_times), [Inconclusive; 3]);
    // The same holds if two calls fall into one second.
    let seconds = |_, number| format!(r#"{{"at":"2026-01-31T09:30:{:02}Z"}}"#, number / 5);
    assert_eq!(with_outputs(seconds), [Inconclusive; 3]);
    let date = |key: TaskId, number| {
        let id = key.0.as_u128() % 97;
        format!(r#"{{"id":{id},"date":"Sat, 31 Jan 2026 09:30:{number:02} GMT"}}"#)
    };
    assert_eq!(with_outputs(date), [Passed; 3]);
    let also_id = |_, number| format!(r#"{{"id":{number},"at":"2026-01-31T09:30:{number:02}Z"}}"#);
    assert_eq!(with_outputs(also_id)[0], Failed);
}

#[test]
fn a_finding_names_the_places_where_outputs_differ() {
    let outputs = [
        r#"{"a":[1,2],"b":{"c":1},"d":1,"e":1,"f":1}"#,
        r#"{"a":[1,3],"b":{"c":2},"e":2,"f":2}"#,
    ];
    let mut seen = perfect();
    let [work, again] = outputs.map(|output| CheckAnswer::Output(json(output)));
    seen.work = Some(call(2, work));
    seen.again = Some(call(4, again));
    let again = &judge(&seen)[1];
    let places = "outputs at /a/1, /b/c, /d and 2 more: ";
    assert!(again.seen.contains(places), "{}", again.seen);
}

#[test]
fn equal_outputs_of_one_key_alone_show_nothing() {
    let mut seen = perfect();
    seen.cut_short = Some("its time was over".to_owned());
    seen.at_once = None;
    seen.dropped = None;
    seen.complete_by = None;
    seen.late = None;
    assert_eq!(status(&seen, CheckPoint::Again), Inconclusive);
}

#[test]
fn a_dropped_call_is_judged_by_the_probe() {
    let probed = |before: CheckedCall, after: CheckedCall| {
        let mut seen = perfect();
        let dropped = seen.dropped.as_mut().unwrap();
        dropped.probe = Some(before);
        dropped.probe_after = Some(after);
        status(&seen, CheckPoint::AfterDroppedAnswer)
    };
    assert_eq!(probed(done(12, 3), done(14, 4)), Failed);
    assert_eq!(probed(not_done(12), done(14, 3)), Passed);
    let running = call(12, CheckAnswer::InProgress);
    assert_eq!(probed(running, done(14, 3)), Inconclusive);
    // A probe that gives false results proves nothing.
    let found = changed(|seen| {
        seen.probe_before = Some(done(1, 1));
        seen.dropped.as_mut().unwrap().probe_after = Some(done(14, 4));
    });
    assert_eq!(
        found,
        [
            (CheckPoint::AfterDroppedAnswer, Inconclusive),
            (CheckPoint::ProbeBeforeWork, Failed)
        ]
    );
}

#[test]
fn a_late_request_is_refused_and_works_in_time() {
    let late = |answer, probe, in_time| {
        let mut seen = perfect();
        let late = seen.late.as_mut().unwrap();
        late.call = call(17, answer);
        late.probe = probe;
        late.in_time = in_time;
        status(&seen, CheckPoint::LateRequest)
    };
    let in_time = || Some(output(19, 5));
    let took = CheckAnswer::Output(Payload::null());
    assert_eq!(late(took, None, None), Failed);
    let refused = CheckAnswer::Refused(409);
    assert_eq!(late(refused.clone(), Some(done(18, 5)), in_time()), Failed);
    let remembered = Some(call(19, CheckAnswer::Refused(409)));
    assert_eq!(late(refused, None, remembered), Failed);
    let busy = CheckAnswer::Transient(408);
    assert_eq!(late(busy, Some(not_done(18)), in_time()), Passed);
}

#[test]
fn an_undo_counts_as_it_does_in_a_task() {
    let gone = |number| Some(call(number, CheckAnswer::Refused(404)));
    // There was work to undo.
    let found = changed(|seen| seen.undo = gone(5));
    assert_eq!(found[0], (CheckPoint::Undo, Failed));
    assert_eq!(changed(|seen| seen.undo_again = gone(7)), []);
    let found = changed(|seen| {
        seen.step.undo_is_delete = false;
        seen.undo_again = gone(7);
    });
    assert_eq!(found, [(CheckPoint::UndoTwice, Failed)]);
    assert_eq!(changed(|seen| seen.undo_before = gone(20)), []);
    let needs_output = || Some(call(20, CheckAnswer::Unmakeable("no output".to_owned())));
    let found = changed(|seen| seen.undo_before = needs_output());
    assert_eq!(
        found,
        [
            (CheckPoint::UndoBeforeWork, NotApplicable),
            (CheckPoint::WorkAfterUndo, NotApplicable)
        ]
    );
    let mut unprobed = perfect();
    unprobed.step.has_probe = false;
    unprobed.undo_before = needs_output();
    assert_eq!(status(&unprobed, CheckPoint::UndoBeforeWork), Failed);
}

#[test]
fn work_after_its_undo_is_refused_and_not_done() {
    let after = |answer, probe| {
        let mut seen = perfect();
        seen.work_after_undo = Some((call(21, answer), Some(probe)));
        status(&seen, CheckPoint::WorkAfterUndo)
    };
    assert_eq!(
        after(CheckAnswer::Output(Payload::null()), not_done(22)),
        Failed
    );
    assert_eq!(after(CheckAnswer::Refused(409), done(22, 7)), Failed);
    assert_eq!(after(CheckAnswer::Transient(503), not_done(22)), Passed);
    assert_eq!(
        after(CheckAnswer::Transient(500), not_done(22)),
        Inconclusive
    );
}

#[test]
fn probes_say_what_is_true() {
    let during = |answer, was_running| {
        let mut seen = perfect();
        seen.probe_during = Some((call(10, answer), was_running));
        status(&seen, CheckPoint::ProbeDuringWork)
    };
    assert_eq!(during(CheckAnswer::NotDone, true), Failed);
    assert_eq!(during(CheckAnswer::NotDone, false), NotApplicable);
    assert_eq!(during(CheckAnswer::Transient(503), true), Passed);
    let found = changed(|seen| seen.probe_after = Some(done(3, 7)));
    assert_eq!(found, [(CheckPoint::ProbeOutput, Failed)]);
    let found = changed(|seen| seen.probe_after_undo = Some(done(6, 1)));
    assert_eq!(found, [(CheckPoint::ProbeAfterUndo, Failed)]);
}

#[test]
fn errors_sizes_and_times_have_bounds() {
    let found = changed(|seen| seen.invalid = Some(call(23, CheckAnswer::Transient(500))));
    assert_eq!(found, [(CheckPoint::ErrorClasses, Failed)]);
    let found = changed(|seen| seen.invalid = Some(output(23, 8)));
    assert_eq!(found, [(CheckPoint::ErrorClasses, Inconclusive)]);
    let found = changed(|seen| {
        seen.step.names_invalid = true;
        seen.invalid = Some(output(23, 8));
    });
    assert_eq!(found, [(CheckPoint::ErrorClasses, Failed)]);
    for wait in [Err("soon".to_owned()), Ok(1001)] {
        let found = changed(|seen| seen.waits[0].wait = wait);
        assert_eq!(found, [(CheckPoint::RetryAfter, Failed)]);
    }
    assert_eq!(
        changed(|seen| seen.waits.clear()),
        [(CheckPoint::RetryAfter, NotApplicable)]
    );
    let found = changed(|seen| seen.slowest = Some((501, 2)));
    assert_eq!(found, [(CheckPoint::Latency, Failed)]);
    let found = changed(|seen| seen.undo_again = Some(call(7, CheckAnswer::Silent)));
    assert_eq!(
        found,
        [
            (CheckPoint::UndoTwice, Failed),
            (CheckPoint::Latency, Failed)
        ]
    );
}

#[test]
fn without_undo_and_probe_their_points_do_not_apply() {
    let mut seen = perfect();
    seen.step.has_undo = false;
    seen.step.has_probe = false;
    let others = others(&seen);
    assert_eq!(others.len(), 10, "{others:?}");
    assert!(others.iter().all(|(_, status)| *status == NotApplicable));
}
