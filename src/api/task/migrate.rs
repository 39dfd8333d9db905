//! Moves a task to another version of its workflow, or reports the changes that the move would make.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    clone::version,
    commands::{CommandRequest, reason},
    load, with_etag,
};
use crate::{
    api::{
        App, Problem,
        definition::{
            payload_check::check_payload,
            workflows::{self, CompiledWorkflow, VersionChoice},
        },
        extract::{Caller, CommandHeaders, TaskParams, TaskPath},
        problem::{FieldErrorBody, ProblemBody, ProblemKind},
    },
    domain::{
        definition::{SchemaOwner, StepLayout},
        task::{Command, Draft, MoveReport, MovedStep, Task, TaskStatus, VersionMove, check_move},
        values::{FieldFault, Timestamp},
        view::TaskView,
    },
    store::CommandError,
};

/// The most commands of one request, if the task moves to another version between each look at it and its command.
const MOST_ATTEMPTS: usize = 3;

/// The version that the task moves to.
#[derive(ToSchema)]
#[schema(as = TaskMigration)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct MigrationBody {
    /// The number of a version of the task's workflow, or `active` or `latest`.
    to_version: super::clone::VersionBody,
    /// Change nothing: return the change of each step.
    #[schema(default = false, example = true)]
    dry_run: Option<bool>,
    /// Recorded in the history of the task.
    #[schema(example = "version 4 has the new carrier")]
    reason: Option<String>,
}

/// The changes that a move would make to a task.
#[derive(Serialize, ToSchema)]
#[schema(as = MigrationReport)]
pub struct MigrationReport<'t> {
    id: Uuid,
    #[schema(value_type = TaskStatus)]
    state: &'static str,
    #[schema(example = "order")]
    workflow: &'t str,
    #[schema(example = 3)]
    from_version: u32,
    #[schema(example = 4)]
    to_version: u32,
    /// True if the task would move.
    can_migrate: bool,
    /// The reason if the task would not move; null if it would.
    #[schema(required)]
    refusal: Option<String>,
    /// The steps in the order of the new version, and then the steps that it does not have. Empty if the task as a
    /// whole cannot move.
    steps: Vec<MovedStepView>,
    /// The faults of the task's input by the `input_schema` of the new version.
    #[schema(value_type = Vec<FieldErrorBody>)]
    input_errors: Vec<Value>,
}

/// A step, and its change by the move.
#[derive(Serialize, ToSchema)]
#[schema(as = MigratedStep)]
struct MovedStepView {
    #[serde(flatten)]
    step: MovedStep,
    /// The reason why the step cannot move; null if it can.
    #[schema(required)]
    reason: Option<String>,
}

/// The task after the command; with `dry_run`, the report of the changes.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum TaskOrMigrationReport<'t> {
    Task(Box<TaskView<'t>>),
    Report(MigrationReport<'t>),
}

/// Move a task to another version of its workflow
///
/// Every step that has begun must mean the same in that version: the response names each one that does not, and
/// nothing changes then. Steps that have not begun are those of the new version. With `dry_run` nothing changes in
/// any case, and the response reports the change of each step; its ETag, sent as If-Match, refuses the move if the
/// task has changed since.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/migrate", tag = "operate", operation_id = "migrate_task",
    params(TaskParams, CommandHeaders),
    request_body(content = MigrationBody, example = json!({ "to_version": 4, "dry_run": true })),
    responses(
        (status = 200, description = "The task after the command, also if it had the version already; with `dry_run`, the report", body = TaskOrMigrationReport),
        (status = 409, description = "The task cannot move: `steps` names the steps that prevent it, `errors` the faults of its input", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn migrate(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (to, dry_run, reason) = request.fields(|fields| {
        if !fields.has("to_version") {
            fields.missing(
                "to_version",
                "give the number of a version, \"active\" or \"latest\"",
            );
        }
        let to = version(fields, "to_version");
        let dry_run = fields.boolean("dry_run").unwrap_or(false);
        (to.unwrap_or(VersionChoice::Active), dry_run, reason(fields))
    })?;
    let mut attempts = MOST_ATTEMPTS;
    loop {
        let task = load(&app, id).await?;
        // A move that may have been made already is left to the store, which recognises a repeated command.
        let is_judged_here = dry_run || task.details.workflow.is_none();
        if is_judged_here
            && let Some(expected) = request.if_match().filter(|wanted| *wanted != task.version)
        {
            let current = task.version;
            return Err(CommandError::VersionMismatch { expected, current }.into());
        }
        let found = target(&app, &task, to).await?;
        let version = prepare(&app, &task, &found)?;
        let input = input_faults(&app, &task, &found).await?;
        let command = Command::Migrate {
            to: version.clone(),
            reason: reason.clone(),
        };
        if dry_run {
            let now = app.store.reader.now().await?;
            return Ok(report(&task, &version, command, &caller, &input, now));
        }
        if !input.is_empty() {
            return Err(migration_refusal(&task, &version, &command, &caller, input, &app).await?);
        }
        match request.send(id, command).await {
            Err(problem) if problem.is_moved_meanwhile() && attempts > 1 => attempts -= 1,
            response => return response,
        }
    }
}

/// Returns the version that the request names. A task with inline steps has none.
pub(super) async fn target(
    app: &App,
    task: &Task,
    to: VersionChoice,
) -> Result<CompiledWorkflow, Problem> {
    let Some(workflow) = &task.details.workflow else {
        return Err(Problem::new(
            ProblemKind::WrongTaskState,
            "the task has inline steps, and only a task of a workflow can move to another version: clone it instead",
        )
        .with("state", task.status().as_str()));
    };
    let name = &workflow.name;
    let found = workflows::resolve(app, name, to).await?;
    found.ok_or_else(|| {
        let message = format!(
            "workflow {name:?} has no such version: GET /v1/workflows/{name}/versions lists them"
        );
        Problem::invalid(vec![FieldFault::new("/to_version", message)])
    })
}

/// Returns the version, with each step at the index that it has in the task.
pub(super) fn prepare(
    app: &App,
    task: &Task,
    to: &CompiledWorkflow,
) -> Result<Arc<VersionMove>, Problem> {
    let layout = StepLayout::for_move(&task.details.definition, &to.definition);
    let definition = match &layout {
        None => Some(to.definition.clone()),
        Some(layout) => app
            .store
            .definitions
            .laid_out(&to.workflow, &to.definition, layout),
    };
    let Some(definition) = definition else {
        return Err(Problem::new(
            ProblemKind::CannotMigrate,
            "the task has had too many different steps in its versions: clone it instead",
        ));
    };
    let workflow = to.workflow.clone();
    Ok(Arc::new(VersionMove {
        workflow,
        definition,
    }))
}

/// Returns the faults of the task's input by the schema of the version. They cannot change before the command:
/// neither the input of a task nor a version ever changes.
pub(super) async fn input_faults(
    app: &App,
    task: &Task,
    to: &CompiledWorkflow,
) -> Result<Vec<Value>, Problem> {
    let Some(schema) = &to.definition.input_schema else {
        return Ok(Vec::new());
    };
    let (owner, input) = (SchemaOwner::Workflow, &task.details.input);
    let checked = check_payload(app, schema, owner, input, "/input", None).await;
    match checked {
        Ok(()) => Ok(Vec::new()),
        Err(problem) => match problem.errors() {
            Some(faults) => Ok(faults),
            None => Err(problem),
        },
    }
}

/// Returns the problem for a task whose input does not match. If the task itself refuses the move as well, that
/// refusal is returned, because it says more, with the faults of the input.
async fn migration_refusal(
    task: &Task,
    to: &VersionMove,
    command: &Command,
    caller: &Caller,
    input: Vec<Value>,
    app: &App,
) -> Result<Problem, Problem> {
    let now = app.store.reader.now().await?;
    let refused = decide_on_copy(task, command.clone(), caller, now).err();
    Ok(match refused {
        Some(error @ CommandError::Refused { .. }) => Problem::from(error).with("errors", input),
        _ => input_mismatch(to, input),
    })
}

/// Returns the problem for an input that does not match the input_schema of the version.
pub(super) fn input_mismatch(to: &VersionMove, input: Vec<Value>) -> Problem {
    let version = to.workflow.version;
    Problem::new(
        ProblemKind::CannotMigrate,
        format!(
            "the task cannot move to version {version}: its input does not match the input_schema of that version"
        ),
    )
    .with("errors", input)
}

/// Decides the command as the writer would, on a copy of the task.
fn decide_on_copy(
    task: &Task,
    command: Command,
    caller: &Caller,
    now: Timestamp,
) -> Result<(), CommandError> {
    let mut draft = Draft::on(task.clone());
    let state = task.status().as_str();
    let decided = draft.apply(command, &caller.operator(), now).map(drop);
    decided.map_err(|refusal| CommandError::Refused { refusal, state })
}

fn report(
    task: &Task,
    to: &VersionMove,
    command: Command,
    caller: &Caller,
    input: &[Value],
    now: Timestamp,
) -> Response {
    let refused = decide_on_copy(task, command, caller, now).err();
    let is_of_steps = refused.as_ref().is_none_or(CommandError::is_unmapped);
    let moves = match is_of_steps {
        true => check_move(task, to),
        false => MoveReport::default(),
    };
    let workflow = task.details.workflow.as_ref();
    let refusal = refused.map(|error| error.to_string());
    let refusal = refusal.or_else(|| {
        let is_misfit = !input.is_empty();
        is_misfit.then(|| input_mismatch(to, Vec::new()).detail().to_owned())
    });
    let report = MigrationReport {
        id: task.id().0,
        state: task.status().as_str(),
        workflow: to.workflow.name.as_str(),
        from_version: workflow.map_or(0, |workflow| workflow.version),
        to_version: to.workflow.version,
        can_migrate: refusal.is_none(),
        refusal,
        steps: moves
            .steps
            .into_iter()
            .map(|step| MovedStepView {
                reason: step.reason.clone(),
                step,
            })
            .collect(),
        input_errors: input.to_vec(),
    };
    with_etag(super::json(StatusCode::OK, &report), task)
}
