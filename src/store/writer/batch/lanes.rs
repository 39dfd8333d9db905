//! Claims from queues that are divided into lanes. The record says which steps run and which lane has the next turn.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    BatchDraft,
    load::{Queues, damaged},
};
use crate::{
    domain::{
        queue::{LaneRule, LaneTurn, LimitedKey, RateBucket, StepKey, StepLane, StepRoom},
        task::{StepStatus, Task},
        values::{AgentName, StepIndex, StepRef, Timestamp},
    },
    store::{
        LocalScheduler, StoreError, Transaction,
        batch::TaskChange,
        queue::{lanes::may_begin, step_limits::rate_key},
        writer::{Halted, known_queues::KnownQueues},
    },
};

/// The number of lanes that are read from the record at once.
const LANES: usize = 128;
/// The most lanes from which one transaction claims.
const MOST_LANES: usize = 64;
/// The most steps without a lane, or in a lane of an earlier rule, that are moved at once.
const MOST_MOVED: usize = 256;
/// The lanes from which another instance is claiming are read again after this time.
const LOCKED_AGAIN: Duration = Duration::from_millis(10);
/// The shortest wait before the lanes of keys that have reached their rate are read again.
const RATE_AGAIN: Duration = Duration::from_millis(20);

/// The result of a batch for the lanes of queues.
#[derive(Default)]
pub(in crate::store::writer) struct LaneClaims {
    visits: Vec<LaneVisit>,
    /// The lane in which each step was found.
    planned: HashMap<StepRef, PlannedLane>,
    /// Steps that belong to another lane than the one in which they were found.
    moves: Vec<(StepRef, AgentName, String)>,
    /// The wait after which the lanes that had to be left alone are read again.
    again_in: Option<Duration>,
    /// The steps that may still begin by the limits of workflows, for all agents.
    step_room: StepRoom,
    /// The token buckets of the keys of workflows, by the workflow and the id of the key.
    step_rates: HashMap<(String, String), RateBucket>,
    /// The workflows whose steps this batch counts, each with whether this instance has the lock to do so.
    locked: BTreeMap<String, bool>,
    /// True if the record is read from its beginning. Rates and counts that have no effect any more are deleted then.
    is_pass: bool,
    /// The agents in whose queues steps were found that may be claimed only from lanes.
    by_lanes: HashSet<AgentName>,
}

struct PlannedLane {
    visit: usize,
    lane: Arc<str>,
    is_claimed: bool,
}

/// One visit to the lanes of an agent.
struct LaneVisit {
    agent: AgentName,
    rule: Arc<LaneRule>,
    turns: Vec<VisitedLane>,
    buckets: HashMap<LimitedKey, RateBucket>,
}

struct VisitedLane {
    turn: LaneTurn,
    had: u32,
    /// True if the lane may contain more steps that may begin.
    has_more: bool,
    /// No step of the lane may begin until a step of one of these keys ends.
    waits_for: Vec<StepKey>,
}

impl LaneClaims {
    /// Returns whether the step may be claimed from the lane in which it was found. If it belongs to another lane, it
    /// is moved there.
    pub fn allows(&mut self, step: StepRef, agent: &AgentName, task: &Task) -> bool {
        let Some(planned) = self.planned.get(&step) else {
            return true;
        };
        let Some(visit) = self.visits.get(planned.visit) else {
            return true;
        };
        // A cached task may be older than its steps in the queue. The claim finds that out.
        if !task.has_step(step.step) {
            return true;
        }
        let lane = visit.rule.lane(task, step.step);
        if *lane == *planned.lane {
            return true;
        }
        self.moves.push((step, agent.clone(), lane));
        false
    }

    /// Returns whether the step was found in a queue when the record was read in this batch.
    pub fn has_found(&self, step: StepRef) -> bool {
        self.planned.contains_key(&step)
    }

    /// Returns whether the step may be claimed only from a lane, and was found elsewhere.
    pub fn needs_lane(&self, step: StepRef, task: &Task) -> bool {
        task.has_step_limits()
            && !self.planned.contains_key(&step)
            && task.has_step(step.step)
            && task.step(step.step).status() == StepStatus::Pending
    }

    /// The next claim from the queue of this agent reads it by lanes.
    pub fn read_by_lanes(&mut self, agent: &AgentName) {
        self.by_lanes.insert(agent.clone());
    }

    pub fn is_to_be_read(&self, agent: &AgentName) -> bool {
        self.by_lanes.contains(agent)
    }

    pub fn claimed(&mut self, step: StepRef) {
        if let Some(planned) = self.planned.get_mut(&step) {
            planned.is_claimed = true;
        }
    }

    fn wait(&mut self, wait: Duration) {
        self.again_in = Some(self.again_in.map_or(wait, |other| other.min(wait)));
    }

    /// Returns whether steps were moved to other lanes, from which they may be claimed now.
    pub fn has_moved(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Saves how much of the rates of keys the claims have used, and the lanes of the steps that were moved.
    pub async fn save(&self, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
        for (step, _, lane) in &self.moves {
            tx.move_to_lane(*step, lane).await?;
        }
        let now = nanos(tx.now());
        for (at, visit) in self.visits.iter().enumerate() {
            let mut used: HashMap<LimitedKey, u32> = HashMap::new();
            let claimed = self.planned.values();
            for planned in claimed.filter(|planned| planned.visit == at && planned.is_claimed) {
                for key in visit.rule.limited(&planned.lane) {
                    *used.entry(key).or_default() += 1;
                }
            }
            for (key, calls) in used {
                let limit = visit.rule.limit(&key).and_then(|limit| limit.rate_limit());
                let Some(limit) = limit else { continue };
                let known = visit.buckets.get(&key).copied();
                let mut bucket = known.unwrap_or(RateBucket(now));
                bucket.take(&limit, now, calls);
                tx.set_key_rate(&visit.agent, &key, bucket).await?;
            }
        }
        self.save_steps(now, tx).await
    }

    /// Saves how much of the limits of workflows the claims have used.
    async fn save_steps(&self, now: i64, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
        if self.locked.is_empty() {
            return Ok(());
        }
        let mut rates = self.step_rates.clone();
        let mut used = HashSet::new();
        for (step, planned) in self
            .planned
            .iter()
            .filter(|(_, planned)| planned.is_claimed)
        {
            let Some(StepLane { workflow, keys }) = StepLane::of(&planned.lane) else {
                continue;
            };
            for key in keys {
                if key.max_in_flight.is_some() {
                    tx.add_limited_step(&key.id, *step).await?;
                }
                if let Some(limit) = key.rate {
                    let of = (workflow.clone(), key.id);
                    let bucket = rates.entry(of.clone()).or_insert(RateBucket(now));
                    bucket.take(&limit, now, 1);
                    used.insert(of);
                }
            }
        }
        for of in used {
            let (scope, key) = (StepLane::scope(&of.0), rate_key(&of.1));
            let bucket = rates.get(&of).copied().unwrap_or(RateBucket(now));
            tx.set_key_rate(&scope, &key, bucket).await?;
        }
        Ok(())
    }

    /// Updates the state of this process after the commit.
    pub fn publish(&mut self, queues: &KnownQueues, local: &dyn LocalScheduler) {
        for (at, visit) in self.visits.drain(..).enumerate() {
            let mut claimed: HashMap<&str, u32> = HashMap::new();
            for planned in self.planned.values().filter(|planned| planned.visit == at) {
                *claimed.entry(&planned.lane).or_default() += u32::from(planned.is_claimed);
            }
            let is_plain = queues.with_lanes(&visit.agent, |ring| {
                for VisitedLane {
                    turn,
                    had,
                    has_more,
                    ..
                } in &visit.turns
                {
                    let claimed = claimed.get(&*turn.lane).copied().unwrap_or(0);
                    ring.finish_turn(turn.clone(), claimed, *has_more || claimed < *had);
                }
                ring.is_plain()
            });
            for VisitedLane {
                turn, waits_for, ..
            } in &visit.turns
            {
                queues.wait_for_keys(&visit.agent, &turn.lane, waits_for);
            }
            if is_plain {
                queues.unlimit(&visit.agent);
            }
        }
        for agent in self.by_lanes.drain() {
            queues.limit(&agent);
        }
        for (_, agent, lane) in self.moves.drain(..) {
            queues.with_lanes(&agent, |ring| ring.add(&lane));
        }
        if let Some(wait) = self.again_in.take() {
            local.claim_later(wait);
        }
    }
}

/// Returns the lanes of these steps of a task, as far as the queues of their agents are divided.
pub(super) fn lanes_of(
    task: &Task,
    steps: &[StepIndex],
    local: &dyn LocalScheduler,
) -> Vec<(StepIndex, String)> {
    let is_limited = task.has_step_limits();
    if !is_limited && !local.has_lanes() {
        return Vec::new();
    }
    let lanes = steps.iter().filter_map(|step| {
        let rule = local.lane_rule(task.definition(*step).agent()?);
        let rule = rule.or_else(|| is_limited.then(|| LaneRule::undivided().into()))?;
        Some((*step, rule.lane(task, *step)))
    });
    lanes.collect()
}

impl BatchDraft {
    /// Plans claims from the lanes of a queue.
    pub(super) async fn read_lanes(
        &mut self,
        agent: &AgentName,
        rule: Arc<LaneRule>,
        queues: &Queues<'_, '_>,
        tx: &mut Transaction<'_>,
        local: &dyn LocalScheduler,
    ) -> Result<(), Halted> {
        if self.left_out.queues.contains(agent) {
            return Ok(());
        }
        let free = local.free_slots(agent);
        let Some(read) = self.claims.read(agent, free, 0) else {
            return Ok(());
        };
        if rule.has_limits() && !tx.lock_lanes(agent).await? {
            self.lanes.wait(LOCKED_AGAIN);
            return Ok(());
        }
        let reads = queues.heads.with_lanes(agent, |ring| {
            ring.reads().map(|after| after.map(str::to_owned))
        });
        if let Some(after) = reads {
            let found = tx.lanes(agent, after.as_deref(), LANES).await;
            let found = found.map_err(|error| damaged(error, agent))?;
            queues.heads.with_lanes(agent, |ring| {
                ring.add_from_record(&found, LANES);
                if after.is_some() && rule.is_lane("") {
                    // Steps without a lane would otherwise be found only after all others.
                    ring.add("");
                }
            });
            if after.is_none() && rule.has_limits() {
                tx.forget_key_rates(agent).await?;
            }
            self.lanes.is_pass |= after.is_none();
        }
        let (turns, is_empty) = queues.heads.with_lanes(agent, |ring| {
            let turns = ring.next(read.limit.min(MOST_LANES), |lane| rule.weight(lane));
            // Lanes without a step that may begin leave room for others.
            self.is_unread |= ring.has_more_than(turns.len());
            (turns, ring.is_empty())
        });
        if turns.is_empty() {
            self.claims.add_in_lanes(agent, Vec::new(), is_empty);
            return Ok(());
        }
        let keys: Vec<_> = turns
            .iter()
            .flat_map(|turn| rule.limited(&turn.lane))
            .collect();
        let buckets = match rule.has_rates() {
            true => key_rates(agent, &rule, &keys, tx).await?,
            false => HashMap::new(),
        };
        let limits = keys.iter().filter_map(|key| Some((key, rule.limit(key)?)));
        let (begin, next_in) = may_begin(limits, &buckets, nanos(tx.now()));
        if let Some(wait) = next_in {
            let wait = Duration::from_nanos(wait.unsigned_abs());
            self.lanes.wait(wait.max(RATE_AGAIN));
        }
        let lanes = turns.iter().map(|turn| &*turn.lane);
        let running = match rule.has_slots() {
            true => {
                tx.running_in_lanes(agent, rule.counted(lanes).as_deref())
                    .await?
            }
            false => HashMap::new(),
        };
        let room = rule.room(&turns, &running, &begin);
        let limited = self.read_step_limits(&turns, tx).await?;
        let shares = rule.shares(read.limit, &turns, room, &mut self.lanes.step_room);
        let wanted = turns.iter().zip(&shares).map(|(turn, share)| {
            let most = match rule.is_lane(&turn.lane) {
                true => share.unwrap_or_default(),
                false => MOST_MOVED,
            };
            (turn.lane.clone(), most)
        });
        let wanted: Vec<_> = wanted.filter(|(_, most)| *most > 0).collect();
        // Steps of tasks that the loops leave alone must not use the turns of others.
        let resting = self.faults.len();
        let read = wanted
            .iter()
            .map(|(lane, most)| (lane.clone(), most + resting));
        let heads = tx.lane_heads(agent, &read.collect::<Vec<_>>()).await;
        let heads = heads.map_err(|error| damaged(error, agent))?;
        let visit = self.lanes.visits.len();
        let mut steps = Vec::new();
        let mut found = HashMap::new();
        for (head, (lane, most)) in heads.into_iter().zip(&wanted) {
            let mut of_lane = head.steps;
            of_lane.retain(|queued| !self.faults.rests(queued.step.task));
            of_lane.truncate(*most);
            found.insert(lane.clone(), (of_lane.len(), of_lane.len() == *most));
            if rule.is_lane(lane) {
                // Lanes of the next agent may use the room that this lane does not need.
                let unused = most.saturating_sub(of_lane.len());
                self.lanes.step_room.give_back(lane, unused as u32);
            }
            for queued in of_lane {
                let planned = PlannedLane {
                    visit,
                    lane: lane.clone(),
                    is_claimed: false,
                };
                self.lanes.planned.insert(queued.step, planned);
                steps.push(queued.rank());
            }
        }
        let has_room = |lane: &str| self.lanes.step_room.of(lane) != Some(0);
        let mut waits_for: HashMap<Arc<str>, Vec<StepKey>> = HashMap::new();
        for (lane, StepLane { keys, .. }) in limited {
            if !found.contains_key(&lane) && !has_room(&lane) {
                waits_for.insert(lane, keys);
            }
        }
        // A lane for which no slot was left keeps its turn: it is among the first when the next slot is free.
        let had_turn = turns
            .into_iter()
            .zip(shares)
            .filter(|(turn, share)| share.is_some() || found.contains_key(&turn.lane));
        let turns = had_turn.map(|(turn, _)| {
            let (had, is_full) = found.get(&turn.lane).copied().unwrap_or_default();
            VisitedLane {
                waits_for: waits_for.remove(&turn.lane).unwrap_or_default(),
                turn,
                had: had as u32,
                has_more: is_full,
            }
        });
        self.lanes.visits.push(LaneVisit {
            agent: agent.clone(),
            rule,
            turns: turns.collect(),
            buckets,
        });
        self.claims.add_in_lanes(agent, steps, false);
        Ok(())
    }

    /// Reads how many steps may begin in these lanes by the limits of workflows. Returns the lanes that are limited so.
    async fn read_step_limits(
        &mut self,
        turns: &[LaneTurn],
        tx: &mut Transaction<'_>,
    ) -> Result<Vec<(Arc<str>, StepLane)>, StoreError> {
        let lanes = turns.iter().map(|turn| &turn.lane);
        let limited = lanes.filter_map(|lane| Some((lane.clone(), StepLane::of(lane)?)));
        let limited: Vec<_> = limited.collect();
        if limited.is_empty() {
            return Ok(limited);
        }
        let mut by_workflow: BTreeMap<&str, Vec<&StepKey>> = BTreeMap::new();
        for (_, lane) in &limited {
            by_workflow
                .entry(&lane.workflow)
                .or_default()
                .extend(&lane.keys);
        }
        let now = nanos(tx.now());
        let mut counted = Vec::new();
        for (workflow, keys) in by_workflow {
            let is_locked = match self.lanes.locked.get(workflow) {
                Some(is_locked) => *is_locked,
                None => {
                    let is_locked = tx.lock_step_limits(workflow).await?;
                    self.lanes.locked.insert(workflow.to_owned(), is_locked);
                    is_locked
                }
            };
            if !is_locked {
                self.lanes.wait(LOCKED_AGAIN);
                continue;
            }
            if self.lanes.is_pass {
                let ids: Vec<_> = keys.iter().map(|key| key.id.clone()).collect();
                tx.forget_limited_steps(&ids).await?;
                tx.forget_key_rates(&StepLane::scope(workflow)).await?;
            }
            let in_flight = keys.iter().filter(|key| key.max_in_flight.is_some());
            counted.extend(in_flight.map(|key| key.id.clone()));
            let rated = keys.iter().filter(|key| key.rate.is_some());
            let rated: Vec<_> = rated.map(|key| rate_key(&key.id)).collect();
            if !rated.is_empty() {
                let rates = tx.key_rates(&StepLane::scope(workflow), &rated).await?;
                let rates = rates.into_iter();
                let of_workflow = rates.map(|(key, bucket)| {
                    let of = (workflow.to_owned(), key.key);
                    (of, bucket)
                });
                self.lanes.step_rates.extend(of_workflow);
                for key in keys.iter().filter(|key| key.rate.is_some()) {
                    let of = (workflow.to_owned(), key.id.clone());
                    let Some(bucket) = self.lanes.step_rates.get_mut(&of) else {
                        continue;
                    };
                    // The rate of the key may have changed, as in [`key_rates`].
                    let within = key.bucket(Some(*bucket), now);
                    if within.0 < bucket.0 {
                        *bucket = within;
                        let (scope, key) = (StepLane::scope(workflow), rate_key(&key.id));
                        tx.set_key_rate(&scope, &key, within).await?;
                    }
                }
            }
        }
        let running = match counted.is_empty() {
            true => HashMap::new(),
            false => {
                counted.sort_unstable();
                counted.dedup();
                tx.running_of_keys(&counted).await?
            }
        };
        for (lane, StepLane { workflow, keys }) in &limited {
            let is_locked = self.lanes.locked.get(workflow).copied().unwrap_or(false);
            let mut room = Vec::new();
            for key in keys {
                let used = running.get(&key.id).copied().unwrap_or(0);
                let of = (workflow.clone(), key.id.clone());
                let bucket = self.lanes.step_rates.get(&of).copied();
                let most = key.room(used, bucket, now);
                if let Some(limit) = key.rate.as_ref().filter(|_| is_locked && most == 0) {
                    let wait = key.bucket(bucket, now).next_in(limit, now);
                    let wait = Duration::from_nanos(wait.max(0).unsigned_abs());
                    self.lanes.wait(wait.max(RATE_AGAIN));
                }
                room.push((key.id.clone(), if is_locked { most } else { 0 }));
            }
            self.lanes.step_room.set(lane.clone(), room);
        }
        Ok(limited)
    }
}

/// Deletes the records of running limited steps that these changes have ended.
pub(in crate::store::writer) async fn forget_ended_steps(
    changes: &[TaskChange],
    tx: &mut Transaction<'_>,
) -> Result<(), StoreError> {
    for change in changes {
        for step in ended_steps(change) {
            let task = change.task.id();
            tx.remove_limited_step(StepRef { task, step }).await?;
        }
    }
    Ok(())
}

/// Returns the changed steps that a workflow limits and that are not running, although they may have run before the
/// change.
pub(super) fn ended_steps(change: &TaskChange) -> impl Iterator<Item = StepIndex> {
    let is_limited = change.base.is_some() && change.task.has_step_limits();
    let steps = change.steps.iter().filter(move |_| is_limited).copied();
    steps.filter(|step| {
        let step = change.task.step(*step);
        step.status() != StepStatus::Processing && step.attempt.0 > 0
    })
}

/// Reads the buckets of these keys. A bucket that was filled by another rate is saved once as the current rate bounds
/// it, because it would stay empty for too long otherwise.
async fn key_rates(
    agent: &AgentName,
    rule: &LaneRule,
    keys: &[LimitedKey],
    tx: &mut Transaction<'_>,
) -> Result<HashMap<LimitedKey, RateBucket>, StoreError> {
    let now = nanos(tx.now());
    let mut buckets = tx.key_rates(agent, keys).await?;
    for (key, bucket) in &mut buckets {
        let limit = rule.limit(key).and_then(|limit| limit.rate_limit());
        let within = limit.map_or(*bucket, |limit| bucket.within(&limit, now));
        if within.0 < bucket.0 {
            *bucket = within;
            tx.set_key_rate(agent, key, within).await?;
        }
    }
    Ok(buckets)
}

fn nanos(at: Timestamp) -> i64 {
    at.as_millis().saturating_mul(1_000_000)
}
