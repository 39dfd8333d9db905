//! Steps that do no work: `set` names values, and `stop` ends the task on purpose.

use super::{Policy, StepKind, block_output::BlockOutput, json_template};
use crate::{
    template::{JsonTemplate, Origin, Reads, Scope, Template, payload::Payload},
    values::fields::Fields,
};

/// The longest message that is kept, in bytes.
const LONGEST_MESSAGE: usize = 500;

/// The values that a step names, which are its output.
#[derive(Debug)]
pub struct SetRule {
    values: SetValues,
}

#[derive(Debug)]
enum SetValues {
    Named(JsonTemplate),
    /// The output of a block, at its end.
    Block(BlockOutput),
}

/// The end of a task on purpose.
#[derive(Debug)]
pub struct StopRule {
    pub state: StopState,
    message: Option<Template>,
    /// The output of the task, if it ends as processed.
    output: Option<JsonTemplate>,
}

/// The state in which a task is ended on purpose.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StopState {
    /// The steps that have not ended are cancelled, and the task is processed.
    Processed,
    /// The task is undone.
    Undone,
    /// The step is in error, and an operator must act.
    Error,
}

impl StopState {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns the policy that brings the task to the state, if it is an end without success.
    pub fn policy(self) -> Option<Policy> {
        match self {
            StopState::Processed => None,
            StopState::Undone => Some(Policy::Undo),
            StopState::Error => Some(Policy::Error),
        }
    }
}

impl SetRule {
    /// Returns the values. The error text is for an operator: the definition or the data is wrong.
    pub fn values(&self, scope: &Scope<'_>) -> Result<Payload, String> {
        match &self.values {
            SetValues::Named(values) => rendered(values, "set", scope),
            SetValues::Block(output) => output.value(scope),
        }
    }

    /// Makes the rule of the end of a block.
    pub(super) fn of_block(output: BlockOutput) -> Self {
        Self {
            values: SetValues::Block(output),
        }
    }

    pub(super) fn kind(&self) -> StepKind {
        match self.values {
            SetValues::Named(_) => StepKind::Set,
            SetValues::Block(_) => StepKind::Block,
        }
    }

    /// Returns the values that the expressions read, each with the path of its field, in dots.
    pub fn expressions(&self) -> Vec<(String, Reads)> {
        match &self.values {
            SetValues::Named(values) => json_template::paths("set", values),
            SetValues::Block(output) => output.expressions(),
        }
    }
}

impl StopRule {
    /// Returns the output of the task; null if the step gives none.
    pub fn output(&self, scope: &Scope<'_>) -> Result<Payload, String> {
        match &self.output {
            Some(output) => rendered(output, "stop.output", scope),
            None => Ok(Payload::null()),
        }
    }

    pub fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// Returns the beginning of the message, or the words that stand for one.
    pub fn message(&self, scope: &Scope<'_>) -> Result<String, String> {
        let Some(message) = &self.message else {
            return Ok("the definition ends the task here".to_owned());
        };
        let text = message.render_text(scope);
        let mut text =
            text.map_err(|error| format!("`stop.message` could not be evaluated: {error}"))?;
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        Ok(text)
    }

    pub fn expressions(&self) -> Vec<(String, Reads)> {
        let message = self.message.iter().filter(|text| !text.is_literal());
        let message = message.map(|message| ("stop.message".to_owned(), message.reads()));
        let output = self.output.iter();
        message
            .chain(output.flat_map(|output| json_template::paths("stop.output", output)))
            .collect()
    }
}

fn rendered(template: &JsonTemplate, field: &str, scope: &Scope<'_>) -> Result<Payload, String> {
    let json = template.render(scope);
    let json = json.map_err(|error| format!("`{field}` could not be evaluated: {error}"))?;
    // It was rendered as JSON, so it is valid.
    Ok(Payload::parse(json).unwrap_or_else(Payload::null))
}

pub(super) fn read_set(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<SetRule> {
    step.peek("set")?;
    if !step.is_object("set") {
        step.value("set");
        step.fault(
            "set",
            "must be an object of values, such as { \"total\": \"{{ input.price * 2 }}\" }",
        );
        return None;
    }
    let values = json_template::read(step, "set", origin, reads)?;
    Some(SetRule {
        values: SetValues::Named(values),
    })
}

pub(super) fn read_stop(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<StopRule> {
    let mut fields = step.object("stop")?;
    if fields.peek("state").is_none() {
        fields.missing("state", "give \"processed\", \"undone\" or \"error\"");
    }
    let state = fields.choice("state", StopState::ALL);
    let source = fields.string("message", usize::MAX);
    let message = source.and_then(|source| match Template::parse(&source, origin) {
        Ok(template) => {
            reads.push((fields.pointer("message"), template.reads()));
            Some(template)
        }
        Err(message) => {
            fields.fault("message", message);
            None
        }
    });
    let output = json_template::read(&mut fields, "output", origin, reads);
    if output.is_some() && state.is_some_and(|state| state != StopState::Processed) {
        fields.fault(
            "output",
            "is that of a task that ends as processed: remove it, or set `state` to \"processed\"",
        );
    }
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(StopRule {
        state: state?,
        message,
        output,
    })
}
