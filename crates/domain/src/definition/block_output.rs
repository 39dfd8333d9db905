//! The output of a block, made when all steps in it have ended.

use std::{collections::BTreeMap, sync::Arc};

use super::json_template;
use crate::template::{Expression, JsonTemplate, Reads, Scope, Template, payload::Payload};

/// The output of a block.
#[derive(Debug, Default)]
pub(super) enum BlockOutput {
    #[default]
    Null,
    Template(JsonTemplate),
    /// The output of the step for the name that the template gives.
    Chosen {
        by: Arc<Template>,
        /// The block in which `by` looks its names up.
        block: Arc<str>,
        outputs: BTreeMap<String, Expression>,
    },
}

impl BlockOutput {
    /// Returns the output of a block whose steps have ended. The error text is for an operator.
    pub fn value(&self, scope: &Scope<'_>) -> Result<Payload, String> {
        match self {
            BlockOutput::Null => Ok(Payload::null()),
            BlockOutput::Template(template) => {
                let json = template.render(scope);
                let json =
                    json.map_err(|error| format!("`output` could not be evaluated: {error}"))?;
                // It was rendered as JSON, so it is valid.
                Ok(Payload::parse(json).unwrap_or_else(Payload::null))
            }
            BlockOutput::Chosen { by, block, outputs } => {
                let outer = Scope {
                    block,
                    ..scope.clone()
                };
                let name = by.render_text(&outer);
                let name = name.map_err(|error| format!("`by` could not be evaluated: {error}"))?;
                let Some(output) = outputs.get(&name) else {
                    let names: Vec<_> = outputs.keys().map(String::as_str).collect();
                    return Err(format!("`by` gives none of the names {}", names.join(", ")));
                };
                output.payload(scope).map_err(|error| error.to_string())
            }
        }
    }

    /// Returns the values that the expressions read, each with the path of its field, in dots.
    pub fn expressions(&self) -> Vec<(String, Reads)> {
        match self {
            BlockOutput::Null => Vec::new(),
            BlockOutput::Template(template) => json_template::paths("output", template),
            BlockOutput::Chosen { outputs, .. } => {
                // Only that of the chosen step is read, so none of them can be one that was skipped.
                let reads = outputs.values().map(|output| Reads {
                    names: output.reads().names.clone(),
                    ..Reads::default()
                });
                reads.map(|reads| ("output".to_owned(), reads)).collect()
            }
        }
    }
}
