//! The page of a task: its state in a sentence and why it does not run, the step that failed, the graph, the timeline,
//! all steps, the history, what it belongs to, its input, and what can be done.

use std::collections::BTreeMap;

use askama::Template;
use serde::Deserialize;

use super::{
    actions::{TaskAction, actions},
    excerpt::{self, Excerpt},
    items::ItemsPanel,
    note::{Note, note},
    picture::{self, Picture},
    record::{AttemptList, History, Task, between, millis, span},
    relations::{Relation, relations},
    rows::{StepRow, Waiting, counts, row, waiting},
    step::StepPanel,
    timeline::{self, Timeline},
    words::{self, HistoryLine},
};
use crate::{
    changed::LineRow,
    params::{Params, encoded},
    service::Refusal,
    shell::Shell,
};

/// The most rows of the table of steps, and of the history.
const MOST_STEPS: usize = 200;
const MOST_LINES: usize = 40;

/// The responses of the API that the page is made of. Those that only add to it may be missing.
pub struct TaskSources {
    pub task: Task,
    pub history: Result<History, Refusal>,
    /// The attempts of the step that is shown: all of them in short, and one in full.
    pub attempts: Option<Result<(AttemptList, AttemptList), Refusal>>,
    pub items: Option<Result<super::record::StepPage, Refusal>>,
    pub failures: Option<Causes>,
    pub undo: Option<super::undo::Plan>,
    pub definition: Option<Definition>,
}

/// A page of `GET /v1/failures`.
#[derive(Deserialize)]
pub struct Causes {
    pub items: Vec<Cause>,
}

#[derive(Deserialize)]
pub struct Cause {
    pub fingerprint: String,
    #[serde(default)]
    pub tasks: u64,
    #[serde(default)]
    pub more: bool,
    pub status: Option<u16>,
}

/// The part of the definition of the task's workflow that the page needs.
#[derive(Deserialize)]
pub struct Definition {
    pub steps: Vec<DefinedStep>,
}

#[derive(Deserialize)]
pub struct DefinedStep {
    pub name: String,
    pub pivot: Option<bool>,
    #[serde(rename = "when")]
    pub condition: Option<String>,
}

#[derive(Template)]
#[template(path = "task/page.html")]
pub struct OneTaskPage {
    pub page: Shell,
    pub task: Task,
    pub note: Note,
    pub cause: Option<(String, String)>,
    pub buttons: Vec<TaskAction>,
    pub more: Vec<TaskAction>,
    pub not_now: Vec<(String, String)>,
    pub labels: Vec<(String, String)>,
    pub step: Option<StepPanel>,
    pub items: Option<ItemsPanel>,
    pub waiting: Vec<Waiting>,
    pub counts: String,
    pub picture: Picture,
    pub has_pivot: bool,
    pub all_steps: String,
    pub timeline: Timeline,
    pub rows: Vec<StepRow>,
    pub left_out: usize,
    pub lines: Vec<LineRow>,
    pub history_refusal: Option<String>,
    pub history_more: Option<String>,
    pub entries: usize,
    pub all_entries: Option<String>,
    pub relations: Vec<Relation>,
    pub input: Excerpt,
    pub all_input: String,
    pub output: Option<Excerpt>,
    pub late: Option<String>,
    /// True: the browser may follow the events of the task.
    pub follows: bool,
}

impl LineRow {
    pub fn of(line: &HistoryLine) -> Self {
        Self {
            class: line.class,
            shape: line.shape,
            at: line.entry.at.clone(),
            bold: line.bold.clone(),
            rest: line.rest.clone(),
            seq: line.entry.seq.clone(),
            by: line.entry.by.clone(),
        }
    }
}

/// Returns the name of the step that the page shows: the one in the address, or the one that failed.
pub fn selected<'t>(task: &'t Task, query: &'t Params) -> Option<&'t str> {
    query
        .get("step")
        .or_else(|| task.failed_step().map(|step| step.name.as_str()))
}

impl OneTaskPage {
    pub fn new(page: Shell, query: &Params, sources: TaskSources) -> Self {
        let TaskSources {
            task,
            history,
            attempts,
            items,
            failures,
            undo,
            definition,
        } = sources;
        let now = page.now.as_millisecond();
        let base = page.task(&task.id);
        let link = |step: &str| format!("{base}?step={}#step", encoded(step));
        let shown = selected(&task, query).map(str::to_owned);
        let history_refusal = history.as_ref().err().map(|refusal| refusal.detail.clone());
        let history = history.unwrap_or_default();
        let is_whole = history.next_cursor.is_none() && query.get("history").is_none();
        let pivots: Vec<&str> = definition
            .iter()
            .flat_map(|definition| &definition.steps)
            .filter(|step| step.pivot == Some(true))
            .map(|step| step.name.as_str())
            .collect();
        let nodes = picture::nodes_of_steps(
            &task.steps,
            shown
                .as_deref()
                .map(|name| name.split('[').next().unwrap_or(name)),
            |name| pivots.contains(&name),
            link,
        );
        let focus = nodes.iter().position(|node| node.is_selected);
        let focus = focus.or_else(|| nodes.iter().position(|node| !node.has_begun));
        let draws_all = query.get("graph") == Some("all");
        let picture = picture::picture(
            format!("Steps of {} in order", task.name()),
            nodes,
            focus,
            draws_all,
        );
        let timeline = timeline::timeline(
            &task,
            &history.items,
            is_whole && history_refusal.is_none(),
            page.now,
        );
        let (buttons, more, not_now) = actions(&page, &task, shown.as_deref(), undo.as_ref());
        let cause = failures.and_then(|causes| {
            let status = task.error.as_ref().and_then(|fault| fault.status);
            let cause = causes
                .items
                .into_iter()
                .find(|cause| cause.status == status)?;
            let count = match (cause.tasks, cause.more) {
                (1, false) => String::from("1 task has this cause: look at it"),
                (count, false) => format!(
                    "{} tasks have this cause: fix them together",
                    crate::parts::number(count)
                ),
                (count, true) => format!(
                    "more than {} tasks have this cause: fix them together",
                    crate::parts::number(count)
                ),
            };
            Some((page.cause(&cause.fingerprint), count))
        });
        let step = shown.as_deref().and_then(|name| {
            let step = task.step(name);
            let in_list = items.as_ref().and_then(|items| items.as_ref().ok());
            let step = step.or_else(|| in_list?.items.iter().find(|item| item.name == name));
            let step = step.filter(|step| step.items.is_none())?;
            Some(StepPanel::new(&page, &task, step, attempts, query))
        });
        let items_panel = items.filter(|_| step.is_none()).and_then(|items| {
            let step = task.step(shown.as_deref()?)?;
            Some(ItemsPanel::new(&page, &task, step, items, query))
        });
        let conditions: BTreeMap<&str, &str> = definition
            .iter()
            .flat_map(|definition| &definition.steps)
            .filter_map(|step| Some((step.name.as_str(), step.condition.as_deref()?)))
            .collect();
        let mut rows: Vec<StepRow> = task
            .steps
            .iter()
            .map(|step| row(step, now, &link, shown.as_deref(), &conditions, &pivots))
            .collect();
        rows.sort_by_key(|row| row.state != "error");
        let left_out = rows.len().saturating_sub(MOST_STEPS);
        if query.get("steps") != Some("all") {
            rows.truncate(MOST_STEPS);
        }
        let wants_all = query.get("raw").is_some();
        let workflow = task.workflow.as_deref().zip(task.workflow_version);
        let lines: Vec<HistoryLine> = history
            .items
            .iter()
            .rev()
            .filter(|entry| wants_all || !words::is_detail(entry))
            .map(|entry| words::line(entry, workflow))
            .collect();
        let shown_lines = if wants_all {
            lines.len()
        } else {
            lines.len().min(MOST_LINES)
        };
        let is_cut = shown_lines < history.items.len();
        let waiting = waiting(&task, &link);
        let late = task.at_risk.as_ref().and_then(|risk| {
            let late = between(task.complete_by.as_deref(), risk.predicted_end.as_deref())?;
            Some(span(late))
        });
        Self {
            note: note(&task, now),
            cause,
            buttons,
            more,
            not_now,
            labels: task
                .labels
                .iter()
                .map(|(name, value)| {
                    let label = format!("{name}:{value}");
                    (
                        page.to(&format!(
                            "/tasks{}",
                            Params::from_iter([("label", label.as_str())]).query()
                        )),
                        label,
                    )
                })
                .collect(),
            waiting,
            counts: counts(&task),
            has_pivot: !pivots.is_empty(),
            all_steps: format!("{base}{}", query.with("graph", "all").query()),
            rows,
            left_out,
            lines: lines[..shown_lines].iter().map(LineRow::of).collect(),
            history_refusal,
            history_more: history
                .next_cursor
                .as_deref()
                .map(|cursor| format!("{base}{}", query.with("history", cursor).query())),
            entries: history.items.len(),
            all_entries: is_cut.then(|| format!("{base}{}", query.with("raw", "1").query())),
            relations: relations(&page, &task, &history),
            input: excerpt::excerpt(task.input.get(), query.get("input") == Some("all")),
            all_input: format!("{base}{}", query.with("input", "all").query()),
            output: task
                .output
                .as_ref()
                .map(|output| excerpt::excerpt(output.get(), query.get("input") == Some("all"))),
            late,
            follows: !task.has_ended(),
            step,
            items: items_panel,
            picture,
            timeline,
            task,
            page,
        }
    }

    pub fn workflow_link(&self) -> Option<(String, String)> {
        let name = self.task.workflow.as_deref()?;
        let version = self
            .task
            .workflow_version
            .map_or_else(String::new, |version| format!("?version={version}"));
        Some((
            format!("{}{version}", self.page.workflow(name)),
            name.to_owned(),
        ))
    }

    /// Returns the time that is left, such as `in 28 min`.
    pub fn left(&self) -> Option<String> {
        if self.task.has_ended() {
            return None;
        }
        let left = millis(self.task.complete_by.as_deref()?)? - self.page.now.as_millisecond();
        Some(if left >= 0 {
            format!("in {}", span(left))
        } else {
            format!("{} ago", span(-left))
        })
    }

    pub fn step_link(&self, step: &str) -> String {
        format!(
            "{}?step={}#step",
            self.page.task(&self.task.id),
            encoded(step)
        )
    }

    /// Returns the shape of a state of items.
    pub fn shape(&self, state: &str) -> &'static str {
        picture::look(state).1
    }

    /// Returns the address that the browser follows for changes.
    pub fn events(&self) -> String {
        // The entries of a change are numbered from 0, and no change has as many as this.
        format!(
            "{}/events?after={}.999999",
            self.page.task(&self.task.id),
            self.task.version
        )
    }
}
