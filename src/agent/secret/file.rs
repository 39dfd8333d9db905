//! Reads one secret from its file or environment variable, and reports why it cannot be used.

use std::{
    fmt,
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use crate::domain::task::SHORTEST_SECRET;

/// The most bytes of a secret. A key with a chain of certificates has fewer.
const LONGEST: u64 = 64 << 10;

/// The text of a secret. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::agent) struct SecretText(Arc<str>);

impl SecretText {
    /// Returns the text. The caller must use it immediately, and store no copy.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The reason why a secret cannot be used. Only the log contains the path of the file, because more people see
/// responses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(in crate::agent) enum SecretFault {
    #[error("it has not been read yet")]
    Unread,
    #[error("its environment variable is not set")]
    NoVariable,
    #[error("its file does not exist")]
    NoFile,
    #[error("its file cannot be read: {0}")]
    Unreadable(String),
    #[error("its path is that of something else than a file")]
    NotFile,
    #[error(
        "its file can be used by others than its owner (mode {0:04o}): chmod 0400, and replace the secret if others may have read it"
    )]
    NotPrivate(u32),
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it is empty")]
    Empty,
    #[error("it is shorter than {SHORTEST_SECRET} bytes")]
    TooShort,
    #[error("it is not UTF-8 text, or contains U+0000")]
    NotText,
}

/// The properties that distinguish one state of a file from another without reading the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::agent) enum SecretFileState {
    /// The metadata of the file cannot be read.
    Absent,
    Present {
        device: u64,
        inode: u64,
        changed: (i64, i64),
        size: u64,
        mode: u32,
    },
}

impl SecretFileState {
    pub fn at(path: &Path) -> Self {
        std::fs::metadata(path).map_or(Self::Absent, |found| Self::of(&found))
    }

    fn of(found: &Metadata) -> Self {
        Self::Present {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.mtime(), found.mtime_nsec()),
            size: found.size(),
            mode: found.mode(),
        }
    }
}

pub(in crate::agent) fn from_environment(name: &str) -> Result<SecretText, SecretFault> {
    let value = std::env::var_os(name).ok_or(SecretFault::NoVariable)?;
    checked(value.into_encoded_bytes())
}

pub(in crate::agent) fn from_file(path: &Path) -> Result<SecretText, SecretFault> {
    // Without `NONBLOCK`, opening a pipe or a device could wait for the other end.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened
        .and_then(|file| Ok((file.metadata()?, file)))
        .map_err(|error| unreadable(&error))
        .and_then(|(found, file)| from_open_file(&found, file))
}

fn from_open_file(found: &Metadata, file: File) -> Result<SecretText, SecretFault> {
    if !found.is_file() {
        return Err(SecretFault::NotFile);
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SecretFault::NotPrivate(mode));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    checked(bytes)
}

fn unreadable(error: &io::Error) -> SecretFault {
    match error.kind() {
        io::ErrorKind::NotFound => SecretFault::NoFile,
        // A socket, or a pipe without a process at the other end.
        _ if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            SecretFault::NotFile
        }
        _ => SecretFault::Unreadable(error.to_string()),
    }
}

fn checked(bytes: Vec<u8>) -> Result<SecretText, SecretFault> {
    if bytes.len() as u64 > LONGEST {
        return Err(SecretFault::TooLong);
    }
    let text = String::from_utf8(bytes).map_err(|_| SecretFault::NotText)?;
    // Editors and `echo` end a file with a line break.
    let text = text.trim_end_matches(['\r', '\n']);
    if text.contains('\0') {
        return Err(SecretFault::NotText);
    }
    match text.len() {
        0 => Err(SecretFault::Empty),
        short if short < SHORTEST_SECRET => Err(SecretFault::TooShort),
        _ => Ok(SecretText(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

    use tempfile::TempDir;

    use super::*;

    fn written(folder: &TempDir, mode: u32, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join("secret");
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_secret_is_what_its_file_says_without_the_line_break_at_its_end() {
        let folder = TempDir::new().unwrap();
        for (bytes, text) in [
            (&b"s3cret-text"[..], "s3cret-text"),
            (b"s3cret-text\n", "s3cret-text"),
            (b"s3cret-text\r\n\n", "s3cret-text"),
            (b"two\nlines\n", "two\nlines"),
            (" blank\u{fc} ".as_bytes(), " blank\u{fc} "),
        ] {
            for mode in [0o400, 0o600, 0o700] {
                let read = from_file(&written(&folder, mode, bytes)).unwrap();
                assert_eq!(read.expose(), text);
                assert_eq!(format!("{read:?}"), "(hidden)");
            }
        }
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused_with_its_reason() {
        let folder = TempDir::new().unwrap();
        for (mode, bytes, fault) in [
            (0o400, &b""[..], SecretFault::Empty),
            (0o400, b"\n", SecretFault::Empty),
            (0o400, b"short\n", SecretFault::TooShort),
            (0o400, b"not text \xff\xfe", SecretFault::NotText),
            (0o400, b"not\0text at all", SecretFault::NotText),
            (0o400, &[b'x'; 1 << 20], SecretFault::TooLong),
            (0o440, b"s3cret-text", SecretFault::NotPrivate(0o440)),
            (0o404, b"s3cret-text", SecretFault::NotPrivate(0o404)),
            (0o620, b"s3cret-text", SecretFault::NotPrivate(0o620)),
        ] {
            let found = from_file(&written(&folder, mode, bytes)).unwrap_err();
            assert_eq!(found, fault);
            assert!(!found.to_string().contains("s3cret"), "{found}");
        }
        let missing = from_file(&folder.path().join("missing"));
        assert_eq!(missing, Err(SecretFault::NoFile));
        assert_eq!(from_file(folder.path()), Err(SecretFault::NotFile));
        assert_eq!(from_file(Path::new("/dev/zero")), Err(SecretFault::NotFile));
    }

    #[test]
    fn a_pipe_makes_nobody_wait() {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        assert_eq!(from_file(&pipe), Err(SecretFault::NotFile));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(from_file(&socket), Err(SecretFault::NotFile));
    }

    #[test]
    fn another_content_or_mode_is_another_state() {
        let folder = TempDir::new().unwrap();
        let path = written(&folder, 0o600, b"s3cret-text");
        let first = SecretFileState::at(&path);
        assert_eq!(first, SecretFileState::at(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_ne!(first, SecretFileState::at(&path));
        assert_ne!(
            first,
            SecretFileState::at(&written(&folder, 0o600, b"another-text"))
        );
        assert_eq!(
            SecretFileState::at(&folder.path().join("x")),
            SecretFileState::Absent
        );
    }
}
