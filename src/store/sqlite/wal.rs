//! Detects that `-wal` was cut.
//!
//! The latest commits are in `-wal` alone, and SQLite knows its length from its index, `-shm`: it never checks how long
//! the file is. If something cuts the file while it is in use, commits are lost that callers got responses for, and
//! SQLite continues to write after the gap, in a file that will be read only up to the gap.
//!
//! **This module opens `-shm`, and must not close it before SQLite has:** as with the database file, closing any
//! descriptor of it would drop SQLite's locks.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The state of `-wal` as this process knows it.
#[derive(Debug, Default)]
pub struct Wal {
    opened: OnceLock<OpenWal>,
    /// The length of the file at the last check, in bytes.
    known: AtomicU64,
}

#[derive(Debug)]
struct OpenWal {
    path: PathBuf,
    index: File,
}

impl Wal {
    /// Begins to check the files, after SQLite has opened both.
    pub fn open(&self, path: PathBuf, index: PathBuf) -> io::Result<()> {
        if self.opened.get().is_none() {
            let index = File::open(index)?;
            self.known
                .store(fs::metadata(&path)?.len(), Ordering::Relaxed);
            // This is the only caller, so the value is set once: it is not dropped, and the file not closed.
            let _ = self.opened.set(OpenWal { path, index });
        }
        Ok(())
    }

    /// Returns whether the file, which is `length` bytes long, has been cut. Reads the index only if the file has
    /// become shorter, as SQLite makes it from time to time.
    pub fn is_cut(&self, length: u64) -> bool {
        let known = self.known.load(Ordering::Relaxed);
        if known == CUT || length >= known {
            self.known.fetch_max(length, Ordering::Relaxed);
            return known == CUT;
        }
        match self.examine() {
            Some(WalState::Whole { length }) => {
                self.known.store(length, Ordering::Relaxed);
                false
            }
            Some(WalState::Cut) => {
                self.known.store(CUT, Ordering::Relaxed);
                true
            }
            // The next check examines the file again.
            None => false,
        }
    }

    /// Returns whether the file has been cut. This is called right before a write, and reads only the length.
    pub fn is_cut_now(&self) -> bool {
        let path = self.opened.get().map(|opened| &opened.path);
        let wal = path.and_then(|path| fs::metadata(path).ok());
        wal.is_some_and(|wal| self.is_cut(wal.len()))
    }

    /// Returns `None` while the index is being written.
    fn examine(&self) -> Option<WalState> {
        let OpenWal { path, index } = self.opened.get()?;
        let header = Header::read(index)?;
        let length = fs::metadata(path).ok()?.len();
        if length >= header.bytes() {
            return Some(WalState::Whole { length });
        }
        // SQLite may have restarted the file in between.
        (Header::read(index)? == header).then_some(WalState::Cut)
    }
}

/// Marks a file that was cut. It is a length that the file never has: lost data does not come back, whatever is written
/// after the gap.
const CUT: u64 = u64::MAX;

enum WalState {
    Whole { length: u64 },
    Cut,
}

/// The head of the index, as <https://sqlite.org/walformat.html> describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header([u8; HEADER]);

const HEADER: usize = 48;
const VERSION: u32 = 3_007_000;
const WAL_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;

impl Header {
    /// Returns `None` if the header is being changed, or has another format.
    fn read(index: &File) -> Option<Self> {
        let mut both = [0; 2 * HEADER];
        index.read_exact_at(&mut both, 0).ok()?;
        let (first, second) = both.split_at(HEADER);
        let header = Self(first.try_into().ok()?);
        (first == second && header.number(0) == VERSION).then_some(header)
    }

    /// Returns the length that `-wal` must have, in bytes.
    fn bytes(self) -> u64 {
        let size = u16::from_ne_bytes([self.0[14], self.0[15]]);
        let page = match size {
            // 65536 does not fit into 16 bits.
            1 => 1 << 16,
            size => u64::from(size),
        };
        match u64::from(self.number(16)) {
            0 => 0,
            frames => WAL_HEADER + frames * (FRAME_HEADER + page),
        }
    }

    /// Returns a number in the byte order of this machine.
    fn number(self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_wal_that_sqlite_makes_shorter_is_whole_and_one_that_others_cut_is_not() {
        let folder = TempDir::new().unwrap();
        let path = |suffix: &str| folder.path().join(format!("some.db{suffix}"));
        let database = Connection::open(path("")).unwrap();
        let run = |sql| database.execute_batch(sql).unwrap();
        run("PRAGMA journal_mode = wal; CREATE TABLE things (thing TEXT)");
        let wal = Wal::default();
        wal.open(path("-wal"), path("-shm")).unwrap();
        for _ in 0..3 {
            run("INSERT INTO things VALUES (hex(randomblob(9000)))");
            assert!(!wal.is_cut_now());
        }
        run("PRAGMA wal_checkpoint(TRUNCATE)");
        assert_eq!(fs::metadata(path("-wal")).unwrap().len(), 0);
        assert!(!wal.is_cut_now(), "SQLite did it");
        run("INSERT INTO things VALUES ('last')");
        let length = fs::metadata(path("-wal")).unwrap().len();
        assert!(!wal.is_cut_now());
        let file = fs::OpenOptions::new()
            .write(true)
            .open(path("-wal"))
            .unwrap();
        file.set_len(length - 1).unwrap();
        assert!(wal.is_cut_now());
        file.set_len(2 * length).unwrap();
        assert!(wal.is_cut_now(), "what is gone does not come back");
    }
}
