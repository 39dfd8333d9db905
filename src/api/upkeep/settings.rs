//! The settings of this instance.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    api::{App, Problem, extract::Query, response::json},
    config::in_force,
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// The settings that are in force at this instance, without secrets.
#[derive(Serialize, ToSchema)]
#[schema(as = Settings)]
struct SettingsView {
    /// The id of this instance. Every instance has its own settings.
    #[schema(example = "worker-1")]
    instance: String,
    /// Every setting, in the order of `provost.toml.example`.
    items: Vec<SettingView>,
}

/// A setting.
#[derive(Serialize, ToSchema)]
#[schema(as = Setting)]
struct SettingView {
    /// The name, with the table before it.
    #[schema(example = "calls.connect_timeout")]
    name: &'static str,
    /// The value as `provost.toml` would have it. Secrets are hidden. Null if it is not set.
    #[schema(required, example = "\"5s\"")]
    value: Option<String>,
    /// True if the value is that of an instance without any settings.
    #[schema(example = true)]
    is_default: bool,
}

/// Get the settings of this instance
///
/// The settings that are in force at the instance that responds: those of its start, with what SIGHUP has changed since.
/// Passwords, tokens and other secrets are not part of them.
#[utoipa::path(
    get, path = "/v1/settings", tag = "service", operation_id = "get_settings",
    responses((status = 200, description = "All settings", body = SettingsView)),
)]
async fn show(State(app): State<Arc<App>>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let settings = in_force(&app.in_force.load()).into_iter();
    let items = settings.map(|setting| SettingView {
        name: setting.name,
        value: setting.value,
        is_default: setting.is_default,
    });
    let view = SettingsView {
        instance: app.instance.to_string(),
        items: items.collect(),
    };
    Ok(json(StatusCode::OK, &view))
}
