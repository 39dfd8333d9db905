//! The schedules of the operated chaos: they fire every few seconds, and operators trigger, pause and resume them.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{
        audit::{At, Run, Scheduled},
        audit_reader::items,
        harness::{Api, until},
    },
    STUCK_AFTER,
    operators::Odd,
    orders::{self, Mix},
    workflows::{Workflows, of_order},
};

const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Clone, Default)]
pub struct Schedules(Arc<Mutex<Vec<Scheduled>>>);

impl Schedules {
    /// Puts the schedules. `seconds` are the times between the fire times of one.
    pub async fn put(
        &self,
        seed: u64,
        mix: Mix,
        seconds: Range<u64>,
        workflows: &Workflows,
        api: &Api,
    ) {
        let mut random = StdRng::seed_from_u64(seed.rotate_left(29));
        for overlap in ["skip", "queue", "replace", "allow"] {
            let order = orders::order(&mut random, mix, &[], "", "");
            let workflow = format!("tick-{overlap}");
            workflows.register(api, &workflow, of_order(&order)).await;
            let every = random.random_range(seconds.clone());
            let schedule = json!({
                "every": format!("{every}s"),
                "workflow": workflow,
                "labels": { "lot": "lot-1" },
                "overlap": overlap,
                "catch_up": orders::one_of(&mut random, &["none", "last", "all"]),
            });
            let path = format!("/v1/schedules/{overlap}");
            let answer = api.put(&path, &schedule).await;
            assert!([200, 201].contains(&answer.status), "{answer:?}");
            self.0.lock().unwrap().push(Scheduled {
                name: overlap.to_owned(),
                every: Duration::from_secs(every),
                is_alone: overlap != "allow",
                from: At::now(),
                ..Scheduled::default()
            });
        }
    }

    /// Has an operator give a command for one schedule. `key` is the key of a trigger, which is repeated until there is
    /// a response.
    pub async fn command(self, mut random: StdRng, apis: Arc<Vec<Api>>, key: String, odd: Odd) {
        let random = &mut random;
        let number = random.random_range(0..4);
        let Some(name) = self.0.lock().unwrap().get(number).map(|s| s.name.clone()) else {
            return;
        };
        let command = orders::one_of(
            random,
            &["trigger", "trigger", "trigger", "pause", "resume", "resume"],
        );
        let path = format!("/v1/schedules/{name}/{command}");
        let mut is_unclear = false;
        let until = Instant::now() + STUCK_AFTER;
        while Instant::now() < until {
            let api = &apis[random.random_range(0..apis.len())];
            let call = match command {
                "resume" => api.command(&path),
                "pause" => api.post(&path, &json!({ "reason": "chaos" })),
                _ => api.post(&path, &json!({})).header("idempotency-key", &key),
            };
            match timeout(PATIENCE, call.attempt()).await {
                Ok(Ok(answer)) if answer.status == 202 && command == "trigger" => {
                    let run = answer.body["number"].as_u64().unwrap();
                    let mut all = self.0.lock().unwrap();
                    return all[number].triggered.push(run);
                }
                Ok(Ok(answer)) if [200, 409].contains(&answer.status) => break,
                Ok(Ok(answer)) if answer.status != 503 => {
                    return odd.add(format!("{} to {path}: {}", answer.status, answer.body));
                }
                _ if command != "trigger" => return,
                _ => {
                    is_unclear = true;
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // One of the requests without a response may have been carried out, and may be carried out later.
        if is_unclear {
            self.0.lock().unwrap()[number].unclear += 1;
        }
    }

    /// Ends the schedules when all is well: each has fired at all of its fire times, and does not fire any more.
    pub async fn end(&self, api: &Api) {
        let all = self.0.lock().unwrap().clone();
        let names: Vec<_> = { all.iter() }
            .map(|schedule| schedule.name.clone())
            .collect();
        for (number, name) in names.iter().enumerate() {
            let path = format!("/v1/schedules/{name}");
            // The instance may not have reached the database again.
            until(200, async || {
                api.command(&format!("{path}/resume")).await.status
            })
            .await;
            self.0.lock().unwrap()[number].to = At::now();
        }
        for (number, name) in names.iter().enumerate() {
            let to = self.0.lock().unwrap()[number].to;
            let latest = Instant::now() + STUCK_AFTER;
            while Instant::now() < latest && !has_fired(&runs(api, name).await, to) {
                sleep(Duration::from_millis(200)).await;
            }
            let path = format!("/v1/schedules/{name}/pause");
            let discard = json!({ "reason": "it is over", "discard_queued": true });
            until(200, async || api.post(&path, &discard).await.status).await;
        }
    }

    pub async fn read(&self, api: &Api) -> Vec<Scheduled> {
        let mut all = self.0.lock().unwrap().clone();
        for schedule in &mut all {
            schedule.runs = runs(api, &schedule.name).await;
        }
        all
    }
}

fn has_fired(runs: &[Run], to: At) -> bool {
    runs.iter().any(|run| !run.is_triggered && run.last >= to)
}

async fn runs(api: &Api, name: &str) -> Vec<Run> {
    let list = format!("/v1/schedules/{name}/runs?limit=500");
    let runs = items(api, &list).await;
    let run = |run: &Value| {
        let text = |field: &str| run[field].as_str();
        let first = At::of(text("fire_time").unwrap());
        Run {
            number: run["number"].as_u64().unwrap(),
            first,
            last: text("last_fire_time").map_or(first, At::of),
            is_triggered: text("source") == Some("triggered"),
            state: text("state").unwrap().to_owned(),
            task: text("task").map(str::to_owned),
        }
    };
    runs.iter().map(run).collect()
}
