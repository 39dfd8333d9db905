//! `provost purge`: deletes tasks that ended long ago, with or without a running service.

use std::{num::NonZeroUsize, process::ExitCode, sync::Arc};

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::PurgeOptions;
use crate::{
    config::{Config, DatabaseUrl},
    domain::{task::TaskStatus, upkeep::Retention, values::Span},
    interrupt,
    output::say,
    retention::{DirectStore, DryRun, EndedKind, Pacing, Sweep, SweepTotals},
    store::{CompiledDefinitions, Health, OpenError, StoreError, postgres, sqlite},
};

/// The most kinds of tasks that a dry run lists.
const MOST_KINDS: usize = 50;

#[derive(Debug, Error)]
enum PurgeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "{0}; what was deleted before stays deleted, and the same command continues with the rest"
    )]
    Store(#[from] StoreError),
    #[error(
        "the disk is full, and deleting needs some room next to the database file: free a few MiB; the same command then continues with the rest"
    )]
    Full,
    #[error(
        "{0} is in use by a service, and --shrink rewrites the whole file: stop the service first. Nothing was deleted"
    )]
    InUse(String),
    #[error(
        "--shrink is for an SQLite file; PostgreSQL reuses free space itself (VACUUM FULL, or pg_repack, returns it to the disk)"
    )]
    NoFile,
    #[error(
        "workflow {0:?} does not exist, and nothing was deleted: GET /v1/workflows lists all workflows"
    )]
    NoWorkflow(String),
    #[error(
        "{0} cannot be deleted, because a part of the database is damaged: see docs/deploy.md, \"A part that cannot be read\""
    )]
    Damaged(String),
    #[error(transparent)]
    Shrink(#[from] sqlite::ShrinkError),
}

/// An open database, and the pace at which tasks may be deleted from it.
struct PurgeDatabase {
    store: DirectStore,
    pacing: Pacing,
    /// True if the database is a file that a service has open.
    is_beside: bool,
}

pub async fn run(config: Config, options: PurgeOptions) -> ExitCode {
    let stop = CancellationToken::new();
    let interrupted = stop.clone();
    tokio::spawn(async move {
        interrupt::wait().await;
        interrupted.cancel();
    });
    match purge(&config, &options, &stop).await {
        Ok(()) if stop.is_cancelled() => {
            eprintln!("provost: interrupted; the same command continues with the rest");
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn purge(
    config: &Config,
    options: &PurgeOptions,
    stop: &CancellationToken,
) -> Result<(), PurgeError> {
    let url = &config.database_url;
    if options.shrink && !matches!(url, DatabaseUrl::Sqlite(_)) {
        return Err(PurgeError::NoFile);
    }
    let opened = open(config).await?;
    if options.shrink && opened.is_beside {
        return Err(PurgeError::InUse(url.to_string()));
    }
    for workflow in &options.workflows {
        if opened
            .store
            .reader
            .workflow(workflow, None)
            .await?
            .is_none()
        {
            return Err(PurgeError::NoWorkflow(workflow.to_string()));
        }
    }
    delete(config, options, opened, stop).await?;
    if let (DatabaseUrl::Sqlite(path), true, false) = (url, options.shrink, stop.is_cancelled()) {
        let shrunk = sqlite::shrink(path).await?;
        say!(
            "rewrote {url}: {} bytes, previously {}",
            shrunk.after_bytes,
            shrunk.before_bytes
        );
    }
    Ok(())
}

async fn open(config: &Config) -> Result<PurgeDatabase, OpenError> {
    let definitions = Arc::new(CompiledDefinitions::new(NonZeroUsize::MIN));
    let path = match &config.database_url {
        DatabaseUrl::Sqlite(path) => path,
        DatabaseUrl::Postgres(url) => {
            let settings = postgres::Settings {
                max_connections: 1,
                listen: config.postgres.listen,
                migrate: false,
            };
            let opened = postgres::open(url, settings, definitions).await?;
            return Ok(PurgeDatabase {
                store: DirectStore::new(opened.connections),
                pacing: Pacing::SeveralWriters,
                is_beside: false,
            });
        }
    };
    // A service would create the file; for this command the name is most likely wrong.
    if !tokio::fs::try_exists(path).await.unwrap_or(true) {
        return Err(OpenError::Unusable {
            database: config.database_url.to_string(),
            reason: "the file does not exist; is this the service's database?".to_owned(),
        });
    }
    let max_size = config.store.max_size.map(|size| size.as_u64());
    let own = sqlite::open(path, max_size, definitions.clone(), Health::default()).await;
    let (opened, pacing, is_beside) = match own {
        Ok(opened) => (opened, Pacing::Alone, false),
        Err(OpenError::InUse { .. }) => {
            let opened = sqlite::open_beside(path, definitions).await?;
            (opened, Pacing::OneWriter, true)
        }
        Err(error) => return Err(error),
    };
    Ok(PurgeDatabase {
        store: DirectStore::new(opened.connections().0),
        pacing,
        is_beside,
    })
}

async fn delete(
    config: &Config,
    options: &PurgeOptions,
    mut opened: PurgeDatabase,
    stop: &CancellationToken,
) -> Result<(), PurgeError> {
    let (retention, letters) = purge_selection(config, options);
    let most = config.retention.batch;
    let sweep = |pacing| Sweep::new(retention.clone(), letters, most, pacing, stop.clone());
    if options.dry_run {
        let mut dry_run = DryRun {
            reader: opened.store.reader.clone(),
            kinds: Default::default(),
        };
        let mut sweep = sweep(opened.pacing).with_kinds();
        let swept = sweep.round(&mut dry_run, &|| true).await?;
        say!("would delete {}", count(swept.tasks, "ended task"));
        print_kinds(dry_run.kinds);
        return refuse_damaged(swept);
    }
    let mut sweep = sweep(opened.pacing);
    let done = sweep.round(&mut opened.store, &|| true).await;
    let swept = sweep.swept();
    say!(
        "deleted {} and {}",
        count(swept.tasks, "ended task"),
        count(swept.dead_letters, "dead letter")
    );
    done.map_err(|error| match error {
        StoreError::Full => PurgeError::Full,
        error => error.into(),
    })?;
    refuse_damaged(swept)
}

/// Returns which tasks are to be deleted, and the age beyond which dead letters are.
fn purge_selection(config: &Config, options: &PurgeOptions) -> (Retention, Option<Span>) {
    let rules = config.retention.rules();
    let is_all = options.states.is_empty() && options.workflows.is_empty();
    let retention = match options.older_than {
        Some(older_than) => rules.for_purge(older_than, &options.workflows, &options.states),
        None => rules.only(&options.workflows, &options.states),
    };
    let letters = options
        .older_than
        .or(rules.dead_letters())
        .filter(|_| is_all);
    (retention, letters)
}

/// Makes damaged tasks an error, so that the exit code reports them to scripts.
fn refuse_damaged(swept: SweepTotals) -> Result<(), PurgeError> {
    match swept.damaged {
        0 => Ok(()),
        damaged => Err(PurgeError::Damaged(count(damaged, "task"))),
    }
}

fn print_kinds(kinds: impl IntoIterator<Item = (EndedKind, u64)>) {
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|(a, many), (b, more)| {
        more.cmp(many)
            .then_with(|| (&a.0, a.1.as_str()).cmp(&(&b.0, b.1.as_str())))
    });
    for ((workflow, state), tasks) in kinds.iter().take(MOST_KINDS) {
        let state: &TaskStatus = state;
        match workflow {
            Some(workflow) => say!("{tasks:>10} {:<9} of workflow {workflow}", state.as_str()),
            None => say!("{tasks:>10} {:<9} without a workflow", state.as_str()),
        }
    }
    if let Some(others) = kinds.get(MOST_KINDS..).filter(|others| !others.is_empty()) {
        let tasks: u64 = others.iter().map(|(_, tasks)| tasks).sum();
        say!("{tasks:>10} of {} other kinds", others.len());
    }
}

fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}
