//! Tests of the auditor: one small ledger and record for each finding, and one without findings.

use std::{collections::BTreeSet, time::Duration};

use super::{
    At, Call, Deed, Delivery, Effect, Evidence, Exit, Fetched, Found, Heartbeat, Kind, Plan,
    Promised, QueuedReply, Record, Reply, Rule, Suspension, Trouble, audit,
    evidence::{Accepted, Entry, PlannedStep},
};

/// Returns the moment that is `millis` milliseconds after the beginning.
pub(super) fn at(millis: i64) -> At {
    At(millis * 1000)
}

/// Returns an entry of a step, or of the task if `step` is empty. `moves` is `from>to`.
pub(super) fn entry(millis: i64, version: u64, kind: &str, step: &str, moves: &str) -> Entry {
    let (from, to) = moves.split_once('>').unwrap();
    Entry {
        at: at(millis),
        version,
        kind: kind.to_owned(),
        step: (!step.is_empty()).then(|| step.to_owned()),
        attempt: 1,
        from: (!from.is_empty()).then(|| from.to_owned()),
        to: to.to_owned(),
        by: "scheduler:node-0".to_owned(),
        ..Entry::default()
    }
}

pub(super) fn call(millis: i64, kind: Kind, step: &str, found: Found) -> Call {
    let work = format!("t:{}", super::subject(step));
    Call {
        at: at(millis),
        kind,
        task: "t".to_owned(),
        step: step.to_owned(),
        attempt: 1,
        key: match kind {
            Kind::Undo => format!("t:{step}"),
            _ => work.clone(),
        },
        undoes: (kind == Kind::Undo).then_some(work),
        found,
        waited_until: None,
        made_by: 0,
    }
}

pub(super) fn effect(millis: i64, step: &str, deed: Deed) -> Effect {
    Effect {
        at: at(millis),
        key: format!("t:{step}"),
        deed,
    }
}

fn delivery(millis: i64, id: &str, kind: &str, step: &str, version: u64) -> Delivery {
    Delivery {
        at: at(millis),
        id: id.to_owned(),
        task: "t".to_owned(),
        kind: kind.to_owned(),
        step: (!step.is_empty()).then(|| step.to_owned()),
        version,
        body: format!("{kind} {version}"),
        taken: true,
    }
}

pub(super) fn planned(name: &str, after: &[&str]) -> PlannedStep {
    PlannedStep {
        name: name.to_owned(),
        after: after.iter().map(|name| (*name).to_owned()).collect(),
        undo: true,
        ..PlannedStep::default()
    }
}

/// Returns the evidence of a task of two steps, one after the other, that an operator undid when both were done. It has
/// no findings.
fn undone() -> Evidence {
    let history = vec![
        entry(0, 1, "task.accepted", "", ">pending"),
        entry(0, 1, "step.ready", "one", "waiting>pending"),
        entry(0, 1, "step.claimed", "one", "pending>processing"),
        entry(0, 1, "task.processing", "", "pending>processing"),
        entry(100, 2, "step.processed", "one", "processing>processed"),
        entry(100, 2, "step.ready", "two", "waiting>pending"),
        entry(100, 2, "step.claimed", "two", "pending>processing"),
        entry(150, 3, "task.undoing", "", "processing>undoing"),
        entry(200, 4, "step.processed", "two", "processing>processed"),
        entry(200, 4, "step.ready", "two.undo", "waiting>pending"),
        entry(200, 4, "step.claimed", "two.undo", "pending>processing"),
        entry(300, 5, "step.processed", "two.undo", "processing>processed"),
        entry(300, 5, "step.undone", "two", "processed>undone"),
        entry(300, 5, "step.ready", "one.undo", "waiting>pending"),
        entry(300, 5, "step.claimed", "one.undo", "pending>processing"),
        entry(400, 6, "step.processed", "one.undo", "processing>processed"),
        entry(400, 6, "step.undone", "one", "processed>undone"),
        entry(400, 6, "task.undone", "", "undoing>undone"),
    ];
    let steps = [
        ("one", "undone"),
        ("two", "undone"),
        ("one.undo", "processed"),
        ("two.undo", "processed"),
    ];
    let mut evidence = Evidence::default();
    evidence.accepted.push(Accepted {
        id: "t".to_owned(),
        key: "order-1".to_owned(),
        plan: Plan {
            steps: vec![planned("one", &[]), planned("two", &["one"])],
            events: vec!["task.accepted".to_owned(), "task.undone".to_owned()],
            start_at: None,
        },
        ..Accepted::default()
    });
    let record = Record {
        state: "undone".to_owned(),
        key: "order-1".to_owned(),
        version: 6,
        steps: steps
            .map(|(name, state)| (name.to_owned(), state.to_owned()))
            .into(),
        history,
        alerts: Vec::new(),
        ..Record::default()
    };
    evidence.records.insert("t".to_owned(), record);
    evidence.ledger.calls = vec![
        call(50, Kind::Work, "one", Found::Nothing),
        call(120, Kind::Work, "two", Found::Nothing),
        call(250, Kind::Undo, "two.undo", Found::Done),
        call(350, Kind::Undo, "one.undo", Found::Done),
    ];
    evidence.ledger.effects = vec![
        effect(50, "one", Deed::Done),
        effect(120, "two", Deed::Done),
        effect(250, "two", Deed::Undone),
        effect(350, "one", Deed::Undone),
    ];
    evidence.deliveries = vec![
        delivery(10, "m1", "task.accepted", "", 1),
        delivery(410, "m2", "task.undone", "", 6),
    ];
    evidence
}

pub(super) fn record(evidence: &mut Evidence) -> &mut Record {
    evidence.records.get_mut("t").unwrap()
}

/// Checks that the auditor finds violations of these rules, and no others, once the evidence is changed.
#[track_caller]
pub(super) fn finds(rules: &[Rule], change: impl FnOnce(&mut Evidence)) {
    let mut evidence = undone();
    change(&mut evidence);
    let findings = audit(&evidence);
    let found: BTreeSet<_> = findings.iter().map(|finding| finding.rule).collect();
    let expected: BTreeSet<_> = rules.iter().copied().collect();
    assert_eq!(found, expected, "{findings:#?}");
}

/// Changes the evidence to the time when both steps were done and nothing was undone.
pub(super) fn processed(evidence: &mut Evidence) {
    let record = record(evidence);
    record.history.truncate(7);
    record.history.extend([
        entry(200, 3, "step.processed", "two", "processing>processed"),
        entry(200, 3, "task.processed", "", "processing>processed"),
    ]);
    record.state = "processed".to_owned();
    record.version = 3;
    record.steps = ["one", "two"]
        .map(|name| (name.to_owned(), "processed".to_owned()))
        .into();
    evidence.ledger.calls.truncate(2);
    evidence.ledger.effects.truncate(2);
    evidence.deliveries.truncate(1);
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    finds(&[], |_| {});
    finds(&[], processed);
}

#[test]
fn a_task_that_was_accepted_and_is_gone_is_found() {
    finds(&[Rule::TaskMissing, Rule::MessageMissing], |evidence| {
        let mut gone = evidence.accepted[0].clone();
        gone.id = "u".to_owned();
        evidence.accepted.push(gone);
        evidence.deliveries.pop();
    });
}

#[test]
fn a_task_that_nobody_asked_for_is_found() {
    finds(&[Rule::TaskUnasked], |evidence| {
        let again = record(evidence).clone();
        evidence.records.insert("u".to_owned(), again);
    });
    finds(&[Rule::TaskUnasked], |evidence| {
        let again = evidence.accepted[0].clone();
        evidence.accepted.push(again);
    });
}

#[test]
fn a_task_that_is_not_at_rest_is_found() {
    finds(&[Rule::TaskNotAtRest], |evidence| {
        processed(evidence);
        let record = record(evidence);
        record.history.truncate(7);
        record.version = 2;
        record.state = "processing".to_owned();
        record
            .steps
            .insert("two".to_owned(), "processing".to_owned());
    });
}

fn in_error(evidence: &mut Evidence) {
    processed(evidence);
    let record = record(evidence);
    record.history.truncate(7);
    record.history.extend([
        entry(200, 3, "step.error", "two", "processing>error"),
        entry(200, 3, "task.error", "", "processing>error"),
    ]);
    record.state = "error".to_owned();
    record.steps.insert("two".to_owned(), "error".to_owned());
    evidence.ledger.effects.truncate(1);
}

#[test]
fn an_error_that_nobody_is_told_of_is_found() {
    finds(&[Rule::ErrorWithoutAlert], in_error);
    finds(&[], |evidence| {
        in_error(evidence);
        record(evidence).alerts = vec!["two".to_owned()];
    });
}

#[test]
fn an_alert_of_no_error_or_a_second_one_is_found() {
    for alerts in [&["two", "two"], &["one", "two"]] {
        finds(&[Rule::AlertWithoutError], |evidence| {
            in_error(evidence);
            record(evidence).alerts = alerts.map(str::to_owned).to_vec();
        });
    }
    finds(&[Rule::AlertWithoutError], |evidence| {
        processed(evidence);
        record(evidence).alerts = vec!["two".to_owned()];
    });
}

#[test]
fn an_alert_that_miscounts_its_steps_is_found() {
    finds(&[Rule::AlertMiscounted], |evidence| {
        processed(evidence);
        let what = "1 are part of an alert that counts 2";
        evidence.miscounts.push(what.to_owned());
    });
}

#[test]
fn a_history_with_a_gap_is_found() {
    finds(&[Rule::HistoryBroken], |evidence| {
        for entry in &mut record(evidence).history[7..] {
            entry.version += 1;
        }
        record(evidence).version = 7;
        evidence.deliveries[1].version = 7;
    });
    finds(&[Rule::HistoryBroken], |evidence| {
        record(evidence)
            .steps
            .insert("one".to_owned(), "skipped".to_owned());
    });
    finds(&[Rule::HistoryBroken], |evidence| {
        record(evidence).history.remove(1);
    });
}

#[test]
fn a_change_of_state_under_another_name_is_found() {
    finds(&[Rule::ChangeUntold], |evidence| {
        record(evidence).history[3].kind = "task.resumed".to_owned();
    });
    // This happens to the end of a task that was lost together with the event of its admission.
    finds(&[Rule::ChangeUntold], |evidence| {
        let accepted = &mut evidence.accepted[0];
        accepted.plan.events.retain(|event| event != "task.undone");
        evidence
            .deliveries
            .retain(|delivery| delivery.kind != "task.undone");
        let history = &mut record(evidence).history;
        history.last_mut().unwrap().kind = "task.resumed".to_owned();
    });
}

#[test]
fn a_step_that_begins_before_its_task_is_admitted_is_found() {
    let admitted = |moves| entry(0, 1, "task.admitted", "", moves);
    finds(&[Rule::BegunUnadmitted], |evidence| {
        let history = &mut record(evidence).history;
        history.insert(4, admitted("processing>processing"));
    });
    finds(&[], |evidence| {
        let history = &mut record(evidence).history;
        history.insert(2, admitted("pending>pending"));
    });
}

#[test]
fn a_step_that_begins_while_its_task_is_undone_is_found() {
    finds(&[Rule::ClaimedTooLate], |evidence| {
        let history = &mut record(evidence).history;
        let mut claimed = history.remove(6);
        let mut ready = history.remove(5);
        (claimed.version, ready.version) = (3, 3);
        history.insert(6, claimed);
        history.insert(6, ready);
        history[5].version = 3;
    });
}

#[test]
fn a_step_that_is_called_under_a_second_key_is_found() {
    finds(&[Rule::KeyUnstable], |evidence| {
        let mut again = call(60, Kind::Work, "one", Found::Nothing);
        again.key = "t:one:2".to_owned();
        evidence.ledger.calls.insert(1, again);
    });
    finds(&[Rule::KeyUnstable], |evidence| {
        evidence.ledger.calls[3].key = "t:two.undo".to_owned();
    });
}

#[test]
fn a_call_that_the_record_does_not_know_is_found() {
    finds(&[Rule::CallUnclaimed], |evidence| {
        evidence.ledger.calls[1].attempt = 2;
    });
    finds(&[Rule::CallUnclaimed], |evidence| {
        evidence.ledger.calls[2].at = at(199);
        evidence.ledger.effects[2].at = at(199);
    });
}

#[test]
fn a_call_after_the_end_of_its_attempt_is_found() {
    let late = |evidence: &mut Evidence| {
        let call = call(2_100, Kind::Work, "one", Found::Undone);
        evidence.ledger.calls.push(call);
    };
    finds(&[Rule::CallLate], late);
    // A call may be later on a busy machine, and from an instance that was suspended.
    finds(&[], |evidence| {
        late(evidence);
        evidence
            .stalls
            .0
            .push((at(1_900), Duration::from_millis(700)));
    });
    let suspended = |name: &str| Suspension {
        instance: Some(name.to_owned()),
        from: at(90),
        to: at(2_000),
    };
    finds(&[], |evidence| {
        late(evidence);
        evidence.suspensions.push(suspended("node-0"));
    });
    finds(&[Rule::CallLate], |evidence| {
        late(evidence);
        evidence.suspensions.push(suspended("node-2"));
    });
}

#[test]
fn an_effect_that_happened_twice_is_found() {
    finds(&[Rule::EffectTwice], |evidence| {
        evidence
            .ledger
            .effects
            .insert(1, effect(60, "one", Deed::Done));
    });
}

#[test]
fn a_step_that_is_done_in_the_record_alone_is_found() {
    finds(&[Rule::DoneNowhere], |evidence| {
        processed(evidence);
        evidence.ledger.effects.pop();
    });
    finds(&[], |evidence| {
        processed(evidence);
        evidence.ledger.effects.pop();
        let done = &mut record(evidence).history[7];
        done.kind = "step.resolved".to_owned();
        done.by = "operator:ada".to_owned();
    });
}

#[test]
fn a_step_that_is_undone_in_the_record_alone_is_found() {
    let rules = [Rule::UndoneNowhere, Rule::EffectStands];
    finds(&rules, |evidence| {
        evidence.ledger.effects.pop();
    });
}

#[test]
fn an_effect_that_stands_in_an_undone_task_is_found() {
    finds(&[Rule::EffectStands], |evidence| {
        // Its probe reported that it never took effect, and a late attempt made the effect.
        let record = record(evidence);
        record.history[8] = entry(200, 4, "step.cancelled", "two", "processing>cancelled");
        record.history[11] = entry(300, 5, "step.skipped", "two.undo", "processing>skipped");
        record.history.remove(12);
        record
            .steps
            .insert("two".to_owned(), "cancelled".to_owned());
        record
            .steps
            .insert("two.undo".to_owned(), "skipped".to_owned());
        evidence.accepted[0].plan.steps[1].probe = true;
        evidence.ledger.calls[2] = call(250, Kind::Probe, "two.undo", Found::Nothing);
        evidence
            .ledger
            .calls
            .push(call(440, Kind::Work, "two", Found::Nothing));
        evidence.ledger.effects = vec![
            effect(50, "one", Deed::Done),
            effect(350, "one", Deed::Undone),
            effect(440, "two", Deed::Done),
        ];
        evidence.ledger.calls.remove(1);
    });
}

#[test]
fn a_race_that_is_rerun_is_lost_by_nobody_until_it_is_over_again() {
    let rerun = |then: &'static str| {
        move |evidence: &mut Evidence| {
            processed(evidence);
            evidence.accepted[0].plan.steps[0].undo = true;
            let record = record(evidence);
            let reasons = [
                ("step.skipped", "waiting>skipped", "one is needed"),
                ("step.retried", "skipped>waiting", "rerun from one"),
                ("step.skipped", "waiting>skipped", then),
            ];
            let entries = reasons.map(|(kind, moves, reason)| Entry {
                reason: reason.to_owned(),
                ..entry(200, 3, kind, "one.revert", moves)
            });
            record.history.splice(7..7, entries);
            let skipped = ("one.revert".to_owned(), "skipped".to_owned());
            record.steps.extend([skipped]);
        }
    };
    finds(&[], rerun("one is needed"));
    finds(&[Rule::EffectStands], rerun("one never took effect"));
}

#[test]
fn an_undo_of_what_never_happened_is_found() {
    let never = |evidence: &mut Evidence, unknown: bool, probe: bool| {
        let record = record(evidence);
        record.history[8] = entry(200, 4, "step.error", "two", "processing>error");
        record.history[8].unknown = unknown;
        record.history[12].from = Some("error".to_owned());
        evidence.accepted[0].plan.steps[1].probe = probe;
        evidence.ledger.calls[2].found = Found::Nothing;
        evidence.ledger.effects[2].deed = Deed::Withdrawn;
        evidence.ledger.effects.remove(1);
    };
    finds(&[Rule::UndoneNeedlessly], |evidence| {
        never(evidence, false, false)
    });
    finds(&[Rule::UndoneNeedlessly], |evidence| {
        never(evidence, true, true)
    });
    finds(&[], |evidence| never(evidence, true, false));
}

#[test]
fn an_undo_past_the_pivot_is_found() {
    finds(&[Rule::UndonePastPivot], |evidence| {
        evidence.accepted[0].plan.steps[1].pivot = true;
    });
}

#[test]
fn a_step_that_comes_before_what_it_follows_is_found() {
    finds(&[Rule::ForwardOrder], |evidence| {
        evidence.ledger.effects[0].at = at(130);
    });
}

#[test]
fn what_began_by_a_clock_that_is_behind_has_the_order_of_the_versions() {
    let found = |done_in: u64| {
        let mut evidence = undone();
        evidence.ledger = Default::default();
        for step in &mut evidence.accepted[0].plan.steps {
            step.uncalled = true;
        }
        let history = &mut record(&mut evidence).history;
        (history[4].at, history[4].version) = (at(105), done_in);
        history[6].kind = "step.began".to_owned();
        let mut findings = Vec::new();
        super::order::check(&evidence, &mut findings);
        findings.len()
    };
    // The step began in version 2, by a clock that is 5 ms behind.
    assert_eq!(found(2), 0);
    assert_eq!(found(3), 1);
}

#[test]
fn an_undo_that_comes_before_that_of_what_followed_is_found() {
    finds(&[Rule::BackwardOrder], |evidence| {
        evidence.ledger.effects[2].at = at(360);
    });
    finds(&[], |evidence| {
        evidence.ledger.effects[2].at = at(360);
        record(evidence).history[11].kind = "step.resolved".to_owned();
    });
}

#[test]
fn a_message_that_never_came_or_was_never_taken_is_found() {
    finds(&[Rule::MessageMissing], |evidence| {
        evidence.deliveries.pop();
    });
    finds(&[Rule::MessageMissing], |evidence| {
        evidence.deliveries[0].taken = false;
    });
}

#[test]
fn a_message_that_nothing_explains_is_found() {
    finds(&[Rule::MessageUnexplained], |evidence| {
        evidence
            .deliveries
            .push(delivery(420, "m3", "task.undone", "", 6));
    });
    finds(&[Rule::MessageUnexplained], |evidence| {
        let mut other = evidence.deliveries[1].clone();
        other.body.push('!');
        evidence.deliveries.push(other);
    });
    // A message that is delivered twice is not a violation.
    finds(&[], |evidence| {
        evidence.deliveries.push(evidence.deliveries[0].clone());
    });
}

#[test]
fn a_message_that_overtakes_another_is_found() {
    finds(&[Rule::MessageOrder], |evidence| {
        evidence.deliveries.reverse();
    });
}

/// Adds the reply to `one`, which was promised to its first attempt.
fn promised(evidence: &mut Evidence, status: u16, again: &[u16]) {
    processed(evidence);
    let record = record(evidence);
    let mut deferred = entry(60, 2, "step.deferred", "one", "processing>processing");
    record.history[4].by = "service".to_owned();
    for entry in &mut record.history[4..] {
        entry.version += 1;
    }
    deferred.reason = "the service will reply later".to_owned();
    record.history.insert(4, deferred);
    record.version += 1;
    evidence.ledger.replies.push(Reply {
        of: to_one(),
        answered: at(101),
        status,
        again: again.to_vec(),
    });
}

fn to_one() -> Promised {
    Promised {
        task: "t".to_owned(),
        step: "one".to_owned(),
        attempt: 1,
    }
}

#[test]
fn a_reply_that_was_taken_and_does_not_count_is_found() {
    finds(&[], |evidence| promised(evidence, 204, &[204]));
    finds(&[Rule::ReplyLost], |evidence| {
        promised(evidence, 204, &[]);
        record(evidence).history[5].by = "scheduler:node-0".to_owned();
    });
    finds(&[Rule::ReplyLost], |evidence| {
        promised(evidence, 204, &[]);
        evidence.ledger.replies[0].of.attempt = 2;
    });
}

#[test]
fn a_reply_that_was_refused_too_early_or_after_it_was_taken_is_found() {
    finds(&[Rule::ReplyRefused], |evidence| {
        promised(evidence, 409, &[])
    });
    finds(&[Rule::ReplyRepeated], |evidence| {
        promised(evidence, 204, &[204, 409])
    });
    let expired = |evidence: &mut Evidence| {
        promised(evidence, 409, &[409]);
        record(evidence).history[5].by = "supervisor".to_owned();
    };
    finds(&[], expired);
    finds(&[Rule::ReplyRefused], |evidence| {
        expired(evidence);
        evidence.ledger.replies[0].answered = at(-900);
    });
    finds(&[Rule::AnswerUnexpected], |evidence| {
        promised(evidence, 404, &[])
    });
}

#[test]
fn an_attempt_that_ends_twice_is_found() {
    finds(&[Rule::AttemptEndedTwice], |evidence| {
        promised(evidence, 204, &[]);
        let mut again = entry(300, 5, "step.processed", "one", "processed>processed");
        again.by = "service".to_owned();
        let record = record(evidence);
        record.history.push(again);
        record.version = 5;
    });
}

#[test]
fn a_promise_that_a_restart_or_a_lost_instance_breaks_is_found() {
    for (kind, reason) in [
        ("step.released", "the instance that held it restarted"),
        (
            "step.expired",
            "instance node-1, which held attempt 1, was lost",
        ),
    ] {
        finds(&[Rule::PromiseBroken], |evidence| {
            promised(evidence, 204, &[]);
            evidence.ledger.replies.clear();
            let record = record(evidence);
            let mut broken = entry(80, 2, kind, "one", "processing>pending");
            broken.reason = reason.to_owned();
            record.history.insert(5, broken);
            let mut again = entry(80, 2, "step.claimed", "one", "pending>processing");
            again.attempt = 2;
            record.history.insert(6, again);
            record.history[7].attempt = 2;
        });
    }
}

#[test]
fn a_heartbeat_that_is_ignored_is_found() {
    let silent = |evidence: &mut Evidence, sent: i64| {
        promised(evidence, 409, &[]);
        evidence.ledger.replies.clear();
        evidence.accepted[0].plan.steps[0].heartbeat_within = Some(Duration::from_secs(1));
        evidence.ledger.heartbeats.push(Heartbeat {
            of: to_one(),
            sent: at(sent),
            answered: at(sent + 1),
            status: 204,
        });
        record(evidence).history[5].reason = "attempt 1 sent no heartbeat within 1s".to_owned();
    };
    finds(&[Rule::HeartbeatIgnored], |evidence| silent(evidence, 0));
    finds(&[], |evidence| silent(evidence, -901));
    for (sent, rules) in [(105, &[][..]), (-900, &[Rule::ReplyRefused])] {
        finds(rules, |evidence| {
            silent(evidence, sent);
            evidence.ledger.heartbeats[0].status = 409;
        });
    }
}

#[test]
fn a_process_that_ended_or_panicked_is_found() {
    finds(&[Rule::ProcessEnded, Rule::ProcessPanicked], |evidence| {
        evidence.exits.push(Exit {
            at: at(5),
            instance: 1,
            said: "exit status: 1".to_owned(),
        });
        evidence.panics.push("thread 'main' panicked".to_owned());
    });
    finds(&[Rule::AnswerUnexpected], |evidence| {
        evidence.answers.push("500 to /v1/tasks".to_owned());
    });
}

/// Changes the evidence so that a worker has fetched `one`.
fn fetched(evidence: &mut Evidence) {
    processed(evidence);
    let claim = &mut record(evidence).history[2];
    assert_eq!(claim.kind, "step.claimed");
    claim.reason = "fetched by worker w-1".to_owned();
    evidence.ledger.fetched.push(Fetched {
        of: to_one(),
        worker: "w-1".to_owned(),
    });
}

#[test]
fn a_step_that_two_workers_got_or_that_was_claimed_for_another_is_found() {
    finds(&[], fetched);
    finds(&[], |evidence| {
        fetched(evidence);
        record(evidence).history[2].reason += ": its probe runs";
    });
    finds(&[Rule::FetchedTwice], |evidence| {
        fetched(evidence);
        let again = evidence.ledger.fetched[0].clone();
        evidence.ledger.fetched.push(again);
    });
    for worker in ["w-2", "w"] {
        finds(&[Rule::FetchedByAnother], |evidence| {
            fetched(evidence);
            evidence.ledger.fetched[0].worker = worker.to_owned();
        });
    }
}

#[test]
fn a_step_that_is_handed_back_although_a_worker_has_it_is_found() {
    let handed_back = |kind: &str, reason: &str| {
        let (kind, reason) = (kind.to_owned(), reason.to_owned());
        move |evidence: &mut Evidence| {
            fetched(evidence);
            let record = record(evidence);
            for entry in &mut record.history[4..] {
                entry.version += 2;
                entry.attempt = 2;
            }
            let mut end = entry(50, 2, &kind, "one", "processing>pending");
            end.reason = reason;
            let mut again = entry(60, 3, "step.claimed", "one", "pending>processing");
            again.attempt = 2;
            record.history.insert(4, end);
            record.history.insert(5, again);
            record.version += 2;
        }
    };
    let broken = [Rule::PromiseBroken];
    finds(&broken, handed_back("step.released", "its worker hung up"));
    let lost = "instance node-0 was lost";
    finds(&broken, handed_back("step.expired", lost));
    let silent = "attempt 1 sent no heartbeat within 1s";
    finds(&[], handed_back("step.expired", silent));
}

#[test]
fn a_reply_that_has_the_task_undone_does_not_count_for_the_steps_that_this_drops() {
    finds(&[], |evidence| {
        promised(evidence, 409, &[409]);
        let dropped = &mut record(evidence).history[5];
        dropped.kind = "step.cancelled".to_owned();
        dropped.reason = "the promised reply is no longer awaited".to_owned();
    });
}

/// Changes the evidence so that the reply to `one` went to a queue and was confirmed at this moment, and the attempt
/// expired ten minutes later.
fn queued(evidence: &mut Evidence, confirmed: i64) {
    promised(evidence, 204, &[]);
    evidence.ledger.replies.clear();
    let history = &mut record(evidence).history;
    for entry in &mut history[5..] {
        entry.at = at(600_000);
    }
    history[5].by = "supervisor".to_owned();
    evidence.ledger.calls[1].at = at(600_001);
    evidence.ledger.effects[1].at = at(600_001);
    evidence.ledger.queued_replies.push(QueuedReply {
        of: to_one(),
        confirmed: at(confirmed),
    });
}

#[test]
fn a_reply_that_is_lost_after_the_broker_has_confirmed_it_is_found() {
    finds(&[Rule::ReplyLost], |evidence| queued(evidence, 500));
    finds(&[], |evidence| queued(evidence, 599_000));
    finds(&[], |evidence| {
        queued(evidence, 500);
        record(evidence).history[5].by = "service".to_owned();
    });
    // The instance may have been in trouble.
    for (from, to, rules) in [
        (400, 590_000, &[][..]),
        (8_000, 590_000, &[]),
        (60_000, 590_000, &[Rule::ReplyLost]),
        (400, 60_000, &[Rule::ReplyLost]),
    ] {
        let (from, to) = (at(from), at(to));
        finds(rules, |evidence| {
            queued(evidence, 500);
            evidence.troubles.push(Trouble { from, to });
        });
    }
}

#[test]
fn a_request_may_wait_in_its_queue_until_its_complete_by_and_no_longer() {
    let waited = |evidence: &mut Evidence, until: i64| {
        let mut call = call(2_100, Kind::Work, "one", Found::Undone);
        call.waited_until = Some(at(until));
        evidence.ledger.calls.push(call);
    };
    finds(&[], |evidence| waited(evidence, 2_000));
    finds(&[Rule::CallLate], |evidence| waited(evidence, 1_000));
    // The request may have been on its way for the time of the trouble.
    finds(&[], |evidence| {
        waited(evidence, 1_000);
        let (from, to) = (at(10), at(1_000));
        evidence.troubles.push(Trouble { from, to });
    });
}
