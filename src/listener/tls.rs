//! TLS on incoming connections: certificate and key from two PEM files, which are read again when they change.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info};

use crate::clock::{MissedTickBehavior, interval};

/// The interval at which the files are checked.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// The largest file that is read. Chains of certificates are far smaller.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{setting}: {} cannot be read: {error}", path.display())]
    Unreadable {
        setting: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("{setting}: {} contains no {wanted} in PEM form: {error}", path.display())]
    NotPem {
        setting: &'static str,
        path: PathBuf,
        wanted: &'static str,
        error: pem::Error,
    },
    #[error(
        "tls.certificate and tls.key cannot be used together: {0}; the first certificate of the file must belong to the key"
    )]
    Unusable(rustls::Error),
}

/// The paths of the certificate and the key.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub struct Tls {
    files: Files,
    config: ArcSwap<ServerConfig>,
}

/// The properties that distinguish one state of a file from another without reading the file.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

impl Tls {
    pub fn read(files: Files) -> Result<Self, TlsError> {
        let config = ArcSwap::new(files.read()?);
        Ok(Self { files, config })
    }

    /// Returns the acceptor for the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reads both files again. If they cannot be used, nothing changes.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(self.files.read()?);
        Ok(())
    }

    /// Reads the files again after each change. Never ends.
    pub async fn watch(&self) {
        let mut known = self.files.stamps().await;
        let mut before = known;
        let mut looks = interval(CHECK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let found = self.files.stamps().await;
            // The files are read once two checks in a row see the same state. While one has been replaced and the
            // other has not, they do not belong together.
            if found != known && found == before {
                known = found;
                match self.reload() {
                    Ok(()) => info!(
                        certificate = %self.files.certificate.display(),
                        "reloaded the certificate; new connections use it"
                    ),
                    Err(error) => error!(
                        %error,
                        "the new certificate is invalid; the previous one stays in use until the files are corrected"
                    ),
                }
            }
            before = found;
        }
    }
}

impl Files {
    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let (setting, path) = ("tls.certificate", &self.certificate);
        let text = read(setting, path)?;
        let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.and_then(|found| match found.is_empty() {
            true => Err(pem::Error::NoItemsFound),
            false => Ok(found),
        });
        let not_pem = |setting, path: &Path, wanted, error| TlsError::NotPem {
            setting,
            path: path.to_owned(),
            wanted,
            error,
        };
        let certificates =
            certificates.map_err(|error| not_pem(setting, path, "certificate", error))?;
        let (setting, path) = ("tls.key", &self.key);
        let key = PrivateKeyDer::from_pem_slice(&read(setting, path)?)
            .map_err(|error| not_pem(setting, path, "private key", error))?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(certificates, key);
        let mut config = config.map_err(TlsError::Unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    async fn stamps(&self) -> [Stamp; 2] {
        [stamp(&self.certificate).await, stamp(&self.key).await]
    }
}

/// Returns the certificates of a file.
pub fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read("tls.certificate", path)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    certificates.map_err(|error| TlsError::NotPem {
        setting: "tls.certificate",
        path: path.to_owned(),
        wanted: "certificate",
        error,
    })
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::Unreadable {
        setting,
        path: path.to_owned(),
        error,
    };
    let found = fs::metadata(path).map_err(unreadable)?;
    // A read of a pipe would wait for its writer.
    if !found.is_file() {
        return Err(unreadable(io::Error::other("it is not a file")));
    }
    if found.len() > LARGEST {
        let error = io::Error::other(format!("it is larger than {LARGEST} bytes"));
        return Err(unreadable(error));
    }
    fs::read(path).map_err(unreadable)
}

async fn stamp(path: &Path) -> Stamp {
    let found = tokio::fs::metadata(path).await.ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.mtime(),
        found.mtime_nsec(),
        found.size(),
    ))
}
