//! A connection of the writer. When it is lost, a background task connects again, with growing waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{Connection as _, Executor, PgConnection, Row, raw_sql};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    StoreError,
    commit_witness::SessionId,
    prepared::Prepared,
    servers::{NoPrimary, Servers},
    session_settings::SESSION_SETTINGS,
};
use crate::{
    chance,
    clock::{self, Instant, sleep, timeout, timeout_at},
    store::RECONNECT,
};

const READ_ONLY: &str = "the database accepts no writes: check default_transaction_read_only of the database, the user and the server";

const ROLLBACK_WITHIN: Duration = Duration::from_secs(2);
/// The time for which the writer waits for the new connection after a loss, before it refuses requests. A session that
/// was ended is replaced within milliseconds, and no caller needs to know. After this time callers get the error at
/// once. They wait as long again once any other connection was made that can write, because this one will be ready soon
/// too.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct WriterConnection {
    connector: Connector,
    state: ConnectionState,
}

/// Connects to the server that takes writes, and applies the session settings.
#[derive(Clone)]
pub(super) struct Connector {
    pub servers: Arc<Servers>,
    pub prepared: Prepared,
    /// True if the last connection that was made cannot write, because the database is set read-only.
    pub is_read_only: Arc<AtomicBool>,
}

/// A connection with the session settings that the writer's statements need.
pub(super) struct WriterSession {
    pub connection: PgConnection,
    /// `None` with a pooler.
    pub id: Option<SessionId>,
}

impl Connector {
    pub async fn connect(&self) -> Result<WriterSession, NoPrimary> {
        self.with_settings(self.servers.connect().await?).await
    }

    pub async fn with_settings(
        &self,
        mut connection: PgConnection,
    ) -> Result<WriterSession, NoPrimary> {
        let id = match self.prepared {
            Prepared::Named => {
                let id = apply_settings(&mut connection).await;
                Some(id.map_err(|error| self.servers.unfit(error))?)
            }
            Prepared::Unnamed => None,
        };
        Ok(WriterSession { connection, id })
    }
}

async fn apply_settings(connection: &mut PgConnection) -> Result<SessionId, sqlx::Error> {
    let row = connection.fetch_one(raw_sql(SESSION_SETTINGS)).await?;
    Ok(SessionId {
        process: row.try_get("process")?,
        since: row.try_get("since")?,
    })
}

enum ConnectionState {
    Idle(WriterSession),
    /// The open transaction is being rolled back, or a new connection is being made.
    Connecting {
        on_its_way: oneshot::Receiver<WriterSession>,
        wait_until: Instant,
    },
    Lent,
    /// The connection is not needed for now.
    Closed,
}

impl WriterConnection {
    /// Creates a connection that is made when it is first taken.
    pub fn unconnected(connector: Connector) -> Self {
        Self {
            connector,
            state: ConnectionState::Closed,
        }
    }

    /// Closes the connection until it is taken again.
    pub async fn disconnect(&mut self) {
        if let ConnectionState::Idle(session) =
            std::mem::replace(&mut self.state, ConnectionState::Closed)
        {
            // The server also notices when the connection is only cut.
            let _ = timeout(ROLLBACK_WITHIN, session.connection.close()).await;
        }
    }

    pub fn new(connection: WriterSession, connector: Connector) -> Self {
        Self {
            connector,
            state: ConnectionState::Idle(connection),
        }
    }

    /// Lends the connection. The borrower returns it by [`WriterConnection::put_back`] or
    /// [`WriterConnection::recover`].
    pub async fn take(&mut self) -> Result<WriterSession, StoreError> {
        if matches!(self.state, ConnectionState::Lent | ConnectionState::Closed) {
            // The borrower was dropped with the connection, or there was none yet.
            self.recover(None);
        }
        match std::mem::replace(&mut self.state, ConnectionState::Lent) {
            ConnectionState::Idle(connection) => Ok(connection),
            ConnectionState::Connecting {
                mut on_its_way,
                wait_until,
            } => {
                let patience = self.connector.servers.last_connected() + PATIENCE;
                match timeout_at(wait_until.max(patience), &mut on_its_way).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    // The task that recovers the connection has ended, with the runtime or by a panic.
                    Ok(Err(_)) => self.recover(None),
                    Err(_) => {
                        self.state = ConnectionState::Connecting {
                            on_its_way,
                            wait_until,
                        };
                    }
                }
                Err(match self.connector.is_read_only.load(Ordering::Acquire) {
                    true => StoreError::NotNow(READ_ONLY.to_owned()),
                    false => StoreError::Unavailable(
                        "the connection to the database is lost; reconnecting".to_owned(),
                    ),
                })
            }
            // Without a runtime no task recovers the connection.
            ConnectionState::Lent | ConnectionState::Closed => Err(StoreError::Unavailable(
                "the connection to the database was not returned".to_owned(),
            )),
        }
    }

    pub fn prepared(&self) -> Prepared {
        self.connector.prepared
    }

    pub fn put_back(&mut self, connection: WriterSession) {
        self.state = ConnectionState::Idle(connection);
    }

    /// Rolls back the open transaction of the connection, so that its locks are released, or makes a new connection.
    /// This runs in the background, so that only writes wait for it.
    pub fn recover(&mut self, connection: Option<WriterSession>) {
        let (give, on_its_way) = oneshot::channel();
        self.state = ConnectionState::Connecting {
            on_its_way,
            wait_until: clock::instant() + PATIENCE,
        };
        let connector = self.connector.clone();
        // Without a runtime there will be no further writes.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(recover(connection, connector, give));
        }
    }

    /// Makes another connection in addition to the one that is lent.
    pub async fn another(&self) -> Result<WriterSession, StoreError> {
        let connected = self.connector.connect().await;
        connected.map_err(|none| StoreError::Unavailable(none.to_string()))
    }
}

/// Returns `None` if the server does not respond.
async fn is_read_only(connection: &mut PgConnection) -> Option<bool> {
    let asked = connection.fetch_one(raw_sql(
        "SELECT current_setting('transaction_read_only') = 'on' AS read_only",
    ));
    let answer = timeout(ROLLBACK_WITHIN, asked).await;
    answer.ok()?.ok()?.try_get("read_only").ok()
}

async fn recover(
    connection: Option<WriterSession>,
    connector: Connector,
    mut give: oneshot::Sender<WriterSession>,
) {
    if let Some(mut session) = connection
        && let Ok(Ok(_)) =
            clock::timeout(ROLLBACK_WITHIN, session.connection.execute("ROLLBACK")).await
        && let Some(false) = is_read_only(&mut session.connection).await
    {
        // The receiver is gone if the process is about to end.
        let _ = give.send(session);
        return;
    }
    let mut failures = 0_u32;
    loop {
        let tried = clock::instant();
        let mut connected = connector.connect().await;
        let mut read_only = None;
        if let Ok(session) = &mut connected {
            // A session keeps the setting that the database had when the session began, so each attempt makes a new
            // one.
            read_only = is_read_only(&mut session.connection).await;
        }
        let was_read_only = connector
            .is_read_only
            .swap(read_only == Some(true), Ordering::AcqRel);
        match connected {
            Ok(_) if read_only == Some(true) => {
                failures += 1;
                // One log entry serves for all connections, while they retry.
                if !was_read_only {
                    warn!("{READ_ONLY}; trying again until it does");
                }
            }
            Ok(connection) => {
                if failures > 0 {
                    info!(failures, "reconnected to the database");
                }
                connector.servers.note_connected();
                let _ = give.send(connection);
                return;
            }
            Err(error) => {
                failures += 1;
                let again_in = RECONNECT.wait(failures);
                warn!(%error, again_in_seconds = again_in.as_secs_f64(), "the database cannot be reached");
            }
        }
        // The waits are random, so that instances do not all reconnect at the same moment.
        let wait = RECONNECT.equal_jitter(failures, chance::random());
        tokio::select! {
            () = sleep(wait) => {}
            () = connector.servers.connected_after(tried) => {}
            () = give.closed() => return,
        }
    }
}
