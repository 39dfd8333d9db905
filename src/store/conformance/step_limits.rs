//! Limits of workflows on the steps of their tasks: running steps are counted for all agents and instances.

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    PATIENCE,
    harness::{Harness, New, TestDatabase, now, refusal, success},
    shared::pair,
};
use crate::{
    domain::{
        definition::Policies,
        task::Actor,
        values::{AgentName, Precondition, TaskId, WorkflowName, WorkflowRef},
    },
    store::StoreError,
};

/// More rounds than any of these tests needs.
const ROUNDS: usize = 200;

fn agents() -> Vec<AgentName> {
    vec![AgentName::new("x"), AgentName::new("y")]
}

/// Submits a task of the workflow `sync` with `count` steps that are ready at once, half of them at each agent.
async fn submit(h: &Harness, limit: Value, count: usize) -> TaskId {
    let step = |at: usize| {
        let agent = ["x", "y"][at % 2];
        json!({ "name": format!("s{at}"), "agent": agent, "after": [] })
    };
    let steps: Value = (0..count).map(step).collect();
    let mut whole = json!({ "by": "{{ task.labels.customer }}" });
    for (name, value) in limit.as_object().unwrap() {
        whole[name] = value.clone();
    }
    let policies = json!({ "limits": [whole] });
    let body = json!({ "policies": policies, "steps": steps }).to_string();
    let name = WorkflowName::new("sync");
    let put = h.store.put_workflow(
        name.clone(),
        body,
        Precondition::default(),
        None,
        Actor::submitter(),
    );
    let version = put.await.unwrap().version;
    let mut details = h.details(&New {
        steps,
        policies: Policies::parse(&policies.to_string()).unwrap(),
        labels: &[("customer", "a")],
        ..New::default()
    });
    details.workflow = Some(WorkflowRef { name, version });
    now(h.store.submit(details, None, None).await.unwrap()).id()
}

/// Claims until no step can be claimed any more. Returns how many steps were claimed.
async fn claim(h: &Harness) -> usize {
    let claims = async { while h.store.claim_queued(agents()).await.unwrap() > 0 {} };
    let ended = timeout(PATIENCE, claims).await;
    ended.expect("claims do not come to an end");
    h.notes.dispatched.lock().len()
}

pub async fn a_key_of_a_workflow_is_counted_over_the_agents_of_one_claim(h: Harness) {
    submit(&h, json!({ "max_in_flight": 3 }), 10).await;
    submit(&h, json!({ "max_in_flight": 3 }), 11).await;
    for agent in ["x", "y"] {
        h.slots(agent, 8);
    }
    assert_eq!(claim(&h).await, 3);
    // Another version of the workflow has room for more.
    submit(&h, json!({ "max_in_flight": 5 }), 10).await;
    assert_eq!(claim(&h).await, 5);
}

pub async fn a_step_that_ends_leaves_its_place_to_one_at_another_agent(h: Harness) {
    let id = submit(&h, json!({ "max_in_flight": 1 }), 4).await;
    h.slots("x", 1);
    assert_eq!(claim(&h).await, 1);
    let [(_, step, _)] = h.calls()[..] else {
        panic!()
    };
    assert_eq!(step, 0);
    h.slots("y", 1);
    assert_eq!(claim(&h).await, 0);
    h.reply(id, step, 1, success(json!(1))).await.unwrap();
    assert_eq!(claim(&h).await, 1);
    assert_eq!(h.calls(), [(id, 1, 1)], "of the other agent");
    h.reply(id, 1, 1, refusal()).await.unwrap();
    h.slots("x", 8);
    assert_eq!(claim(&h).await, 1, "a step in error does not run");
}

pub async fn steps_of_a_key_begin_at_one_rate_over_all_agents(h: Harness) {
    let id = submit(&h, json!({ "rate": "1/h", "burst": 3 }), 10).await;
    for agent in ["x", "y"] {
        h.slots(agent, 2);
    }
    assert_eq!(claim(&h).await, 3);
    for (task, step, attempt) in h.calls() {
        h.reply(task, step, attempt, success(json!(1)))
            .await
            .unwrap();
    }
    for agent in ["x", "y"] {
        h.slots(agent, 8);
    }
    assert_eq!(claim(&h).await, 0);
    assert!(!h.read(id).await.is_ended());
}

/// Rows that say otherwise, such as those of tasks that were purged, are not counted.
pub async fn only_steps_that_run_count(h: Harness) {
    let id = submit(&h, json!({ "max_in_flight": 2 }), 6).await;
    h.slots("x", 8);
    assert_eq!(claim(&h).await, 2);
    let stale = match &h.database {
        TestDatabase::Sqlite(_) => {
            "INSERT INTO limited_steps SELECT limit_key, randomblob(16), idx FROM limited_steps"
        }
        TestDatabase::Postgres(_) => {
            "INSERT INTO limited_steps SELECT limit_key, gen_random_uuid(), idx FROM limited_steps"
        }
    };
    h.database.execute(stale).await;
    // The steps of these rows exist, and do not run.
    let ended = "INSERT INTO limited_steps SELECT limit_key, task_id, idx + 1 FROM limited_steps";
    h.database.execute(ended).await;
    for (task, step, attempt) in h.calls() {
        h.reply(task, step, attempt, success(json!(1)))
            .await
            .unwrap();
    }
    h.slots("y", 8);
    assert_eq!(claim(&h).await, 2);
    assert!(!h.read(id).await.is_ended());
}

pub async fn steps_without_limits_are_claimed_where_they_become_ready(h: Harness) {
    for agent in ["x", "y"] {
        h.slots(agent, 8);
    }
    let limited = submit(&h, json!({ "max_in_flight": 1 }), 2).await;
    assert_eq!(h.calls(), [], "they are counted before they are claimed");
    assert_eq!(claim(&h).await, 1);
    h.calls();
    let plain = h.submit(New::default()).await.id();
    assert_eq!(h.calls(), [(plain, 0, 1)]);
    h.reply(limited, 0, 1, success(json!(1))).await.unwrap();
    assert_eq!(claim(&h).await, 1);
    assert_eq!(h.calls(), [(limited, 1, 1)]);
    h.reply(limited, 1, 1, success(json!(1))).await.unwrap();
    claim(&h).await;
    // The queue is empty, and is claimed from as if it had never contained limited steps.
    h.slots("x", 0);
    let waits = h.submit(New::default()).await.id();
    h.slots("x", 1);
    h.reply(plain, 0, 1, success(json!(1))).await.unwrap();
    claim(&h).await;
    assert_eq!(h.calls(), [(waits, 0, 1)]);
}

/// Two instances claim at the same moment, each for another agent.
#[tokio::test]
async fn instances_that_claim_for_two_agents_at_once_count_one_key() {
    let (a, b) = pair().await;
    // There are many tasks, because a claim skips those that the other instance has locked.
    for _ in 0..10 {
        submit(&a, json!({ "max_in_flight": 3 }), 4).await;
    }
    a.slots("x", 50);
    b.slots("y", 50);
    let (mut running, mut begun, mut most) = (Vec::new(), 0, 0);
    for _ in 0..ROUNDS {
        let claims = [&a, &b].map(|h| async {
            h.store.read_queues_again();
            h.store.claim_queued(agents()).await
        });
        let [one, other] = claims;
        let (one, other): (Result<_, StoreError>, _) = tokio::join!(one, other);
        one.unwrap();
        other.unwrap();
        for h in [&a, &b] {
            running.extend(h.calls().into_iter().map(|call| (h, call)));
        }
        most = most.max(running.len());
        assert!(running.len() <= 3, "{} run", running.len());
        if running.len() == 3 || begun + running.len() == 40 {
            begun += running.len();
            for (h, (task, step, attempt)) in running.drain(..) {
                h.reply(task, step, attempt, success(json!(1)))
                    .await
                    .unwrap();
            }
        }
        if begun == 40 {
            break;
        }
    }
    assert_eq!((begun, most), (40, 3));
}
