//! The script of the world: tasks are submitted while there are faults, then all must be at rest, and the record is read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{
    audit::{At, Evidence, Finding, Stalls},
    audit_reader::{CommitTimes, Reader},
    chaos::{
        Closing, Odd, Operator, People, Receiver, Schedules, Services, Submitter, Summary, Tasks,
        Workflows, find_tasks, register, register_workers, start_workers, unsubmitted,
    },
    client::SimulatedApi,
    plan::{Hazard, SUBMITTERS},
    world::SimulatedWorld,
};
use crate::host::EPOCH;

const OPERATORS: u64 = 4;
const WORKERS: u64 = 2;
/// The time between two looks at what changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The evidence of a run, without the harm to its hosts.
pub struct Played {
    pub evidence: Evidence,
    /// The findings from before an operator ended the errors.
    pub findings: Vec<Finding>,
}

/// Plays the plan of the world until all is at rest.
pub async fn play(world: Arc<SimulatedWorld>) -> Played {
    let plan = &world.plan;
    let (seed, mix) = (plan.seed, plan.mix);
    let apis = SimulatedApi::of_all(&world);
    let services = Services::start(seed, plan.service_faults()).await;
    let receiver = Receiver::start(seed, plan.service_faults()).await;
    services.reply_to(apis.clone());
    register(&apis[0], "services", &services.url(), 500, None).await;
    register(&apis[0], "narrow", &services.url(), 3, Some(5)).await;
    let (tasks, odd) = (Tasks::default(), Odd::default());
    let workflows = Workflows::default();
    let (schedules, people) = (Schedules::default(), People::default());
    let mut parts = Vec::new();
    if mix.has_kinds() {
        register_workers(&apis[0], false).await;
        parts = workflows.register_parts(seed, mix, &apis[0]).await;
        schedules.put(seed, mix, 4..12, &workflows, &apis[0]).await;
        start_workers(seed, WORKERS, &apis, &services, &odd);
        people.start(seed, &apis, &odd);
    }
    let finding = tokio::spawn(find_tasks(
        apis.clone(),
        workflows.clone(),
        tasks.clone(),
        LOOK_EVERY,
    ));
    let (end, over) = watch::channel(false);
    let mut roles = JoinSet::new();
    for number in 0..SUBMITTERS {
        let submitter = Submitter {
            number: u64::from(number),
            seed,
            mix,
            workflows: workflows.clone(),
            parts: parts.clone(),
            apis: apis.clone(),
            tasks: tasks.clone(),
            odd: odd.clone(),
            receiver: receiver.url(),
            most: (plan.tasks + SUBMITTERS - 1 - number) / SUBMITTERS,
            longest_pause: plan.longest_pause,
            publisher: None,
        };
        let over = over.clone();
        roles.spawn(async move { submitter.work(over).await });
    }
    let carried_out = Arc::new(AtomicUsize::new(0));
    if plan.has(Hazard::Operators) {
        for number in 0..OPERATORS {
            let operator = Operator {
                number,
                seed,
                apis: apis.clone(),
                tasks: tasks.clone(),
                odd: odd.clone(),
                mix,
                workflows: workflows.clone(),
                schedules: schedules.clone(),
                longest_pause: Duration::from_secs(2),
                carried_out: carried_out.clone(),
            };
            let over = over.clone();
            roles.spawn(async move {
                operator.work(over).await;
            });
        }
    }
    sleep(plan.length.saturating_sub(world.time())).await;
    world.be_well();
    services.be_well();
    receiver.be_well();
    finding.abort();
    end.send_replace(true);
    roles.join_all().await;
    // Each instance runs again.
    for api in apis.iter() {
        api.get("/v1/tasks?limit=1").await.expect(200);
    }

    let closing = Closing {
        api: &apis[0],
        services: &services,
        pause: LOOK_EVERY,
    };
    schedules.end(&apis[0]).await;
    closing.rest().await;
    world.note(format_args!("the first rest"));
    let findings = closing.errors_are_told().await;
    closing.go_on().await;
    closing.rest().await;
    world.note(format_args!("the second rest"));
    closing.messages_are_delivered().await;

    let mut accepted = tasks.all();
    let reader = Reader::open(&apis[apis.len() - 1], CommitTimes::default()).await;
    let records = reader.records(&accepted).await;
    workflows.find_versions(&apis[0]).await;
    accepted.extend(unsubmitted(&records, &workflows, &accepted));
    for task in &mut accepted {
        if let Some(record) = records.get(&task.id) {
            workflows.follow(task, record);
            let (state, version) = (&record.state, record.version);
            world.note(format_args!("{} is {state} at {version}", task.id));
        }
    }
    world.note(format_args!(
        "{} commands were carried out",
        carried_out.load(Ordering::Relaxed)
    ));
    let evidence = Evidence {
        accepted,
        records,
        ledger: services.ledger(),
        deliveries: receiver.deliveries(),
        schedules: schedules.read(&apis[0]).await,
        decisions: people.decisions(),
        miscounts: reader.miscounts().to_vec(),
        answers: odd.all(),
        stalls: stalls(&world),
        ..Evidence::default()
    };
    for line in Summary::of(&evidence).to_string().lines() {
        world.note(format_args!("{line}"));
    }
    Played { evidence, findings }
}

/// Returns the delays of a slow database: the record has the times of decisions, and they are committed later.
fn stalls(world: &SimulatedWorld) -> Stalls {
    let delay = 10 * world.plan.database.longest_delay;
    let mut stalls = Vec::new();
    for second in 0..world.plan.length.as_secs() {
        let at = EPOCH + Duration::from_secs(second);
        stalls.push((At(i64::try_from(at.as_micros()).unwrap()), delay));
    }
    Stalls(stalls)
}
