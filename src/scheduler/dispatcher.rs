//! Runs the calls of saved claims, each in a task of its own, and lets them end at shutdown.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, info, warn};

use super::{
    Dispatches, Local, Work, call,
    recovery::{confirm, end},
};
use crate::{
    clock,
    domain::task::{Command, Release},
    store::{Apply, Dispatch, LocalScheduler, Store},
};

pub struct Dispatcher {
    pub local: Arc<Local>,
    pub store: Store,
    pub dispatches: Dispatches,
    /// The longest time that running calls may continue after the stop.
    pub grace: Duration,
}

impl Dispatcher {
    /// Runs until `stop`. After that it lets running calls end within the grace period, and releases the steps of the
    /// others as pending, without counting a failure.
    pub async fn run(mut self, stop: CancellationToken) {
        let calls = TaskTracker::new();
        let mut batches = Vec::new();
        loop {
            tokio::select! {
                received = self.dispatches.0.recv_many(&mut batches, 64) => {
                    if received == 0 {
                        break;
                    }
                    for work in batches.drain(..) {
                        match work {
                            Work::Call(dispatches) => {
                                for dispatch in dispatches {
                                    self.start(dispatch, &calls);
                                }
                            }
                            Work::Confirm(dropped) => {
                                let (local, store) = (self.local.clone(), self.store.clone());
                                calls.spawn(async move { confirm(dropped, &local, &store).await });
                            }
                            Work::TakeBack(steps) => {
                                let (local, store) = (self.local.clone(), self.store.clone());
                                calls.spawn(async move {
                                    for step in steps {
                                        end(step, Release::Undelivered, &local, &store).await;
                                    }
                                });
                            }
                        }
                    }
                }
                () = stop.cancelled() => break,
            }
        }
        self.drain(calls).await;
    }

    fn start(&self, dispatch: Dispatch, calls: &TaskTracker) {
        let key = (dispatch.call.step, dispatch.call.attempt);
        let (local, store) = (self.local.clone(), self.store.clone());
        self.local.running.start(key, || {
            // The future is boxed, because tokio moves a spawned future about ten times, and a call takes kilobytes.
            calls.spawn(Box::pin(async move {
                let span = call::span(&dispatch.call);
                call::run(dispatch, &local, &store).instrument(span).await;
                local.running.ended(key);
            }))
        });
    }

    async fn drain(&mut self, calls: TaskTracker) {
        calls.close();
        let under_way = self.local.running.len();
        if under_way > 0 {
            info!(
                calls = under_way,
                grace_seconds = self.grace.as_secs_f64(),
                "waiting for running calls"
            );
        }
        let in_time = clock::timeout(self.grace, calls.wait()).await;
        let mut left = HashSet::new();
        // These include claims that were saved after the stop, whose calls never started.
        for dropped in self.local.running.abort_all() {
            left.insert(dropped.key);
            dropped.over().await;
        }
        while let Ok(work) = self.dispatches.0.try_recv() {
            match work {
                Work::Call(batch) => {
                    left.extend(batch.iter().map(|d| (d.call.step, d.call.attempt)));
                }
                Work::Confirm(dropped) => {
                    left.insert(dropped.key);
                    dropped.over().await;
                }
                Work::TakeBack(steps) => {
                    for step in steps {
                        end(step, Release::Undelivered, &self.local, &self.store).await;
                    }
                }
            }
        }
        if in_time.is_err() {
            warn!(
                calls = left.len(),
                "calls did not end in time; their steps are released"
            );
        }
        let by = self.local.actor().clone();
        let released = left.into_iter().map(|(step, attempt)| {
            self.store.apply(Apply::new(
                step.task,
                Command::Release {
                    step: step.step,
                    attempt,
                    why: Release::Shutdown,
                },
                by.clone(),
            ))
        });
        for outcome in join_all(released).await {
            if let Err(error) = outcome {
                // The supervisor or the next start of this instance recovers the step.
                warn!(%error, "could not release a step");
            }
        }
    }
}
