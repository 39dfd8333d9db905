//! A step whose work is a child: which workflow or which steps run, with which input.

use std::sync::Arc;

use super::{
    Definition, KnownAgents,
    inline::{self, Nesting},
    json_template,
};
use crate::{
    template::{JsonTemplate, Origin, Reads, RenderError, Scope, Template, payload::Payload},
    values::{
        fields::{FieldFault, Fields, text},
        ids::WorkflowName,
        labels::{LONGEST_NAME, MOST_LABELS},
        time::Span,
    },
};

/// The fields from which the child of a step is made.
#[derive(Debug)]
pub struct ChildRule {
    pub source: ChildSource,
    /// The input of the child. `None`: null.
    input: Option<JsonTemplate>,
    key: Option<Template>,
    labels: Vec<(String, Template)>,
    /// The time limit of the child. `None`: that of its workflow, if the workflow has one.
    pub complete_within: Option<Span>,
    pub on_error: OnChildError,
    /// False for a step that is done as soon as its child is made.
    pub is_awaited: bool,
    /// Decides about a child that nobody waits for.
    on_undo: OnParentUndo,
}

/// The steps of a child, or the workflow that has them.
#[derive(Clone, Debug)]
pub enum ChildSource {
    Workflow {
        name: WorkflowName,
        /// `None`: the latest version when the child is made.
        version: Option<u32>,
    },
    /// The steps stand in the step of the parent.
    Steps(Arc<Definition>),
}

impl ChildSource {
    pub fn workflow(&self) -> Option<&WorkflowName> {
        match self {
            ChildSource::Workflow { name, .. } => Some(name),
            ChildSource::Steps(_) => None,
        }
    }

    pub fn definition(&self) -> Option<&Arc<Definition>> {
        match self {
            ChildSource::Workflow { .. } => None,
            ChildSource::Steps(definition) => Some(definition),
        }
    }

    /// Returns what it does in a word or two.
    pub fn in_words(&self) -> String {
        match self {
            ChildSource::Workflow { name, .. } => name.to_string(),
            ChildSource::Steps(definition) => match definition.listed().count() {
                1 => "of 1 step".to_owned(),
                count => format!("of {count} steps"),
            },
        }
    }
}

/// Decides about a child that nobody waits for, when its parent is undone or cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnParentUndo {
    /// The child goes on, and what it has done remains.
    Leave,
    /// The child is undone or cancelled as well.
    Undo,
}

impl OnParentUndo {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Decides about a step whose child needs an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnChildError {
    /// The step waits for the operator.
    Wait,
    /// The step has the child undone, and fails once that is done.
    Undo,
}

impl OnChildError {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The rendered fields of the step with which the child is submitted.
#[derive(Clone, PartialEq, Debug)]
pub struct ChildFields {
    pub input: Payload,
    pub key: Option<String>,
    pub labels: Vec<(String, String)>,
}

impl ChildRule {
    /// Returns whether the child is undone and cancelled with its parent.
    pub fn ends_with_parent(&self) -> bool {
        self.is_awaited || self.on_undo == OnParentUndo::Undo
    }

    pub fn render(&self, scope: &Scope<'_>) -> Result<ChildFields, RenderError> {
        let named = |name: &str, value: String| match value.chars().count() > LONGEST_NAME {
            true => Err(RenderError::new(
                name,
                "its value is longer than 255 characters",
            )),
            false => Ok(value),
        };
        let input = match &self.input {
            // A JSON template always renders to JSON.
            Some(input) => Payload::parse(input.render(scope)?).unwrap_or_else(Payload::null),
            None => Payload::null(),
        };
        let key = self.key.as_ref().map(|key| key.render_text(scope));
        let key = key.transpose()?.map(|key| named("task.key", key));
        let labels = self.labels.iter().map(|(label, value)| {
            let value = named(&format!("task.labels.{label}"), value.render_text(scope)?)?;
            Ok((label.clone(), value))
        });
        Ok(ChildFields {
            input,
            key: key.transpose()?,
            labels: labels.collect::<Result<_, RenderError>>()?,
        })
    }

    /// Returns the reads of each template, with its path in the step, written with dots.
    pub fn expressions(&self) -> Vec<(String, Reads)> {
        let mut all = Vec::new();
        if let Some(input) = &self.input {
            all.extend(input.reads().map(|(pointer, reads)| {
                (format!("task.input{}", pointer.replace('/', ".")), reads)
            }));
        }
        let key = self.key.iter().map(|key| ("task.key".to_owned(), key));
        let labels = self.labels.iter();
        let labels = labels.map(|(label, value)| (format!("task.labels.{label}"), value));
        for (pointer, template) in key.chain(labels) {
            if !template.is_literal() {
                all.push((pointer, template.reads()));
            }
        }
        all
    }
}

/// Reads the field `task` of a step, and collects the names that its expressions read.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
    known: &dyn KnownAgents,
    nesting: Nesting,
) -> Option<ChildRule> {
    let complete_within = match step.peek("task").is_some() {
        true => step.span("complete_within", Span::from_millis(100)..=Span::LONGEST),
        false => None,
    };
    let mut fields = step.object("task")?;
    let (has_name, has_steps) = (fields.has("workflow"), fields.has("steps"));
    match (has_name, has_steps) {
        (false, false) => fields.missing("workflow", "name a workflow, or give `steps`"),
        (true, true) => fields.fault("steps", "give either `workflow` or `steps`, not both"),
        _ => {}
    }
    let workflow = workflow(&mut fields);
    let version = fields.integer("version", 1..=i64::from(u32::MAX));
    if has_steps && version.is_some() {
        fields.fault("version", "belongs to a workflow: remove it");
    }
    let steps = inline::read(&mut fields, origin, known, nesting);
    let is_awaited = fields.boolean("await").unwrap_or(true);
    let on_undo = fields.choice("on_undo", OnParentUndo::ALL);
    if is_awaited && on_undo.is_some() {
        fields.fault(
            "on_undo",
            "belongs to a task with `\"await\": false`: one that is awaited is undone with its parent",
        );
    }
    let input = json_template::read(&mut fields, "input", origin, reads);
    let key = fields.string("key", usize::MAX).and_then(|source| {
        let pointer = fields.pointer("key");
        let parsed = template(&source, pointer, origin, reads);
        parsed.map_err(|fault| fields.extend([fault])).ok()
    });
    let labels = labels(&mut fields, origin, reads);
    let on_error = fields.choice("on_error", OnChildError::ALL);
    if !is_awaited && on_error == Some(OnChildError::Undo) {
        fields.fault(
            "on_error",
            "belongs to a task that is awaited: nobody looks at the errors of this one; remove it, or `await`",
        );
    }
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    let version = version.and_then(|version| u32::try_from(version).ok());
    let named = workflow.map(|name| ChildSource::Workflow { name, version });
    Some(ChildRule {
        source: steps.map(ChildSource::Steps).or(named)?,
        input,
        key,
        labels,
        complete_within,
        on_error: on_error.unwrap_or(OnChildError::Wait),
        is_awaited,
        on_undo: on_undo.unwrap_or(OnParentUndo::Leave),
    })
}

fn workflow(fields: &mut Fields<'_>) -> Option<WorkflowName> {
    let name = fields.string("workflow", 64)?;
    if name.contains(['{', '}']) {
        fields.fault(
            "workflow",
            "cannot contain expressions: use one step for each workflow, with `when`",
        );
        return None;
    }
    if name.is_empty() {
        fields.fault("workflow", "is empty: name a workflow");
        return None;
    }
    Some(WorkflowName::new(name))
}

fn template(
    source: &str,
    pointer: String,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Result<Template, FieldFault> {
    let template = match Template::parse(source, origin) {
        Ok(template) => template,
        Err(message) => return Err(FieldFault::new(pointer, message)),
    };
    if template.is_literal() && source.chars().count() > LONGEST_NAME {
        let message = format!("is longer than {LONGEST_NAME} characters");
        return Err(FieldFault::new(pointer, message));
    }
    reads.push((pointer, template.reads()));
    Ok(template)
}

fn labels(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Vec<(String, Template)> {
    let given = fields.entries("labels");
    let mut labels: Vec<(String, Template)> = Vec::new();
    if given.len() > MOST_LABELS {
        let message = format!("{} labels are too many: at most {MOST_LABELS}", given.len());
        fields.fault("labels", message);
        return labels;
    }
    for (name, pointer, value) in given {
        let fault = |message: String| FieldFault::new(pointer.clone(), message);
        let label = match text(value.get()) {
            _ if name.is_empty() || name.chars().count() > LONGEST_NAME => Err(fault(format!(
                "the name of a label has 1 to {LONGEST_NAME} characters"
            ))),
            _ if labels.iter().any(|(known, _)| *known == name) => {
                Err(fault("is set twice: remove one".to_owned()))
            }
            None => Err(fault("must be a string".to_owned())),
            Some(source) => template(&source, pointer.clone(), origin, reads),
        };
        match label {
            Ok(value) => labels.push((name, value)),
            Err(fault) => fields.extend([fault]),
        }
    }
    labels
}
