//! The workflows of the operated chaos, by name and version, as they were registered.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{
    super::{
        audit::{Accepted, At, Plan, Record},
        harness::Api,
    },
    kinds,
    orders::{self, Mix},
};

/// The number of workflows for children. Those in the second half have steps with children of the first half.
const PARTS: usize = 8;
/// The number of workflows of which operators make new versions.
const MOVING: usize = 4;

#[derive(Clone, Default)]
pub struct Workflows(Arc<Mutex<BTreeMap<(String, u32), Value>>>);

impl Workflows {
    pub fn plan(&self, name: &str, version: u32) -> Option<Plan> {
        let known = self.0.lock().unwrap();
        let workflow = known.get(&(name.to_owned(), version));
        workflow.map(Plan::of)
    }

    pub fn add(&self, name: &str, version: u32, workflow: Value) {
        let mut known = self.0.lock().unwrap();
        known.insert((name.to_owned(), version), workflow);
    }

    /// Registers the workflows for children. Returns their names.
    pub async fn register_parts(&self, seed: u64, mix: Mix, api: &Api) -> Vec<String> {
        let mut random = StdRng::seed_from_u64(seed.rotate_left(7));
        let mut parts = Vec::new();
        for number in 0..PARTS {
            let below = if number < PARTS / 2 { &[][..] } else { &parts };
            let below = below.to_vec();
            let order = orders::order(&mut random, mix, &below, "", "");
            let name = format!("part-{number}");
            self.register(api, &name, of_order(&order)).await;
            parts.push(name);
        }
        for number in 0..MOVING {
            let order = orders::order(&mut random, mix, &parts, "", "");
            let workflow = kinds::movable(of_order(&order));
            self.register(api, &format!("moving-{number}"), workflow)
                .await;
        }
        parts
    }

    pub async fn register(&self, api: &Api, name: &str, workflow: Value) {
        let put = api.put(&format!("/v1/workflows/{name}"), &workflow);
        // A request whose response was lost is repeated in the simulation.
        let answer = put.await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        self.add(name, 1, workflow);
    }

    /// Returns the name and the latest known version of a workflow of which operators make new versions.
    pub fn moving(&self, random: &mut StdRng) -> Option<(String, u32, Value)> {
        let name = format!("moving-{}", random.random_range(0..MOVING));
        let known = self.0.lock().unwrap();
        let mut versions = known.range((name.clone(), 0)..=(name.clone(), u32::MAX));
        let ((_, version), workflow) = versions.next_back()?;
        Some((name, *version, workflow.clone()))
    }

    /// Finds the versions that were registered and whose responses were lost.
    pub async fn find_versions(&self, api: &Api) {
        let names: BTreeSet<_> = {
            let known = self.0.lock().unwrap();
            known.keys().map(|(name, _)| name.clone()).collect()
        };
        for name in names {
            for version in 1.. {
                if self.plan(&name, version).is_some() {
                    continue;
                }
                let path = format!("/v1/workflows/{name}/versions/{version}");
                let answer = api.get(&path).await;
                if answer.status != 200 {
                    break;
                }
                self.add(&name, version, answer.body);
            }
        }
    }

    /// Sets the plan of the task to that of its last version, and those of the versions from which it moved.
    pub fn follow(&self, task: &mut Accepted, record: &Record) {
        let Some((name, version)) = &record.workflow else {
            return;
        };
        let plan = |version: u32| {
            let Plan {
                events, start_at, ..
            } = task.plan.clone();
            let plan = self.plan(name, version)?;
            Some(Plan {
                events,
                start_at,
                ..plan
            })
        };
        let moves = record.history.iter().filter_map(|entry| {
            let (from, _) = entry.versions?;
            Some((entry.at, plan(from)?))
        });
        let moves: Vec<(At, Plan)> = moves.collect();
        if let Some(plan) = plan(*version) {
            task.plan = plan;
        }
        task.earlier = moves;
    }
}

/// Returns the fields of a submission that a workflow has.
pub fn of_order(order: &Value) -> Value {
    let mut workflow = json!({});
    for field in ["steps", "on_permanent", "on_exhausted", "on_deadline"] {
        if !order[field].is_null() {
            workflow[field] = order[field].clone();
        }
    }
    workflow
}
