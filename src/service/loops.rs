//! The shape of every periodic loop: wake, act, report, rest longer after errors, stop.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::store::StoreError;

/// The longest rest of a loop whose work keeps failing.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Does `work` every `interval` until `stop`. While it fails, the rest doubles.
pub async fn every<W, F>(
    name: &'static str,
    interval: Duration,
    stop: CancellationToken,
    mut work: W,
) where
    W: FnMut() -> F,
    F: Future<Output = Result<(), StoreError>>,
{
    let mut rest = interval;
    loop {
        if stop.run_until_cancelled(sleep(rest)).await.is_none() {
            return;
        }
        // The work itself is not cancelled: it may hold a result that it has to act on.
        rest = match work().await {
            Ok(()) => interval,
            Err(error) => {
                let next = rest
                    .saturating_mul(2)
                    .clamp(interval, LONGEST_REST.max(interval));
                warn!(part = name, %error, again_in = ?next, "a background loop failed; it will be retried");
                next
            }
        };
    }
}
