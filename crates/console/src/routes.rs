//! The routes of the console.

use std::sync::Arc;

use axum::{
    Router,
    extract::{OriginalUri, State},
    response::Response,
    routing::{get, post},
};
use http::StatusCode;

use crate::{
    agents, alerts, asks, assets, bulk, causes, changes,
    confirmations::Confirmations,
    console::Console,
    find, fix, front, home, instances, login, messages,
    respond::see_other,
    schedules,
    service::{Refusal, Service},
    session::SessionStore,
    task, tasks,
    visit::{Visit, page},
    workflows,
};

/// Returns whether a route is one of the console, which decides itself who may look.
pub fn is_page(route: &str) -> bool {
    route == "/console" || route.starts_with("/console/")
}

/// Returns the routes of the console.
pub fn router(service: Arc<dyn Service>, sessions: Arc<dyn SessionStore>) -> Router {
    let console = Arc::new(Console {
        service,
        sessions,
        confirmations: Confirmations::default(),
    });
    front::before(routes(), &console).with_state(console)
}

/// The parameters of a command for many tasks: its filter, and what it does.
static OF_FIX: [&[&str]; 3] = [&tasks::list::FILTER, &fix::COMMAND, &["reason"]];

fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/console/assets/{hash}/{name}", get(assets::asset))
        .route("/console/login", get(login::show).post(login::sign_in))
        .route("/console/logout", post(login::sign_out))
        .route("/console", page(&[], get(home::show)))
        .route("/console/", get(without_slash))
        .route(
            "/console/causes/{fingerprint}",
            page(&[&["text", "patch"]], get(causes::page::show)),
        )
        .route(
            "/console/causes/{fingerprint}/fix",
            page(&OF_FIX, get(fix::of_cause).post(fix::confirm_of_cause)),
        )
        .route(
            "/console/tasks/fix",
            page(&OF_FIX, get(fix::of_tasks).post(fix::confirm_of_tasks)),
        )
        .route(
            "/console/tasks",
            page(&[&tasks::list::FILTER], get(tasks::list::show)),
        )
        .route("/console/find", page(&[&["q"]], get(find::find)))
        .route(
            "/console/changes",
            page(&[&changes::page::FILTER], get(changes::page::show)),
        )
        .route(
            "/console/alerts",
            page(&[&["state", "text"]], get(alerts::list)),
        )
        .route(
            "/console/alerts/{id}/acknowledge",
            page(&[], get(alerts::preview).post(alerts::acknowledge)),
        )
        .route("/console/asks", page(&[&["text"]], get(asks::list)))
        .route(
            "/console/messages",
            page(
                &[&["state", "receiver", "task", "text"]],
                get(messages::list),
            ),
        )
        .route("/console/messages/{id}", page(&[], get(messages::show)))
        .route(
            "/console/messages/{id}/{command}",
            page(
                &[&["receiver"]],
                get(messages::preview).post(messages::send),
            ),
        )
        .route("/console/instances", page(&[], get(instances::list)))
        .route(
            "/console/instances/release",
            page(&[], get(instances::preview).post(instances::release)),
        )
        .route("/console/workflows", page(&[], get(workflows::page::list)))
        .route(
            "/console/workflows/{name}",
            page(
                &[&["version", "diff", "step", "input", "graph", "raw"]],
                get(workflows::page::show),
            ),
        )
        .route(
            "/console/workflows/{name}/activate",
            page(
                &[&["version", "reason"]],
                get(workflows::activation::preview).post(workflows::activation::activate),
            ),
        )
        .route(
            "/console/workflows/{name}/submit",
            page(
                &[&["version", "input", "key"]],
                get(workflows::submission::preview).post(workflows::submission::submit),
            ),
        )
        .route("/console/bulk", page(&[], get(bulk::list)))
        .route("/console/bulk/{id}", page(&[], get(bulk::show)))
        .route("/console/bulk/{id}/stop", page(&[], post(bulk::stop)))
        .route("/console/bulk/{id}/resume", page(&[], post(bulk::resume)))
        .route("/console/agents", page(&[], get(agents::pages::list)))
        .route(
            "/console/agents/{name}",
            page(&[], get(agents::pages::show)),
        )
        .route(
            "/console/agents/{name}/check",
            page(&[], get(agents::check::preview).post(agents::check::check)),
        )
        .route(
            "/console/agents/{name}/{command}",
            page(
                &[&["for", "reason"]],
                get(agents::commands::preview).post(agents::commands::send),
            ),
        )
        .route("/console/schedules", page(&[], get(schedules::pages::list)))
        .route(
            "/console/schedules/{name}",
            page(&[], get(schedules::pages::show)),
        )
        .route(
            "/console/schedules/{name}/{command}",
            page(
                &[&["reason"]],
                get(schedules::pages::preview).post(schedules::pages::send),
            ),
        )
        .merge(task::routes())
        .route("/console/{*path}", get(no_page))
}

/// Returns whether a browser sends this `Accept`: it lists HTML by name. `GET /` then leads to the console.
pub fn prefers_html(accept: &str) -> bool {
    accept.split(',').any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let is_html = parts.next() == Some("text/html");
        is_html && !parts.any(|part| part.replace(' ', "") == "q=0")
    })
}

async fn without_slash(
    State(console): State<Arc<Console>>,
    OriginalUri(uri): OriginalUri,
) -> Response {
    let query = uri.query().map(|query| format!("?{query}"));
    see_other(&format!(
        "{}/console{}",
        console.base(),
        query.unwrap_or_default()
    ))
}

async fn no_page(visit: Visit, OriginalUri(uri): OriginalUri) -> Response {
    let detail = format!("the console has no page at {}", uri.path());
    visit.refused(&Refusal::new(StatusCode::NOT_FOUND, "No such page", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_told_from_a_program_by_what_it_accepts() {
        assert!(prefers_html("text/html,application/xhtml+xml,*/*;q=0.8"));
        for program in ["", "*/*", "application/json", "text/html;q=0, */*"] {
            assert!(!prefers_html(program), "{program}");
        }
    }
}
