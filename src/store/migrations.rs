//! The migrations of both databases, embedded in the binary. `sqlx::migrate!` does the same, but its macro needs the
//! driver while the compiler runs: it compiles most of sqlx a second time.

use std::borrow::Cow;

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

/// The files of one folder of `migrations/`, in the order of their versions.
macro_rules! scripts {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(
            (
                $name,
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $folder, "/", $name, ".sql")),
            )
        ),*]
    };
}

type Scripts = &'static [(&'static str, &'static str)];

const SQLITE: Scripts = scripts! {
    "sqlite":
    "0001_initial",
    "0002_instances",
    "0003_undo",
    "0004_outbox",
    "0005_trace",
    "0006_destinations",
    "0007_tries",
    "0008_later_replies",
    "0009_workers",
    "0010_agent_controls",
    "0011_rate_buckets",
    "0012_slot_shares",
    "0013_lanes",
    "0014_agent_checks",
    "0015_task_limits",
    "0016_alert_causes",
    "0017_unusable_secrets",
    "0018_predictions",
    "0019_waits",
    "0020_step_limits",
    "0021_versions",
    "0022_start_at",
    "0023_asks",
    "0024_child_tasks",
    "0025_schedules",
    "0026_untouched",
    "0027_claims",
    "0028_key_prefix",
    "0029_links",
    "0030_failures",
    "0031_configured_agents",
    "0032_clock",
    "0033_held_undos",
    "0034_attempts",
    "0035_failure_causes",
    "0036_bulk_jobs",
    "0037_activity",
    "0038_ledger",
    "0039_console_sessions",
    "0040_attempt_rules",
    "0041_message_tries",
};

const POSTGRES: Scripts = scripts! {
    "postgres":
    "0001_initial",
    "0002_undo",
    "0003_outbox",
    "0004_trace",
    "0005_destinations",
    "0006_tries",
    "0007_storage",
    "0008_later_replies",
    "0009_workers",
    "0010_agent_controls",
    "0011_rate_buckets",
    "0012_slot_shares",
    "0013_lanes",
    "0014_agent_checks",
    "0015_task_limits",
    "0016_alert_causes",
    "0017_unusable_secrets",
    "0018_predictions",
    "0019_waits",
    "0020_step_limits",
    "0021_versions",
    "0022_start_at",
    "0023_asks",
    "0024_child_tasks",
    "0025_schedules",
    "0026_untouched",
    "0027_claims",
    "0028_key_prefix",
    "0029_links",
    "0030_failures",
    "0031_configured_agents",
    "0032_held_undos",
    "0033_attempts",
    "0034_failure_causes",
    "0035_bulk_jobs",
    "0036_activity",
    "0037_ledger",
    "0038_console_sessions",
    "0039_attempt_rules",
    "0040_message_tries",
};

pub fn sqlite() -> Vec<Migration> {
    migrations(SQLITE)
}

pub fn postgres() -> Migrator {
    Migrator::with_migrations(migrations(POSTGRES))
}

/// A name is a version of four digits, an underscore and the description.
fn migrations(scripts: Scripts) -> Vec<Migration> {
    let migrations = scripts.iter().map(|(name, sql)| {
        let (version, description) = name.split_once('_').unwrap_or((name, ""));
        Migration::new(
            version.parse().unwrap_or_default(),
            Cow::Owned(description.replace('_', " ")),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        )
    });
    migrations.collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_file_is_a_migration_with_a_version_of_its_own() {
        for (folder, scripts) in [("sqlite", SQLITE), ("postgres", POSTGRES)] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("migrations")
                .join(folder);
            let files = fs::read_dir(folder).unwrap();
            let mut files: Vec<_> = files
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort_unstable();
            let names: Vec<_> = scripts
                .iter()
                .map(|(name, _)| format!("{name}.sql"))
                .collect();
            assert_eq!(names, files);
            let versions: Vec<_> = migrations(scripts).iter().map(|m| m.version).collect();
            let expected: Vec<_> = (1..).take(scripts.len()).collect();
            assert_eq!(versions, expected);
        }
    }
}
