//! `provost doctor`: examines the settings and what a server with them relies on, and says what is wrong and what to do.
//! It changes nothing.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use jiff::SignedDuration;
use rustix::fs::statvfs;
use serde::Serialize;

use super::{certificate_end::certificate_end, files, healthcheck};
use crate::{
    clock,
    config::{self, Config, DatabaseUrl, Listen, Sources},
    listener::certificates_of,
    output::say,
    store::{examine::DatabaseFacts, postgres, sqlite},
};

/// Clocks of servers that differ by more than this make times of the history confusing.
const CLOCK: i64 = 1_000;
/// The time for a first answer of the database above which everything will be slow.
const SLOW_DATABASE: Duration = Duration::from_millis(500);
/// The room on a disk below which a writer may soon have none.
const SHORT_OF_ROOM: u64 = 1 << 30;
/// The time before the end of a certificate from which on it should be renewed.
const RENEWAL: SignedDuration = SignedDuration::from_hours(14 * 24);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Ok,
    Warning,
    Fault,
}

/// One thing that was examined.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    severity: Severity,
    subject: &'static str,
    seen: String,
    remedy: Option<String>,
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Fault => "FAULT",
        };
        write!(f, "{severity:<8} {:<12} {}", self.subject, self.seen)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:<21} {remedy}", ""),
            None => Ok(()),
        }
    }
}

fn ok(subject: &'static str, seen: impl Into<String>) -> DoctorFinding {
    DoctorFinding {
        severity: Severity::Ok,
        subject,
        seen: seen.into(),
        remedy: None,
    }
}

fn wrong(
    severity: Severity,
    subject: &'static str,
    seen: impl Into<String>,
    remedy: impl Into<String>,
) -> DoctorFinding {
    DoctorFinding {
        severity,
        subject,
        seen: seen.into(),
        remedy: Some(remedy.into()),
    }
}

/// Returns the fault of an error that says after a semicolon, or in a line of its own, what to do.
fn of_sentence(subject: &'static str, sentence: &str) -> DoctorFinding {
    let parts = sentence.split_once('\n').or(sentence.split_once("; "));
    let (seen, remedy) = parts.unwrap_or((sentence, "correct that, and run provost doctor again"));
    wrong(Severity::Fault, subject, seen, remedy)
}

/// Examines everything. Exits with 0 if there is no fault, and with 1 otherwise.
pub async fn run(sources: Sources, json: bool) -> ExitCode {
    let found = examine(&sources).await;
    if json {
        say!("{}", serde_json::json!({ "items": found }));
    } else {
        for finding in &found {
            say!("{finding}");
        }
    }
    let worst = found.iter().map(|finding| finding.severity).max();
    match worst {
        Some(Severity::Fault) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

async fn examine(sources: &Sources) -> Vec<DoctorFinding> {
    let config = match config::load(sources) {
        Ok(config) => config,
        // Without settings nothing else can be examined.
        Err(error) => {
            let remedy =
                "correct what is named: provost.toml.example shows the form of every setting";
            return vec![wrong(
                Severity::Fault,
                "settings",
                error.to_string(),
                remedy,
            )];
        }
    };
    let mut found = vec![ok("settings", "valid; provost check-config shows them")];
    found.extend(of_files(&config));
    found.extend(of_database(&config).await);
    found.push(of_port(&config));
    found.extend(of_disk(&config));
    found.extend(of_certificate(&config));
    found
}

fn of_files(config: &Config) -> Vec<DoctorFinding> {
    let faults = files::faults(config).into_iter();
    faults.map(|fault| of_sentence("files", &fault)).collect()
}

async fn of_database(config: &Config) -> Vec<DoctorFinding> {
    let facts = match &config.database_url {
        DatabaseUrl::Sqlite(path) => match sqlite::examine::examine(path).await {
            Ok(Some(facts)) => Ok(facts),
            // The folder is missing too, which is a fault of the files.
            Ok(None) if !folder_of(path).exists() => return Vec::new(),
            Ok(None) => {
                let seen = format!(
                    "{} does not exist; the first start creates it",
                    config.database_url
                );
                return vec![ok("database", seen)];
            }
            Err(error) => Err((
                format!("{}: {error}", config.database_url),
                "check that this user may use it, and that it is a database of Provost",
            )),
        },
        DatabaseUrl::Postgres(url) => match postgres::examine::examine(url).await {
            Ok(facts) => Ok(facts),
            Err(error) => return vec![of_sentence("database", &error.to_string())],
        },
    };
    match facts {
        Ok(facts) => of_facts(&facts),
        Err((seen, remedy)) => vec![wrong(Severity::Fault, "database", seen, remedy)],
    }
}

fn of_facts(facts: &DatabaseFacts) -> Vec<DoctorFinding> {
    let millis = facts.took.as_millis();
    let seen = format!(
        "{}, {} MiB, responds in {millis} ms",
        facts.server,
        facts.bytes >> 20
    );
    let mut found = vec![match facts.took > SLOW_DATABASE {
        false => ok("database", seen),
        true => wrong(
            Severity::Warning,
            "database",
            seen,
            "move the service nearer to its database, or look what keeps the database busy",
        ),
    }];
    if let Some(damage) = &facts.damage {
        let remedy = "keep a copy of all files that begin with its name, then restore a backup: see docs/deploy.md, \"A part that cannot be read\"";
        found.push(wrong(
            Severity::Fault,
            "database",
            format!("it is damaged: {damage}"),
            remedy,
        ));
    }
    let (schema, known) = (facts.schema, facts.known_schema);
    found.push(match schema.cmp(&known) {
        std::cmp::Ordering::Equal => ok("schema", format!("migration {schema}, the one of this version")),
        std::cmp::Ordering::Less => wrong(
            Severity::Warning,
            "schema",
            format!("migration {schema}, and this version needs {known}"),
            "the next start migrates it, unless postgres.migrate is false: then run provost migrate",
        ),
        std::cmp::Ordering::Greater => wrong(
            Severity::Fault,
            "schema",
            format!("migration {schema}, and this version knows {known} only"),
            "start the newer version again, or restore a backup from before the upgrade",
        ),
    });
    if let Some(ahead) = facts.clock_ahead {
        let seen = format!("that of the database differs by {} ms", ahead.abs());
        found.push(match ahead.abs() > CLOCK {
            false => ok("clock", seen),
            true => wrong(
                Severity::Warning,
                "clock",
                seen,
                "have both machines take their time from the network (timedatectl set-ntp true)",
            ),
        });
    } else {
        found.push(ok("clock", "the database uses the clock of this machine"));
    }
    if !facts.long_transactions.is_empty() {
        found.push(wrong(
            Severity::Warning,
            "transactions",
            format!("open for more than a minute: {}", facts.long_transactions.join("; ")),
            "they delay readers of events and keep deleted rows: end them, SELECT pg_terminate_backend(process)",
        ));
    }
    found.push(match &facts.slow_statements {
        None if facts.clock_ahead.is_some() => ok(
            "statements",
            "not recorded: CREATE EXTENSION pg_stat_statements would show slow ones",
        ),
        None => ok("statements", "SQLite records none; the log names slow ones"),
        Some(slow) if slow.is_empty() => ok("statements", "none takes more than 50 ms on average"),
        Some(slow) => wrong(
            Severity::Warning,
            "statements",
            slow.join("; "),
            "ANALYZE the tables, and see docs/deploy.md for the settings of PostgreSQL",
        ),
    });
    found
}

fn of_port(config: &Config) -> DoctorFinding {
    let listen = &config.listen;
    let is_free = match listen {
        Listen::Tcp(address) => is_free(*address),
        Listen::Unix(path) => match path.exists() {
            false => Ok(()),
            true => Err("the socket exists".to_owned()),
        },
    };
    let Err(error) = is_free else {
        return ok("port", format!("{listen} is free; no server runs here"));
    };
    let target = healthcheck::HealthcheckTarget {
        listen: listen.clone(),
        tls: config.tls.certificate.is_some(),
    };
    match healthcheck::check(&target) {
        Ok(()) => ok("port", format!("a server is ready at {listen}")),
        Err(unready) => wrong(
            Severity::Fault,
            "port",
            format!("{listen}: {error}, and no server is ready there: {unready}"),
            "end the program that uses it (ss -ltnp shows it), or choose another with listen",
        ),
    }
}

/// Returns whether a server could listen there.
fn is_free(address: SocketAddr) -> Result<(), String> {
    let bound = TcpListener::bind(address);
    bound.map(drop).map_err(|error| error.to_string())
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn of_disk(config: &Config) -> Option<DoctorFinding> {
    let DatabaseUrl::Sqlite(path) = &config.database_url else {
        return None;
    };
    let folder = folder_of(path);
    let found = statvfs(folder).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let seen = format!("{} MiB free at {}", free >> 20, folder.display());
    Some(match free < SHORT_OF_ROOM {
        false => ok("disk", seen),
        true => wrong(
            Severity::Warning,
            "disk",
            seen,
            "make room, or keep ended tasks for a shorter time (retention.keep, provost purge)",
        ),
    })
}

fn of_certificate(config: &Config) -> Option<DoctorFinding> {
    let path = config.tls.certificate.as_deref()?;
    // A file that cannot be read is a fault of the files.
    let certificates = certificates_of(path).ok()?;
    let ends = certificates
        .iter()
        .filter_map(|certificate| certificate_end(certificate));
    let end = ends.min()?;
    let left = SignedDuration::from_millis(end.as_millisecond() - clock::wall().as_millis());
    let seen = format!("{} is valid until {end}", path.display());
    let remedy = "renew it: a running server reads the new file by itself";
    Some(match (left.is_negative(), left < RENEWAL) {
        (true, _) => wrong(Severity::Fault, "certificate", seen, remedy),
        (false, true) => wrong(Severity::Warning, "certificate", seen, remedy),
        (false, false) => ok("certificate", seen),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(facts: &DatabaseFacts) -> Option<(Severity, &'static str)> {
        let found = of_facts(facts)
            .into_iter()
            .filter(|finding| finding.severity != Severity::Ok);
        found
            .map(|finding| (finding.severity, finding.subject))
            .max()
    }

    #[test]
    fn each_fact_that_is_wrong_is_named_with_a_remedy() {
        let fine = DatabaseFacts {
            schema: 37,
            known_schema: 37,
            clock_ahead: Some(3),
            slow_statements: Some(Vec::new()),
            ..DatabaseFacts::default()
        };
        assert_eq!(worst(&fine), None);
        let older = DatabaseFacts {
            schema: 36,
            ..fine.clone()
        };
        assert_eq!(worst(&older), Some((Severity::Warning, "schema")));
        let newer = DatabaseFacts {
            schema: 38,
            ..fine.clone()
        };
        assert_eq!(worst(&newer), Some((Severity::Fault, "schema")));
        let ahead = DatabaseFacts {
            clock_ahead: Some(-5_000),
            ..fine.clone()
        };
        assert_eq!(worst(&ahead), Some((Severity::Warning, "clock")));
        let damaged = DatabaseFacts {
            damage: Some("row 1 missing".to_owned()),
            ..fine.clone()
        };
        assert_eq!(worst(&damaged), Some((Severity::Fault, "database")));
        let slow = DatabaseFacts {
            slow_statements: Some(vec!["SELECT".to_owned()]),
            ..fine.clone()
        };
        assert_eq!(worst(&slow), Some((Severity::Warning, "statements")));
        let open = DatabaseFacts {
            long_transactions: vec!["process 7".to_owned()],
            ..fine
        };
        assert_eq!(worst(&open), Some((Severity::Warning, "transactions")));
    }
}
