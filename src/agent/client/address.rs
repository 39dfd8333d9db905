//! Decides which addresses may be called. Every connection to a URL that a caller gave (for a step, an agent, a reply
//! or a webhook) is opened under this check. The check applies to the resolved address: a public name that points to
//! an internal address, or that is changed to one between two look-ups, is refused too.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    task::{Context, Poll},
    vec,
};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;
use url::Url;

use super::counted::BytesReceived;
use crate::domain::values::{AllowedAddress, special_address};

/// The rules for the addresses that may be called. A clone is cheap.
#[derive(Clone, Default, Debug)]
pub struct AddressPolicy(Arc<Rules>);

#[derive(Default, Debug)]
struct Rules {
    /// Loopback, private and similar addresses may be called too.
    allow_private: bool,
    /// The entries of `calls.allow`: these may be called although they are private or similar.
    allow: Vec<AllowedAddress>,
    own: OwnAddresses,
}

/// The addresses of this service itself. They are never called.
#[derive(Default, Debug)]
pub struct OwnAddresses {
    pub listener: Option<SocketAddr>,
    /// The hosts and ports of the database.
    pub database: Vec<(String, u16)>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressRefusal {
    #[error(
        "{host} is {kind} address ({address}), which may not be called; add \"{}\", or a network or host that covers it, to `calls.allow`, or set `calls.allow_private_addresses = true` to allow all such addresses",
        SocketAddr::new(*address, *port)
    )]
    Inner {
        host: String,
        address: IpAddr,
        port: u16,
        kind: &'static str,
    },
    #[error("{host} is {kind} address ({address}), which is never called: no setting allows it")]
    Never {
        host: String,
        address: IpAddr,
        kind: &'static str,
    },
    #[error(
        "{host} ({}) is Provost's own {what}, which is never called: no setting allows it",
        SocketAddr::new(*address, *port)
    )]
    Own {
        host: String,
        address: IpAddr,
        port: u16,
        what: &'static str,
    },
}

impl AddressPolicy {
    pub fn new(allow_private: bool, allow: Vec<AllowedAddress>, own: OwnAddresses) -> Self {
        Self(Arc::new(Rules {
            allow_private,
            allow,
            own,
        }))
    }

    /// Allows every address except those that no setting can allow.
    #[cfg(test)]
    pub fn private_too() -> Self {
        Self::new(true, Vec::new(), OwnAddresses::default())
    }

    /// Checks a URL whose host is an address. A URL with a host name passes: its addresses are checked when it is
    /// called.
    pub fn check_literal(&self, url: &Url) -> Result<(), AddressRefusal> {
        let Some(host) = url.host_str() else {
            return Ok(());
        };
        let Some(address) = literal(host) else {
            return Ok(());
        };
        let port = url.port_or_known_default().unwrap_or_default();
        let known = self.0.own.database.iter();
        let known = known.filter_map(|(host, port)| Some((literal(host)?, *port)));
        let gate = AddressCheck {
            policy: self.clone(),
            host: host.to_owned(),
            port,
            database: known
                .filter(|(_, its)| *its == port)
                .map(|(ip, _)| ip)
                .collect(),
        };
        gate.check(address)
    }

    /// Returns the check for one connection.
    pub(in crate::agent) async fn gate(&self, host: &str, port: u16) -> AddressCheck {
        let mut database = Vec::new();
        for (name, _) in self.0.own.database.iter().filter(|(_, its)| *its == port) {
            // The name is resolved each time, because after a failover it may lead to another address. A name that
            // cannot be resolved protects no address.
            if let Ok(found) = tokio::net::lookup_host((name.as_str(), port)).await {
                database.extend(found.map(|address| address.ip()));
            }
        }
        AddressCheck {
            policy: self.clone(),
            host: host.to_owned(),
            port,
            database,
        }
    }
}

/// Returns the address if the host of a URL is one. The client does not resolve such a host, so [`GuardedResolver`]
/// never sees it.
pub(in crate::agent) fn literal(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
}

/// Decides on the addresses of one host that is about to be connected to.
#[derive(Clone)]
pub(in crate::agent) struct AddressCheck {
    policy: AddressPolicy,
    host: String,
    port: u16,
    /// The addresses of the database, if the port of the call is the port of the database; otherwise empty.
    database: Vec<IpAddr>,
}

impl AddressCheck {
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefusal> {
        let rules = &*self.policy.0;
        let special = special_address(address);
        if let Some(special) = special.filter(|special| special.never) {
            return Err(AddressRefusal::Never {
                host: self.host.clone(),
                address,
                kind: special.kind,
            });
        }
        if let Some(what) = self.own(address) {
            return Err(AddressRefusal::Own {
                host: self.host.clone(),
                address,
                port: self.port,
                what,
            });
        }
        let covers = |allowed: &AllowedAddress| allowed.covers(&self.host, address, self.port);
        match special {
            Some(special) if !rules.allow_private && !rules.allow.iter().any(covers) => {
                Err(AddressRefusal::Inner {
                    host: self.host.clone(),
                    address,
                    port: self.port,
                    kind: special.kind,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of the part of this service that listens at the address, or `None`.
    fn own(&self, address: IpAddr) -> Option<&'static str> {
        let plain = |address: IpAddr| match address.to_canonical() {
            // The system treats the unspecified address as an address of this machine.
            address if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            address => address,
        };
        // `localhost` may lead to either loopback address, so the two count as the same.
        let same = |one: IpAddr, other: IpAddr| {
            let (one, other) = (plain(one), plain(other));
            one == other || (one.is_loopback() && other.is_loopback())
        };
        let listener = self.policy.0.own.listener;
        if listener.is_some_and(|listener| {
            listener.port() == self.port
                && (same(listener.ip(), address)
                    || (listener.ip().is_unspecified() && is_of_this_machine(address)))
        }) {
            return Some("listener");
        }
        let database = self.database.iter();
        database
            .copied()
            .any(|database| same(database, address))
            .then_some("database")
    }
}

/// True if the address can be bound, which only an address of this machine can. Nothing is sent.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The resolver of the system. It removes the refused addresses from the results, and notes when it has found some.
#[derive(Clone)]
pub(in crate::agent) struct GuardedResolver {
    pub gate: AddressCheck,
    pub opening: BytesReceived,
}

impl Service<Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (gate, opening) = (self.gate.clone(), self.opening.clone());
        Box::pin(async move {
            // Port 0 makes the client use the port of the URL.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            opening.note_resolved();
            let mut refused = None;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| match gate.check(address.ip()) {
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

/// Returns the refusal that made a call fail, at any depth in the chain of sources of the client's error.
pub(in crate::agent) fn refusal_in<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a AddressRefusal> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<AddressRefusal>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow_private: bool, allow: &[&str], own: OwnAddresses) -> AddressPolicy {
        let allow = allow.iter().map(|text| AllowedAddress::parse(text));
        let allow = allow.collect::<Result<_, _>>().unwrap();
        AddressPolicy::new(allow_private, allow, own)
    }

    fn check(policy: &AddressPolicy, url: &str) -> Result<(), String> {
        let checked = policy.check_literal(&url.parse().unwrap());
        checked.map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_refusal_names_both_settings_that_would_allow_it() {
        let refused = check(&AddressPolicy::default(), "http://10.0.0.5:8080/x").unwrap_err();
        assert!(refused.contains("\"10.0.0.5:8080\""), "{refused}");
        assert!(refused.contains("`calls.allow`"), "{refused}");
        assert!(refused.contains("allow_private_addresses"), "{refused}");
        let refused = check(&AddressPolicy::default(), "http://[fd12::1]/x").unwrap_err();
        assert!(refused.contains("\"[fd12::1]:80\""), "{refused}");
    }

    #[test]
    fn an_entry_allows_what_it_names_and_nothing_else() {
        let some = policy(
            false,
            &["10.1.0.0/16", "10.2.0.1:8080"],
            OwnAddresses::default(),
        );
        for url in [
            "http://10.1.9.9",
            "https://10.1.9.9:1",
            "http://10.2.0.1:8080",
        ] {
            assert_eq!(check(&some, url), Ok(()), "{url}");
        }
        for url in [
            "http://10.2.0.1",
            "http://127.0.0.1",
            "http://10.3.0.1:8080",
        ] {
            assert!(check(&some, url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_host_that_is_allowed_may_lead_inside() {
        let some = policy(false, &["*.svc.example:8080"], OwnAddresses::default());
        let address = "10.0.0.1".parse().unwrap();
        let gate = async |host: &str, port| some.gate(host, port).await.check(address);
        assert_eq!(gate("a.svc.example", 8080).await, Ok(()));
        assert!(gate("a.svc.example", 80).await.is_err());
        assert!(gate("a.other.example", 8080).await.is_err());
        let metadata = "169.254.169.254".parse().unwrap();
        let refused = some.gate("a.svc.example", 8080).await.check(metadata);
        assert!(matches!(refused, Err(AddressRefusal::Never { .. })));
    }

    #[test]
    fn metadata_is_refused_whatever_is_allowed() {
        let all = policy(true, &["0.0.0.0/0", "::/0"], OwnAddresses::default());
        for url in [
            "http://169.254.169.254/latest",
            "http://[fd00:ec2::254]/latest",
            "http://[::ffff:169.254.169.254]/latest",
            "http://100.100.100.200",
            "http://0xa9fea9fe/",
        ] {
            let refused = check(&all, url).unwrap_err();
            assert!(refused.contains("never called"), "{refused}");
        }
        assert_eq!(check(&all, "http://127.0.0.1"), Ok(()));
    }

    #[tokio::test]
    async fn the_service_and_its_database_are_refused_whatever_is_allowed() {
        let all = |listener: &str| {
            let own = OwnAddresses {
                listener: Some(listener.parse().unwrap()),
                database: vec![
                    ("localhost".to_owned(), 5432),
                    ("10.0.0.9".to_owned(), 6432),
                ],
            };
            policy(true, &["0.0.0.0/0"], own)
        };
        let one = all("127.0.0.1:8080");
        for url in [
            "http://127.0.0.1:8080",
            "http://[::ffff:127.0.0.1]:8080",
            "http://0.0.0.0:8080",
            "http://10.0.0.9:6432",
        ] {
            let refused = check(&one, url).unwrap_err();
            assert!(refused.contains("own"), "{refused}");
        }
        for url in [
            "http://127.0.0.1:8081",
            "http://10.0.0.9:8080",
            "http://10.0.0.9",
        ] {
            assert_eq!(check(&one, url), Ok(()), "{url}");
        }
        let loopback = "127.0.0.1".parse().unwrap();
        let database = one.gate("db", 5432).await.check(loopback);
        assert!(database.unwrap_err().to_string().contains("own database"));
        // An unspecified address covers the addresses of this machine and no others.
        let everywhere = all("0.0.0.0:8080");
        assert!(check(&everywhere, "http://127.0.0.5:8080").is_err());
        assert_eq!(check(&everywhere, "http://10.99.99.99:8080"), Ok(()));
    }
}
