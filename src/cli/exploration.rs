//! The report of `provost test --explore`.

use serde_json::{Value, json};

use super::sources::in_one_line;
use crate::{
    domain::{definition::Definition, task::TaskStatus, values::Effect},
    output::say,
    rehearsal::{
        CasesFile, Exploration, ExploredFault, MOST_FAULTS, StandingEffect, TestCase, WorkflowFile,
        effect_in_words, explore, step_name,
    },
};

/// The longest error in the table, in characters.
const LONGEST_ERROR: usize = 100;

pub fn print(
    workflow: &WorkflowFile,
    file: &CasesFile,
    case: &TestCase,
    path: &str,
    as_json: bool,
) {
    let found = explore(workflow, file, case);
    let definition = &workflow.names;
    match as_json {
        true => say!("{:#}", in_json(definition, &found, case, path)),
        false => print_table(definition, &found, case, path),
    }
}

fn print_table(definition: &Definition, found: &Exploration, case: &TestCase, path: &str) {
    say!("{path}: {}", in_one_line(&case.name));
    let rows: Vec<[String; 4]> = std::iter::once(&found.baseline)
        .chain(&found.faults)
        .map(|fault| {
            [
                fault_in_words(definition, fault),
                match (&fault.incomplete, needs_operator(fault)) {
                    (Some(_), _) => "unknown".to_owned(),
                    (None, true) => format!("{}, needs an operator", fault.state.as_str()),
                    (None, false) => fault.state.as_str().to_owned(),
                },
                fault.ended_after.to_string(),
                standing_in_words(definition, fault),
            ]
        })
        .collect();
    let header = ["FAULT", "ENDS IN", "AFTER", "STANDS"].map(str::to_owned);
    let width = |column: usize| {
        let cells = std::iter::once(&header).chain(&rows);
        cells
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths = [0, 1, 2].map(width);
    let faults = std::iter::once(None).chain(
        std::iter::once(&found.baseline)
            .chain(&found.faults)
            .map(Some),
    );
    for ([fault, end, after, stands], explored) in std::iter::once(&header).chain(&rows).zip(faults)
    {
        let [first, second, third] = widths;
        let mark = match explored {
            Some(fault) if fault.leaves_effects_silently() => "!",
            _ => " ",
        };
        say!("{mark} {fault:first$}  {end:second$}  {after:third$}  {stands}");
        let why = explored.and_then(|fault| fault.incomplete.as_ref());
        if let Some(why) = why {
            say!("    {}", excerpt(why));
        }
    }
    say!("");
    for step in &found.never_undone {
        say!(
            "the undo of {} was not tried: nothing after it can start an undo",
            step_name(definition, *step)
        );
    }
    if found.left_out > 0 {
        say!(
            "{} more faults were not tried: at most {MOST_FAULTS}",
            found.left_out
        );
    }
    let count = |test: &dyn Fn(&ExploredFault) -> bool| {
        found.faults.iter().filter(|fault| test(fault)).count()
    };
    let ends = |state: TaskStatus| count(&|fault| fault.state == state);
    say!(
        "{} faults: {} end processed, {} undone, {} need an operator; {} leave effects that no operator is notified of (!)",
        found.faults.len(),
        ends(TaskStatus::Processed),
        ends(TaskStatus::Undone),
        count(&needs_operator),
        count(&ExploredFault::leaves_effects_silently)
    );
    let has_end = |fault: &ExploredFault| fault.state.is_ended() || needs_operator(fault);
    let open = count(&|fault| !has_end(fault));
    if open > 0 {
        say!(
            "{open} of the faults had no end: the task still waited for something when its time was over"
        );
    }
    if found.baseline.state != TaskStatus::Processed {
        say!(
            "without a fault this case ends {}, so that not all steps were reached: explore one that ends processed, with --case",
            found.baseline.state.as_str()
        );
    }
}

fn needs_operator(fault: &ExploredFault) -> bool {
    fault.state == TaskStatus::Error
}

fn fault_in_words(definition: &Definition, fault: &ExploredFault) -> String {
    let Some((step, planned)) = fault.fault else {
        return "none".to_owned();
    };
    let words = format!("{}: {}", step_name(definition, step), planned.in_words());
    match &fault.undone_for {
        Some(why) => format!("{words} ({why})"),
        None => words,
    }
}

fn standing_in_words(definition: &Definition, fault: &ExploredFault) -> String {
    // All effects of a processed task are intended, so they are not listed.
    if fault.state == TaskStatus::Processed {
        return "all that it did".to_owned();
    }
    let shown = |effect: &StandingEffect| match effect.effect {
        Effect::Known => step_name(definition, effect.step),
        Effect::Unknown => format!("{} perhaps", step_name(definition, effect.step)),
    };
    match fault.stands.is_empty() {
        true => "nothing".to_owned(),
        false => fault
            .stands
            .iter()
            .map(shown)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn excerpt(text: &str) -> String {
    let text = in_one_line(text);
    match text.char_indices().nth(LONGEST_ERROR) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn in_json(definition: &Definition, found: &Exploration, case: &TestCase, path: &str) -> Value {
    let fault = |fault: &ExploredFault| {
        json!({
            "step": fault.fault.map(|(step, _)| step_name(definition, step)),
            "fault": fault.fault.map(|(_, planned)| planned.in_words()),
            "undone_for": fault.undone_for,
            "state": fault.state.as_str(),
            "error": fault.error,
            "ended_after": fault.ended_after.to_string(),
            "needs_operator": needs_operator(fault),
            "leaves_effects_silently": fault.leaves_effects_silently(),
            "stands": fault.stands.iter().map(|effect| json!({
                "step": step_name(definition, effect.step),
                "effect": effect_in_words(effect.effect),
            })).collect::<Vec<_>>(),
            "incomplete": fault.incomplete,
        })
    };
    json!({
        "file": path,
        "case": case.name,
        "without_fault": fault(&found.baseline),
        "faults": found.faults.iter().map(fault).collect::<Vec<_>>(),
        "left_out": found.left_out,
        "undo_not_tried": found.never_undone.iter().map(|step| step_name(definition, *step)).collect::<Vec<_>>(),
    })
}
