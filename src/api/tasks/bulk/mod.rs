//! One command for many tasks. A request processes them oldest first, in batches that leave room for other commands
//! in the writer. It returns after a number of tasks or a time, with a cursor for the next request: its memory and
//! its time are bounded however many tasks there are.

mod migrate;
mod request;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{extract::State, http::StatusCode, response::Response};
use futures::future::join_all;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use self::{
    migrate::{BulkMove, UnmappedCount},
    request::{BulkCommand, BulkRequest, TaskSelection},
};
use super::json;
use crate::api::openapi::words::{JsonSchema, LabelsSchema, TaskStateSchema};
use crate::{
    api::{
        App, Problem,
        bulk_log::{BulkCounts, BulkLog},
        extract::{Caller, JsonBody, Query},
        problem::{ProblemBody, ProblemKind},
    },
    domain::{BulkAction, Command, Draft, TaskId},
    store::{Apply, CommandError, Look, StoreError, TaskFilter},
};

/// Tasks that are found in one query.
const LOOK: usize = 1000;
/// Tasks that are commanded together; the writer saves them together. Few enough to let other commands in between.
const BATCH: usize = 100;
/// Tasks that a dry run loads together: they may be large.
const JUDGED: usize = 10;
/// After this time a request returns its progress, before proxies on the way time out.
const LONGEST: Duration = Duration::from_secs(20);

/// The selection of tasks, and the limits of the request.
#[derive(ToSchema)]
#[schema(as = Bulk)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkCommandBody {
    /// These tasks; alternatively use filters. A task is selected if it matches every filter.
    #[schema(max_items = 1000)]
    ids: Option<Vec<Uuid>>,
    /// One of the states in which the command is possible; the default is all of them but `processed`, in which an undo is possible.
    #[schema(example = "error")]
    state: Option<TaskStateSchema>,
    #[schema(example = "order")]
    workflow: Option<String>,
    key: Option<String>,
    /// Tasks with a step of this agent. If the command or `state` selects tasks in error only, those of which a step failed at this
    /// agent.
    #[schema(example = "payments")]
    agent: Option<String>,
    /// Tasks with a step that this alert is about, as long as it is not closed.
    alert: Option<uuid::Uuid>,
    labels: Option<LabelsSchema>,
    #[schema(format = DateTime)]
    created_after: Option<String>,
    #[schema(format = DateTime)]
    created_before: Option<String>,
    /// Only tasks that will be late by what is known.
    at_risk: Option<bool>,
    /// Instead of ids and filters: every task in a state in which the command is possible.
    #[schema(default = false)]
    all: Option<bool>,
    /// Change nothing: count the tasks that would accept the command, and the reasons of the others.
    #[schema(default = false, example = true)]
    dry_run: Option<bool>,
    /// The reason, recorded in the history of each task.
    reason: Option<String>,
    /// The most tasks to process in this request. To find those that match, the request examines as many tasks, or
    /// 10,000 if that is more.
    #[schema(default = 10000, minimum = 1, maximum = 100_000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous response, to continue there. Repeat the rest of the body; only `limit` and
    /// `reason` may differ.
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The failed steps to skip, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkSkip)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkSkipBody {
    /// Skip only this step, if it is in error. Default: every step in error.
    #[schema(example = "notify")]
    step: Option<String>,
    /// With `step`: the step's output for later steps.
    #[schema(value_type = JsonSchema, required = false, example = json!({"sent": false}))]
    output: Option<String>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The version that the tasks move to, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkMigration)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkMigrationBody {
    /// The number of a version, or `active` or `latest`: of the workflow that each task has.
    to_version: super::clone::VersionBody,
    /// Only tasks that have this version. Default: any other.
    #[schema(minimum = 1, example = 3)]
    from_version: Option<u32>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The progress of a bulk command.
#[derive(Serialize, ToSchema)]
pub struct BulkResult {
    /// Tasks that this request processed.
    #[schema(example = 12)]
    matched: u64,
    /// Tasks that accepted the command; in a dry run: would accept it.
    #[schema(example = 11)]
    accepted: u64,
    /// Tasks that refused the command, because of their state or because they do not exist.
    #[schema(example = 1)]
    refused: u64,
    /// The refused tasks by kind of problem.
    #[schema(example = json!({"past-pivot": 1}))]
    refusals: BTreeMap<&'static str, u64>,
    #[schema(example = false)]
    dry_run: bool,
    /// In a dry run with filters: how many tasks match from here on, including those after this response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 12)]
    total: Option<u64>,
    /// Whether there may be more than `total`: the request examined as many tasks as it may, and `total` counts the
    /// matches among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = false)]
    total_is_at_least: Option<bool>,
    /// Of a move to another version: the steps that prevented it, those of the most tasks first; at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmapped: Option<Vec<UnmappedCount>>,
    /// There may be more tasks, even if `matched` is 0: pass it as `cursor` to continue. Null when all are done.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
    /// The last task that was processed.
    #[serde(skip)]
    last: Option<TaskId>,
}

/// Declares the handler of a command for many tasks.
macro_rules! bulk_command {
    ($name:ident, $path:literal, $body:ty, $example:expr, $action:expr, $summary:literal, $description:literal) => {
        #[doc = $summary]
        ///
        #[doc = $description]
        ///
        /// Select tasks by ids, or by the filters of the list. Each task is changed separately, oldest first; a
        /// task that refuses the command is counted by the kind of problem and does not affect the others. One
        /// request processes at most `limit` tasks and takes about 20 seconds; `next_cursor` then continues. To
        /// find matching tasks it examines as many tasks, or 10,000 if that is more: if few tasks match, `matched`
        /// may be small, or 0, with a `next_cursor` all the same. It is safe to repeat: tasks that accepted the
        /// command are in another state and are not changed again. With `dry_run` the same rules are evaluated for
        /// each task and nothing is changed.
        #[utoipa::path(
            post, path = $path, tag = "operate",
            request_body(content = $body, example = $example),
            responses(
                (status = 200, description = "The progress", body = BulkResult),
                (status = 503, description = "The store cannot commit. `matched`, `accepted` and `next_cursor` are the progress: continue from there", body = ProblemBody, content_type = "application/problem+json"),
            )
        )]
        pub(super) async fn $name(
            State(app): State<Arc<App>>,
            caller: Caller,
            query: Query,
            JsonBody(body): JsonBody,
        ) -> Result<Response, Problem> {
            query.finish()?;
            run(&app, &caller, $action, &body).await
        }
    };
}

bulk_command!(
    retry_tasks,
    "/v1/tasks/retry",
    BulkCommandBody,
    json!({"workflow": "order", "agent": "payments", "dry_run": true}),
    BulkAction::Retry,
    "Retry the failed steps of many tasks",
    "For tasks in error, including those whose undo failed."
);
bulk_command!(
    undo_tasks,
    "/v1/tasks/undo",
    BulkCommandBody,
    json!({"workflow": "order", "labels": {"campaign": "spring"}, "dry_run": true}),
    BulkAction::Undo,
    "Undo many tasks",
    "For tasks that are pending, processing, paused or in error; with `\"state\": \"processed\"`, for those that are done."
);
bulk_command!(
    cancel_tasks,
    "/v1/tasks/cancel",
    BulkCommandBody,
    json!({"workflow": "order", "state": "paused", "dry_run": true}),
    BulkAction::Cancel,
    "Cancel many tasks",
    "For tasks that have not ended. Completed steps are not undone, and a half-finished undo stops."
);
bulk_command!(
    skip_tasks,
    "/v1/tasks/skip",
    BulkSkipBody,
    json!({"step": "notify", "workflow": "order", "dry_run": true}),
    BulkAction::Skip,
    "Skip the failed steps of many tasks",
    "For tasks in error: skips every step in error, or the one that `step` names. Steps that are not in error are never skipped."
);

bulk_command!(
    migrate_tasks,
    "/v1/tasks/migrate",
    BulkMigrationBody,
    json!({"workflow": "order", "to_version": 4, "dry_run": true}),
    BulkAction::Migrate,
    "Move many tasks to another version of their workflow",
    "For tasks that have not ended and are not being undone. Those that have the version already, or have another one than `from_version`, are left out, and count only in `total`. `unmapped` names the steps that prevented moves."
);

async fn run(
    app: &App,
    caller: &Caller,
    action: BulkAction,
    body: &RawValue,
) -> Result<Response, Problem> {
    let request = BulkRequest::read(action, body)?;
    let mut result = BulkResult {
        matched: 0,
        accepted: 0,
        refused: 0,
        refusals: BTreeMap::new(),
        dry_run: request.dry_run,
        total: None,
        total_is_at_least: None,
        unmapped: None,
        next_cursor: None,
        last: request.after,
    };
    if let (TaskSelection::Filter(filter), true) = (&request.selection, request.dry_run) {
        let (total, is_at_least) = count(app, &request, filter).await?;
        result.total = Some(total);
        result.total_is_at_least = Some(is_at_least);
    }
    let mut moves = match &request.command {
        BulkCommand::Same(_) => None,
        BulkCommand::Migrate(migration) => Some(BulkMove::new(app, caller, migration, &request)),
    };
    if let Some(moves) = &mut moves {
        moves.check(&request.selection).await?;
    }
    let mut log = BulkLog::begin(caller, action.as_str(), body, request.dry_run);
    let walked = walk(
        app,
        caller,
        &request,
        moves.as_mut(),
        &mut result,
        log.as_mut(),
    )
    .await;
    drop(log);
    result.unmapped = moves.map(BulkMove::unmapped);
    result.next_cursor = result.last.map(|last| request.cursors.after(last));
    match walked {
        Ok(()) => Ok(json(StatusCode::OK, &result)),
        Err(problem) => Err(problem
            .with("matched", result.matched)
            .with("accepted", result.accepted)
            .with("next_cursor", json!(result.next_cursor))),
    }
}

/// How many tasks match from here on, and whether there may be more.
async fn count(
    app: &App,
    request: &BulkRequest,
    filter: &TaskFilter,
) -> Result<(u64, bool), StoreError> {
    let (mut total, mut after, mut left) = (0, request.after, request.most_looked_at());
    loop {
        let reader = &app.store.reader;
        let look = reader.count_tasks(filter, after, left).await?;
        total += look.found;
        after = look.next;
        left = left.saturating_sub(look.looked_at);
        if after.is_none() || left == 0 {
            return Ok((total, after.is_some()));
        }
    }
}

/// Continues until all tasks are done, or enough for one request. The progress is correct at every moment, whatever
/// fails.
async fn walk(
    app: &App,
    caller: &Caller,
    request: &BulkRequest,
    mut moves: Option<&mut BulkMove<'_>>,
    result: &mut BulkResult,
    mut log: Option<&mut BulkLog<'_>>,
) -> Result<(), Problem> {
    let mut note = |result: &BulkResult| {
        if let Some(log) = &mut log {
            log.counts = result.counts();
        }
    };
    let started = Instant::now();
    let (mut left, mut left_to_look_at) = (request.limit, request.most_looked_at());
    while left > 0 && left_to_look_at > 0 {
        let wanted = LOOK.min(left);
        let look = match &request.selection {
            TaskSelection::Ids(ids) => listed(ids, result.last, wanted),
            TaskSelection::Filter(filter) => {
                let reader = &app.store.reader;
                let after = result.last;
                reader
                    .task_ids(filter, after, wanted, left_to_look_at)
                    .await?
            }
        };
        for ids in look.found.chunks(BATCH) {
            match (&request.command, &mut moves) {
                (BulkCommand::Same(command), _) if request.dry_run => {
                    for ids in ids.chunks(JUDGED) {
                        judge(app, caller, ids, command, result).await?;
                    }
                }
                (BulkCommand::Same(same), _) => {
                    let commanded = command(app, caller, ids, same, result).await;
                    note(result);
                    commanded?;
                }
                (BulkCommand::Migrate(_), None) => {}
                (BulkCommand::Migrate(_), Some(moves)) => {
                    for ids in ids.chunks(JUDGED) {
                        let moved = moves.run(ids, result).await;
                        note(result);
                        moved?;
                        result.last = ids.last().copied();
                        if started.elapsed() >= LONGEST {
                            return Ok(());
                        }
                    }
                }
            }
            result.last = ids.last().copied();
            if started.elapsed() >= LONGEST {
                return Ok(());
            }
        }
        left -= look.found.len();
        left_to_look_at = left_to_look_at.saturating_sub(look.looked_at);
        result.last = look.next;
        if look.next.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

/// The next of these tasks.
fn listed(ids: &[TaskId], after: Option<TaskId>, wanted: usize) -> Look<Vec<TaskId>> {
    let from = ids.partition_point(|id| Some(*id) <= after);
    let rest = &ids[from..];
    let found = rest[..wanted.min(rest.len())].to_vec();
    Look {
        looked_at: 0,
        next: found.last().copied().filter(|_| found.len() < rest.len()),
        found,
    }
}

/// Sends the commands to the writer. If another instance or operator has changed a task first, its state refuses
/// the command.
async fn command(
    app: &App,
    caller: &Caller,
    ids: &[TaskId],
    command: &Command,
    result: &mut BulkResult,
) -> Result<(), Problem> {
    let request = ids.iter().map(async |id| {
        let apply = Apply {
            task: *id,
            command: command.clone(),
            by: caller.operator(),
            if_version: None,
            idempotency: None,
        };
        // Tasks may be large: each one is dropped at once.
        app.store.apply(apply).await.map(drop)
    });
    let mut broken = None;
    for outcome in join_all(request).await {
        match outcome {
            // The rest of the batch may have been saved: all of them are counted.
            Err(CommandError::Store(error)) if !error.is_of_one_task() => broken = Some(error),
            outcome => result.count(outcome),
        }
    }
    broken.map_or(Ok(()), |error| Err(error.into()))
}

/// Decides as the writer would, on copies.
async fn judge(
    app: &App,
    caller: &Caller,
    ids: &[TaskId],
    command: &Command,
    result: &mut BulkResult,
) -> Result<(), Problem> {
    let now = app.store.reader.now().await?;
    let loaded = app.store.reader.tasks_of(ids).await?;
    for _ in loaded.tasks.len() + loaded.unreadable.len()..ids.len() {
        result.count(Err(CommandError::NoTask));
    }
    for unreadable in loaded.unreadable {
        // A task with a damaged record can be cancelled if the damage is not too deep: only the real command finds
        // out.
        result.count(Err(StoreError::Task(unreadable).into()));
    }
    for task in loaded.tasks {
        let mut draft = Draft::on(task);
        let outcome = draft.apply(command.clone(), &caller.operator(), now);
        let state = draft.task.status().as_str();
        let outcome = outcome.map(drop);
        result.count(outcome.map_err(|refusal| CommandError::Refused { refusal, state }));
    }
    Ok(())
}

impl BulkResult {
    fn count(&mut self, outcome: Result<(), CommandError>) {
        self.matched += 1;
        match outcome {
            Ok(()) => self.accepted += 1,
            Err(error) => self.add_refusal(Problem::from(error).kind()),
        }
    }

    fn counts(&self) -> BulkCounts {
        BulkCounts {
            matched: self.matched,
            accepted: self.accepted,
            refused: self.refused,
        }
    }

    fn count_refusal(&mut self, kind: ProblemKind) {
        self.matched += 1;
        self.add_refusal(kind);
    }

    fn add_refusal(&mut self, kind: ProblemKind) {
        self.refused += 1;
        *self.refusals.entry(kind.slug()).or_default() += 1;
    }
}
