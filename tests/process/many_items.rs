//! A long list on PostgreSQL, while one of the two instances that share its items is killed again and again.
//! `PROVOST_TEST_ITEMS=10000` makes the list as long as a task may have.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Act, Api, Gate, Provost, Remote, Seen, Setup, new_database, step, until};

const KILLS: usize = 10;
/// The number of slots at one instance.
const SLOTS: u32 = 12;
const PARALLEL: u32 = 40;
const MIB: u64 = 1 << 20;

fn items() -> usize {
    let given = std::env::var("PROVOST_TEST_ITEMS").ok();
    given.map_or(1200, |items| {
        items.parse().expect("PROVOST_TEST_ITEMS is a number")
    })
}

/// The effects that the service has for an item.
#[derive(Default, Clone)]
struct Entry {
    /// The attempts of each call, of the step and of its undo.
    calls: Vec<u32>,
    undos: Vec<u32>,
    done: usize,
    undone: usize,
}

/// A service that does its work once for each key.
struct Shop {
    entries: Mutex<BTreeMap<usize, Entry>>,
    complaints: Mutex<Vec<String>>,
    /// Each call of an item needs a permit to get a response.
    gate: Gate,
}

impl Shop {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            complaints: Mutex::default(),
            gate: Gate::closed(),
        })
    }

    fn serve(&self, seen: &Seen, items: usize) -> Act {
        if seen.path == "/list" {
            return Act::Ok(json!((0..items).map(|at| at * 7).collect::<Vec<_>>()));
        }
        if seen.path == "/count" {
            return Act::Ok(json!("counted"));
        }
        let at: usize = seen.path.rsplit_once('/').unwrap().1.parse().unwrap();
        let mut entries = self.entries.lock();
        let entry = entries.entry(at).or_default();
        let key = format!("{}:import[{at}]", seen.header("provost-task"));
        let (key, attempts) = match seen.method.as_str() {
            "DELETE" => (format!("{key}.undo"), &mut entry.undos),
            _ => (key, &mut entry.calls),
        };
        let is_right = seen.key() == key && !attempts.contains(&seen.attempt());
        attempts.push(seen.attempt());
        let is_undo = seen.method == "DELETE";
        if !is_right || !is_undo && (seen.body != json!(at * 7) || !entry.undos.is_empty()) {
            self.complaints.lock().push(format!("{seen:?}"));
        }
        match is_undo {
            true if entry.undos.len() == 1 => entry.undone += 1,
            false if entry.calls.len() == 1 => entry.done += 1,
            _ => {}
        }
        let answer = Act::Ok(json!({ "id": format!("i{at}") }));
        Act::Gated(self.gate.clone(), Box::new(answer))
    }
}

fn import() -> Value {
    json!({ "steps": [
        { "name": "list", "agent": "shop", "request": { "method": "GET", "path": "/list" } },
        { "name": "import", "agent": "shop", "for_each": "{{ steps.list.output }}", "max_parallel": PARALLEL,
          "complete_within": "10m", "request": { "path": "/import/{{ index }}", "body": "{{ item }}" },
          "undo": { "request": { "method": "DELETE", "path": "/import/{{ index }}" }, "complete_within": "10m" } },
        { "name": "count", "agent": "shop", "request": { "path": "/count" } },
    ] })
}

struct Scene {
    stays: Provost,
    dies: Provost,
    shop: Arc<Shop>,
    remote: Remote,
    id: String,
    items: usize,
    began: Instant,
}

impl Scene {
    async fn begin(items: usize) -> Self {
        let url = new_database().await;
        let on = |name: &str| {
            let setup: Setup = Provost::setup().database_url(&url);
            setup.set("INSTANCE_ID", name).set("INSTANCE__LEASE", "1s")
        };
        let (stays, dies) = tokio::join!(on("stays").start(), on("dies-0").start());
        let shop = Shop::new();
        let serving = shop.clone();
        let remote = Remote::with(move |seen| serving.serve(seen, items)).await;
        stays.register("shop", &remote.url(), SLOTS).await;
        let began = Instant::now();
        let id = dies.submit(&import()).await;
        Self {
            stays,
            dies,
            shop,
            remote,
            id,
            items,
            began,
        }
    }

    async fn has_calls_under_way(&self) {
        until(true, async || {
            let agent = self.dies.get("/v1/agents/shop").await.expect(200);
            agent["in_flight"].as_u64() > Some(0)
        })
        .await;
    }

    /// Lets `calls` calls get responses, and kills one instance during that time, or once it certainly has running
    /// calls. The instance starts again, or another one takes over.
    async fn kill_amid(&mut self, calls: usize, round: usize) {
        let before = self.remote.count();
        self.shop.gate.let_through(calls);
        self.remote.requests(before + calls / 2).await;
        match round % 2 {
            0 => self.has_calls_under_way().await,
            _ => {
                let pause = rand::rng().random_range(0..20_000);
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        }
        self.dies.kill().await;
        let name = format!("dies-{}", (round + 1) / 3);
        self.dies
            .restart_with(|setup| setup.set("INSTANCE_ID", &name))
            .await;
    }

    async fn end(&self) -> Value {
        let mut count = 0;
        loop {
            let task = self
                .stays
                .get(&format!("/v1/tasks/{}?wait=60s", self.id))
                .await;
            let task = task.expect(200);
            let done = self.remote.count();
            if !["processing", "undoing"].contains(&task["state"].as_str().unwrap()) {
                return task;
            }
            assert!(done > count, "nothing goes on: {task:#}");
            count = done;
        }
    }

    async fn history(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/tasks/{}/history?limit=500{cursor}", self.id);
            let page = self.stays.get(&path).await.expect(200);
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    fn assert_bounded(&self, what: &str) {
        let peak = self.stays.peak_memory();
        println!(
            "{} items {what} in {:?}, peak {:?} MiB, {} calls",
            self.items,
            self.began.elapsed(),
            peak.map(|peak| peak / MIB),
            self.remote.count()
        );
        // The bound is the memory that the service takes without any items, and a few KiB for each item.
        let bound = 150 * MIB + self.items as u64 * 20 * 1024;
        assert!(peak.is_none_or(|peak| peak < bound), "{peak:?}");
    }
}

/// Returns, for each item, the number of history entries of this kind.
fn counts(history: &[Value], kind: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for entry in history.iter().filter(|entry| entry["type"] == kind) {
        if let Some(step) = entry["step"].as_str() {
            *counts.entry(step.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Checks what is true of any history: each state follows from the one before.
fn assert_consistent(history: &[Value]) {
    let mut states: HashMap<&str, &str> = HashMap::new();
    for entry in history {
        let (Some(step), Some(to)) = (entry["step"].as_str(), entry["to"].as_str()) else {
            continue;
        };
        if let Some(from) = entry["from"].as_str() {
            let known = states.get(step).copied().unwrap_or(from);
            assert_eq!(known, from, "{entry}");
        }
        states.insert(step, to);
    }
}

async fn of_group(api: &Api, id: &str, of: &str) -> Value {
    let task = api.task(id).await;
    step(&task, of).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_item_has_its_effect_once_although_an_instance_is_killed_again_and_again() {
    let items = items();
    let mut scene = Scene::begin(items).await;
    for round in 0..KILLS {
        scene.kill_amid(items / (KILLS + 2), round).await;
    }
    scene.shop.gate.open();
    let task = scene.end().await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let outputs: Vec<_> = (0..items)
        .map(|at| json!({ "id": format!("i{at}") }))
        .collect();
    assert!(step(&task, "import")["output"] == json!(outputs));
    let complaints = scene.shop.complaints.lock().clone();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let entries = scene.shop.entries.lock().clone();
    assert_eq!(entries.len(), items);
    assert!(
        entries
            .values()
            .all(|entry| entry.done == 1 && entry.undos.is_empty())
    );
    // Only calls that were running at a kill were made again, and calls whose response was not saved yet, because a
    // slot is released before the save.
    let again: usize = entries.values().map(|entry| entry.calls.len() - 1).sum();
    assert!(again > 0 && again <= 2 * KILLS * SLOTS as usize, "{again}");
    let history = scene.history().await;
    assert_consistent(&history);
    let (processed, claimed) = (
        counts(&history, "step.processed"),
        counts(&history, "step.claimed"),
    );
    for (at, entry) in &entries {
        let name = format!("import[{at}]");
        assert_eq!(processed[&name], 1);
        assert!(claimed[&name] >= entry.calls.len(), "{name}");
    }
    scene.assert_bounded("processed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_amid_a_long_list_undoes_every_item_that_began_although_an_instance_is_killed() {
    let items = items();
    let mut scene = Scene::begin(items).await;
    for round in 0..2 {
        scene.kill_amid(items / 10, round).await;
    }
    let before = scene.remote.count();
    scene.shop.gate.let_through(items / 10);
    scene.remote.requests(before + items / 20).await;
    scene.has_calls_under_way().await;
    let path = format!("/v1/tasks/{}/undo", scene.id);
    let task = scene.dies.post(&path, &json!({})).await.expect(200);
    assert_eq!(task["state"], "undoing");
    for round in 2..6 {
        scene.kill_amid(items / 24, round).await;
    }
    scene.shop.gate.open();
    let task = scene.end().await;
    assert_eq!(task["state"], "undone", "{task:#}");
    let complaints = scene.shop.complaints.lock().clone();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let entries = scene.shop.entries.lock().clone();
    assert!(entries.len() > items / 10 && entries.len() < items / 2);
    for (at, entry) in &entries {
        assert!(entry.done <= 1 && entry.undone == 1, "{at}");
    }
    let history = scene.history().await;
    assert_consistent(&history);
    let group = of_group(scene.stays.api(), &scene.id, "import").await;
    let states = &group["items"]["states"];
    assert_eq!(states["undone"], entries.len(), "{states}");
    assert_eq!(states["cancelled"], items - entries.len(), "{states}");
    let cancelled = history
        .iter()
        .find(|entry| entry["type"] == "step.items_cancelled");
    assert!(cancelled.is_some());
    let undone = counts(&history, "step.undone");
    assert!(
        entries
            .keys()
            .all(|at| undone[&format!("import[{at}]")] == 1)
    );
    scene.assert_bounded("undone");
}
