//! Everything that is known of one task, in the order of time, for a person who examines a finding.

use std::fmt::Write as _;

use super::{
    Evidence,
    calls::said,
    evidence::{At, Entry},
};

/// Returns the history as it was committed, the calls as they came, and the effects.
pub fn story(evidence: &Evidence, task: &str) -> String {
    let mut lines: Vec<(At, String)> = Vec::new();
    let record = evidence.records.get(task);
    for entry in record.into_iter().flat_map(|record| &record.history) {
        lines.push((entry.at, format!("record  {}", entry_said(entry))));
    }
    let mut keys = Vec::new();
    for call in &evidence.ledger.calls {
        if call.task == task {
            keys.push(call.key.as_str());
            lines.push((call.at, format!("service {}", said(call))));
        }
    }
    for effect in &evidence.ledger.effects {
        if keys.contains(&effect.key.as_str()) {
            let what = format!("service {:?} under {}", effect.deed, effect.key);
            lines.push((effect.at, what));
        }
    }
    for reply in &evidence.ledger.replies {
        if reply.of.task == task {
            lines.push((reply.answered, format!("service {reply:?}")));
        }
    }
    for delivery in &evidence.deliveries {
        if delivery.task == task {
            let what = format!(
                "told    {} {:?} of version {}, taken: {}",
                delivery.kind, delivery.step, delivery.version, delivery.taken
            );
            lines.push((delivery.at, what));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    let accepted = evidence.accepted.iter().find(|known| known.id == task);
    let mut story = format!("--- {task}: {:?}\n", record.map(|record| &record.state));
    for step in accepted.into_iter().flat_map(|known| &known.plan.steps) {
        let _ = writeln!(story, "    {step:?}");
    }
    for (at, what) in lines {
        let _ = writeln!(story, "    {at} {what}");
    }
    story
}

fn entry_said(entry: &Entry) -> String {
    let Entry {
        version,
        kind,
        step,
        attempt,
        from,
        to,
        by,
        reason,
        unknown,
        ..
    } = entry;
    let step = step.as_deref().unwrap_or("the task");
    let from = from.as_deref().unwrap_or("nothing");
    let unknown = if *unknown { ", unknown" } else { "" };
    format!("{version} {kind} {step} {attempt}: {from} to {to}{unknown}, by {by}: {reason}")
}
