//! Looks at a database file for `provost doctor`, while a service may be using it. Changes nothing.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, config::DbConfig};
use tokio::task::spawn_blocking;

use super::{known, migrate};
use crate::{clock, store::examine::DatabaseFacts};

/// Returns the facts; `None` if the file does not exist yet.
pub async fn examine(path: &Path) -> Result<Option<DatabaseFacts>, String> {
    let path = path.to_owned();
    let looked = spawn_blocking(move || match path.exists() {
        true => look(&path).map(Some).map_err(|error| error.to_string()),
        false => Ok(None),
    });
    looked.await.map_err(|error| error.to_string())?
}

fn look(path: &Path) -> rusqlite::Result<DatabaseFacts> {
    let began = clock::instant();
    // A file that a service has open has its latest data in `-wal`, which only a connection that may write can use.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA query_only = ON")?;
    // Otherwise the last connection to close would write `-wal` into the file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let schema = migrate::last_applied(&connection)?;
    let bytes = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let bytes: i64 = connection.query_row(bytes, [], |row| row.get(0))?;
    let took = began.elapsed();
    let checked: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(DatabaseFacts {
        server: format!("SQLite {}", rusqlite::version()),
        schema,
        known_schema: known(),
        bytes: bytes.unsigned_abs(),
        took,
        damage: (checked != "ok").then_some(checked),
        ..DatabaseFacts::default()
    })
}
