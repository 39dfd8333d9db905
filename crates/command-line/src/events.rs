//! `provost events` and `provost changes`: the ledger.

use std::collections::VecDeque;

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::value::RawValue;

use crate::{
    completion,
    files::name_value,
    filter::time,
    operations::{LIST_CHANGES, LIST_EVENTS},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, note},
    plain::plain,
    session::Session,
    shapes::{LedgerChangeJson, LedgerEventJson, LedgerPageJson},
    stream::FollowedStream,
    task, values,
};

/// The events of one page.
const PAGE: usize = 500;
/// The position of now.
const NEWEST: &str = "newest";

#[derive(Args, Clone, Debug)]
pub struct EventsOptions {
    /// Show what happens from now on, until you stop it
    #[arg(short, long)]
    follow: bool,

    /// Begin after this position, which -o json shows
    #[arg(long, value_name = "POSITION", conflicts_with = "since")]
    after: Option<String>,

    /// Begin with what happened at this time, or so long ago: 2026-03-01T00:00:00Z or 2h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = values::past)]
    since: Option<String>,

    /// Only these types, separated by commas: task.error,step.*
    #[arg(long, value_name = "TYPES")]
    types: Option<String>,

    /// Only events of tasks of this workflow
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::workflows))]
    workflow: Option<String>,

    /// Only events of tasks with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    label: Vec<(String, String)>,

    /// Without --follow: show at most this many, the latest ones
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    limit: u32,
}

/// Returns where to begin, and the filters.
fn query(
    session: &Session,
    options: &EventsOptions,
) -> Result<Vec<(&'static str, String)>, ClientError> {
    let mut query = Vec::new();
    match (&options.after, &options.since, options.follow) {
        (Some(after), _, _) => query.push(("after", after.clone())),
        (None, Some(since), _) => query.push(("since", time(since, session.out.times.now())?)),
        (None, None, true) => query.push(("after", NEWEST.to_owned())),
        (None, None, false) => query.push(("since", time("1h", session.out.times.now())?)),
    }
    query.extend(options.types.clone().map(|types| ("types", types)));
    query.extend(
        options
            .workflow
            .clone()
            .map(|workflow| ("workflow", workflow)),
    );
    query.extend(
        options
            .label
            .iter()
            .map(|(name, value)| ("label", format!("{name}:{value}"))),
    );
    Ok(query)
}

pub async fn run(session: &Session, options: &EventsOptions) -> Result<Outcome, ClientError> {
    let query = query(session, options)?;
    match options.follow {
        true => follow(session, query).await,
        false => list(session, query, options.limit as usize).await,
    }
}

/// Prints events as they happen. It ends with an error only.
pub async fn follow(
    session: &Session,
    mut query: Vec<(&'static str, String)>,
) -> Result<Outcome, ClientError> {
    for (name, value) in &mut query {
        // The position of now is asked for once: a stream that begins again must not begin with a later one.
        if *name == "after" && value == NEWEST {
            let newest = session.api.request(&LIST_EVENTS, &[]).query(name, NEWEST);
            let page: LedgerPageJson = newest.send().await?.read()?;
            *value = page.position;
        }
    }
    let mut events = FollowedStream::new(&session.api, &LIST_EVENTS, &[], &query);
    loop {
        if let Some(event) = events.next().await? {
            print(session, &event.data, &task::clock)?;
        }
    }
}

/// Prints one event as a line. `in_words` makes words of its time.
fn print(
    session: &Session,
    json: &str,
    in_words: &dyn Fn(&str) -> String,
) -> Result<(), ClientError> {
    let out = &session.out;
    let event: LedgerEventJson = serde_json::from_str(json).unwrap_or_default();
    match out.is_for_people() {
        true => out.say(line(session, &in_words(&event.at), &event)),
        false => out.streamed(json, &event.position),
    }
}

/// Returns an event as a line.
fn line(session: &Session, at: &str, event: &LedgerEventJson) -> String {
    let out = &session.out;
    let task = event
        .task
        .as_ref()
        .map(|task| plain(task.key.as_deref().unwrap_or(&task.id)));
    let name = out.paint(Color::Bold, &task.unwrap_or_default());
    if let Some(entry) = &event.event {
        let mut entry = entry.clone();
        entry.kind.clone_from(&event.kind);
        return format!("{} {name}", task::entry_line(session, at, &entry));
    }
    let at = out.paint(Color::Dim, at);
    match &event.record {
        None => format!("{at} {} {name}", plain(&event.kind)),
        Some(record) => {
            let reason = record
                .reason
                .as_deref()
                .map(|reason| format!(": {}", plain(reason)));
            format!(
                "{at} {} {} by {}{}",
                plain(&event.kind),
                plain(&record.name),
                plain(&record.by),
                reason.unwrap_or_default()
            )
        }
    }
}

async fn list(
    session: &Session,
    mut query: Vec<(&'static str, String)>,
    most: usize,
) -> Result<Outcome, ClientError> {
    let mut latest: VecDeque<Box<RawValue>> = VecDeque::new();
    let text = loop {
        let mut request = session.api.request(&LIST_EVENTS, &[]);
        for (name, value) in &query {
            request = request.query(name, value);
        }
        let response = request.query("limit", &PAGE.to_string()).send().await?;
        let page: LedgerPageJson = response.read()?;
        #[derive(serde::Deserialize)]
        struct Items {
            items: Vec<Box<RawValue>>,
        }
        latest.extend(response.read::<Items>()?.items);
        while latest.len() > most {
            latest.pop_front();
        }
        if !page.has_more {
            break response.text;
        }
        query.retain(|(name, _)| !matches!(*name, "after" | "since"));
        query.push(("after", page.position));
    };
    let items = Vec::from(latest);
    let out = &session.out;
    if out.is_for_people() {
        if items.is_empty() {
            note("no events of that time; --since 24h begins earlier");
        }
        items
            .iter()
            .try_for_each(|item| print(session, item.get(), &|at| out.times.show(at)))?;
        return Ok(Outcome::Done);
    }
    let position = |item: &str| {
        serde_json::from_str::<LedgerEventJson>(item)
            .map(|event| event.position)
            .unwrap_or_default()
    };
    out.list(&crate::api::with_items(&text, &items), &items, position)?;
    Ok(Outcome::Done)
}

#[derive(Args, Clone, Debug)]
pub struct ChangesOptions {
    /// Only these types, separated by commas: agent.*,workflow.activated
    #[arg(long, value_name = "TYPES")]
    types: Option<String>,

    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

/// Shows what people, definitions and agents changed.
pub async fn changes(session: &Session, options: &ChangesOptions) -> Result<Outcome, ClientError> {
    let query: Vec<_> = options
        .types
        .iter()
        .map(|types| ("types", types.clone()))
        .collect();
    let listing = session
        .api
        .list(&LIST_CHANGES, &[], &query, options.limit as usize)
        .await?;
    let out = &session.out;
    if !out.is_for_people() {
        let name = |item: &str| {
            serde_json::from_str::<LedgerChangeJson>(item)
                .map(|change| change.name)
                .unwrap_or_default()
        };
        out.list(&listing.page, &listing.items, name)?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&["AT", "WHAT", "NAME", "STEP", "COMMAND", "BY", "WHY"]);
    for change in listing.read::<LedgerChangeJson>()? {
        table.row([
            Cell::new(out.times.show(&change.at)),
            Cell::new(&change.kind),
            Cell::new(&change.name),
            Cell::optional(change.step.as_deref()),
            Cell::optional(change.command.as_deref()),
            Cell::new(&change.by),
            Cell::optional(change.reason.as_deref()),
        ]);
    }
    out.rows(&table, "no changes")?;
    Ok(Outcome::Done)
}
