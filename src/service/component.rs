//! The components of an instance, and a watch over them: a component that ends before the stop has failed, and an
//! instance must not continue without one.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::loops::{self, PeriodicLoop};

/// Starts the components of one instance.
#[derive(Clone, Debug)]
pub(super) struct Components {
    pub stop: CancellationToken,
    failed: CancellationToken,
}

impl Components {
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
        component: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let watch = ComponentGuard {
            name,
            components: self.clone(),
        };
        tokio::spawn(async move {
            let _watch = watch;
            component.await;
        })
    }

    /// Runs a loop until the stop.
    pub fn spawn_loop<L: PeriodicLoop + 'static>(&self, part: L) -> JoinHandle<()> {
        let running = loops::run(part, self.stop.clone());
        self.spawn(L::NAME, async move {
            running.await;
        })
    }

    /// Waits until a component has failed.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }
}

struct ComponentGuard {
    name: &'static str,
    components: Components,
}

impl Drop for ComponentGuard {
    fn drop(&mut self) {
        if !self.components.stop.is_cancelled() {
            error!(
                component = self.name,
                "a component ended unexpectedly; the process exits, so that a new one recovers"
            );
            self.components.failed.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_is_noticed() {
        let components = Components::new();
        let component = components.spawn("test", async { panic!("as the test wants it") });
        components.failed().await;
        assert!(component.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn a_part_that_ends_after_the_stop_has_not_failed() {
        let components = Components::new();
        let stop = components.stop.clone();
        let component = components.spawn("test", stop.cancelled_owned());
        components.stop.cancel();
        component.await.unwrap();
        assert!(!components.failed.is_cancelled());
    }
}
