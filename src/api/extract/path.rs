//! Path parameters. A path parameter that no resource can have is handled as a resource that does not exist.

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};
use uuid::Uuid;

use crate::{
    api::problem::{Problem, ProblemKind},
    domain::values::{
        Attempt, LONGEST_PLAIN_NAME, PLAIN_NAME, PLAIN_NAME_PATTERN, TaskId, plain_name_fault,
    },
    store::BulkJobId,
};

/// `{id}` of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskPath(pub TaskId);

/// `{id}` of a task and `{name}` of one of its steps.
#[derive(Clone, Debug)]
pub struct TaskStepPath(pub TaskId, pub String);

/// The parameters of a request about a task, for the OpenAPI document: `params(TaskParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct TaskParams {
    /// The task's id.
    id: Uuid,
}

/// The parameters of a request about a step, for the OpenAPI document: `params(StepParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct StepParams {
    /// The task's id.
    id: Uuid,
    /// The step's name.
    name: String,
}

/// `{id}` of a task, `{name}` of one of its steps, and `{attempt}` of that.
#[derive(Clone, Debug)]
pub struct AttemptPath(pub TaskId, pub String, pub Attempt);

/// The parameters of a request about an attempt, for the OpenAPI document: `params(AttemptParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct AttemptParams {
    /// The task's id.
    id: Uuid,
    /// The step's name.
    name: String,
    /// The number of the attempt, from 1.
    #[param(minimum = 1, example = 1)]
    attempt: u32,
}

/// `{id}` of a task, and `{other}` of the one that it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct TaskPairPath(pub TaskId, pub TaskId);

/// The parameters of a request about two tasks, for the OpenAPI document: `params(TaskPairParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct TaskPairParams {
    /// The id of task `a`.
    id: Uuid,
    /// The id of task `b`.
    other: Uuid,
}

/// `{id}` of a bulk job.
#[derive(Clone, Copy, Debug)]
pub struct BulkPath(pub BulkJobId);

/// The parameters of a request about a bulk job, for the OpenAPI document: `params(BulkParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct BulkParams {
    /// The job's id.
    id: Uuid,
}

/// `{workflow}` and `{key}` of a task, and `{name}` of one of its steps.
#[derive(Clone, Debug)]
pub struct SignalPath {
    pub workflow: String,
    pub key: String,
    pub name: String,
}

/// The parameters of a request about the step of a task with a key, for the OpenAPI document: `params(SignalParams)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct SignalParams {
    /// The name of the workflow.
    workflow: String,
    /// The task's key.
    key: String,
    /// The step's name.
    name: String,
}

/// `{name}`.
#[derive(Clone, Debug)]
pub struct NamePath(pub String);

/// `{name}` and `{version}`, which is `None` if the text cannot be a version.
#[derive(Clone, Debug)]
pub struct NameVersionPath(pub String, pub Option<u32>);

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        task_id(value(&params, "id")?).map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for BulkPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        let text = value(&params, "id")?;
        let id = Uuid::try_parse(text).map_err(|_| {
            let detail = format!("{text:?} is not the id of a bulk job: ids are UUIDs");
            Problem::new(ProblemKind::NoSuchBulkJob, detail)
        })?;
        Ok(Self(BulkJobId(id)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskStepPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        let task = task_id(value(&params, "id")?)?;
        Ok(Self(task, value(&params, "name")?.to_owned()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AttemptPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        let task = task_id(value(&params, "id")?)?;
        let text = value(&params, "attempt")?;
        let attempt = text.parse().map(Attempt).map_err(|_| {
            let detail = format!("{text:?} is no attempt: attempts have numbers from 1");
            Problem::new(ProblemKind::NotFound, detail)
        })?;
        Ok(Self(task, value(&params, "name")?.to_owned(), attempt))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPairPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        let id = |name| task_id(value(&params, name)?);
        Ok(Self(id("id")?, id("other")?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SignalPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        Ok(Self {
            workflow: value(&params, "workflow")?.to_owned(),
            key: value(&params, "key")?.to_owned(),
            name: value(&params, "name")?.to_owned(),
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        Ok(Self(value(&params, "name")?.to_owned()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NameVersionPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = params(parts, state).await?;
        let version = value(&params, "version")?.parse().ok();
        Ok(Self(value(&params, "name")?.to_owned(), version))
    }
}

async fn params<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Problem> {
    let params = RawPathParams::from_request_parts(parts, state).await;
    params.map_err(|error| Problem::new(ProblemKind::NotFound, error.to_string()))
}

fn value<'a>(params: &'a RawPathParams, name: &str) -> Result<&'a str, Problem> {
    let found = params.iter().find(|(key, _)| *key == name);
    found.map(|(_, value)| value).ok_or_else(|| {
        // Only a handler on a route without this parameter can cause this error.
        Problem::new(
            ProblemKind::Internal,
            format!("the route has no {{{name}}}"),
        )
    })
}

fn task_id(text: &str) -> Result<TaskId, Problem> {
    Uuid::try_parse(text).map(TaskId).map_err(|_| {
        Problem::new(
            ProblemKind::NoSuchTask,
            format!("{text:?} is not a task id: ids are UUIDs"),
        )
    })
}

/// A name that is a [`PLAIN_NAME`], for the OpenAPI document.
pub struct PlainName;

impl PartialSchema for PlainName {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(PLAIN_NAME))
            .max_length(Some(LONGEST_PLAIN_NAME))
            .pattern(Some(PLAIN_NAME_PATTERN));
        schema.build().into()
    }
}

impl ToSchema for PlainName {}

/// Refuses a name that is not a [`PLAIN_NAME`].
pub fn plain_name(what: &str, name: &str) -> Result<(), Problem> {
    match plain_name_fault(what, name) {
        None => Ok(()),
        Some(fault) => Err(Problem::new(ProblemKind::Invalid, fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_uuid_names_a_task() {
        let id = "01970000-0000-7000-8000-000000000001";
        assert_eq!(task_id(id).unwrap().to_string(), id);
        for text in ["", "7", "order-1001", "01970000-0000-7000-8000-00000000000"] {
            assert_eq!(
                task_id(text).unwrap_err().kind(),
                ProblemKind::NoSuchTask,
                "{text}"
            );
        }
    }
}
