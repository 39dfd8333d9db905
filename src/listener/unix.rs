//! The socket file of a Unix listener. It is never usable by others while it is created, it is taken over if a crash
//! left it, and never taken over if another process serves it.

use std::{
    fs::{self, File, OpenOptions, Permissions, TryLockError},
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixSocket};

/// A socket file that this process has created. It is removed when this value is dropped.
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file, because another process may have replaced the file by its own.
    identity: (u64, u64),
    /// Locked while the socket is used, so that no other process takes it over. The lock file is not removed, because
    /// then two processes could lock two files of one name.
    _lock: File,
}

impl SocketFile {
    pub fn bind(path: &Path, mode: u32, backlog: u32) -> io::Result<(UnixListener, Self)> {
        let lock = lock(path)?;
        remove_left_behind(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        // No client can connect before the socket listens, so its permissions do not matter until then.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let listener = socket.listen(backlog)?;
        let found = fs::symlink_metadata(path)?;
        let file = Self {
            path: path.to_owned(),
            identity: (found.dev(), found.ino()),
            _lock: lock,
        };
        Ok((listener, file))
    }
}

impl SocketFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            // A file that cannot be removed is taken over at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&name)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn remove_left_behind(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "a file of that name exists that is not a socket; it is left unchanged",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(in_use()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn in_use() -> io::Error {
    io::Error::new(ErrorKind::AddrInUse, "another process listens there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_behind_is_taken_over_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (listener, file) = SocketFile::bind(&path, 0o660, 16).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let refused = SocketFile::bind(&path, 0o660, 16).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        drop(listener);
        drop(file);
        assert!(!path.exists(), "it is removed with its process");

        fs::write(&path, "mine").unwrap();
        let refused = SocketFile::bind(&path, 0o660, 16).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[tokio::test]
    async fn a_socket_that_somebody_else_serves_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api");
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let refused = SocketFile::bind(&path, 0o660, 16).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok());
    }
}
