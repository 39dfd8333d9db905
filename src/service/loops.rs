//! The common form of every periodic loop of an instance: it rests or is woken, does one round, reports, backs off
//! after errors, and stops.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    chance,
    clock::sleep,
    domain::values::{Backoff, jittered},
    store::StoreError,
};

/// A loop: its settings, its state between two rounds, and one round.
pub(super) trait PeriodicLoop: Send {
    /// The name in the log.
    const NAME: &'static str;
    /// True if the first round is due at the start, and not after the first interval.
    const AT_ONCE: bool = false;
    /// The pause before a round, even if the loop is woken.
    const LEAST_REST: Duration = Duration::ZERO;
    /// The longest rest while rounds fail. A longer interval takes precedence.
    const LONGEST_REST: Duration = Duration::from_secs(30);

    /// The rest between two rounds. Jitter is added, so that instances on one store do not all poll at once.
    fn interval(&self) -> Duration;

    fn round(&mut self) -> impl Future<Output = Result<NextRound, StoreError>> + Send;

    /// Ends the rest early. The future is dropped at the end of the rest, and must lose nothing by that.
    fn wait_for_wake(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    fn report(&self, error: &StoreError, again_in: Duration) {
        warn!(component = Self::NAME, %error, again_in_seconds = again_in.as_secs_f64(), "a background loop failed; it will be retried");
    }
}

/// The time when the next round is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextRound {
    AfterInterval,
    After(Duration),
    Never,
}

/// Does round after round until `stop`. Returns the state of the loop after the last round.
pub(super) async fn run<L: PeriodicLoop>(mut part: L, stop: CancellationToken) -> L {
    let mut failures = 0;
    let mut rest = match L::AT_ONCE {
        true => Duration::ZERO,
        false => jittered(part.interval(), chance::random()),
    };
    loop {
        let pause = async {
            let least = rest.min(L::LEAST_REST);
            sleep(least).await;
            tokio::select! {
                () = part.wait_for_wake() => {}
                () = sleep(rest - least) => {}
            }
        };
        if stop.run_until_cancelled(pause).await.is_none() {
            return part;
        }
        // A round is never cancelled, because it may hold a result that it must act on.
        let result = part.round().await;
        match rest_after(&part, result, &mut failures) {
            Some(next) => rest = next,
            None => return part,
        }
    }
}

/// Returns the rest until the next round, or `None` after the last round.
fn rest_after<L: PeriodicLoop>(
    part: &L,
    result: Result<NextRound, StoreError>,
    failures: &mut u32,
) -> Option<Duration> {
    let interval = part.interval();
    let next = match result {
        Ok(next) => next,
        Err(error) => {
            *failures = failures.saturating_add(1);
            let backoff = Backoff::doubling(interval, L::LONGEST_REST.max(interval));
            let again_in = backoff.wait(*failures);
            part.report(&error, again_in);
            return Some(jittered(again_in, chance::random()));
        }
    };
    if *failures > 0 {
        info!(
            component = L::NAME,
            failures, "a background loop has recovered"
        );
        *failures = 0;
    }
    match next {
        NextRound::AfterInterval => Some(jittered(interval, chance::random())),
        NextRound::After(rest) => Some(rest),
        NextRound::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use tokio::sync::mpsc;

    use super::*;

    /// A loop whose rounds end with the results that the test sends.
    struct Scripted {
        interval: Duration,
        began: mpsc::UnboundedSender<()>,
        results: mpsc::UnboundedReceiver<Result<NextRound, StoreError>>,
        ended: u32,
        wake: mpsc::UnboundedReceiver<()>,
    }

    struct Script {
        began: mpsc::UnboundedReceiver<()>,
        results: mpsc::UnboundedSender<Result<NextRound, StoreError>>,
        wake: mpsc::UnboundedSender<()>,
    }

    fn scripted(interval: Duration) -> (Scripted, Script) {
        let (begin, began) = mpsc::unbounded_channel();
        let (give, results) = mpsc::unbounded_channel();
        let (wake, woken) = mpsc::unbounded_channel();
        let part = Scripted {
            interval,
            began: begin,
            results,
            ended: 0,
            wake: woken,
        };
        let script = Script {
            began,
            results: give,
            wake,
        };
        (part, script)
    }

    impl PeriodicLoop for Scripted {
        const NAME: &'static str = "scripted";

        fn interval(&self) -> Duration {
            self.interval
        }

        async fn round(&mut self) -> Result<NextRound, StoreError> {
            self.began.send(()).unwrap();
            let result = self.results.recv().await.unwrap();
            self.ended += 1;
            result
        }

        async fn wait_for_wake(&mut self) {
            self.wake.recv().await.unwrap();
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_rest_grows_while_rounds_fail_and_is_the_interval_again_after_one_that_succeeds() {
        let (part, _script) = scripted(Duration::from_secs(4));
        let mut failures = 0;
        let mut is_about = |result, expected: u64| {
            let rest = rest_after(&part, result, &mut failures).unwrap();
            let expected = Duration::from_secs(expected);
            let range: RangeInclusive<_> = expected * 3 / 4..=expected * 5 / 4;
            assert!(range.contains(&rest), "{rest:?} is not about {expected:?}");
        };
        for expected in [4, 8, 16, 30, 30] {
            is_about(Err(StoreError::Full), expected);
        }
        is_about(Ok(NextRound::AfterInterval), 4);
        is_about(Err(StoreError::Full), 4);
    }

    #[test]
    fn a_round_may_say_when_the_next_is_due() {
        let (part, _script) = scripted(HOUR);
        let rest = Duration::from_millis(7);
        let next = rest_after(&part, Ok(NextRound::After(rest)), &mut 0);
        assert_eq!(next, Some(rest));
    }

    #[tokio::test]
    async fn a_round_is_not_cancelled_by_the_stop() {
        let (part, mut script) = scripted(Duration::ZERO);
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(part, stop.clone()));
        script.began.recv().await.unwrap();
        stop.cancel();
        tokio::task::yield_now().await;
        script.results.send(Ok(NextRound::AfterInterval)).unwrap();
        assert_eq!(running.await.unwrap().ended, 1);
    }

    #[tokio::test]
    async fn a_loop_is_woken_before_its_interval_is_over_and_ends_itself() {
        let (part, script) = scripted(HOUR);
        script.results.send(Ok(NextRound::AfterInterval)).unwrap();
        script.results.send(Ok(NextRound::Never)).unwrap();
        script.wake.send(()).unwrap();
        script.wake.send(()).unwrap();
        let part = run(part, CancellationToken::new()).await;
        assert_eq!(part.ended, 2);
    }
}
