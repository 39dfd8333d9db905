//! The servers that a URL names: one, or several of which one takes writes and the others are standbys. After a
//! failover another server takes writes, and all connections follow.
//!
//! All servers are asked at the same time, so that one whose machine does not respond delays nothing. Standbys are
//! ignored. If two servers take writes, they are an old primary that has come back and its successor. A promotion
//! begins a new timeline, so the server with the newest one is right, and an instance that has seen it never goes back.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use sqlx::{ConnectOptions, Executor, PgConnection, PgPool, Row, postgres::PgConnectOptions};
use thiserror::Error;
use tokio::sync::watch;
use tracing::info;

use super::{
    certificates::{self, TlsFiles},
    remedy,
};
use crate::clock::{self, Instant, sleep_until};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The time for which other servers are waited for once one was found that takes writes: a newer primary may respond
/// slowly. The time is shorter if the server that was found is the known one.
const OTHERS_WITHIN: Duration = Duration::from_secs(2);
const OTHERS_WITHIN_IF_KNOWN: Duration = Duration::from_millis(500);

/// Simple statements, because a pooler gives out connections by the transaction.
const IS_STANDBY: &str = "SELECT pg_is_in_recovery() AS standby";
/// The first eight digits of the name of a WAL file are the timeline.
const TIMELINE: &str = r#"
SELECT pg_is_in_recovery() AS standby,
       CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline"#;

/// The reason why one server cannot be used.
#[derive(Debug, Error)]
pub(super) enum UnusableServer {
    #[error("{}", remedy::explain(.0))]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Tls(#[from] certificates::TlsFault),
    #[error("it did not respond within {} seconds", CONNECT_WITHIN.as_secs())]
    Silent,
    #[error("it is a standby that accepts no writes")]
    Standby,
    #[error("it is an old primary, on timeline {0}: another server was promoted after it")]
    Superseded(u32),
}

impl UnusableServer {
    /// Returns whether the server may recover without a changed setting.
    fn is_passing(&self) -> bool {
        match self {
            UnusableServer::Silent | UnusableServer::Standby | UnusableServer::Superseded(_) => {
                true
            }
            UnusableServer::Sql(error) => is_passing(error),
            UnusableServer::Tls(_) => false,
        }
    }
}

/// Returns whether the error means that the server cannot be reached for now, and not that it refuses.
pub(super) fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            // The classes are: connection errors; shutting down, crashed or starting up; too many connections and other
            // exhausted resources; a standby; a pooler that gave up on its server.
            ["08", "57P", "53", "25006"]
                .iter()
                .any(|class| code.starts_with(class))
        }
        _ => false,
    }
}

/// No server takes writes.
#[derive(Debug)]
pub(super) struct NoPrimary(Vec<(String, UnusableServer)>);

impl NoPrimary {
    pub fn is_passing(&self) -> bool {
        self.0.iter().any(|(_, why)| why.is_passing())
    }
}

impl std::fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [(_, only)] = &self.0[..] {
            return only.fmt(f);
        }
        for (number, (address, why)) in self.0.iter().enumerate() {
            let gap = if number > 0 { "; " } else { "" };
            write!(f, "{gap}{address}: {why}")?;
        }
        Ok(())
    }
}

/// The URL names no database, or has a parameter that has no meaning here.
#[derive(Debug, Error)]
pub(super) enum UrlError {
    #[error("{}", of_crate(.0))]
    Sql(#[from] sqlx::Error),
    #[error(
        "target_session_attrs={0:?}: remove it; Provost always looks for a server that accepts writes"
    )]
    SessionAttrs(String),
    /// The crate would ignore the parameter: a misspelt sslmode would leave the connection without TLS.
    #[error("unknown parameter {0:?}: the parameters are {known}", known = PARAMETERS.join(", "))]
    Unknown(String),
    /// The text is perhaps no parameter at all.
    #[error(
        "the text after the ? is not a parameter: the parameters are {known}; write a ? in a password as %3F",
        known = PARAMETERS.join(", ")
    )]
    Unreadable,
}

/// Returns the error's text without its introduction about the configuration.
fn of_crate(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(fault) => fault.to_string(),
        error => error.to_string(),
    }
}

/// The parameters that are allowed after the `?`, besides `target_session_attrs`.
const PARAMETERS: [&str; 12] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

fn check_parameter(parameter: &str) -> Result<(), UrlError> {
    let (name, _) = parameter.split_once('=').ok_or(UrlError::Unreadable)?;
    let setting = name.split('[').next().unwrap_or(name);
    if PARAMETERS.contains(&name) || setting == "options" {
        return Ok(());
    }
    let is_name = |byte: u8| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-');
    Err(match name.bytes().all(is_name) {
        true => UrlError::Unknown(name.to_owned()),
        false => UrlError::Unreadable,
    })
}

#[derive(Debug)]
pub(super) struct Servers {
    all: Vec<PgConnectOptions>,
    /// The parameters of the URL, without user, servers, database and password.
    parameters: String,
    files: TlsFiles,
    current: Mutex<Current>,
    /// The newest timeline that was seen.
    timeline: AtomicU32,
    /// The pools of the readers, which follow the current server.
    pools: OnceLock<[PgPool; 2]>,
    /// The time at which a connection that can write was last made.
    connected: watch::Sender<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    server: usize,
    since: Instant,
}

struct PrimaryCandidate {
    server: usize,
    timeline: u32,
    connection: PgConnection,
}

impl Servers {
    /// Parses a URL such as `postgres://user@one:5432,two:5432/name`. `with` completes the options of each server.
    pub fn new(
        url: &str,
        with: impl Fn(PgConnectOptions) -> PgConnectOptions,
    ) -> Result<Self, UrlError> {
        let (all, query) = parse(url)?;
        let files = TlsFiles::named(&query);
        let with = |options| with(files.apply(options));
        Ok(Self {
            all: all.into_iter().map(with).collect(),
            parameters: shown(&query),
            files,
            current: Mutex::new(Current {
                server: 0,
                since: clock::instant(),
            }),
            timeline: AtomicU32::new(0),
            pools: OnceLock::new(),
            connected: watch::Sender::new(clock::instant()),
        })
    }

    /// Returns the options of the server that was last found to take writes.
    pub fn current(&self) -> PgConnectOptions {
        self.all[self.current.lock().server].clone()
    }

    /// Returns whether a connection of this age leads to the current server.
    pub fn is_current(&self, age: Duration) -> bool {
        age < self.current.lock().since.elapsed() || self.all.len() == 1
    }

    /// From now on new connections of these pools lead to the current server.
    pub fn lead(&self, pools: [PgPool; 2]) {
        // This is called once, when the database is opened.
        let _ = self.pools.set(pools);
    }

    /// Connects to the server that takes writes.
    pub async fn connect(&self) -> Result<PgConnection, NoPrimary> {
        let several = self.all.len() > 1;
        let asked = self.all.iter().enumerate();
        let mut asked: FuturesUnordered<_> = asked
            .map(async |(server, options)| (server, self.connect_to(options, several).await))
            .collect();
        let mut best: Option<PrimaryCandidate> = None;
        let mut unfit = Vec::new();
        let mut patience = clock::instant() + CONNECT_WITHIN;
        loop {
            let (server, answer) = tokio::select! {
                answer = asked.next() => match answer {
                    Some(answer) => answer,
                    None => break,
                },
                () = sleep_until(patience), if best.is_some() => break,
            };
            match answer {
                Ok((connection, timeline)) => {
                    let found = PrimaryCandidate {
                        server,
                        timeline,
                        connection,
                    };
                    best = Some(match best {
                        Some(best) => self.better(best, found),
                        None => {
                            patience = clock::instant() + self.wait_for_others(&found);
                            found
                        }
                    });
                }
                Err(why) => unfit.push((address(&self.all[server]), why)),
            }
        }
        let seen = self.timeline.load(Ordering::Relaxed);
        match best {
            Some(best) if best.timeline < seen => {
                let why = UnusableServer::Superseded(best.timeline);
                unfit.push((address(&self.all[best.server]), why));
                Err(NoPrimary(unfit))
            }
            Some(best) => {
                self.timeline.fetch_max(best.timeline, Ordering::Relaxed);
                self.follow(best.server);
                Ok(best.connection)
            }
            None => Err(NoPrimary(unfit)),
        }
    }

    /// Returns the connection and, if there are several servers to compare, its timeline.
    async fn connect_to(
        &self,
        options: &PgConnectOptions,
        several: bool,
    ) -> Result<(PgConnection, u32), UnusableServer> {
        let connected = connect(options, several).await;
        connected.map_err(|unfit| match &unfit {
            UnusableServer::Sql(error) => match self.files.explain(options, error) {
                Some(fault) => fault.into(),
                None => unfit,
            },
            _ => unfit,
        })
    }

    /// Returns the fault of a file that the URL names.
    pub fn fault_of_files(&self) -> Option<String> {
        let fault = self.files.fault(&self.all[0]);
        fault.map(|fault| fault.to_string())
    }

    /// Notes that a connection was made that can write. A connection that cannot is no reason to wait for another.
    pub fn note_connected(&self) {
        self.connected.send_replace(clock::instant());
    }

    /// Returns the time at which a connection that can write was last made.
    pub fn last_connected(&self) -> Instant {
        *self.connected.borrow()
    }

    /// Returns once a connection that can write was made after this moment, so that a caller which waits for a retry
    /// need not wait longer.
    pub async fn connected_after(&self, moment: Instant) {
        let mut connected = self.connected.subscribe();
        // The sender lives as long as this object.
        let _ = connected.wait_for(|last| *last > moment).await;
    }

    /// Returns an error as if no server had been found, because the one that was found has failed with this error.
    pub fn unfit(&self, error: sqlx::Error) -> NoPrimary {
        NoPrimary(vec![(address(&self.current()), error.into())])
    }

    fn wait_for_others(&self, found: &PrimaryCandidate) -> Duration {
        let seen = self.timeline.load(Ordering::Relaxed);
        match found.timeline == seen && found.server == self.current.lock().server {
            true => OTHERS_WITHIN_IF_KNOWN,
            false => OTHERS_WITHIN,
        }
    }

    fn better(&self, one: PrimaryCandidate, other: PrimaryCandidate) -> PrimaryCandidate {
        let current = self.current.lock().server;
        let rank = |found: &PrimaryCandidate| (found.timeline, found.server == current);
        if rank(&other) > rank(&one) {
            other
        } else {
            one
        }
    }

    fn follow(&self, server: usize) {
        let mut current = self.current.lock();
        if current.server == server {
            return;
        }
        *current = Current {
            server,
            since: clock::instant(),
        };
        let options = self.all[server].clone();
        for pool in self.pools.get().into_iter().flatten() {
            pool.set_connect_options(options.clone());
        }
        info!(
            server = address(&options),
            "this server of the database now accepts writes"
        );
    }

    /// Returns the host and port of each server that is reached over TCP.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        let over_tcp = self.all.iter().filter(|options| {
            let is_folder = options.get_host().starts_with('/');
            options.get_socket().is_none() && !is_folder
        });
        over_tcp
            .map(|options| (options.get_host().to_owned(), options.get_port()))
            .collect()
    }

    /// Returns the URL without its password.
    pub fn describe_whole(&self) -> String {
        match &self.parameters[..] {
            "" => self.describe(),
            parameters => format!("{}?{parameters}", self.describe()),
        }
    }

    /// Returns the URL without its parameters and its password.
    pub fn describe(&self) -> String {
        let addresses: Vec<_> = self.all.iter().map(address).collect();
        let first = &self.all[0];
        format!(
            "postgres://{}@{}/{}",
            first.get_username(),
            addresses.join(","),
            first.get_database().unwrap_or(first.get_username()),
        )
    }
}

/// Refuses a connection that leads to a standby, because its data may be old.
pub(super) async fn refuse_standby(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let row = connection.fetch_one(IS_STANDBY).await?;
    if row.try_get::<bool, _>("standby")? {
        return Err(sqlx::Error::Protocol(UnusableServer::Standby.to_string()));
    }
    Ok(())
}

async fn connect(
    options: &PgConnectOptions,
    several: bool,
) -> Result<(PgConnection, u32), UnusableServer> {
    let connecting = async {
        let mut connection = options.connect().await?;
        let ask = if several { TIMELINE } else { IS_STANDBY };
        let row = connection.fetch_one(ask).await?;
        if row.try_get::<bool, _>("standby")? {
            return Err(UnusableServer::Standby);
        }
        let timeline = match several {
            true => u32::from_str_radix(row.try_get("timeline")?, 16).unwrap_or_default(),
            false => 0,
        };
        Ok((connection, timeline))
    };
    match clock::timeout(CONNECT_WITHIN, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(UnusableServer::Silent),
    }
}

fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(socket) => format!("{}:{port}", socket.display()),
        None if options.get_host().contains(':') => format!("[{}]:{port}", options.get_host()),
        None => format!("{}:{port}", options.get_host()),
    }
}

/// Returns the parameters of a query that are neither secret nor already shown before it. If the query contains an `@`,
/// that may be the end of a password with a `?` in it.
fn shown(query: &str) -> String {
    let apart = ["password", "user", "host", "hostaddr", "port", "dbname"];
    let parameters = query.split('&').filter(|parameter| {
        let name = parameter.split('=').next().unwrap_or(parameter);
        !apart.contains(&name) && !parameter.contains('@')
    });
    parameters.collect::<Vec<_>>().join("&")
}

/// Returns one set of options for each host, and the query. The crate's own parser supports only one host.
fn parse(url: &str) -> Result<(Vec<PgConnectOptions>, String), UrlError> {
    let (url, query) = match url.split_once('?') {
        Some((url, query)) => (url, query),
        None => (url, ""),
    };
    let mut parameters = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.strip_prefix("target_session_attrs=") {
            // These values request what is done anyway.
            Some("read-write" | "primary") => {}
            Some(other) => return Err(UrlError::SessionAttrs(other.to_owned())),
            None => {
                check_parameter(parameter)?;
                parameters.push(parameter);
            }
        }
    }
    let parameters = parameters.join("&");
    let query = match parameters.is_empty() {
        true => String::new(),
        false => format!("?{parameters}"),
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let of_host = |host| {
        let options: PgConnectOptions = format!("{scheme}://{user}{host}{path}{query}").parse()?;
        // In a URL an IPv6 address has brackets; the resolver expects it without them.
        let of_url = options.get_host();
        let bare = of_url
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Ok(match bare.map(str::to_owned) {
            Some(bare) => options.host(&bare),
            None => options,
        })
    };
    let all: Result<_, UrlError> = hosts.split(',').map(of_host).collect();
    Ok((all?, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(url: &str) -> String {
        Servers::new(url, |options| options).unwrap().describe()
    }

    #[test]
    fn a_url_names_one_server_or_several_each_with_its_port() {
        for (url, shown) in [
            (
                "postgres://ann@db.example/tasks",
                "postgres://ann@db.example:5432/tasks",
            ),
            (
                "postgres://ann:s3cret@one:6001,two,[::1]:6003/tasks?target_session_attrs=read-write&sslmode=disable",
                "postgres://ann@one:6001,two:5432,[::1]:6003/tasks",
            ),
            (
                "postgres://ann@%2Frun%2Fpostgresql/tasks",
                "postgres://ann@/run/postgresql:5432/tasks",
            ),
            (
                "postgres:///tasks?host=/run/pg&user=ann",
                "postgres://ann@/run/pg:5432/tasks",
            ),
        ] {
            assert_eq!(described(url), shown);
        }
        let servers = Servers::new("postgres://ann@[::1]:6003/tasks", |options| options);
        let servers = servers.unwrap();
        assert_eq!(servers.current().get_host(), "::1");
        assert_eq!(servers.addresses(), [("::1".to_owned(), 6003)]);
    }

    #[test]
    fn a_url_that_asks_for_a_standby_or_has_a_bad_port_is_refused() {
        for url in [
            "postgres://ann@one,two/tasks?target_session_attrs=prefer-standby",
            "postgres://ann@one:many/tasks",
            "postgres://ann@one,two:many/tasks",
            "postgres://ann@one/tasks?sslmod=require",
            "postgres://ann@one/tasks?sslmode=maybe",
        ] {
            assert!(Servers::new(url, |options| options).is_err(), "{url}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_a_piece_of_a_password() {
        let said = |url: &str| {
            Servers::new(url, |options| options)
                .unwrap_err()
                .to_string()
        };
        let misspelt = said("postgres://ann@one/tasks?sslmod=require");
        assert!(
            misspelt.contains("\"sslmod\"") && misspelt.contains("sslmode,"),
            "{misspelt}"
        );
        for url in [
            "postgres://ann:s3?cret@one/tasks",
            "postgres://ann:s3?Cret=@one/tasks?sslmode=require",
        ] {
            let said = said(url);
            assert!(
                said.contains("%3F") && !said.to_lowercase().contains("cret"),
                "{said}"
            );
        }
        assert_eq!(
            described("postgres://ann@one/tasks?options[search_path]=p&application_name=shop"),
            "postgres://ann@one:5432/tasks"
        );
    }

    #[tokio::test]
    async fn what_is_wrong_with_each_server_is_said() {
        let url = "postgres://ann@127.0.0.1:1,127.0.0.1:2/tasks";
        let servers = Servers::new(url, |options| options).unwrap();
        let none = servers.connect().await.unwrap_err();
        assert!(none.is_passing());
        let said = none.to_string();
        assert!(
            said.contains("127.0.0.1:1: ") && said.contains("127.0.0.1:2: "),
            "{said}"
        );
        assert!(said.contains("refused"), "{said}");
    }
}
