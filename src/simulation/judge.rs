//! Reads the record when all is at rest, and has the auditor compare it with the ledger.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    audit::{self, Evidence, Finding, Record},
    world::SimulatedWorld,
};

/// The alerts that are open when all is at rest.
#[derive(Default)]
struct OpenAlerts {
    /// The steps that have an open alert, by task.
    steps: BTreeMap<String, Vec<String>>,
    /// Alerts whose count differs from the number of their steps.
    miscounts: Vec<String>,
}

impl OpenAlerts {
    async fn read(world: &SimulatedWorld) -> Self {
        let mut open = Self::default();
        for alert in world.items("/v1/alerts?state=open&limit=500").await {
            if alert["cause"].is_null() {
                open.add(&alert);
                continue;
            }
            let id = alert["id"].as_str().unwrap();
            let parts = format!("/v1/alerts?part_of={id}&state=open&limit=500");
            let parts = world.items(&parts).await;
            parts.iter().for_each(|part| open.add(part));
            if parts.is_empty() || alert["count"] != parts.len() {
                let what = format!("{} are part of {alert}", parts.len());
                open.miscounts.push(what);
            }
        }
        open
    }

    fn add(&mut self, alert: &Value) {
        if let (Some(task), Some(step)) = (alert["task"].as_str(), alert["step"].as_str()) {
            let steps = self.steps.entry(task.to_owned()).or_default();
            steps.push(step.to_owned());
        }
    }
}

/// Reads all records.
pub async fn read(world: &SimulatedWorld) -> Evidence {
    let alerts = OpenAlerts::read(world).await;
    let mut records = BTreeMap::new();
    for task in world.items("/v1/tasks?limit=500").await {
        let id = task["id"].as_str().unwrap();
        let task = world.ask("GET", &format!("/v1/tasks/{id}"), None).await;
        let history = format!("/v1/tasks/{id}/history?limit=500");
        let history = world.items(&history).await;
        let steps = format!("/v1/tasks/{id}/steps?limit=500");
        let steps = world.items(&steps).await;
        let open = alerts.steps.get(id).cloned().unwrap_or_default();
        let record = Record::read(&task.body, &history, &steps, open, |_| None);
        world.note(format_args!(
            "{id} is {} at {}",
            record.state, record.version
        ));
        records.insert(id.to_owned(), record);
    }
    let books = world.books.lock();
    Evidence {
        accepted: world.accepted.lock().clone(),
        records,
        ledger: books.ledger.clone(),
        deliveries: books.deliveries.clone(),
        answers: world.odd.lock().clone(),
        miscounts: alerts.miscounts,
        ..Evidence::default()
    }
}

/// Returns what the auditor finds, each with the story of its task.
pub fn judge(evidence: &Evidence) -> Vec<(Finding, String)> {
    let findings = audit::audit(evidence).into_iter();
    let with_story = |finding: Finding| {
        let story = finding
            .task
            .as_ref()
            .map_or_else(String::new, |task| audit::story(evidence, task));
        (finding, story)
    };
    findings.map(with_story).collect()
}
