//! `provost backup`: copies the database while the service runs.

use std::{path::Path, process::ExitCode};

use crate::{config::DatabaseUrl, interrupt, output::say, store::sqlite};

pub async fn run(database: DatabaseUrl, to: &Path) -> ExitCode {
    let DatabaseUrl::Sqlite(path) = &database else {
        eprintln!(
            "provost: {database} is PostgreSQL; use its own tools: pg_dump for a snapshot, pg_basebackup with WAL archiving for point-in-time recovery; see docs/deploy.md"
        );
        return ExitCode::FAILURE;
    };
    let copied = tokio::select! {
        copied = sqlite::backup(path, to) => copied,
        () = interrupt::wait() => {
            eprintln!("provost: interrupted; {} was not written", to.display());
            return ExitCode::FAILURE;
        }
    };
    match copied {
        Ok(backup) => {
            say!(
                "wrote {}: {} tasks, {} bytes, from {database}",
                to.display(),
                backup.tasks,
                backup.bytes,
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}
