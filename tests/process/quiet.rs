//! The statements of idle instances, and the work that must not wait although they are idle.

use jiff::Timestamp;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    cluster,
    harness::{Act, PATIENCE, Postgres, Provost, Remote, Setup, pipeline},
};

/// The renewal of a lease. Instances change their records for other reasons too.
const BEAT: &str = "UPDATE instances SET until";

/// Statements around others, and those of connections that are made again. A busy machine executes more of them.
const OF_TRANSACTIONS: [&str; 4] = ["BEGIN", "COMMIT", "ROLLBACK", "SELECT 1"];
/// The beginnings of the statements of connections that are made again, and of renewals that did not get their response in
/// time and read the leases.
const OF_LATE_RENEWALS: [&str; 6] = [
    "SELECT floor(extract(epoch FROM clock_timestamp()",
    "SELECT current_setting('transaction_read_only')",
    "SELECT id AS instance, incarnation",
    "UPDATE instances SET incarnation",
    "UPDATE supervisor SET instance",
    "DELETE FROM instances",
];

/// The statements in the log of the server between two moments.
struct Asked {
    statements: Vec<String>,
    seconds: f64,
}

impl Asked {
    /// Returns the statements per second, apart from those of which a busy machine executes more. On such a machine
    /// renewals are late, so that statements with other intervals are more frequent between them; therefore the bound is
    /// about time.
    fn each_second(&self) -> f64 {
        let is_of_rest = |statement: &&String| {
            // The name of a prepared statement comes before its text.
            let text = statement.split_once(": ").map(|(_, text)| text);
            let text = text.unwrap_or(statement);
            let mut late = OF_LATE_RENEWALS.iter();
            !OF_TRANSACTIONS.contains(&text) && !late.any(|begin| text.starts_with(begin))
        };
        self.statements.iter().filter(is_of_rest).count() as f64 / self.seconds
    }
}

/// Returns when the statement at this position of the log was logged.
fn time_of(log: &str, at: usize) -> Timestamp {
    // The statement may have several lines, of which the first has the time in the format of `%m`.
    let end = log[..at].rfind(" LOG:  ").unwrap();
    let time = log[..end].rsplit('\n').next().unwrap_or_default();
    let time = time.replacen(' ', "T", 1).replace(" UTC", "Z");
    time.parse()
        .unwrap_or_else(|error| panic!("{time:?}: {error}"))
}

/// Returns the statements between the renewal of a lease that comes after `skipped` others and the one `beats` renewals
/// later. If one text has several statements, each counts.
async fn statements_in(server: &Postgres, skipped: usize, beats: usize) -> Asked {
    let begin = server.log().len();
    let began = tokio::time::Instant::now();
    loop {
        let log = server.log();
        let log = log.get(begin..).unwrap_or_default();
        let found: Vec<usize> = log.match_indices(BEAT).map(|(at, _)| at).collect();
        if let (Some(first), Some(last)) = (found.get(skipped), found.get(skipped + beats)) {
            let took = time_of(log, *last).duration_since(time_of(log, *first));
            return Asked {
                statements: statements(&log[*first..*last]),
                seconds: took.as_secs_f64(),
            };
        }
        assert!(began.elapsed() < PATIENCE, "no lease is renewed:\n{log}");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn statements(log: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in log.split(" LOG:  ").skip(1) {
        // A line about the parameters of a statement begins with another word.
        let Some(text) = ["statement: ", "execute "]
            .iter()
            .find_map(|word| line.strip_prefix(word))
        else {
            continue;
        };
        let text = text.split(" DETAIL:").next().unwrap_or_default();
        let parts = text
            .split(';')
            .filter(|part| part.contains(|of: char| of.is_ascii_alphabetic()));
        // Each statement is one line, so that a new one is easy to find.
        found.extend(parts.map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            words.join(" ").chars().take(160).collect()
        }));
    }
    found
}

/// Returns a setup with the default intervals: its lease is renewed every three seconds.
fn at_rest(server: &Postgres) -> Setup {
    Setup::default().database_url(&format!("{}?sslmode=disable", server.url()))
}

/// Settings of a server that logs every statement.
const LOGGED: &str = "log_statement = 'all'\nlog_line_prefix = '%m '\nlog_timezone = 'UTC'\n";
/// The renewals of one instance in nine seconds. After that time it executes no more statements of its start.
const SKIPPED: usize = 3;
/// The renewals of one instance in twelve seconds. A loop with an interval of five seconds has two or three rounds in
/// that time.
const BEATS: usize = 4;

/// Each statement counts for every instance, all the time: there were 21 for each renewal.
#[tokio::test]
async fn an_instance_at_rest_asks_little() {
    let server = Postgres::start_with(LOGGED).await;
    let provost = at_rest(&server).start().await;
    provost.says("this instance is now the supervisor").await;
    let asked = statements_in(&server, SKIPPED, BEATS).await;
    println!("{}", asked.statements.join("\n"));
    let rate = asked.each_second();
    assert!(rate < 4.0, "{rate} statements a second");
    let count = asked.statements.len();
    assert!(count > BEATS, "{count}: they are not counted");
}

/// Only one of them looks every second for what is due. Each of the others did so as well, fifteen times in one renewal
/// interval.
#[tokio::test]
async fn several_instances_at_rest_ask_little_more() {
    const INSTANCES: usize = 5;
    let server = Postgres::start_with(LOGGED).await;
    let first = at_rest(&server).start().await;
    first.says("this instance is now the supervisor").await;
    let others = (1..INSTANCES).map(|_| at_rest(&server).start());
    let _others = futures::future::join_all(others).await;
    let asked = statements_in(&server, SKIPPED * INSTANCES, BEATS * INSTANCES).await;
    println!("{}", asked.statements.join("\n"));
    let rate = asked.each_second();
    assert!(
        rate < (INSTANCES * 5 + 5) as f64 / 3.0,
        "{rate} statements a second of {INSTANCES} instances"
    );
    let count = asked.statements.len();
    assert!(count > BEATS * INSTANCES, "{count}: they are not counted");
}

/// Each stream read the history every two seconds.
#[tokio::test]
async fn streams_and_waiting_callers_at_rest_share_one_look() {
    const FOLLOWED: usize = 20;
    let remote = Remote::script([Act::Hang]).await;
    let server = Postgres::start_with(LOGGED).await;
    let provost = at_rest(&server).start().await;
    let mut streams = Vec::new();
    for _ in 0..FOLLOWED {
        let mut work = pipeline(&remote.url(), &["a"]);
        // No attempt ends while the statements are counted, however long that takes.
        work["steps"][0]["complete_within"] = json!("1h");
        let id = provost.submit(&work).await;
        let mut events = provost.events(&id).await;
        events.until("step.claimed").await;
        streams.push((id, events));
    }
    let waiting = streams.iter().map(async |(id, _)| {
        let path = format!("/v1/tasks/{id}?wait=60s");
        provost.get(&path).await.expect(200)
    });
    let waiting = futures::future::join_all(waiting);
    let asked = tokio::select! {
        asked = statements_in(&server, SKIPPED, BEATS) => asked,
        _ = waiting => panic!("no task has settled"),
    };
    let count = |text: &str| {
        asked
            .statements
            .iter()
            .filter(|found| found.contains(text))
            .count()
    };
    assert_eq!(count("FROM history"), 0);
    let (looks, begun) = (
        count("SELECT id, version, state FROM tasks"),
        count("BEGIN"),
    );
    assert!(looks > BEATS, "{looks}: the looks are not counted");
    println!("{looks} looks and {begun} transactions");
    let each_second = begun as f64 / asked.seconds;
    assert!(
        each_second < FOLLOWED as f64,
        "{each_second} transactions a second"
    );
}

/// An instance that sends no notifications enqueues a step, and the other one never polls.
#[tokio::test]
async fn a_queued_step_that_nobody_was_notified_of_is_found_by_the_supervisor() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!(1))]).await;
    let url = tokio::task::spawn_blocking(cluster::new_database);
    let url = url.await.unwrap();
    let on = || Provost::setup().database_url(&url);
    let supervisor = on().set("SCHEDULER__POLL", "1h").start().await;
    supervisor.says("this instance is now the supervisor").await;
    supervisor.register("narrow", &remote.url(), 1).await;
    let silent = on().set("POSTGRES__LISTEN", "false").start().await;
    let work = json!({ "steps": [{ "name": "only", "agent": "narrow", "complete_within": "1h" }] });
    silent.submit(&work).await;
    remote.requests(1).await;
    let queued = silent.submit(&work).await;
    assert_eq!(silent.settled(&queued).await["state"], "processed");
}
