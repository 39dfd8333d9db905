//! One agent: its specification, its capacity, the state of its endpoints, and the way its calls go.

use std::{sync::Arc, time::Duration};

use crate::agent::{
    guard::Guard,
    meters::{self, CallMetrics},
    queue::{
        capacity::{Bulkhead, CallSlot, Slot},
        rate::RateAction,
    },
    secret::access::AccessFault,
    transport::Transport,
};
use crate::{
    clock::{self, Instant},
    domain::{
        agent::{
            AdaptedLimit, AdaptiveLimit, AgentSpec, AgentStop, BreakerReport, DowntimeWindow,
            EndpointState, Pause, RecordSource, SlowStartLimit,
        },
        queue::{LaneRule, SlotGrant, SlotNeed},
        task::RetryBudgetUse,
        values::{AgentName, Timestamp},
    },
    store::ControlRecord,
};

/// One agent: its specification, its capacity and the way its calls go. After a change of the specification it is another
/// value, which has the capacity and the state of endpoints of the one before.
pub struct Agent {
    pub(super) name: AgentName,
    pub(super) spec: AgentSpec,
    pub(super) bulkhead: Arc<Bulkhead>,
    pub(super) guard: Arc<Guard>,
    pub(super) wire: Arc<Transport>,
    pub(super) lanes: Option<Arc<LaneRule>>,
}

impl Agent {
    /// Returns the rule that divides its queue into lanes, if it has one.
    pub fn lane_rule(&self) -> Option<&Arc<LaneRule>> {
        self.lanes.as_ref()
    }

    /// Returns the same agent, whose queue is divided by this rule.
    pub(super) fn divided(&self, lanes: &Arc<LaneRule>) -> Self {
        Self {
            name: self.name.clone(),
            spec: self.spec.clone(),
            bulkhead: Arc::clone(&self.bulkhead),
            guard: Arc::clone(&self.guard),
            wire: Arc::clone(&self.wire),
            lanes: Some(Arc::clone(lanes)),
        }
    }

    pub fn name(&self) -> &AgentName {
        &self.name
    }

    pub fn spec(&self) -> &AgentSpec {
        &self.spec
    }

    pub fn try_take(&self) -> Option<Slot> {
        self.bulkhead.try_take()
    }

    pub fn free(&self) -> usize {
        self.bulkhead.free()
    }

    /// Takes a slot, or makes a claim ahead of one.
    pub(super) fn try_claim(&self) -> Option<CallSlot> {
        let slot = self.bulkhead.try_take().map(CallSlot::Free);
        slot.or_else(|| self.bulkhead.try_claim_ahead().map(CallSlot::Ahead))
    }

    /// Returns the number of steps that may be claimed now.
    pub(super) fn claimable(&self) -> usize {
        self.free() + self.bulkhead.free_ahead()
    }

    /// Sets the number of its awaited replies to the count in the store.
    pub fn counted_open(&self, open: u32) {
        self.bulkhead.set_open_replies(open);
    }

    pub fn in_flight(&self) -> u32 {
        self.bulkhead.in_flight()
    }

    /// The limit on replies that are awaited, where it stops the next call.
    pub fn blocking_limit(&self) -> Option<u32> {
        self.bulkhead.blocking_limit()
    }

    pub(in crate::agent) fn wire(&self) -> &Transport {
        &self.wire
    }

    /// Returns the reason why it is not called, or `None` if it is called.
    pub fn stopped(&self) -> Option<AgentStop> {
        let stopped = self.guard.stop();
        let stopped = stopped.or_else(|| {
            self.secret_fault()
                .map(|fault| AgentStop::Secret(fault.message))
        });
        stopped.or_else(|| self.bulkhead.blocking_rate().map(AgentStop::Rate))
    }

    /// Returns true if this instance has the secrets that its requests need.
    pub(super) fn has_secrets(&self) -> bool {
        let access = self.wire.access.as_ref();
        access.is_none_or(|access| access.is_ready())
    }

    /// Returns the reason why this instance cannot make its requests, if a secret is missing or cannot be used.
    pub(super) fn secret_fault(&self) -> Option<AccessFault> {
        self.wire.access.as_ref()?.fault()
    }

    /// Comes before its secrets are taken again, so that the next claim finds the note.
    pub(super) fn note_secret_fault(&self) {
        if let Some(fault) = self.secret_fault()
            && !fault.is_unread
        {
            self.guard
                .note_secret_fault(fault.message, clock::instant());
        }
    }

    /// Returns its pause and its breakers, as this process knows them.
    pub fn control(&self) -> ControlRecord {
        self.guard.record()
    }

    /// Returns true if its workers may get no steps.
    pub fn is_paused(&self) -> bool {
        self.guard.is_paused()
    }

    /// Returns the current pause, by an operator or in a window of downtime.
    pub fn pause(&self) -> Option<Pause> {
        self.guard.pause()
    }

    /// Returns when the current window of downtime ends, or the next one begins.
    pub fn window_changes_at(&self) -> Option<Timestamp> {
        self.guard.window_changes_at()
    }

    pub fn next_windows(&self, now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.guard.next_windows(now, most)
    }

    /// Returns true while no call is made because the service asked for that.
    pub fn is_throttled(&self) -> bool {
        self.guard.is_throttled()
    }

    /// Applies the pause and the breakers of the record.
    pub fn take_control(&self, record: ControlRecord, now: Timestamp, source: RecordSource<'_>) {
        self.guard.take(record, now, source);
    }

    /// Returns the version of the record for which a report of an endpoint counts; `None` if it has been overtaken.
    pub fn counts_for(&self, report: &BreakerReport) -> Option<u64> {
        self.guard.counts_for(report)
    }

    /// Returns the way to get the calls that its rate has kept from beginning since the previous look, or `None` if
    /// there were none.
    pub fn take_want(&self) -> Option<RateAction> {
        self.bulkhead.rate.take_want(clock::instant())
    }

    /// Reports that no call was granted, and that one is available after `next_in`. Returns the time after which a
    /// grant should be requested again.
    pub fn want_again(&self, next_in: Duration) -> Duration {
        self.bulkhead.rate.want_again(next_in)
    }

    /// Adds `calls` to the calls that may begin, and announces free capacity. `calls` is 0 if the instance's own bucket
    /// has filled.
    pub fn granted(&self, calls: u32) {
        self.bulkhead.rate.granted(calls, clock::instant());
        self.bulkhead.announce();
    }

    /// Returns the slots to request from the record, or `None` if the record need hold nothing.
    pub fn take_slot_need(&self) -> Option<SlotNeed> {
        let now = clock::instant();
        self.bulkhead.slots.take_need(self.in_flight(), now)
    }

    /// Lets no call begin beyond `slots` calls in flight. Returns the number of slots that this process cannot give
    /// back.
    pub fn cap_slots(&self, slots: u32) -> u32 {
        let capped = self.bulkhead.slots.cap(slots);
        capped.max(self.in_flight())
    }

    /// Reports that the request for slots failed; it is made again.
    pub fn ask_for_slots_again(&self) {
        self.bulkhead.slots.ask_again();
    }

    /// So many calls may be in flight until then.
    pub fn grant_slots(&self, grant: SlotGrant, wanted: u32, valid_until: Instant) {
        meters::show_slots(&self.name, grant.slots);
        if self.bulkhead.slots.granted(grant, wanted, valid_until) {
            self.bulkhead.announce();
        }
    }

    /// The state of each of its endpoints, and how many calls of this process are in flight there.
    pub fn endpoints(&self) -> Vec<(EndpointState, u32)> {
        let states = self.guard.endpoint_states();
        let mut loads = self.wire.endpoints.in_flight();
        // The specification may be just changing.
        let load = |_: &EndpointState| loads.next().unwrap_or_default();
        let loads: Vec<_> = states.iter().map(load).collect();
        states.into_iter().zip(loads).collect()
    }

    /// Returns the adaptive limit on the calls in flight of each of its endpoints; `None` if it is not adaptive.
    pub fn limits(&self) -> Option<Vec<AdaptiveLimit>> {
        self.guard.limits()
    }

    /// Returns, for each endpoint, the limit on its calls in flight if it has just recovered.
    pub fn slow_starts(&self) -> Vec<Option<u32>> {
        self.guard.slow_starts()
    }

    /// Returns the limit that stops the next call, if endpoints have just recovered and no other limit stops it.
    pub fn slow_start_limit(&self) -> Option<SlowStartLimit> {
        self.guard.slow_start_limit()
    }

    /// Its retries of late, if they have a budget.
    pub fn retry_budget(&self) -> Option<RetryBudgetUse> {
        self.wire.budget.as_ref().map(|budget| budget.in_use())
    }

    /// The limit that keeps its calls from beginning, if it is adaptive.
    pub fn adapted_limit(&self) -> Option<AdaptedLimit> {
        self.guard.adapted_limit()
    }

    /// Its pause may have ended, or an endpoint is called again.
    pub fn look_at(&self, now: Timestamp) {
        self.guard.look_at(now);
    }

    pub(in crate::agent) fn meters(&self) -> &CallMetrics {
        &self.wire.meters
    }
}
