//! A folder for one run of a command, removed at its end.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub struct Folder(PathBuf);

impl Folder {
    /// `purpose` is for people who look into the system's folder for temporary files.
    pub fn new(purpose: &str) -> io::Result<Self> {
        let name = format!("provost-{purpose}-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        // Fails if the name exists: another user may have created it.
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system will remove what remains.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_all_that_is_in_it() {
        let folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("provost.db"), "data").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
