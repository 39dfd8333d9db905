//! `provost agent check`: asks a running service to check one of its agents, and prints the findings.

use std::{
    fmt,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use provost_command_line::{ClientError, ServerOptions, check_agent};
use serde::Deserialize;
use thiserror::Error;

use super::MISUSE;
use crate::{
    config::{Config, Listen},
    output::say,
};

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
    pub server: ServerOptions,
    /// The settings, if nothing else says where the service is.
    pub settings: Option<Box<Config>>,
    pub token: Option<String>,
    pub json: bool,
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
    #[error("the response is not that of a check: is the service a Provost of the same version?")]
    Unknown,
    #[error(transparent)]
    Client(#[from] ClientError),
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
    let address = options.settings.as_deref().map(address);
    let text = check_agent(
        &options.agent,
        body,
        &options.server,
        address,
        options.token.clone(),
    )
    .await?;
    let found: AgentCheckResult =
        serde_json::from_str(&text).map_err(|_| AgentCheckError::Unknown)?;
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

/// Returns where a server with these settings listens.
fn address(config: &Config) -> String {
    match &config.listen {
        Listen::Tcp(address) => format!("{}://{}", config.scheme(), reachable(*address)),
        unix @ Listen::Unix(_) => unix.to_string(),
    }
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
