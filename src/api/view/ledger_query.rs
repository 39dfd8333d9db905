//! The parameters that select events of the ledger.

use crate::{
    api::{
        Problem,
        extract::{Query, labels},
        problem::ProblemKind,
    },
    domain::view::{LedgerFilter, LedgerPosition, MOST_TYPES},
};

pub(super) fn filter(query: &mut Query) -> Result<LedgerFilter, Problem> {
    Ok(LedgerFilter {
        types: types(query)?,
        workflow: query.string("workflow"),
        labels: labels(query)?,
    })
}

/// Parses `types`, the types of events that are wanted.
pub(super) fn types(query: &mut Query) -> Result<Vec<String>, Problem> {
    let refused = |detail: String| Problem::new(ProblemKind::InvalidQuery, detail);
    let Some(list) = query.string("types") else {
        return Ok(Vec::new());
    };
    let types = LedgerFilter::parse_types(&list).map_err(|other| {
        refused(format!(
            "types: {other:?} is no type of events such as task.processed or step.*: separate types by commas"
        ))
    })?;
    match types.len() > MOST_TYPES {
        true => Err(refused(format!(
            "types: {} types are too many; at most {MOST_TYPES}: use families such as step.*",
            types.len()
        ))),
        false => Ok(types),
    }
}

/// Parses a position that a caller has stored.
pub(super) fn parse_position(text: &str) -> Result<LedgerPosition, Problem> {
    LedgerPosition::parse(text).ok_or_else(|| {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!(
                "after: {text:?} is not a position: pass `position` of an event or of a page unchanged, `newest`, or nothing to begin with the oldest event"
            ),
        )
    })
}
