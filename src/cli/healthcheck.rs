//! `provost healthcheck`: one request to `/readyz`, without any program or file that a container may lack.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::config::Listen;

#[derive(Debug, thiserror::Error)]
pub enum Unready {
    #[error(
        "no response from {address}: {error}; is `provost serve` running with the same settings?"
    )]
    Silent { address: Listen, error: io::Error },
    #[error("the server at {address} is not ready: {status}; its log says why")]
    Refused { address: Listen, status: String },
    #[error(
        "the server at {address} responds, but it is not Provost: another program has the address"
    )]
    Another { address: Listen },
}

/// The timeout of connecting, of sending and of the response. All three together are shorter than the wait of a
/// container runtime.
const PATIENCE: Duration = Duration::from_secs(2);

/// The body of the response of a server that is ready. Other programs respond with 200 too.
const READY: &str = r#"{"status":"ready"}"#;
/// The most bytes of a response that are read.
const LONGEST_RESPONSE: u64 = 8 * 1024;

/// The server to check.
#[derive(Clone, PartialEq, Debug)]
pub struct HealthcheckTarget {
    pub listen: Listen,
    pub tls: bool,
}

/// Asks the server whether it is ready.
pub fn check(target: &HealthcheckTarget) -> Result<(), Unready> {
    let address = match &target.listen {
        Listen::Tcp(address) => Listen::Tcp(reachable(*address)),
        unix @ Listen::Unix(_) => unix.clone(),
    };
    match ask(&address, target.tls) {
        Err(error) => Err(Unready::Silent { address, error }),
        Ok(response) => match response.lines().next().unwrap_or_default() {
            status if status.split(' ').nth(1) != Some("200") => {
                let status = status.to_owned();
                Err(Unready::Refused { address, status })
            }
            _ if response.contains(READY) => Ok(()),
            _ => Err(Unready::Another { address }),
        },
    }
}

/// Returns the address to check: a server that listens on all addresses is checked on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Sends the request, and returns the response as far as it is needed.
fn ask(address: &Listen, tls: bool) -> io::Result<String> {
    match address {
        Listen::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            exchange(stream, "localhost")
        }
        Listen::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            match tls {
                false => exchange(stream, &address.to_string()),
                true => exchange(encrypted(stream, address.ip())?, &address.to_string()),
            }
        }
    }
}

fn exchange(mut stream: impl Read + Write, host: &str) -> io::Result<String> {
    // The request is sent in one write: a server may respond and close before a second one.
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut lines = BufReader::new(stream.take(LONGEST_RESPONSE));
    let mut response = Vec::new();
    // The body has no end of line: it ends with the connection.
    loop {
        match lines.read_until(b'}', &mut response) {
            Ok(0) => break,
            Ok(_) if response.ends_with(READY.as_bytes()) => break,
            Ok(_) => {}
            // The beginning says enough, also if the connection is not closed.
            Err(_) if !response.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&response).into_owned())
}

fn encrypted(
    stream: TcpStream,
    address: IpAddr,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let name = ServerName::IpAddress(address.into());
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}

/// Accepts any certificate: the server's is for the name that callers use, and this check uses its address. It
/// sends no secret, and learns only whether the server is ready.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = ring::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    fn plain(address: SocketAddr) -> HealthcheckTarget {
        HealthcheckTarget {
            listen: Listen::Tcp(address),
            tls: false,
        }
    }

    /// Checks a server that responds once with this text.
    fn check_against(answer: &'static str) -> Result<(), Unready> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let result = check(&plain(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)));
        assert!(
            server
                .join()
                .unwrap()
                .starts_with("GET /readyz HTTP/1.1\r\n")
        );
        result
    }

    #[test]
    fn a_server_that_listens_everywhere_and_says_200_is_ready() {
        let ready = "HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n{\"status\":\"ready\"}";
        assert!(check_against(ready).is_ok());
    }

    #[test]
    fn another_program_at_the_address_is_not_ready() {
        for response in ["HTTP/1.1 200 OK\r\n\r\nok", "HTTP/1.1 200 OK\r\n\r\n{}"] {
            let another = check_against(response).unwrap_err();
            assert!(matches!(another, Unready::Another { .. }), "{another}");
        }
    }

    #[test]
    fn any_other_answer_is_not_ready() {
        let refused = check_against("HTTP/1.1 503 Service Unavailable\r\n\r\n").unwrap_err();
        assert!(
            refused.to_string().contains("503 Service Unavailable"),
            "{refused}"
        );
        assert!(check_against("HTTP/1.1 404 for 200 reasons\r\n\r\n").is_err());
        assert!(check_against("").is_err());
    }

    #[test]
    fn no_server_is_not_ready() {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let silent = check(&plain(free)).unwrap_err();
        assert!(matches!(silent, Unready::Silent { .. }), "{silent}");
    }
}
