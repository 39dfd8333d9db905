//! One expression, parsed and checked.

use std::fmt;

use super::{
    Budget, MAX_EXPRESSION, Origin, Reads, RenderError, Scope,
    ast::{Expr, Linked},
    eval::Evaluation,
    parser, reads,
    trouble::{Outcome, other},
    value::Value,
};
use crate::domain::Payload;

/// The source between the braces, with what it says.
pub(super) struct Code {
    source: Box<str>,
    reads: Reads,
    /// Or what is wrong with it, of an expression that was accepted once.
    expr: Result<Expr, Box<str>>,
}

impl Code {
    /// The error says what is wrong and what to write instead.
    pub fn parse(source: &str, origin: Origin) -> Result<Self, String> {
        let source = source.trim();
        match (Self::checked(source), origin) {
            (Err(fault), Origin::Stored) => Ok(Self {
                source: source.into(),
                reads: Reads::default(),
                expr: Err(fault.into()),
            }),
            (checked, _) => checked,
        }
    }

    fn checked(source: &str) -> Result<Self, String> {
        if source.is_empty() {
            return Err("the expression is empty: name what it should read".to_owned());
        }
        if source.len() > MAX_EXPRESSION {
            return Err(format!(
                "the expression is longer than {MAX_EXPRESSION} bytes: compute it in a service"
            ));
        }
        let expr = parser::parse(source)?;
        let code = Self {
            source: source.into(),
            reads: reads::of(&expr)?,
            expr: Ok(expr),
        };
        if code.reads.names.is_empty() {
            // It is the same whatever the data are, so whether it fails is known now.
            let budget = Budget::evaluation();
            let constant = Scope::empty(&budget);
            code.with(&constant, |_| Ok(()))
                .map_err(|error| error.to_string())?;
        }
        Ok(code)
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The whole document that it names, so that this can be passed on as it is, unread.
    pub fn whole<'v>(&self, scope: &Scope<'v>) -> Option<&'v Payload> {
        match self.expr.as_ref().ok()? {
            Expr::Name(name) => scope.document(name),
            Expr::Chain(chain) => match (&chain.base, &*chain.links) {
                (Expr::Name(name), [step, output]) if **name == *"steps" => {
                    let (Linked::Member(step), Linked::Member(output)) = (&step.what, &output.what)
                    else {
                        return None;
                    };
                    (**output == *"output").then(|| scope.step(step))??
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Evaluates it and hands over what it gives, which is never missing.
    pub fn with<T>(
        &self,
        scope: &Scope<'_>,
        take: impl FnOnce(Value<'_>) -> Outcome<T>,
    ) -> Result<T, RenderError> {
        let spent = scope.budget.spent();
        self.taken(scope, take).map_err(|trouble| {
            RenderError::new(&self.source, trouble.in_words(scope.budget, spent))
        })
    }

    fn taken<'v, T>(
        &'v self,
        scope: &Scope<'v>,
        take: impl FnOnce(Value<'v>) -> Outcome<T>,
    ) -> Outcome<T> {
        let expr = match &self.expr {
            Ok(expr) => expr,
            Err(fault) => return other(&**fault),
        };
        let budget = scope.budget;
        let evaluation = Evaluation { scope, budget };
        take(evaluation.value(expr)?.present()?)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}
