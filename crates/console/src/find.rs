//! The search in the head of every page: an id or a key leads to the task, any other text to the list.

use axum::response::Response;
use serde::de::IgnoredAny;

use crate::{
    params::{Params, encoded},
    tasks::list::TaskPage,
    visit::Visit,
};

pub async fn find(visit: Visit) -> Response {
    let text = visit.query.text("q").trim().to_owned();
    if text.is_empty() {
        return visit.go("/tasks");
    }
    let is_id = text.len() == 36
        && text
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id
        && visit
            .get::<IgnoredAny>(&format!("/v1/tasks/{}", encoded(&text)))
            .await
            .is_ok()
    {
        return visit.go(&format!("/tasks/{}", encoded(&text)));
    }
    let by_key = Params::from_iter([("key", text.as_str()), ("limit", "2")]);
    let found = visit
        .get::<TaskPage>(&format!("/v1/tasks{}", by_key.query()))
        .await;
    let found = found.map(|found| found.items).unwrap_or_default();
    match found.as_slice() {
        [task] => visit.go(&format!("/tasks/{}", encoded(&task.id))),
        [] => match text.split_once(':') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() && !text.contains(' ') => {
                visit.go(&format!(
                    "/tasks{}",
                    Params::from_iter([("label", text.as_str())]).query()
                ))
            }
            _ => visit.go(&format!(
                "/tasks{}",
                Params::from_iter([("text", text.as_str())]).query()
            )),
        },
        _ => visit.go(&format!(
            "/tasks{}",
            Params::from_iter([("key", text.as_str())]).query()
        )),
    }
}
