//! The file of a workflow: the body of a registration, or of a submission with inline steps.

use std::{collections::BTreeMap, sync::Arc};

use provost_domain::{
    definition::{Accepted, Definition, Limits, Policies, parse_steps},
    template::Payload,
    values::{FieldFault, Fields, LONGEST_NAME, Priority, Span},
    view::{DryRunReport, TaskFields, Warning, dry_run},
};
use serde_json::value::RawValue;

use crate::names::names_of;

const LONGEST_DESCRIPTION: usize = 4096;

/// Fields that only a submission has.
const OF_SUBMISSIONS: [&str; 7] = [
    "workflow",
    "workflow_version",
    "key",
    "input",
    "priority",
    "labels",
    "reply_to",
];

/// A workflow that was checked as far as possible without a running service: agents and receivers are not known.
#[derive(Debug)]
pub struct WorkflowFile {
    pub definition: Arc<Definition>,
    /// The definition by which files name the steps.
    pub names: Arc<Definition>,
    pub complete_within: Option<Span>,
    pub key: Option<String>,
    pub input: Option<Payload>,
    pub labels: BTreeMap<String, String>,
}

impl WorkflowFile {
    /// Reads a file, and reports all faults at once.
    pub fn read(body: &RawValue) -> Result<Self, Vec<FieldFault>> {
        let mut fields = Fields::of(body, "")?;
        let is_submission = OF_SUBMISSIONS.iter().any(|name| fields.has(name));
        let complete_within = fields.span("complete_within", Span::from_millis(1)..=Span::LONGEST);
        let (mut key, mut input, mut labels) = (None, None, BTreeMap::new());
        let policies = match is_submission {
            true => {
                key = fields.string("key", LONGEST_NAME);
                input = fields.raw("input").map(Payload::new);
                labels = fields.string_map("labels", LONGEST_NAME);
                fields.integer("priority", Priority::MIN..=Priority::MAX);
                // Receivers are known only to a running service.
                fields.value("reply_to");
                if fields.peek("workflow").is_some() {
                    fields.fault(
                        "workflow",
                        "names a registered workflow: give the file of the workflow itself, which has the steps",
                    );
                }
                fields.value("workflow");
                fields.value("workflow_version");
                Policies::read(&mut fields)
            }
            false => {
                fields.string("description", LONGEST_DESCRIPTION);
                Policies::read_of_workflow(&mut fields)
            }
        };
        let mut definition = None;
        match fields.raw("steps") {
            Some(steps) => {
                let steps = Payload::new(steps);
                match parse_steps(&steps, "/steps", &policies, &Limits::default(), &Accepted) {
                    Ok(parsed) => definition = Some(Arc::new(parsed)),
                    Err(faults) => fields.extend(faults),
                }
            }
            None => fields.missing("steps", "give an array of at least one step"),
        }
        fields.finish()?;
        // A missing definition was reported as a fault above.
        let definition = definition.ok_or_else(Vec::new)?;
        Ok(Self {
            names: names_of(&definition),
            definition,
            complete_within,
            key,
            input,
            labels,
        })
    }

    /// Returns possible mistakes, as a dry run finds them.
    pub fn warnings(&self) -> Vec<Warning> {
        let fields = TaskFields {
            complete_within: self.complete_within,
            input: self.input.as_ref(),
            key: self.key.as_deref(),
            labels: Some(&self.labels),
            now: None,
        };
        let DryRunReport { warnings, .. } = dry_run(&self.definition, &fields, &|_| None);
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(body: &str) -> Vec<String> {
        let body = RawValue::from_string(body.to_owned()).unwrap();
        let faults = WorkflowFile::read(&body).map(|_| ()).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_registration_and_a_submission_are_workflows() {
        for body in [
            r#"{ "description": "x", "limits": [{ "by": "{{ task.key }}" }], "complete_within": "5m",
                 "on_deadline": "undo", "steps": [{ "name": "a", "agent": "x" }] }"#,
            r#"{ "key": "k", "input": { "n": 1 }, "labels": { "a": "b" }, "priority": 3, "reply_to": { "receiver": "x" },
                 "on_permanent": "undo", "steps": [{ "name": "a", "agent": "x" }] }"#,
        ] {
            let body = RawValue::from_string(body.to_owned()).unwrap();
            let file = WorkflowFile::read(&body).unwrap();
            assert_eq!(file.definition.steps.len(), 1);
        }
    }

    #[test]
    fn every_fault_is_reported_with_its_pointer() {
        let found = faults(
            r#"{ "key": 5, "stepz": [], "steps": [{ "name": "a", "agent": "x", "after": ["b"] }, { "name": "a" }] }"#,
        );
        let starts = [
            "/key: must be",
            "/steps/1/agent: is missing",
            "/steps/1/name: step 0",
            "/steps/0/after/0: there is no step `b`",
            "/stepz: unknown field `stepz`; did you mean `steps`?",
        ];
        for start in starts {
            assert!(
                found.iter().any(|fault| fault.starts_with(start)),
                "{start} not in {found:#?}"
            );
        }
        assert_eq!(faults(r#"{ "workflow": "order" }"#).len(), 2);
        assert!(faults("[]")[0].contains("must be an object"));
    }
}
