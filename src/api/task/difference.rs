//! Two tasks beside each other: why one failed and the other did not.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};

use super::{hidden_bodies::must_see_bodies, json, load};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, Query, TaskPairParams, TaskPairPath},
        problem::ProblemBody,
    },
    domain::view::{TaskComparison, TaskDifference},
};

/// Compare two tasks
///
/// Their definitions, submissions and inputs, and the states, attempts, requests and responses of their steps, those that
/// differ first. Of each step the last attempts are compared, as far as they are recorded: see
/// `GET /v1/tasks/{id}/steps/{name}/attempts`. What is hidden there, and in workflows, is hidden here. Long values are
/// shortened, and long lists of differences end with `more`. Neither task needs to have ended. A task whose workflow has
/// `hide_bodies` is not compared for the role `read`.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/diff/{other}", tag = "tasks", operation_id = "compare_tasks",
    params(TaskPairParams),
    responses(
        (status = 200, description = "The differences", body = TaskDifference),
        (status = 404, description = "One of the tasks does not exist; the detail names it", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn compare(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPairPath(id, other): TaskPairPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    // The permit is taken before the tasks are loaded: otherwise many loaded tasks could queue here.
    let permit = app.bulkhead.enter().await?;
    let a = load(&app, id).await?;
    let b = load(&app, other).await?;
    for task in [&a, &b] {
        must_see_bodies(&app, &caller, task).await?;
    }
    app.responses.hold(a.memory().saturating_add(b.memory()))?;
    let comparison = TaskComparison::new(&a, &b);
    let [of_a, of_b] = comparison.with_attempts();
    let reader = &app.store.reader;
    let attempts = [
        reader.last_attempts(id, &of_a).await?,
        reader.last_attempts(other, &of_b).await?,
    ];
    let now = reader.now().await?;
    Ok(permit.run(|| json(StatusCode::OK, &comparison.report(attempts, now))))
}
