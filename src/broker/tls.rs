//! TLS to a broker: the trusted certificates, and explanations of failed handshakes for operators.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use hyper_rustls::ConfigBuilderExt;
use rustls::{
    CertificateError, ClientConfig, Error as TlsError, InvalidMessage, RootCertStore,
    pki_types::ServerName,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Trusts the certificates that the rest of this machine trusts, or those in the file of `SSL_CERT_FILE`.
static CONFIG: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let config = match ClientConfig::builder().try_with_platform_verifier() {
        Ok(config) => config.with_no_client_auth(),
        // Without certificates every handshake fails, and its error gives the reason.
        Err(_) => ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth(),
    };
    Arc::new(config)
});

pub async fn handshake(host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connected = TlsConnector::from(CONFIG.clone()).connect(name, stream);
    connected.await.map_err(explained)
}

fn explained(error: io::Error) -> io::Error {
    let said = error.get_ref().and_then(|said| said.downcast_ref());
    let remedy = match said {
        Some(TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            "no trusted authority has signed the certificate of the broker: add the authority's certificate to those of this machine, or start Provost with SSL_CERT_FILE naming a file that has it"
        }
        Some(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            "the certificate of the broker is for another host: name that host in the URL, or give the broker a certificate for this one"
        }
        Some(TlsError::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the broker does not speak TLS at this port: use amqps:// with the port for TLS (5671 by default), or amqp://"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{remedy} ({error})"))
}
