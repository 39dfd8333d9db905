//! The tasks that no submitter of the operated chaos made: children, and tasks of schedules.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::{
    super::{
        audit::{Accepted, Record},
        harness::Api,
    },
    operators::Tasks,
    workflows::Workflows,
};

/// Returns the tasks that were not made by submitters, with their plans.
pub fn unsubmitted(
    records: &BTreeMap<String, Record>,
    workflows: &Workflows,
    accepted: &[Accepted],
) -> Vec<Accepted> {
    let known: HashSet<_> = accepted.iter().map(|task| &task.id).collect();
    let unknown = records.iter().filter(|(id, _)| !known.contains(id));
    let found = unknown.filter_map(|(id, record)| {
        if record.parent.is_none() && record.schedule.is_none() {
            return None;
        }
        let (name, version) = record.workflow.as_ref()?;
        Some(Accepted {
            id: id.clone(),
            key: record.key.clone(),
            plan: workflows.plan(name, *version)?,
            ..Accepted::default()
        })
    });
    found.collect()
}

/// Lets operators know the tasks that no submitter made, again and again after a pause, until the test is over.
pub async fn find_tasks(apis: Arc<Vec<Api>>, workflows: Workflows, tasks: Tasks, pause: Duration) {
    for turn in 0.. {
        sleep(pause).await;
        let list = apis[turn % apis.len()].get("/v1/tasks?limit=100").attempt();
        let Ok(Ok(answer)) = timeout(Duration::from_secs(1), list).await else {
            continue;
        };
        for task in answer.body["items"].as_array().into_iter().flatten() {
            let name = task["workflow"].as_str().unwrap_or_default();
            let version = task["workflow_version"].as_u64().unwrap_or_default();
            let plan = workflows.plan(name, u32::try_from(version).unwrap());
            let is_found = task["parent"].is_object() || task["labels"]["schedule"].is_string();
            if let (true, Some(plan)) = (is_found, plan) {
                let text = |field: &str| task[field].as_str().unwrap_or_default();
                tasks.find(text("id"), text("key"), plan);
            }
        }
    }
}
