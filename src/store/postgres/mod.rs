//! PostgreSQL, 15 and newer: one database, any number of instances. Two writer connections, one for
//! the leases, one to delete what ended while that is done, two bounded pools of readers, and one that listens for
//! the notifications of other instances.

mod certificates;
mod clock;
mod commit_witness;
mod connection;
mod multiply;
mod notifications;
mod prepared;
mod read;
mod remedy;
mod rows;
mod save;
mod save_sql;
mod schema;
mod servers;
mod session_settings;
mod transaction;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, Connection as _, Executor, PgConnection, PgPool, postgres::PgPoolOptions,
};

pub use multiply::multiply;
pub use notifications::{Notification, NotificationListener};
pub use schema::migrate;

use self::{
    clock::Clock,
    connection::{Connector, WriterConnection},
    notifications::Notifier,
    prepared::Prepared,
    read::PgSource,
    servers::{NoPrimary, Servers},
    transaction::PgTransaction,
};
use super::{
    Backend, Definitions, OpenError, Reader, Readers, StoreConnections, StoreError, Transaction,
    open::note_migration,
};

/// Connections of what keeps tasks moving: its loops ask for little, but several may at once, and one that is
/// stuck must not hold up all.
const HOUSEKEEPING: u32 = 2;
/// How long a read waits for a connection before it says that the database is unavailable.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(2);
/// How long a reader's connection may take to say that it is still there.
const THERE_WITHIN: Duration = Duration::from_secs(1);
/// After this long without an answer the connection is taken for cut. Twice as long as a lock is held by
/// a session that hangs, see [`session_settings::SESSION_SETTINGS`]; a large batch takes its time as well.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of callers' reads. Besides there are two that write, one for the leases, one that listens, and
    /// two for housekeeping.
    pub max_connections: u32,
    /// Off with a pooler that shares connections between transactions: nothing may depend on the connection,
    /// neither LISTEN nor prepared statements.
    pub listen: bool,
    /// Bring the schema up to date at start.
    pub migrate: bool,
}

pub struct OpenedPostgres {
    pub connections: StoreConnections,
    /// The notifications of other instances, where `listen` is on.
    pub listener: Option<NotificationListener>,
}

pub struct PgBackend {
    writer: WriterConnection,
    clock: Arc<Clock>,
    definitions: Arc<Definitions>,
    notifier: Option<Notifier>,
    /// The next save locks its tasks by a statement of its own, because the last one missed rows: what it sees is
    /// then of a moment after which nobody else changes them, and no row is missed but for a fault.
    locks_first: bool,
}

/// Connects, and brings the schema up to date or checks that it is.
pub async fn open(
    url: &str,
    settings: Settings,
    definitions: Arc<Definitions>,
) -> Result<OpenedPostgres, OpenError> {
    let prepared = match settings.listen {
        true => Prepared::Named,
        false => Prepared::Unnamed,
    };
    let servers = Arc::new(servers(url, prepared)?);
    let name = servers.describe();
    let mut writer = connect(&servers).await?;
    in_time(&name, schema::check_server(&mut writer, &name)).await?;
    in_time(&name, schema::check_transactions(&mut writer, &name)).await?;
    let mut beside = connect(&servers).await?;
    if prepared == Prepared::Named {
        let pooled = async {
            let pooled = prepared::are_pooled(&mut writer, &mut beside).await;
            pooled.map_err(|error| fault(&name, error))
        };
        if in_time(&name, pooled).await? {
            return Err(OpenError::Unusable {
                database: name,
                reason: BEHIND_A_POOLER.to_owned(),
            });
        }
    }
    // Who may not change the schema need not be able to where there is nothing to change.
    match in_time(&name, schema::check(&mut writer, &name)).await {
        Err(OpenError::OlderSchema { found, known, .. }) if settings.migrate => {
            let began = Instant::now();
            schema::run(&mut writer, &name).await?;
            note_migration(&name, found, known, began);
        }
        checked => checked?,
    }
    in_time(&name, schema::check_grants(&mut writer, &name)).await?;
    let connector = Connector {
        servers: servers.clone(),
        prepared,
        is_read_only: Arc::default(),
    };
    let with_settings = async |connection| {
        let session = async {
            let session = connector.with_settings(connection).await;
            session.map_err(|none| unopened(&servers, &none))
        };
        in_time(&name, session).await
    };
    let (writer, beside) = (with_settings(writer).await?, with_settings(beside).await?);
    let leases = with_settings(connect(&servers).await?).await?;
    let callers = pool(&servers, settings.max_connections, prepared);
    let housekeeping = pool(&servers, HOUSEKEEPING, prepared);
    servers.lead([callers.clone(), housekeeping.clone()]);
    let (notifier, listener) = if settings.listen {
        let (notifier, listener) = notifications::start(housekeeping.clone(), servers.clone());
        (Some(notifier), Some(listener))
    } else {
        (None, None)
    };
    let clock = Arc::new(Clock::default());
    let backend = |writer, notifier: &Option<Notifier>| -> Box<dyn Backend> {
        Box::new(PgBackend {
            writer,
            clock: clock.clone(),
            definitions: definitions.clone(),
            notifier: notifier.clone(),
            locks_first: false,
        })
    };
    let connected = |session| WriterConnection::new(session, connector.clone());
    let reader = |pool| {
        Arc::new(Reader::new(PgSource {
            pool,
            prepared,
            clock: clock.clone(),
            definitions: definitions.clone(),
        }))
    };
    Ok(OpenedPostgres {
        connections: StoreConnections {
            writers: vec![
                backend(connected(beside), &notifier),
                backend(connected(writer), &notifier),
            ],
            leases: Some(backend(connected(leases), &None)),
            purging: Some(backend(WriterConnection::unconnected(connector), &None)),
            readers: Readers {
                callers: reader(callers),
                housekeeping: reader(housekeeping),
            },
            is_shared: true,
        },
        listener,
    })
}

/// Connects when it is first asked for a connection, and again after a loss.
fn pool(servers: &Arc<Servers>, max_connections: u32, prepared: Prepared) -> PgPool {
    let following = servers.clone();
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_WITHIN)
        // The pool's own question whether a connection is still there waits for an answer as long as
        // TCP does, a quarter of an hour after a cut that nobody reports; and it is asked of every
        // connection that comes back, so that soon none would be left.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                servers::refuse_standby(connection).await?;
                if prepared == Prepared::Named {
                    connection.execute(read::SESSION_SETTINGS).await?;
                }
                Ok(())
            })
        })
        .before_acquire(move |connection, about| {
            let is_current = following.is_current(about.age);
            Box::pin(async move { Ok(is_current && is_there(connection).await?) })
        })
        .after_release(|connection, _| Box::pin(is_there(connection)))
        .connect_lazy_with(servers.current())
}

/// Whether it means to name a PostgreSQL database.
pub fn is_url(url: &str) -> bool {
    let scheme = ["postgres://", "postgresql://"];
    scheme.iter().any(|scheme| url.starts_with(scheme))
}

/// What is wrong with the URL, without repeating what may be a secret.
pub fn fault_of_url(url: &str) -> Option<String> {
    let servers = Servers::new(url, |options| options);
    servers.err().map(|error| error.to_string())
}

/// The hosts and ports that the URL names, but for sockets of this machine.
pub fn addresses(url: &str) -> Vec<(String, u16)> {
    servers(url, Prepared::Named).map_or_else(|_| Vec::new(), |servers| servers.addresses())
}

/// Whether all servers that the URL names are at addresses or sockets of this machine.
pub fn is_local(url: &str) -> bool {
    let is_loopback = |host: &str| {
        let ip = host.parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    };
    servers(url, Prepared::Named).is_ok_and(|servers| {
        let over_tcp = servers.addresses();
        over_tcp.iter().all(|(host, _)| is_loopback(host))
    })
}

/// What is wrong with a file of certificates or keys that the URL names.
pub fn fault_of_files(url: &str) -> Option<String> {
    servers(url, Prepared::Named).ok()?.fault_of_files()
}

/// The URL without its password.
pub fn without_secrets(url: &str) -> String {
    match servers(url, Prepared::Named) {
        Ok(servers) => servers.describe_whole(),
        Err(_) => "postgres://".to_owned(),
    }
}

fn servers(url: &str, prepared: Prepared) -> Result<Servers, OpenError> {
    let kept = match prepared {
        Prepared::Named => 200,
        Prepared::Unnamed => 0,
    };
    let servers = Servers::new(url, |options| {
        let name = options
            .get_application_name()
            .unwrap_or("provost")
            .to_owned();
        options
            .application_name(&name)
            // Poolers refuse parameters at connecting that they do not know.
            .extra_float_digits(None)
            .statement_cache_capacity(kept)
            .disable_statement_logging()
    });
    // The error does not repeat the URL.
    servers.map_err(|error| OpenError::Unusable {
        database: "the database".to_owned(),
        reason: error.to_string(),
    })
}

async fn connect(servers: &Servers) -> Result<PgConnection, OpenError> {
    let connected = servers.connect().await;
    connected.map_err(|none| unopened(servers, &none))
}

fn unopened(servers: &Servers, none: &NoPrimary) -> OpenError {
    let (database, reason) = (servers.describe(), none.to_string());
    if none.is_passing() {
        OpenError::Unreachable { database, reason }
    } else {
        OpenError::Unusable { database, reason }
    }
}

/// What an error means for who opens the database.
fn fault(name: &str, error: sqlx::Error) -> OpenError {
    let (database, reason) = (name.to_owned(), remedy::explain(&error));
    if servers::is_passing(&error) {
        OpenError::Unreachable { database, reason }
    } else {
        OpenError::Unusable { database, reason }
    }
}

#[async_trait]
impl Backend for PgBackend {
    async fn begin(&mut self) -> Result<Box<Transaction<'_>>, StoreError> {
        let transaction = PgTransaction::begin(self).await?;
        Ok(Box::new(transaction))
    }

    async fn disconnect(&mut self) {
        self.writer.disconnect().await;
    }
}

/// An error has the pool drop the connection.
async fn is_there(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(THERE_WITHIN, connection.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Cuts off what gets no answer, as after a network cut that nobody reports.
async fn answered<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    answered_within(ANSWER_WITHIN, work).await
}

/// A server that does not answer at the start any more, as after a network cut that nobody reports, is as good as away: the
/// start tries again by other connections.
async fn in_time<T>(
    database: &str,
    asked: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
    answer.unwrap_or_else(|_| {
        Err(OpenError::Unreachable {
            database: database.to_owned(),
            reason: format!("it did not respond within {ANSWER_WITHIN:?}"),
        })
    })
}

async fn answered_within<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::Lost(format!(
            "the database did not respond within {limit:?}"
        ))),
    }
}

const BEHIND_A_POOLER: &str = "a pooler shares its connections between transactions: set postgres.listen = false, which turns off everything that needs a connection of its own";

/// Returns what an error of the server, by its code, means for the transaction that met it. `of_row`: the server says where in a
/// statement it met the error, as it does only for the lock of a row.
pub(super) fn error(code: &str, message: String, of_row: bool) -> StoreError {
    match code {
        // No lock within the time for one, see `session_settings`: a person or a backup holds the table, or the row.
        "55P03" if of_row => StoreError::RowLocked(message),
        // A lock of a table; the database is set read-only; an operator cancelled the statement.
        "55P03" => StoreError::NotNow(format!(
            "{message}: another session holds a lock on a table; pg_stat_activity and pg_locks show it"
        )),
        "25006" => StoreError::NotNow(format!(
            "{message}: the database accepts no writes; check default_transaction_read_only, and whether the server is a standby"
        )),
        // Serialization failure, deadlock, and a unique key that another instance wrote at the same
        // moment: decided again, it will see what the other did.
        "40001" | "40P01" | "23505" => StoreError::Retryable(message),
        // The session was ended.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => StoreError::Lost(message),
        code if code.starts_with("08") => StoreError::Lost(message),
        "53100" => StoreError::Full,
        // Data corrupted, index corrupted: a page of the table or of its index.
        "XX001" | "XX002" => StoreError::Corrupt(message),
        // A prepared statement is there already, or not there.
        "42P05" | "26000" => StoreError::Unavailable(format!("{message}: {BEHIND_A_POOLER}")),
        "57014" => StoreError::NotNow(format!(
            "the database cancelled a statement that exceeded its time limit, or an operator cancelled it ({message}): request less at a time, with narrower filters or smaller pages, or check the load of the database"
        )),
        _ => StoreError::Unavailable(message),
    }
}
