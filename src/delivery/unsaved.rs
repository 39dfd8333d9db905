//! The results of completed attempts, until a transaction has saved them.

use std::collections::{HashMap, HashSet};

use super::attempt::CompletedAttempt;
use crate::{
    domain::{
        message::{DeliveryPolicy, DestinationFailure, DestinationResponse},
        values::Destination,
    },
    store::{BacklogExpiry, ClaimRequest, QueueClaim, QueueRelease},
};

#[derive(Clone, Default)]
pub struct UnsavedResults {
    releases: Vec<QueueRelease>,
    failures: HashMap<Destination, DestinationFailure>,
    recovered: HashSet<Destination>,
    cancelled_probes: HashSet<Destination>,
    expiries: Vec<BacklogExpiry>,
}

impl UnsavedResults {
    /// Records the result of an attempt for its destination.
    pub fn record(&mut self, completed: &CompletedAttempt) {
        let claim = &completed.release.claim;
        if completed.response.is_answer() {
            // A response has priority over a failure at the same moment.
            if self.failures.remove(&claim.destination).is_some() || claim.is_probe {
                self.recovered.insert(claim.destination.clone());
            }
            return;
        }
        match (completed.response, &completed.failure) {
            (DestinationResponse::Failed, Some(failure))
                if !self.recovered.contains(&claim.destination) =>
            {
                let known = self.failures.get(&claim.destination);
                if known.is_none_or(|known| known.began <= failure.began) {
                    let failure = failure.clone();
                    self.failures.insert(claim.destination.clone(), failure);
                }
            }
            _ if claim.is_probe => self.cancel_probe(claim),
            _ => {}
        }
    }

    pub fn release(&mut self, release: QueueRelease) {
        self.releases.push(release);
    }

    /// Withdraws a probe that was not sent, so that another instance may send one.
    pub fn cancel_probe(&mut self, probe: &QueueClaim) {
        self.cancelled_probes.insert(probe.destination.clone());
    }

    pub fn expire_more(&mut self, expiry: BacklogExpiry) {
        self.expiries.push(expiry);
    }

    pub fn has_releases_or_expiries(&self) -> bool {
        !self.releases.is_empty() || !self.expiries.is_empty()
    }

    /// Takes the results back after the transaction has failed. The next one saves them.
    pub fn restore(&mut self, request: ClaimRequest) {
        self.releases.extend(request.releases);
        let failures = request.failures.into_iter();
        self.failures
            .extend(failures.map(|failure| (failure.destination.clone(), failure)));
        self.recovered.extend(request.recovered);
        self.cancelled_probes.extend(request.cancelled_probes);
        self.expiries.extend(request.expiries);
    }

    pub fn into_request(self, policy: DeliveryPolicy) -> ClaimRequest {
        ClaimRequest {
            releases: self.releases,
            failures: self.failures.into_values().collect(),
            recovered: self.recovered.into_iter().collect(),
            cancelled_probes: self.cancelled_probes.into_iter().collect(),
            expiries: self.expiries,
            policy,
            ..ClaimRequest::default()
        }
    }
}
