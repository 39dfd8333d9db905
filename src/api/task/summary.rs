//! A task in a list.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    domain::view::{LabelsView, TaskHead},
    store::TaskSummary,
};

/// A task in a list: without its input and its steps.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskSummary)]
pub struct SummaryView<'a> {
    #[serde(flatten)]
    head: TaskHead<'a>,
}

impl<'a> SummaryView<'a> {
    pub fn new(summary: &'a TaskSummary) -> Self {
        let workflow = summary.workflow.as_ref();
        Self {
            head: TaskHead {
                id: summary.id.0,
                key: summary.key.as_deref(),
                workflow: workflow.map(|workflow| workflow.name.as_str()),
                workflow_version: workflow.map(|workflow| workflow.version),
                state: summary.state.as_str(),
                priority: summary.priority.get(),
                labels: LabelsView::Raw(&summary.labels),
                created_at: summary.created_at,
                start_at: summary.start_at,
                complete_by: summary.complete_by,
                at_risk: summary.at_risk.clone(),
                ended_at: summary.ended_at,
                version: summary.version,
                error: summary.error.as_ref(),
            },
        }
    }
}
