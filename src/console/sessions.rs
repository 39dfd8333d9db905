//! Sessions in the database, so that people stay signed in at every instance and after a restart. While the database takes no
//! writes, a session is kept at the instance where somebody signed in: it is then that they need the console.

use async_trait::async_trait;
use jiff::Timestamp;
use provost_console::{MemorySessions, Session, SessionStore, hex, unhex};
use tracing::warn;

use crate::{
    domain::values,
    store::{ConsoleSession, Store},
};

pub struct StoreSessions {
    store: Store,
    /// The sessions that could not be written.
    unsaved: MemorySessions,
}

impl StoreSessions {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            unsaved: MemorySessions::default(),
        }
    }
}

fn in_store(at: Timestamp) -> values::Timestamp {
    values::Timestamp::from_millis(at.as_millisecond())
}

/// Returns `None` for a row that is no session.
fn read(found: &ConsoleSession) -> Option<Session> {
    Some(Session {
        credential: unhex(&found.credential)?,
        ends_at: Timestamp::from_millisecond(found.ends_at.as_millis()).ok()?,
    })
}

#[async_trait]
impl SessionStore for StoreSessions {
    async fn put(&self, id: [u8; 32], session: Session, now: Timestamp) {
        let saved = ConsoleSession {
            id: hex(&id),
            credential: hex(&session.credential),
            ends_at: in_store(session.ends_at),
        };
        if let Err(error) = self.store.add_console_session(saved, in_store(now)).await {
            warn!(%error, "a session of the console is kept in the memory of this instance, and is unknown to others");
            self.unsaved.put(id, session, now).await;
        }
    }

    async fn get(&self, id: &[u8; 32], now: Timestamp) -> Option<Session> {
        if let Some(unsaved) = self.unsaved.get(id, now).await {
            return Some(unsaved);
        }
        let found = self.store.reader.console_session(&hex(id)).await;
        let found =
            found.inspect_err(|error| warn!(%error, "a session of the console cannot be read"));
        let session = read(&found.ok()??)?;
        (session.ends_at > now).then_some(session)
    }

    async fn remove(&self, id: &[u8; 32]) {
        self.unsaved.remove(id).await;
        if let Err(error) = self.store.remove_console_session(hex(id)).await {
            warn!(%error, "a session of the console could not be ended; it ends at its time");
        }
    }
}
