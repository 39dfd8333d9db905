//! Parses a bulk command: the selection of tasks, and the command for each of them. A job keeps the body of its request, and
//! parses it again with each batch: so a filter that is added here holds for jobs too.

use std::collections::BTreeMap;

use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use crate::{
    api::{
        Problem,
        cursor::{CursorFault, Cursors, LONGEST as LONGEST_CURSOR},
        definition::workflows::VersionChoice,
        extract::ids,
        task::{
            clone::version,
            commands::{LONGEST_STEP, reason},
        },
    },
    domain::{
        task::{BodyPatch, BulkAction, CauseFingerprint, Command},
        template::{Budget, Payload},
        values::{Bounds, FieldFault, Fields, MOST_LABELS, Rate, StepName, TaskId, Timestamp},
    },
    store::{AlertId, BulkJobId, BulkResultFilter, Look, MOST_LOOKED_AT, TaskFilter},
};

/// The longest name or label, in bytes.
const LONGEST: usize = 255;
/// The longest text that is searched.
const LONGEST_TEXT: usize = 200;
/// The most tasks that one dry run examines.
const LIMIT: std::ops::RangeInclusive<i64> = 1..=100_000;
const USUAL_LIMIT: i64 = 10_000;
/// The most tasks that a job may process before it stops by itself.
const FIRST: std::ops::RangeInclusive<i64> = 1..=1_000_000_000;
/// The most tasks in the time of a rate.
const MOST_PER_TIME: std::ops::RangeInclusive<u32> = 1..=1_000_000;
/// The most bytes of an output: it is kept with the job, and sent with the command of each task.
const LONGEST_DATA: usize = 64 * 1024;

/// A parsed and validated bulk command.
pub(super) struct BulkRequest {
    pub selection: TaskSelection,
    pub command: BulkCommand,
    pub reason: Option<String>,
    pub dry_run: bool,
    /// The last task of the previous dry run.
    pub after: Option<TaskId>,
    pub cursors: Cursors,
    pub limit: usize,
    pub pace: BulkPace,
    /// The time after which nothing may have come that the command touches.
    pub as_of: Option<Timestamp>,
}

/// The pace of a job.
#[derive(Clone, Copy, Default)]
pub(super) struct BulkPace {
    /// The tasks to process before the job stops by itself.
    pub first: Option<u64>,
    pub rate: Option<Rate>,
}

impl BulkPace {
    pub fn read(fields: &mut Fields<'_>) -> Self {
        let first = fields.integer("first", FIRST);
        let rate: Option<Rate> = fields.take("rate", &Bounds::ANY);
        if rate.is_some_and(|rate| !MOST_PER_TIME.contains(&rate.calls)) {
            fields.fault("rate", "must be 1 to 1,000,000 tasks");
        }
        Self {
            // The number is within its range.
            first: first.map(i64::unsigned_abs),
            rate,
        }
    }
}

/// The command for each task.
pub(super) enum BulkCommand {
    Same(Command),
    Patch(BulkPatch),
    Migrate(BulkMigration),
    /// The body of a clone of one task.
    Clone(Box<RawValue>),
}

/// A retry of a step with a patched request body. The command differs between tasks: it has the whole body.
pub(super) struct BulkPatch {
    pub patch: BodyPatch,
    /// The step. `None`: the only one in error.
    pub step: Option<String>,
    pub reason: Option<String>,
}

/// A move to another version. The command differs between tasks: it depends on the steps that each one has.
pub(super) struct BulkMigration {
    pub to: VersionChoice,
    /// Only tasks that have this version.
    pub from: Option<u32>,
    pub reason: Option<String>,
}

pub(super) enum TaskSelection {
    /// Sorted, without duplicates.
    Ids(Vec<TaskId>),
    Filter(Box<TaskFilter>),
}

impl BulkRequest {
    /// Returns the most tasks that one request examines to find those that match.
    pub fn most_examined(&self) -> usize {
        self.limit.max(MOST_LOOKED_AT)
    }

    /// Parses the body and reports all its faults at once, with those of the changes of a clone.
    pub fn read(
        action: BulkAction,
        body: &RawValue,
        of_changes: Vec<FieldFault>,
    ) -> Result<Self, Problem> {
        let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
        let mut selection = selection(action, &mut fields);
        let as_of = time(&mut fields, "as_of");
        if let (TaskSelection::Filter(filter), Some(as_of)) = (&mut selection, as_of) {
            filter.leave_out_later(as_of);
        }
        let dry_run = fields.boolean("dry_run").unwrap_or(false);
        let cursors = cursors(action, body);
        let (limit, after) = match dry_run {
            true => (fields.integer("limit", LIMIT), after(&mut fields, cursors)),
            false => {
                for name in ["limit", "cursor"] {
                    if fields.value(name).is_some() {
                        let message = "belongs to a dry run: a job processes all of its tasks; `first` has it stop after so many";
                        fields.fault(name, message);
                    }
                }
                (None, None)
            }
        };
        let limit = limit.unwrap_or(USUAL_LIMIT);
        let pace = BulkPace::read(&mut fields);
        let reason = reason(&mut fields);
        let said = reason.clone();
        let command = match action {
            BulkAction::Retry => retry(&mut fields, reason),
            BulkAction::Rerun => BulkCommand::Same(rerun(&mut fields, reason)),
            BulkAction::Undo => BulkCommand::Same(Command::Undo { reason }),
            BulkAction::Cancel => BulkCommand::Same(Command::Cancel { reason }),
            BulkAction::Skip => BulkCommand::Same(skip(&mut fields, reason)),
            BulkAction::Resolve => BulkCommand::Same(resolve(&mut fields, reason)),
            BulkAction::Pause => BulkCommand::Same(Command::Pause { reason }),
            BulkAction::Resume => BulkCommand::Same(Command::Resume { reason }),
            BulkAction::Clone => BulkCommand::Clone(changes(&mut fields, reason)),
            BulkAction::Migrate => {
                if let TaskSelection::Filter(filter) = &selection
                    && filter.workflow.is_none()
                {
                    fields.missing(
                        "workflow",
                        "name the workflow whose tasks move, or give ids: a version is one of a workflow",
                    );
                }
                BulkCommand::Migrate(migration(&mut fields, reason))
            }
        };
        let mut faults = fields.finish().err().unwrap_or_default();
        faults.extend(of_changes);
        if !faults.is_empty() {
            return Err(Problem::invalid(faults));
        }
        Ok(Self {
            selection,
            command,
            reason: said,
            dry_run,
            after,
            cursors,
            // `limit` is within 1 to 100,000.
            limit: limit as usize,
            pace,
            as_of,
        })
    }
}

fn retry(fields: &mut Fields<'_>, reason: Option<String>) -> BulkCommand {
    // It is no field of this command, so that no error names it among them.
    if fields.peek("from").is_some() && fields.value("from").is_some() {
        fields.fault(
            "from",
            "belongs to the retry of one task: POST /v1/tasks/rerun reruns many tasks from a step",
        );
    }
    let step = fields.string("step", LONGEST_STEP);
    let Some(patch) = data(fields, "patch") else {
        if step.is_some() {
            fields.fault(
                "step",
                "names the step whose request is patched: give `patch`, or omit the step to retry every step in error",
            );
        }
        return BulkCommand::Same(Command::Retry {
            step: None,
            body: None,
            reason,
        });
    };
    match BodyPatch::parse(&patch, &Budget::evaluation()) {
        Ok(patch) => BulkCommand::Patch(BulkPatch {
            patch,
            step,
            reason,
        }),
        Err(faults) => {
            let pointer = fields.pointer("patch");
            fields.extend(faults.into_iter().map(|fault| {
                FieldFault::new(format!("{pointer}{}", fault.pointer), fault.message)
            }));
            BulkCommand::Same(Command::Retry {
                step: None,
                body: None,
                reason,
            })
        }
    }
}

/// Returns the body of a clone of one task: the changes, with the reason of the command.
fn changes(fields: &mut Fields<'_>, reason: Option<String>) -> Box<RawValue> {
    let is_object = fields.is_object("changes");
    let changes = data(fields, "changes");
    if changes.is_some() && !is_object {
        fields.fault("changes", "must be an object, as the body of a clone");
    }
    let changes = changes.as_ref().map_or("{}", Payload::as_json);
    let mut changes: BTreeMap<String, &RawValue> =
        serde_json::from_str(changes).unwrap_or_default();
    let reason = reason.and_then(|reason| serde_json::value::to_raw_value(&reason).ok());
    if let Some(reason) = &reason {
        changes.entry("reason".to_owned()).or_insert(reason);
    }
    // Parts that are JSON make an object that is JSON.
    serde_json::value::to_raw_value(&changes).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns data that the command has for each task.
fn data(fields: &mut Fields<'_>, name: &'static str) -> Option<Payload> {
    let data = fields.raw(name).map(Payload::new);
    if data
        .as_ref()
        .is_some_and(|data| data.as_json().len() > LONGEST_DATA)
    {
        fields.fault(name, format!("is longer than {LONGEST_DATA} bytes"));
    }
    data
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
        // The number is within the range of versions.
        from: from.map(|from| from as u32),
        reason,
    }
}

fn rerun(fields: &mut Fields<'_>, reason: Option<String>) -> Command {
    let wanted = "name the step that runs again, and all steps that follow it";
    let step = fields.string("from", LONGEST_STEP);
    match &step {
        None if !fields.has("from") => fields.missing("from", wanted),
        Some(step) if step.is_empty() => fields.fault("from", wanted),
        _ => {}
    }
    Command::RetryFromName {
        step: StepName::new(step.unwrap_or_default()),
        reason,
    }
}

fn skip(fields: &mut Fields<'_>, reason: Option<String>) -> Command {
    let step = fields.string("step", LONGEST_STEP);
    let output = data(fields, "output");
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

fn resolve(fields: &mut Fields<'_>, reason: Option<String>) -> Command {
    let step = fields.string("step", LONGEST_STEP);
    if step.is_none() && !fields.has("step") {
        fields.missing("step", "name the step that was done outside Provost");
    }
    let output = data(fields, "output");
    if output.is_none() && !fields.has("output") {
        fields.missing("output", "give the output of the step; null if it has none");
    }
    Command::ResolveFailed {
        step: StepName::new(step.unwrap_or_default()),
        output: output.unwrap_or_else(Payload::null),
        reason,
    }
}

/// The members that choose tasks, besides labels.
const FILTERS: [&str; 9] = [
    "state",
    "workflow",
    "key",
    "agent",
    "created_after",
    "created_before",
    "alert",
    "cause",
    "text",
];

fn selection(action: BulkAction, fields: &mut Fields<'_>) -> TaskSelection {
    let all = fields.boolean("all").unwrap_or(false);
    let ids = ids(fields, "task");
    let ids = ids.map(|mut ids| {
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(TaskId).collect::<Vec<_>>()
    });
    // A filter that is refused was given too: it has a fault of its own.
    let names_filter = FILTERS.iter().any(|name| fields.peek(name).is_some());
    let filter = filter(action, fields);
    let filtered = names_filter || filter != TaskFilter::default();
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
        None if filter.states.is_empty() => TaskSelection::Filter(Box::new(TaskFilter {
            states: action.states(),
            ..filter
        })),
        None => TaskSelection::Filter(Box::new(filter)),
    }
}

/// Parses the filters, which are those of the list of tasks.
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
        parent: parent(fields),
        alert: alert(fields),
        cause: cause(fields),
        text: text(fields),
        failed_by: None,
        bulk: bulk(fields),
    }
}

fn cause(fields: &mut Fields<'_>) -> Option<CauseFingerprint> {
    let text = fields.string("cause", 16)?;
    let cause = CauseFingerprint::parse(&text);
    if cause.is_none() {
        let message =
            format!("{text:?} is not the fingerprint of a cause: GET /v1/failures lists them");
        fields.fault("cause", message);
    }
    cause
}

fn text(fields: &mut Fields<'_>) -> Option<String> {
    let text = fields.string("text", LONGEST_TEXT)?;
    if text.is_empty() || text.contains('\0') {
        fields.fault(
            "text",
            "must be a text that keys or messages contain".to_owned(),
        );
    }
    Some(text)
}

fn bulk(fields: &mut Fields<'_>) -> Option<(BulkJobId, BulkResultFilter)> {
    let words = BulkResultFilter::ALL.map(BulkResultFilter::as_str);
    let result = fields.choice("bulk_result", &words);
    let result = BulkResultFilter::ALL
        .into_iter()
        .find(|known| Some(known.as_str()) == result);
    let Some(text) = fields.string("bulk", 36) else {
        if result.is_some() {
            fields.fault(
                "bulk_result",
                "belongs to `bulk`: name the job whose result it is",
            );
        }
        return None;
    };
    let id = Uuid::try_parse(&text).ok().map(BulkJobId);
    if id.is_none() {
        fields.fault("bulk", format!("{text:?} is not the id of a bulk job"));
    }
    Some((id?, result.unwrap_or(BulkResultFilter::Accepted)))
}

fn parent(fields: &mut Fields<'_>) -> Option<TaskId> {
    let text = fields.string("parent", 36)?;
    let id = Uuid::try_parse(&text).ok().map(TaskId);
    if id.is_none() {
        fields.fault("parent", format!("{text:?} is not the id of a task"));
    }
    id
}

fn alert(fields: &mut Fields<'_>) -> Option<AlertId> {
    let text = fields.string("alert", 36)?;
    let id = Uuid::try_parse(&text).ok().map(AlertId);
    if id.is_none() {
        fields.fault("alert", format!("{text:?} is not the id of an alert"));
    }
    id
}

/// Returns the cursors of the command and its selection: the cursor of another command would skip tasks. The limit
/// and the reason may differ between requests.
fn cursors(action: BulkAction, body: &RawValue) -> Cursors {
    let mut request: BTreeMap<String, Value> = serde_json::from_str(body.get()).unwrap_or_default();
    request
        .retain(|name, _| !["cursor", "first", "limit", "rate", "reason"].contains(&name.as_str()));
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
    let id = item.and_then(|item| item.parse().map(TaskId).map_err(|_| CursorFault::Altered));
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

/// Returns the next of these tasks.
pub(super) fn next_listed(
    ids: &[TaskId],
    after: Option<TaskId>,
    wanted: usize,
) -> Look<Vec<TaskId>> {
    let from = ids.partition_point(|id| Some(*id) <= after);
    let rest = &ids[from..];
    let found = rest[..wanted.min(rest.len())].to_vec();
    Look {
        looked_at: 0,
        next: found.last().copied().filter(|_| found.len() < rest.len()),
        found,
    }
}
