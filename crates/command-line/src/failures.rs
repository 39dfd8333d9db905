//! `provost failures`: the causes for which tasks need a person.

use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::{
    completion,
    operations::{GET_FAILURE, LIST_FAILURES},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note},
    plain::{counted, plain, shell_word},
    session::Session,
    shapes::FailureJson,
    values,
};

#[derive(Args, Clone, Debug)]
pub struct FailuresOptions {
    /// The fingerprint of one cause, to see it alone
    #[arg(value_name = "FINGERPRINT", value_parser = values::fingerprint, add = ArgValueCompleter::new(completion::causes))]
    fingerprint: Option<String>,

    /// Only causes of this workflow
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::workflows))]
    workflow: Option<String>,

    /// Only causes at steps with this name
    #[arg(long, value_name = "NAME")]
    step: Option<String>,

    /// Only causes at this agent
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::agents))]
    agent: Option<String>,

    /// Only causes with this text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

pub async fn run(session: &Session, options: &FailuresOptions) -> Result<Outcome, ClientError> {
    if let Some(fingerprint) = &options.fingerprint {
        return show(session, fingerprint).await;
    }
    let mut query = Vec::new();
    let texts = [
        ("workflow", &options.workflow),
        ("step", &options.step),
        ("agent", &options.agent),
        ("text", &options.text),
    ];
    for (name, value) in texts {
        query.extend(value.clone().map(|value| (name, value)));
    }
    let listing = session
        .api
        .list(&LIST_FAILURES, &[], &query, options.limit as usize)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let fingerprint = |item: &str| {
            let failure: Result<FailureJson, _> = serde_json::from_str(item);
            failure
                .map(|failure| failure.fingerprint)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, fingerprint)?;
        return Ok(Outcome::Done);
    }
    let failures: Vec<FailureJson> = listing.read()?;
    out.table("", &table(session, &failures))?;
    match failures.first() {
        None => note("nothing needs you"),
        Some(first) => note(format_args!(
            "\nprovost failures {0}                 shows one cause\nprovost retry --cause {0} --dry-run  shows what a retry would do",
            first.fingerprint
        )),
    }
    Ok(Outcome::Done)
}

/// Returns the causes as a table.
pub fn table(session: &Session, failures: &[FailureJson]) -> Table {
    let mut table = Table::new(&["CAUSE", "TASKS", "", "LAST", "WHAT"]);
    table.wrap_last();
    table.leave_out_first(&["LAST"]);
    for failure in failures {
        let growing = if failure.growing { "growing" } else { "" };
        table.row([
            Cell::new(&failure.fingerprint).in_color(Color::Bold),
            Cell::at_least(failure.tasks, failure.more),
            Cell::new(growing).in_color(Color::Red),
            Cell::new(session.out.times.show(&failure.last_at)),
            Cell::new(&failure.sentence),
        ]);
    }
    table
}

async fn show(session: &Session, fingerprint: &str) -> Result<Outcome, ClientError> {
    let response = session
        .api
        .request(&GET_FAILURE, &[fingerprint])
        .send()
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        out.object(&response.text, fingerprint)?;
        return Ok(Outcome::Done);
    }
    let failure: FailureJson = response.read()?;
    out.say(plain(&failure.sentence))?;
    let times = &out.times;
    let growing = if failure.growing {
        ", and it grows"
    } else {
        ""
    };
    let more = if failure.more { " or more" } else { "" };
    out.say(format_args!(
        "{}{more} {} you{growing}; there were {}, the first {}, the last {}",
        counted(failure.tasks, "task"),
        if failure.tasks == 1 { "needs" } else { "need" },
        counted(failure.failures, "failure"),
        times.show(&failure.first_at),
        times.show(&failure.last_at)
    ))?;
    if let Some(example) = &failure.example {
        let name = example.key.as_deref().unwrap_or(&example.task);
        out.say(format_args!(
            "Example: {} at {}: {}",
            plain(name),
            plain(&example.step),
            plain(&example.message)
        ))?;
        out.say(format_args!("  provost task {}", example.task))?;
    }
    for remedy in failure.remedies.iter().filter(|_| failure.open) {
        out.say(plain(&remedy.when))?;
        match remedy.command.as_str() {
            "resolve" => out.say(format_args!(
                "  provost resolve --cause {fingerprint} --step {} --result @file",
                plain(&failure.step)
            ))?,
            "migrate" => {
                let workflow = failure.workflow.as_deref().unwrap_or_default();
                out.say(format_args!(
                    "  provost migrate --cause {fingerprint} --filter workflow={} --to latest",
                    shell_word(workflow)
                ))?;
            }
            command => out.say(format_args!(
                "  provost {} --cause {fingerprint}",
                plain(command)
            ))?,
        }
    }
    Ok(Outcome::Done)
}
