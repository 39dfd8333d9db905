//! One expression, parsed and checked.

use std::fmt;

use super::{
    Budget, MAX_EXPRESSION, Origin, Reads, RenderError, Scope,
    ast::{Expr, LinkKind},
    budget::NODE,
    eval::Evaluation,
    eval_error::{EvalError, EvalResult, other},
    parser, reads,
    value::Value,
};
use crate::template::payload::Payload;

/// The cost of reading an expression, in units of the budget, and of each byte of it. Most of it is for memory.
const EXPRESSION: u64 = 1000;
const SOURCE_BYTE: u64 = 40;

/// The source between the braces, with the names that it reads.
pub(super) struct Code {
    source: Box<str>,
    /// Boxed, because it is as long as all the rest, and is read only before the expression is evaluated.
    reads: Box<Reads>,
    /// The error is the fault of an expression that an earlier version accepted.
    expr: Result<Expr, Box<str>>,
}

impl Code {
    /// Parses an expression. The error describes its fault and the remedy.
    pub fn parse(source: &str, origin: Origin<'_>) -> Result<Self, String> {
        let source = source.trim();
        match origin {
            Origin::Submitted(budget) => {
                budget.next();
                let code = Self::read(source, budget)?;
                code.check_constant(budget)?;
                Ok(code)
            }
            Origin::Stored => {
                let read = Self::read(source, &Budget::evaluation());
                Ok(read.unwrap_or_else(|fault| Self {
                    source: source.into(),
                    reads: Box::default(),
                    expr: Err(fault.into()),
                }))
            }
        }
    }

    fn read(source: &str, budget: &Budget) -> Result<Self, String> {
        if source.is_empty() {
            return Err("the expression is empty: name the value to read".to_owned());
        }
        if source.len() > MAX_EXPRESSION {
            return Err(format!(
                "the expression is longer than {MAX_EXPRESSION} bytes: compute it in a service"
            ));
        }
        let spent = budget.spent();
        let charged = budget.charge(EXPRESSION + source.len() as u64 * SOURCE_BYTE);
        charged.map_err(|exhausted| {
            let reason = EvalError::from(exhausted).in_words(budget, spent);
            format!("`{source}` cannot be parsed: {reason}")
        })?;
        let expr = parser::parse(source, budget)?;
        Ok(Self {
            source: source.into(),
            reads: Box::new(reads::of(&expr, source)?),
            expr: Ok(expr),
        })
    }

    /// Evaluates an expression that reads nothing: it has the same result for all data, so a failure can be reported at
    /// once.
    fn check_constant(&self, budget: &Budget) -> Result<(), String> {
        if self.reads.names.is_empty() {
            let scope = Scope::empty(budget);
            self.with(&scope, |_| Ok(()))
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Returns the whole document that the expression names, so that it can be passed on unchanged and unread.
    pub fn whole<'v>(&self, scope: &Scope<'v>) -> Option<&'v Payload> {
        scope.budget.charge(NODE).ok()?;
        match self.expr.as_ref().ok()? {
            Expr::Name(name) => scope.document(name),
            Expr::Chain(chain) => match (&chain.base, &*chain.links) {
                (Expr::Name(name), [step, output]) if **name == *"steps" => {
                    let (LinkKind::Member(step), LinkKind::Member(output)) =
                        (&step.what, &output.what)
                    else {
                        return None;
                    };
                    match **output == *"output" {
                        // If the budget is used up, the expression is evaluated, and that fails.
                        true => scope.step(step, scope.budget).ok()??.1,
                        false => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Evaluates the expression and passes its value to `take`. The value is never a missing one.
    pub fn with<T>(
        &self,
        scope: &Scope<'_>,
        take: impl FnOnce(Value<'_>) -> EvalResult<T>,
    ) -> Result<T, RenderError> {
        let spent = scope.budget.spent();
        self.evaluate_with(scope, take)
            .map_err(|trouble| RenderError {
                steps: self.reads.steps.clone(),
                ..RenderError::new(&self.source, trouble.in_words(scope.budget, spent))
            })
    }

    fn evaluate_with<'v, T>(
        &'v self,
        scope: &Scope<'v>,
        take: impl FnOnce(Value<'v>) -> EvalResult<T>,
    ) -> EvalResult<T> {
        let expr = match &self.expr {
            Ok(expr) => expr,
            Err(fault) => return other(&**fault),
        };
        let budget = scope.budget;
        let evaluation = Evaluation {
            source: &self.source,
            scope,
            budget,
        };
        take(evaluation.value(expr)?.present()?)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}
