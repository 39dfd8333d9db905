//! `provost agent check`: asks a running service to check one of its agents, and prints the findings.

use std::{
    fmt,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use reqwest::{StatusCode, Url, header};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::MISUSE;
use crate::{
    config::{Config, Listen},
    output::say,
    plain_http,
};

/// A check takes up to two minutes.
const LONGEST_CHECK: Duration = Duration::from_secs(150);
/// The largest file that is sent.
const LONGEST_REQUEST: u64 = 16 << 20;
/// The exit code if no point failed but some point could not be observed, or if the check could not be made.
const UNKNOWN: u8 = MISUSE;

/// The arguments: the agent, the request to check it with, and the service to ask.
#[derive(Debug)]
pub struct AgentCheckOptions {
    pub agent: String,
    /// `-`: standard input.
    pub request: PathBuf,
    pub server: CheckServer,
    pub token: Option<String>,
    pub json: bool,
}

/// The address of the service.
#[derive(Debug)]
pub enum CheckServer {
    Url(String),
    Settings(Box<Config>),
}

#[derive(Debug, Error)]
enum AgentCheckError {
    #[error("cannot read {path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{0} is longer than 16 MiB")]
    TooLong(String),
    #[error("{path} is not JSON: {error}")]
    NotJson {
        path: String,
        error: serde_json::Error,
    },
    #[error("--server {0:?} is not a URL such as http://127.0.0.1:8080")]
    NotUrl(String),
    #[error(
        "the service listens on the Unix socket {0}, which this command cannot use: give --server, or send the request with curl --unix-socket"
    )]
    UnixSocket(String),
    #[error(
        "no response from {server}: {cause}; is the service running there? Give --server otherwise"
    )]
    NoResponse { server: Url, cause: String },
    #[error("{0}")]
    Refused(String),
    #[error("the response of {0} is not that of a check: is it a Provost of the same version?")]
    Unknown(Url),
    #[error(transparent)]
    Client(#[from] reqwest::Error),
}

#[derive(Deserialize)]
struct AgentCheckResult {
    agent: String,
    status: String,
    findings: Vec<ResultFinding>,
    exchanges: Vec<ResultExchange>,
}

#[derive(Deserialize)]
struct ResultFinding {
    name: String,
    status: String,
    seen: String,
    means: String,
    exchanges: Vec<u32>,
}

#[derive(Deserialize)]
struct ResultExchange {
    number: u32,
    purpose: String,
    method: String,
    path: String,
    key: String,
    complete_by: String,
    sent: Option<String>,
    status: Option<u16>,
    fault: Option<String>,
    retry_after: Option<String>,
    body: Option<String>,
    millis: u64,
}

pub async fn run(options: AgentCheckOptions) -> ExitCode {
    match check(&options).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::from(UNKNOWN)
        }
    }
}

async fn check(options: &AgentCheckOptions) -> Result<ExitCode, AgentCheckError> {
    let body = request(&options.request)?;
    let server = address(&options.server)?;
    let mut url = server.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty()
            .extend(["v1", "agents", &options.agent, "check"]);
    }
    let mut request = plain_http::client()?
        .post(url)
        .timeout(LONGEST_CHECK)
        .header(header::CONTENT_TYPE, "application/json")
        .body(body);
    if let Some(token) = &options.token {
        request = request.bearer_auth(token);
    }
    let no_response = |error: reqwest::Error| AgentCheckError::NoResponse {
        server: server.clone(),
        cause: plain_http::cause(&error),
    };
    let response = request.send().await.map_err(no_response)?;
    let status = response.status();
    let text = response.text().await.map_err(no_response)?;
    if status != StatusCode::OK {
        return Err(AgentCheckError::Refused(refusal(status, &text)));
    }
    let found: AgentCheckResult =
        serde_json::from_str(&text).map_err(|_| AgentCheckError::Unknown(server))?;
    match options.json {
        true => say!("{text}"),
        false => print(&found),
    }
    Ok(match &*found.status {
        "passed" => ExitCode::SUCCESS,
        "failed" => ExitCode::FAILURE,
        _ => ExitCode::from(UNKNOWN),
    })
}

/// Returns the content of the file, which must be JSON.
fn request(path: &Path) -> Result<String, AgentCheckError> {
    let shown = || match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let unreadable = |error| AgentCheckError::Unreadable {
        path: shown(),
        error,
    };
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin()
            .take(LONGEST_REQUEST + 1)
            .read_to_string(&mut text),
        false => {
            let file = std::fs::File::open(path).map_err(unreadable)?;
            file.take(LONGEST_REQUEST + 1).read_to_string(&mut text)
        }
    };
    let length = read.map_err(unreadable)?;
    if u64::try_from(length).unwrap_or(u64::MAX) > LONGEST_REQUEST {
        return Err(AgentCheckError::TooLong(shown()));
    }
    match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(AgentCheckError::NotJson {
            path: shown(),
            error,
        }),
    }
}

fn address(server: &CheckServer) -> Result<Url, AgentCheckError> {
    let text = match server {
        CheckServer::Url(url) => url.clone(),
        CheckServer::Settings(config) => {
            let scheme = match config.tls.certificate {
                Some(_) => "https",
                None => "http",
            };
            match &config.listen {
                Listen::Tcp(address) => format!("{scheme}://{}", reachable(*address)),
                unix @ Listen::Unix(_) => {
                    return Err(AgentCheckError::UnixSocket(unix.to_string()));
                }
            }
        }
    };
    let url = Url::parse(&text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or(AgentCheckError::NotUrl(text))
}

/// Returns the address to call: a server that listens on all addresses is called on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Returns the text to print for a problem document.
fn refusal(status: StatusCode, text: &str) -> String {
    let Ok(problem) = serde_json::from_str::<Value>(text) else {
        return format!("the server responded {status}");
    };
    let detail = problem["detail"].as_str().unwrap_or("no detail");
    let mut said = format!("{}: {}", status.as_u16(), plain(detail));
    for fault in problem["errors"].as_array().into_iter().flatten() {
        let part = |name: &str| plain(fault[name].as_str().unwrap_or_default());
        said.push_str(&format!("\n  {}: {}", part("pointer"), part("message")));
    }
    said
}

fn print(found: &AgentCheckResult) {
    for finding in &found.findings {
        if finding.status == "failed" || finding.status == "inconclusive" {
            say!(
                "{} {}: {}",
                finding.name,
                finding.status,
                plain(&finding.seen)
            );
            say!("    {}", finding.means);
            let shown = |exchange: &&ResultExchange| finding.exchanges.contains(&exchange.number);
            for exchange in found.exchanges.iter().filter(shown) {
                say!("    {exchange}");
            }
            say!("");
        }
    }
    say!("{:<22} {:<15} SEEN", "POINT", "STATUS");
    for finding in &found.findings {
        let (name, status) = (&finding.name, &finding.status);
        say!("{name:<22} {status:<15} {}", plain(&finding.seen));
    }
    let calls = found.exchanges.len();
    let with = |status: &str| {
        let findings = found.findings.iter();
        let names: Vec<_> = findings
            .filter(|finding| finding.status == status)
            .map(|finding| &*finding.name)
            .collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; {status}: {}", names.join(", ")),
        }
    };
    say!(
        "\nagent {}: {} ({calls} calls{}{})",
        found.agent,
        found.status,
        with("failed"),
        with("inconclusive")
    );
}

impl fmt::Display for ResultExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "#{} {}: {} {} key {} complete-by {}",
            self.number,
            self.purpose,
            self.method,
            plain(&self.path),
            plain(&self.key),
            self.complete_by
        )?;
        if let Some(sent) = &self.sent {
            write!(f, " {}", plain(sent))?;
        }
        match (self.status, &self.fault) {
            (Some(status), _) => write!(f, " -> {status}")?,
            (None, Some(fault)) => write!(f, " -> {}", plain(fault))?,
            (None, None) => {}
        }
        write!(f, " in {} ms", self.millis)?;
        if let Some(wait) = &self.retry_after {
            write!(f, ", Retry-After: {}", plain(wait))?;
        }
        match &self.body {
            Some(body) => write!(f, ": {}", plain(body)),
            None => Ok(()),
        }
    }
}

/// Returns the text with its control characters escaped, so that text of a service cannot send commands to the
/// terminal.
fn plain(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}
