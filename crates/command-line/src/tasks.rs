//! `provost tasks`: the list of tasks.

use clap::Args;

use crate::{
    filter::TaskFilters,
    operations::LIST_TASKS,
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note},
    session::Session,
    shapes::TaskSummaryJson,
};

#[derive(Args, Clone, Debug)]
pub struct TasksOptions {
    #[command(flatten)]
    filters: TaskFilters,

    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub async fn run(session: &Session, options: &TasksOptions) -> Result<Outcome, ClientError> {
    let out = &session.out;
    let query = options.filters.query(out.times.now())?;
    let listing = session
        .api
        .list(&LIST_TASKS, &[], &query, options.limit as usize)
        .await?;
    if !out.is_for_people() {
        out.list(&listing.page, &listing.items, id_of)?;
        return Ok(Outcome::Done);
    }
    let tasks: Vec<TaskSummaryJson> = listing.read()?;
    out.table("", &table(session, &tasks))?;
    if tasks.is_empty() {
        note("no tasks");
    } else if tasks.len() >= options.limit as usize {
        note(match tasks.len() {
            1 => "this is the latest task; --limit shows more".to_owned(),
            many => format!("these are the {many} latest tasks; --limit shows more"),
        });
    }
    Ok(Outcome::Done)
}

/// Returns the id of an item.
pub fn id_of(item: &str) -> String {
    let task: Result<TaskSummaryJson, _> = serde_json::from_str(item);
    task.map(|task| task.id).unwrap_or_default()
}

fn table(session: &Session, tasks: &[TaskSummaryJson]) -> Table {
    let times = &session.out.times;
    let mut table = Table::new(&[
        "ID",
        "KEY",
        "WORKFLOW",
        "STATE",
        "SUBMITTED",
        "ENDED",
        "WHY",
    ]);
    for task in tasks {
        let workflow = match (&task.workflow, task.workflow_version) {
            (Some(name), Some(version)) => format!("{name} v{version}"),
            (name, _) => name.clone().unwrap_or_default(),
        };
        let why = task.error.as_ref().map(|error| match &error.step {
            Some(step) => format!("{step}: {}", error.message),
            None => error.message.clone(),
        });
        table.row([
            Cell::new(&task.id).in_color(Color::Dim),
            Cell::optional(task.key.as_deref()),
            Cell::new(workflow),
            Cell::state(&task.state),
            Cell::new(times.show(&task.created_at)),
            Cell::new(times.show_optional(task.ended_at.as_deref())),
            Cell::optional(why.as_deref()),
        ]);
    }
    // A command takes the key as well as the id.
    table.leave_out_first(match tasks.iter().all(|task| task.key.is_some()) {
        true => &["ENDED", "ID", "WORKFLOW", "SUBMITTED"],
        false => &["ENDED", "WORKFLOW", "SUBMITTED", "KEY"],
    });
    table
}
