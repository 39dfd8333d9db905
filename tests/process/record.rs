//! Checks the record when everything has ended. It is read in the database, and compared with the calls that the remote
//! service received:
//!
//! - Every accepted task is there, once, and no other; each has ended, with every step processed.
//! - Its history has the versions 1, 2, 3, … up to the task's own, and its events follow on from each other: each
//!   begins in the state that the one before left its step in.
//! - A step is claimed under the attempts 1, 2, 3, …, each only after the one before was over, and is processed once,
//!   with the response to that attempt.
//! - Every call of a step carried one key that no other step has, and an attempt that was claimed before. Under the
//!   attempt that was recorded as processed no call came after the record, and no later attempt was ever made: what is
//!   recorded is not done again.
//!
//! Calls are made at least once. So a call of an *earlier* attempt may still reach the service after that attempt was
//! over: its instance was suspended between checking that it holds the step and sending, a supervisor was already
//! recovering the step during the check, or the sent request was in a socket when the instance was killed. It carries
//! the key of the step, and its response counts for nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use sqlx::{Connection, PgConnection, Row};

use crate::harness::Seen;

/// The tolerance in milliseconds: two readings of one clock, each rounded down, and a moment between an event and its
/// note.
const ABOUT: i64 = 20;

/// The id of a task and the name of a step.
type StepId = (String, String);

pub struct Records {
    connection: PgConnection,
}

/// One attempt of a step by its history.
#[derive(Debug)]
struct Attempt {
    claimed_at: i64,
    by: String,
    ended_at: Option<i64>,
    processed: bool,
}

/// A step while its history is read.
#[derive(Default)]
struct Story {
    state: Option<String>,
    attempts: Vec<Attempt>,
}

struct StepRow {
    attempt: usize,
    output: Value,
}

impl Records {
    pub async fn open(url: &str) -> Self {
        Self {
            connection: PgConnection::connect(url).await.unwrap(),
        }
    }

    /// Describes a task that has not ended; `None` if all have.
    pub async fn unended(&mut self) -> Option<String> {
        const OPEN: &str = "
            SELECT concat_ws(' ', tasks.id, tasks.state, steps.name, steps.state, steps.attempt,
                             steps.failure_count, steps.locked_by, to_timestamp(steps.due_at / 1000)) AS said
            FROM tasks LEFT JOIN steps ON steps.task_id = tasks.id AND steps.state NOT IN ('processed', 'waiting')
            WHERE tasks.ended_at IS NULL LIMIT 10";
        let rows = sqlx::query(OPEN).fetch_all(&mut self.connection).await;
        let said: Vec<String> = rows.unwrap().iter().map(|row| row.get("said")).collect();
        (!said.is_empty()).then(|| said.join("\n"))
    }

    /// Checks everything. `accepted` are the ids of the tasks by their keys. Returns the number of attempts beyond the
    /// first of each step.
    pub async fn judge(&mut self, accepted: &BTreeMap<String, String>, ledger: &[Seen]) -> usize {
        let versions = self.tasks(accepted).await;
        let steps = self.steps().await;
        let stories = self.stories(&versions).await;
        for (id, row) in &steps {
            let story = &stories[id];
            let last = story.attempts.last().expect("it was claimed");
            assert!(last.processed, "{id:?}: {:#?}", story.attempts);
            assert_eq!(row.attempt, story.attempts.len(), "{id:?}");
            assert_eq!(
                row.output["attempt"], row.attempt,
                "{id:?}: another attempt's answer"
            );
        }
        assert_eq!(stories.len(), steps.len());
        one_key_for_each_step(ledger, steps.len());
        let late = calls_belong_to_attempts(ledger, &stories);
        joins_saw_what_is_recorded(ledger, &steps);
        let attempts: usize = stories.values().map(|story| story.attempts.len()).sum();
        println!(
            "{} steps, {attempts} attempts, {} calls, {late} of attempts that were over",
            steps.len(),
            ledger.len(),
        );
        attempts - steps.len()
    }

    /// Returns the version of each task.
    async fn tasks(&mut self, accepted: &BTreeMap<String, String>) -> HashMap<String, i64> {
        let rows =
            sqlx::query(r#"SELECT id::text AS id, "key", state, version, untouched FROM tasks"#)
                .fetch_all(&mut self.connection)
                .await
                .unwrap();
        let mut found = BTreeMap::new();
        let mut versions = HashMap::new();
        for row in rows {
            let (id, key, state): (String, String, String) =
                (row.get("id"), row.get("key"), row.get("state"));
            assert_eq!(state, "processed", "{key}");
            let untouched: i64 = row.get("untouched");
            assert_eq!(untouched, 0, "{key}: steps without rows");
            versions.insert(id.clone(), row.get("version"));
            let other = found.insert(key, id);
            assert_eq!(other, None, "two tasks for one submission");
        }
        assert_eq!(&found, accepted);
        versions
    }

    async fn steps(&mut self) -> HashMap<StepId, StepRow> {
        const STEPS: &str =
            "SELECT task_id::text AS task, name, state, attempt, locked_by, output FROM steps";
        let rows = sqlx::query(STEPS).fetch_all(&mut self.connection).await;
        let rows = rows.unwrap();
        let steps = rows.iter().map(|row| {
            let id: StepId = (row.get("task"), row.get("name"));
            assert_eq!(row.get::<&str, _>("state"), "processed", "{id:?}");
            assert_eq!(row.get::<Option<&str>, _>("locked_by"), None, "{id:?}");
            let row = StepRow {
                attempt: usize::try_from(row.get::<i64, _>("attempt")).unwrap(),
                output: serde_json::from_str(row.get("output")).unwrap(),
            };
            (id, row)
        });
        steps.collect()
    }

    /// Reads every history, and checks that it is whole.
    async fn stories(&mut self, versions: &HashMap<String, i64>) -> HashMap<StepId, Story> {
        const HISTORY: &str = "
            SELECT task_id::text AS task, version, at, events FROM history ORDER BY task_id, version";
        let rows = sqlx::query(HISTORY).fetch_all(&mut self.connection).await;
        let mut stories: HashMap<StepId, Story> = HashMap::new();
        let mut tasks: HashMap<String, (i64, i64, Option<String>)> = HashMap::new();
        let mut back = 0;
        for row in rows.unwrap() {
            let task: String = row.get("task");
            let (version, at): (i64, i64) = (row.get("version"), row.get("at"));
            let (last, before, state) = tasks.entry(task.clone()).or_default();
            assert_eq!(
                version,
                *last + 1,
                "{task}: a version is missing, or there twice"
            );
            if at < *before {
                back = back.max(*before - at);
            }
            (*last, *before) = (version, at);
            let events: Vec<Value> = serde_json::from_str(row.get("events")).unwrap();
            for event in &events {
                match event["step"].as_str() {
                    Some(step) => {
                        let id = (task.clone(), step.to_owned());
                        followed_all(&id, event, &stories);
                        stories.entry(id.clone()).or_default().go_on(&id, event, at);
                    }
                    None => {
                        assert_eq!(
                            event["from"].as_str(),
                            state.as_deref(),
                            "{task}: {event:#}"
                        );
                        *state = Some(event["to"].as_str().unwrap().to_owned());
                    }
                }
            }
        }
        println!("times in histories go back by {back} ms at most");
        for (task, version) in versions {
            let (last, _, state) = &tasks[task];
            assert_eq!(last, version, "{task}");
            assert_eq!(state.as_deref(), Some("processed"), "{task}");
        }
        assert_eq!(tasks.len(), versions.len());
        stories
    }
}

impl Story {
    fn go_on(&mut self, id: &StepId, event: &Value, at: i64) {
        let said = || format!("{id:?}: {event:#} after {:#?}", self.attempts);
        let (from, to) = (event["from"].as_str(), event["to"].as_str());
        let state = self.state.as_deref().unwrap_or("waiting");
        assert_eq!(from, Some(state), "{}", said());
        let live = self.attempts.last();
        let live = live.filter(|attempt| attempt.ended_at.is_none());
        assert_eq!(live.is_some(), from == Some("processing"), "{}", said());
        let number = event["attempt"].as_u64().unwrap_or(0);
        let claim = event["type"] == "step.claimed";
        let expected = self.attempts.len() + usize::from(claim);
        assert_eq!(number, expected as u64, "{}", said());
        assert_eq!(claim, from != to && to == Some("processing"), "{}", said());
        if claim {
            self.attempts.push(Attempt {
                claimed_at: at,
                by: event["by"].as_str().unwrap().to_owned(),
                ended_at: None,
                processed: false,
            });
        } else if from == Some("processing") && to != from {
            let ended = self.attempts.last_mut().unwrap();
            ended.ended_at = Some(at);
            ended.processed = to == Some("processed");
        }
        self.state = to.map(str::to_owned);
    }
}

/// Checks that a step becomes ready only when all steps that it follows are processed.
fn followed_all(id: &StepId, event: &Value, stories: &HashMap<StepId, Story>) {
    if event["type"] != "step.ready" {
        return;
    }
    let after: &[&str] = match id.1.as_str() {
        "two" => &["one"],
        "three" => &["two"],
        "left" | "right" => &["root"],
        "join" => &["left", "right"],
        _ => &[],
    };
    for name in after {
        let before = stories.get(&(id.0.clone(), (*name).to_owned()));
        let state = before.and_then(|story| story.state.as_deref());
        assert_eq!(
            state,
            Some("processed"),
            "{id:?} was ready before {name} was done"
        );
    }
}

fn step_of(seen: &Seen) -> StepId {
    let task = seen.header("provost-task").to_owned();
    (task, seen.header("provost-step").to_owned())
}

fn one_key_for_each_step(ledger: &[Seen], steps: usize) {
    let mut keys: BTreeMap<StepId, BTreeSet<&str>> = BTreeMap::new();
    for seen in ledger {
        keys.entry(step_of(seen)).or_default().insert(seen.key());
    }
    assert_eq!(keys.len(), steps, "steps that were called");
    let mut all = BTreeSet::new();
    for (step, keys) in &keys {
        assert_eq!(
            keys.len(),
            1,
            "{step:?} was called with several keys: {keys:?}"
        );
        assert!(
            all.insert(keys.first().unwrap()),
            "{step:?} has another's key"
        );
    }
}

/// Returns the number of calls that came after the end of their attempt, which was not the one that counted.
fn calls_belong_to_attempts(ledger: &[Seen], stories: &HashMap<StepId, Story>) -> usize {
    let mut late = 0;
    for seen in ledger {
        let (id, at) = (step_of(seen), millis_of(seen.at));
        let attempts = &stories[&id].attempts;
        let attempt = attempts.get(seen.attempt() as usize - 1);
        let attempt = attempt.unwrap_or_else(|| panic!("nobody claimed it: {seen:?}"));
        assert!(
            at + ABOUT >= attempt.claimed_at,
            "before its claim: {seen:?}"
        );
        let over = attempt.ended_at.is_some_and(|ended| at > ended + ABOUT);
        if over {
            let ago = at - attempt.ended_at.unwrap();
            assert!(
                !attempt.processed,
                "called {ago} ms after it was recorded: {seen:?}, {attempts:#?}"
            );
            println!(
                "late by {ago} ms: {id:?} attempt {} of {}",
                seen.attempt(),
                attempt.by
            );
            late += 1;
        }
    }
    late
}

fn joins_saw_what_is_recorded(ledger: &[Seen], steps: &HashMap<StepId, StepRow>) {
    for seen in ledger {
        let (task, name) = step_of(seen);
        if name == "join" {
            for branch in ["left", "right"] {
                let recorded = &steps[&(task.clone(), branch.to_owned())].output["answer"];
                assert_eq!(seen.body[branch], *recorded, "{task}: {branch}");
            }
        }
    }
}

/// Returns the milliseconds since 1970 of an instant on this machine. The database has the same clock.
fn millis_of(at: std::time::Instant) -> i64 {
    let ago = i64::try_from(at.elapsed().as_millis()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap() - ago
}
