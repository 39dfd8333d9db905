//! A dry run: decides a bulk command on copies of the tasks, and counts the outcomes. It returns after a number of tasks
//! or a time, with a cursor for the next request: its memory and its time are bounded for any number of tasks.

use std::{collections::BTreeMap, time::Duration};

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use utoipa::ToSchema;

use super::{
    clone,
    examples::{BulkExample, ExampleState, MOST_EXAMPLES},
    migrate::{BulkMove, UnmappedCount},
    outcome::{LOAD_BATCH, load, outcome},
    patch::{self, PatchFor, TaskCommand},
    request::{BulkCommand, BulkRequest, TaskSelection, next_listed},
};
use crate::{
    api::{App, Problem, extract::Caller, response},
    clock,
    domain::{
        task::{BulkAction, BulkOutcome, Draft, TaskCount, bulk_sentence},
        values::{TaskId, Timestamp},
        view::{UndoSummary, UndoSummaryView, undo_plan},
    },
    store::{CommandError, StoreError, TaskFilter},
};

/// The most tasks that are found in one query.
const MOST_PER_QUERY: usize = 1000;
/// After this time a request returns its progress, before proxies between it and its caller time out.
const LONGEST: Duration = Duration::from_secs(20);

/// The counts of a dry run.
#[derive(Serialize, ToSchema)]
pub struct BulkResult {
    /// Tasks that this request examined.
    #[schema(example = 12)]
    matched: u64,
    /// Tasks that would accept the command.
    #[schema(example = 11)]
    accepted: u64,
    /// Tasks that would refuse the command, because of their state or because they do not exist.
    #[schema(example = 1)]
    refused: u64,
    /// The refused tasks by kind of problem.
    #[schema(example = json!({"past-pivot": 1}))]
    refusals: BTreeMap<String, u64>,
    #[schema(example = true)]
    dry_run: bool,
    /// With filters: the number of tasks that match from here on, including those after this response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 12)]
    total: Option<u64>,
    /// True if there may be more than `total`: the request examined as many tasks as it may, and `total` counts the
    /// matches among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = false)]
    total_is_at_least: Option<bool>,
    /// The time of this dry run. As `as_of` of the command it leaves out what came later.
    as_of: Timestamp,
    /// The command and its tasks in words.
    #[schema(
        example = "retry 12 tasks with a step that failed at agent payments, that failed by 2026-01-31T10:42:00.000Z"
    )]
    sentence: String,
    /// Up to three tasks that would accept the command, before and after it.
    #[schema(max_items = 3)]
    examples: Vec<BulkExample>,
    /// The steps that prevent a move to another version, those of the most tasks first; at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmapped: Option<Vec<UnmappedCount>>,
    /// The plans of all tasks that would be undone, in one summary. Only the dry run of an undo has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<UndoSummaryView>,
    /// There may be more tasks, even if `matched` is 0: pass it as `cursor` to continue. Null when all are done.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
    /// The last task that was examined.
    #[serde(skip)]
    last: Option<TaskId>,
    #[serde(skip)]
    undos: Option<UndoSummary>,
}

pub(super) async fn run(
    app: &App,
    caller: &Caller,
    action: BulkAction,
    request: &BulkRequest,
    body: &RawValue,
) -> Result<Response, Problem> {
    let as_of = match request.as_of {
        Some(as_of) => as_of,
        None => app.store.reader.now().await?,
    };
    let mut result = BulkResult {
        matched: 0,
        accepted: 0,
        refused: 0,
        refusals: BTreeMap::new(),
        dry_run: true,
        total: None,
        total_is_at_least: None,
        as_of,
        sentence: String::new(),
        examples: Vec::new(),
        unmapped: None,
        plan: None,
        undos: (action == BulkAction::Undo).then(UndoSummary::default),
        next_cursor: None,
        last: request.after,
    };
    let counted = count(app, request).await?;
    if let TaskSelection::Filter(_) = &request.selection {
        result.total = Some(counted.tasks);
        result.total_is_at_least = Some(counted.is_at_least);
    }
    result.sentence = in_words(action, body, counted, as_of);
    let mut moves = match &request.command {
        BulkCommand::Same(_) | BulkCommand::Patch(_) | BulkCommand::Clone(_) => None,
        BulkCommand::Migrate(migration) => Some(BulkMove::new(app, migration)),
    };
    if let Some(moves) = &mut moves {
        moves.check(&request.selection).await?;
    }
    let walked = walk(app, caller, request, moves.as_mut(), &mut result).await;
    result.unmapped = moves.map(BulkMove::unmapped);
    result.plan = result.undos.take().map(UndoSummary::view);
    result.next_cursor = result.last.map(|last| request.cursors.after(last));
    match walked {
        Ok(()) => Ok(response::json(StatusCode::OK, &result)),
        Err(problem) => Err(problem
            .with("matched", result.matched)
            .with("accepted", result.accepted)
            .with("next_cursor", json!(result.next_cursor))),
    }
}

/// Returns the command and its tasks in words.
pub(super) fn in_words(
    action: BulkAction,
    body: &RawValue,
    count: TaskCount,
    at: Timestamp,
) -> String {
    let body: Map<String, Value> = serde_json::from_str(body.get()).unwrap_or_default();
    bulk_sentence(action, &body, count, at)
}

/// Counts the tasks that match from here on, as far as one request examines them.
pub(super) async fn count(app: &App, request: &BulkRequest) -> Result<TaskCount, StoreError> {
    let filter: &TaskFilter = match &request.selection {
        TaskSelection::Ids(ids) => {
            return Ok(TaskCount {
                tasks: ids.len() as u64,
                is_at_least: false,
            });
        }
        TaskSelection::Filter(filter) => filter,
    };
    let (mut tasks, mut after, mut left) = (0, request.after, request.most_examined());
    loop {
        let reader = &app.store.reader;
        let look = reader.count_tasks(filter, after, left).await?;
        tasks += look.found;
        after = look.next;
        left = left.saturating_sub(look.looked_at);
        if after.is_none() || left == 0 {
            return Ok(TaskCount {
                tasks,
                is_at_least: after.is_some(),
            });
        }
    }
}

/// Continues until all tasks are done, or enough for one request. The progress in `result` is correct at every
/// moment, also after an error.
async fn walk(
    app: &App,
    caller: &Caller,
    request: &BulkRequest,
    mut moves: Option<&mut BulkMove<'_>>,
    result: &mut BulkResult,
) -> Result<(), Problem> {
    let started = clock::instant();
    let (mut left, mut left_to_look_at) = (request.limit, request.most_examined());
    while left > 0 && left_to_look_at > 0 {
        let wanted = MOST_PER_QUERY.min(left);
        let look = match &request.selection {
            TaskSelection::Ids(ids) => next_listed(ids, result.last, wanted),
            TaskSelection::Filter(filter) => {
                let reader = &app.store.reader;
                let after = result.last;
                reader
                    .task_ids(filter, after, wanted, left_to_look_at)
                    .await?
            }
        };
        for ids in look.found.chunks(LOAD_BATCH) {
            let decided = decide(app, caller, ids, &request.command, &mut moves, result);
            let outcomes = decided.await?;
            result.count(outcomes);
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

/// Decides the command as the writer would, on copies of the tasks. A task with a damaged record counts as one that
/// refuses: only the real command shows whether such a task can be cancelled.
async fn decide(
    app: &App,
    caller: &Caller,
    ids: &[TaskId],
    command: &BulkCommand,
    moves: &mut Option<&mut BulkMove<'_>>,
    result: &mut BulkResult,
) -> Result<Vec<BulkOutcome>, Problem> {
    let now = app.store.reader.now().await?;
    let (mut outcomes, commands) = match (command, &mut *moves) {
        (BulkCommand::Patch(patch), _) => {
            let patched = patch::commands(app, patch, ids, PatchFor::People).await?;
            (patched.refused, patched.commands)
        }
        (BulkCommand::Same(command), _) => {
            let (outcomes, tasks) = load(app, ids).await?;
            let tasks = tasks.into_iter();
            let same = tasks.map(|task| TaskCommand::new(task, command.clone()));
            (outcomes, same.collect())
        }
        (BulkCommand::Migrate(_), Some(moves)) => {
            let (outcomes, commands) = moves.commands(ids).await?;
            let commands = commands.into_iter();
            let commands = commands.map(|(task, command)| TaskCommand::new(task, command));
            (outcomes, commands.collect())
        }
        (BulkCommand::Clone(changes), _) => {
            return clone::decide(app, changes, ids, &mut result.examples).await;
        }
        (BulkCommand::Migrate(_), None) => (Vec::new(), Vec::new()),
    };
    for TaskCommand {
        task,
        command,
        bodies,
    } in commands
    {
        let id = task.id();
        let examples = &mut result.examples;
        let before = (examples.len() < MOST_EXAMPLES).then(|| ExampleState::of(&task));
        let plan = match &result.undos {
            Some(_) => Some(app.bulkhead.enter().await?.run(|| undo_plan(&task, now))),
            None => None,
        };
        let mut draft = Draft::on(task);
        let decided = draft.apply(command, &caller.operator(), now).map(drop);
        let state = draft.task.status().as_str();
        if let (Ok(()), Some(plan), Some(undos)) = (&decided, &plan, &mut result.undos) {
            undos.add(plan);
        }
        if let (Ok(()), Some(before)) = (&decided, before) {
            examples.push(BulkExample::new(app, &draft.task, &before, bodies.as_ref()));
        }
        let decided = decided.map_err(|refusal| CommandError::Refused { refusal, state });
        if let Some(moves) = moves {
            moves.count(&decided);
        }
        outcomes.push(outcome(id, decided));
    }
    Ok(outcomes)
}

impl BulkResult {
    fn count(&mut self, outcomes: Vec<BulkOutcome>) {
        for BulkOutcome { refusal, .. } in outcomes {
            self.matched += 1;
            match refusal {
                None => self.accepted += 1,
                Some(refusal) => {
                    self.refused += 1;
                    *self.refusals.entry(refusal.kind).or_default() += 1;
                }
            }
        }
    }
}
