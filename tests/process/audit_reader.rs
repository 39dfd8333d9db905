//! Reads the record when all is at rest: tasks, histories and alerts as the API shows them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    audit::{Accepted, At, Record},
    harness::Api,
};

/// An alert that was locked when the last of its steps was resolved closes this much later.
const ALERTS_CLOSE_WITHIN: Duration = Duration::from_secs(20);

/// The alerts that are open when all is at rest.
#[derive(Default)]
pub struct OpenAlerts {
    /// The steps that have an open alert, by task.
    pub steps: BTreeMap<String, Vec<String>>,
    /// Alerts whose count differs from the number of their steps.
    pub miscounts: Vec<String>,
}

impl OpenAlerts {
    pub async fn read(api: &Api) -> Self {
        let until = Instant::now() + ALERTS_CLOSE_WITHIN;
        loop {
            let open = Self::read_once(api).await;
            if open.miscounts.is_empty() || Instant::now() >= until {
                return open;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn read_once(api: &Api) -> Self {
        let mut open = Self::default();
        for alert in items(api, "/v1/alerts?state=open&limit=500").await {
            if alert["cause"].is_null() {
                open.add(&alert);
                continue;
            }
            let id = alert["id"].as_str().unwrap();
            let parts = format!("/v1/alerts?part_of={id}&state=open&limit=500");
            let parts = items(api, &parts).await;
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

/// The times at which the versions of tasks were committed.
pub type CommitTimes = HashMap<(String, u64), At>;

pub struct Reader {
    api: Api,
    alerts: OpenAlerts,
    committed: CommitTimes,
}

impl Reader {
    /// If the time of a commit is not known, that of its decision counts.
    pub async fn open(api: &Api, committed: CommitTimes) -> Self {
        Self {
            api: api.clone(),
            alerts: OpenAlerts::read(api).await,
            committed,
        }
    }

    /// Returns the records of all tasks that the API lists, and of those that were accepted.
    pub async fn records(&self, accepted: &[Accepted]) -> BTreeMap<String, Record> {
        let mut ids: BTreeSet<String> = self.ids().await.into_iter().collect();
        ids.extend(accepted.iter().map(|task| task.id.clone()));
        let mut records = BTreeMap::new();
        for id in ids {
            if let Some(record) = self.record(&id).await {
                records.insert(id, record);
            }
        }
        records
    }

    /// The ids of all tasks that the API lists.
    async fn ids(&self) -> Vec<String> {
        let tasks = items(&self.api, "/v1/tasks?limit=500").await;
        tasks.iter().map(|task| text(&task["id"])).collect()
    }

    /// Returns the record of a task; `None` if the API does not have it.
    async fn record(&self, id: &str) -> Option<Record> {
        let answer = self.api.get(&format!("/v1/tasks/{id}")).await;
        if answer.status == 404 {
            return None;
        }
        let task = answer.expect(200);
        let history = items(&self.api, &format!("/v1/tasks/{id}/history?limit=500")).await;
        // The items of lists are not shown with their task.
        let steps = items(&self.api, &format!("/v1/tasks/{id}/steps?limit=500")).await;
        let alerts = self.alerts.steps.get(id).cloned().unwrap_or_default();
        let committed = |version| self.committed.get(&(id.to_owned(), version)).copied();
        Some(Record::read(&task, &history, &steps, alerts, committed))
    }

    pub fn miscounts(&self) -> &[String] {
        &self.alerts.miscounts
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns all items of a list, page by page.
pub async fn items(api: &Api, list: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("{list}{cursor}")).await.expect(200);
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}
