//! The list of instances.

use askama::Template;
use axum::response::Response;
use serde::Deserialize;

use crate::{
    home::{Counted, Instance},
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// The hold of the instance that responds, as `GET /v1/hold` has it.
#[derive(Deserialize)]
pub struct Hold {
    pub instance: String,
    pub held: bool,
}

#[derive(Template)]
#[template(path = "instances.html")]
pub struct InstancesPage {
    pub page: Shell,
    pub title: String,
    pub instances: Vec<Instance>,
    pub hold: Option<Hold>,
}

impl InstancesPage {
    pub fn new(page: Shell, instances: Vec<Instance>, hold: Option<Hold>) -> Self {
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
        }
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build(&visit).await;
    visit.show(page)
}

async fn build(visit: &Visit) -> Result<InstancesPage, Refusal> {
    let (instances, hold) = tokio::join!(
        visit.get::<Counted<Instance>>("/v1/instances"),
        visit.get::<Hold>("/v1/hold")
    );
    let shell = visit.shell(Section::Instances, "Instances");
    Ok(InstancesPage::new(shell, instances?.items, hold.ok()))
}
