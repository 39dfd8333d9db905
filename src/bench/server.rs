//! The servers that are measured: a running one, or those that the benchmark starts.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener},
    process::Stdio,
    time::Duration,
};

use reqwest::{Client, Method, Url};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::{
    BenchError,
    requests::{AGENT, Requests},
};
use crate::{
    clock,
    config::DatabaseUrl,
    store::{MultiplyPlan, postgres, sqlite},
};

/// The timeout of a start: creating a new database takes much less.
const LONGEST_START: Duration = Duration::from_secs(15);
const LOG: &str = "server.log";

/// All servers that receive the load. They share a database.
pub struct BenchServers {
    all: Vec<BenchServer>,
    /// The database of the servers, if it was given.
    database: Option<DatabaseUrl>,
}

impl BenchServers {
    pub fn at(url: &str, token: Option<String>, client: Client) -> Result<Self, BenchError> {
        Ok(Self {
            all: vec![BenchServer::at(url, token, client)?],
            database: None,
        })
    }

    /// Starts this many servers on a PostgreSQL database, or one on a file of its own.
    pub async fn start(
        instances: u8,
        database: Option<&DatabaseUrl>,
        client: &Client,
    ) -> Result<Self, BenchError> {
        match database {
            Some(DatabaseUrl::Sqlite(_)) => return Err(BenchError::NotPostgres),
            None if instances > 1 => return Err(BenchError::NotShared),
            _ => {}
        }
        let mut all = Vec::new();
        for _ in 0..instances {
            all.push(BenchServer::start(database, client.clone()).await?);
        }
        Ok(Self {
            all,
            database: database.cloned(),
        })
    }

    pub fn introduction(&self) -> String {
        let urls: Vec<_> = self.all.iter().map(|server| server.url.as_str()).collect();
        let what = if urls.len() > 1 { "servers" } else { "server" };
        let mut text = format!("{what} at {}", urls.join(", "));
        if self.all.iter().any(|server| server.own.is_some()) {
            text += ", started for this with default settings";
        }
        if let Some(database) = &self.database {
            text += &format!("\non {database}");
        }
        text
    }

    pub fn requests(&self) -> Vec<Requests> {
        let servers = self.all.iter();
        servers
            .map(|server| {
                let token = server.token.as_deref();
                Requests::new(server.authority(), server.prefix(), token)
            })
            .collect()
    }

    /// Sends the body to each server, so that none depends on a notification from another.
    pub async fn put(&self, path: &str, body: &Value) -> Result<(), BenchError> {
        for server in &self.all {
            server.send(Method::PUT, path, Some(body)).await?;
        }
        Ok(())
    }

    /// Stops the server that was started, multiplies the rows of its tasks, and starts it again.
    pub async fn multiply(&mut self, plan: MultiplyPlan) -> Result<(), BenchError> {
        let Some(BenchServer { own: Some(own), .. }) = self.all.first_mut() else {
            return Ok(());
        };
        own.child.kill().await.map_err(BenchError::Process)?;
        match &self.database {
            Some(DatabaseUrl::Postgres(url)) => postgres::multiply(url, plan).await?,
            _ => {
                let path = own.folder.path().join("provost.db");
                let filled = tokio::task::spawn_blocking(move || sqlite::multiply(&path, plan));
                filled.await??;
            }
        }
        if let Some(server) = self.all.pop() {
            let again = server.start_again(self.database.as_ref()).await?;
            self.all.push(again);
        }
        Ok(())
    }

    pub async fn usage(&self) -> Result<Vec<Option<Usage>>, BenchError> {
        let mut all = Vec::new();
        for server in &self.all {
            all.push(server.usage().await?);
        }
        Ok(all)
    }

    /// Removes these agents from a given server, and stops the servers that were started.
    pub async fn clear(self, agents: &[String]) -> Result<(), BenchError> {
        let mut cleared = Ok(());
        for (number, server) in self.all.into_iter().enumerate() {
            if number == 0 && (server.own.is_none() || self.database.is_some()) {
                for agent in agents {
                    let removed = server.send(Method::DELETE, agent, None).await;
                    cleared = cleared.and(removed.map(|_| ()));
                }
            }
            cleared = cleared.and(server.end().await);
        }
        cleared
    }
}

/// Returns the CPU seconds that all servers used between two samples; `None` if one does not report them.
pub fn cpu_seconds(before: &[Option<Usage>], after: &[Option<Usage>]) -> Option<f64> {
    let pairs = before.iter().zip(after);
    pairs
        .map(|(before, after)| Some((*after)?.cpu_seconds - (*before)?.cpu_seconds))
        .sum()
}

struct BenchServer {
    url: Url,
    token: Option<String>,
    client: Client,
    /// The server that the benchmark started. Dropping it stops the server and removes its database.
    own: Option<OwnServer>,
}

struct OwnServer {
    // The server ends before its folder is removed: fields are dropped in this order.
    child: Child,
    folder: TempDir,
}

/// The resources that a server has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: f64,
    /// Successful calls to the remote service.
    pub calls: f64,
}

impl BenchServer {
    fn at(url: &str, token: Option<String>, client: Client) -> Result<Self, BenchError> {
        let parsed = Url::parse(url).ok();
        let parsed = parsed.filter(|url| url.scheme() == "http" && url.has_host());
        Ok(Self {
            url: parsed.ok_or_else(|| BenchError::Url(url.to_owned()))?,
            token,
            client,
            own: None,
        })
    }

    /// Starts this program as a server with default settings.
    async fn start(database: Option<&DatabaseUrl>, client: Client) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix("provost-bench-").tempdir();
        let folder = folder.map_err(BenchError::Folder)?;
        let (child, port) = spawn(&folder, database).map_err(BenchError::Process)?;
        let server = Self {
            own: Some(OwnServer { child, folder }),
            ..Self::at(&format!("http://127.0.0.1:{port}"), None, client)?
        };
        server.ready().await
    }

    /// Starts the server again on the database that it had.
    async fn start_again(mut self, database: Option<&DatabaseUrl>) -> Result<Self, BenchError> {
        if let Some(own) = &mut self.own {
            let (child, port) = spawn(&own.folder, database).map_err(BenchError::Process)?;
            own.child = child;
            // This cannot fail: the port is not 0, and the URL is of http.
            let _ = self.url.set_port(Some(port));
        }
        self.ready().await
    }

    async fn ready(mut self) -> Result<Self, BenchError> {
        let started = clock::instant();
        loop {
            if self.send(Method::GET, "/readyz", None).await.is_ok() {
                return Ok(self);
            }
            if let Some(own) = &mut self.own {
                let ended = own.child.try_wait().map_err(BenchError::Process)?;
                if ended.is_some() || started.elapsed() > LONGEST_START {
                    let log = fs::read_to_string(own.folder.path().join(LOG));
                    return Err(BenchError::NotReady(log.unwrap_or_default()));
                }
            }
            clock::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a started server has exited. If the benchmark is interrupted earlier, the server is killed
    /// without waiting.
    async fn end(self) -> Result<(), BenchError> {
        match self.own {
            Some(mut own) => own.child.kill().await.map_err(BenchError::Process),
            None => Ok(()),
        }
    }

    /// Returns the host and the port.
    fn authority(&self) -> String {
        let port = self.url.port_or_known_default().unwrap_or(80);
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }

    /// Returns the path before `/v1`: empty, or without a slash at its end.
    fn prefix(&self) -> &str {
        self.url.path().trim_end_matches('/')
    }

    /// Returns `None` if the server does not report its usage, as on systems without `/proc`.
    async fn usage(&self) -> Result<Option<Usage>, BenchError> {
        let text = self.send(Method::GET, "/metrics", None).await?;
        Ok(usage(&text))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, BenchError> {
        let request = format!("{method} {path}");
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.prefix()));
        let mut builder = self.client.request(method, url);
        if let Some(token) = &self.token {
            builder = builder.bearer_auth(token);
        }
        if let Some(body) = body {
            builder = builder.json(body);
        }
        let answer = builder.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if status.is_success() {
            return Ok(text);
        }
        Err(BenchError::Refused {
            request,
            status,
            text,
        })
    }
}

fn spawn(folder: &TempDir, database: Option<&DatabaseUrl>) -> io::Result<(Child, u16)> {
    // The port was free a moment ago. If another program takes it first, the server reports that and the benchmark
    // ends.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port();
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
        // This folder has no provost.toml.
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join(LOG))?)
        .kill_on_drop(true);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PROVOST_") {
            command.env_remove(name);
        }
    }
    // The URL is in the environment, which other users cannot read, because it may contain a password.
    let database = match database {
        Some(DatabaseUrl::Postgres(url)) => url,
        _ => "sqlite://provost.db",
    };
    command.env("PROVOST_DATABASE_URL", database);
    Ok((command.spawn()?, port))
}

fn usage(metrics: &str) -> Option<Usage> {
    let value = |name: &str| {
        let mut lines = metrics.lines();
        let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        text.trim().parse().ok()
    };
    Some(Usage {
        cpu_seconds: value("process_cpu_seconds_total")?,
        resident_bytes: value("process_resident_memory_bytes")?,
        // The metric does not exist before the first call.
        calls: value(&format!(
            "provost_agent_tries_total{{agent=\"{AGENT}\",result=\"success\"}}"
        ))
        .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain_http;

    #[test]
    fn usage_is_read_from_metrics_and_missing_where_they_are() {
        let text = "# HELP process_cpu_seconds_total CPU\nprocess_cpu_seconds_total 1.5\n\
                    process_resident_memory_bytes 1048576\n\
                    provost_agent_tries_total{agent=\"bench\",result=\"success\"} 12\n";
        let read = usage(text).unwrap();
        assert_eq!((read.cpu_seconds, read.resident_bytes), (1.5, 1_048_576.0));
        assert_eq!(read.calls, 12.0);
        assert!(usage("process_cpu_seconds_total 1.5\n").is_none());
    }

    #[test]
    fn a_server_is_an_http_url_with_or_without_a_path() {
        let at = |url| BenchServer::at(url, None, plain_http::client().unwrap());
        let server = at("http://10.0.0.5/provost/").unwrap();
        assert_eq!(server.authority(), "10.0.0.5:80");
        assert_eq!(server.prefix(), "/provost");
        let server = at("http://[::1]:8080").unwrap();
        assert_eq!(
            (server.authority().as_str(), server.prefix()),
            ("[::1]:8080", "")
        );
        for url in ["https://provost", "provost:8080", ""] {
            assert!(matches!(at(url), Err(BenchError::Url(_))), "{url}");
        }
    }
}
