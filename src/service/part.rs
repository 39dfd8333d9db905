//! The components of an instance, and a watch over them: a component that ends before the stop has failed, and an
//! instance must not continue without one.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Spawns the components of one instance.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub stop: CancellationToken,
    failed: CancellationToken,
}

impl Parts {
    pub fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            failed: CancellationToken::new(),
        }
    }

    /// Runs a component that ends only after the stop; a panic ends it too.
    pub fn spawn(
        &self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let watch = Watched {
            name,
            parts: self.clone(),
        };
        tokio::spawn(async move {
            let _watch = watch;
            part.await;
        })
    }

    /// Waits until a component has failed.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }
}

struct Watched {
    name: &'static str,
    parts: Parts,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.parts.stop.is_cancelled() {
            error!(
                part = self.name,
                "a component ended unexpectedly; the process exits, so that a new one recovers"
            );
            self.parts.failed.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_is_noticed() {
        let parts = Parts::new();
        let part = parts.spawn("test", async { panic!("as the test wants it") });
        parts.failed().await;
        assert!(part.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn a_part_that_ends_after_the_stop_has_not_failed() {
        let parts = Parts::new();
        let stop = parts.stop.clone();
        let part = parts.spawn("test", stop.cancelled_owned());
        parts.stop.cancel();
        part.await.unwrap();
        assert!(!parts.failed.is_cancelled());
    }
}
