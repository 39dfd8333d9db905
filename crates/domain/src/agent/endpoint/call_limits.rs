//! The limits that an agent's endpoints have besides their slots, as the API shows them: slow start and adaptive concurrency.

use super::agent_guard::AgentGuard;
use crate::agent::{
    adaptive::{AdaptedLimit, AdaptiveLimit},
    breaker::SlowStartLimit,
};

impl AgentGuard {
    /// The limit of each endpoint, as it is listed in the specification; `None` if the agent is not adaptive.
    pub fn limits(&self) -> Option<Vec<AdaptiveLimit>> {
        self.spec().adaptive.as_ref()?;
        let limits = self.endpoints().iter();
        let limits = limits.filter_map(|endpoint| endpoint.adaptive.clone());
        Some(limits.collect())
    }

    /// Returns, for each endpoint in the order of the specification, the number of calls that it may get if it has just
    /// recovered.
    pub fn slow_starts(&self) -> Vec<Option<u32>> {
        let canaries = self.canaries();
        let endpoints = self.endpoints().iter();
        endpoints
            .map(|endpoint| endpoint.slow_start(canaries))
            .collect()
    }

    /// The limit that keeps calls from beginning, if endpoints have just recovered and nothing else does. `slots` is the
    /// most calls that this instance may have in flight otherwise.
    pub fn slow_start_limit(&self, slots: u32) -> Option<SlowStartLimit> {
        let canaries = self.canaries();
        let open = self.endpoints().iter();
        let open = open.filter(|endpoint| endpoint.phase.takes_calls());
        if !open
            .clone()
            .any(|endpoint| endpoint.slow_start(canaries).is_some())
        {
            return None;
        }
        let limit = open.clone().map(|endpoint| endpoint.most(canaries));
        let limit = limit.fold(0u32, u32::saturating_add);
        let most = open.map(|endpoint| endpoint.spec.max_in_flight);
        let most = most.fold(0u32, u32::saturating_add);
        (limit < most && limit <= slots).then_some(SlowStartLimit { limit, most })
    }

    /// The limit that keeps calls from beginning, if the agent is adaptive and nothing else does. `slots` is the most calls
    /// that this instance may have in flight otherwise.
    pub fn adapted_limit(&self, slots: u32) -> Option<AdaptedLimit> {
        self.spec().adaptive.as_ref()?;
        let open = self.endpoints().iter();
        let open = open.filter(|endpoint| endpoint.phase.takes_calls());
        let open = open.filter_map(|endpoint| Some((endpoint, endpoint.adaptive.as_ref()?)));
        let sum = |sum: u32, more: u32| sum.saturating_add(more);
        let limit = open.clone().map(|(_, known)| known.limit()).fold(0, sum);
        let most = open.clone().map(|(_, known)| known.most()).fold(0, sum);
        if limit >= most || slots < limit {
            return None;
        }
        let fallen = open.filter_map(|(endpoint, known)| Some((endpoint, known, known.reason()?)));
        let lowest = fallen.min_by_key(|(_, known, _)| known.limit());
        Some(AdaptedLimit {
            limit,
            most,
            message: lowest.map(|(endpoint, _, reason)| match self.endpoints().len() {
                1 => reason.to_owned(),
                _ => format!("{} {reason}", endpoint.url()),
            }),
        })
    }
}
