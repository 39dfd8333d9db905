//! What is to be saved next, shared out among the lanes.
//!
//! While one lane waits for the database another decides and sends the next batch, so that neither this
//! process nor the database stands still. What becomes of a task stays in order all the same: a command on
//! a task that a lane is saving waits until that is saved, and every later one on that task waits behind
//! it. So no lane ever decides on what another is about to change.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Mutex as Turn, Notify, mpsc};

use super::handle::{Apply, Request};
use crate::domain::TaskId;

pub(super) struct Intake {
    queue: Turn<Queue>,
    lanes: usize,
    under_way: Mutex<UnderWay>,
    /// Woken when a lane has saved its batch.
    saved: Notify,
}

struct Queue {
    requests: mpsc::Receiver<Request>,
    /// They have arrived, and wait for a lane; in their order.
    waiting: Vec<Request>,
}

/// What the lanes are saving.
#[derive(Default)]
struct UnderWay {
    subjects: HashSet<Subject>,
    requests: usize,
}

/// What two lanes must not decide on at the same time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Subject {
    Task(TaskId),
    Key(String),
}

/// A batch that a lane has taken; over when dropped.
pub(super) struct Taken<'i> {
    intake: &'i Intake,
    subjects: Vec<Subject>,
    requests: usize,
}

impl Intake {
    pub fn new(requests: mpsc::Receiver<Request>, lanes: usize) -> Self {
        Self {
            queue: Turn::new(Queue {
                requests,
                waiting: Vec::new(),
            }),
            lanes,
            under_way: Mutex::default(),
            saved: Notify::new(),
        }
    }

    /// Up to `most` requests, in the order of their arrival. `None`: no more will come.
    ///
    /// Where nothing is under way nobody lingers: a lone command is a batch of one. Beside a batch a lane
    /// gathers until there is half as much to do: with a commit for each straggler all would take longer.
    pub async fn next(&self, most: usize, batch: &mut Vec<Request>) -> Option<Taken<'_>> {
        let mut queue = self.queue.lock().await;
        if self.lanes == 1 {
            queue.receive(most, batch).await?;
            return Some(self.take(batch));
        }
        let mut is_open = true;
        loop {
            self.pick(&mut queue.waiting, most, batch);
            let is_all = !is_open && queue.waiting.is_empty();
            if self.is_enough(batch.len(), most) || (is_all && !batch.is_empty()) {
                return Some(self.take(batch));
            }
            if is_all {
                return None;
            }
            let mut arrived = Vec::new();
            tokio::select! {
                received = queue.receive(most, &mut arrived), if is_open => {
                    is_open = received.is_some();
                }
                () = self.saved.notified() => {}
            }
            queue.waiting.append(&mut arrived);
        }
    }

    /// Moves to the batch what no lane is at work on.
    fn pick(&self, waiting: &mut Vec<Request>, most: usize, batch: &mut Vec<Request>) {
        let under_way = self.under_way();
        let mut room = most.saturating_sub(batch.len());
        let mut passed_over = HashSet::new();
        let is_free = |request: &mut Request| {
            let is_busy = |subject: &Subject| {
                under_way.subjects.contains(subject) || passed_over.contains(subject)
            };
            if room > 0 && !request.subjects().any(|subject| is_busy(&subject)) {
                room -= 1;
                return true;
            }
            passed_over.extend(request.subjects());
            false
        };
        batch.extend(waiting.extract_if(.., is_free));
    }

    fn is_enough(&self, count: usize, most: usize) -> bool {
        count > 0 && (count >= most || count >= self.under_way().requests / 2)
    }

    fn take(&self, batch: &[Request]) -> Taken<'_> {
        let subjects: Vec<_> = match self.lanes {
            1 => Vec::new(),
            _ => batch.iter().flat_map(Request::subjects).collect(),
        };
        let mut under_way = self.under_way();
        under_way.subjects.extend(subjects.iter().cloned());
        under_way.requests += batch.len();
        Taken {
            intake: self,
            subjects,
            requests: batch.len(),
        }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        // A panic while holding the lock leaves the value valid.
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// At least one request, and all that come with it. `None`: no more will come.
    async fn receive(&mut self, most: usize, into: &mut Vec<Request>) -> Option<()> {
        if self.requests.recv_many(into, most).await == 0 {
            return None;
        }
        // One turn for everybody who is ready to run now: under load their commands come along in this
        // batch, and a lone command has nobody to wait for.
        tokio::task::yield_now().await;
        while into.len() < most
            && let Ok(request) = self.requests.try_recv()
        {
            into.push(request);
        }
        Some(())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut under_way = self.intake.under_way();
        for subject in &self.subjects {
            under_way.subjects.remove(subject);
        }
        under_way.requests -= self.requests;
        self.intake.saved.notify_one();
    }
}

impl Request {
    fn subjects(&self) -> impl Iterator<Item = Subject> + use<> {
        let (task, idempotency) = match self {
            Request::Submit {
                details,
                idempotency,
                ..
            } => (Some(details.id), idempotency.as_ref()),
            Request::Apply {
                apply: Apply {
                    task, idempotency, ..
                },
                ..
            } => (Some(*task), idempotency.as_ref()),
            Request::ClaimLines { .. }
            | Request::Other { .. }
            | Request::Leases { .. }
            | Request::Outbox { .. } => (None, None),
        };
        let key = idempotency.map(|idempotency| Subject::Key(idempotency.key.clone()));
        task.map(Subject::Task).into_iter().chain(key)
    }
}
