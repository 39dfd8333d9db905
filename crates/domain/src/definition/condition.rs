//! The condition of a step: its own `when`, and those of the blocks that it is in.

use std::sync::Arc;

use crate::template::{Expression, Reads, RenderError, Scope, Template};

/// A step is skipped if one of the parts does not hold when all steps before it are done.
#[derive(Debug)]
pub struct Condition {
    /// The parts of the outer blocks come first.
    parts: Vec<ConditionPart>,
    reads: Reads,
    source: String,
}

/// One part of a condition.
#[derive(Clone, Debug)]
pub(super) struct ConditionPart {
    pub test: ConditionTest,
    /// The block in which its names are looked up. See [`Scope::block`].
    pub block: Arc<str>,
}

#[derive(Clone, Debug)]
pub(super) enum ConditionTest {
    /// The expression is true, or false.
    Is(Arc<Expression>, bool),
    /// The template gives this text.
    Gives(Arc<Template>, Arc<str>),
}

impl Condition {
    /// Returns the condition of these parts, `None` if there are none.
    pub(super) fn of(parts: Vec<ConditionPart>) -> Option<Self> {
        if parts.is_empty() {
            return None;
        }
        let mut reads = Reads::default();
        for part in &parts {
            reads.extend(&part.test.reads());
        }
        let sources: Vec<_> = parts.iter().map(|part| part.test.source()).collect();
        Some(Self {
            source: sources.join(" and "),
            parts,
            reads,
        })
    }

    /// Returns whether the step is to run.
    pub fn truth(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        for part in &self.parts {
            let holds = match *part.block == *scope.block {
                true => part.test.holds(scope)?,
                false => part.test.holds(&Scope {
                    block: &part.block,
                    ..scope.clone()
                })?,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the names that it reads, as they are written.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Returns the condition as it is written; of several parts in the form of one.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the expression of a condition that has no other parts.
    pub fn single(&self) -> Option<&Expression> {
        match &*self.parts {
            [
                ConditionPart {
                    test: ConditionTest::Is(expression, true),
                    ..
                },
            ] => Some(expression),
            _ => None,
        }
    }
}

impl ConditionPart {
    /// Returns the length of its text, in bytes.
    pub fn length(&self) -> usize {
        match &self.test {
            ConditionTest::Is(expression, _) => expression.source().len(),
            ConditionTest::Gives(template, text) => template.outline("").len() + text.len(),
        }
    }

    /// Returns the part that holds where this one does not. Only those of a switch are asked for it.
    pub fn opposite(&self) -> Option<Self> {
        match &self.test {
            ConditionTest::Is(expression, wanted) => Some(Self {
                test: ConditionTest::Is(expression.clone(), !wanted),
                block: self.block.clone(),
            }),
            ConditionTest::Gives(..) => None,
        }
    }
}

impl ConditionTest {
    fn holds(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        Ok(match self {
            ConditionTest::Is(expression, wanted) => expression.truth(scope)? == *wanted,
            // A template with a fault chooses no name, and the end of the choice reports the fault once.
            ConditionTest::Gives(template, text) => {
                template.render_text(scope).is_ok_and(|name| name == **text)
            }
        })
    }

    pub fn reads(&self) -> Reads {
        match self {
            ConditionTest::Is(expression, _) => expression.reads().clone(),
            ConditionTest::Gives(template, _) => template.reads(),
        }
    }

    fn source(&self) -> String {
        match self {
            ConditionTest::Is(expression, true) => expression.source().to_owned(),
            ConditionTest::Is(expression, false) => format!("not ({})", expression.source()),
            ConditionTest::Gives(template, text) => {
                format!("{} == '{text}'", template.outline("…"))
            }
        }
    }
}
