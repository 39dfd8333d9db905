//! The leases of instances and of the supervisor, and the steps that a lost instance leaves.

use uuid::Uuid;

use super::harness::{Harness, New, Opened};
use crate::{
    domain::{
        task::Expiry,
        values::{
            Attempt, DeadHolders, Holder, IdInUse, Incarnation, InstanceId, Leases, Renewal, Span,
            StepIndex, StepRef, TaskId, Term,
        },
    },
    store::{ExpiredStep, Renewed, Saved},
};

/// Returns the renewal of a process with this id that would supervise.
pub fn process(instance: &str, length: Span) -> Renewal {
    Renewal {
        holder: Holder {
            instance: InstanceId::new(instance),
            incarnation: Incarnation(Uuid::now_v7()),
        },
        version: "0.1.0".to_owned(),
        process: format!("the process of {instance}"),
        length,
        known_dead: DeadHolders::None,
        supervise: true,
    }
}

const LONG: Span = Span::from_secs(3600);
const SHORT: Span = Span::from_millis(30);

async fn renew(h: &Harness, renewal: &Renewal) -> Renewed {
    h.store.renew(renewal.clone()).await.unwrap()
}

/// Renews until another instance's short lease has expired.
async fn renew_when_free(h: &Harness, renewal: &Renewal) -> Option<Term> {
    loop {
        if let Ok(Some(term)) = renew(h, renewal).await.outcome {
            return Some(term);
        }
        tokio::task::yield_now().await;
    }
}

async fn expired(h: &Harness, asker: &str) -> Vec<ExpiredStep> {
    let asker = InstanceId::new(asker);
    h.store.reader.expired(&asker, 10).await.unwrap()
}

fn lost(task: TaskId) -> ExpiredStep {
    ExpiredStep {
        step: StepRef {
            task,
            step: StepIndex(0),
        },
        attempt: Attempt(1),
        cause: Expiry::InstanceLost,
    }
}

pub async fn an_instance_is_on_record_and_stays_by_renewing(h: Harness) {
    let node = process("node-1", LONG);
    let first = renew(&h, &node).await;
    assert_eq!(first.outcome, Ok(Some(Term(1))));
    let before = h.store.reader.instances().await.unwrap();
    while renew(&h, &node).await.now == first.now {}
    let after = h.store.reader.instances().await.unwrap();
    let ([(old, 0)], [(new, 0)]) = (&before.records[..], &after.records[..]) else {
        panic!("{before:?} {after:?}");
    };
    assert_eq!(old.lease.holder, node.holder);
    assert_eq!(old.lease.until, first.now + LONG);
    assert!(new.lease.until > old.lease.until);
    assert_eq!(new.started_at, first.now);
    assert_eq!(new.lease.term, Term(1));
    assert_eq!(new.version, "0.1.0");
    assert_eq!(new.process, "the process of node-1");
    assert_eq!(after.supervisor.unwrap().until, new.lease.until);
}

pub async fn one_instance_supervises_and_another_after_it(h: Harness) {
    let (first, second) = (process("node-1", LONG), process("node-2", LONG));
    assert_eq!(renew(&h, &first).await.outcome, Ok(Some(Term(1))));
    let refused = renew(&h, &second).await;
    assert_eq!(refused.outcome, Ok(None));
    assert_eq!(refused.supervisor.unwrap().holder, first.holder);
    h.store.give_up(first.holder).await.unwrap();
    assert_eq!(renew(&h, &second).await.outcome, Ok(Some(Term(2))));
    let instances = h.store.reader.instances().await.unwrap();
    let ended = |(record, _): &(crate::domain::values::InstanceRecord, u64)| {
        record.lease.is_over(instances.now)
    };
    let ended: Vec<_> = instances.records.iter().map(ended).collect();
    assert_eq!(ended, [true, false], "the first is on record still");
}

pub async fn a_supervisor_that_fell_silent_is_followed_by_another(h: Harness) {
    let (silent, next) = (process("node-1", SHORT), process("node-2", LONG));
    assert_eq!(renew(&h, &silent).await.outcome, Ok(Some(Term(1))));
    assert_eq!(renew_when_free(&h, &next).await, Some(Term(2)));
    let back = renew(&h, &silent).await;
    assert_eq!(
        back.outcome,
        Ok(None),
        "it comes back, and does not supervise"
    );
}

pub async fn an_id_belongs_to_one_process_at_a_time(h: Harness) {
    let (first, second) = (process("node-1", SHORT), process("node-1", LONG));
    renew(
        &h,
        &Renewal {
            length: LONG,
            ..first.clone()
        },
    )
    .await;
    let refused = renew(&h, &second).await.outcome;
    assert!(matches!(refused, Err(IdInUse(held)) if held.lease.holder == first.holder));
    renew(&h, &first).await;
    assert_eq!(renew_when_free(&h, &second).await, Some(Term(2)));
    let back = renew(&h, &first).await.outcome;
    assert!(matches!(back, Err(IdInUse(held)) if held.lease.holder == second.holder));
}

pub async fn a_process_alone_on_its_store_succeeds_everybody_at_once(h: Harness) {
    for name in ["node-1", "node-2", "node-3"] {
        renew(&h, &process(name, LONG)).await;
    }
    let alone = Renewal {
        known_dead: DeadHolders::All,
        ..process("node-2", LONG)
    };
    assert_eq!(renew(&h, &alone).await.outcome, Ok(Some(Term(2))));
    let instances = h.store.reader.instances().await.unwrap();
    assert_eq!(instances.records.len(), 1);
    assert_eq!(instances.records[0].0.lease.holder, alone.holder);
}

pub async fn steps_of_an_instance_without_a_lease_are_lost(h: Harness) {
    h.slots("x", 1);
    let id = h.submit(New::default()).await.id();
    assert_eq!(expired(&h, "node-2").await, [lost(id)], "it has no record");
    assert_eq!(expired(&h, "node-1").await, [], "who asks is alive");

    let node = process("node-1", LONG);
    renew(&h, &node).await;
    assert_eq!(expired(&h, "node-2").await, []);
    h.store.give_up(node.holder).await.unwrap();
    assert_eq!(expired(&h, "node-2").await, [lost(id)]);

    let silent = process("node-1", SHORT);
    renew(&h, &silent).await;
    while expired(&h, "node-2").await.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(expired(&h, "node-2").await, [lost(id)]);
    assert!(!h.read(id).await.step(StepIndex(0)).is_done());
}

pub async fn a_step_that_is_overdue_as_well_as_lost_counts_as_lost(h: Harness) {
    h.slots("x", 2);
    let steps = serde_json::json!([{ "name": "a", "agent": "x", "complete_within": "100ms" }]);
    let new = New {
        steps,
        ..New::default()
    };
    let id = h.submit(new).await.id();
    let node = process("node-1", LONG);
    renew(&h, &node).await;
    let found = loop {
        let found = expired(&h, "node-2").await;
        if !found.is_empty() {
            break found;
        }
        tokio::task::yield_now().await;
    };
    let overdue = ExpiredStep {
        cause: Expiry::CompleteBy,
        ..lost(id)
    };
    assert_eq!(found, [overdue]);
    h.store.give_up(node.holder).await.unwrap();
    assert_eq!(expired(&h, "node-2").await, [lost(id)]);
    assert_eq!(expired(&h, "node-1").await, [overdue], "never its own");
}

pub async fn what_an_instance_holds_is_told_apart_from_what_others_hold(h: Harness) {
    h.slots("x", 3);
    for _ in 0..3 {
        h.submit(New::default()).await;
    }
    renew(&h, &process("node-0", LONG)).await;
    renew(&h, &process("node-1", LONG)).await;
    let held = |id: &'static str| {
        let reader = h.store.reader.clone();
        async move {
            let id = InstanceId::new(id);
            reader.processing(Some(&id), None, 10).await.unwrap().len()
        }
    };
    assert_eq!((held("node-0").await, held("node-1").await), (0, 3));
    let instances = h.store.reader.instances().await.unwrap();
    let counted: Vec<_> = (instances.records.iter())
        .map(|(record, held)| (record.lease.holder.instance.as_str(), *held))
        .collect();
    assert_eq!(counted, [("node-0", 0), ("node-1", 3)]);
}

/// Two transactions read the same leases: the second one to save gets a conflict.
pub async fn leases_are_saved_by_compare_and_set(mut opened: Opened) {
    let mut backend = opened.connections.writers.remove(0);
    let (a, b) = (process("node-1", LONG), process("node-1", LONG));
    let mut seen = Leases::default();
    for _ in 0..2 {
        // In the first round there are no rows, in the second there are.
        let mut tx = backend.begin().await.unwrap();
        assert_eq!(tx.leases(&a.holder.instance).await.unwrap(), seen);
        let given_up = seen.released(&a.holder, tx.now());
        let by_a = given_up.renew(&a, tx.now()).unwrap();
        assert_eq!(tx.save_leases(&seen, &by_a).await.unwrap(), Saved::All);
        tx.commit().await.unwrap();

        let mut tx = backend.begin().await.unwrap();
        let by_b = given_up.renew(&b, tx.now()).unwrap();
        assert_eq!(tx.save_leases(&seen, &by_b).await.unwrap(), Saved::Conflict);
        drop(tx);

        let mut tx = backend.begin().await.unwrap();
        let only_supervisor = |leases: &Leases| Leases {
            instance: None,
            ..leases.clone()
        };
        let (before, after) = (only_supervisor(&seen), only_supervisor(&by_b));
        let saved = tx.save_leases(&before, &after).await.unwrap();
        assert_eq!(saved, Saved::Conflict);
        drop(tx);
        seen = by_a;
    }
}

/// Instances are deleted by the end of their leases, not by their start.
pub async fn only_instances_that_ended_long_ago_are_forgotten(mut opened: Opened) {
    let mut backend = opened.connections.writers.remove(0);
    let mut tx = backend.begin().await.unwrap();
    let (now, nothing) = (tx.now(), Leases::default());
    let (old, new) = (
        process("old", Span::from_secs(1)),
        process("new", Span::from_secs(9)),
    );
    for renewal in [&old, &new] {
        let after = Leases {
            supervisor: None,
            ..nothing.renew(renewal, now).unwrap()
        };
        assert_eq!(tx.save_leases(&nothing, &after).await.unwrap(), Saved::All);
    }
    tx.forget_instances(now + Span::from_secs(5)).await.unwrap();
    let mut known = Vec::new();
    for renewal in [&old, &new] {
        let leases = tx.leases(&renewal.holder.instance).await.unwrap();
        known.push(leases.instance.is_some());
    }
    assert_eq!(known, [false, true]);
    tx.commit().await.unwrap();
}
