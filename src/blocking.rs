//! Work that blocks its thread: it gets a thread of its own, so that the threads of the runtime stay free.

use tokio::task::JoinHandle;

/// Runs the work on a thread that may be blocked.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // A simulation has one thread, and what its hosts do takes no time by their clocks.
    #[cfg(test)]
    if crate::host::current().is_some() {
        return tokio::spawn(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}
