//! `provost apply` and `provost diff` of files.

use std::path::PathBuf;

use clap::{Args, builder::ValueHint};
use provost_domain::agent::AgentSpec;
use provost_object::Object;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{
    changes::{ValueChange, differences},
    current::{self, Current},
    source::{self, Definition, DefinitionKind},
};
use crate::{
    confirm::{self, Answer},
    operations::{
        DELETE_AGENT, DELETE_SCHEDULE, PUT_AGENT, PUT_SCHEDULE, PUT_WORKFLOW, VALIDATE_WORKFLOW,
    },
    outcome::{ClientError, Outcome},
    output::{Color, Format, note},
    plain::{counted, plain},
    session::Session,
};

#[derive(Args, Clone, Debug)]
pub struct ApplyOptions {
    /// Files of workflows, agents and schedules as JSON or YAML, or folders of them; - is standard input
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::AnyPath)]
    files: Vec<PathBuf>,

    /// Make new versions of workflows the active ones, also after a roll-back
    #[arg(long)]
    activate: bool,

    /// Also delete the agents and schedules of the server that are in no file
    #[arg(long)]
    prune: bool,

    /// Change nothing, and show the differences
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before more than one definition is changed
    #[arg(short, long)]
    yes: bool,
}

/// A definition in a file, with what the server has.
struct Plan {
    definition: Definition,
    current: Option<Current>,
    changes: Vec<ValueChange>,
    /// True if the version of a workflow is to become the active one.
    activate: bool,
}

impl Plan {
    async fn make(
        session: &Session,
        definition: Definition,
        activate: bool,
    ) -> Result<Self, ClientError> {
        let activate = activate && definition.kind == DefinitionKind::Workflow;
        let current = current::read(session, definition.kind, &definition.name, None).await?;
        let after = current::normal(definition.kind, &definition.body);
        let changes = match &current {
            None => Vec::new(),
            Some(current) => {
                let before = Value::Object(current.body.clone()).to_string();
                differences(&current::normal(definition.kind, &before), &after)
            }
        };
        Ok(Self {
            definition,
            current,
            changes,
            activate,
        })
    }

    fn is_new(&self) -> bool {
        self.current.is_none()
    }

    /// Returns whether the definition differs from that of the server.
    fn is_change(&self) -> bool {
        self.is_new() || !self.changes.is_empty()
    }

    /// Returns the latest version of a workflow and the active one, if they are not the same.
    fn rolled_back(&self) -> Option<(u64, u64)> {
        let current = self.current.as_ref()?;
        let (latest, active) = (current.version?, current.active_version?);
        (latest != active).then_some((latest, active))
    }

    /// Returns whether the workflow is the same, and its version becomes the active one.
    fn is_activation(&self) -> bool {
        self.activate && !self.is_change() && self.rolled_back().is_some()
    }

    fn title(&self) -> String {
        let mut title = self.difference();
        if let Some((latest, active)) = self.rolled_back() {
            title.push_str(&match (self.activate, self.is_change()) {
                (true, true) => "; its new version becomes the active one".to_owned(),
                (true, false) => format!("; version {latest} becomes the active one"),
                (false, _) => {
                    format!("; version {active} is the active one, which --activate changes")
                }
            });
        }
        title
    }

    fn difference(&self) -> String {
        let Definition { kind, name, .. } = &self.definition;
        let name = plain(name);
        match &self.current {
            None => format!("{kind} {name} is new"),
            Some(_) if self.changes.is_empty() => format!("{kind} {name} is the same"),
            Some(Current {
                version: Some(version),
                ..
            }) => format!("{kind} {name} differs from version {version}"),
            Some(_) => format!("{kind} {name} differs"),
        }
    }

    /// Returns the entry of this definition in the output for programs.
    fn json(&self) -> Value {
        let change = match (self.is_new(), self.is_change()) {
            (true, _) => "new",
            (false, true) => "changed",
            (false, false) => "same",
        };
        let differences = self.changes.iter().map(|change| {
            json!({ "place": change.place, "before": change.before, "after": change.after })
        });
        let mut entry = json!({
            "kind": self.definition.kind.as_str(),
            "name": self.definition.name,
            "file": self.definition.document.path.display().to_string(),
            "change": change,
            "differences": differences.collect::<Vec<_>>(),
        });
        if let Some(active) = self
            .current
            .as_ref()
            .and_then(|current| current.active_version)
        {
            entry["active_version"] = json!(active);
            entry["activates"] = json!(self.activate && self.rolled_back().is_some());
        }
        entry
    }

    async fn put(&self, session: &Session) -> Result<(), ClientError> {
        let name = &self.definition.name;
        let request = match self.definition.kind {
            DefinitionKind::Agent => session.api.request(&PUT_AGENT, &[name]),
            DefinitionKind::Schedule => session.api.request(&PUT_SCHEDULE, &[name]),
            DefinitionKind::Workflow if self.activate => session
                .api
                .request(&PUT_WORKFLOW, &[name])
                .query("activate", "true"),
            DefinitionKind::Workflow => session.api.request(&PUT_WORKFLOW, &[name]),
        };
        // The server refuses the change if the definition is not the one that was compared.
        let request = match &self.current {
            None => request.header("if-none-match", "*"),
            Some(current) => match &current.etag {
                Some(etag) => request.header("if-match", etag.clone()),
                None => request,
            },
        };
        let put = request.document(self.definition.body.clone()).send().await;
        put.map(drop)
            .map_err(|error| self.definition.document.locate(error))
    }

    /// Checks what the server would refuse, without a change. `plans` are those of all files: what the server finds fault with may
    /// be right once the others are applied.
    async fn check(&self, session: &Session, plans: &[Plan]) -> Result<(), ClientError> {
        let Definition { name, body, .. } = &self.definition;
        let document = &self.definition.document;
        let request = match self.definition.kind {
            DefinitionKind::Agent => return self.check_agent(),
            DefinitionKind::Workflow => session.api.request(&VALIDATE_WORKFLOW, &[name]),
            DefinitionKind::Schedule => {
                let request = session.api.request(&PUT_SCHEDULE, &[name]);
                request.query("dry_run", "true")
            }
        };
        match request.document(body.clone()).send().await {
            Ok(_) => Ok(()),
            // A role that may read definitions may not have one checked.
            Err(error) if error.problem(403).is_some() => {
                note(format_args!(
                    "{} {} was not checked: the role of the token is too weak for that",
                    self.definition.kind,
                    plain(name)
                ));
                Ok(())
            }
            Err(error) => {
                let uses = self.uses(plans);
                let Some(error) = without_faults_of(error, body, &uses) else {
                    return Ok(());
                };
                let error = document.locate(error);
                match uses.iter().find(|used| !used.is_new()) {
                    Some(used) if error.is_refusal() => {
                        note(format_args!(
                            "{} {} would be refused, unless the change of {} {} makes it valid: {error}",
                            self.definition.kind,
                            plain(name),
                            used.definition.kind,
                            plain(&used.definition.name)
                        ));
                        Ok(())
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// Returns the plans that change what this definition names: agents and workflows of a workflow, the workflow of a schedule.
    fn uses<'p>(&self, plans: &'p [Plan]) -> Vec<&'p Plan> {
        let body: Value = serde_json::from_str(&self.definition.body).unwrap_or_default();
        let of_schedule = self.definition.kind == DefinitionKind::Schedule;
        let changed = plans.iter().filter(|plan| {
            let is_of_kind = match plan.definition.kind {
                DefinitionKind::Agent => !of_schedule,
                DefinitionKind::Workflow => true,
                DefinitionKind::Schedule => false,
            };
            let is_itself = plan.definition.kind == self.definition.kind
                && plan.definition.name == self.definition.name;
            plan.is_change() && is_of_kind && !is_itself
        });
        changed
            .filter(|plan| has_text(&body, &plan.definition.name))
            .collect()
    }

    /// Checks the form of an agent as the server does. The API has no check that changes nothing.
    fn check_agent(&self) -> Result<(), ClientError> {
        let raw: &RawValue = serde_json::from_str(&self.definition.body)
            .map_err(|error| ClientError::usage(error.to_string()))?;
        let Err(faults) = AgentSpec::parse(raw) else {
            return Ok(());
        };
        let faults = faults.iter();
        let document = &self.definition.document;
        let faults = faults.map(|fault| document.note(&fault.pointer, &fault.message));
        Err(ClientError::RefusedFiles(faults.collect()))
    }
}

/// Returns whether a value of a definition is this text.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string == text,
        Value::Array(items) => items.iter().any(|item| has_text(item, text)),
        Value::Object(members) => members.values().any(|member| has_text(member, text)),
        _ => false,
    }
}

/// Returns the error without the faults that the server finds only because an agent or a workflow of the files is new; `None` if
/// it has no other.
fn without_faults_of(error: ClientError, body: &str, uses: &[&Plan]) -> Option<ClientError> {
    let ClientError::Refused(mut problem, server) = error else {
        return Some(error);
    };
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let count = problem.errors.len();
    problem.errors.retain(|fault| {
        let value = body.pointer(&fault.pointer);
        let text = value.and_then(|value| value.as_str().or_else(|| value["name"].as_str()));
        let mut new = uses.iter().filter(|used| used.is_new());
        !new.any(|new| Some(new.definition.name.as_str()) == text)
    });
    let is_of_new_alone = problem.errors.is_empty() && count > 0;
    if problem.errors.len() < count {
        // It has the number of all faults.
        problem.detail.clear();
    }
    (!is_of_new_alone).then_some(ClientError::Refused(problem, server))
}

/// Checks everything that is to change, and returns all that would be refused.
async fn check(session: &Session, plans: &[Plan]) -> Result<(), ClientError> {
    let mut refused = Vec::new();
    for plan in plans.iter().filter(|plan| plan.is_change()) {
        match plan.check(session, plans).await {
            Ok(()) => {}
            Err(error) if error.is_refusal() => refused.push(error),
            Err(error) => return Err(error),
        }
    }
    ClientError::all(refused)
}

/// Says what no check finds out.
fn note_unchecked(plans: &[Plan]) {
    let agents = plans
        .iter()
        .filter(|plan| plan.is_change() && plan.definition.kind == DefinitionKind::Agent);
    for plan in agents {
        note(format_args!(
            "agent {}: its form was checked; its addresses and secrets are not checked before it is applied",
            plain(&plan.definition.name)
        ));
    }
}

async fn plans(
    session: &Session,
    files: &[PathBuf],
    activate: bool,
) -> Result<Vec<Plan>, ClientError> {
    let mut plans = Vec::new();
    for definition in source::read(files)? {
        plans.push(Plan::make(session, definition, activate).await?);
    }
    Ok(plans)
}

/// Shows the differences as the data of the command. `surplus`: what no file has, and is deleted.
fn show(
    session: &Session,
    plans: &[Plan],
    surplus: &[(DefinitionKind, String)],
) -> Result<(), ClientError> {
    let out = &session.out;
    if !out.is_for_people() {
        let deleted = surplus.iter().map(|(kind, name)| {
            json!({ "kind": kind.as_str(), "name": name, "file": null, "change": "deleted", "differences": [] })
        });
        let items = plans.iter().map(Plan::json).chain(deleted);
        let items: Result<Vec<_>, _> = items.map(|item| to_raw_value(&item)).collect();
        let items = items.map_err(|error| ClientError::usage(error.to_string()))?;
        // A definition that stays the same is no change, and its name is not listed.
        let changed = plans
            .iter()
            .map(|plan| plan.is_change() || plan.is_activation());
        let changed: Vec<_> = changed
            .chain(surplus.iter().map(|_| true))
            .zip(&items)
            .filter_map(|(is_changed, item)| is_changed.then_some(item.clone()))
            .collect();
        let page = json!({ "items": &items }).to_string();
        let name = |item: &str| {
            let item: Value = serde_json::from_str(item).unwrap_or_default();
            let text = |member: &str| item[member].as_str().unwrap_or_default().to_owned();
            format!("{}/{}", text("kind"), text("name"))
        };
        return match out.format {
            Format::Name => out.list(&page, &changed, name),
            _ => out.list(&page, &items, name),
        };
    }
    for line in lines(session, plans) {
        out.say(line)?;
    }
    for (kind, name) in surplus {
        out.say(format_args!(
            "{kind} {} is deleted: no file has it",
            plain(name)
        ))?;
    }
    Ok(())
}

fn lines(session: &Session, plans: &[Plan]) -> Vec<String> {
    let mut lines = Vec::new();
    for plan in plans {
        lines.push(session.out.paint(Color::Bold, &plan.title()));
        for (sign, line) in plan.changes.iter().flat_map(ValueChange::lines) {
            let color = if sign == '-' {
                Color::Red
            } else {
                Color::Green
            };
            lines.push(
                session
                    .out
                    .paint(color, &format!("  {sign} {}", plain(&line))),
            );
        }
    }
    lines
}

/// Shows how files differ from the server. Exits with 2 if they do.
pub async fn diff(session: &Session, files: &[PathBuf]) -> Result<Outcome, ClientError> {
    let plans = plans(session, files, false).await?;
    show(session, &plans, &[])?;
    check(session, &plans).await?;
    Ok(match plans.iter().any(Plan::is_change) {
        true => Outcome::Failed,
        false => Outcome::Done,
    })
}

pub async fn apply(session: &Session, options: &ApplyOptions) -> Result<Outcome, ClientError> {
    let plans = plans(session, &options.files, options.activate).await?;
    let surplus = match options.prune {
        true => surplus(session, &plans).await?,
        false => Vec::new(),
    };
    let changes: Vec<_> = plans
        .iter()
        .filter(|plan| plan.is_change() || plan.is_activation())
        .collect();
    if options.dry_run {
        show(session, &plans, &surplus)?;
        check(session, &plans).await?;
        note_unchecked(&plans);
        return Ok(Outcome::Done);
    }
    // Nothing is changed if something would be refused.
    check(session, &plans).await?;
    let count = changes.len() + surplus.len();
    if (count > 1 || !surplus.is_empty()) && !options.yes {
        for line in lines(session, &plans) {
            note(line);
        }
        for (kind, name) in &surplus {
            note(format_args!("{kind} {name} will be deleted"));
        }
        match confirm::ask(
            &session.out,
            &format!(
                "Do you want to change {}?",
                counted(count as u64, "definition")
            ),
        ) {
            Answer::Yes => {}
            Answer::No => {
                note("nothing was changed");
                return Ok(Outcome::Refused);
            }
            Answer::NoTerminal => {
                return Err(ClientError::usage(format!(
                    "{} would be changed, and there is no terminal to ask: give --yes, or look with --dry-run",
                    counted(count as u64, "definition")
                )));
            }
        }
    }
    for (done, plan) in changes.iter().enumerate() {
        if let Err(error) = plan.put(session).await {
            let Definition {
                kind,
                name,
                document,
                ..
            } = &plan.definition;
            note(format_args!(
                "{kind} {} of {} was not changed",
                plain(name),
                document.path.display()
            ));
            if done > 0 {
                let changed = changes[..done].iter().map(|plan| {
                    let Definition { kind, name, .. } = &plan.definition;
                    format!("{kind} {}", plain(name))
                });
                note(format_args!(
                    "{done} of {count} definitions were changed before it: {}",
                    changed.collect::<Vec<_>>().join(", ")
                ));
            }
            return Err(error);
        }
    }
    for (kind, name) in &surplus {
        let operation = match kind {
            DefinitionKind::Schedule => &DELETE_SCHEDULE,
            DefinitionKind::Agent | DefinitionKind::Workflow => &DELETE_AGENT,
        };
        session.api.request(operation, &[name]).send().await?;
    }
    show(session, &plans, &surplus)?;
    Ok(Outcome::Done)
}

/// Returns the agents and schedules of the server that no file has. Schedules come first: they use workflows, which use agents.
async fn surplus(
    session: &Session,
    plans: &[Plan],
) -> Result<Vec<(DefinitionKind, String)>, ClientError> {
    let mut surplus = Vec::new();
    for kind in [DefinitionKind::Schedule, DefinitionKind::Agent] {
        for name in current::names(session, kind).await? {
            let is_in_file = plans
                .iter()
                .any(|plan| plan.definition.kind == kind && plan.definition.name == name);
            if !is_in_file {
                surplus.push((kind, name));
            }
        }
    }
    Ok(surplus)
}
