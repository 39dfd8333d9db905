//! `provost healthcheck`: one request to `/readyz`, without anything that a container may lack.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

#[derive(Debug, thiserror::Error)]
pub enum Unready {
    #[error(
        "nothing answers at {address}: {error}; is `provost serve` running with the same settings?"
    )]
    Silent {
        address: SocketAddr,
        error: io::Error,
    },
    #[error("the server at {address} is not ready: {status}; its log says why")]
    Refused { address: SocketAddr, status: String },
}

/// For connecting, for sending and for the answer each: together less than a container runtime waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks the server that listens on `listen` whether it can take and run tasks.
pub fn check(listen: SocketAddr) -> Result<(), Unready> {
    let address = reachable(listen);
    let status = ask(address).map_err(|error| Unready::Silent { address, error })?;
    if status.split(' ').nth(1) == Some("200") {
        Ok(())
    } else {
        Err(Unready::Refused { address, status })
    }
}

/// A server that listens everywhere is asked where only this machine is.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The status line of the answer.
fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // In one piece: a server may answer and close before a second one.
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut status = String::new();
    BufReader::new(stream.take(1024)).read_line(&mut status)?;
    Ok(status.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Checks a server that answers once with this.
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
        let result = check(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
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
        assert!(check_against("HTTP/1.1 200 OK\r\n\r\nok").is_ok());
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
        let silent = check(free).unwrap_err();
        assert!(matches!(silent, Unready::Silent { .. }), "{silent}");
    }
}
