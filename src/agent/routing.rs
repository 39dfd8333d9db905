//! Chooses the endpoint of an agent for an attempt: of those whose breaker lets it through, the one with the fewest calls
//! in flight.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use ::http::{HeaderValue, Uri};
use url::Url;

use super::{address::AddressPolicy, connections::OriginPool, http};
use crate::domain::{self, QueueAddress};

pub(super) struct RoutedEndpoint {
    pub url: String,
    /// Made once, not per try; or why it can never be called.
    pub way: Result<EndpointTarget, String>,
    /// A queue instead, to which requests are published.
    pub queue: Option<QueueAddress>,
    /// How many calls it may have under way; none while its breaker is open.
    allowed: Arc<AtomicU32>,
    /// Outlives this value when the agent's specification changes.
    under_way: Arc<AtomicU32>,
}

/// How an endpoint is reached.
#[derive(Clone)]
pub(super) struct EndpointTarget {
    pub base: Url,
    pub host: HeaderValue,
    pub connections: Arc<OriginPool>,
}

pub(super) struct Endpoints {
    all: Box<[RoutedEndpoint]>,
    /// Where the next search begins, so that idle endpoints take turns.
    turn: AtomicUsize,
}

impl Endpoints {
    /// `before` gives endpoints that remain their count of calls in flight, and their connections; `allowed` what
    /// limits that count.
    pub fn new(
        specs: &[domain::Endpoint],
        policy: &AddressPolicy,
        before: Option<&Endpoints>,
        allowed: impl Fn(&domain::Endpoint) -> Arc<AtomicU32>,
    ) -> Self {
        let all = specs.iter().map(|spec| {
            let known =
                before.and_then(|before| before.all.iter().find(|known| known.url == spec.url));
            RoutedEndpoint {
                url: spec.url.clone(),
                way: match known {
                    Some(known) => known.way.clone(),
                    None => way(&spec.url, policy),
                },
                queue: QueueAddress::parse(&spec.url).ok(),
                allowed: allowed(spec),
                under_way: known
                    .map(|known| Arc::clone(&known.under_way))
                    .unwrap_or_default(),
            }
        });
        Self {
            all: all.collect(),
            turn: AtomicUsize::new(0),
        }
    }

    /// `None` only if there is no endpoint at all. If every endpoint is full (its maximum was lowered while calls
    /// were in flight), the least loaded one takes the attempt: the bulkhead admitted it.
    pub fn lease(&self) -> Option<EndpointInUse<'_>> {
        let count = self.all.len();
        let start = match count {
            0 | 1 => 0,
            _ => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        loop {
            let (endpoint, load, _) = (0..count)
                .map(|i| &self.all[start.wrapping_add(i) % count])
                .map(|endpoint| {
                    let allowed = endpoint.allowed.load(Ordering::Relaxed);
                    (
                        endpoint,
                        endpoint.under_way.load(Ordering::Relaxed),
                        allowed,
                    )
                })
                .min_by_key(|(_, load, allowed)| (*allowed == 0, load >= allowed, *load))?;
            // Another attempt may have taken the slot since: then the choice is repeated.
            if endpoint
                .under_way
                .compare_exchange(load, load + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return Some(EndpointInUse(endpoint));
            }
        }
    }

    /// An endpoint with the origin of an address.
    pub fn lease_at(&self, address: &str) -> Option<EndpointInUse<'_>> {
        let origin = Url::parse(address).ok()?.origin();
        let is_there = |endpoint: &&RoutedEndpoint| {
            let way = endpoint.way.as_ref();
            way.is_ok_and(|way| way.base.origin() == origin)
        };
        let endpoint = self.all.iter().find(is_there)?;
        endpoint.under_way.fetch_add(1, Ordering::Relaxed);
        Some(EndpointInUse(endpoint))
    }
}

pub(super) fn way(url: &str, policy: &AddressPolicy) -> Result<EndpointTarget, String> {
    let base = base(url, policy)?;
    let origin = base.origin().ascii_serialization();
    let origin: Uri = origin
        .parse()
        .map_err(|error| format!("the endpoint {url:?} is not a URL: {error}"))?;
    Ok(EndpointTarget {
        host: http::host(&base)?,
        connections: OriginPool::to(origin),
        base,
    })
}

fn base(url: &str, policy: &AddressPolicy) -> Result<Url, String> {
    let parsed =
        Url::parse(url).map_err(|error| format!("the endpoint {url:?} is not a URL: {error}"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(format!(
            "the endpoint {url:?} is neither http:// nor https://"
        ));
    }
    policy
        .check_literal(&parsed)
        .map_err(|refusal| refusal.to_string())?;
    Ok(parsed)
}

/// One attempt in flight at an endpoint.
pub(super) struct EndpointInUse<'a>(&'a RoutedEndpoint);

impl std::ops::Deref for EndpointInUse<'_> {
    type Target = RoutedEndpoint;

    fn deref(&self) -> &RoutedEndpoint {
        self.0
    }
}

impl Drop for EndpointInUse<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unguarded(spec: &domain::Endpoint) -> Arc<AtomicU32> {
        Arc::new(AtomicU32::new(spec.max_in_flight))
    }

    fn specs(given: &[(&str, u32)]) -> Vec<domain::Endpoint> {
        given
            .iter()
            .map(|(url, max_in_flight)| domain::Endpoint {
                url: (*url).to_owned(),
                max_in_flight: *max_in_flight,
            })
            .collect()
    }

    fn urls(leases: &[EndpointInUse<'_>]) -> Vec<String> {
        let mut urls: Vec<_> = leases.iter().map(|lease| lease.url.clone()).collect();
        urls.sort();
        urls
    }

    #[test]
    fn the_endpoint_with_the_fewest_under_way_takes_the_try() {
        let endpoints = Endpoints::new(
            &specs(&[("http://a", 9), ("http://b", 9)]),
            &AddressPolicy::private_too(),
            None,
            unguarded,
        );
        let mut leases: Vec<_> = (0..4).filter_map(|_| endpoints.lease()).collect();
        assert_eq!(
            urls(&leases),
            ["http://a", "http://a", "http://b", "http://b"]
        );
        leases.retain(|lease| lease.url == "http://a");
        assert_eq!(endpoints.lease().unwrap().url, "http://b");
    }

    #[test]
    fn a_full_endpoint_is_passed_over() {
        let endpoints = Endpoints::new(
            &specs(&[("http://a", 1), ("http://b", 5)]),
            &AddressPolicy::private_too(),
            None,
            unguarded,
        );
        let leases: Vec<_> = (0..4).filter_map(|_| endpoints.lease()).collect();
        assert_eq!(
            urls(&leases),
            ["http://a", "http://b", "http://b", "http://b"]
        );
    }

    #[test]
    fn an_endpoint_with_an_open_breaker_is_taken_last() {
        let allowed = |spec: &domain::Endpoint| match &*spec.url {
            "http://a" => Arc::default(),
            _ => unguarded(spec),
        };
        let given = specs(&[("http://a", 9), ("http://b", 1)]);
        let endpoints = Endpoints::new(&given, &AddressPolicy::private_too(), None, allowed);
        let leases: Vec<_> = (0..3).filter_map(|_| endpoints.lease()).collect();
        assert_eq!(urls(&leases), ["http://b"; 3]);
    }

    #[test]
    fn an_endpoint_that_stays_keeps_its_count() {
        let before = Endpoints::new(
            &specs(&[("http://a", 9)]),
            &AddressPolicy::private_too(),
            None,
            unguarded,
        );
        let _busy = before.lease();
        let after = Endpoints::new(
            &specs(&[("http://a", 9), ("http://b", 9)]),
            &AddressPolicy::private_too(),
            Some(&before),
            unguarded,
        );
        assert_eq!(after.lease().unwrap().url, "http://b");
    }

    #[test]
    fn a_literal_inner_address_is_refused_in_every_spelling() {
        let policy = &AddressPolicy::default();
        for url in [
            "http://127.0.0.1:80",
            "http://0x7f.1",
            "http://2130706433",
            "http://[::1]:8080",
            "http://[::ffff:10.0.0.1]",
        ] {
            let refused = base(url, policy).expect_err(url);
            assert!(refused.contains("allow_private_addresses"), "{refused}");
        }
        assert!(base("http://1.1.1.1", policy).is_ok());
        assert!(base("ftp://1.1.1.1", policy).is_err());
    }
}
