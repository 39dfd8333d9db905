//! The address of the API: an IP address and a port, or a Unix socket.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest path that the kernel accepts for a Unix socket.
const LONGEST_PATH: usize = 107;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    Tcp(SocketAddr),
    /// The path of the socket to create.
    Unix(PathBuf),
}

impl Listen {
    /// Returns whether only programs on this machine can connect to the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080))
    }
}

impl FromStr for Listen {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let Some(path) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| ());
        };
        let usable = (1..=LONGEST_PATH).contains(&path.len())
            && !path.ends_with('/')
            && !path.contains('\0');
        usable.then(|| Self::Unix(path.into())).ok_or(())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| {
            let found = de::Unexpected::Str(&text);
            de::Error::invalid_value(found, &"an address such as \"127.0.0.1:8080\"")
        })
    }
}

/// The permissions of a Unix socket, in the octal form of `chmod`: `"0660"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnixMode(pub u32);

impl FromStr for UnixMode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).map_err(|_| ())?;
        // A connection needs the permission to write: without it for its own user, the socket would be useless.
        let usable =
            digits && matches!(text.len(), 3 | 4) && mode & 0o600 == 0o600 && mode <= 0o777;
        usable.then_some(Self(mode)).ok_or(())
    }
}

impl fmt::Display for UnixMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for UnixMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnixMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| {
            de::Error::invalid_value(de::Unexpected::Str(&text), &"permissions such as \"0660\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_socket_reads_back_as_it_was_written() {
        for text in [
            "127.0.0.1:8080",
            "[::1]:80",
            "unix:/run/provost/api.sock",
            "unix:api",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "8080",
            "localhost:80",
            "unix:",
            "unix:/run/",
            "/run/api.sock",
        ] {
            assert_eq!(text.parse::<Listen>(), Err(()), "{text}");
        }
        assert_eq!(
            format!("unix:/{}", "x".repeat(107)).parse::<Listen>(),
            Err(())
        );
    }

    #[test]
    fn loopback_and_sockets_are_local() {
        let is_local = |text: &str| text.parse::<Listen>().unwrap().is_local();
        assert!(
            is_local("127.0.0.1:80") && is_local("[::ffff:127.0.0.1]:80") && is_local("unix:/a")
        );
        assert!(!is_local("0.0.0.0:80") && !is_local("10.0.0.1:80"));
    }

    #[test]
    fn permissions_are_octal_and_leave_the_owner_in() {
        assert_eq!("0660".parse::<UnixMode>().unwrap().0, 0o660);
        assert_eq!("600".parse::<UnixMode>().unwrap().to_string(), "0600");
        for text in ["", "66", "0068", "+660", "0066", "1777", "00660"] {
            assert_eq!(text.parse::<UnixMode>(), Err(()), "{text}");
        }
    }
}
