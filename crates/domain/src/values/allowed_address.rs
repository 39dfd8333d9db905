//! An entry of `calls.allow`: a network or a host that may be called although its address is private.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::values::special_address::is_never_called;

/// The text of the fault if an entry has none of the forms.
pub const ALLOWED_ADDRESSES: &str = "networks such as \"10.0.0.0/8\" or \"fd00:1::/32\", addresses such as \
    \"10.0.0.5\", and hosts such as \"payments.internal\" or \"*.svc.example\"; each may have a port as in \
    \"*.svc.example:8080\" or \"[fd00:1::/32]:8080\"";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedAddress {
    what: AllowedTarget,
    /// `None`: any port.
    port: Option<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum AllowedTarget {
    Network(IpNet),
    /// In lower case.
    Host(String),
    /// Every subdomain of this host: `svc.example` for `*.svc.example`.
    Below(String),
}

impl AllowedAddress {
    /// Returns whether the entry covers a call to `host`, as the URL has it, at `address` and `port`.
    pub fn covers(&self, host: &str, address: IpAddr, port: u16) -> bool {
        if self.port.is_some_and(|only| only != port) {
            return false;
        }
        let host = host.strip_suffix('.').unwrap_or(host);
        match &self.what {
            // An IPv4 address in the form of IPv6 is the same address.
            AllowedTarget::Network(network) => network.contains(&address.to_canonical()),
            AllowedTarget::Host(name) => name.eq_ignore_ascii_case(host),
            AllowedTarget::Below(name) => host
                .len()
                .checked_sub(name.len() + 1)
                .filter(|at| *at > 0 && host.as_bytes()[*at] == b'.')
                .and_then(|at| host.get(at + 1..))
                .is_some_and(|rest| rest.eq_ignore_ascii_case(name)),
        }
    }

    /// Parses an entry. The error describes its fault and what was probably meant.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some((_, rest)) = text.split_once("://") {
            let meant = rest.split('/').next().unwrap_or(rest);
            return Err(format!(
                "is a URL; did you mean {meant:?}? Schemes and paths have no effect here"
            ));
        }
        let (what, port) = split_port(text)?;
        let port = match port {
            None => None,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => {
                    return Err(format!("has the port {port:?}, which is not 1 to 65535"));
                }
                Ok(number) => Some(number),
            },
        };
        Ok(Self {
            what: AllowedTarget::parse(what)?,
            port,
        })
    }
}

/// Splits an entry into its network or host and its port. The colons of an IPv6 address do not begin a port.
fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (what, port) = rest
            .split_once(']')
            .ok_or_else(|| format!("has no `]`; did you mean \"[{rest}]\"?"))?;
        return match port.strip_prefix(':') {
            Some(port) => Ok((what, Some(port))),
            None if port.is_empty() => Ok((what, None)),
            // The form `[fd00::]/8` is used by other programs.
            None if port.starts_with('/') => Err(format!(
                "has its `]` in the wrong place; did you mean \"[{what}{port}]\"?"
            )),
            None => Err(format!("continues with {port:?} after the `]`")),
        };
    }
    match text.split_once(':') {
        Some((what, port)) if !port.contains(':') => Ok((what, Some(port))),
        _ => Ok((text, None)),
    }
}

impl AllowedTarget {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some((address, length)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| {
                format!("has {address:?} before the `/`, which is not an IP address")
            })?;
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let network = length
                .parse()
                .ok()
                .and_then(|length| IpNet::new(address, length).ok())
                .ok_or_else(|| {
                    format!("has {length:?} after the `/`, but a prefix length is 0 to {bits}")
                })?;
            return match network.trunc() {
                whole if whole == network => Self::network(network),
                whole => Err(format!(
                    "is an address within a network; did you mean the network \"{whole}\" or the address \"{address}\"?"
                )),
            };
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Self::network(address.into());
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        let (is_below, name) = match text.strip_prefix('*') {
            None => (false, text),
            Some("") => {
                return Err(
                    "would allow everything: for that, set calls.allow_private_addresses = true"
                        .to_owned(),
                );
            }
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => (true, name),
                None => {
                    return Err(format!(
                        "has a * that is not a whole label; did you mean \"*.{rest}\"?"
                    ));
                }
            },
        };
        host_fault(name).map_or_else(|| Ok(()), Err)?;
        let name = name.to_ascii_lowercase();
        Ok(if is_below {
            Self::Below(name)
        } else {
            Self::Host(name)
        })
    }
}

impl AllowedTarget {
    fn network(network: IpNet) -> Result<Self, String> {
        let network = canonical(network);
        if is_never_called(&network) {
            return Err(
                "contains only link-local or metadata addresses, which no setting allows: remove it"
                    .to_owned(),
            );
        }
        Ok(Self::Network(network))
    }
}

/// Returns an IPv4 network for one that is written as IPv6: see [`AllowedAddress::covers`].
fn canonical(network: IpNet) -> IpNet {
    const MAPPED: u8 = 96;
    let IpAddr::V4(address) = network.addr().to_canonical() else {
        return network;
    };
    let length = match network {
        IpNet::V4(_) => return network,
        IpNet::V6(_) => network.prefix_len().checked_sub(MAPPED),
    };
    length
        .and_then(|length| IpNet::new(address.into(), length).ok())
        .unwrap_or(network)
}

fn host_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("names no host".to_owned());
    }
    if name.contains('*') {
        return Some(
            "has a * that is not at the front: write \"*.svc.example\", or a network".to_owned(),
        );
    }
    // By the last label a URL parser decides if it reads the host as an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    let is_number = match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    };
    if is_number {
        return Some(
            "is not an IP address, but ends in a number, which no host name does".to_owned(),
        );
    }
    let plain = |part: &str| {
        let fits = (1..=63).contains(&part.len());
        fits && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if name.split('.').all(plain) && name.len() <= 253 {
        return None;
    }
    Some(
        "is not a host name (write an international one as in \"xn--bcher-kva.example\")"
            .to_owned(),
    )
}

/// Writes the entry as it is in the configuration.
impl fmt::Display for AllowedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.what, self.port) {
            (AllowedTarget::Network(network @ IpNet::V6(_)), Some(_)) => write!(f, "[{network}]")?,
            (AllowedTarget::Network(network), _) => write!(f, "{network}")?,
            (AllowedTarget::Host(name), _) => f.write_str(name)?,
            (AllowedTarget::Below(name), _) => write!(f, "*.{name}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(entry: &str, host: &str, address: &str, port: u16) -> bool {
        let entry = AllowedAddress::parse(entry).unwrap_or_else(|why| panic!("{entry} {why}"));
        entry.covers(host, address.parse().unwrap(), port)
    }

    #[test]
    fn a_network_covers_its_addresses_in_either_form() {
        for address in ["10.0.0.5", "10.255.0.1", "::ffff:10.0.0.5"] {
            assert!(covers("10.0.0.0/8", "any", address, 1), "{address}");
        }
        for address in ["11.0.0.5", "fd00::1", "64:ff9b::a00:5"] {
            assert!(!covers("10.0.0.0/8", "any", address, 1), "{address}");
        }
        assert!(covers("10.0.0.5", "any", "10.0.0.5", 1));
        for entry in ["::ffff:10.0.0.0/104", "::ffff:10.0.0.5", "::ffff:0:0/96"] {
            assert!(covers(entry, "any", "10.0.0.5", 1), "{entry}");
            assert!(!covers(entry, "any", "fd00::1", 1), "{entry}");
        }
        assert!(!covers("10.0.0.5", "any", "10.0.0.6", 1));
        assert!(covers("fd00:1::/32", "any", "fd00:1:2::3", 1));
    }

    #[test]
    fn a_pattern_covers_hosts_below_it_and_not_itself() {
        for host in ["a.svc.example", "a.b.SVC.example", "a.svc.example."] {
            assert!(covers("*.svc.example", host, "10.0.0.1", 1), "{host}");
        }
        for host in [
            "svc.example",
            ".svc.example",
            "asvc.example",
            "a.svc.example.org",
            "é.example",
        ] {
            assert!(!covers("*.svc.example", host, "10.0.0.1", 1), "{host}");
        }
        assert!(covers("Payments", "payments", "10.0.0.1", 1));
        assert!(!covers("payments", "a.payments", "10.0.0.1", 1));
    }

    #[test]
    fn a_port_is_the_only_one_where_it_is_named() {
        for (entry, host, address) in [
            ("*.svc.example:8080", "a.svc.example", "10.0.0.1"),
            ("10.0.0.0/8:8080", "any", "10.0.0.1"),
            ("[fd00:1::/32]:8080", "any", "fd00:1::1"),
            ("[fd00:1::1]:8080", "any", "fd00:1::1"),
        ] {
            assert!(covers(entry, host, address, 8080), "{entry}");
            assert!(!covers(entry, host, address, 8081), "{entry}");
        }
    }

    #[test]
    fn an_entry_reads_back_as_it_is_shown() {
        for (entry, shown) in [
            ("10.0.0.5", "10.0.0.5/32"),
            ("10.0.0.0/8:80", "10.0.0.0/8:80"),
            ("fd00::/8", "fd00::/8"),
            ("[fd00::/8]:80", "[fd00::/8]:80"),
            ("*.SVC.example.:80", "*.svc.example:80"),
        ] {
            let parsed = AllowedAddress::parse(entry).unwrap_or_else(|why| panic!("{entry} {why}"));
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(AllowedAddress::parse(shown), Ok(parsed));
        }
    }

    #[test]
    fn a_wrong_entry_is_refused_with_what_was_probably_meant() {
        for (entry, says) in [
            ("", "names no host"),
            ("*", "allow_private_addresses"),
            ("10.0.0.5/8", "\"10.0.0.0/8\""),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0/8", "not an IP address"),
            ("10.0.0.*", "not at the front"),
            ("10.0.0", "not an IP address"),
            ("http://payments:8080/x", "\"payments:8080\""),
            ("*svc.example", "\"*.svc.example\""),
            ("a.*.example", "not at the front"),
            ("payments:http", "1 to 65535"),
            ("payments:0", "1 to 65535"),
            ("[fd00::]/8", "\"[fd00::/8]\""),
            ("[fd00::1", "\"[fd00::1]\""),
            ("169.254.0.0/16", "no setting"),
            ("169.254.169.254:80", "no setting"),
            ("pay ments", "not a host name"),
            ("bücher.example", "xn--"),
        ] {
            let refused = AllowedAddress::parse(entry).expect_err(entry);
            assert!(refused.contains(says), "{entry}: {refused}");
        }
    }
}
