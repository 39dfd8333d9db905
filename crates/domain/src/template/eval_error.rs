//! The error of an expression that has no value, in words without the expression itself: [`super::RenderError`] adds
//! that.

use super::{Budget, budget::Exhausted};

pub(super) type EvalResult<T> = Result<T, EvalError>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum EvalError {
    /// The budget is used up.
    Exhausted,
    TooLarge,
    /// The value that was read does not exist. The text is its path as it is written, or empty if it has none.
    Missing(String),
    Other(String),
}

impl EvalError {
    /// `spent` is what the budget had spent before this expression.
    pub fn in_words(self, budget: &Budget, spent: u64) -> String {
        match self {
            EvalError::Exhausted => {
                let allowed = budget.allowed();
                let most = allowed >> 20;
                let own = budget.spent().saturating_sub(spent);
                let before = match own < allowed.saturating_sub(own) {
                    true => ", together with the expressions before it",
                    false => "",
                };
                format!(
                    "it costs too much{before}: an evaluation may touch and build about {most} MiB in total; use less data, or compute it in a service"
                )
            }
            EvalError::TooLarge => format!(
                "the result is larger than {} bytes; pass a reference instead of the data",
                super::MAX_RENDERED
            ),
            EvalError::Missing(path) if path.is_empty() => {
                "it reads a value that does not exist; give it a default with `| default(…)`"
                    .to_owned()
            }
            EvalError::Missing(path) => {
                format!("`{path}` does not exist; give it a default with `| default(…)`")
            }
            EvalError::Other(message) => message,
        }
    }
}

impl From<Exhausted> for EvalError {
    fn from(_: Exhausted) -> Self {
        EvalError::Exhausted
    }
}

pub(super) fn other<T>(message: impl Into<String>) -> EvalResult<T> {
    Err(EvalError::Other(message.into()))
}
