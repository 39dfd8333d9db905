//! Whether all of `-wal` is there.
//!
//! What was committed last is in `-wal` alone, and SQLite knows how much that is from its index of it, `-shm`: it
//! never looks how long the file is. Something that cuts it short while it is used takes commits away that were
//! answered for, and SQLite goes on writing after the gap, into a file that will be read to the gap and no further.
//!
//! **This file opens `-shm`, and does not close it before SQLite has:** as with the database file, closing any
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

/// What this process knows of `-wal`.
#[derive(Debug, Default)]
pub struct Wal {
    opened: OnceLock<OpenWal>,
    /// How long it was when it was looked at last.
    known: AtomicU64,
}

#[derive(Debug)]
struct OpenWal {
    path: PathBuf,
    index: File,
}

impl Wal {
    /// Where SQLite has opened both.
    pub fn open(&self, path: PathBuf, index: PathBuf) -> io::Result<()> {
        if self.opened.get().is_none() {
            let index = File::open(index)?;
            self.known
                .store(fs::metadata(&path)?.len(), Ordering::Relaxed);
            // Nobody else opens it: what was put in is not dropped, and so not closed.
            let _ = self.opened.set(OpenWal { path, index });
        }
        Ok(())
    }

    /// Whether it has been cut, where it is `length` bytes long. Looks into the index only where it has become
    /// shorter, as SQLite makes it from time to time.
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
            // It is looked at again.
            None => false,
        }
    }

    /// Whether it has been cut; asked right before something is written to it. One look at its length.
    pub fn is_cut_now(&self) -> bool {
        let path = self.opened.get().map(|opened| &opened.path);
        let wal = path.and_then(|path| fs::metadata(path).ok());
        wal.is_some_and(|wal| self.is_cut(wal.len()))
    }

    /// `None` while it is being written.
    fn examine(&self) -> Option<WalState> {
        let OpenWal { path, index } = self.opened.get()?;
        let header = Header::read(index)?;
        let length = fs::metadata(path).ok()?.len();
        if length >= header.bytes() {
            return Some(WalState::Whole { length });
        }
        // SQLite may just have restarted it.
        (Header::read(index)? == header).then_some(WalState::Cut)
    }
}

/// A length that it never has again: lost data does not come back, whatever is written after the gap.
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
    /// `None` where it is being changed, or is of another kind.
    fn read(index: &File) -> Option<Self> {
        let mut both = [0; 2 * HEADER];
        index.read_exact_at(&mut both, 0).ok()?;
        let (first, second) = both.split_at(HEADER);
        let header = Self(first.try_into().ok()?);
        (first == second && header.number(0) == VERSION).then_some(header)
    }

    /// How long `-wal` must be.
    fn bytes(self) -> u64 {
        let size = u16::from_ne_bytes([self.0[14], self.0[15]]);
        let page = match size {
            // 65536 does not fit.
            1 => 1 << 16,
            size => u64::from(size),
        };
        match u64::from(self.number(16)) {
            0 => 0,
            frames => WAL_HEADER + frames * (FRAME_HEADER + page),
        }
    }

    /// In the byte order of this machine.
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
