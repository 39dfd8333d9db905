//! Chooses the endpoint of an agent for an attempt: the better one of two with room whose breakers allow calls.
//! Endpoints in the zone of this instance come first.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use ::http::{HeaderValue, Uri};
use parking_lot::Mutex;
use url::Url;

use super::client::{address::AddressPolicy, connections::OriginPool, http};
use crate::{
    chance,
    clock::{self, Instant},
    domain::{
        self,
        agent::{Candidate, Latency},
        values::QueueAddress,
    },
};

pub(super) struct RoutedEndpoint {
    pub url: String,
    /// The target, which is made once and not for each attempt; or the reason why the endpoint can never be called.
    pub target: Result<EndpointTarget, String>,
    /// True if the endpoint is in the zone of this instance.
    is_near: bool,
    /// The queue that requests are published to, if the endpoint is a queue.
    pub queue: Option<QueueAddress>,
    /// The most calls that may be in flight; 0 while the breaker is open.
    allowed: Arc<AtomicU32>,
    /// The number of calls in flight. The counter is kept when the agent's specification changes.
    in_flight: Arc<AtomicU32>,
    /// The recent latencies, which are kept when the agent's specification changes.
    latency: Arc<Mutex<Latency>>,
}

impl RoutedEndpoint {
    fn has_room(&self, load: u32) -> bool {
        load < self.allowed.load(Ordering::Relaxed)
    }

    fn fails_mostly(&self, now: u64) -> bool {
        self.latency.lock().fails_mostly(now)
    }

    fn candidate(&self, load: u32) -> Candidate {
        let latency = *self.latency.lock();
        Candidate { load, latency }
    }
}

/// The data to reach an endpoint.
#[derive(Clone)]
pub(super) struct EndpointTarget {
    pub base: Url,
    pub host: HeaderValue,
    pub connections: Arc<OriginPool>,
}

pub(super) struct Endpoints {
    all: Box<[RoutedEndpoint]>,
    /// The index at which the next search begins, so that idle endpoints take turns.
    next_start: AtomicUsize,
    /// True if some endpoints are in the zone of this instance and others are not.
    has_zones: bool,
    /// The instant from which latencies measure time.
    start: Instant,
}

impl Endpoints {
    /// `before` is the previous list: endpoints that remain keep their number of calls in flight, and their
    /// connections. `allowed` returns the limit for that number. `zone` is that of this instance.
    pub fn new(
        specs: &[domain::agent::Endpoint],
        policy: &AddressPolicy,
        zone: Option<&str>,
        before: Option<&Endpoints>,
        allowed: impl Fn(&domain::agent::Endpoint) -> Arc<AtomicU32>,
    ) -> Self {
        let all = specs.iter().map(|spec| {
            let known =
                before.and_then(|before| before.all.iter().find(|known| known.url == spec.url));
            RoutedEndpoint {
                url: spec.url.clone(),
                target: match known {
                    Some(known) => known.target.clone(),
                    None => endpoint_target(&spec.url, policy),
                },
                is_near: zone.is_some() && spec.zone.as_deref() == zone,
                queue: QueueAddress::parse(&spec.url).ok(),
                allowed: allowed(spec),
                in_flight: known
                    .map(|known| Arc::clone(&known.in_flight))
                    .unwrap_or_default(),
                latency: known
                    .map(|known| Arc::clone(&known.latency))
                    .unwrap_or_default(),
            }
        });
        let all: Box<[_]> = all.collect();
        let near = all.iter().filter(|endpoint| endpoint.is_near).count();
        Self {
            has_zones: (1..all.len()).contains(&near),
            all,
            next_start: AtomicUsize::new(0),
            start: before.map_or_else(clock::instant, |before| before.start),
        }
    }

    /// Returns `None` only if there is no endpoint at all. If every endpoint is full, because its maximum was lowered
    /// while calls were in flight, the least loaded one gets the attempt, which the bulkhead has admitted.
    pub fn lease(&self) -> Option<EndpointInUse<'_>> {
        loop {
            let (endpoint, load) = self.choose()?;
            // Another attempt may have taken the slot in the meantime; the choice is repeated in this case.
            if endpoint
                .in_flight
                .compare_exchange(load, load + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return Some(self.in_use(endpoint));
            }
        }
    }

    fn choose(&self) -> Option<(&RoutedEndpoint, u32)> {
        let count = self.all.len();
        if count < 2 {
            let only = self.all.first()?;
            return Some((only, only.in_flight.load(Ordering::Relaxed)));
        }
        let start = self.next_start.fetch_add(1, Ordering::Relaxed);
        let others = (0..count).map(|i| &self.all[start.wrapping_add(i) % count]);
        let loaded = others.map(|endpoint| (endpoint, endpoint.in_flight.load(Ordering::Relaxed)));
        let now = self.millis();
        // A failing endpoint of this zone is not preferred to endpoints of other zones.
        let is_near = |endpoint: &RoutedEndpoint, load| {
            endpoint.is_near && endpoint.has_room(load) && !endpoint.fails_mostly(now)
        };
        let near_only = self.has_zones
            && loaded
                .clone()
                .any(|(endpoint, load)| is_near(endpoint, load));
        let mut able = loaded.clone().filter(|(endpoint, load)| match near_only {
            true => is_near(endpoint, *load),
            false => endpoint.has_room(*load),
        });
        let Some(first) = able.next() else {
            let is_open = |endpoint: &RoutedEndpoint| endpoint.allowed.load(Ordering::Relaxed) > 0;
            return loaded.min_by_key(|(endpoint, load)| (!is_open(endpoint), *load));
        };
        // The second candidate is random, so that not all instances choose the same endpoint.
        let rest: Vec<_> = able.collect();
        let Some(second) = rest.get(chance::random_range(0..rest.len().max(1))) else {
            return Some(first);
        };
        let [a, b] = [first, *second].map(|(endpoint, load)| endpoint.candidate(load));
        Some(if b.is_better(a, now) { *second } else { first })
    }

    /// Returns the number of calls in flight of each endpoint.
    pub fn in_flight(&self) -> impl Iterator<Item = u32> {
        let all = self.all.iter();
        all.map(|endpoint| endpoint.in_flight.load(Ordering::Relaxed))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn in_use<'a>(&'a self, endpoint: &'a RoutedEndpoint) -> EndpointInUse<'a> {
        EndpointInUse {
            endpoint,
            // A single endpoint needs no latency, because it is compared with no other.
            compared: (self.all.len() > 1).then(|| (self, clock::instant())),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Returns the endpoint with this URL.
    pub fn at(&self, url: &str) -> Option<&RoutedEndpoint> {
        self.all.iter().find(|endpoint| endpoint.url == url)
    }

    /// Returns an endpoint with the origin of an address.
    pub fn lease_at(&self, address: &str) -> Option<EndpointInUse<'_>> {
        let origin = Url::parse(address).ok()?.origin();
        let is_there = |endpoint: &&RoutedEndpoint| {
            let way = endpoint.target.as_ref();
            way.is_ok_and(|way| way.base.origin() == origin)
        };
        let endpoint = self.all.iter().find(is_there)?;
        endpoint.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(self.in_use(endpoint))
    }
}

pub(super) fn endpoint_target(url: &str, policy: &AddressPolicy) -> Result<EndpointTarget, String> {
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
pub(super) struct EndpointInUse<'a> {
    endpoint: &'a RoutedEndpoint,
    /// The begin of the attempt, if the agent has several endpoints.
    compared: Option<(&'a Endpoints, Instant)>,
    has_failed: AtomicBool,
}

impl EndpointInUse<'_> {
    /// Marks the attempt as failed, so that a fast failure does not count as a good latency.
    pub fn failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }
}

impl std::ops::Deref for EndpointInUse<'_> {
    type Target = RoutedEndpoint;

    fn deref(&self) -> &RoutedEndpoint {
        self.endpoint
    }
}

impl Drop for EndpointInUse<'_> {
    fn drop(&mut self) {
        self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some((all, since)) = self.compared {
            let (now, failed) = (all.millis(), *self.has_failed.get_mut());
            let mut latency = self.endpoint.latency.lock();
            latency.add(now, since.elapsed(), failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unguarded(spec: &domain::agent::Endpoint) -> Arc<AtomicU32> {
        Arc::new(AtomicU32::new(spec.max_in_flight))
    }

    fn specs(given: &[(&str, u32)]) -> Vec<domain::agent::Endpoint> {
        given
            .iter()
            .map(|(url, max_in_flight)| domain::agent::Endpoint {
                url: (*url).to_owned(),
                max_in_flight: *max_in_flight,
                zone: None,
                drain: false,
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
    fn one_that_fails_at_once_does_not_draw_all_calls() {
        let given = specs(&[("http://a", 99), ("http://b", 99), ("http://c", 99)]);
        let endpoints =
            Endpoints::new(&given, &AddressPolicy::private_too(), None, None, unguarded);
        let mut busy = Vec::new();
        let mut failed = 0;
        for _ in 0..40 {
            let lease = endpoints.lease().unwrap();
            if lease.url == "http://a" {
                lease.failed();
                failed += 1;
            } else {
                busy.push(lease);
            }
        }
        assert!(failed <= 3, "{failed} of 40");
    }

    #[test]
    fn a_full_endpoint_is_passed_over() {
        let endpoints = Endpoints::new(
            &specs(&[("http://a", 1), ("http://b", 5)]),
            &AddressPolicy::private_too(),
            None,
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
        let allowed = |spec: &domain::agent::Endpoint| match &*spec.url {
            "http://a" => Arc::default(),
            _ => unguarded(spec),
        };
        let given = specs(&[("http://a", 9), ("http://b", 1)]);
        let endpoints = Endpoints::new(&given, &AddressPolicy::private_too(), None, None, allowed);
        let leases: Vec<_> = (0..3).filter_map(|_| endpoints.lease()).collect();
        assert_eq!(urls(&leases), ["http://b"; 3]);
    }

    #[test]
    fn the_own_zone_comes_first_while_it_has_room() {
        let mut given = specs(&[("http://a", 9), ("http://b", 2), ("http://c", 9)]);
        for (spec, zone) in given.iter_mut().zip(["east", "west", "east"]) {
            spec.zone = Some(zone.to_owned());
        }
        let policy = &AddressPolicy::private_too();
        let here = |zone| Endpoints::new(&given, policy, zone, None, unguarded);
        let west = here(Some("west"));
        let mut leases: Vec<_> = (0..2).filter_map(|_| west.lease()).collect();
        assert_eq!(urls(&leases), ["http://b"; 2]);
        leases.push(west.lease().unwrap());
        assert_ne!(leases[2].url, "http://b", "it is full");
        leases[0].failed();
        leases.remove(0);
        assert_ne!(west.lease().unwrap().url, "http://b", "it fails");
        for zone in [None, Some("north")] {
            let all = here(zone);
            let leases: Vec<_> = (0..3).filter_map(|_| all.lease()).collect();
            assert_eq!(urls(&leases), ["http://a", "http://b", "http://c"]);
        }
    }

    #[test]
    fn an_endpoint_that_stays_keeps_its_count() {
        let before = Endpoints::new(
            &specs(&[("http://a", 9)]),
            &AddressPolicy::private_too(),
            None,
            None,
            unguarded,
        );
        let _busy = before.lease();
        let after = Endpoints::new(
            &specs(&[("http://a", 9), ("http://b", 9)]),
            &AddressPolicy::private_too(),
            None,
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
