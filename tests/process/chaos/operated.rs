//! Chaos with operators: three instances on one PostgreSQL run small tasks at services
//! that are overloaded, refuse, hang and break connections, while operators undo, cancel, pause, resume,
//! skip, resolve, retry and clone at random instances, and instances, networks and the database fail. At the
//! end, when everything is well and at rest, [`crate::audit`] holds the ledgers of the services and receivers
//! against the record.
//!
//! `PROVOST_TEST_SEED`, `PROVOST_TEST_CHAOS_SECONDS` and `PROVOST_TEST_LOGS` are as in [`super`]; `scripts/soak`
//! sets them. `PROVOST_TEST_CHAOS_MIX` chooses a [`Mix`]: `scripts/prove-auditor` sets it for bugs that need one.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    END_WITHIN, STUCK_AFTER,
    broker::{self, Publisher},
    harm::{Ended, Harm},
    of_environment,
    operators::{Odd, Operator, Tasks},
    orders::Mix,
    people::People,
    receiver::Receiver,
    schedule::{Pace, Schedule},
    schedules::Schedules,
    services::Services,
    submitters::{Submitter, TURNS},
    workers,
    workflows::Workflows,
};
use crate::{
    audit::{self, Accepted, At, Evidence, Finding, Kind, Stalls},
    audit_reader::{OpenAlerts, Reader, items},
    cluster::Server,
    harness::{Api, Rabbit},
};

const INSTANCES: usize = 3;
const SUBMITTERS: u64 = 8;
const OPERATORS: u64 = 8;
const SECONDS: u64 = 12;
const LEAST_TASKS: usize = 100;
const LEAST_COMMANDS: usize = 60;
const SHOWN_OF_EACH_RULE: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_operators_do_meanwhile_the_ledgers_agree_with_the_record() {
    let seed =
        of_environment("PROVOST_TEST_SEED").unwrap_or_else(|| rand::random_range(0..1 << 32));
    println!("PROVOST_TEST_SEED={seed} replays the schedule");
    let length = of_environment("PROVOST_TEST_CHAOS_SECONDS").unwrap_or(SECONDS);
    let length = Duration::from_secs(length);
    let mix = Mix::chosen();
    let pace = match mix {
        Mix::All | Mix::Kinds | Mix::Protected => Pace::Calm,
        Mix::Plain => Pace::LateAnswers,
        Mix::Queues => Pace::Losses,
    };
    let schedule = Schedule::of(seed, INSTANCES, length, pace);

    let server = Arc::new(Server::start().await);
    let (services, receiver) = (Services::start(seed).await, Receiver::start(seed).await);
    let log = match std::env::var_os("PROVOST_TEST_LOGS") {
        Some(_) => "debug",
        None => "info",
    };
    let rabbit = match mix.has_broker() {
        true => Some(Rabbit::start().await),
        false => None,
    };
    let broker = rabbit.as_ref().map(|rabbit| rabbit.url());
    if let Some(rabbit) = &rabbit {
        let client = rabbit.client().await;
        client.declare(broker::REQUESTS).await;
        client.declare(broker::TOLD).await;
    }
    let harm = Harm::start(&server, rabbit, INSTANCES, log).await;
    let apis = harm.apis();
    services.reply_to(Arc::clone(&apis));
    if let Some(broker) = &broker {
        services.reply_through(broker);
        broker::serve(seed, broker, &services);
        receiver.read(seed, broker);
        let queue = format!("amqp://broker/{}", broker::REQUESTS);
        register(&apis[0], broker::AGENT, &queue, 50, None).await;
    }
    register(&apis[0], "services", &services.url(), 500, None).await;
    register(&apis[0], "narrow", &services.url(), 4, Some(6)).await;
    let mut pull = json!({ "mode": "pull" });
    if mix == Mix::Protected {
        protect(&apis[0], &services.url()).await;
        pull["limits"] = json!([{ "by": BY_LOT, "max_in_flight": 4 }]);
    }
    let put = apis[0].put(&format!("/v1/agents/{}", workers::AGENT), &pull);
    put.await.expect(201);

    let workflows = Workflows::default();
    let parts = match mix.has_kinds() {
        true => workflows.register_parts(seed, mix, &apis[0]).await,
        false => Vec::new(),
    };
    let schedules = Schedules::default();
    if mix.has_kinds() {
        schedules.put(seed, mix, &workflows, &apis[0]).await;
    }
    let (end, over) = watch::channel(false);
    let stalls = watch_stalls();
    let (tasks, odd) = (Tasks::default(), Odd::default());
    workers::start(seed, &apis, &services, &odd);
    let people = People::default();
    if mix.has_kinds() {
        people.start(seed, &apis, &odd);
    }
    tokio::spawn(find_tasks(
        Arc::clone(&apis),
        workflows.clone(),
        tasks.clone(),
    ));
    let carried_out = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        let submitter = Submitter {
            number,
            seed,
            mix,
            workflows: workflows.clone(),
            parts: parts.clone(),
            apis: Arc::clone(&apis),
            tasks: tasks.clone(),
            odd: odd.clone(),
            receiver: receiver.url(),
            publisher: broker.as_deref().map(|url| Arc::new(Publisher::new(url))),
        };
        submitters.spawn(submitter.work(over.clone()));
    }
    let mut operators = JoinSet::new();
    for number in 0..OPERATORS {
        let operator = Operator {
            number,
            seed,
            apis: Arc::clone(&apis),
            tasks: tasks.clone(),
            odd: odd.clone(),
            mix,
            workflows: workflows.clone(),
            schedules: schedules.clone(),
            carried_out: Arc::clone(&carried_out),
        };
        operators.spawn(operator.work(over.clone()));
    }
    let harm = harm.done(schedule, length, over).await;
    // On a busy machine the faults may be over before enough was tested.
    let until = Instant::now() + END_WITHIN;
    let shown =
        || tasks.count() >= LEAST_TASKS && carried_out.load(Ordering::Relaxed) >= LEAST_COMMANDS;
    while !shown() && Instant::now() < until {
        sleep(Duration::from_millis(50)).await;
    }
    end.send_replace(true);
    services.be_well();
    receiver.be_well();
    let mut harm = harm.ends().await;
    submitters.join_all().await;
    let mut commands: BTreeMap<u16, usize> = BTreeMap::new();
    for (status, count) in operators.join_all().await.into_iter().flatten() {
        *commands.entry(status).or_default() += count;
    }
    let mut accepted = tasks.all();
    println!(
        "{} tasks were accepted; commands: {commands:?}",
        accepted.len()
    );
    assert!(shown(), "too little was shown");

    let mut findings = Vec::new();
    let closing = Closing {
        api: &apis[0],
        services: &services,
    };
    schedules.end(&apis[0]).await;
    closing.rest(&harm).await;
    findings.extend(closing.errors_are_told().await);
    closing.go_on().await;
    closing.rest(&harm).await;
    closing.messages_are_delivered().await;
    if let Some(rabbit) = &harm.rabbit {
        findings.extend(queues_are_empty(rabbit).await);
    }
    harm.look_again().await;

    let reader = Reader::open(&apis[1], &server.url()).await;
    let records = records(&reader, &accepted).await;
    workflows.find_versions(&apis[0]).await;
    accepted.extend(unsubmitted(&records, &workflows, &accepted));
    for task in &mut accepted {
        if let Some(record) = records.get(&task.id) {
            workflows.follow(task, record);
        }
    }
    let evidence = Evidence {
        records,
        schedules: schedules.read(&apis[1]).await,
        decisions: people.decisions(),
        miscounts: reader.miscounts().to_vec(),
        accepted,
        ledger: services.ledger(),
        deliveries: receiver.deliveries(),
        exits: std::mem::take(&mut harm.exits),
        panics: std::mem::take(&mut harm.panics),
        suspensions: std::mem::take(&mut harm.suspensions),
        troubles: std::mem::take(&mut harm.troubles),
        stalls: Stalls(stalls.lock().unwrap().clone()),
        answers: odd.all(),
        skew: Duration::ZERO,
    };
    findings.extend(audit::audit(&evidence));
    summarise(&evidence, mix);
    report(seed, &evidence, &findings);
}

async fn register(api: &Api, name: &str, url: &str, places: u32, open: Option<u32>) {
    let mut spec = json!({
        "endpoints": [{ "url": url, "max_in_flight": places }],
        "retry": { "initial": "200ms", "max": "800ms", "factor": 2 },
    });
    if let Some(open) = open {
        spec["max_open"] = json!(open);
    }
    let answer = api.put(&format!("/v1/agents/{name}"), &spec).await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

const BY_LOT: &str = "{{ task.labels.lot }}";

/// Configures everything that limits the calls of a service, so tightly that each limit has an effect.
async fn protect(api: &Api, url: &str) {
    let retry = json!({ "initial": "200ms", "max": "800ms", "factor": 2, "budget_percent": 60 });
    let breaker =
        json!({ "failure_percent": 60, "window": "2s", "min_calls": 10, "open_for": "300ms" });
    let services = json!({
        "endpoints": [{ "url": url, "max_in_flight": 250 }, { "url": url.replace("127.0.0.1", "localhost"), "max_in_flight": 250 }],
        "retry": retry,
        "breaker": breaker,
        "ejection": { "after": 4, "for": "200ms" },
        "max_in_flight": 60,
        "rate_limit": { "rate": "400/s", "burst": 40 },
        "adaptive": { "least": 4 },
        "limits": [{ "by": BY_LOT, "max_in_flight": 8, "rate": "60/s" }],
        "fairness": { "by": BY_LOT, "weights": { "lot-1": 3 } },
    });
    let narrow = json!({
        "endpoints": [{ "url": url, "max_in_flight": 4 }],
        "retry": retry,
        "max_open": 6,
        "limits": [{ "by": BY_LOT, "max_in_flight": 2 }, { "by": "{{ task.key }}", "max_in_flight": 1 }],
    });
    for (name, spec) in [("services", services), ("narrow", narrow)] {
        let answer = api.put(&format!("/v1/agents/{name}"), &spec).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// Measures again and again how late this process is.
fn watch_stalls() -> Arc<Mutex<Vec<(At, Duration)>>> {
    const TICK: Duration = Duration::from_millis(20);
    let stalls: Arc<Mutex<Vec<(At, Duration)>>> = Arc::default();
    let kept = Arc::clone(&stalls);
    tokio::spawn(async move {
        loop {
            let before = Instant::now();
            sleep(TICK).await;
            let late = before.elapsed().saturating_sub(TICK);
            if late > TICK {
                kept.lock().unwrap().push((At::now(), late));
            }
        }
    });
    stalls
}

/// The operator who finishes the test, so that every task ends or waits for an operator.
struct Closing<'a> {
    api: &'a Api,
    services: &'a Services,
}

impl Closing<'_> {
    async fn tasks(&self, state: &str) -> Vec<String> {
        let list = format!("/v1/tasks?state={state}&limit=500");
        let tasks = items(self.api, &list).await;
        let ids = tasks.iter().map(|task| task["id"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    }

    /// Resumes paused tasks, and waits until no task changes any more. A task that still changes is found by the
    /// auditor.
    async fn rest(&self, harm: &Ended) {
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
                harm.clock.say("all is at rest");
                return;
            }
            if moving != moved.0 {
                moved = (moving, Instant::now());
            }
            sleep(Duration::from_millis(200)).await;
        }
        harm.clock.say("not all came to rest");
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
    async fn errors_are_told(&self) -> Vec<Finding> {
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
    async fn go_on(&self) {
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

    async fn messages_are_delivered(&self) {
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until {
            let pending = self.api.get("/v1/messages?state=pending").await.expect(200);
            if pending["items"].as_array().unwrap().is_empty() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Checks that every message was taken, and that none became a dead letter.
async fn queues_are_empty(rabbit: &Rabbit) -> Vec<Finding> {
    let until = Instant::now() + STUCK_AFTER;
    loop {
        let queues = rabbit.control(&["-q", "list_queues", "name", "messages"]);
        let queues = queues.await;
        let counts = queues.lines().filter_map(|line| line.split_once('\t'));
        let left = counts.filter(|(name, count)| *name != "name" && *count != "0");
        let left: Vec<_> = left
            .map(|(name, count)| format!("{name}: {count}"))
            .collect();
        let is_over = Instant::now() > until || left.iter().any(|line| line.contains(".dead"));
        if left.is_empty() || is_over {
            return left.iter().map(|left| audit::message_left(left)).collect();
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Returns the tasks that were not made by submitters, with their plans.
fn unsubmitted(
    records: &BTreeMap<String, audit::Record>,
    workflows: &Workflows,
    accepted: &[Accepted],
) -> Vec<Accepted> {
    let known: HashSet<_> = accepted.iter().map(|task| &task.id).collect();
    let unknown = records.iter().filter(|(id, _)| !known.contains(id));
    let found = unknown.filter_map(|(id, record)| {
        if record.parent.is_none() && record.schedule.is_none() {
            return None;
        }
        let (name, version) = record.workflow.as_ref()?;
        Some(Accepted {
            id: id.clone(),
            key: record.key.clone(),
            plan: workflows.plan(name, *version)?,
            ..Accepted::default()
        })
    });
    found.collect()
}

/// Lets operators know the tasks that no submitter made, until the test is over.
async fn find_tasks(apis: Arc<Vec<Api>>, workflows: Workflows, tasks: Tasks) {
    for turn in 0.. {
        sleep(Duration::from_millis(300)).await;
        let list = apis[turn % apis.len()].get("/v1/tasks?limit=100").attempt();
        let Ok(Ok(answer)) = timeout(Duration::from_secs(1), list).await else {
            continue;
        };
        for task in answer.body["items"].as_array().into_iter().flatten() {
            let name = task["workflow"].as_str().unwrap_or_default();
            let version = task["workflow_version"].as_u64().unwrap_or_default();
            let plan = workflows.plan(name, u32::try_from(version).unwrap());
            let is_found = task["parent"].is_object() || task["labels"]["schedule"].is_string();
            if let (true, Some(plan)) = (is_found, plan) {
                let text = |field: &str| task[field].as_str().unwrap_or_default();
                tasks.find(text("id"), text("key"), plan);
            }
        }
    }
}

async fn records(reader: &Reader, accepted: &[Accepted]) -> BTreeMap<String, audit::Record> {
    let mut ids: HashSet<String> = reader.ids().await.into_iter().collect();
    ids.extend(accepted.iter().map(|task| task.id.clone()));
    let mut records = BTreeMap::new();
    for id in ids {
        if let Some(record) = reader.record(&id).await {
            records.insert(id, record);
        }
    }
    records
}

fn summarise(evidence: &Evidence, mix: Mix) {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for record in evidence.records.values() {
        *states.entry(&record.state).or_default() += 1;
    }
    let ledger = &evidence.ledger;
    println!(
        "{states:?}; {} calls, {} effects, {} deliveries, {} suspensions",
        ledger.calls.len(),
        ledger.effects.len(),
        evidence.deliveries.len(),
        evidence.suspensions.len()
    );
    let of = |kind: Kind| ledger.calls.iter().filter(|call| call.kind == kind).count();
    let taken = ledger.replies.iter().filter(|reply| reply.status == 204);
    let taken = taken.count();
    println!(
        "{} replies came later, {taken} of them in time; {} heartbeats, {} polls, {} cancellations",
        ledger.replies.len(),
        ledger.heartbeats.len(),
        of(Kind::Poll),
        of(Kind::Cancel)
    );
    let fetched = ledger.fetched.len();
    println!("{fetched} steps were fetched");
    let queued = ledger.calls.iter().filter(|c| c.waited_until.is_some());
    let queued = queued.count();
    println!(
        "{queued} requests came from a queue; {} replies went to one",
        ledger.queued_replies.len()
    );
    let plans = evidence.accepted.iter().map(|task| &task.plan.steps);
    let groups = plans.flatten().filter_map(|step| step.items);
    let (lists, repeats): (Vec<_>, Vec<_>) = groups.partition(|items| items.iterations.is_none());
    let items: usize = lists.iter().map(|items| items.count).sum();
    let repeats = repeats.len();
    let children = evidence.records.values();
    let children = children.filter(|record| record.parent.is_some()).count();
    let moved = evidence.accepted.iter().map(|task| task.earlier.len());
    let moved: usize = moved.sum();
    let decided = evidence.decisions.iter();
    let decided = decided.filter(|decision| decision.status == 200).count();
    println!(
        "{items} items of lists, {repeats} repeats, {children} children, {moved} moves, {decided} decisions"
    );
    let runs = evidence
        .schedules
        .iter()
        .flat_map(|schedule| &schedule.runs);
    let fired = runs.clone().filter(|run| run.task.is_some()).count();
    let triggered = runs.filter(|run| run.is_triggered).count();
    let later = evidence.accepted.iter();
    let later = later.filter(|task| task.plan.start_at.is_some()).count();
    println!("{fired} runs of schedules, {triggered} of them triggered; {later} tasks for later");
    let is_shown = match mix {
        Mix::All | Mix::Protected => taken > 0 && of(Kind::Poll) > 0 && fetched > 0 && queued > 0,
        Mix::Plain => true,
        Mix::Kinds => items > 0 && children > 0 && moved > 0 && decided > 0,
        Mix::Queues => queued > 0,
    };
    assert!(is_shown, "too little was shown");
}

/// Fails with all findings, and prints the stories of the first few tasks.
fn report(seed: u64, evidence: &Evidence, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    let mut rules: BTreeMap<_, usize> = BTreeMap::new();
    let mut tasks: Vec<&str> = Vec::new();
    for finding in findings {
        let of_rule = rules.entry(finding.rule).or_default();
        *of_rule += 1;
        // The findings of one rule must not hide those of the others.
        if *of_rule <= SHOWN_OF_EACH_RULE {
            println!("FOUND {finding}");
        }
        if let Some(task) = finding.task.as_deref()
            && rules[&finding.rule] <= 2
            && !tasks.contains(&task)
        {
            tasks.push(task);
        }
    }
    for task in tasks.iter().take(6) {
        println!("{}", audit::story(evidence, task));
    }
    panic!("PROVOST_TEST_SEED={seed}: the auditor found {rules:?}");
}
