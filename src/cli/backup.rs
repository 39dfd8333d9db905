//! `provost backup`: a copy of the database while the service goes on.

use std::{path::Path, process::ExitCode};

use crate::{config::DatabaseUrl, interrupt, output::say, store::sqlite};

pub async fn run(database: DatabaseUrl, to: &Path) -> ExitCode {
    let DatabaseUrl::Sqlite(path) = &database else {
        eprintln!(
            "provost: {database} is PostgreSQL, which has tools of its own: pg_dump for one moment of it, \
             pg_basebackup with WAL archiving for any moment; docs/deploy.md goes through both"
        );
        return ExitCode::FAILURE;
    };
    let copied = tokio::select! {
        copied = sqlite::backup(path, to) => copied,
        () = interrupt::wait() => {
            eprintln!("provost: interrupted, and {} was not written", to.display());
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
