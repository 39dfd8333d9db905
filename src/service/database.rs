//! Opens the database that the settings name.

use std::{num::NonZeroUsize, sync::Arc};

use crate::{
    config::{Config, DatabaseUrl},
    output::say,
    store::{
        CompiledDefinitions, Health, OpenError, StoreConnections,
        postgres::{self, NotificationListener},
        sqlite,
    },
};

/// The number of compiled workflow versions that are kept in memory.
const DEFINITIONS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

pub(super) struct Database {
    pub connections: StoreConnections,
    pub definitions: Arc<CompiledDefinitions>,
    pub listener: Option<NotificationListener>,
    /// The monitor of the database file; `None` for PostgreSQL.
    pub keeper: Option<sqlite::Keeper>,
}

pub(super) async fn open(config: &Config, health: &Health) -> Result<Database, OpenError> {
    let definitions = Arc::new(CompiledDefinitions::new(DEFINITIONS));
    match &config.database_url {
        #[cfg(test)]
        DatabaseUrl::Sqlite(path) if crate::host::current().is_some() => {
            let connections = sqlite::open_simulated(path, definitions.clone(), health.clone());
            Ok(Database {
                connections: connections.await?,
                definitions,
                listener: None,
                keeper: None,
            })
        }
        DatabaseUrl::Sqlite(path) => {
            let max_size = config.store.max_size.map(|size| size.as_u64());
            let opened = sqlite::open(path, max_size, definitions.clone(), health.clone()).await?;
            let (connections, keeper) = opened.connections();
            Ok(Database {
                connections,
                definitions,
                listener: None,
                keeper: Some(keeper),
            })
        }
        DatabaseUrl::Postgres(url) => {
            let settings = postgres::Settings {
                max_connections: config.postgres.max_connections,
                listen: config.postgres.listen,
                migrate: config.postgres.migrate,
            };
            let opened = postgres::open(url, settings, definitions.clone()).await?;
            Ok(Database {
                connections: opened.connections,
                definitions,
                listener: opened.listener,
                keeper: None,
            })
        }
    }
}

/// Migrates the schema and reports what was changed.
pub async fn migrate(url: &DatabaseUrl) -> Result<(), OpenError> {
    let (before, after) = match url {
        DatabaseUrl::Sqlite(path) => sqlite::migrate(path).await?,
        DatabaseUrl::Postgres(url) => postgres::migrate(url).await?,
    };
    if before == after {
        say!("{url} is up to date: migration {after}");
    } else {
        say!("{url} was migrated from migration {before} to {after}");
    }
    Ok(())
}
