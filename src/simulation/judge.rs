//! Has the auditor compare the records with the ledger.

use super::audit::{self, Evidence, Finding};

/// Returns what the auditor finds and what was found before, each with the story of its task.
pub fn judge(evidence: &Evidence, found: Vec<Finding>) -> Vec<(Finding, String)> {
    let findings = found.into_iter().chain(audit::audit(evidence));
    let with_story = |finding: Finding| {
        let story = finding
            .task
            .as_ref()
            .map_or_else(String::new, |task| audit::story(evidence, task));
        (finding, story)
    };
    findings.map(with_story).collect()
}
