//! The list of instances, and the settings of the one that responds.

use askama::Template;
use axum::{extract::Request, response::Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::{
    command_page::{CommandPage, Field},
    form::read_form,
    parts::counted,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// An instance as `GET /v1/instances` has it.
#[derive(Deserialize)]
pub struct Instance {
    pub id: String,
    pub started_at: String,
    pub version: String,
    pub alive: bool,
    pub supervising: bool,
    pub in_flight: u64,
}

#[derive(Deserialize)]
struct InstanceList {
    items: Vec<Instance>,
}

/// The hold of the instance that responds, as `GET /v1/hold` has it.
#[derive(Deserialize)]
pub struct Hold {
    pub instance: String,
    pub held: bool,
}

/// The settings of the instance that responds, as `GET /v1/settings` has them.
#[derive(Deserialize)]
pub struct Settings {
    pub instance: String,
    items: Vec<Setting>,
}

#[derive(Deserialize)]
pub struct Setting {
    pub name: String,
    pub value: Option<String>,
    pub is_default: bool,
}

impl Setting {
    pub fn value(&self) -> &str {
        self.value.as_deref().unwrap_or("not set")
    }
}

impl Settings {
    /// Returns the settings that somebody has made.
    pub fn made(&self) -> Vec<&Setting> {
        let items = self.items.iter();
        items.filter(|setting| !setting.is_default).collect()
    }

    /// Returns how many settings have their defaults, in words.
    pub fn defaults_in_words(&self) -> String {
        let count = u64::try_from(self.defaults().len()).unwrap_or(u64::MAX);
        counted(
            count,
            "setting has its default",
            "settings have their defaults",
        )
    }

    pub fn defaults(&self) -> Vec<&Setting> {
        let items = self.items.iter();
        items.filter(|setting| setting.is_default).collect()
    }
}

#[derive(Template)]
#[template(path = "instances.html")]
pub struct InstancesPage {
    pub page: Shell,
    pub title: String,
    pub instances: Vec<Instance>,
    pub hold: Option<Hold>,
    pub settings: Result<Settings, Refusal>,
}

impl InstancesPage {
    pub fn new(
        page: Shell,
        instances: Vec<Instance>,
        hold: Option<Hold>,
        settings: Result<Settings, Refusal>,
    ) -> Self {
        let alive = instances.iter().filter(|instance| instance.alive).count();
        let supervises = instances
            .iter()
            .any(|instance| instance.alive && instance.supervising);
        let title = match (alive, supervises) {
            (_, false) => String::from("No instance supervises at the moment"),
            (1, _) => String::from("1 instance is alive"),
            (many, _) => format!("{many} instances are alive"),
        };
        Self {
            page,
            title,
            instances,
            hold,
            settings,
        }
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build(&visit).await;
    visit.show(page)
}

async fn build(visit: &Visit) -> Result<InstancesPage, Refusal> {
    let (instances, hold, settings) = tokio::join!(
        visit.get::<InstanceList>("/v1/instances"),
        visit.get::<Hold>("/v1/hold"),
        visit.get::<Settings>("/v1/settings")
    );
    let shell = visit.shell(Section::Instances, "Instances");
    Ok(InstancesPage::new(
        shell,
        instances?.items,
        hold.ok(),
        settings,
    ))
}

/// The page that says what the release of this instance does.
pub async fn preview(visit: Visit) -> Response {
    let page = build_preview(&visit).await;
    visit.show(page)
}

async fn build_preview(visit: &Visit) -> Result<CommandPage, Refusal> {
    let hold: Hold = visit.get("/v1/hold").await?;
    if !hold.held {
        let detail = format!(
            "instance {} is not held: it calls and delivers",
            hold.instance
        );
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "Nothing to release",
            detail,
        ));
    }
    let title = format!("Release instance {}: it calls and delivers", hold.instance);
    let page = visit.shell(Section::Instances, title.clone());
    Ok(CommandPage {
        title,
        consequences: vec![
            String::from(
                "It starts at once with all steps and messages that became due in the meantime.",
            ),
            String::from(
                "Other instances are not affected. A release cannot be taken back, except by a start with --hold.",
            ),
        ],
        fields: vec![Field::hidden("instance", &hold.instance)],
        action: page.to("/instances/release"),
        back: page.to("/instances"),
        button: format!("Release {}", hold.instance),
        asks_reason: false,
        reason: String::new(),
        is_final: true,
        needs_admin: false,
        fault: None,
        page,
    })
}

/// Releases the instance that the form names. Another one may get the form, behind an address of several.
pub async fn release(visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let (meant, here) = (form.text("instance"), visit.console.service.installation());
    if meant != here.instance {
        let detail = format!(
            "this form is for instance {meant}, and instance {} got it: nothing was done. Use the address of {meant}",
            here.instance
        );
        return visit.refused(&Refusal::new(
            StatusCode::CONFLICT,
            "Another instance",
            detail,
        ));
    }
    let sent: Result<serde_json::Value, Refusal> = visit
        .post("/v1/hold/release", HeaderMap::new(), &json!({}))
        .await;
    match sent {
        Ok(_) => visit.go("/instances"),
        Err(refusal) => visit.refused(&refusal),
    }
}
