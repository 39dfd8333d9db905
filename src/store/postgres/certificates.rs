//! TLS to a server: the files that the URL or the environment names, and the explanation of a failed handshake.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustls::{
    CertificateError, Error as TlsError,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use thiserror::Error;

/// The largest file that is read, in bytes. Collections of certificates are smaller.
const LARGEST: u64 = 8 << 20;

#[derive(Debug, Error, PartialEq)]
pub(super) enum TlsFault {
    #[error("{parameter}: {} cannot be read: {reason}", path.display())]
    Unreadable {
        parameter: &'static str,
        path: PathBuf,
        reason: String,
    },
    #[error("{parameter}: {} contains no {wanted} in PEM form", path.display())]
    NotPem {
        parameter: &'static str,
        path: PathBuf,
        wanted: &'static str,
    },
    #[error(
        "no trusted authority has signed the certificate of the server ({said}): Provost trusts those of this machine{}; add the file with the right authority's certificate to the URL (sslrootcert=…)",
        .root.as_deref().map_or_else(String::new, |root| format!(" and those in {} (sslrootcert)", root.display()))
    )]
    Authority {
        root: Option<PathBuf>,
        said: TlsError,
    },
    #[error(
        "the certificate of the server is not for the host {host:?} ({said}): use a host name in the URL that the certificate has, or sslmode=verify-ca, which does not check the name"
    )]
    Host { host: String, said: TlsError },
    #[error("TLS failed: {0}; check the certificates of server and client, or sslmode in the URL")]
    Other(TlsError),
}

/// The TLS files of one URL.
#[derive(Debug, Default)]
pub(super) struct TlsFiles {
    root: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the files that a query such as `sslmode=verify-full&sslrootcert=/etc/ca.pem` names, or else those that
    /// the variables of the crate name.
    pub fn named(query: &str) -> Self {
        let file = |parameter: &str, variable: &str| {
            let named = url::form_urlencoded::parse(query.as_bytes());
            match named.filter(|(name, _)| name == parameter).last() {
                Some((_, path)) => Some(PathBuf::from(path.into_owned())),
                // The variable may contain a certificate instead of a path.
                None => std::env::var_os(variable)
                    .filter(|value| !value.to_string_lossy().contains("-----BEGIN"))
                    .map(PathBuf::from),
            }
        };
        Self {
            root: file("sslrootcert", "PGSSLROOTCERT"),
            certificate: file("sslcert", "PGSSLCERT"),
            key: file("sslkey", "PGSSLKEY"),
        }
    }

    /// Verifies the authority if a file of authorities is named, as psql does. The crate reads that file only in the
    /// two modes that request it.
    pub fn apply(&self, options: PgConnectOptions) -> PgConnectOptions {
        match options.get_ssl_mode() {
            PgSslMode::Require if self.root.is_some() => options.ssl_mode(PgSslMode::VerifyCa),
            _ => options,
        }
    }

    /// Returns the fault of a file that a connection with these options needs, if there is one.
    pub fn fault(&self, options: &PgConnectOptions) -> Option<TlsFault> {
        if matches!(
            options.get_ssl_mode(),
            PgSslMode::Disable | PgSslMode::Allow
        ) {
            return None;
        }
        let certificates = [("sslrootcert", &self.root), ("sslcert", &self.certificate)];
        for (parameter, path) in certificates {
            let Some(path) = path else { continue };
            let read = CertificateDer::pem_slice_iter;
            if let Err(fault) = check(parameter, path, "certificate", |text| {
                let mut found = read(text).peekable();
                match found.peek() {
                    Some(_) => found.collect::<Result<Vec<_>, _>>().map(|_| ()),
                    None => Err(pem::Error::NoItemsFound),
                }
            }) {
                return Some(fault);
            }
        }
        let key = self.key.as_deref()?;
        let read = |text: &[u8]| PrivateKeyDer::from_pem_slice(text).map(|_| ());
        check("sslkey", key, "private key", read).err()
    }

    /// Returns the TLS fault that made a connection fail, if there is one.
    pub fn explain(&self, options: &PgConnectOptions, error: &sqlx::Error) -> Option<TlsFault> {
        let may_be_tls = matches!(
            error,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Configuration(_)
        );
        // The files are checked first: the crate's errors name no file, and it ignores content that is no certificate.
        if let Some(fault) = may_be_tls.then(|| self.fault(options)).flatten() {
            return Some(fault);
        }
        let said = of_handshake(error)?.clone();
        Some(match &said {
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => TlsFault::Host {
                host: options.get_host().to_owned(),
                said,
            },
            // A wrong authority with the same name and key type is detected by the signature.
            TlsError::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => TlsFault::Authority {
                root: self.root.clone(),
                said,
            },
            _ => TlsFault::Other(said),
        })
    }
}

fn of_handshake(error: &sqlx::Error) -> Option<&TlsError> {
    match error {
        sqlx::Error::Io(error) => error.get_ref()?.downcast_ref(),
        sqlx::Error::Tls(error) => error.downcast_ref(),
        _ => None,
    }
}

fn check(
    parameter: &'static str,
    path: &Path,
    wanted: &'static str,
    parse: impl Fn(&[u8]) -> Result<(), pem::Error>,
) -> Result<(), TlsFault> {
    let text = read(path).map_err(|error| TlsFault::Unreadable {
        parameter,
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    parse(&text).map_err(|_| TlsFault::NotPem {
        parameter,
        path: path.to_owned(),
        wanted,
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    // Reading a pipe would wait for its writer.
    if !found.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if found.len() > LARGEST {
        return Err(io::Error::other(format!(
            "it is larger than {LARGEST} bytes"
        )));
    }
    fs::read(path)
}
