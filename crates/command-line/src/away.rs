//! A server that is restarted while a command waits for something: it is asked again for a while.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{outcome::ClientError, output::note};

/// The longest time without a response, or with one that says that the server cannot respond yet.
const LONGEST: Duration = Duration::from_secs(30);
/// The time between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// The time for which a server has been away.
#[derive(Debug, Default)]
pub struct Away {
    since: Option<Instant>,
}

impl Away {
    /// Notes that the server has responded.
    pub fn ends(&mut self) {
        self.since = None;
    }

    /// Waits until the server may be asked again. Returns the error if it is not one of a restart, or if the server has been
    /// away for too long.
    pub async fn wait_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        if !error.is_of_a_restart() {
            return Err(error);
        }
        let since = *self.since.get_or_insert_with(|| {
            note(format_args!(
                "the server is away, and is asked again for {} s: {error}",
                LONGEST.as_secs()
            ));
            Instant::now()
        });
        if since.elapsed() > LONGEST {
            return Err(error);
        }
        sleep(AGAIN).await;
        Ok(())
    }
}
