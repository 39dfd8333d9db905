//! A disk that is soon full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A file system of its own with little space.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    pub fn mount(megabytes: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Self(folder),
            other => panic!(
                "this test needs to mount a small tmpfs, and so to run as root with CAP_SYS_ADMIN; \
                 elsewhere run it as `unshare -rm cargo nextest run disk_full`. mount said: {other:?}"
            ),
        }
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file that takes all the remaining space.
    pub fn ballast(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        let mut file = fs::File::create(&path).unwrap();
        let block = [0u8; 4096];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a process that is being killed may still have files open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
