//! `provost get` and `provost export`: definitions of a server as files.

use std::{fs, path::PathBuf};

use clap::{Args, builder::ValueHint};
use clap_complete::ArgValueCompleter;
use serde_json::{Value, json, value::to_raw_value};

use super::{current, source::DefinitionKind};
use crate::{
    completion,
    outcome::{ClientError, Outcome},
    output::{Format, note, yaml_of_json},
    plain::plain,
    session::Session,
    shapes::WorkflowSummaryJson,
};

#[derive(Args, Clone, Debug)]
pub struct GetOptions {
    /// The kind of the definition
    #[arg(value_name = "KIND", value_enum)]
    kind: DefinitionKind,

    /// The name; without it all names are listed
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::definitions))]
    name: Option<String>,

    /// The version of a workflow [default: the latest]
    #[arg(long, value_name = "VERSION", add = ArgValueCompleter::new(completion::versions))]
    version: Option<u32>,
}

#[derive(Args, Clone, Debug)]
pub struct ExportOptions {
    /// The folder, which gets the folders agents, workflows and schedules
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folder: PathBuf,

    /// Only definitions of this kind; may be repeated
    #[arg(long, value_name = "KIND", value_enum)]
    kind: Vec<DefinitionKind>,

    /// Write YAML
    #[arg(long)]
    yaml: bool,

    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

/// Prints a definition as its file would be.
pub async fn get(session: &Session, options: &GetOptions) -> Result<Outcome, ClientError> {
    let out = &session.out;
    if options.version.is_some() && options.kind != DefinitionKind::Workflow {
        return Err(ClientError::usage(format!(
            "--version is of a workflow: {} has none",
            match options.kind {
                DefinitionKind::Schedule => "a schedule",
                _ => "an agent",
            }
        )));
    }
    let Some(name) = &options.name else {
        let listing = current::list(session, options.kind).await?;
        let name = |item: &str| {
            let named: Result<WorkflowSummaryJson, _> = serde_json::from_str(item);
            named.map(|named| named.name).unwrap_or_default()
        };
        match out.is_for_people() {
            true => listing
                .items
                .iter()
                .try_for_each(|item| out.say(plain(&name(item.get()))))?,
            false => out.list(&listing.page, &listing.items, name)?,
        }
        return Ok(Outcome::Done);
    };
    let found = current::read(session, options.kind, name, options.version).await?;
    let Some(found) = found else {
        return Err(ClientError::NotFound(match options.version {
            Some(version) => format!(
                "{} {name} has no version {version}: provost workflow history {name} shows those that it has",
                options.kind
            ),
            None => format!("{} {name} does not exist", options.kind),
        }));
    };
    let body = Value::Object(found.body);
    match out.format {
        Format::Table => out.say(serde_json::to_string_pretty(&body).unwrap_or_default())?,
        _ => out.object(&body.to_string(), name)?,
    }
    Ok(Outcome::Done)
}

/// Writes the definitions of a server to a folder, from which `provost apply` reads them.
pub async fn export(session: &Session, options: &ExportOptions) -> Result<Outcome, ClientError> {
    let kinds = match options.kind.is_empty() {
        true => DefinitionKind::ALL.to_vec(),
        false => options.kind.clone(),
    };
    let mut files = Vec::new();
    for kind in kinds {
        let folder = options.folder.join(kind.folder());
        for name in current::names(session, kind).await? {
            let Some(found) = current::read(session, kind, &name, None).await? else {
                continue;
            };
            let body = Value::Object(found.body);
            if body.to_string().contains("\"***\"") {
                note(format_args!(
                    "{kind} {name} has values that only the role admin sees: they are ***"
                ));
            }
            let (text, extension) = match options.yaml {
                true => (yaml_of_json(&body.to_string()), "yaml"),
                false => (format!("{body:#}\n"), "json"),
            };
            // A name may have a slash, which would lead to another folder.
            let file = folder.join(format!("{}.{extension}", name.replace('/', "_")));
            let failed = |error| ClientError::file(&file, error);
            if file.exists() && !options.force && fs::read_to_string(&file).map_err(failed)? != text
            {
                return Err(ClientError::usage(format!(
                    "{} exists and differs: give --force to replace it",
                    file.display()
                )));
            }
            let other = file.with_extension(if options.yaml { "json" } else { "yaml" });
            if other.exists() && !options.force {
                return Err(ClientError::usage(format!(
                    "{} has the same {kind} in the other form, and both cannot be applied: give --force to replace it",
                    other.display()
                )));
            }
            if other.exists() {
                fs::remove_file(&other).map_err(|error| ClientError::file(&other, error))?;
            }
            let made = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, text));
            made.map_err(|error| ClientError::unwritable(&file, &error))?;
            if session.out.is_for_people() {
                session.out.say(file.display())?;
            }
            let file =
                json!({ "kind": kind.as_str(), "name": name, "file": file.to_string_lossy() });
            files.extend(to_raw_value(&file).ok());
        }
    }
    if !session.out.is_for_people() {
        let path = |item: &str| {
            let item: Value = serde_json::from_str(item).unwrap_or_default();
            item["file"].as_str().unwrap_or_default().to_owned()
        };
        let page = json!({ "items": &files }).to_string();
        session.out.list(&page, &files, path)?;
    }
    Ok(Outcome::Done)
}
