//! Room on the disk: measures it, and keeps some of it in a file for the case that the disk is full.
//!
//! Accepted tasks must continue when nothing new fits, and that takes room: for `-wal`, and for folding it back into
//! the database. So the reserve is as large as `-wal` becomes before it is folded back.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    io::Errno,
};

use super::{PAGE_SIZE, file::PRIVATE};
use crate::chance;

/// A checkpoint of 4,000 pages blocks the writer for about 5 ms; one of 10,000 pages for over 30 ms.
const MOST_PAGES: u64 = 4000;
/// On a small disk, the reserve is the disk's size divided by this.
const SHARE: u64 = 16;
/// A disk with less than this number of free bytes counts as full, because a commit of a few large tasks does not fit.
pub const LEAST: u64 = 128 << 10;

/// The disk that holds the database.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// In bytes; 0 if the file system does not report it.
    total: u64,
    pub available: u64,
}

impl Disk {
    /// Returns the disk of a file, which need not exist. If nothing is known of the disk, it counts as one with room.
    pub fn of(file: &Path) -> Self {
        match statvfs(file.parent().unwrap_or(file)) {
            Ok(found) => Self {
                total: found.f_blocks.saturating_mul(found.f_frsize),
                available: found.f_bavail.saturating_mul(found.f_frsize),
            },
            Err(_) => Self {
                total: 0,
                available: 0,
            },
        }
    }

    pub fn is_full(self) -> bool {
        !self.has(LEAST)
    }

    pub fn has(self, bytes: u64) -> bool {
        self.total == 0 || self.available >= bytes
    }

    pub fn reserve_size(self) -> u64 {
        self.wal_pages() * u64::from(PAGE_SIZE)
    }

    /// Returns how many pages `-wal` has before it is folded back.
    pub fn wal_pages(self) -> u64 {
        match self.total {
            0 => MOST_PAGES,
            total => (total / SHARE / u64::from(PAGE_SIZE))
                .clamp(LEAST / u64::from(PAGE_SIZE), MOST_PAGES),
        }
    }
}

/// The file that reserves room.
#[derive(Clone, Debug)]
pub struct Reserve {
    path: PathBuf,
    /// The intended size, in bytes.
    pub size: u64,
}

impl Reserve {
    /// Returns the reserve of the database at `path`.
    pub fn beside(path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(".reserve");
        Self {
            path: name.into(),
            size: Disk::of(path).reserve_size(),
        }
    }

    /// Returns the size of the file in bytes; 0 if it does not exist.
    pub fn kept(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |found| found.len())
    }

    /// Creates the file again, with this number of bytes. If they do not fit, the file is removed.
    pub fn make(&self, bytes: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PRIVATE);
        let made = options
            .open(&self.path)
            .and_then(|file| allocate(&file, bytes));
        if made.is_err() {
            self.release();
        }
        made
    }

    /// Releases the room of the reserve.
    pub fn release(&self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                // The name may stay, but the room must be released.
                let emptied = OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(&self.path);
                if emptied.is_err() {
                    tracing::warn!(%error, file = %self.path.display(), "could not remove the reserve");
                }
            }
            _ => {}
        }
    }
}

fn allocate(mut file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        allocated => return Ok(allocated?),
    }
    // The block is random, so that no file system stores it compressed.
    let mut block = [0; 4096];
    chance::fill(&mut block[..]);
    for _ in 0..bytes / block.len() as u64 {
        file.write_all(&block)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(total: u64) -> Disk {
        Disk {
            total,
            available: 0,
        }
    }

    #[test]
    fn a_small_disk_keeps_a_small_wal_and_a_reserve_that_it_fits_into() {
        for (total, bytes) in [
            (0, 32_768_000),
            (1 << 20, 128 << 10),
            (4 << 20, 256 << 10),
            (64 << 20, 4 << 20),
            (1 << 40, 32_768_000),
        ] {
            let disk = disk(total);
            assert_eq!(disk.reserve_size(), bytes, "{total}");
        }
        assert!(disk(1 << 20).is_full() && !disk(0).is_full());
    }

    #[test]
    fn a_reserve_takes_room_until_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::beside(&folder.path().join("provost.db"));
        reserve.release();
        assert_eq!(reserve.kept(), 0);
        reserve.make(1 << 20).unwrap();
        assert_eq!(reserve.kept(), 1 << 20);
        assert!(reserve.make(1 << 60).is_err());
        assert_eq!(reserve.kept(), 0, "half of it is left");
    }
}
