//! OpenAPI links: the requests that can follow a response.

use serde_json::json;
use utoipa::openapi::{OpenApi, RefOr, link::LinkBuilder};

use super::operations_of;

/// Each link is the operation's id and a description of what it does with the task in the response.
const OF_A_TASK: [(&str, &str); 3] = [
    ("get_task", "Poll the task, or wait for it with `wait`"),
    ("task_events", "Follow the task live"),
    ("cancel_task", "Cancel the task"),
];

/// From the response to a submission to the task that it created.
pub fn add(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        for (_, operation) in operations_of(item) {
            if !matches!(
                operation.operation_id.as_deref(),
                Some("submit_task" | "clone_task")
            ) {
                continue;
            }
            let Some(RefOr::T(accepted)) = operation.responses.responses.get_mut("202") else {
                continue;
            };
            for (target, description) in OF_A_TASK {
                let link = LinkBuilder::new()
                    .operation_id(target)
                    .parameter("id", json!("$response.body#/id"))
                    .description(description);
                accepted
                    .links
                    .insert(target.to_owned(), link.build().into());
            }
        }
    }
}
