//! The remaining operations on a task with a damaged record: an alert is raised, and the task can be cancelled.
//!
//! A cancel only reads the states of the steps, and writes neither inputs nor definitions. So the same rules decide it,
//! on a task whose damaged payloads read as null, and whose definition, if that is damaged, is made of the names of its
//! steps. Such a task cannot be used for anything else.

use std::{collections::HashSet, sync::Arc};

use serde::de::IgnoredAny;
use serde_json::json;
use uuid::Uuid;

use crate::domain::{
    definition::{Definition, MOST_STEPS},
    message::{AlertNotice, Sender},
    task::{AlertKind, SavedReplies, Task},
    values::{StepIndex, TaskId},
};
use crate::{
    chance,
    store::{
        StoreError, Transaction,
        definition::stored_workflow::compile,
        record::{NewStepRow, NewTaskRow, StepRow, TaskRow, loaded_names},
        rows::{self, Columns},
        statement::Statement,
    },
};

/// Relies on the primary key.
const REPLY_TO: &str = "SELECT reply_to FROM task_details WHERE task_id = $1";

impl Transaction<'_> {
    /// Returns a damaged task that can be cancelled. `with_details`: includes the receiver of its replies, if that can
    /// be read. Returns `None` if too much is damaged.
    pub async fn salvage(
        &mut self,
        id: TaskId,
        with_details: bool,
    ) -> Result<Option<Task>, StoreError> {
        match salvage(self, id, with_details).await {
            Err(error) if error.is_damage() => Ok(None),
            salvaged => salvaged,
        }
    }

    /// Raises the alert of a task that cannot be read, unless there is one, and notifies the alert webhooks.
    pub async fn raise_unreadable(
        &mut self,
        task: TaskId,
        step: StepIndex,
        message: &str,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        let kind = AlertKind::TaskUnreadable.as_str();
        let alert = AlertNotice {
            task: Some(task),
            ..AlertNotice::raised(chance::id(), kind, message, self.now())
        };
        self.raise_alert(&alert, Some(step), sender).await
    }
}

async fn salvage(
    tx: &mut Transaction<'_>,
    id: TaskId,
    with_details: bool,
) -> Result<Option<Task>, StoreError> {
    let of = |sql: &str| Statement::new(sql).bind(id.0);
    // The rows are read by their primary keys.
    let task = loaded_names(&[TaskRow::COLUMNS, NewTaskRow::COLUMNS]);
    let task = task.replace(" workflow,", " NULL AS workflow,");
    let task = format!(
        "SELECT {task}, NULL AS reply_to, NULL AS parent, NULL AS key_prefix, 'null' AS input FROM tasks WHERE id = $1"
    );
    let found = tx.fetch(of(&task)).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let steps = loaded_names(&[StepRow::COLUMNS, NewStepRow::COLUMNS]);
    let steps = format!("SELECT {steps} FROM steps WHERE task_id = $1 ORDER BY idx");
    let steps = tx.fetch(of(&steps)).await?;
    // A damaged number counts as 0.
    let untouched = row.get::<usize>("untouched").unwrap_or_default();
    let may_be = |untouched: &usize| untouched + steps.len() <= MOST_STEPS;
    let untouched = Some(untouched).filter(may_be).unwrap_or_default();
    let claimed = claimed_step(row, &steps, untouched);
    // The step of a damaged claim counts as waiting.
    let is_lost = claimed.is_none() && row.integer("claim_step").ok().flatten().is_some();
    let untouched = untouched + usize::from(is_lost);
    let definition = stand_in(&steps, untouched, claimed)?;
    let has_claim = claimed.is_some();
    let salvaged = |row| Salvaged {
        row,
        untouched,
        has_claim,
    };
    let steps: Vec<_> = steps.iter().map(salvaged).collect();
    let mut task = rows::assemble(&salvaged(row), Arc::new(definition), &steps)?;
    // The receiver of replies is notified of the end of the task, if the receiver is known.
    if with_details && let Some(details) = Arc::get_mut(&mut task.details) {
        let found = tx.fetch(of(REPLY_TO)).await?;
        let reply_to = found.first().and_then(|row| row.text("reply_to").ok());
        let reply_to = reply_to.flatten();
        details.reply_to = reply_to.and_then(|text| serde_json::from_str(&text).ok());
    }
    Ok(Some(task))
}

/// Returns the step whose claim is in the row of its task, if the claim can be read and its index is free.
fn claimed_step<R: Columns>(row: &R, steps: &[R], untouched: usize) -> Option<StepIndex> {
    let (index, _) = rows::own_claim(row).ok().flatten()?;
    let has_row = |row: &R| row.get::<StepIndex>("idx").is_ok_and(|row| row == index);
    let is_free = index.at() <= steps.len() + untouched && !steps.iter().any(has_row);
    is_free.then_some(index)
}

/// Makes a definition with these steps, by which nothing can be called, and with `untouched` steps that have no rows;
/// `claimed` has none either.
fn stand_in(
    steps: &[impl Columns],
    untouched: usize,
    claimed: Option<StepIndex>,
) -> Result<Definition, StoreError> {
    let rows = steps
        .iter()
        .map(|row| Ok((row.get("idx")?, row.get("name")?, row.get("agent")?)));
    let rows: Vec<(usize, String, String)> = rows.collect::<Result<_, StoreError>>()?;
    let names: HashSet<&str> = rows.iter().map(|(_, name, _)| name.as_str()).collect();
    let without_row = |place: usize| {
        let is_claimed = claimed.is_some_and(|index| index.at() == place);
        let agent = if is_claimed { "none" } else { "" };
        (name_of_untouched(place, &names), agent.to_owned())
    };
    let mut left = untouched + usize::from(claimed.is_some());
    let mut named = Vec::with_capacity(rows.len() + left);
    for (place, name, agent) in &rows {
        while left > 0 && named.len() < *place {
            named.push(without_row(named.len()));
            left -= 1;
        }
        named.push((name.clone(), agent.clone()));
    }
    for _ in 0..left {
        named.push(without_row(named.len()));
    }
    let all: HashSet<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    let undo_of = |name: &str| format!("{name}.undo");
    let forward = named.iter().filter(|(name, _)| !name.contains('.'));
    let steps = forward.enumerate().map(|(at, (name, agent))| {
        // An item is made a step of its own, because its list may be damaged.
        let item = name.contains('[').then(|| format!("item-at-{at}"));
        let mut step = json!({ "name": item.as_ref().unwrap_or(name) });
        match (agent.is_empty(), agent.contains("://")) {
            // The step has a child, which is undone.
            (true, _) if all.contains(undo_of(name).as_str()) => step["agent"] = json!("none"),
            (true, _) => {
                step["wait"] = json!({ "for": "1h" });
                return step;
            }
            (false, true) => step["url"] = json!(agent),
            (false, false) => step["agent"] = json!(agent),
        }
        if all.contains(undo_of(name).as_str()) {
            step["undo"] = json!({ "request": {} });
        }
        step
    });
    let steps: Vec<_> = steps.collect();
    compile(None, &serde_json::Value::from(steps).to_string())
}

/// Returns a name for an untouched step. Its own name is in the definition, which may be damaged.
fn name_of_untouched(place: usize, taken: &HashSet<&str>) -> String {
    let mut name = format!("untouched-at-{place}");
    while taken.contains(name.as_str()) {
        name.push('-');
    }
    name
}

/// A row whose damaged payloads read as null.
struct Salvaged<'r, R> {
    row: &'r R,
    /// The number of untouched steps of the task.
    untouched: usize,
    /// True if the claim in the row of the task is valid.
    has_claim: bool,
}

/// Columns that a cancel neither reads nor writes, except for steps that it ends.
const PAYLOADS: [&str; 2] = ["body", "output"];

impl<R: Columns> Columns for Salvaged<'_, R> {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        match (column, self.row.text(column)) {
            (column, read) if PAYLOADS.contains(&column) => Ok(match read {
                Ok(Some(text)) if is_json(&text) => Some(text),
                Ok(None) => None,
                Ok(Some(_)) | Err(_) => Some("null".to_owned()),
            }),
            ("labels", read) => Ok(Some(match read {
                Ok(Some(text)) if is_json(&text) => text,
                _ => "{}".to_owned(),
            })),
            ("last_fault", Ok(Some(text))) if is_json(&text) => Ok(Some(text)),
            ("last_fault", _) => Ok(None),
            ("reply", Ok(Some(text))) if serde_json::from_str::<SavedReplies>(&text).is_ok() => {
                Ok(Some(text))
            }
            ("reply", _) => Ok(None),
            (_, read) => read,
        }
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        match column {
            "untouched" => Ok(Some(self.untouched as i64)),
            "claim_step" if !self.has_claim => Ok(None),
            _ => self.row.integer(column),
        }
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        self.row.uuid(column)
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        self.row.flag(column)
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}
