//! Features of the record that an instance may write only once every instance that uses the database can read them. On
//! PostgreSQL an older instance would take such a record for damaged, or would ignore its new parts.
//!
//! A new feature needs a variant here, and a migration that adds its column to `instances`: null for the instances that
//! are already on record, and 1 for those that know the feature, with a constraint that refuses all others, so that no
//! older instance can join.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tracing::debug;

use super::{SharedReader, StoreError, rows::Columns, upkeep::leases};
use crate::clock::sleep;

/// The time between two searches for older instances. The record of one is deleted an hour after it ended, or becomes
/// that of the instance that succeeds it.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5_000 });

/// The features, in the order of their migrations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedFeature {
    /// Untouched steps have no rows, and the row of a task may have the claim of one step.
    StepsWithoutRows,
    /// The keys of a task's steps may begin with another prefix than its id.
    KeyPrefixes,
    /// The links in messages are completed when they are sent.
    IncompleteLinks,
    /// An undo by policy waits until the task is resumed: the fault of its step says so.
    HeldUndos,
    /// The ledger has every change of the history, since every instance writes it.
    Ledger,
    /// Definitions may have rules for attempts and races, and steps keep what these need: parts of responses, and counts.
    /// Workflows may hide the payloads of their tasks.
    AttemptRules,
}

impl SharedFeature {
    pub const ALL: [Self; 6] = [
        Self::StepsWithoutRows,
        Self::KeyPrefixes,
        Self::IncompleteLinks,
        Self::HeldUndos,
        Self::Ledger,
        Self::AttemptRules,
    ];

    /// Returns the column of `instances` that marks the instances which know the feature.
    pub const fn column(self) -> &'static str {
        match self {
            Self::StepsWithoutRows => "reads_claims",
            Self::KeyPrefixes => "reads_key_prefix",
            Self::IncompleteLinks => "completes_links",
            Self::HeldUndos => "holds_undos",
            Self::Ledger => "writes_ledger",
            Self::AttemptRules => "reads_attempt_rules",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The features that every instance knows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedFeatures(Arc<AtomicU32>);

impl SharedFeatures {
    /// `is_shared` is true if other instances may use the database.
    pub(super) fn new(is_shared: bool) -> Self {
        let known = match is_shared {
            true => 0,
            false => u32::MAX,
        };
        Self(Arc::new(AtomicU32::new(known)))
    }

    /// Returns whether all instances know the feature. Once true, it stays true: the schema prevents older instances
    /// that are not on record from joining.
    pub fn has(&self, feature: SharedFeature) -> bool {
        self.0.load(Ordering::Acquire) & feature.bit() != 0
    }

    fn has_all(&self) -> bool {
        SharedFeature::ALL
            .into_iter()
            .all(|feature| self.has(feature))
    }

    /// Repeats the search until no instance is on record that lacks a feature.
    pub(super) async fn settle(self, reader: SharedReader) {
        while !self.has_all() {
            if let Err(error) = self.look(&reader).await {
                debug!(%error, "could not look for older instances");
            }
            if !self.has_all() {
                sleep(LOOK).await;
            }
        }
    }

    async fn look(&self, reader: &SharedReader) -> Result<(), StoreError> {
        for row in reader.fetch(leases::known_features()).await? {
            for feature in SharedFeature::ALL {
                if row.get::<i64>(feature.column())? == 0 {
                    self.0.fetch_or(feature.bit(), Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }
}
