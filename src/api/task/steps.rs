//! The steps of a task in pages: the view of a task leaves out the items of lists.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    explain,
    hidden_bodies::{hidden, hide_in_steps, hides_bodies},
    json, load, with_etag,
};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, PageQuery, Query, TaskParams, TaskPath},
        problem::{ProblemBody, ProblemKind},
    },
    domain::{
        task::{StepStatus, Task},
        values::StepIndex,
        view::StepView,
    },
};

/// The most bytes of the outputs on a page. A page has at least one step, of any size.
const PAGE_BYTES: usize = 4 << 20;

/// A page of the steps of a task, or of the items of one of them.
#[derive(Serialize, ToSchema)]
#[schema(as = StepPage)]
pub(super) struct StepPage<'a> {
    items: Vec<StepView<'a>>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// List the steps of a task
///
/// The steps of the definition, in its order, but with those that a move to another version has added after the
/// others; then the items of steps with `for_each` or `repeat`, in the order in which they were created; and then the
/// undo steps, once the task is undone. With `of`, only the items of one step: `of=import` lists `import[0]`,
/// `import[1]` and so on, `of=import.undo` their undo steps. A list of items never changes, and iterations are only
/// added; their states may change between two pages.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/steps", tag = "tasks", operation_id = "list_steps",
    params(
        TaskParams,
        ("of" = Option<String>, Query, description = "A step with `for_each` or `repeat`, or with `.undo` after its name what undoes its items", example = "import"),
        ("state" = Option<StepStatus>, Query, description = "The state of the steps", example = "error"),
        PageQuery,
    ),
    responses(
        (status = 200, description = "A page of steps; the ETag is the version of the task", body = StepPage),
        (status = 400, description = "A query parameter is invalid", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "The task does not exist, or has no such step", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let of = query.string("of");
    let state = query.one_of("state", StepStatus::ALL.iter().copied(), StepStatus::as_str)?;
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|text| text.parse::<usize>().ok())?;
    query.finish()?;
    let task = load(&app, id).await?;
    let all = match &of {
        None => (0..task.steps.len() + task.undos.len()).collect(),
        Some(of) => items(&task, of)?,
    };
    let begin = after.map_or(0, |after| all.partition_point(|at| *at <= after));
    let found = all[begin..].iter().copied();
    let found = found
        // A task has at most as many steps as an index can count.
        .map(|at| StepIndex(at as u16))
        .filter(|index| !task.is_removed(*index))
        .filter(|index| state.is_none_or(|state| task.step(*index).status() == state));
    let mut found: Vec<_> = found.take(limit + 1).collect();
    let kept = kept(&task, &found, limit);
    let has_more = found.len() > kept;
    found.truncate(kept);
    let now = app.store.reader.now().await?;
    let views = found.iter();
    let mut items: Vec<_> = views
        .map(|index| StepView::new(&task, *index, Some(now)))
        .collect();
    explain(&app, &mut items);
    let page = StepPage {
        items,
        next_cursor: found
            .last()
            .filter(|_| has_more)
            .map(|last| cursors.after(last.0)),
    };
    let response = match hides_bodies(&app, &caller, &task).await? {
        true => json(StatusCode::OK, &hidden(&page, hide_in_steps)),
        false => json(StatusCode::OK, &page),
    };
    Ok(with_etag(response, &task))
}

/// Returns how many of these steps a page has: as many as the limit and [`PAGE_BYTES`] allow, but at least one.
fn kept(task: &Task, found: &[StepIndex], limit: usize) -> usize {
    let mut bytes = 0;
    let fits = found.iter().take(limit).take_while(|index| {
        let output = task.step(**index).output();
        bytes += output.map_or(0, |output| output.as_json().len());
        bytes <= PAGE_BYTES
    });
    fits.count().max(1).min(found.len())
}

/// Returns the indexes of the items of a step, or of their undo steps. A step whose list is not known yet has none.
fn items(task: &Task, of: &str) -> Result<Vec<usize>, Problem> {
    let (name, is_undo) = match of.strip_suffix(".undo") {
        Some(name) => (name, true),
        None => (of, false),
    };
    let step = task.find(name).filter(|step| {
        let definition = task.definition(*step);
        definition.group_rule().is_some()
    });
    let Some(step) = step else {
        let groups = task.own_indexes();
        let groups = groups.map(|index| task.definition(index));
        let groups = groups.filter(|step| step.group_rule().is_some());
        let names: Vec<_> = groups.map(|step| step.name.as_str()).collect();
        let known = match names.is_empty() {
            true => "it has none".to_owned(),
            false => format!("these are {}", names.join(", ")),
        };
        return Err(Problem::new(
            ProblemKind::NoSuchStep,
            format!("the task has no step {of:?} with items: {known}"),
        ));
    };
    Ok(match (task.group(step), is_undo) {
        (None, _) => Vec::new(),
        (Some(group), false) => group.items.iter().collect(),
        (Some(_), true) if task.undo.is_none() => Vec::new(),
        (Some(group), true) => {
            let first = task.steps.len();
            group.undos.iter().map(|at| first + at).collect()
        }
    })
}
