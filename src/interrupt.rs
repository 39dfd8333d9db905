//! What a person, or the system, sends to end a command that would go on.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM. Where neither can be listened to, for ever: then each of them ends the
/// process by itself.
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
