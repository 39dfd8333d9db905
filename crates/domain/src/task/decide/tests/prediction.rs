//! When a task will be complete, by what is known.

use super::*;
use crate::{
    task::turn::Turn,
    values::ids::AgentName,
    view::prediction::{
        AgentAvailability, AgentOutlook, CompleteSteps, Pace, Prediction, QueueOutline, QueueRange,
        predict,
    },
};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn outlook(step_time: u64) -> AgentOutlook {
    AgentOutlook {
        step_time: secs(step_time),
        ..AgentOutlook::default()
    }
}

/// So many steps of other tasks, all ahead, of which one is complete in a second.
fn queued(step_time: u64, steps: u64) -> AgentOutlook {
    let first = Turn::from_millis(0);
    AgentOutlook {
        queue: QueueOutline(vec![QueueRange {
            first,
            last: first,
            steps,
        }]),
        per_second: Some(1.0),
        ..outlook(step_time)
    }
}

/// In how many seconds the task will be complete, and what takes the most of them.
fn predicted(bench: &Bench, outlooks: &[(&str, AgentOutlook)]) -> Option<(u64, String)> {
    let of = |name: &AgentName| {
        let mut outlooks = outlooks.iter();
        outlooks
            .find(|(agent, _)| *agent == name.as_str())
            .map(|(_, of)| of)
    };
    let prediction = predict(&bench.draft.task, bench.now, of)?;
    let end = prediction.end.expect("nobody knows").since(bench.now);
    Some((end.as_secs(), prediction.agent.to_string()))
}

fn diamond() -> Bench {
    Bench::new(json!([
        { "name": "a", "agent": "first", "request": {} },
        { "name": "b", "agent": "slow", "after": ["a"], "request": {} },
        { "name": "c", "agent": "quick", "after": ["a"], "request": {} },
        { "name": "d", "agent": "last", "after": ["b", "c"], "request": {} },
    ]))
}

#[test]
fn a_task_ends_with_its_longest_way() {
    let mut bench = diamond();
    let outlooks = [
        ("first", outlook(10)),
        ("slow", outlook(60)),
        ("quick", outlook(5)),
        ("last", outlook(20)),
    ];
    assert_eq!(predicted(&bench, &outlooks), Some((90, "slow".to_owned())));
    bench.process("a");
    assert_eq!(predicted(&bench, &outlooks), Some((80, "slow".to_owned())));
    bench.claim("b").unwrap();
    bench.later(Span::from_secs(50));
    // Only the rest of the time of b counts.
    assert_eq!(predicted(&bench, &outlooks), Some((30, "last".to_owned())));
    bench.later(Span::from_secs(50));
    assert_eq!(
        predicted(&bench, &outlooks),
        Some((25, "last".to_owned())),
        "b is overdue"
    );
}

#[test]
fn what_nothing_is_known_of_takes_no_time() {
    assert_eq!(predicted(&diamond(), &[]), None);
    let known = [("last", outlook(7))];
    assert_eq!(predicted(&diamond(), &known), Some((7, "last".to_owned())));
}

#[test]
fn a_queue_is_worked_off_while_the_step_waits_for_others() {
    let bench = Bench::new(json!([
        { "name": "a", "agent": "first", "request": {} },
        { "name": "b", "agent": "last", "after": ["a"], "request": {} },
    ]));
    let at = |first, last| predicted(&bench, &[("first", first), ("last", last)]).unwrap();
    assert_eq!(at(outlook(10), queued(1, 100)), (101, "last".to_owned()));
    assert_eq!(at(queued(5, 100), queued(1, 60)), (106, "first".to_owned()));
}

#[test]
fn only_what_is_ahead_counts() {
    let turn = |millis| Turn::from_millis(millis);
    let range = |first, last, steps| QueueRange {
        first: turn(first),
        last: turn(last),
        steps,
    };
    let queue = QueueOutline(vec![range(100, 200, 10), range(1000, 2000, 10)]);
    let ahead: Vec<_> = [50, 100, 150, 200, 500, 1500, 9000]
        .map(|at| queue.ahead_of(turn(at)))
        .into();
    assert_eq!(ahead, [0.0, 0.0, 5.0, 10.0, 10.0, 15.0, 20.0]);
}

#[test]
fn an_agent_that_is_not_called_yet_is_waited_for() {
    let bench = diamond();
    let at = |called_from| AgentOutlook {
        called_from,
        ..outlook(5)
    };
    let paused = [(
        "slow",
        at(AgentAvailability::At(bench.now + Span::from_secs(600))),
    )];
    assert_eq!(predicted(&bench, &paused), Some((605, "slow".to_owned())));
    let unknown = at(AgentAvailability::Unknown);
    let of = |name: &AgentName| (name.as_str() == "quick").then_some(&unknown);
    let prediction = predict(&bench.draft.task, bench.now, of).unwrap();
    assert_eq!((prediction.end, prediction.agent.as_str()), (None, "quick"));
    assert!(prediction.is_late(bench.now + Span::from_secs(1_000_000), bench.now, false));
}

#[test]
fn a_step_that_may_be_skipped_takes_no_time() {
    let bench = Bench::new(json!([
        { "name": "a", "agent": "slow", "when": "input.total > 50", "request": {} },
        { "name": "b", "agent": "quick", "after": ["a"], "request": {} },
    ]));
    let known = [("slow", outlook(100)), ("quick", outlook(2))];
    assert_eq!(predicted(&bench, &known), Some((2, "quick".to_owned())));
}

#[test]
fn nothing_is_predicted_of_a_task_that_does_not_go_on() {
    let known = [("first", outlook(5))];
    let mut paused = diamond();
    paused.apply(Command::Pause { reason: None }).unwrap();
    assert_eq!(predicted(&paused, &known), None);
    let mut failed = diamond();
    let attempt = failed.claim("a").unwrap();
    let fault = Fault::permanent("no", failed.now);
    failed
        .reply("a", attempt, CallOutcome::Failed(fault))
        .unwrap();
    assert_eq!(predicted(&failed, &known), None);
}

#[test]
fn a_task_at_risk_stays_so_until_it_has_gained_some_time() {
    let now = Timestamp::from_millis(0);
    let after = |secs| now + Span::from_secs(secs);
    let ends = |secs| Prediction {
        end: Some(after(secs)),
        agent: AgentName::new("a"),
    };
    assert!(ends(101).is_late(after(100), now, false));
    assert!(!ends(99).is_late(after(100), now, false));
    assert!(ends(99).is_late(after(100), now, true));
    assert!(!ends(90).is_late(after(100), now, true));
    assert!(!ends(105).differs(&ends(100), now));
    assert!(ends(115).differs(&ends(100), now));
}

#[test]
fn a_pace_is_known_once_a_queue_has_lasted() {
    let at = |secs| Timestamp::from_millis(0) + Span::from_secs(secs);
    let complete = |steps, secs| CompleteSteps {
        steps,
        timed: steps,
        millis: steps * secs * 1000,
    };
    let mut pace = Pace::default();
    // At rest: how long a step takes, but not how many there could be.
    pace.look(at(0), complete(1, 2), false);
    assert_eq!((pace.step_time(), pace.per_second(at(5))), (secs(2), None));
    pace.look(at(5), complete(1, 2), true);
    pace.look(at(10), complete(50, 2), true);
    assert_eq!(pace.per_second(at(10)), None, "one look more");
    pace.look(at(15), complete(50, 2), true);
    assert_eq!(pace.per_second(at(15)), Some(10.0));
    // It stands still: the longer, the less.
    for now in [20, 30, 40, 50, 60, 70, 80] {
        pace.look(at(now), complete(0, 0), true);
    }
    let least = pace.per_second(at(80)).unwrap();
    assert!(least > 0.0 && least < 0.01, "{least}");
    pace.look(at(85), complete(0, 0), false);
    pace.look(at(90), complete(0, 0), true);
    assert_eq!(pace.per_second(at(90)), None, "the queue was empty");
}

#[test]
fn a_pace_needs_longer_than_its_steps() {
    let at = |secs| Timestamp::from_millis(0) + Span::from_secs(secs);
    let mut pace = Pace::default();
    pace.look(
        at(0),
        CompleteSteps {
            steps: 1,
            timed: 1,
            millis: 600_000,
        },
        true,
    );
    for now in [5, 10, 60, 600] {
        pace.look(at(now), CompleteSteps::default(), true);
        assert_eq!(pace.per_second(at(now)), None, "{now}");
    }
    pace.look(at(1200), CompleteSteps::default(), true);
    assert!(pace.per_second(at(1200)).is_some());
}

#[test]
fn a_process_that_began_again_counts_from_zero() {
    let counted = |steps, millis| CompleteSteps {
        steps,
        timed: steps,
        millis,
    };
    assert_eq!(counted(5, 50).since(counted(3, 30)), counted(2, 20));
    assert_eq!(counted(1, 10).since(counted(3, 30)), counted(1, 10));
}

#[test]
fn a_step_that_needed_several_attempts_counts_but_says_nothing_of_the_time() {
    let mut complete = CompleteSteps::default();
    complete.add(Some(secs(2)));
    complete.add(None);
    let twice = complete.plus(complete);
    assert_eq!((twice.steps, twice.timed, twice.millis), (4, 2, 4000));
    let mut pace = Pace::default();
    pace.look(Timestamp::from_millis(0), twice, false);
    assert_eq!(pace.step_time(), secs(2));
    let untimed = CompleteSteps {
        steps: 9,
        ..CompleteSteps::default()
    };
    pace.look(Timestamp::from_millis(1), untimed, false);
    assert_eq!(pace.step_time(), secs(2));
}
