//! After a crash: every step that was running is an orphan, and is resumed at once (P13).

use futures::future::join_all;
use tracing::{info, warn};

use super::Local;
use crate::{
    domain::{Command, Release},
    store::{Apply, LocalScheduler, Store, StoreError},
};

const BATCH: usize = 500;

/// Hands back all steps that are recorded as running. Only for a store that no other instance
/// shares; to be called before anything is claimed.
pub async fn resume_interrupted(local: &Local, store: &Store) -> Result<(), StoreError> {
    let by = local.actor().clone();
    let mut after = None;
    let mut resumed = 0;
    loop {
        let orphans = store.reader.processing(after, BATCH).await?;
        let Some((last, _)) = orphans.last() else {
            break;
        };
        after = Some(*last);
        resumed += orphans.len();
        let released = orphans.iter().map(|(step, attempt)| {
            store.apply(Apply {
                task: step.task,
                command: Command::Release {
                    step: step.step,
                    attempt: *attempt,
                    why: Release::Restart,
                },
                by: by.clone(),
                if_version: None,
                idempotency: None,
            })
        });
        for outcome in join_all(released).await {
            if let Err(error) = outcome {
                warn!(%error, "an interrupted step could not be resumed; the supervisor will");
            }
        }
    }
    for (agent, _) in store.reader.counts().await?.queued {
        local.expect_line(&agent);
    }
    if resumed > 0 {
        info!(
            steps = resumed,
            "resumed the steps that were running when the last process ended"
        );
    }
    Ok(())
}
