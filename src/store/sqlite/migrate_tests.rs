//! This version continues with a database that a version with another driver has migrated, and the other way round.

use std::borrow::Cow;

use rusqlite::Connection;
use sqlx::{SqlSafeStr, migrate::MigrationType};

use super::{
    MIGRATIONS,
    migrate::{MigrationError, last_applied, migrate},
    *,
};

/// The table as sqlx made it, and the rows that the first release wrote: version, description and checksum.
const TABLE: &str = "CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
)";
const ROWS: [(i64, &str, &str); 7] = [
    (
        1,
        "initial",
        "E37D54087F00AFD2A8EDB37E13055B97B114AE65FFC0055F4E906B2F2A420F0BA9A314FA60A4A0D527263E18EEAAB465",
    ),
    (
        2,
        "instances",
        "B738F01941545C49F8280C567B37EF384ED066E77DA0F14FD5F2B2A341F9DAAF674C771AC2560A930A51CDFFB46A59CF",
    ),
    (
        3,
        "undo",
        "E06704962E4E94CF19D73A1781732F27DAA34C4054FC66145437E91ED0006E7420C6604A4CDD14F0B63DB0B835AD116C",
    ),
    (
        4,
        "outbox",
        "F52553036DE3DD367E8AE5157722D107BC1A7565A5B637508B2B59461E2DC1FDFEF7E59B1C98E751C29A8E1606ED1933",
    ),
    (
        5,
        "trace",
        "4175059335923FB849C41EAFC4CBE6948354E1172B9CBB237ADA06346C13483DE96F7B8F7484E51B06EEE3D909831040",
    ),
    (
        6,
        "destinations",
        "CEBA891DAF63AC93546CD2E8E68316523A5EE32CD8931D634FD0BC7D108768B8325F755E007E0AB87810FE21D71690E4",
    ),
    (
        7,
        "tries",
        "FFC2985845A4C6BAFA38D607FCB8CE27661990F85A8F5091ED63AF3577E2598DD4F0A65018ADBCF6B4CCEAD8841D5BEA",
    ),
];

/// Returns a database as sqlx left it after this number of migrations.
fn by_sqlx(migrations: usize) -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(TABLE).unwrap();
    for (migration, row) in MIGRATIONS.iter().zip(ROWS).take(migrations) {
        database.execute_batch(migration.sql.as_str()).unwrap();
        let insert =
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (?1, ?2, TRUE, unhex(?3), 7789933)";
        assert_eq!(database.execute(insert, row).unwrap(), 1);
    }
    database
}

/// Returns the rows of the table, without their times.
fn rows(database: &Connection) -> Vec<(i64, String, String)> {
    let rows = "SELECT version, description, hex(checksum) FROM _sqlx_migrations
         WHERE typeof(version) = 'integer' AND typeof(checksum) = 'blob' AND typeof(execution_time) = 'integer'
             AND success IS 1 AND execution_time > 0 AND datetime(installed_on) IS installed_on
         ORDER BY rowid";
    let mut rows = database.prepare(rows).unwrap();
    let rows = rows.query_map([], |row| row.try_into()).unwrap();
    rows.map(Result::unwrap).collect()
}

fn schema(database: &Connection) -> Vec<(String, Option<String>)> {
    let schema = "SELECT name, sql FROM sqlite_schema ORDER BY name";
    let mut schema = database.prepare(schema).unwrap();
    let schema = schema.query_map([], |row| row.try_into()).unwrap();
    schema.map(Result::unwrap).collect()
}

#[test]
fn a_database_that_sqlx_migrated_goes_on_and_gets_the_rows_and_the_schema_of_a_new_one() {
    let mut new = Connection::open_in_memory().unwrap();
    assert_eq!(last_applied(&new).unwrap(), 0);
    migrate(&mut new, &MIGRATIONS).unwrap();
    let released = ROWS.map(|(version, name, checksum)| (version, name.into(), checksum.into()));
    assert_eq!(rows(&new)[..ROWS.len()], released);
    assert_eq!(last_applied(&new).unwrap(), known());
    for applied in 0..=ROWS.len() {
        let mut old = by_sqlx(applied);
        assert_eq!(last_applied(&old).unwrap(), applied as i64);
        migrate(&mut old, &MIGRATIONS).unwrap();
        assert_eq!(rows(&old), rows(&new));
        assert_eq!(schema(&old), schema(&new));
        let times = "SELECT count(*) FROM _sqlx_migrations WHERE execution_time = 7789933";
        let kept: i64 = old.query_row(times, [], |row| row.get(0)).unwrap();
        assert_eq!(kept, applied as i64, "what was applied was applied again");
    }
    // If there is nothing to do, nothing is written.
    let changes = new.total_changes();
    migrate(&mut new, &MIGRATIONS).unwrap();
    assert_eq!(new.total_changes(), changes);
}

#[test]
fn what_was_modified_or_is_partially_applied_or_unknown_is_refused_and_nothing_is_applied() {
    let refused = |harm: &str| {
        let mut database = by_sqlx(3);
        database.execute_batch(harm).unwrap();
        let refused = migrate(&mut database, &MIGRATIONS).unwrap_err();
        let there: i64 = database
            .query_row(
                "SELECT count(*) FROM sqlite_schema WHERE name = 'messages'",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(there, 0, "{harm}");
        refused
    };
    let modified = refused("UPDATE _sqlx_migrations SET checksum = x'01' WHERE version = 2");
    assert!(
        matches!(modified, MigrationError::Modified(2)),
        "{modified}"
    );
    let partial = refused("UPDATE _sqlx_migrations SET success = FALSE WHERE version >= 2");
    assert!(matches!(partial, MigrationError::Partial(2)), "{partial}");
    let unknown = refused(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'later', TRUE, x'', 0), (1000, 'later', TRUE, x'', 0)",
    );
    assert!(
        matches!(unknown, MigrationError::Unknown(1000)),
        "{unknown}"
    );
}

#[test]
fn a_migration_that_fails_leaves_nothing_and_those_before_it_stay() {
    let migration = |version, sql: &'static str| {
        let sql = sql.into_sql_str();
        Migration::new(
            version,
            Cow::Borrowed("some"),
            MigrationType::Simple,
            sql,
            false,
        )
    };
    let first = migration(
        1,
        "CREATE TABLE things (a PRIMARY KEY, of REFERENCES things)",
    );
    let mut database = Connection::open_in_memory().unwrap();
    for fails in [
        "CREATE TABLE others (a); INSERT INTO nowhere VALUES (1)",
        // Foreign keys are checked.
        "CREATE TABLE others (a); INSERT INTO things VALUES (1, 2)",
    ] {
        let failed = migrate(&mut database, &[first.clone(), migration(2, fails)]).unwrap_err();
        assert!(matches!(failed, MigrationError::Sqlite(_)), "{failed}");
        assert_eq!(last_applied(&database).unwrap(), 1);
        let names: Vec<_> = schema(&database)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert!(!names.contains(&"others".to_owned()), "{names:?}");
        assert!(database.is_autocommit());
    }
    let works = migration(
        2,
        "CREATE TABLE others (a); INSERT INTO things VALUES (1, 1)",
    );
    migrate(&mut database, &[first, works]).unwrap();
    assert_eq!(last_applied(&database).unwrap(), 2);
}
