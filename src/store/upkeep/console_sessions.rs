//! Sessions of people who signed in at the console. They are kept under digests, as hexadecimal digits.

use std::sync::Arc;

use futures::FutureExt;

use crate::domain::values::Timestamp;
use crate::store::{
    Reader, Store, StoreError, Transaction,
    rows::{Columns, Row},
    statement::Statement,
};

/// The most sessions of one access token, so that who has a token signs out nobody who has another one.
pub const MOST_SESSIONS_OF_TOKEN: usize = 100;
/// The most sessions of all tokens.
const MOST_SESSIONS: usize = 10_000;
/// The most rows that one sign-in deletes for one reason.
const MOST_DELETED: usize = 1000;

const GET: &str = "SELECT credential, ends_at FROM console_sessions WHERE id = $1";

/// Relies on console_sessions_by_end.
const DELETE_ENDED: &str = r#"
DELETE FROM console_sessions
WHERE id IN (SELECT id FROM console_sessions WHERE ends_at <= $1 ORDER BY ends_at LIMIT $2)"#;

/// Relies on console_sessions_by_token. Those that end first give way.
const MAKE_ROOM_FOR_TOKEN: &str = r#"
DELETE FROM console_sessions
WHERE id IN (SELECT id FROM console_sessions WHERE credential = $1 ORDER BY ends_at DESC LIMIT $2 OFFSET $3)"#;

/// Relies on console_sessions_by_end.
const MAKE_ROOM: &str = r#"
DELETE FROM console_sessions
WHERE id IN (SELECT id FROM console_sessions ORDER BY ends_at DESC LIMIT $1 OFFSET $2)"#;

const PUT: &str = "INSERT INTO console_sessions (id, credential, ends_at) VALUES ($1, $2, $3)";

const REMOVE: &str = "DELETE FROM console_sessions WHERE id = $1";

/// A session, under the digest of its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsoleSession {
    pub id: String,
    /// The digest of the access token.
    pub credential: String,
    pub ends_at: Timestamp,
}

impl Reader {
    /// Returns the session with this digest, whether it has ended or not.
    pub async fn console_session(&self, id: &str) -> Result<Option<ConsoleSession>, StoreError> {
        let session = |row: &Row| {
            Ok(ConsoleSession {
                id: id.to_owned(),
                credential: row.get("credential")?,
                ends_at: row.get("ends_at")?,
            })
        };
        self.first(Statement::new(GET).bind(id), session).await
    }
}

impl Store {
    /// Adds a session, and deletes those that have ended by `now` or have to give way.
    pub async fn add_console_session(
        &self,
        session: ConsoleSession,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let session = Arc::new(session);
        self.send_write(true, None, move |tx| {
            let session = session.clone();
            async move { add(tx, &session, now).await }.boxed()
        })
        .await
    }

    pub async fn remove_console_session(&self, id: String) -> Result<(), StoreError> {
        self.send_write(true, None, move |tx| {
            let remove = Statement::new(REMOVE).bind(id.as_str());
            async move { tx.run(remove).await }.boxed()
        })
        .await
    }
}

async fn add(
    tx: &mut Transaction<'_>,
    session: &ConsoleSession,
    now: Timestamp,
) -> Result<(), StoreError> {
    tx.lock_out_of_order();
    let credential = session.credential.as_str();
    let ended = Statement::new(DELETE_ENDED).bind(now).bind(MOST_DELETED);
    tx.run(ended).await?;
    let of_token = Statement::new(MAKE_ROOM_FOR_TOKEN)
        .bind(credential)
        .bind(MOST_DELETED)
        .bind(MOST_SESSIONS_OF_TOKEN - 1);
    tx.run(of_token).await?;
    let of_all = Statement::new(MAKE_ROOM)
        .bind(MOST_DELETED)
        .bind(MOST_SESSIONS - 1);
    tx.run(of_all).await?;
    let put = Statement::new(PUT)
        .bind(session.id.as_str())
        .bind(credential)
        .bind(session.ends_at);
    tx.run(put).await
}
