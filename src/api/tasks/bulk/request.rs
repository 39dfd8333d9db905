//! Parses a bulk command: the selection of tasks, and the command for each of them.

use std::collections::BTreeMap;

use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use crate::{
    api::{
        Problem,
        cursor::{Cursors, LONGEST as LONGEST_CURSOR, Unusable},
        extract::ids,
        tasks::{
            clone::version,
            commands::{LONGEST_STEP, reason},
        },
        workflows::VersionChoice,
    },
    domain::{BulkAction, Command, Fields, MOST_LABELS, Payload, StepName, TaskId, Timestamp},
    store::{AlertId, MOST_LOOKED_AT, TaskFilter},
};

/// The longest name or label, in bytes.
const LONGEST: usize = 255;
/// The most tasks that one request processes.
const LIMIT: std::ops::RangeInclusive<i64> = 1..=100_000;
const USUAL_LIMIT: i64 = 10_000;

/// A parsed and validated bulk command.
pub(super) struct BulkRequest {
    pub selection: TaskSelection,
    pub command: BulkCommand,
    pub dry_run: bool,
    /// The last task of the previous request.
    pub after: Option<TaskId>,
    pub cursors: Cursors,
    pub limit: usize,
}

/// What is sent to each task.
pub(super) enum BulkCommand {
    Same(Command),
    Migrate(BulkMigration),
}

/// A move to another version, which is made for each task by the steps that it has.
pub(super) struct BulkMigration {
    pub to: VersionChoice,
    /// Only tasks that have this version.
    pub from: Option<u32>,
    pub reason: Option<String>,
}

pub(super) enum TaskSelection {
    /// Sorted, without duplicates.
    Ids(Vec<TaskId>),
    Filter(TaskFilter),
}

impl BulkRequest {
    /// The most tasks that one request examines to find those that match.
    pub fn most_looked_at(&self) -> usize {
        self.limit.max(MOST_LOOKED_AT)
    }

    /// Parses the body and reports all its faults at once.
    pub fn read(action: BulkAction, body: &RawValue) -> Result<Self, Problem> {
        let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
        let selection = selection(action, &mut fields);
        let dry_run = fields.boolean("dry_run").unwrap_or(false);
        let limit = fields.integer("limit", LIMIT).unwrap_or(USUAL_LIMIT);
        let cursors = cursors(action, body);
        let after = after(&mut fields, cursors);
        let reason = reason(&mut fields);
        let command = match action {
            BulkAction::Retry => BulkCommand::Same(Command::Retry {
                step: None,
                body: None,
                reason,
            }),
            BulkAction::Undo => BulkCommand::Same(Command::Undo { reason }),
            BulkAction::Cancel => BulkCommand::Same(Command::Cancel { reason }),
            BulkAction::Skip => BulkCommand::Same(skip(&mut fields, reason)),
            BulkAction::Migrate => {
                if let TaskSelection::Filter(TaskFilter { workflow: None, .. }) = &selection {
                    fields.missing(
                        "workflow",
                        "name the workflow whose tasks move, or give ids: a version is one of a workflow",
                    );
                }
                BulkCommand::Migrate(migration(&mut fields, reason))
            }
        };
        fields.finish().map_err(Problem::invalid)?;
        Ok(Self {
            selection,
            command,
            dry_run,
            after,
            cursors,
            // Within 1 to 100,000.
            limit: limit as usize,
        })
    }
}

fn migration(fields: &mut Fields<'_>, reason: Option<String>) -> BulkMigration {
    if !fields.has("to_version") {
        fields.missing(
            "to_version",
            "give the number of a version, \"active\" or \"latest\"",
        );
    }
    let to = version(fields, "to_version").unwrap_or(VersionChoice::Active);
    let from = fields.integer("from_version", 1..=i64::from(u32::MAX));
    BulkMigration {
        to,
        // Within the range of versions.
        from: from.map(|from| from as u32),
        reason,
    }
}

fn skip(fields: &mut Fields<'_>, reason: Option<String>) -> Command {
    let step = fields.string("step", LONGEST_STEP);
    let output = fields.raw("output").map(Payload::new);
    if output.is_some() && step.is_none() {
        fields.fault(
            "output",
            "is the output of one step: name the step in `step`, or omit the output",
        );
    }
    Command::SkipFailed {
        step: step.map(StepName::new),
        output,
        reason,
    }
}

fn selection(action: BulkAction, fields: &mut Fields<'_>) -> TaskSelection {
    let all = fields.boolean("all").unwrap_or(false);
    let ids = ids(fields, "task");
    let ids = ids.map(|mut ids| {
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(TaskId).collect::<Vec<_>>()
    });
    let names_state = fields.peek("state").is_some();
    let filter = filter(action, fields);
    let filtered = names_state || filter != TaskFilter::default();
    match (&ids, filtered || all) {
        (Some(_), true) => fields.fault("ids", "give either ids or filters, not both"),
        (None, false) => fields.missing(
            "all",
            "give ids or a filter, or \"all\": true for every task in a suitable state",
        ),
        _ => {}
    }
    match ids {
        Some(ids) => TaskSelection::Ids(ids),
        None if filter.states.is_empty() => TaskSelection::Filter(TaskFilter {
            states: action.states(),
            ..filter
        }),
        None => TaskSelection::Filter(filter),
    }
}

/// The same filters as for the list of tasks.
fn filter(action: BulkAction, fields: &mut Fields<'_>) -> TaskFilter {
    let labels = fields.string_map("labels", LONGEST);
    if labels.len() > MOST_LABELS {
        let message = format!(
            "{} labels are too many; at most {MOST_LABELS}",
            labels.len()
        );
        fields.fault("labels", message);
    }
    TaskFilter {
        states: fields
            .choice("state", &action.named_states())
            .into_iter()
            .collect(),
        workflow: fields.string("workflow", LONGEST),
        key: fields.string("key", LONGEST),
        agent: fields.string("agent", LONGEST),
        labels: labels.into_iter().collect(),
        created_after: time(fields, "created_after"),
        created_before: time(fields, "created_before"),
        at_risk: fields.boolean("at_risk").unwrap_or(false),
        parent: None,
        alert: alert(fields),
    }
}

fn alert(fields: &mut Fields<'_>) -> Option<AlertId> {
    let text = fields.string("alert", 36)?;
    let id = Uuid::try_parse(&text).ok().map(AlertId);
    if id.is_none() {
        fields.fault("alert", format!("{text:?} is not the id of an alert"));
    }
    id
}

/// Identifies the command and its selection: with the cursor of another command, tasks would be skipped. The limit
/// and the reason may differ between requests.
fn cursors(action: BulkAction, body: &RawValue) -> Cursors {
    let mut request: BTreeMap<String, Value> = serde_json::from_str(body.get()).unwrap_or_default();
    request.retain(|name, _| !["cursor", "limit", "reason"].contains(&name.as_str()));
    let request: Vec<_> = request
        .into_iter()
        .flat_map(|(name, value)| [name, value.to_string()])
        .collect();
    let request = request.iter().map(String::as_str);
    Cursors::of_parts(std::iter::once(action.as_str()).chain(request))
}

fn after(fields: &mut Fields<'_>, cursors: Cursors) -> Option<TaskId> {
    let cursor = fields.string("cursor", LONGEST_CURSOR)?;
    let item = cursors.read(&cursor);
    let id = item.and_then(|item| item.parse().map(TaskId).map_err(|_| Unusable::Altered));
    match id {
        Ok(id) => Some(id),
        Err(unusable) => {
            fields.fault("cursor", unusable.remedy());
            None
        }
    }
}

fn time(fields: &mut Fields<'_>, name: &str) -> Option<Timestamp> {
    let text = fields.string(name, 64)?;
    let time = Timestamp::parse(&text);
    if time.is_none() {
        fields.fault(
            name,
            format!("{text:?} is not an RFC 3339 time such as \"2026-01-31T09:30:00Z\""),
        );
    }
    time
}
