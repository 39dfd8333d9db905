//! Which addresses may be called. The check is made on the resolved address, so that a public name
//! which points inside (or is made to, between two look-ups) reaches nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    task::{Context, Poll},
    vec,
};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;
use url::Url;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressPolicy {
    /// Loopback, private, link-local and the like may be called too.
    pub allow_private: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{host} is {kind} address ({address}), which may not be called; \
     set `allow_private_addresses = true` to allow such addresses"
)]
pub struct AddressRefused {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

impl AddressPolicy {
    pub fn check(self, host: &str, address: IpAddr) -> Result<(), AddressRefused> {
        match kind_of_inner(address) {
            Some(kind) if !self.allow_private => Err(AddressRefused {
                host: host.to_owned(),
                address,
                kind,
            }),
            _ => Ok(()),
        }
    }

    /// The client does not resolve a literal address, so the resolver's check would never see it.
    pub fn check_literal(self, url: &Url) -> Result<(), AddressRefused> {
        let host = url.host_str().unwrap_or_default();
        match host.trim_matches(['[', ']']).parse() {
            Ok(address) => self.check(host, address),
            Err(_) => Ok(()),
        }
    }
}

/// What keeps an address out of reach by default; `None` for one that belongs to the internet.
fn kind_of_inner(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => kind_of_inner_v4(v4),
        IpAddr::V6(v6) => kind_of_inner_v6(v6),
    }
}

fn kind_of_inner_v4(v4: Ipv4Addr) -> Option<&'static str> {
    // Azure's host agent, the one metadata address outside the ranges below.
    const AZURE_WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    let [a, b, c, _] = v4.octets();
    if a == 0 {
        Some("an unspecified")
    } else if v4.is_loopback() {
        Some("a loopback")
    } else if v4.is_private() {
        Some("a private")
    } else if v4.is_link_local() {
        // Holds 169.254.169.254, where the clouds keep a machine's credentials.
        Some("a link-local or metadata")
    } else if v4 == AZURE_WIRE_SERVER {
        Some("a metadata")
    } else if a == 100 && b & 0xc0 == 64 {
        // RFC 6598; std's `is_shared` is not stable.
        Some("a carrier-shared")
    } else if v4.is_multicast() {
        Some("a multicast")
    } else if a >= 240 || [a, b, c] == [192, 0, 0] {
        Some("a reserved")
    } else {
        None
    }
}

fn kind_of_inner_v6(v6: Ipv6Addr) -> Option<&'static str> {
    if v6.is_unspecified() {
        Some("an unspecified")
    } else if v6.is_loopback() {
        Some("a loopback")
    } else if v6.is_unique_local() {
        Some("a private")
    } else if v6.is_unicast_link_local() {
        Some("a link-local")
    } else if v6.segments()[0] & 0xffc0 == 0xfec0 {
        Some("a site-local")
    } else if v6.is_multicast() {
        Some("a multicast")
    } else {
        embedded_v4(v6).and_then(kind_of_inner_v4)
    }
}

/// The IPv4 address that packets to this one end at: mapped and compatible addresses, NAT64 (RFC 6052)
/// and 6to4 (RFC 3056). Without this an inner address could be reached in disguise.
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = v6.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Some(joined(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(joined(high, low)),
        [0x2002, high, low, ..] => Some(joined(high, low)),
        _ => None,
    }
}

/// The system's resolver, with the refused addresses taken out of its answers.
#[derive(Clone)]
pub(super) struct GuardedResolver(pub AddressPolicy);

impl Service<Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = self.0;
        Box::pin(async move {
            // Port 0 makes the client use the port of the URL.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut refused = None;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| match policy.check(name.as_str(), address.ip()) {
                    Ok(()) => true,
                    Err(refusal) => {
                        refused = Some(refusal);
                        false
                    }
                })
                .collect();
            match refused {
                Some(refusal) if allowed.is_empty() => Err(refusal.into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

/// The refusal behind a failed call, however deep the client wrapped it.
pub(super) fn refusal_in<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a AddressRefused> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<AddressRefused>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, allow_private: bool) -> Result<(), AddressRefused> {
        AddressPolicy { allow_private }.check("host", address.parse().unwrap())
    }

    #[test]
    fn inner_addresses_are_refused_and_the_setting_is_named() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.5",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            let refusal = check(address, false).expect_err(address).to_string();
            assert!(refusal.contains("`allow_private_addresses"), "{refusal}");
            assert_eq!(check(address, true), Ok(()), "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_allowed() {
        for address in [
            "1.1.1.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert_eq!(check(address, false), Ok(()), "{address}");
        }
    }
}
