//! The output of a task: a template over its input and the outputs of its steps.

use super::names::{Names, SCOPE_NAMES, check_names, unknown_step_message};
use crate::{
    template::{JsonTemplate, Origin, payload::Payload},
    values::{fields::FieldFault, ids::StepIndex},
};

#[derive(Debug)]
pub struct OutputTemplate {
    pub template: JsonTemplate,
    /// The steps whose output the template reads.
    pub reads: Vec<StepIndex>,
}

/// Reads the template. It may read any step, because every step has ended when it is evaluated.
pub(super) fn read(
    source: &Payload,
    names: &Names<'_>,
    origin: Origin<'_>,
    faults: &mut Vec<FieldFault>,
) -> Option<OutputTemplate> {
    const POINTER: &str = "/output";
    let template = match JsonTemplate::parse(source, origin) {
        Ok(template) => template,
        Err(found) => {
            faults.extend(found.into_iter().map(|fault| {
                FieldFault::new(format!("{POINTER}{}", fault.pointer), fault.message)
            }));
            return None;
        }
    };
    let mut reads = Vec::new();
    for (inside, read) in template.reads() {
        let pointer = format!("{POINTER}{inside}");
        if !check_names(&pointer, &read, &SCOPE_NAMES, names, faults) {
            continue;
        }
        for name in &read.steps {
            match names.find("", name) {
                // The number of steps fits into an index.
                Some(position) => reads.push(StepIndex(position as u16)),
                None => faults.push(FieldFault::new(&pointer, unknown_step_message(name, names))),
            }
        }
    }
    reads.sort_unstable();
    reads.dedup();
    Some(OutputTemplate { template, reads })
}
