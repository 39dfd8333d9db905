//! `provost workflow`: versions, the active one, and pictures.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};

use crate::{
    completion,
    operations::{
        ACTIVATE_WORKFLOW, GET_WORKFLOW, GET_WORKFLOW_USAGE, LIST_WORKFLOW_VERSIONS,
        LIST_WORKFLOWS, WORKFLOW_GRAPH,
    },
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note, write},
    session::{NoOptions, Session, WithShared},
    shapes::{WorkflowJson, WorkflowSummaryJson, WorkflowUsageJson},
};

/// The most workflows or versions that are listed.
const MOST: usize = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum WorkflowCommand {
    /// List the workflows, with their latest and their active versions
    List(WithShared<NoOptions>),
    /// Draw a workflow: Mermaid for a page or a ticket, or dot for Graphviz
    Graph(WithShared<GraphOptions>),
    /// Make a version the active one, which tasks get that name no version
    Promote(WithShared<PromoteOptions>),
    /// Show the versions of a workflow, and which was active when
    History(WithShared<OneWorkflow>),
}

#[derive(Args, Clone, Debug)]
pub struct OneWorkflow {
    /// The name of the workflow
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::workflows))]
    workflow: String,
}

#[derive(Args, Clone, Debug)]
pub struct GraphOptions {
    #[command(flatten)]
    one: OneWorkflow,

    /// The version [default: the latest]
    #[arg(long, value_name = "VERSION", add = ArgValueCompleter::new(completion::versions))]
    version: Option<u32>,

    /// The language of the picture
    #[arg(long, value_enum, default_value_t)]
    format: Picture,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Picture {
    #[default]
    Mermaid,
    Dot,
}

#[derive(Args, Clone, Debug)]
pub struct PromoteOptions {
    #[command(flatten)]
    one: OneWorkflow,

    /// The version
    #[arg(value_name = "VERSION", add = ArgValueCompleter::new(completion::versions))]
    version: u32,

    /// The reason, which is on record with your name
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl WorkflowCommand {
    pub async fn run(&self) -> Result<Outcome, ClientError> {
        match self {
            Self::List(command) => list(&command.shared.session()?).await,
            Self::Graph(command) => graph(&command.shared.session()?, &command.options).await,
            Self::Promote(command) => promote(&command.shared.session()?, &command.options).await,
            Self::History(command) => {
                history(&command.shared.session()?, &command.options.workflow).await
            }
        }
    }
}

fn name_of(item: &str) -> String {
    let workflow: Result<WorkflowSummaryJson, _> = serde_json::from_str(item);
    workflow.map(|workflow| workflow.name).unwrap_or_default()
}

async fn list(session: &Session) -> Result<Outcome, ClientError> {
    let listing = session.api.list(&LIST_WORKFLOWS, &[], &[], MOST).await?;
    let out = &session.out;
    if !out.is_for_people() {
        out.list(&listing.page, &listing.items, name_of)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["WORKFLOW", "LATEST", "ACTIVE", "REGISTERED", "WHAT"]);
    for workflow in listing.read::<WorkflowSummaryJson>()? {
        let is_latest = workflow.version == workflow.active_version;
        let active = Cell::number(workflow.active_version);
        table.row([
            Cell::new(&workflow.name),
            Cell::number(workflow.version),
            if is_latest {
                active
            } else {
                active.in_color(Color::Yellow)
            },
            Cell::new(out.times.show(&workflow.created_at)),
            Cell::optional(workflow.description.as_deref()),
        ]);
    }
    out.rows(&table, "no workflows")?;
    Ok(Outcome::Done)
}

async fn graph(session: &Session, options: &GraphOptions) -> Result<Outcome, ClientError> {
    if !session.out.is_for_people() {
        return Err(ClientError::usage(
            "a picture is text, for which -o has no form: --format chooses its language, and provost get workflow NAME -o json shows the steps",
        ));
    }
    let format = match options.format {
        Picture::Mermaid => "mermaid",
        Picture::Dot => "dot",
    };
    let mut request = session
        .api
        .request(&WORKFLOW_GRAPH, &[&options.one.workflow])
        .query("format", format);
    if let Some(version) = options.version {
        request = request.query("version", &version.to_string());
    }
    let response = request.send().await?;
    write(format_args!("{}\n", response.text.trim_end()))?;
    Ok(Outcome::Done)
}

async fn promote(session: &Session, options: &PromoteOptions) -> Result<Outcome, ClientError> {
    let mut members = Map::new();
    members.insert("version".to_owned(), json!(options.version));
    members.extend(
        options
            .reason
            .clone()
            .map(|reason| ("reason".to_owned(), json!(reason))),
    );
    let request = session
        .api
        .request(&ACTIVATE_WORKFLOW, &[&options.one.workflow]);
    let response = request.body(&Value::Object(members)).send().await?;
    let workflow: WorkflowJson = response.read()?;
    match session.out.is_for_people() {
        true => session.out.say(format_args!(
            "version {} of {} is active",
            options.version, workflow.name
        ))?,
        false => session.out.object(&response.text, &workflow.name)?,
    }
    Ok(Outcome::Done)
}

/// Returns the tasks by version. An earlier server does not count them.
async fn usage(session: &Session, name: &str) -> Result<WorkflowUsageJson, ClientError> {
    match session
        .api
        .request(&GET_WORKFLOW_USAGE, &[name])
        .send()
        .await
    {
        Ok(response) => response.read(),
        Err(error) if error.problem(404).is_some() => Ok(WorkflowUsageJson::default()),
        Err(error) => Err(error),
    }
}

async fn history(session: &Session, name: &str) -> Result<Outcome, ClientError> {
    let versions = session
        .api
        .list(&LIST_WORKFLOW_VERSIONS, &[name], &[], MOST)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let version = |item: &str| {
            let workflow: Result<WorkflowSummaryJson, _> = serde_json::from_str(item);
            workflow
                .map(|workflow| workflow.version.to_string())
                .unwrap_or_default()
        };
        out.list(&versions.page, &versions.items, version)?;
        return Ok(Outcome::Done);
    }
    let response = session.api.request(&GET_WORKFLOW, &[name]).send().await?;
    let workflow: WorkflowJson = response.read()?;
    let usage = usage(session, name).await?;
    let mut table = Table::new(&["VERSION", "", "REGISTERED", "TASKS", "IN ERROR", "WHAT"]);
    for version in versions.read::<WorkflowSummaryJson>()? {
        let used = usage
            .versions
            .iter()
            .find(|used| used.version == version.version);
        let [tasks, in_error] = used.map_or([0, 0], |used| [used.tasks, used.in_error]);
        let in_error = Cell::number(in_error).in_color(match in_error {
            0 => Color::Plain,
            _ => Color::Red,
        });
        let is_active = version.version == workflow.active_version;
        table.row([
            Cell::number(version.version),
            Cell::new(if is_active { "active" } else { "" }).in_color(Color::Green),
            Cell::new(out.times.show(&version.created_at)),
            Cell::number(tasks),
            in_error,
            Cell::optional(version.description.as_deref()),
        ]);
    }
    out.table("", &table)?;
    if usage.more {
        note("TASKS counts the latest 1,000 tasks of the workflow");
    }
    if usage.more_in_error {
        note("IN ERROR counts the latest 1,000 of those in error");
    }
    let mut table = Table::new(&["AT", "FROM", "TO", "BY", "WHY"]);
    for activation in &workflow.activations {
        table.row([
            Cell::new(out.times.show(&activation.at)),
            Cell::number(activation.from_version),
            Cell::number(activation.version),
            Cell::new(&activation.by),
            Cell::optional(activation.reason.as_deref()),
        ]);
    }
    out.table("\nActivations", &table)?;
    Ok(Outcome::Done)
}
