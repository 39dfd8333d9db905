//! The line of changes: what people, definitions and instances changed, latest first.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::ledger_query::types;
use crate::{
    api::{
        App, Problem,
        extract::{PageQuery, Query},
        response::json,
    },
    domain::{
        values::Timestamp,
        view::{LedgerFilter, LedgerPosition, LedgerRecord, LedgerRowNumber},
    },
};

/// The rows that a page looks at, if a filter leaves records out.
const LOOKED_AT: usize = 200;

/// A change that a person, a definition or an instance made.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerChange)]
struct LedgerChangeView {
    at: Timestamp,
    #[serde(flatten)]
    record: LedgerRecord,
}

/// A page of changes, latest first.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerChangePage)]
struct ChangePage {
    items: Vec<LedgerChangeView>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// List what people and definitions changed
///
/// In one line of time, latest first: commands of people on tasks, agents, schedules, alerts, messages and bulk jobs; new
/// definitions, with what differs from the ones before; and the states of agents. They are kept for `ledger.keep_changes`,
/// also after their tasks are deleted. One page looks at a bounded number of changes, so that with a filter it may be empty
/// although there is a next one.
#[utoipa::path(
    get, path = "/v1/changes", tag = "events", operation_id = "list_changes",
    params(
        ("types" = Option<String>, Query, description = "Types of records, separated by commas; `agent.*` is every type that begins with `agent.`", example = "agent.*,workflow.*"),
        PageQuery,
    ),
    responses((status = 200, description = "A page, latest first", body = ChangePage))
)]
pub(super) async fn changes(
    State(app): State<Arc<App>>,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let filter = LedgerFilter {
        types: types(&mut query)?,
        ..LedgerFilter::default()
    };
    let (before, cursors) = query.cursor(parse_row)?;
    query.finish()?;
    // With a filter, more rows are looked at than are shown.
    let looked_at = match filter.types.is_empty() {
        true => limit,
        false => limit.max(LOOKED_AT),
    };
    let rows = app.store.reader.audited(before, looked_at).await?;
    let is_all = rows.len() < looked_at;
    let mut items = Vec::new();
    let mut end = None;
    let mut is_full = false;
    for row in rows {
        if items.len() >= limit {
            is_full = true;
            break;
        }
        end = Some(row.number);
        let records = row.records.into_iter().rev();
        let wanted = records.filter(|record| record.is_audited());
        let wanted = wanted.filter(|record| filter.accepts_type(&record.kind));
        items.extend(wanted.map(|record| LedgerChangeView { at: row.at, record }));
    }
    let next = end.filter(|_| is_full || !is_all);
    let page = ChangePage {
        items,
        next_cursor: next.map(|row| cursors.after(position_of(row))),
    };
    Ok(json(StatusCode::OK, &page))
}

fn position_of(row: LedgerRowNumber) -> LedgerPosition {
    LedgerPosition {
        row,
        at: 0,
        within: None,
    }
}

fn parse_row(text: &str) -> Option<LedgerRowNumber> {
    LedgerPosition::parse(text).map(|position| position.row)
}
