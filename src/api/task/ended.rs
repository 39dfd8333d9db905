//! The gauges of ended tasks. There may be many millions, so no scrape can wait for the count: a scrape starts it,
//! it runs slowly in the background, and its result is reported until the next count is complete.

use std::{sync::Arc, time::Duration};

use metrics::gauge;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    clock::{self, sleep},
    store::{EndedCount, SharedReader, StoreError},
};

/// The number of index entries that are counted together, in some milliseconds.
const PAGE: usize = 10_000;
/// After each page the count pauses for this many times the duration of the page: it uses one percent of the time.
const REST: u32 = 99;

/// The mutex is locked while a count runs.
#[derive(Default)]
pub struct EndedTasks(Arc<Mutex<()>>);

impl EndedTasks {
    /// Starts a count, unless one is running.
    pub fn count(&self, reader: &SharedReader, stop: &CancellationToken) {
        let Ok(under_way) = self.0.clone().try_lock_owned() else {
            return;
        };
        let (reader, stop) = (reader.clone(), stop.clone());
        tokio::spawn(async move {
            let _under_way = under_way;
            let page = |so_far| reader.count_ended(so_far, PAGE);
            stop.run_until_cancelled(count(page, show, sleep)).await;
        });
    }
}

/// Counts page by page. The count ends with a pause too, so that the next one does not start before that.
async fn count<P, R>(
    page: impl Fn(EndedCount) -> P,
    show: impl Fn(&EndedCount),
    rest: impl Fn(Duration) -> R,
) where
    P: Future<Output = Result<EndedCount, StoreError>>,
    R: Future<Output = ()>,
{
    let mut so_far = EndedCount::default();
    while so_far.complete().is_none() {
        let asked = clock::instant();
        let counted = page(so_far).await;
        let for_so_long = asked.elapsed() * REST;
        match counted {
            Ok(counted) => so_far = counted,
            Err(error) => {
                warn!(%error, again_in_seconds = for_so_long.as_secs_f64(), "could not count ended tasks for the metrics");
                return rest(for_so_long).await;
            }
        }
        if so_far.complete().is_some() {
            show(&so_far);
        }
        rest(for_so_long).await;
    }
}

fn show(counted: &EndedCount) {
    for (state, count) in counted.complete().into_iter().flatten() {
        gauge!("provost_tasks", "state" => state.as_str()).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const TOOK: Duration = Duration::from_millis(3);

    /// Counts with a page that takes `TOOK`, and returns how often the count was shown, and the pauses.
    async fn counted(
        page: impl Fn(EndedCount) -> Result<EndedCount, StoreError>,
    ) -> (u32, Vec<Duration>) {
        let (shown, rests) = (Cell::new(0), RefCell::new(Vec::new()));
        let page = async |so_far| {
            std::thread::sleep(TOOK);
            page(so_far)
        };
        let show = |_: &EndedCount| shown.set(shown.get() + 1);
        let rest = async |for_so_long| rests.borrow_mut().push(for_so_long);
        count(page, show, rest).await;
        (shown.get(), rests.into_inner())
    }

    #[tokio::test]
    async fn a_count_takes_a_hundredth_of_the_time() {
        let pages = Cell::new(0);
        let (shown, rests) = counted(|so_far| {
            pages.set(pages.get() + 1);
            Ok(match pages.get() {
                3 => EndedCount::of_all(5, 2, 1),
                _ => so_far,
            })
        })
        .await;
        assert_eq!((pages.get(), shown, rests.len()), (3, 1, 3));
        assert!(rests.iter().all(|rest| *rest >= TOOK * 99), "{rests:?}");
    }

    #[tokio::test]
    async fn a_count_that_fails_ends_with_its_rest_and_shows_nothing() {
        let failed = |_| Err(StoreError::Unavailable("away".to_owned()));
        let (shown, rests) = counted(failed).await;
        assert_eq!((shown, rests.len()), (0, 1));
        assert!(rests[0] >= TOOK * 99, "{rests:?}");
    }

    #[test]
    fn what_ended_while_it_was_counted_makes_no_number_negative() {
        let counted = EndedCount::of_all(1, 2, 1).complete();
        assert_eq!(counted.map(|all| all[0].1), Some(0));
    }
}
