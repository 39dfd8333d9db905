//! The properties that must hold for any commands, in any order.
mod asks;
mod changes;
mod shapes;
mod state;

use asks::{Ask, asks, early_asks};
use changes::{bulk_states, calls, compare, held, replay, without_reply_logs};
use proptest::prelude::*;
use shapes::{changes, other_version, shapes, steps};
use state::check;

use super::*;
use crate::task::properties::cases;

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn whatever_is_asked_the_invariants_hold(shapes in shapes(), others in shapes(), change in changes(), asks in asks(), limited: bool) {
        let limit = limited.then(|| Span::from_secs(200));
        let bench = Bench::of_workflow(&steps(&shapes), limit);
        let versions = [steps(&shapes), other_version(&shapes, &others, &change)];
        ask_all(bench, &versions, asks)?;
    }

    #[test]
    fn whatever_is_asked_of_a_task_that_has_not_begun_the_invariants_hold(
        shapes in shapes(), others in shapes(), change in changes(), asks in early_asks(), limited: bool, is_later: bool
    ) {
        let limit = limited.then(|| Span::from_secs(200));
        let bench = Bench::of_workflow(&steps(&shapes), limit);
        let versions = [steps(&shapes), other_version(&shapes, &others, &change)];
        let draft = match is_later {
            true => {
                let details = &bench.draft.task.details;
                let start_at = Some(bench.now + Span::from_secs(60));
                Draft::submit(Arc::new(Details { start_at, ..copy(details) }), bench.now)
            }
            false => {
 let details = bench.draft.task.details.clone();
 Draft::submit_keeping(details, true, MOST_OF_TASK, bench.now)
 },
        };
        ask_all(Bench { draft, ..bench }, &versions, asks)?;
    }
}

fn copy(details: &Details) -> Details {
    Details {
        id: details.id,
        key: details.key.clone(),
        workflow: details.workflow.clone(),
        definition: details.definition.clone(),
        input: details.input.clone(),
        labels: details.labels.clone(),
        priority: details.priority,
        complete_within: details.complete_within,
        start_at: details.start_at,
        key_prefix: details.key_prefix.clone(),
        trace: None,
        reply_to: None,
        parent: None,
    }
}

fn ask_all(mut bench: Bench, versions: &[Value; 2], asks: Vec<Ask>) -> Result<(), TestCaseError> {
    check(&bench.draft.task)?;
    for ask in asks {
        bench.draft.keep_claim();
        let before = bench.draft.task.clone();
        let told = bench.draft.events.len();
        let command = match &ask {
            Ask::Migrate => Some(bench.other_version(versions)),
            ask => ask.command(&before, bench.now),
        };
        let Some(command) = command else {
            if let Ask::Wait(millis) = ask {
                bench.later(Span::from_millis(millis));
            }
            continue;
        };
        bulk_states(&bench)?;
        let outcome = bench.apply(command.clone());
        let after = &bench.draft.task;
        if outcome.is_err() {
            prop_assert_eq!(&before, after, "a refused command changed something");
            prop_assert_eq!(told, bench.draft.events.len());
            continue;
        }
        if let Ok(CommandOutput::Unchanged) = outcome {
            prop_assert_eq!(&before, after, "a repeated command changed something");
            continue;
        }
        if let Ok(CommandOutput::Late(_)) = outcome {
            let rest = without_reply_logs(after, &before);
            prop_assert_eq!(before, rest, "a late reply changed something");
            continue;
        }
        let is_undone =
            matches!(command, Command::Undo { .. }) && before.status() == TaskStatus::Processed;
        prop_assert!(
            is_undone || !before.is_ended(),
            "an ended task accepted {:?}",
            command
        );
        if let Command::Heartbeat { .. } = command {
            check(after)?;
            continue;
        }
        let is_left_alone = matches!(command, Command::Overdue) && before.paused;
        prop_assert!(
            told < bench.draft.events.len() || is_left_alone,
            "no history of {:?}",
            command
        );
        held(&before, after, &command)?;
        check(after)?;
        compare(&before, after, &command)?;
        calls(&before, after, &command)?;
    }
    changes_are_told(&bench.draft).map_err(TestCaseError::fail)?;
    replay(&bench.draft)
}
