//! The samples of attempts that succeeded. They are saved a little later than their replies, many at once: a row for one of
//! a hundred calls in the transaction of its reply would cost more than all other rows of that transaction.

use parking_lot::Mutex;

use crate::domain::{task::AttemptRecord, values::TaskId};

/// The most samples that are kept until they are saved.
const MOST: usize = 512;
/// The most bytes of their bodies.
const MOST_BYTES: usize = 2 << 20;

/// The samples that are not saved yet. A process that is killed loses them.
#[derive(Default)]
pub(in crate::store) struct AttemptSamples(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    samples: Vec<(TaskId, AttemptRecord)>,
    bytes: usize,
}

impl AttemptSamples {
    /// Keeps the samples for which there is room. The others are lost: they are samples.
    pub fn add(&self, samples: impl IntoIterator<Item = (TaskId, AttemptRecord)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let mut waiting = self.0.lock();
        for (task, record) in samples {
            let bytes = record.bytes();
            if waiting.samples.len() >= MOST || waiting.bytes + bytes > MOST_BYTES {
                return;
            }
            waiting.bytes += bytes;
            waiting.samples.push((task, record));
        }
    }

    pub fn take(&self) -> Vec<(TaskId, AttemptRecord)> {
        std::mem::take(&mut *self.0.lock()).samples
    }
}
