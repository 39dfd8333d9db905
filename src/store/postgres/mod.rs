//! PostgreSQL, 15 and newer: one database, any number of instances. Each instance has two writer connections, one for
//! the leases, one for purges while they run, two bounded pools of readers, and one that listens for the notifications
//! of other instances.

mod certificates;
mod clock;
mod commit_witness;
mod connection;
pub mod examine;
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

use std::{net::IpAddr, sync::Arc, time::Duration};

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
    Backend, CompiledDefinitions, OpenError, Reader, Readers, StoreConnections, StoreError,
    Transaction, open::note_migration,
};
use crate::clock::{instant, timeout};

/// The connections of the loops that keep tasks moving. The loops read little, but several may read at once, and a
/// connection that hangs must not delay all of them.
const HOUSEKEEPING: u32 = 2;
/// The longest time that a read waits for a connection before it fails with "unavailable".
const ACQUIRE_WITHIN: Duration = Duration::from_secs(2);
/// The longest time that a reader's connection may take to respond to a ping.
const THERE_WITHIN: Duration = Duration::from_secs(1);
/// A connection without a response for this time is taken for cut. The time is twice as long as a hanging session may
/// hold a lock, see [`session_settings::SESSION_SETTINGS`]; a large batch may also take several seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most connections for reads of callers. In addition there are two that write, one for the leases, one that
    /// listens, and two for housekeeping.
    pub max_connections: u32,
    /// False with a pooler that shares connections between transactions. In that case nothing may depend on the
    /// connection, neither LISTEN nor prepared statements.
    pub listen: bool,
    /// If true, the schema is brought up to date at the start.
    pub migrate: bool,
}

pub struct OpenedPostgres {
    pub connections: StoreConnections,
    /// The notifications of other instances, if `listen` is on.
    pub listener: Option<NotificationListener>,
}

/// Returns a statement with its values, for tests that run it by itself.
#[cfg(test)]
pub fn with_values(
    statement: crate::store::statement::Statement,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    Prepared::Named.with_values(statement)
}

pub struct PgBackend {
    writer: WriterConnection,
    clock: Arc<Clock>,
    definitions: Arc<CompiledDefinitions>,
    notifier: Option<Notifier>,
    /// True if the next save locks its tasks by a statement of its own, because the last one missed rows. The save then
    /// sees the rows as they are after the locks were taken, when no other instance changes them, so that a row can be
    /// missed only because of a bug.
    locks_first: bool,
}

/// Connects, and brings the schema up to date or checks that it is.
pub async fn open(
    url: &str,
    settings: Settings,
    definitions: Arc<CompiledDefinitions>,
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
    // A user without the right to change the schema can still open a schema that needs no change.
    match in_time(&name, schema::check(&mut writer, &name)).await {
        Err(OpenError::OlderSchema { found, known, .. }) if settings.migrate => {
            let began = instant();
            schema::run(&mut writer, &name).await?;
            note_migration(&name, found, known, began);
        }
        checked => checked?,
    }
    in_time(&name, schema::check_grants(&mut writer, &name)).await?;
    in_time(&name, schema::continue_ledger(&mut writer, &name)).await?;
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

/// Returns a pool that connects when it is first asked for a connection, and again after a loss.
fn pool(servers: &Arc<Servers>, max_connections: u32, prepared: Prepared) -> PgPool {
    let following = servers.clone();
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_WITHIN)
        // The pool's own test of a connection waits for a response as long as TCP does: a quarter of an hour after a
        // network cut without a reset. It is made for every connection that is returned, so soon none would be left.
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

/// Returns whether the text is meant to name a PostgreSQL database.
pub fn is_url(url: &str) -> bool {
    let scheme = ["postgres://", "postgresql://"];
    scheme.iter().any(|scheme| url.starts_with(scheme))
}

/// Returns the fault of the URL, without repeating parts that may be secret.
pub fn fault_of_url(url: &str) -> Option<String> {
    let servers = Servers::new(url, |options| options);
    servers.err().map(|error| error.to_string())
}

/// Returns the hosts and ports that the URL names, except sockets of this machine.
pub fn addresses(url: &str) -> Vec<(String, u16)> {
    servers(url, Prepared::Named).map_or_else(|_| Vec::new(), |servers| servers.addresses())
}

/// Returns whether all servers that the URL names are at addresses or sockets of this machine.
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

/// Returns the fault of a file of certificates or keys that the URL names.
pub fn fault_of_files(url: &str) -> Option<String> {
    servers(url, Prepared::Named).ok()?.fault_of_files()
}

/// Returns the URL without its password.
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
            // Poolers refuse connection parameters that they do not know.
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

/// Converts an error that occurred while the database was opened.
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

/// Pings the connection. After an error the pool drops it.
async fn is_there(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match timeout(THERE_WITHIN, connection.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Cancels work that gets no response, as after a network cut without a reset.
async fn answered<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    answered_within(ANSWER_WITHIN, work).await
}

/// Treats a server that stops responding during the start, as after a network cut without a reset, like one that cannot
/// be reached: the start tries again with other connections.
async fn in_time<T>(
    database: &str,
    asked: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    let answer = timeout(ANSWER_WITHIN, asked).await;
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
    match timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::Lost(format!(
            "the database did not respond within {limit:?}"
        ))),
    }
}

const BEHIND_A_POOLER: &str = "a pooler shares its connections between transactions: set postgres.listen = false, which turns off everything that needs a connection of its own";

/// Converts an error of the server, by its code, for the transaction that met it. `of_row`: the server reports the
/// position in a statement at which it met the error, as it does only for the lock of a row.
pub(super) fn error(code: &str, message: String, of_row: bool) -> StoreError {
    match code {
        // The lock was not acquired within `lock_timeout`, see `session_settings`: a person or a backup has locked the
        // table or the row.
        "55P03" if of_row => StoreError::RowLocked(message),
        // Another session has locked a table; the database is set read-only; an operator cancelled the statement.
        "55P03" => StoreError::NotNow(format!(
            "{message}: another session holds a lock on a table; pg_stat_activity and pg_locks show it"
        )),
        "25006" => StoreError::NotNow(format!(
            "{message}: the database accepts no writes; check default_transaction_read_only, and whether the server is a standby"
        )),
        // Serialization failure, deadlock, and a unique key that another instance wrote at the same moment. When the
        // batch is decided again, it sees the changes of the other instance.
        "40001" | "40P01" | "23505" => StoreError::Retryable(message),
        // The session was ended.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => StoreError::Lost(message),
        code if code.starts_with("08") => StoreError::Lost(message),
        "53100" => StoreError::Full,
        // Corrupted data or a corrupted index: a page of the table or of its index is damaged.
        "XX001" | "XX002" => StoreError::Corrupt(message),
        // A prepared statement exists already, or does not exist.
        "42P05" | "26000" => StoreError::Unavailable(format!("{message}: {BEHIND_A_POOLER}")),
        "57014" => StoreError::NotNow(format!(
            "the database cancelled a statement that exceeded its time limit, or an operator cancelled it ({message}): request less at a time, with narrower filters or smaller pages, or check the load of the database"
        )),
        _ => StoreError::Unavailable(message),
    }
}
