//! `provost apply` and `provost diff` of files.

use std::path::PathBuf;

use clap::{Args, builder::ValueHint};
use serde_json::{Value, json};

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
    output::{Color, note},
    plain::plain,
    session::Session,
};

#[derive(Args, Clone, Debug)]
pub struct ApplyOptions {
    /// Files of workflows, agents and schedules as JSON or YAML, or folders of them
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
}

impl Plan {
    async fn make(session: &Session, definition: Definition) -> Result<Self, ClientError> {
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
        })
    }

    fn is_new(&self) -> bool {
        self.current.is_none()
    }

    fn is_change(&self) -> bool {
        self.is_new() || !self.changes.is_empty()
    }

    fn title(&self) -> String {
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
        json!({
            "kind": self.definition.kind.as_str(),
            "name": self.definition.name,
            "file": self.definition.document.path.display().to_string(),
            "change": change,
            "differences": differences.collect::<Vec<_>>(),
        })
    }

    async fn put(&self, session: &Session, activate: bool) -> Result<(), ClientError> {
        let name = &self.definition.name;
        let request = match self.definition.kind {
            DefinitionKind::Agent => session.api.request(&PUT_AGENT, &[name]),
            DefinitionKind::Schedule => session.api.request(&PUT_SCHEDULE, &[name]),
            DefinitionKind::Workflow if activate => session
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

    /// Has the server check what it would refuse. Only workflows can be checked without being changed.
    async fn check(&self, session: &Session) -> Result<(), ClientError> {
        if self.definition.kind != DefinitionKind::Workflow {
            return Ok(());
        }
        let request = session
            .api
            .request(&VALIDATE_WORKFLOW, &[&self.definition.name]);
        let checked = request.document(self.definition.body.clone()).send().await;
        checked
            .map(drop)
            .map_err(|error| self.definition.document.locate(error))
    }
}

async fn plans(session: &Session, files: &[PathBuf]) -> Result<Vec<Plan>, ClientError> {
    let mut plans = Vec::new();
    for definition in source::read(files)? {
        plans.push(Plan::make(session, definition).await?);
    }
    Ok(plans)
}

/// Shows the differences as the data of the command.
fn show(session: &Session, plans: &[Plan]) -> Result<(), ClientError> {
    let out = &session.out;
    if !out.is_for_people() {
        let items: Vec<_> = plans.iter().map(Plan::json).collect();
        let changed = plans.iter().filter(|plan| plan.is_change());
        let names: Vec<_> = changed
            .map(|plan| format!("{}/{}", plan.definition.kind, plan.definition.name))
            .collect();
        let names = names.iter().map(String::as_str);
        return out.object_of(&json!({ "items": items }).to_string(), names);
    }
    for line in lines(session, plans) {
        out.say(line)?;
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
    let plans = plans(session, files).await?;
    show(session, &plans)?;
    Ok(match plans.iter().any(Plan::is_change) {
        true => Outcome::Failed,
        false => Outcome::Done,
    })
}

pub async fn apply(session: &Session, options: &ApplyOptions) -> Result<Outcome, ClientError> {
    let plans = plans(session, &options.files).await?;
    let surplus = match options.prune {
        true => surplus(session, &plans).await?,
        false => Vec::new(),
    };
    let changes: Vec<_> = plans
        .iter()
        .filter(|plan| plan.is_change() || is_activation(plan, options))
        .collect();
    if options.dry_run {
        for plan in &changes {
            // A workflow whose agent is new cannot be checked before the agent is there.
            if plans
                .iter()
                .all(|plan| plan.definition.kind != DefinitionKind::Agent || !plan.is_new())
            {
                plan.check(session).await?;
            }
        }
        show(session, &plans)?;
        for (kind, name) in &surplus {
            note(format_args!("{kind} {name} would be deleted"));
        }
        return Ok(Outcome::Done);
    }
    let count = changes.len() + surplus.len();
    if (count > 1 || !surplus.is_empty()) && !options.yes {
        for line in lines(session, &plans) {
            note(line);
        }
        for (kind, name) in &surplus {
            note(format_args!("{kind} {name} will be deleted"));
        }
        match confirm::ask(&session.out, &format!("Change {count} definitions?")) {
            Answer::Yes => {}
            Answer::No => {
                note("nothing was changed");
                return Ok(Outcome::Refused);
            }
            Answer::NoTerminal => {
                return Err(ClientError::usage(format!(
                    "{count} definitions would be changed, and there is no terminal to ask: give --yes, or look with --dry-run"
                )));
            }
        }
    }
    for (done, plan) in changes.iter().enumerate() {
        if let Err(error) = plan.put(session, options.activate).await {
            if done > 0 {
                note(format_args!(
                    "{done} of {count} definitions were changed before this one was refused"
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
        note(format_args!("{kind} {name} was deleted"));
    }
    show(session, &plans)?;
    Ok(Outcome::Done)
}

/// Returns whether a workflow must be sent although it is the same: its version may not be the active one.
fn is_activation(plan: &Plan, options: &ApplyOptions) -> bool {
    options.activate && plan.definition.kind == DefinitionKind::Workflow
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
