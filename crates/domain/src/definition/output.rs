//! The output of a task: a template over its input and the outputs of its steps.

use super::parse::{Names, SEEN, check_names, no_step};
use crate::{
    fields::FieldFault,
    ids::StepIndex,
    payload::Payload,
    template::{JsonTemplate, Origin},
};

#[derive(Debug)]
pub struct OutputTemplate {
    pub template: JsonTemplate,
    /// The steps whose output it looks at.
    pub reads: Vec<StepIndex>,
}

/// Every step has ended once it is evaluated, so it may read any of them.
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
        if !check_names(&pointer, &read, &SEEN, names, faults) {
            continue;
        }
        for name in &read.steps {
            match names.get(name.as_str()) {
                // At most as many as an index can count.
                Some(position) => reads.push(StepIndex(*position as u16)),
                None => faults.push(FieldFault::new(&pointer, no_step(name, names))),
            }
        }
    }
    reads.sort_unstable();
    reads.dedup();
    Some(OutputTemplate { template, reads })
}
