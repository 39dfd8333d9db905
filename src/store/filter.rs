//! The conditions of a list, in the words that every database understands.

use sqlx::{Database, Encode, QueryBuilder, Type};

use super::TaskFilter;
use crate::domain::TaskStatus;

/// Each part relies on an index of its own, or narrows what another has found.
pub fn filter<DB: Database>(sql: &mut QueryBuilder<DB>, filter: &TaskFilter)
where
    String: for<'q> Encode<'q, DB> + Type<DB>,
    i64: for<'q> Encode<'q, DB> + Type<DB>,
{
    if let Some(state) = filter.state {
        sql.push(" AND state = ")
            .push_bind(state.as_str().to_owned());
        if state != TaskStatus::Processed {
            // Said in full, so that the planner sees that tasks_by_state covers it.
            sql.push(" AND state <> 'processed'");
        }
    }
    if let Some(workflow) = &filter.workflow {
        sql.push(" AND workflow = ").push_bind(workflow.clone());
    }
    if let Some(key) = &filter.key {
        sql.push(" AND \"key\" = ").push_bind(key.clone());
    }
    if let Some(agent) = &filter.agent {
        sql.push(" AND EXISTS (SELECT 1 FROM steps WHERE task_id = tasks.id AND agent = ")
            .push_bind(agent.clone())
            .push(")");
    }
    for (label, value) in &filter.labels {
        sql.push(" AND id IN (SELECT task_id FROM task_labels WHERE label = ")
            .push_bind(label.clone())
            .push(" AND value = ")
            .push_bind(value.clone())
            .push(")");
    }
    if let Some(after) = filter.created_after {
        sql.push(" AND created_at > ").push_bind(after.as_millis());
    }
    if let Some(before) = filter.created_before {
        sql.push(" AND created_at < ").push_bind(before.as_millis());
    }
}
