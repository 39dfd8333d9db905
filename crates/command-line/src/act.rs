//! Commands on a task: retry, skip, resolve, undo, cancel, pause, resume, start, clone, rerun and migrate. Those that the API
//! has for many tasks take `--cause` and `--filter` instead of a task, and become a bulk job.

use std::time::Duration;

use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json, value::RawValue};
use uuid::Uuid;

use crate::{
    api::ApiResponse,
    bulk::{self, BulkOptions},
    completion,
    files::{json_argument, name_value},
    filter::Selection,
    find_task::{self, FoundTask, Purpose},
    operations::{
        self, CANCEL_STEP, CANCEL_TASK, CLONE_TASK, GET_UNDO_PLAN, MIGRATE_TASK, Operation,
        PAUSE_TASK, RESOLVE_STEP, RESUME_TASK, RETRY_STEP, RETRY_TASK, SKIP_STEP, START_TASK,
        UNDO_TASK,
    },
    outcome::{ClientError, Outcome},
    output::{Cell, Table, note, span_of},
    plain::plain,
    session::Session,
    shapes::{MigrationReportJson, TaskDifferenceJson, TaskJson, UndoPlanJson},
    task, values, wait,
};

/// The arguments of a command on one task.
#[derive(Args, Clone, Debug)]
pub struct OneTask {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: String,

    #[command(flatten)]
    after: Afterwards,
}

/// The arguments of every command on tasks.
#[derive(Args, Clone, Debug)]
pub struct Afterwards {
    /// The reason, which the history records with your name
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Wait until the task has ended or needs a person, and exit with 0, 2 or 3 accordingly; for many tasks until all have,
    /// and exit with 2 if one is in error
    #[arg(long)]
    wait: bool,

    /// With --wait: exit with 4 if the task still runs after this time, such as 30s or 15m
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = span_of)]
    timeout: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct RetryOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// Retry this step only
    #[arg(value_name = "STEP", requires = "task", add = ArgValueCompleter::new(completion::steps))]
    step: Option<String>,

    /// With a step: send this input instead, as JSON or @file
    #[arg(long, value_name = "JSON", requires = "step")]
    input: Option<String>,

    /// For many tasks: change the request body of the step in error by this JSON Merge Patch, as JSON or @file
    #[arg(
        long,
        value_name = "JSON",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    patch: Option<String>,

    /// For many tasks, with --patch: the step whose request changes, if several are in error
    #[arg(
        long = "step",
        value_name = "STEP",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    patched_step: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct SkipOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The step [default: the step in error]
    #[arg(value_name = "STEP", requires = "task", add = ArgValueCompleter::new(completion::steps))]
    step: Option<String>,

    /// The output that the step gets, as JSON or @file
    #[arg(long, value_name = "JSON")]
    result: Option<String>,

    /// For many tasks: the step to skip [default: every step in error]
    #[arg(
        long = "step",
        value_name = "STEP",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    skipped_step: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct ResolveOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The step whose work was done elsewhere [default: the step in error]
    #[arg(value_name = "STEP", requires = "task", add = ArgValueCompleter::new(completion::steps))]
    step: Option<String>,

    /// The output of the work, as JSON or @file
    #[arg(long, value_name = "JSON")]
    result: Option<String>,

    /// For many tasks: the step, which is resolved where it is in error, with one output for all
    #[arg(
        long = "step",
        value_name = "STEP",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    resolved_step: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct ManyOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct CancelOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The step whose call is to end [default: the task as a whole]
    #[arg(value_name = "STEP", requires = "task", conflicts_with = "dry_run", add = ArgValueCompleter::new(completion::steps))]
    step: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
#[command(group = ArgGroup::new("from").required(true).args(["step", "first_step"]))]
pub struct RerunOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The step from which on everything runs again
    #[arg(value_name = "STEP", requires = "task", add = ArgValueCompleter::new(completion::steps))]
    step: Option<String>,

    /// For many tasks: the step from which on everything runs again
    #[arg(
        long = "step",
        value_name = "STEP",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    first_step: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["task", "cause", "filter", "all"]))]
pub struct CloneOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The input of the new task, as JSON or @file
    #[arg(long, value_name = "JSON", conflicts_with = "input_patch")]
    input: Option<String>,

    /// Change single members of the input by this JSON Merge Patch, as JSON or @file
    #[arg(long, value_name = "JSON")]
    input_patch: Option<String>,

    /// The key of the new task
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// The labels of the new task; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    label: Vec<(String, String)>,

    /// The version of the workflow: a number, latest or active
    #[arg(long, value_name = "VERSION", value_parser = values::version)]
    workflow_version: Option<String>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

/// Without a task, --cause, --filter or --all the command is another one: it migrates the schema of a database.
#[derive(Args, Clone, Debug)]
pub struct MigrateOptions {
    /// The id or the key of the task
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(completion::tasks))]
    task: Option<String>,

    /// The version to move to: a number, latest or active
    #[arg(long, value_name = "VERSION", value_parser = values::version, help_heading = "Tasks")]
    to: Option<String>,

    /// For many tasks: only those of this version
    #[arg(
        long,
        value_name = "VERSION",
        conflicts_with = "task",
        help_heading = "Many tasks"
    )]
    from_version: Option<u32>,

    #[command(flatten)]
    after: Afterwards,

    #[command(flatten)]
    many: BulkOptions,
}

/// Returns a body with the members that have a value.
fn body(members: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    let given = members
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect())
}

impl Afterwards {
    fn is_given(&self) -> bool {
        self.reason.is_some() || self.wait
    }

    fn reason(&self) -> Option<Value> {
        self.reason.clone().map(Value::from)
    }
}

/// Returns the JSON of an argument.
fn value(name: &str, text: Option<&String>) -> Result<Option<Value>, ClientError> {
    let Some(text) = text else {
        return Ok(None);
    };
    let raw: Box<RawValue> = json_argument(name, text)?;
    let value = serde_json::from_str(raw.get());
    value
        .map(Some)
        .map_err(|error| ClientError::usage(format!("{name}: {error}")))
}

/// Returns a version of a workflow: a number, `latest` or `active`.
fn version(text: &str) -> Value {
    text.parse::<u32>()
        .map_or_else(|_| json!(text), |number| json!(number))
}

/// Sends a command on one task, shows the task, and waits for its end if that is wanted.
async fn send(
    session: &Session,
    operation: &Operation,
    parts: &[&str],
    members: Value,
    after: &Afterwards,
) -> Result<Outcome, ClientError> {
    let request = session.api.request(operation, parts);
    let sent = request
        .header("idempotency-key", Uuid::now_v7().to_string())
        .body(&members)
        .send();
    let response = wait::before_wait(&session.api, after.timeout, sent).await?;
    finish(session, response, after).await
}

async fn finish(
    session: &Session,
    response: ApiResponse,
    after: &Afterwards,
) -> Result<Outcome, ClientError> {
    let task: TaskJson = response.read()?;
    let found = FoundTask {
        task,
        json: response.text,
    };
    if !after.wait {
        show_state(session, &found)?;
        return Ok(Outcome::Done);
    }
    note(&found.task.id);
    let (found, outcome) = wait::until_rest(&session.api, &found.task.id, after.timeout).await?;
    show_state(session, &found)?;
    Ok(outcome)
}

fn show_state(session: &Session, found: &FoundTask) -> Result<(), ClientError> {
    match session.out.is_for_people() {
        true => task::say_state(session, &found.task),
        false => session.out.object(&found.json, &found.task.id),
    }
}

async fn id_of(session: &Session, name: &str, after: &Afterwards) -> Result<String, ClientError> {
    let found = find_task::find_id(&session.api, name, Purpose::Command);
    wait::before_wait(&session.api, after.timeout, found).await
}

/// Returns the id of the task, and the step that is named or in error.
async fn step_of(
    session: &Session,
    name: &str,
    step: Option<&String>,
    after: &Afterwards,
) -> Result<(String, String), ClientError> {
    if let Some(step) = step {
        return Ok((id_of(session, name, after).await?, step.clone()));
    }
    let found = find_task::find(&session.api, name, Purpose::Command);
    let found = wait::before_wait(&session.api, after.timeout, found).await?;
    let failed: Vec<_> = found
        .task
        .steps
        .iter()
        .filter(|step| step.state == "error")
        .collect();
    match failed.as_slice() {
        [step] => Ok((found.task.id.clone(), step.name.clone())),
        [] => Err(ClientError::NotFound(format!(
            "no step of the task {name} is in error: name a step"
        ))),
        steps => {
            let names: Vec<_> = steps.iter().map(|step| plain(&step.name)).collect();
            Err(ClientError::usage(format!(
                "several steps are in error, name one of them: {}",
                names.join(", ")
            )))
        }
    }
}

pub async fn retry(session: &Session, options: &RetryOptions) -> Result<Outcome, ClientError> {
    let reason = options.after.reason();
    let Some(name) = &options.task else {
        let extra = [
            ("patch", value("--patch", options.patch.as_ref())?),
            ("step", options.patched_step.clone().map(Value::from)),
        ];
        return many(
            session,
            &operations::RETRY_TASKS,
            &options.many,
            &options.after,
            extra,
        )
        .await;
    };
    let id = id_of(session, name, &options.after).await?;
    if options.many.dry_run {
        return dry_run_of_one(session, &operations::RETRY_TASKS, &id, []).await;
    }
    let Some(step) = &options.step else {
        return send(
            session,
            &RETRY_TASK,
            &[&id],
            body([("reason", reason)]),
            &options.after,
        )
        .await;
    };
    let input = value("--input", options.input.as_ref())?;
    let members = body([("input", input), ("reason", reason)]);
    send(session, &RETRY_STEP, &[&id, step], members, &options.after).await
}

pub async fn skip(session: &Session, options: &SkipOptions) -> Result<Outcome, ClientError> {
    let output = value("--result", options.result.as_ref())?;
    let Some(name) = &options.task else {
        let extra = [
            ("step", options.skipped_step.clone().map(Value::from)),
            ("output", output),
        ];
        return many(
            session,
            &operations::SKIP_TASKS,
            &options.many,
            &options.after,
            extra,
        )
        .await;
    };
    let (id, step) = step_of(session, name, options.step.as_ref(), &options.after).await?;
    if options.many.dry_run {
        let extra = [("step", Some(json!(step))), ("output", output)];
        return dry_run_of_one(session, &operations::SKIP_TASKS, &id, extra).await;
    }
    let members = body([("output", output), ("reason", options.after.reason())]);
    send(session, &SKIP_STEP, &[&id, &step], members, &options.after).await
}

pub async fn resolve(session: &Session, options: &ResolveOptions) -> Result<Outcome, ClientError> {
    let output = value("--result", options.result.as_ref())?;
    let Some(name) = &options.task else {
        let Some(step) = &options.resolved_step else {
            return Err(ClientError::usage(
                "--step is missing: the step whose work was done elsewhere",
            ));
        };
        let output = output.unwrap_or(Value::Null);
        let extra = [("step", Some(json!(step))), ("output", Some(output))];
        return many(
            session,
            &operations::RESOLVE_TASKS,
            &options.many,
            &options.after,
            extra,
        )
        .await;
    };
    if options.many.dry_run {
        return Err(ClientError::usage(
            "--dry-run is for many tasks: a task that cannot be resolved refuses the command",
        ));
    }
    let (id, step) = step_of(session, name, options.step.as_ref(), &options.after).await?;
    let members = body([("output", output), ("reason", options.after.reason())]);
    send(
        session,
        &RESOLVE_STEP,
        &[&id, &step],
        members,
        &options.after,
    )
    .await
}

pub async fn undo(session: &Session, options: &ManyOptions) -> Result<Outcome, ClientError> {
    match &options.task {
        Some(name) if options.many.dry_run => undo_plan(session, name, &options.after).await,
        Some(_) => one_of_many(session, &UNDO_TASK, options).await,
        None => {
            many(
                session,
                &operations::UNDO_TASKS,
                &options.many,
                &options.after,
                [],
            )
            .await
        }
    }
}

pub async fn cancel(session: &Session, options: &CancelOptions) -> Result<Outcome, ClientError> {
    if let (Some(name), Some(step)) = (&options.task, &options.step) {
        let (id, step) = step_of(session, name, Some(step), &options.after).await?;
        let members = body([("reason", options.after.reason())]);
        return send(
            session,
            &CANCEL_STEP,
            &[&id, &step],
            members,
            &options.after,
        )
        .await;
    }
    let whole = ManyOptions {
        task: options.task.clone(),
        after: options.after.clone(),
        many: options.many.clone(),
    };
    one_or_many(session, &CANCEL_TASK, &operations::CANCEL_TASKS, &whole).await
}

/// Sends a command without arguments of its own, for one task or for many.
async fn one_or_many(
    session: &Session,
    one: &Operation,
    all: &Operation,
    options: &ManyOptions,
) -> Result<Outcome, ClientError> {
    match &options.task {
        Some(name) if options.many.dry_run => {
            let id = id_of(session, name, &options.after).await?;
            dry_run_of_one(session, all, &id, []).await
        }
        Some(_) => one_of_many(session, one, options).await,
        None => many(session, all, &options.many, &options.after, []).await,
    }
}

async fn one_of_many(
    session: &Session,
    operation: &Operation,
    options: &ManyOptions,
) -> Result<Outcome, ClientError> {
    let id = id_of(
        session,
        options.task.as_deref().unwrap_or_default(),
        &options.after,
    )
    .await?;
    let members = body([("reason", options.after.reason())]);
    send(session, operation, &[&id], members, &options.after).await
}

pub async fn pause(session: &Session, options: &ManyOptions) -> Result<Outcome, ClientError> {
    one_or_many(session, &PAUSE_TASK, &operations::PAUSE_TASKS, options).await
}

pub async fn resume(session: &Session, options: &ManyOptions) -> Result<Outcome, ClientError> {
    one_or_many(session, &RESUME_TASK, &operations::RESUME_TASKS, options).await
}

pub async fn start(session: &Session, options: &OneTask) -> Result<Outcome, ClientError> {
    let id = id_of(session, &options.task, &options.after).await?;
    let members = body([("reason", options.after.reason())]);
    send(session, &START_TASK, &[&id], members, &options.after).await
}

pub async fn rerun(session: &Session, options: &RerunOptions) -> Result<Outcome, ClientError> {
    let from = options.step.as_ref().or(options.first_step.as_ref());
    let from = ("from", from.cloned().map(Value::from));
    let Some(name) = &options.task else {
        let all = &operations::RERUN_TASKS;
        return many(session, all, &options.many, &options.after, [from]).await;
    };
    let id = id_of(session, name, &options.after).await?;
    if options.many.dry_run {
        return dry_run_of_one(session, &operations::RERUN_TASKS, &id, [from]).await;
    }
    let members = body([from, ("reason", options.after.reason())]);
    send(session, &RETRY_TASK, &[&id], members, &options.after).await
}

pub async fn clone(session: &Session, options: &CloneOptions) -> Result<Outcome, ClientError> {
    let labels = options
        .label
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)));
    let labels: Map<_, _> = labels.collect();
    let changes = [
        ("input", value("--input", options.input.as_ref())?),
        (
            "input_patch",
            value("--input-patch", options.input_patch.as_ref())?,
        ),
        ("key", options.key.clone().map(Value::from)),
        (
            "labels",
            (!labels.is_empty()).then_some(Value::Object(labels)),
        ),
        (
            "workflow_version",
            options.workflow_version.as_deref().map(version),
        ),
    ];
    let Some(name) = &options.task else {
        let extra = [("changes", Some(body(changes)))];
        return many(
            session,
            &operations::CLONE_TASKS,
            &options.many,
            &options.after,
            extra,
        )
        .await;
    };
    let found = find_task::find_id(&session.api, name, Purpose::Show);
    let id = wait::before_wait(&session.api, options.after.timeout, found).await?;
    let members = body(
        changes
            .into_iter()
            .chain([("reason", options.after.reason())]),
    );
    if !options.many.dry_run {
        return send(session, &CLONE_TASK, &[&id], members, &options.after).await;
    }
    let request = session
        .api
        .request(&CLONE_TASK, &[&id])
        .query("dry_run", "true");
    let response = request.body(&members).send().await?;
    let difference: TaskDifferenceJson = response.read()?;
    match session.out.is_for_people() {
        true => session.out.say(plain(&difference.sentence))?,
        false => session.out.object(&response.text, &id)?,
    }
    Ok(Outcome::Done)
}

impl MigrateOptions {
    /// Returns whether the arguments are about tasks.
    pub fn is_of_tasks(&self) -> bool {
        let is_about_tasks = self.from_version.is_some() || self.many.is_given();
        self.task.is_some() || self.to.is_some() || is_about_tasks || self.after.is_given()
    }
}

pub async fn migrate(session: &Session, options: &MigrateOptions) -> Result<Outcome, ClientError> {
    let Some(to) = &options.to else {
        return Err(ClientError::usage(
            "--to is missing: a version, latest or active; to migrate the database, give none of the options for tasks",
        ));
    };
    let to = Some(version(to));
    let Some(name) = &options.task else {
        let extra = [
            ("to_version", to),
            ("from_version", options.from_version.map(Value::from)),
        ];
        return many(
            session,
            &operations::MIGRATE_TASKS,
            &options.many,
            &options.after,
            extra,
        )
        .await;
    };
    let id = id_of(session, name, &options.after).await?;
    let mut members = body([("to_version", to), ("reason", options.after.reason())]);
    if !options.many.dry_run {
        return send(session, &MIGRATE_TASK, &[&id], members, &options.after).await;
    }
    members["dry_run"] = json!(true);
    let response = session
        .api
        .request(&MIGRATE_TASK, &[&id])
        .body(&members)
        .send()
        .await?;
    let report: MigrationReportJson = response.read()?;
    let out = &session.out;
    if !out.is_for_people() {
        out.object(&response.text, &id)?;
    } else {
        match &report.refusal {
            Some(refusal) => out.say(plain(refusal))?,
            None => out.say("the task can move")?,
        }
        let mut table = Table::new(&["STEP", "CHANGE", "WHY"]);
        for step in &report.steps {
            table.row([
                Cell::new(&step.name),
                Cell::optional(step.change.as_deref()),
                Cell::optional(step.reason.as_deref()),
            ]);
        }
        out.table("", &table)?;
    }
    Ok(if report.can_migrate {
        Outcome::Done
    } else {
        Outcome::Refused
    })
}

async fn undo_plan(
    session: &Session,
    name: &str,
    after: &Afterwards,
) -> Result<Outcome, ClientError> {
    let id = id_of(session, name, after).await?;
    let response = session.api.request(&GET_UNDO_PLAN, &[&id]).send().await?;
    let plan: UndoPlanJson = response.read()?;
    let out = &session.out;
    if !out.is_for_people() {
        out.object(&response.text, &id)?;
    } else {
        match (&plan.reason, plan.possible) {
            (Some(reason), false) => out.say(plain(reason))?,
            _ => out.say(match plan.calls.len() {
                0 => "an undo makes no call".to_owned(),
                1 => "an undo makes this call:".to_owned(),
                count => format!("an undo makes these {count} calls, in this order:"),
            })?,
        }
        let mut table = Table::new(&["UNDOES", "AGENT", "REQUEST"]);
        for call in &plan.calls {
            let request = call.request.as_ref();
            let line = request.map(|request| format!("{} {}", request.method, request.path));
            table.row([
                Cell::new(&call.undoes),
                Cell::optional(request.map(|request| request.agent.as_str())),
                Cell::optional(line.as_deref()),
            ]);
        }
        out.table("", &table)?;
        for passed in &plan.passed_over {
            out.say(format_args!(
                "step {} is not undone: {}",
                plain(&passed.step),
                plain(&passed.message)
            ))?;
        }
    }
    Ok(if plan.possible {
        Outcome::Done
    } else {
        Outcome::Refused
    })
}

/// Shows what a command would do with one task: the API has dry runs of commands for many, which take ids.
async fn dry_run_of_one(
    session: &Session,
    operation: &Operation,
    id: &str,
    extra: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> Result<Outcome, ClientError> {
    let members = body(extra.into_iter().chain([("ids", Some(json!([id])))]));
    let members = members.as_object().cloned().unwrap_or_default();
    let preview = bulk::preview(session, operation, &members).await?;
    match session.out.is_for_people() {
        true => bulk::preview_lines_of_one(&preview.result)
            .iter()
            .try_for_each(|line| session.out.say(line))?,
        false => bulk::show_preview(session, &preview)?,
    }
    Ok(bulk::outcome_of_preview(&preview.result))
}

/// Has the server carry out a command for many tasks.
async fn many(
    session: &Session,
    operation: &Operation,
    options: &BulkOptions,
    after: &Afterwards,
    extra: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> Result<Outcome, ClientError> {
    let selection: &Selection = &options.selection;
    if !selection.is_given() {
        return Err(ClientError::usage(
            "name a task, or the tasks with --cause, --filter or --all",
        ));
    }
    let mut members = selection.members(session.out.times.now())?;
    let more = body(extra.into_iter().chain([("reason", after.reason())]));
    members.extend(more.as_object().cloned().unwrap_or_default());
    bulk::run(
        session,
        operation,
        options,
        members,
        after.wait,
        after.timeout,
    )
    .await
}
