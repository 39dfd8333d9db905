//! Writes log lines to stderr in a thread of its own. If stderr is not read, only this thread stops: the service
//! continues, and lines beyond a bound are dropped and counted.

use std::{
    io::{self, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use metrics::{counter, describe_counter};
use parking_lot::{Condvar, Mutex};
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

use crate::clock;

/// The most bytes of lines that wait for the thread. The thread holds as many again while it writes them.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// The longest time that the end of the process waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

const DROPPED_LINES: &str = "provost_log_lines_dropped_total";

/// The lines that wait for the thread. A clone shares them.
#[derive(Clone, Default)]
pub struct LogQueue(Arc<LogState>);

#[derive(Default)]
struct LogState {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    waiting: Vec<u8>,
    is_writing: bool,
    /// The number of lines that were dropped since the log last reported it.
    dropped: u64,
}

/// Writes the lines that still wait when this is dropped, for a second at most.
#[must_use]
pub struct LogGuard(LogQueue);

impl LogQueue {
    /// Starts the thread, which ends with the process.
    pub fn start(to: impl Write + Send + 'static) -> io::Result<(Self, LogGuard)> {
        let queue = Self::default();
        let writer = queue.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.write_to(to))?;
        let guard = LogGuard(queue.clone());
        Ok((queue, guard))
    }

    fn write_to(&self, mut to: impl Write) {
        let mut lines = Vec::new();
        loop {
            let dropped = self.take(&mut lines);
            if dropped > 0 {
                // The queue is empty now, so there is room for this line.
                warn!(
                    lines = dropped,
                    "log lines were dropped, because stderr was read too slowly or not at all"
                );
            }
            // If stderr cannot be written, there is no other output for the error.
            let _ = to.write_all(&lines).and_then(|()| to.flush());
        }
    }

    /// Waits for lines and takes them. Returns how many were dropped before.
    fn take(&self, taken: &mut Vec<u8>) -> u64 {
        taken.clear();
        let mut lines = self.0.lines.lock();
        lines.is_writing = false;
        self.0.changed.notify_all();
        while lines.waiting.is_empty() {
            self.0.changed.wait(&mut lines);
        }
        std::mem::swap(taken, &mut lines.waiting);
        lines.is_writing = true;
        std::mem::take(&mut lines.dropped)
    }

    fn add(&self, line: &[u8]) {
        let mut lines = self.0.lines.lock();
        if lines.waiting.len() + line.len() > MAX_WAITING_BYTES {
            lines.dropped += 1;
            drop(lines);
            counter!(DROPPED_LINES).increment(1);
            return;
        }
        lines.waiting.extend_from_slice(line);
        drop(lines);
        self.0.changed.notify_all();
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let until = clock::instant() + FLUSH_TIMEOUT;
        let LogState { lines, changed } = &*self.0.0;
        let mut lines = lines.lock();
        while !lines.waiting.is_empty() || lines.is_writing {
            if changed.wait_until(&mut lines, until.into_std()).timed_out() {
                return;
            }
        }
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// `fmt::Layer` writes each event as a whole.
impl Write for &LogQueue {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.add(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn describe_metrics() {
    describe_counter!(
        DROPPED_LINES,
        "Log lines that were dropped because stderr was read too slowly or not at all"
    );
    counter!(DROPPED_LINES).absolute(0);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A stderr that accepts a write only when the test lets it.
    struct Gated {
        written: mpsc::Sender<Vec<u8>>,
        gate: mpsc::Receiver<()>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().map_err(io::Error::other)?;
            self.written
                .send(bytes.to_vec())
                .map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_beyond_the_bound_is_dropped_and_counted_and_no_line_is_cut() {
        let (open, gate) = mpsc::channel();
        let (written, writes) = mpsc::channel();
        let (queue, guard) = LogQueue::start(Gated { written, gate }).unwrap();
        queue.add(b"first\n");
        open.send(()).unwrap();
        assert_eq!(writes.recv().unwrap(), b"first\n");
        // The thread now takes the second line, and then waits at the gate.
        queue.add(b"second\n");
        while !queue.0.lines.lock().waiting.is_empty() {
            thread::yield_now();
        }
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..1030 {
            queue.add(&line);
        }
        assert_eq!(queue.0.lines.lock().dropped, 1030 - 1024);
        open.send(()).unwrap();
        assert_eq!(writes.recv().unwrap(), b"second\n");
        open.send(()).unwrap();
        assert_eq!(writes.recv().unwrap(), line.repeat(1024));
        drop(guard);
        assert_eq!(queue.0.lines.lock().dropped, 0, "the log has said so");
    }

    #[test]
    fn the_end_of_the_process_waits_for_the_last_line() {
        let (open, gate) = mpsc::channel();
        let (written, writes) = mpsc::channel();
        let (queue, guard) = LogQueue::start(Gated { written, gate }).unwrap();
        open.send(()).unwrap();
        queue.add(b"last\n");
        drop(guard);
        assert_eq!(writes.try_recv().unwrap(), b"last\n");
    }
}
