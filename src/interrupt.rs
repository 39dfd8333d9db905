//! The signals with which a person, or the system, ends a running command.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM. If neither can be listened to, it waits forever: then each of them ends the process
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
