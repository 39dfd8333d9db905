//! Tasks at risk, and the data of the predictions.

use serde_json::json;

use super::harness::{Harness, New, refusal, success};
use crate::{
    domain::{
        task::{AlertKind, Command},
        template::Payload,
        values::{AgentName, InstanceId, Span, StepIndex, TaskId, Timestamp},
        view::{AtRisk, CompleteSteps, at_risk_subject},
    },
    store::{
        AlertQuery, AlertState, CountedSteps, LimitedEnd, PredictionChanges, TaskFilter, TaskQuery,
    },
};

fn at_risk(end: Option<i64>, agent: &str) -> AtRisk {
    AtRisk {
        predicted_end: end.map(Timestamp::from_millis),
        agent: AgentName::new(agent),
        since: Timestamp::from_millis(7),
    }
}

async fn limited(h: &Harness, within: u64) -> TaskId {
    let new = New {
        complete_within: Some(Span::from_secs(within)),
        labels: &[("customer", "acme")],
        ..New::default()
    };
    h.submit(new).await.id()
}

/// Returns the content of a list, newest first.
async fn listed(h: &Harness, filter: TaskFilter) -> Vec<(TaskId, Option<AtRisk>)> {
    let query = TaskQuery {
        filter,
        before: None,
        limit: 10,
    };
    let found = h.store.reader.tasks(&query).await.unwrap();
    assert_eq!(found.next, None);
    let tasks = found.tasks.into_iter();
    tasks.map(|task| (task.id, task.at_risk)).collect()
}

pub async fn tasks_at_risk_are_listed_until_they_end(h: Harness) {
    let ids = [
        limited(&h, 60).await,
        limited(&h, 60).await,
        limited(&h, 60).await,
    ];
    let save = async |changes| h.store.save_predictions(changes).await.unwrap();
    save(PredictionChanges {
        put: vec![
            (ids[0], at_risk(Some(9), "x")),
            (ids[2], at_risk(None, "y")),
        ],
        raise: vec![(AgentName::new("x"), "late".to_owned())],
        ..PredictionChanges::default()
    })
    .await;
    // The time since which a task is at risk stays.
    let later = AtRisk {
        since: Timestamp::from_millis(8),
        ..at_risk(Some(10), "x")
    };
    save(PredictionChanges {
        put: vec![(ids[0], later)],
        raise: vec![(AgentName::new("x"), "late again".to_owned())],
        ..PredictionChanges::default()
    })
    .await;
    let first = (ids[0], Some(at_risk(Some(10), "x")));
    let last = (ids[2], Some(at_risk(None, "y")));
    let is_at_risk = || TaskFilter {
        at_risk: true,
        ..TaskFilter::default()
    };
    let both = [last.clone(), first.clone()];
    assert_eq!(listed(&h, is_at_risk()).await, both);
    let labelled = TaskFilter {
        labels: vec![("customer".to_owned(), "acme".to_owned())],
        ..is_at_risk()
    };
    assert_eq!(listed(&h, labelled).await, both);
    let nobody = TaskFilter {
        labels: vec![("customer".to_owned(), "other".to_owned())],
        ..is_at_risk()
    };
    assert_eq!(listed(&h, nobody).await, []);
    let by_key = TaskFilter {
        key: Some("none".to_owned()),
        ..is_at_risk()
    };
    assert_eq!(listed(&h, by_key).await, []);
    let all = listed(&h, TaskFilter::default()).await;
    assert_eq!(all, [last.clone(), (ids[1], None), first.clone()]);
    assert_eq!(h.store.reader.at_risk_of(ids[0]).await.unwrap(), first.1);
    assert_eq!(h.store.reader.at_risk_of(ids[1]).await.unwrap(), None);
    assert_eq!(h.store.reader.counts().await.unwrap().at_risk, 2);
    let looked = h.store.reader.count_tasks(&is_at_risk(), None, 100).await;
    assert_eq!(looked.unwrap().found, 2);

    // There is one alert, even if it is raised again.
    let query = AlertQuery {
        state: Some(AlertState::Open),
        task: None,
        id: None,
        part_of: None,
        cause: None,
        before: None,
        limit: 10,
    };
    let alerts = async || h.store.reader.alerts(&query).await.unwrap();
    assert_eq!(alerts().await.len(), 1);
    assert_eq!(alerts().await[0].kind, AlertKind::TasksAtRisk.as_str());
    let subject = at_risk_subject(&AgentName::new("x"));
    let open = h.store.reader.at_risk_alerts().await.unwrap();
    assert_eq!(open, std::slice::from_ref(&subject));

    // A task that has ended is not listed, although its row exists for a while.
    let cancel = Command::Cancel { reason: None };
    h.apply(ids[0], cancel).await.unwrap();
    assert_eq!(listed(&h, is_at_risk()).await, [last]);
    let all = listed(&h, TaskFilter::default()).await;
    assert_eq!(all[2], (ids[0], None));
    assert_eq!(h.store.reader.counts().await.unwrap().at_risk, 1);
    assert_eq!(h.store.reader.at_risk().await.unwrap().len(), 2);
    assert_eq!(h.store.reader.ended_at_risk().await.unwrap(), [ids[0]]);
    save(PredictionChanges {
        remove: vec![ids[0], ids[2]],
        close: vec![subject],
        ..PredictionChanges::default()
    })
    .await;
    assert_eq!(h.store.reader.at_risk().await.unwrap(), []);
    assert_eq!(alerts().await.len(), 0);
}

pub async fn a_queue_is_outlined_by_its_turns(h: Harness) {
    let mut turns = Vec::new();
    for priority in [0, 0, 0, 7] {
        let task = h
            .submit(New {
                priority,
                ..New::default()
            })
            .await;
        turns.push(task.turn());
    }
    let x = AgentName::new("x");
    let outline = h.store.reader.queue_outline(&x).await.unwrap();
    let steps: Vec<_> = outline.0.iter().map(|range| range.steps).collect();
    assert_eq!(steps.first(), Some(&1), "{outline:?}");
    assert_eq!(steps.iter().sum::<u64>(), 4);
    assert_eq!(
        (outline.0[0].first, outline.0[0].last),
        (turns[3], turns[3])
    );
    let last = outline.0.last().unwrap().last;
    assert_eq!(last, turns[2]);
    let none = h.store.reader.queue_outline(&AgentName::new("y")).await;
    assert!(none.unwrap().0.is_empty());
    // The tasks with a limited time are returned in pages, the next one first.
    let mut ids = Vec::new();
    for within in [600, 60, 6000] {
        ids.push(limited(&h, within).await);
    }
    let mut found: Vec<LimitedEnd> = Vec::new();
    loop {
        let ends = h
            .store
            .reader
            .limited_ends(found.last().copied(), Timestamp::MAX, 1);
        match ends.await.unwrap()[..] {
            [end] => found.push(end),
            _ => break,
        }
    }
    let tasks: Vec<_> = found.iter().map(|end| end.task).collect();
    assert_eq!(tasks, [ids[1], ids[0], ids[2]]);
    let until = h.store.reader.limited_ends(None, found[1].at, 10).await;
    assert_eq!(until.unwrap(), found[..2]);
}

pub async fn what_instances_count_is_known_to_all(h: Harness) {
    let counted = |steps| {
        let count = CompleteSteps {
            steps,
            timed: steps,
            millis: 10 * steps,
        };
        CountedSteps::from([(AgentName::new("x"), count)])
    };
    let (one, two) = (InstanceId::new("one"), InstanceId::new("two"));
    for (instance, steps) in [(&one, 1), (&two, 2), (&one, 3)] {
        let counted = counted(steps);
        let report = h.store.report_counted_steps(instance.clone(), &counted);
        report.await.unwrap();
    }
    let mut all = h.store.reader.counted_steps().await.unwrap();
    all.sort_by_key(|(instance, _)| instance.to_string());
    assert_eq!(all, [(one.clone(), counted(3)), (two.clone(), counted(2))]);
    // The counts of a process that ended long ago are deleted, and a report that cannot be read counts as empty.
    h.database
        .execute("UPDATE counted_steps SET at = 5 WHERE instance = 'one'")
        .await;
    h.database
        .execute("UPDATE counted_steps SET counted = '{' WHERE instance = 'two'")
        .await;
    let all = h.store.reader.counted_steps().await.unwrap();
    assert_eq!(all, [(two.clone(), CountedSteps::new())]);
    let last = counted(4);
    let report = h.store.report_counted_steps(two.clone(), &last);
    report.await.unwrap();
    h.database
        .execute("UPDATE counted_steps SET at = 9000000000000")
        .await;
    let all = h.store.reader.counted_steps().await.unwrap();
    assert_eq!(all, [(two, counted(4))], "the other row is deleted");
}

pub async fn a_response_counts_for_its_agent_and_a_resolution_does_not(h: Harness) {
    h.slots("x", 2);
    let answered = h.submit(New::default()).await.id();
    let refused = h.submit(New::default()).await.id();
    h.reply(answered, 0, 1, success(json!(1))).await.unwrap();
    h.reply(refused, 0, 1, refusal()).await.unwrap();
    let resolve = Command::Resolve {
        step: StepIndex(0),
        output: Payload::from_value(&json!(2)),
        reason: None,
    };
    h.apply(refused, resolve).await.unwrap();
    let counted = h.store.step_counter.counted();
    let steps: Vec<_> = counted.values().map(|count| count.steps).collect();
    assert_eq!(steps, [1], "{counted:?}");
}
