//! A bulkhead for requests that parse and evaluate expressions, which may take milliseconds of CPU and megabytes of
//! memory: only a few of them run at once and the rest queue, so that other requests are not delayed.

use std::thread::available_parallelism;

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Semaphore, SemaphorePermit, TryAcquireError},
};

use super::problem::{Problem, ProblemKind};

/// The most requests that queue for each one that runs. One takes up to 100 ms, so the last one waits for some
/// seconds.
const MOST_QUEUED_PER_PERMIT: usize = 64;

/// The most requests that run at once: each may hold 16 MiB of values, in addition to its input.
const MOST: usize = 8;

pub struct EvaluationBulkhead {
    /// Permits for the requests that run and those that queue.
    queue: Semaphore,
    permits: Semaphore,
}

/// Permission to use a processor; released on drop.
pub struct EvaluationPermit<'b> {
    _served: SemaphorePermit<'b>,
    _in_line: SemaphorePermit<'b>,
}

impl EvaluationBulkhead {
    /// Allows as many requests at once as there are processors, up to `MOST`.
    pub fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::of(processors.min(MOST))
    }

    fn of(permits: usize) -> Self {
        Self {
            queue: Semaphore::new(permits * (1 + MOST_QUEUED_PER_PERMIT)),
            permits: Semaphore::new(permits),
        }
    }

    /// Waits for a permit, unless too many requests wait already. A caller that holds a permit must not ask for
    /// another.
    pub async fn enter(&self) -> Result<EvaluationPermit<'_>, Problem> {
        let in_line = match self.queue.try_acquire() {
            Ok(in_line) => in_line,
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => return Err(busy()),
        };
        // The semaphore is never closed.
        let served = self.permits.acquire().await.map_err(|_| busy())?;
        Ok(EvaluationPermit {
            _served: served,
            _in_line: in_line,
        })
    }
}

fn busy() -> Problem {
    Problem::new(
        ProblemKind::Busy,
        "too many requests wait for their expressions to be evaluated: retry after Retry-After",
    )
}

impl EvaluationPermit<'_> {
    /// Does the work on this thread, while the runtime moves its other tasks to another thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            // With a single thread, as in tests, there is no other thread for them.
            _ => work(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn as_many_are_served_as_there_are_permits_and_the_others_wait_in_a_bounded_line() {
        let bulkhead = EvaluationBulkhead::of(2);
        let first = bulkhead.enter().await.unwrap();
        let _second = bulkhead.enter().await.unwrap();
        let mut waiting: Vec<_> = (0..2 * MOST_QUEUED_PER_PERMIT)
            .map(|_| Box::pin(bulkhead.enter()))
            .collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        let refused = bulkhead.enter().await.err().unwrap();
        assert_eq!(refused.kind(), ProblemKind::Busy);
        drop(first);
        // The request that has waited longest is served first.
        assert!((&mut waiting[1]).now_or_never().is_none());
        assert!((&mut waiting[0]).now_or_never().is_some());
        assert!(bulkhead.enter().now_or_never().is_none());
    }
}
