//! `provost workflow`: versions, the active one, and pictures.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};

use crate::{
    completion,
    operations::{
        ACTIVATE_WORKFLOW, GET_WORKFLOW, LIST_WORKFLOW_VERSIONS, LIST_WORKFLOWS, WORKFLOW_GRAPH,
    },
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, write},
    session::{NoOptions, Session, WithShared},
    shapes::{WorkflowJson, WorkflowSummaryJson},
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
    let mut table = Table::new(&["VERSION", "", "REGISTERED", "WHAT"]);
    for version in versions.read::<WorkflowSummaryJson>()? {
        let is_active = version.version == workflow.active_version;
        table.row([
            Cell::number(version.version),
            Cell::new(if is_active { "active" } else { "" }).in_color(Color::Green),
            Cell::new(out.times.show(&version.created_at)),
            Cell::optional(version.description.as_deref()),
        ]);
    }
    out.table("", &table)?;
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
