//! The writer's one connection: lost, it is connected again in the background, with waits that grow.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use sqlx::{Connection as _, Executor, PgConnection, Row, raw_sql};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    StoreError,
    outcome::Session,
    servers::{NoPrimary, Servers},
    statements::Statements,
    transaction::PIN,
};

const ROLLBACK_WITHIN: Duration = Duration::from_secs(2);
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long after a loss the writer waits for the new connection before it turns its callers away: a
/// session that was ended is back within milliseconds, and nobody need hear of it. When that time is over,
/// callers hear at once that there is none; but they wait as long again once any other connection was made,
/// because this one will be there in a moment too.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    lead: Lead,
    state: State,
}

/// How the writer gets to a server.
#[derive(Clone)]
pub(super) struct Lead {
    pub servers: Arc<Servers>,
    pub statements: Statements,
}

/// A connection on which the writer's statements are planned as they should be.
pub(super) struct Pinned {
    pub connection: PgConnection,
    /// `None` behind a pooler.
    pub session: Option<Session>,
}

impl Lead {
    pub async fn connect(&self) -> Result<Pinned, NoPrimary> {
        self.pin(self.servers.connect().await?).await
    }

    pub async fn pin(&self, mut connection: PgConnection) -> Result<Pinned, NoPrimary> {
        let session = match self.statements {
            Statements::Kept => {
                let session = session(&mut connection).await;
                Some(session.map_err(|error| self.servers.unfit(error))?)
            }
            Statements::Forgotten => None,
        };
        Ok(Pinned {
            connection,
            session,
        })
    }
}

async fn session(connection: &mut PgConnection) -> Result<Session, sqlx::Error> {
    let row = connection.fetch_one(raw_sql(PIN)).await?;
    Ok(Session {
        process: row.try_get("process")?,
        since: row.try_get("since")?,
    })
}

enum State {
    Here(Pinned),
    /// Being rolled back, or connected anew.
    Coming {
        on_its_way: oneshot::Receiver<Pinned>,
        wait_until: Instant,
    },
    Lent,
    /// Not needed for now.
    None,
}

impl Connection {
    /// Connects when it is first taken.
    pub fn unconnected(lead: Lead) -> Self {
        Self {
            lead,
            state: State::None,
        }
    }

    /// Closes the connection until it is taken again.
    pub async fn disconnect(&mut self) {
        if let State::Here(pinned) = std::mem::replace(&mut self.state, State::None) {
            // The server notices as well where it is only cut.
            let _ = timeout(ROLLBACK_WITHIN, pinned.connection.close()).await;
        }
    }

    pub fn new(connection: Pinned, lead: Lead) -> Self {
        Self {
            lead,
            state: State::Here(connection),
        }
    }

    /// Lends the connection; it comes back by [`Connection::put_back`] or [`Connection::mend`].
    pub async fn take(&mut self) -> Result<Pinned, StoreError> {
        if matches!(self.state, State::Lent | State::None) {
            // The borrower was dropped, and the connection with it; or there was none yet.
            self.mend(None);
        }
        match std::mem::replace(&mut self.state, State::Lent) {
            State::Here(connection) => Ok(connection),
            State::Coming {
                mut on_its_way,
                wait_until,
            } => {
                let patience = self.lead.servers.last_connected() + PATIENCE;
                match timeout_at(wait_until.max(patience), &mut on_its_way).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    // The one who was mending it is gone: with the runtime, or by a panic.
                    Ok(Err(_)) => self.mend(None),
                    Err(_) => {
                        self.state = State::Coming {
                            on_its_way,
                            wait_until,
                        };
                    }
                }
                Err(StoreError::Unavailable(
                    "there is no connection to the database; connecting again".to_owned(),
                ))
            }
            // Without a runtime nobody mends it.
            State::Lent | State::None => Err(StoreError::Unavailable(
                "the connection to the database was not given back".to_owned(),
            )),
        }
    }

    pub fn statements(&self) -> Statements {
        self.lead.statements
    }

    pub fn put_back(&mut self, connection: Pinned) {
        self.state = State::Here(connection);
    }

    /// Rolls back what is open on the connection, so that its locks are held no longer, or makes a new
    /// one. In the background: nobody waits for it who does not write.
    pub fn mend(&mut self, connection: Option<Pinned>) {
        let (give, on_its_way) = oneshot::channel();
        self.state = State::Coming {
            on_its_way,
            wait_until: Instant::now() + PATIENCE,
        };
        let lead = self.lead.clone();
        // Without a runtime nobody will write again.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(mend(connection, lead, give));
        }
    }

    /// Another connection beside the one that is lent.
    pub async fn another(&self) -> Result<Pinned, StoreError> {
        let connected = self.lead.connect().await;
        connected.map_err(|none| StoreError::Unavailable(none.to_string()))
    }
}

async fn mend(connection: Option<Pinned>, lead: Lead, mut give: oneshot::Sender<Pinned>) {
    if let Some(mut pinned) = connection
        && let Ok(Ok(_)) =
            tokio::time::timeout(ROLLBACK_WITHIN, pinned.connection.execute("ROLLBACK")).await
    {
        // Nobody waits for it any more at the end of the process.
        let _ = give.send(pinned);
        return;
    }
    let mut wait = FIRST_WAIT;
    let mut failures = 0_u32;
    loop {
        let tried = Instant::now();
        match lead.connect().await {
            Ok(connection) => {
                if failures > 0 {
                    info!(failures, "connected to the database again");
                }
                let _ = give.send(connection);
                return;
            }
            Err(error) => {
                failures += 1;
                warn!(%error, again_in = ?wait, "the database cannot be reached");
            }
        }
        // Jitter, so that instances do not all come back in one moment.
        let wait_now = wait.mul_f64(rand::rng().random_range(0.5..1.0));
        tokio::select! {
            () = sleep(wait_now) => {}
            () = lead.servers.connected_after(tried) => {}
            () = give.closed() => return,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
