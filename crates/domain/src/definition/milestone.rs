//! The condition for as long as which a step runs: `"while": "steps.pay.state != 'processed'"`. It may read steps that do not
//! come before the step, whose states change while it runs.

use super::{names::Names, step::ParsedStep};
use crate::{
    template::{Expression, Origin, Reads},
    values::{
        fields::{FieldFault, Fields},
        ids::StepIndex,
    },
};

#[derive(Debug)]
pub struct WhileRule {
    pub condition: Expression,
    /// The steps that it reads.
    pub reads: Vec<StepIndex>,
}

/// Reads the condition, and collects the names that it reads.
pub(super) fn read(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<Expression> {
    let source = fields.string("while", usize::MAX)?;
    match Expression::parse(&source, origin) {
        Ok(expression) => {
            reads.push((fields.pointer("while"), expression.reads().clone()));
            Some(expression)
        }
        Err(message) => {
            fields.fault("while", message);
            None
        }
    }
}

/// Returns the positions of the steps that the condition of a step reads.
pub(super) fn reads_of(
    index: usize,
    drafts: &[ParsedStep],
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> Vec<usize> {
    let draft = &drafts[index];
    let mut found = Vec::new();
    for (pointer, looks) in &draft.while_reads {
        for name in &looks.steps {
            match names.find(&draft.place.prefix, name) {
                Some(read) if read == index => faults.push(FieldFault::new(
                    pointer,
                    "reads the step itself: read the steps that say whether it is still needed",
                )),
                Some(read) if drafts[read].is_finally => faults.push(FieldFault::new(
                    pointer,
                    format!("`{name}` runs when all other steps have ended: read another step"),
                )),
                Some(read) => found.push(read),
                // Reported with the other names.
                None => {}
            }
        }
        if looks.steps.is_empty() {
            faults.push(FieldFault::new(
                pointer,
                "reads no step, and so it never changes while the step runs: use `when` instead",
            ));
        }
    }
    found
}
