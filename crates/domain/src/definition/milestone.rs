//! The condition for as long as which a step runs: `"while": "steps.pay.state != 'processed'"`. It may read steps that do not
//! come before the step, whose states change while it runs.

use crate::{
    template::{Expression, Origin, Reads},
    values::{fields::Fields, ids::StepIndex},
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
