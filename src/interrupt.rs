//! The signals that end a running command: from a person, or from the system.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM. If no handler can be installed, it waits forever, and each of them ends the process
/// directly.
pub async fn wait() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
