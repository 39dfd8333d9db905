//! PostgreSQL, 15 and newer: one database, any number of instances. One writer connection, one for
//! the leases, a bounded pool of readers, and one that listens for what other instances announce.

mod clock;
mod connection;
mod news;
mod read;
mod rows;
mod save;
mod schema;
mod transaction;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, Connection as _, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

pub use news::{Listener, News};
pub use read::PgReader;
pub use schema::migrate;

use self::{
    clock::Clock, connection::Connection, news::Announcer, read::PgSource,
    transaction::PgTransaction,
};
use super::{Backend, Definitions, OpenError, StoreError, Transaction};

/// How long a read waits for a connection before it says that the database is unavailable.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(3);
/// How long a reader's connection may take to say that it is still there.
const THERE_WITHIN: Duration = Duration::from_secs(1);
/// After this long without an answer the connection is taken for cut. Twice as long as a lock is held by
/// whoever stands still, see [`transaction::BEGIN`]; a large batch takes its time as well.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of the readers. The writer, the leases and the listener have one each besides.
    pub max_connections: u32,
    /// Off behind a pooler that gives out connections by the transaction: nothing may then depend on
    /// the connection, neither LISTEN nor prepared statements.
    pub listen: bool,
    /// Bring the schema up to date at start.
    pub migrate: bool,
}

pub struct Opened {
    pub backend: PgBackend,
    pub reader: PgReader,
    /// What other instances announce, where `listen` is on.
    pub listener: Option<Listener>,
}

pub struct PgBackend {
    writer: Connection,
    /// Until it is asked for.
    leases: Option<Connection>,
    clock: Arc<Clock>,
    definitions: Arc<Definitions>,
    announcer: Option<Announcer>,
}

/// Connects, and brings the schema up to date or checks that it is.
pub async fn open(
    url: &str,
    settings: Settings,
    definitions: Arc<Definitions>,
) -> Result<Opened, OpenError> {
    let options = options(url, settings.listen)?;
    let name = describe(&options);
    let unusable = |error: sqlx::Error| OpenError::Unusable {
        database: name.clone(),
        reason: error.to_string(),
    };
    let mut writer = connection::connect(&options).await.map_err(unusable)?;
    schema::check_server(&mut writer, &name).await?;
    if settings.migrate {
        schema::run(&mut writer, &name).await?;
    } else {
        schema::check(&mut writer, &name).await?;
    }
    let leases = connection::connect(&options).await.map_err(unusable)?;
    let pool = PgPoolOptions::new()
        .max_connections(settings.max_connections)
        .acquire_timeout(ACQUIRE_WITHIN)
        // The pool's own question whether a connection is still there waits for an answer as long as
        // TCP does, a quarter of an hour after a cut that nobody reports; and it is asked of every
        // connection that comes back, so that soon none would be left.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_there(connection)))
        .after_release(|connection, _| Box::pin(is_there(connection)))
        .connect_with(options.clone())
        .await
        .map_err(unusable)?;
    let (announcer, listener) = if settings.listen {
        let (announcer, listener) = news::start(pool.clone(), options.clone());
        (Some(announcer), Some(listener))
    } else {
        (None, None)
    };
    let clock = Arc::new(Clock::default());
    let backend = PgBackend {
        clock: clock.clone(),
        writer: Connection::new(writer, options.clone()),
        leases: Some(Connection::new(leases, options)),
        definitions: definitions.clone(),
        announcer,
    };
    Ok(Opened {
        backend,
        reader: PgReader::new(PgSource {
            pool,
            clock,
            definitions,
        }),
        listener,
    })
}

/// Whether [`open`] can read it.
pub fn is_url(url: &str) -> bool {
    let scheme = ["postgres://", "postgresql://"];
    scheme.iter().any(|scheme| url.starts_with(scheme)) && url.parse::<PgConnectOptions>().is_ok()
}

/// The URL without its secrets: who, where and which, and nothing else.
pub fn without_secrets(url: &str) -> String {
    match url.parse() {
        Ok(options) => describe(&options),
        Err(_) => "postgres://".to_owned(),
    }
}

fn options(url: &str, keep_statements: bool) -> Result<PgConnectOptions, OpenError> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
        // The error does not repeat the URL.
        OpenError::Unusable {
            database: "the database".to_owned(),
            reason: error.to_string(),
        }
    })?;
    let statements = if keep_statements { 200 } else { 0 };
    Ok(options
        .application_name("provost")
        // Poolers refuse parameters at connecting that they do not know.
        .extra_float_digits(None)
        .statement_cache_capacity(statements)
        .disable_statement_logging())
}

fn describe(options: &PgConnectOptions) -> String {
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => options.get_host().to_owned(),
    };
    format!(
        "postgres://{}@{place}:{}/{}",
        options.get_username(),
        options.get_port(),
        options.get_database().unwrap_or(options.get_username()),
    )
}

#[async_trait]
impl Backend for PgBackend {
    async fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        let transaction = PgTransaction::begin(self).await?;
        Ok(Box::new(transaction))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn for_leases(&mut self) -> Option<Box<dyn Backend>> {
        Some(Box::new(PgBackend {
            writer: self.leases.take()?,
            leases: None,
            clock: self.clock.clone(),
            definitions: self.definitions.clone(),
            announcer: None,
        }))
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

async fn answered_within<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError>
where
    StoreError: From<E>,
{
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::Interrupted(format!(
            "the database did not answer within {limit:?}"
        ))),
    }
}

/// What an error of the server, by its code, means for the transaction that met it.
pub(super) fn error(code: &str, message: String) -> StoreError {
    match code {
        // Serialization failure, deadlock, and a unique key that another instance wrote at the same
        // moment: decided again, it will see what the other did.
        "40001" | "40P01" | "23505" => StoreError::Interrupted(message),
        // The session was ended, or the server is not (any more) the one that takes writes.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25006" => {
            StoreError::Interrupted(message)
        }
        code if code.starts_with("08") => StoreError::Interrupted(message),
        "53100" => StoreError::Full,
        _ => StoreError::Unavailable(message),
    }
}
