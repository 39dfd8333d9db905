//! Chaos with operators: three instances on one PostgreSQL run small tasks at services
//! that are overloaded, refuse, hang and break connections, while operators undo, cancel, pause, resume,
//! skip, resolve, retry and clone at random instances, and instances, networks and the database fail. At the
//! end, when everything is well and at rest, [`crate::audit`] holds the ledgers of the services and receivers
//! against the record.
//!
//! `PROVOST_TEST_SEED`, `PROVOST_TEST_CHAOS_SECONDS` and `PROVOST_TEST_LOGS` are as in [`super`]; `scripts/soak`
//! sets them. `PROVOST_TEST_CHAOS_MIX` chooses a [`Mix`]: `scripts/prove-auditor` sets it for bugs that need one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    END_WITHIN, STUCK_AFTER,
    agents::{protect, register, register_workers},
    broker::{self, Publisher},
    closing::Closing,
    commit_times::commit_times,
    harm::Harm,
    of_environment,
    operators::{Odd, Operator, Tasks},
    orders::Mix,
    people::People,
    receiver::Receiver,
    schedule::{Pace, Schedule},
    schedules::Schedules,
    services::{ServiceFault, Services},
    submitters::Submitter,
    summary::Summary,
    unsubmitted::{find_tasks, unsubmitted},
    workers,
    workflows::Workflows,
};
use crate::{
    audit::{self, At, Evidence, Finding, Stalls},
    audit_reader::Reader,
    cluster::Server,
    harness::Rabbit,
};

const INSTANCES: usize = 3;
const SUBMITTERS: u64 = 8;
const OPERATORS: u64 = 8;
const WORKERS: u64 = 6;
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
        Mix::All | Mix::Http | Mix::Kinds | Mix::Protected => Pace::Calm,
        Mix::Plain | Mix::Calls => Pace::LateAnswers,
        Mix::Queues => Pace::Losses,
    };
    let schedule = Schedule::of(seed, INSTANCES, length, pace);

    let server = Arc::new(Server::start().await);
    let faults: BTreeSet<_> = ServiceFault::ALL.into();
    let (services, receiver) = (
        Services::start(seed, faults.clone()).await,
        Receiver::start(seed, faults).await,
    );
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
        broker::receive(seed, broker, &receiver);
        let queue = format!("amqp://broker/{}", broker::REQUESTS);
        register(&apis[0], broker::AGENT, &queue, 50, None).await;
    }
    register(&apis[0], "services", &services.url(), 500, None).await;
    register(&apis[0], "narrow", &services.url(), 4, Some(6)).await;
    if mix == Mix::Protected {
        protect(&apis[0], &services.url()).await;
    }
    register_workers(&apis[0], mix == Mix::Protected).await;

    let workflows = Workflows::default();
    let parts = match mix.has_kinds() {
        true => workflows.register_parts(seed, mix, &apis[0]).await,
        false => Vec::new(),
    };
    let schedules = Schedules::default();
    if mix.has_kinds() {
        schedules.put(seed, mix, 1..4, &workflows, &apis[0]).await;
    }
    let (end, over) = watch::channel(false);
    let stalls = watch_stalls();
    let (tasks, odd) = (Tasks::default(), Odd::default());
    workers::start(seed, WORKERS, &apis, &services, &odd);
    let people = People::default();
    if mix.has_kinds() {
        people.start(seed, &apis, &odd);
    }
    tokio::spawn(find_tasks(
        Arc::clone(&apis),
        workflows.clone(),
        tasks.clone(),
        Duration::from_millis(300),
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
            most: u32::MAX,
            longest_pause: Duration::from_millis(200),
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
            longest_pause: Duration::from_millis(50),
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
        pause: Duration::from_millis(200),
    };
    schedules.end(&apis[0]).await;
    let rest = async || match closing.rest().await {
        true => harm.clock.say("all is at rest"),
        false => harm.clock.say("not all came to rest"),
    };
    rest().await;
    findings.extend(closing.errors_are_told().await);
    closing.go_on().await;
    rest().await;
    closing.messages_are_delivered().await;
    if let Some(rabbit) = &harm.rabbit {
        findings.extend(queues_are_empty(rabbit).await);
    }
    harm.look_again().await;

    let reader = Reader::open(&apis[1], commit_times(&server.url()).await).await;
    let records = reader.records(&accepted).await;
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
    let summary = Summary::of(&evidence);
    println!("{summary}");
    assert!(is_shown(&summary, mix), "too little was shown");
    report(seed, &evidence, &findings);
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

/// Returns whether the run shows what its mix is for.
fn is_shown(summary: &Summary, mix: Mix) -> bool {
    match mix {
        Mix::All | Mix::Protected => {
            summary.taken > 0 && summary.polls > 0 && summary.fetched > 0 && summary.queued > 0
        }
        Mix::Plain | Mix::Calls | Mix::Http => true,
        Mix::Kinds => {
            summary.items > 0 && summary.children > 0 && summary.moves > 0 && summary.decided > 0
        }
        Mix::Queues => summary.queued > 0,
    }
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
