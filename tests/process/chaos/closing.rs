//! The operator who finishes a run of the operated chaos, so that every task ends or waits for an operator.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        audit::{self, Finding},
        audit_reader::{OpenAlerts, items},
        harness::Api,
    },
    END_WITHIN, STUCK_AFTER,
    services::Services,
    submitters::TURNS,
};

/// The operator who finishes the test, so that every task ends or waits for an operator.
pub struct Closing<'a> {
    pub api: &'a Api,
    pub services: &'a Services,
    /// The time between two looks.
    pub pause: Duration,
}

impl Closing<'_> {
    async fn tasks(&self, state: &str) -> Vec<String> {
        let list = format!("/v1/tasks?state={state}&limit=500");
        let tasks = items(self.api, &list).await;
        let ids = tasks.iter().map(|task| task["id"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    }

    /// Resumes paused tasks, and waits until no task changes any more. Returns false if one still does, which the auditor
    /// finds.
    pub async fn rest(&self) -> bool {
        let mut moved = (Vec::new(), Instant::now());
        while moved.1.elapsed() < STUCK_AFTER {
            for id in self.tasks("paused").await {
                let resume = self.api.command(&format!("/v1/tasks/{id}/resume"));
                let _ = resume.attempt().await;
            }
            let mut moving = Vec::new();
            for state in ["pending", "processing", "undoing", "paused"] {
                let list = format!("/v1/tasks?state={state}&limit=500");
                let tasks = items(self.api, &list).await;
                moving.extend(tasks.iter().map(|task| task["version"].to_string()));
            }
            for id in self.tasks("error").await {
                let task = self.api.task(&id).await;
                if task["workflow"] == TURNS {
                    // Other tasks wait for its end.
                    let cancel = self.api.command(&format!("/v1/tasks/{id}/cancel"));
                    let _ = cancel.attempt().await;
                    moving.push(task["version"].to_string());
                    continue;
                }
                let steps = items(self.api, &format!("/v1/tasks/{id}/steps?limit=500")).await;
                let live =
                    |step: &&Value| step["state"] == "pending" || step["state"] == "processing";
                if steps.iter().filter(live).count() > 0 {
                    // The task may also be paused; its state does not show that.
                    let resume = self.api.command(&format!("/v1/tasks/{id}/resume"));
                    let _ = resume.attempt().await;
                    moving.push(task["version"].to_string());
                }
            }
            // Some tasks only wait for a child in error.
            if moving == moved.0 && !moving.is_empty() && self.are_stuck().await {
                moving.clear();
            }
            if moving.is_empty() && !self.services.are_busy() {
                return true;
            }
            if moving != moved.0 {
                moved = (moving, Instant::now());
            }
            sleep(self.pause).await;
        }
        false
    }

    /// Returns whether each running task only waits for a task in error.
    async fn are_stuck(&self) -> bool {
        let mut parents = HashSet::new();
        let mut waiting: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for state in ["pending", "processing", "undoing", "error"] {
            for task in items(self.api, &format!("/v1/tasks?state={state}&limit=500")).await {
                let id = task["id"].as_str().unwrap();
                parents.extend(task["parent"]["task"].as_str().map(str::to_owned));
                let steps = items(self.api, &format!("/v1/tasks/{id}/steps?limit=500")).await;
                let live = steps.into_iter().filter(|step| {
                    let live = step["state"] == "pending" || step["state"] == "processing";
                    live && !step["items"].is_object()
                });
                let live: Vec<_> = live.collect();
                if live.is_empty() && state != "error" {
                    return false;
                }
                waiting.insert(id.to_owned(), live);
            }
        }
        // The undo of a step names no child.
        let waits = |id: &String, step: &Value| match step["blocked_by"]["task"].as_str() {
            Some(child) => waiting.contains_key(child),
            None => step["blocked_by"]["reason"] == "child" && parents.contains(id),
        };
        let mut all = waiting.iter();
        all.all(|(id, live)| live.iter().all(|step| waits(id, step)))
    }

    /// Checks that each task in error has an open alert, before any operator acts on it.
    pub async fn errors_are_told(&self) -> Vec<Finding> {
        let open = OpenAlerts::read(self.api).await;
        let errors = self.tasks("error").await;
        println!("{} tasks are in error", errors.len());
        let untold = errors.iter().filter(|id| !open.steps.contains_key(*id));
        let untold = untold.map(|id| audit::error_without_alert(id));
        let miscounts = open.miscounts.iter();
        let miscounts = miscounts.map(|what| audit::alert_miscounted(what));
        untold.chain(miscounts).collect()
    }

    /// Undoes or retries most tasks in error; some stay as they are.
    pub async fn go_on(&self) {
        for task in items(self.api, "/v1/tasks?state=error&limit=500").await {
            let (id, key) = (task["id"].as_str().unwrap(), task["key"].as_str().unwrap());
            let chance = (key.len() + key.bytes().map(usize::from).sum::<usize>()) % 4;
            let tries: &[&str] = match chance {
                0 => continue,
                1 => &["retry"],
                // If the task is past a pivot or is being undone already, the undo is refused, and the task is retried.
                _ => &["undo", "retry"],
            };
            for command in tries {
                let asked = self.api.command(&format!("/v1/tasks/{id}/{command}"));
                if asked.await.status == 200 {
                    break;
                }
            }
        }
    }

    pub async fn messages_are_delivered(&self) {
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until {
            let pending = self.api.get("/v1/messages?state=pending").await.expect(200);
            if pending["items"].as_array().unwrap().is_empty() {
                return;
            }
            sleep(self.pause).await;
        }
    }
}
