//! Workflows: the list, and the page of one with its versions, the graph of a version, the difference between two, and
//! a dry run of a submission.

use std::collections::BTreeMap;

use askama::Template;
use axum::{extract::Path, response::Response};
use http::HeaderMap;
use serde::Deserialize;

use crate::{
    json::{self, Line},
    params::{Params, encoded},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    task::{
        picture::{self, Node, Picture},
        record::Raw,
    },
    visit::Visit,
    workflows::{
        submission::submission,
        usage::{Usage, VersionUsage},
    },
};

#[derive(Deserialize)]
pub struct WorkflowPage {
    pub items: Vec<Summary>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Summary {
    pub name: String,
    pub version: u32,
    pub active_version: u32,
    pub description: Option<String>,
    pub complete_within: Option<String>,
    pub created_at: String,
}

/// One version of a workflow. Its steps, and all other parts of its definition, stay the JSON text that came.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, Raw>")]
pub struct Workflow {
    pub head: WorkflowHead,
    /// The parts of the definition besides its steps, such as `policies`, by their names.
    pub parts: BTreeMap<String, Raw>,
}

impl TryFrom<BTreeMap<String, Raw>> for Workflow {
    type Error = serde_json::Error;

    fn try_from(mut parts: BTreeMap<String, Raw>) -> Result<Self, serde_json::Error> {
        let head = serde_json::from_str(&serde_json::to_string(&parts)?)?;
        let of_version = [
            "name",
            "version",
            "active_version",
            "created_at",
            "activations",
            "steps",
        ];
        parts.retain(|name, value| !of_version.contains(&name.as_str()) && value.get() != "null");
        Ok(Self { head, parts })
    }
}

impl std::ops::Deref for Workflow {
    type Target = WorkflowHead;

    fn deref(&self) -> &WorkflowHead {
        &self.head
    }
}

#[derive(Deserialize)]
pub struct WorkflowHead {
    pub name: String,
    pub version: u32,
    pub active_version: u32,
    pub description: Option<String>,
    pub complete_within: Option<String>,
    pub created_at: String,
    #[serde(default)]
    pub steps: Vec<Raw>,
    #[serde(default)]
    pub activations: Vec<Activation>,
}

#[derive(Deserialize)]
pub struct Activation {
    pub version: u32,
    pub from_version: u32,
    pub at: String,
    pub by: String,
    pub reason: Option<String>,
}

/// The part of a step's definition that the graph shows.
#[derive(Deserialize)]
struct Defined {
    name: String,
    agent: Option<String>,
    url: Option<String>,
    task: Option<DefinedTask>,
    wait: Option<serde::de::IgnoredAny>,
    signal: Option<serde::de::IgnoredAny>,
    for_each: Option<serde::de::IgnoredAny>,
    after: Option<Vec<String>>,
    #[serde(rename = "when")]
    condition: Option<String>,
    complete_within: Option<String>,
    #[serde(default)]
    pivot: Option<bool>,
}

#[derive(Deserialize)]
struct DefinedTask {
    workflow: String,
}

/// The response of a dry run.
#[derive(Deserialize)]
pub struct Report {
    pub steps: Vec<PlannedStep>,
    #[serde(default)]
    pub critical_path: Vec<String>,
    pub worst_case: String,
    pub complete_within: Option<String>,
    pub fits: bool,
    #[serde(default)]
    pub undo: Vec<serde::de::IgnoredAny>,
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

#[derive(Deserialize)]
pub struct PlannedStep {
    pub name: String,
    pub runs: String,
    pub attempts: u32,
    pub worst_case: Option<String>,
}

#[derive(Deserialize)]
pub struct Warning {
    pub code: String,
    pub step: Option<String>,
    pub message: String,
}

#[derive(Template)]
#[template(path = "workflows.html")]
struct ListPage {
    page: Shell,
    workflows: Vec<Summary>,
    next: Option<String>,
}

impl ListPage {
    fn tasks(&self, name: &str) -> String {
        self.page.to(&format!("/tasks?workflow={}", encoded(name)))
    }
}

pub async fn list(visit: Visit) -> Response {
    let cursor = visit
        .query
        .get("after")
        .map_or_else(String::new, |cursor| format!("&cursor={}", encoded(cursor)));
    let read = visit
        .get::<WorkflowPage>(&format!("/v1/workflows?limit=50{cursor}"))
        .await;
    visit.show(read.map(|found| ListPage {
        page: visit.shell(Section::Workflows, "Workflows"),
        next: next_page(&Params::default(), found.next_cursor.as_deref()),
        workflows: found.items,
    }))
}

/// A step, or another part of the definition, that differs between two versions.
pub struct PartDifference {
    pub name: String,
    pub lines: Vec<Line>,
}

pub struct VersionsDiffer {
    pub from: u32,
    pub to: u32,
    pub steps: Vec<PartDifference>,
    /// The parts besides the steps, such as `policies`.
    pub parts: Vec<PartDifference>,
    pub same: usize,
}

/// The responses of the API that the page of a workflow is made of.
pub struct WorkflowSources {
    pub shown: Workflow,
    pub versions: WorkflowPage,
    pub usage: Usage,
    pub compared: Option<Result<(Workflow, Workflow), Refusal>>,
    pub report: Option<Result<Report, Refusal>>,
}

#[derive(Template)]
#[template(path = "workflow.html")]
pub struct OnePage {
    pub page: Shell,
    pub shown: Workflow,
    pub versions: Vec<Summary>,
    pub usage: Usage,
    pub older: Option<String>,
    pub picture: Picture,
    pub has_pivot: bool,
    pub difference: Option<VersionsDiffer>,
    pub diff_refusal: Option<String>,
    pub report: Option<Report>,
    pub report_refusal: Option<Refusal>,
    pub input: String,
    pub definition: Option<String>,
    pub step: Option<(String, String)>,
}

pub async fn show(visit: Visit, Path(name): Path<String>) -> Response {
    visit.show(read(&visit, &name).await)
}

async fn read(visit: &Visit, name: &str) -> Result<OnePage, Refusal> {
    let base = format!("/v1/workflows/{}", encoded(name));
    let query = &visit.query;
    let cursor = query
        .get("after")
        .map_or_else(String::new, |cursor| format!("&cursor={}", encoded(cursor)));
    let versions: WorkflowPage = visit
        .get(&format!("{base}/versions?limit=20{cursor}"))
        .await?;
    let active = versions
        .items
        .first()
        .map_or(1, |version| version.active_version);
    let number = |name: &str, text: &str| {
        let is = "the number of a version, such as 2; a diff is of two, as 1..2";
        text.parse::<u32>()
            .map_err(|_| Refusal::of_value(name, text, is))
    };
    let version = match query.get("version") {
        Some(text) => number("version", text)?,
        None => active,
    };
    let shown: Workflow = visit.get(&format!("{base}/versions/{version}")).await?;
    let compared = match query.get("diff") {
        Some(range) => {
            let (from, to) = range.split_once("..").unwrap_or((range, ""));
            let (from, to) = (number("diff", from)?, number("diff", to)?);
            Some(two(visit, &base, from, to).await)
        }
        None => None,
    };
    let report = match query.get("input") {
        Some(input) => Some(dry_run(visit, name, version, input).await),
        None => None,
    };
    let shell = visit.shell(Section::Workflows, name);
    Ok(OnePage::new(
        shell,
        query,
        WorkflowSources {
            shown,
            versions,
            usage: visit.get(&format!("{base}/usage")).await?,
            compared,
            report,
        },
    ))
}

async fn two(
    visit: &Visit,
    base: &str,
    from: u32,
    to: u32,
) -> Result<(Workflow, Workflow), Refusal> {
    let before = visit.get(&format!("{base}/versions/{from}")).await?;
    Ok((before, visit.get(&format!("{base}/versions/{to}")).await?))
}

async fn dry_run(visit: &Visit, name: &str, version: u32, input: &str) -> Result<Report, Refusal> {
    let body = submission(name, version, input)?;
    visit
        .post("/v1/tasks?dry_run=true", HeaderMap::new(), &body)
        .await
}

impl OnePage {
    pub fn new(page: Shell, query: &Params, sources: WorkflowSources) -> Self {
        let WorkflowSources {
            shown,
            versions,
            usage,
            compared,
            report,
        } = sources;
        let base = page.workflow(&shown.name);
        let steps: Vec<Option<Defined>> = shown
            .steps
            .iter()
            .map(|step| serde_json::from_str(step.get()).ok())
            .collect();
        let steps: Vec<Defined> = steps.into_iter().flatten().collect();
        let (difference, diff_refusal) = match compared {
            Some(Ok((from, to))) => (Some(differ(&from, &to)), None),
            Some(Err(refusal)) => (None, Some(refusal.detail)),
            None => (None, None),
        };
        let changed: Vec<&str> = difference
            .iter()
            .flat_map(|difference| &difference.steps)
            .map(|step| step.name.as_str())
            .collect();
        let link = |step: &str| {
            format!(
                "{base}?version={}&step={}#definition",
                shown.version,
                encoded(step)
            )
        };
        let nodes = nodes(&steps, &changed, query.get("step"), link);
        let focus = nodes.iter().position(|node| node.is_selected);
        let label = format!(
            "Steps of workflow {}, version {}",
            shown.name, shown.version
        );
        let step = query.get("step").and_then(|name| {
            let at = steps.iter().position(|step| step.name == name)?;
            Some((name.to_owned(), json::pretty(shown.steps.get(at)?.get())))
        });
        let (report, report_refusal) = match report {
            Some(Ok(report)) => (Some(report), None),
            Some(Err(refusal)) => (None, Some(refusal)),
            None => (None, None),
        };
        Self {
            picture: picture::picture(label, nodes, focus, query.get("graph") == Some("all")),
            has_pivot: steps.iter().any(|step| step.pivot == Some(true)),
            older: versions
                .next_cursor
                .as_deref()
                .map(|cursor| format!("{base}{}#versions", query.with("after", cursor).query())),
            versions: versions.items,
            usage,
            difference,
            diff_refusal,
            report,
            report_refusal,
            input: query.get("input").unwrap_or("{}").to_owned(),
            definition: query.get("raw").map(|_| {
                let steps: Vec<&str> = shown.steps.iter().map(|step| step.get()).collect();
                let steps = format!("[{}]", steps.join(","));
                let parts = shown
                    .parts
                    .iter()
                    .map(|(name, part)| (name.as_str(), part.get()));
                let parts = parts.chain([("steps", steps.as_str())]);
                let members: Vec<_> = parts
                    .map(|(name, part)| format!("{}:{part}", serde_json::Value::from(name)))
                    .collect();
                json::pretty(&format!("{{{}}}", members.join(",")))
            }),
            step,
            shown,
            page,
        }
    }

    pub fn link(&self, query: &str) -> String {
        format!("{}{query}", self.page.workflow(&self.shown.name))
    }

    /// Returns the address of the page that makes a version the active one, for those who may.
    pub fn activate(&self, version: &u32) -> Option<String> {
        let may = self.page.person.role == crate::service::Role::Admin
            && *version != self.shown.active_version;
        may.then(|| {
            self.page.to(&format!(
                "/workflows/{}/activate?version={version}",
                encoded(&self.shown.name)
            ))
        })
    }

    /// Returns the version before the active one, with a sentence, if the active one does worse.
    pub fn worse(&self) -> Option<(u32, String)> {
        self.usage.worse(self.shown.active_version)
    }

    /// Returns the numbers of tasks and of tasks in error of a version, as texts.
    pub fn used(&self, version: &u32) -> [String; 2] {
        let usage = self.usage.of(*version);
        let shown = |count: fn(&VersionUsage) -> u64| self.page.number(usage.map_or(0, count));
        [shown(|usage| usage.tasks), shown(|usage| usage.in_error)]
    }

    pub fn tasks(&self, filter: &str) -> String {
        self.page.to(&format!(
            "/tasks?workflow={}{filter}",
            encoded(&self.shown.name)
        ))
    }

    pub fn range(&self, version: &u32) -> String {
        self.link(&format!(
            "?version={version}&diff={}..{version}#diff",
            version.saturating_sub(1)
        ))
    }
}

fn nodes(
    steps: &[Defined],
    changed: &[&str],
    selected: Option<&str>,
    link: impl Fn(&str) -> String,
) -> Vec<Node> {
    let node = |(at, step): (usize, &Defined)| {
        let who = step.agent.clone().or_else(|| step.url.clone());
        let who = who.or_else(|| {
            step.task
                .as_ref()
                .map(|task| format!("task · {}", task.workflow))
        });
        let who = who.or_else(|| step.wait.is_some().then(|| String::from("wait")));
        let who = who
            .or_else(|| step.signal.is_some().then(|| String::from("signal")))
            .unwrap_or_default();
        let pivot = step.pivot == Some(true);
        let more = match step {
            _ if pivot => Some("pivot"),
            Defined {
                for_each: Some(_), ..
            } => Some("for each"),
            Defined {
                condition: Some(_), ..
            } => Some("when"),
            _ => step.complete_within.as_deref(),
        };
        let words = more.map_or_else(|| who.clone(), |more| format!("{who} · {more}"));
        // A step without `after` follows the one before it in the list.
        let after = match &step.after {
            Some(after) => after
                .iter()
                .filter_map(|name| steps.iter().position(|other| other.name == *name))
                .collect(),
            None => at.checked_sub(1).into_iter().collect(),
        };
        let is_changed = changed.contains(&step.name.as_str());
        Node {
            title: format!(
                "{}: {words}{}",
                step.name,
                if is_changed { "; changed" } else { "" }
            ),
            name: step.name.clone(),
            class: "def",
            shape: None,
            words,
            link: link(&step.name),
            is_selected: is_changed || selected == Some(&step.name),
            is_pivot: pivot,
            has_begun: true,
            bar: Vec::new(),
            after,
        }
    };
    steps.iter().enumerate().map(node).collect()
}

/// Compares two versions: their steps by their names, and every other part.
fn differ(from: &Workflow, to: &Workflow) -> VersionsDiffer {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let texts = |workflow: &Workflow| -> Vec<(String, String)> {
        let named = workflow.steps.iter().filter_map(|step| {
            let Named { name } = serde_json::from_str(step.get()).ok()?;
            Some((name, json::pretty(step.get())))
        });
        named.collect()
    };
    let (before, after) = (texts(from), texts(to));
    let mut names: Vec<&String> = after.iter().map(|(name, _)| name).collect();
    names.extend(
        before
            .iter()
            .map(|(name, _)| name)
            .filter(|name| after.iter().all(|(other, _)| other != *name)),
    );
    let text = |texts: &[(String, String)], name: &str| {
        texts
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, text)| text.clone())
            .unwrap_or_default()
    };
    let mut steps = Vec::new();
    let mut same = 0;
    for name in names {
        let (old, new) = (text(&before, name), text(&after, name));
        if old == new {
            same += 1;
        } else {
            steps.push(PartDifference::new(name, &old, &new));
        }
    }
    let part = |workflow: &Workflow, name: &str| {
        let part = workflow.parts.get(name);
        part.map_or_else(String::new, |part| json::pretty(part.get()))
    };
    let mut names: Vec<&String> = from.parts.keys().chain(to.parts.keys()).collect();
    names.sort();
    names.dedup();
    let parts = names.into_iter().filter_map(|name| {
        let (old, new) = (part(from, name), part(to, name));
        (old != new).then(|| PartDifference::new(name, &old, &new))
    });
    VersionsDiffer {
        from: from.version,
        to: to.version,
        parts: parts.collect(),
        steps,
        same,
    }
}

impl PartDifference {
    fn new(name: &str, old: &str, new: &str) -> Self {
        Self {
            name: name.to_owned(),
            lines: json::only_changes(json::difference(old, new)),
        }
    }
}
