//! Decides when a database file returns its free pages to the disk, and how many at once. Only for a database that is a
//! file.

use std::time::Duration;

/// One part in this many of the file stays free for new data: inflow comes in waves, and pages that are returned and
/// allocated again a moment later cost twice.
const SHARE: u64 = 8;
/// At least this many bytes stay free: half of the length that `-wal` reaches before it is checkpointed. Less is not
/// worth a write.
const LEAST: u64 = 16 << 20;
/// At least this many bytes stay free on a disk that is short of room.
const LEAST_ON_A_SHORT_DISK: u64 = 1 << 20;
/// Giving back begins when this many times the reserve is free, and ends when no more than the reserve is free: a purge
/// and an inflow that are balanced cause no work.
const BEGIN: u64 = 2;

/// The longest time for which one step should keep the writer busy.
const TARGET: Duration = Duration::from_millis(2);
/// The pages of the first step, and the most pages of any step: each page adds up to about three pages to `-wal`. On a
/// disk that is short of room no step is larger than the first.
const FIRST: u32 = 8;
const MOST: u32 = 64;
/// The rest after a step, as a multiple of the step's duration: at most a tenth of the writer's time is spent on this.
const REST: u32 = 9;
/// Bounds the rest, so that the work ends on a disk that hangs now and then.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// The space of the database file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSpace {
    /// Bytes.
    pub page_size: u64,
    pub pages: u64,
    pub free_pages: u64,
    /// The length of the file on the disk. Pages that were given back are cut off when `-wal` is checkpointed.
    pub file_bytes: u64,
    /// True if the file was created so that pages can be given back one by one.
    pub can_give_back: bool,
    /// True if something, such as a long read, prevents a checkpoint of `-wal`.
    pub is_held_up: bool,
    /// True if the disk has little room.
    pub is_disk_short: bool,
}

impl FileSpace {
    pub fn free_bytes(&self) -> u64 {
        self.free_pages * self.page_size
    }

    /// Returns the length of the file once it ends where its last page does.
    pub fn used_bytes(&self) -> u64 {
        self.pages * self.page_size
    }

    /// Returns the number of pages that stay free for new data.
    fn reserved_pages(&self) -> u64 {
        let least = match self.is_disk_short {
            true => LEAST_ON_A_SHORT_DISK,
            false => LEAST,
        };
        (self.pages / SHARE).max(least / self.page_size.max(1))
    }

    /// Returns whether enough pages are free to be worth giving back.
    pub fn is_wasteful(&self) -> bool {
        self.free_pages > BEGIN * self.reserved_pages()
    }
}

/// The next action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacuum {
    /// Give back this many pages.
    Step(u32),
    /// Checkpoint `-wal`, because it has become long, or the file is longer than its pages.
    Checkpoint,
    Rest,
}

/// Gives back free space in small steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VacuumPace {
    is_running: bool,
    pages: u32,
    has_folded: bool,
}

impl Default for VacuumPace {
    fn default() -> Self {
        Self {
            is_running: false,
            pages: FIRST,
            has_folded: false,
        }
    }
}

impl VacuumPace {
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    pub fn next(&mut self, space: &FileSpace) -> Vacuum {
        let spare = space.free_pages.saturating_sub(space.reserved_pages());
        self.is_running =
            space.can_give_back && (space.is_wasteful() || self.is_running && spare > 0);
        // While no checkpoint is possible, each step would add to a `-wal` that only grows.
        if space.is_held_up {
            return Vacuum::Checkpoint;
        }
        let is_longer = space.file_bytes > space.used_bytes();
        // There is no room for `-wal` to grow: it is checkpointed, and written from its beginning again, after each
        // step. Only once, because others may write in the meantime.
        let folds_first = space.is_disk_short && is_longer && !self.has_folded;
        if self.is_running && !folds_first {
            self.has_folded = false;
            if space.is_disk_short {
                self.pages = self.pages.min(FIRST);
            }
            let spare = u32::try_from(spare).unwrap_or(u32::MAX);
            return Vacuum::Step(self.pages.min(spare));
        }
        if !self.is_running {
            self.pages = FIRST;
        }
        self.has_folded = is_longer;
        match is_longer {
            true => Vacuum::Checkpoint,
            false => Vacuum::Rest,
        }
    }

    /// Adapts the size of the next step to the last one, and returns the time to rest. `busy` is the time for which the
    /// step kept the writer busy; `whole` also includes the commit and the time in the writer's queue.
    pub fn record_step(&mut self, busy: Duration, whole: Duration) -> Duration {
        self.pages = if busy > TARGET {
            (self.pages / 2).max(1)
        } else if busy < TARGET / 2 {
            (self.pages * 2).min(MOST)
        } else {
            self.pages
        };
        Self::rest_after(whole.max(busy))
    }

    /// Returns the time to rest after work of this duration.
    pub fn rest_after(took: Duration) -> Duration {
        (took * REST).min(LONGEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 8192;

    fn space(mib: u64, free_mib: u64) -> FileSpace {
        FileSpace {
            page_size: PAGE,
            pages: (mib << 20) / PAGE,
            free_pages: (free_mib << 20) / PAGE,
            file_bytes: mib << 20,
            can_give_back: true,
            is_held_up: false,
            is_disk_short: false,
        }
    }

    fn begins(space: FileSpace) -> bool {
        matches!(VacuumPace::default().next(&space), Vacuum::Step(_))
    }

    /// Runs until no more pages are given back; `busy` returns the duration of a step.
    fn run(mut space: FileSpace, busy: impl Fn(u32) -> Duration) -> (FileSpace, u32) {
        let mut vacuuming = VacuumPace::default();
        let mut steps = 0;
        while let Vacuum::Step(pages) = vacuuming.next(&space) {
            assert!((1..=MOST).contains(&pages));
            space.pages -= u64::from(pages);
            space.free_pages -= u64::from(pages);
            vacuuming.record_step(busy(pages), busy(pages));
            steps += 1;
        }
        (space, steps)
    }

    #[test]
    fn it_begins_where_a_quarter_is_free_and_ends_where_an_eighth_is() {
        assert!(!begins(space(1000, 250)));
        assert!(begins(space(1000, 251)));
        let (after, _) = run(space(1000, 600), |_| TARGET);
        assert!(after.free_pages <= after.pages / 8);
        assert!(after.free_pages > after.pages / 8 - u64::from(MOST));
        assert_eq!(after.pages - after.free_pages, (400 << 20) / PAGE);
    }

    #[test]
    fn a_small_file_is_left_alone_unless_the_disk_is_short_of_room() {
        assert!(!begins(space(32, 32)));
        assert!(begins(space(40, 33)));
        let mut small = space(8, 3);
        assert!(!begins(small));
        small.is_disk_short = true;
        assert!(begins(small));
        let nothing = FileSpace {
            page_size: 0,
            pages: 0,
            free_pages: 0,
            ..small
        };
        assert!(!begins(nothing));
    }

    #[test]
    fn waves_of_purge_and_inflow_move_nothing() {
        let mut vacuuming = VacuumPace::default();
        for round in 0..1000 {
            // A purge frees a fifth of the file, and new data fills it again.
            let free = [20, 200, 120, 60][round % 4];
            assert_eq!(vacuuming.next(&space(1000, free)), Vacuum::Rest);
        }
    }

    #[test]
    fn a_step_gets_as_large_as_its_time_allows_and_small_again() {
        let mut vacuuming = VacuumPace::default();
        let large = space(1000, 900);
        let sizes = |vacuuming: &mut VacuumPace, busy: Duration| {
            let mut size = 0;
            for _ in 0..10 {
                if let Vacuum::Step(pages) = vacuuming.next(&large) {
                    size = pages;
                }
                vacuuming.record_step(busy, busy);
            }
            size
        };
        assert_eq!(vacuuming.next(&large), Vacuum::Step(FIRST));
        assert_eq!(sizes(&mut vacuuming, Duration::ZERO), MOST);
        assert_eq!(sizes(&mut vacuuming, Duration::from_millis(3)), 1);
        assert_eq!(sizes(&mut vacuuming, Duration::from_micros(1500)), 1);
        assert_eq!(sizes(&mut vacuuming, Duration::from_micros(900)), MOST);
    }

    #[test]
    fn it_rests_nine_times_as_long_as_it_took_with_the_queue_before_it() {
        let mut vacuuming = VacuumPace::default();
        let millis = Duration::from_millis;
        assert_eq!(vacuuming.record_step(millis(1), millis(4)), millis(36));
        assert_eq!(vacuuming.record_step(millis(2), millis(0)), millis(18));
        assert_eq!(
            vacuuming.record_step(millis(1), millis(60_000)),
            LONGEST_REST
        );
    }

    #[test]
    fn while_a_long_read_holds_the_wal_up_nothing_is_added_to_it_and_it_goes_on_afterwards() {
        let mut vacuuming = VacuumPace::default();
        vacuuming.next(&space(1000, 600));
        let mut held_up = space(1000, 200);
        held_up.is_held_up = true;
        assert_eq!(vacuuming.next(&held_up), Vacuum::Checkpoint);
        assert!(matches!(vacuuming.next(&space(1000, 200)), Vacuum::Step(_)));
    }

    #[test]
    fn on_a_short_disk_each_step_is_small_and_is_folded_back_before_the_next() {
        let mut vacuuming = VacuumPace::default();
        let mut short = space(100, 60);
        short.is_disk_short = true;
        for _ in 0..3 {
            assert_eq!(vacuuming.next(&short), Vacuum::Step(FIRST));
            vacuuming.record_step(Duration::ZERO, Duration::ZERO);
            short.pages -= u64::from(FIRST);
            short.free_pages -= u64::from(FIRST);
            assert_eq!(vacuuming.next(&short), Vacuum::Checkpoint);
            short.file_bytes = short.used_bytes();
        }
        // Others write, and so the file stays long.
        short.file_bytes += 1;
        assert_eq!(vacuuming.next(&short), Vacuum::Step(FIRST));
        assert_eq!(vacuuming.next(&short), Vacuum::Checkpoint);
        assert_eq!(vacuuming.next(&short), Vacuum::Step(FIRST));
    }

    #[test]
    fn a_file_that_cannot_give_back_is_left_as_it_is() {
        let older = FileSpace {
            can_give_back: false,
            ..space(1000, 900)
        };
        assert!(older.is_wasteful());
        assert_eq!(VacuumPace::default().next(&older), Vacuum::Rest);
    }

    #[test]
    fn what_is_given_back_is_cut_off_the_file_in_the_end() {
        let longer = FileSpace {
            file_bytes: (100 << 20) + 1,
            ..space(100, 5)
        };
        assert_eq!(VacuumPace::default().next(&longer), Vacuum::Checkpoint);
        let shorter = FileSpace {
            file_bytes: 90 << 20,
            ..longer
        };
        assert_eq!(VacuumPace::default().next(&shorter), Vacuum::Rest);
    }
}
