//! The ledger: everything that happened, once and in one order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use sqlx::{Connection, PgConnection, Row};
use tokio::time::timeout;

use super::{
    PATIENCE,
    harness::{Harness, New, postgres, postgres_at, refusal, success},
    shared::{outside, pair, url},
};
use crate::{
    domain::{
        task::{Actor, Command},
        values::{Precondition, Span, TaskId, Timestamp},
        view::{ChangeOrigin, LedgerPosition, LedgerRecord, LedgerSubject, PositionFault},
    },
    store::{
        Apply, LedgerContent, LedgerCutoff, LedgerEntry, ReaderMove, ReaderMoved, SharedFeature,
    },
};

/// Reads on from a position until there is no more.
async fn read_on(h: &Harness, mut after: LedgerPosition) -> (Vec<LedgerEntry>, LedgerPosition) {
    let mut entries: Vec<LedgerEntry> = Vec::new();
    loop {
        let mut read = h.store.reader.ledger(after).await.unwrap().unwrap();
        // The last entry that was read comes again, because not all of its events may have been read.
        let within = after.within.map(|within| (after.row, within.entry));
        read.entries
            .retain(|entry| within.is_none_or(|within| (entry.row, entry.index) > within));
        if let Some(last) = read.entries.last() {
            after = last.after(usize::MAX - 1, 0);
        }
        entries.extend(read.entries);
        if !read.has_more {
            return (entries, after);
        }
    }
}

/// Waits until the row that was written last can be read. A transaction of another test, which runs on the same server, delays
/// readers.
async fn visible(h: &Harness) {
    let readable = async {
        let last = "SELECT coalesce(max(id), 0) FROM ledger";
        let last = h.database.count(last).await;
        while h.store.reader.ledger_head().await.unwrap().row.id < last as u64 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, readable).await.unwrap();
}

async fn all(h: &Harness) -> Vec<LedgerEntry> {
    visible(h).await;
    read_on(h, LedgerPosition::OLDEST).await.0
}

/// Returns the changes of tasks among entries, in their order.
fn changes(entries: &[LedgerEntry]) -> Vec<(TaskId, u64)> {
    let changes = entries.iter().filter_map(|entry| match &entry.content {
        LedgerContent::Change { task, version, .. } => Some((task.id, *version)),
        _ => None,
    });
    changes.collect()
}

fn records(entries: &[LedgerEntry]) -> Vec<LedgerRecord> {
    let records = entries.iter().filter_map(|entry| match &entry.content {
        LedgerContent::Record(record) => Some(LedgerRecord::clone(record)),
        _ => None,
    });
    records.collect()
}

/// Checks that the ledger has each entry of the history once, and the versions of a task in order.
async fn check_whole(h: &Harness, read: &[(TaskId, u64)]) {
    let mut seen = BTreeMap::<TaskId, u64>::new();
    for (task, version) in read {
        let last = seen.insert(*task, *version);
        assert!(last.is_none_or(|last| last < *version), "{task} {version}");
    }
    let history = h.database.count("SELECT count(*) FROM history").await;
    assert_eq!(read.len() as i64, history);
}

fn origin() -> ChangeOrigin {
    ChangeOrigin {
        by: "operator:ada".to_owned(),
        role: Some("operate".to_owned()),
        address: Some("192.0.2.7".to_owned()),
        reason: None,
    }
}

fn record(name: &str) -> LedgerRecord {
    LedgerRecord::new("test.noted", LedgerSubject::Ledger, name, &origin())
}

pub async fn every_change_is_read_once_and_from_any_position_again(h: Harness) {
    h.slots("x", 100);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let task = h.submit(New::default()).await.id();
        h.reply(task, 0, 1, success(json!(1))).await.unwrap();
        tasks.push(task);
    }
    h.store.record(record("end")).await.unwrap();
    let entries = all(&h).await;
    check_whole(&h, &changes(&entries)).await;
    let last = entries.last().unwrap();
    assert!(matches!(last.content, LedgerContent::Record(_)));
    let LedgerContent::Change { task, events, .. } = &entries[0].content else {
        panic!("{:?}", entries[0]);
    };
    assert_eq!(task.id, tasks[0]);
    assert!(events.contains("task.accepted"));
    // From each position the rest is the same.
    for (at, entry) in entries.iter().enumerate() {
        let (rest, end) = read_on(&h, entry.after(0, 1)).await;
        assert_eq!(changes(&rest), changes(&entries[at + 1..]));
        assert_eq!(records(&rest), records(&entries[at + 1..]));
        assert_eq!(end, h.store.reader.ledger_head().await.unwrap());
    }
}

pub async fn a_read_takes_a_bounded_number_of_changes(h: Harness) {
    h.slots("x", 2000);
    let submitted = (0..700).map(|_| h.submit(New::default()));
    futures::future::join_all(submitted).await;
    visible(&h).await;
    let first = h.store.reader.ledger(LedgerPosition::OLDEST).await;
    let first = first.unwrap().unwrap();
    assert!(first.has_more);
    assert!(first.entries.len() <= 500, "{}", first.entries.len());
    // A position within a row reads its rest.
    let entry = first.entries.iter().rfind(|entry| !entry.is_last).unwrap();
    let within = entry.after(0, 1);
    assert!(within.within.is_some());
    let again = h.store.reader.ledger(within).await.unwrap().unwrap();
    let passed = |one: &&LedgerEntry| (one.row, one.index) > (entry.row, entry.index);
    assert!(again.entries.iter().filter(passed).count() >= 100);
    check_whole(&h, &changes(&all(&h).await)).await;
}

pub async fn a_command_of_a_person_is_recorded_with_its_origin(h: Harness) {
    h.slots("x", 10);
    let task = h.submit(New::default()).await.id();
    h.reply(task, 0, 1, refusal()).await.unwrap();
    let store = h.store.ordered_by(origin());
    let command = Command::Cancel {
        reason: Some("ordered twice".to_owned()),
    };
    let apply = Apply::new(task, command, Actor::operator("ada"));
    store.apply(apply.clone()).await.unwrap();
    let refused = store.apply(apply).await;
    assert!(refused.is_err(), "it has ended");
    let noted = records(&all(&h).await);
    let commands = noted.iter().filter(|record| record.kind == "task.command");
    let [command] = commands.collect::<Vec<_>>()[..] else {
        panic!("{noted:?}");
    };
    assert_eq!(command.name, task.to_string());
    assert_eq!(command.command.as_deref(), Some("cancel"));
    assert_eq!(command.by, "operator:ada");
    assert_eq!(command.role.as_deref(), Some("operate"));
    assert_eq!(command.address.as_deref(), Some("192.0.2.7"));
    assert_eq!(command.reason.as_deref(), Some("ordered twice"));
    let kinds: Vec<_> = noted.iter().map(|record| &*record.kind).collect();
    assert_eq!(kinds, ["alert.raised", "task.command", "alert.closed"]);
    // Alerts are not among the changes that people made.
    let audited = h.store.reader.audited(None, 10).await.unwrap();
    let audited: Vec<_> = audited.into_iter().flat_map(|row| row.records).collect();
    assert_eq!(audited.len(), 1, "{audited:?}");
    // The record is kept when the task is not.
    let soon = h.store.reader.now().await.unwrap() + Span::from_secs(60);
    h.store.purge(vec![task], soon).await.unwrap();
    let entries = all(&h).await;
    assert!(changes(&entries).is_empty());
    assert!(entries.iter().any(|entry| matches!(
        entry.content,
        LedgerContent::Deleted(changed) if changed.task == task
    )));
    assert_eq!(records(&entries), noted);
}

/// Makes all rows but the newest a day older.
const A_DAY_AGO: &str =
    "UPDATE ledger SET at = at - 86400000 WHERE id < (SELECT max(id) FROM ledger)";

fn at(now: Timestamp, hours: i64) -> Timestamp {
    Timestamp::from_millis(now.as_millis() - hours * 3_600_000)
}

pub async fn rows_are_deleted_when_their_time_is_over_and_records_later(h: Harness) {
    h.slots("x", 10);
    let submit = async || h.submit(New::default()).await.id();
    submit().await;
    h.store.record(record("kept")).await.unwrap();
    for _ in 0..3 {
        submit().await;
    }
    visible(&h).await;
    let (before, end) = read_on(&h, LedgerPosition::OLDEST).await;
    let now = h.store.reader.now().await.unwrap();
    let cutoff = |events: i64, changes: i64| LedgerCutoff {
        events: at(now, events),
        changes: at(now, changes),
    };
    let reader = &h.store.reader;
    assert!(!reader.has_old_ledger_rows(cutoff(1, 1)).await.unwrap());
    h.database.execute(A_DAY_AGO).await;
    let aged = all(&h).await;
    assert!(reader.has_old_ledger_rows(cutoff(1, 100)).await.unwrap());
    assert!(h.store.purge_ledger(cutoff(1, 100), 2).await.unwrap());
    while h.store.purge_ledger(cutoff(1, 100), 2).await.unwrap() {}
    assert!(!reader.has_old_ledger_rows(cutoff(1, 100)).await.unwrap());
    let rows = "SELECT count(*) FROM ledger";
    assert_eq!(
        h.database.count(rows).await,
        2,
        "the record, and the newest row"
    );
    let kept = reader.audited(None, 10).await.unwrap();
    assert_eq!(kept[0].records[0].name, "kept");
    // A position before what was deleted is refused, and the one after it is not.
    let expired = reader.ledger(aged[0].after(0, 1)).await.unwrap();
    let expired = expired.unwrap_err();
    assert_eq!(expired.fault, PositionFault::Expired);
    let (rest, _) = read_on(&h, expired.oldest).await;
    assert_eq!(changes(&rest), changes(&before)[before.len() - 2..]);
    assert!(read_on(&h, end).await.0.is_empty());
    let (rest, _) = read_on(&h, LedgerPosition::OLDEST).await;
    assert!(!rest.is_empty(), "the oldest is whatever is left");
    // The record is deleted when its own time is over.
    assert!(reader.has_old_ledger_rows(cutoff(1, 1)).await.unwrap());
    while h.store.purge_ledger(cutoff(1, 1), 2).await.unwrap() {}
    assert_eq!(h.database.count(rows).await, 1);
    submit().await;
    visible(&h).await;
    assert_eq!(read_on(&h, end).await.0.len(), 1, "no number is used twice");
}

/// Makes each row an hour older than the next one.
const AN_HOUR_APART: &str = "UPDATE ledger SET at = at - 3600000 * (SELECT count(*) FROM ledger AS later WHERE later.id > ledger.id)";

pub async fn a_time_leads_to_what_happened_since(h: Harness) {
    h.slots("x", 10);
    let empty = h
        .store
        .reader
        .ledger_since(Timestamp::from_millis(0))
        .await
        .unwrap();
    assert!(read_on(&h, empty).await.0.is_empty());
    for _ in 0..6 {
        h.submit(New::default()).await;
    }
    h.database.execute(AN_HOUR_APART).await;
    visible(&h).await;
    let read = changes(&all(&h).await);
    let now = h.store.reader.now().await.unwrap();
    for (hours, count) in [(9, 6), (5, 5), (3, 3), (1, 1), (-1, 1)] {
        let half_past = Timestamp::from_millis(at(now, hours).as_millis() + 1_800_000);
        let since = h.store.reader.ledger_since(half_past).await.unwrap();
        let (rest, _) = read_on(&h, since).await;
        assert_eq!(changes(&rest), read[read.len() - count..], "{hours}");
    }
}

pub async fn settings_that_differ_from_the_last_are_recorded(h: Harness) {
    let start = async |settings: &str| {
        let (instance, settings) = ("node-1".to_owned(), settings.to_owned());
        h.store.record_settings(instance, settings).await.unwrap();
    };
    for settings in [
        r#"{"a":1,"b":[2]}"#,
        r#"{"a":1,"b":[2]}"#,
        r#"{"a":1,"b":[3]}"#,
    ] {
        start(settings).await;
    }
    let noted = records(&all(&h).await);
    let [record] = &noted[..] else {
        panic!("{noted:?}");
    };
    assert_eq!(
        (&*record.kind, &*record.by),
        ("instance.settings", "instance:node-1")
    );
    assert_eq!(record.differences[0].pointer, "/b/0");
    assert_eq!(record.differences[0].after.as_deref(), Some("3"));
}

/// Makes the newest row another one, as after a restore or a failover.
const ANOTHER_ROW: &str = "UPDATE ledger SET at = at + 1 WHERE id = (SELECT max(id) FROM ledger)";

pub async fn a_position_of_a_row_that_is_another_by_now_is_refused(h: Harness) {
    h.slots("x", 10);
    h.submit(New::default()).await;
    visible(&h).await;
    let head = h.store.reader.ledger_head().await.unwrap();
    assert!(h.store.reader.ledger(head).await.unwrap().is_ok());
    h.database.execute(ANOTHER_ROW).await;
    let rewound = h.store.reader.ledger(head).await.unwrap().unwrap_err();
    assert_eq!(rewound.fault, PositionFault::Rewound);
    assert!(h.store.reader.ledger(rewound.newest).await.unwrap().is_ok());
}

pub async fn a_reader_is_moved_by_its_owner_and_by_one_of_two_that_compare(h: Harness) {
    h.slots("x", 10);
    h.submit(New::default()).await;
    let head = h.store.reader.ledger_head().await.unwrap();
    let to = |position, caller: &str, condition| ReaderMove {
        name: "billing".to_owned(),
        position,
        caller: caller.to_owned(),
        is_operator: caller == "root",
        condition,
    };
    let any = Precondition::default;
    let moved = async |to| h.store.move_ledger_reader(to).await;
    let missing = moved(to(None, "shop", any())).await.unwrap();
    assert_eq!(missing, ReaderMoved::Missing);
    let ReaderMoved::To(reader, true) = moved(to(Some(head), "shop", any())).await.unwrap() else {
        panic!("it is new");
    };
    let same = |tag: &str| Precondition {
        if_match: crate::domain::values::ETags::parse(tag),
        if_none_match: None,
    };
    let tag = reader.etag().to_string();
    let other = moved(to(Some(LedgerPosition::OLDEST), "other", any())).await;
    assert_eq!(other.unwrap(), ReaderMoved::OfAnother("shop".to_owned()));
    let ReaderMoved::To(next, false) = moved(to(Some(head), "shop", same(&tag))).await.unwrap()
    else {
        panic!("it is known");
    };
    assert_ne!(next.etag(), reader.etag());
    assert!(
        moved(to(Some(head), "shop", same(&tag))).await.is_err(),
        "it has moved since"
    );
    assert_eq!(
        h.store.reader.ledger_reader("billing").await.unwrap(),
        Some(next.clone())
    );
    assert_eq!(h.store.reader.ledger_readers("", 10).await.unwrap(), [next]);
    let deleted = moved(to(None, "root", any())).await.unwrap();
    assert_eq!(deleted, ReaderMoved::Deleted);
}

#[tokio::test]
async fn a_transaction_that_commits_later_is_not_passed_over() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 10);
    let mut other = outside(&h).await;
    let mut open = other.begin().await.unwrap();
    // This transaction has the lower number, and commits after the other.
    sqlx::query(
        "INSERT INTO ledger (epoch, at, records, audited) SELECT epoch, 1, $1, 1 FROM ledger_state",
    )
    .bind(json!([record("early")]).to_string())
    .execute(&mut *open)
    .await
    .unwrap();
    let task = h.submit(New::default()).await.id();
    let (meanwhile, position) = read_on(&h, LedgerPosition::OLDEST).await;
    open.commit().await.unwrap();
    visible(&h).await;
    let (rest, _) = read_on(&h, position).await;
    let both: Vec<_> = meanwhile.into_iter().chain(rest).collect();
    assert_eq!(records(&both).len(), 1, "{both:?}");
    assert_eq!(changes(&both), [(task, 1)]);
    assert!(matches!(both[0].content, LedgerContent::Record(_)));
}

/// Adds rows in transactions that stay open for different times.
async fn add_rows(database: String, name: usize, rows: usize) {
    let mut connection = PgConnection::connect(&database).await.unwrap();
    for row in 0..rows {
        let mut open = connection.begin().await.unwrap();
        let noted = json!([record(&format!("{name}-{row}"))]).to_string();
        sqlx::query("INSERT INTO ledger (epoch, at, records, audited) SELECT epoch, 1, $1, 1 FROM ledger_state")
            .bind(noted)
            .execute(&mut *open)
            .await
            .unwrap();
        sqlx::query("SELECT pg_sleep($1::float8 / 1000)")
            .bind(((name * 7 + row * 3) % 11) as f64)
            .execute(&mut *open)
            .await
            .unwrap();
        open.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_under_load_of_two_instances_and_others_reads_each_change_once() {
    const WRITERS: usize = 6;
    const ROWS: usize = 40;
    const TASKS: usize = 120;
    let (a, b) = pair().await;
    for h in [&a, &b] {
        h.slots("x", 1000);
    }
    let database = url(&a);
    let submit = |h: Arc<Harness>| async move {
        for _ in 0..TASKS {
            let task = h.submit(New::default()).await.id();
            // Another instance may have claimed the step; then the reply is late.
            let _ = h.reply(task, 0, 1, success(json!(1))).await;
        }
    };
    let written = tokio::spawn({
        let (submit_a, submit_b) = (submit(a.clone()), submit(b.clone()));
        let writers = (0..WRITERS).map(|name| add_rows(database.clone(), name, ROWS));
        let writers = futures::future::join_all(writers);
        async move {
            futures::join!(writers, submit_a, submit_b);
        }
    });
    let (mut read, mut position) = (Vec::new(), LedgerPosition::OLDEST);
    let mut rows = BTreeSet::new();
    let reading = async {
        let mut follow = a.store.ledger.follow();
        loop {
            let is_over = written.is_finished();
            let (entries, end) = read_on(&a, position).await;
            position = end;
            let is_empty = entries.is_empty();
            rows.extend(entries.iter().map(|entry| entry.row));
            read.extend(entries);
            let written = "SELECT count(*) FROM ledger";
            if is_over && rows.len() as i64 >= a.database.count(written).await {
                break;
            }
            if is_empty {
                let _ = timeout(Duration::from_millis(300), follow.changed()).await;
            }
        }
    };
    timeout(PATIENCE, reading).await.unwrap();
    written.await.unwrap();
    check_whole(&a, &changes(&read)).await;
    let mut names: Vec<_> = records(&read)
        .into_iter()
        .map(|record| record.name)
        .collect();
    assert_eq!(names.len(), WRITERS * ROWS);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), WRITERS * ROWS);
    assert!(
        read.windows(2)
            .all(|pair| (pair[0].row, pair[0].index) < (pair[1].row, pair[1].index))
    );
}

/// Makes the rows like those of a dump of another server, which had assigned more numbers.
const OF_ANOTHER_SERVER: &str = "UPDATE ledger SET xid = CAST('900000000000' AS xid8)";

#[tokio::test]
async fn after_a_restore_on_another_server_the_order_goes_on() {
    let h = Harness::new(postgres().await).await;
    h.slots("x", 10);
    let first = h.submit(New::default()).await.id();
    h.database.execute(OF_ANOTHER_SERVER).await;
    let again = Harness::new(postgres_at(url(&h)).await).await;
    again.slots("x", 10);
    visible(&again).await;
    let (before, position) = read_on(&again, LedgerPosition::OLDEST).await;
    assert_eq!(changes(&before), [(first, 1)]);
    assert_eq!(records(&before)[0].kind, "ledger.restored");
    let second = again.submit(New::default()).await.id();
    // Another instance that connects does not take the rows of this server for restored ones.
    let third = Harness::new(postgres_at(url(&h)).await).await;
    third.slots("x", 10);
    let last = third.submit(New::default()).await.id();
    visible(&third).await;
    let (rest, _) = read_on(&third, position).await;
    assert_eq!(changes(&rest), [(second, 1), (last, 1)]);
    assert!(records(&rest).is_empty());
    // An instance that was connected before writes in the new order too.
    let late = h.submit(New::default()).await.id();
    assert_eq!(changes(&all(&h).await).last(), Some(&(late, 1)));
}

/// The record of an instance that joined before there was a ledger.
const OLDER: &str = "INSERT INTO instances (id, incarnation, term, until, started_at, version, process,
        reads_untouched, reads_claims, reads_key_prefix, completes_links, holds_undos, writes_ledger, reads_attempt_rules)
    VALUES ('older', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', 1, 1, 1, 1, 1, NULL, NULL)";

#[tokio::test]
async fn the_ledger_counts_as_complete_once_every_instance_writes_it() {
    let first = Harness::new(postgres().await).await;
    first.database.execute(OLDER).await;
    let h = Harness::new(postgres_at(url(&first)).await).await;
    assert!(!h.store.features.has(SharedFeature::Ledger));
    let state = h.store.reader.ledger_state().await.unwrap();
    assert_eq!(state.complete_since, None);
    h.database.execute("DELETE FROM instances").await;
    let known = async {
        while !h.store.features.has(SharedFeature::Ledger) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, known).await.unwrap();
    h.store.complete_ledger().await.unwrap();
    let state = h.store.reader.ledger_state().await.unwrap();
    assert!(state.complete_since.is_some());
    h.store.complete_ledger().await.unwrap();
    assert_eq!(h.store.reader.ledger_state().await.unwrap(), state);
}

#[tokio::test]
async fn no_statement_of_the_ledger_reads_through_a_table() {
    let h = Harness::new(postgres().await).await;
    let mut connection = outside(&h).await;
    sqlx::query("INSERT INTO ledger (epoch, at, records, audited) SELECT 1, n, '[]', CASE WHEN n % 100 = 0 THEN 1 END FROM generate_series(1, 20000) AS n")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::query("ANALYZE ledger")
        .execute(&mut connection)
        .await
        .unwrap();
    for statement in crate::store::view::ledger_sql::statements(
        crate::store::view::ledger_sql::LedgerDialect::Postgres,
    ) {
        let explain = format!("EXPLAIN {}", statement.sql);
        let explain = crate::store::statement::Statement {
            sql: explain,
            values: statement.values,
        };
        let plan = pg_plan(&mut connection, explain).await;
        assert!(!plan.contains("Seq Scan on ledger "), "{plan}");
        assert!(!plan.contains("Seq Scan on ledger\n"), "{plan}");
        // The changes that were asked for are sorted.
        assert!(!plan.contains("Sort") || plan.contains("listed"), "{plan}");
    }
}

async fn pg_plan(
    connection: &mut PgConnection,
    explain: crate::store::statement::Statement,
) -> String {
    let sql = explain.sql.clone();
    let query = crate::store::postgres::with_values(explain);
    let rows = query.fetch_all(connection).await.unwrap();
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    format!("{sql}\n{}\n", lines.join("\n"))
}
