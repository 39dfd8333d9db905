//! Lanes: the steps in an agent's queue are divided by keys that are made of their tasks, such as a label that names a
//! customer. So each customer can have a limit, and the customers take turns.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Details, RateLimitSpec, StepIndex, StepStatus, Task,
    rate_limit::Rate,
    step_limits::{StepRoom, agent_part, limited_lane},
    template::{Budget, Origin, Scope, Template},
};

const MOST_LIMITS: usize = 4;
const MOST_WEIGHTS: usize = 1000;
const MOST_WEIGHT: u32 = 100;
/// Longer keys are cut, and told apart by a hash.
const LONGEST_KEY: usize = 64;
const LONGEST_SOURCE: usize = 500;
/// What making the keys of one step may cost.
const COST: u64 = 1 << 18;
/// What stands before the lane of a step whose operation is polled.
const POLLS: &str = "poll:";
/// How many steps that no workflow limits have a turn together, where an agent's queue is divided only for others.
const UNLIMITED_WEIGHT: u32 = 4;

/// How many steps of one key may run at once, and how often one may begin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimit {
    /// A template of the key.
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl KeyLimit {
    pub const MOST_IN_FLIGHT: RangeInclusive<i64> = 1..=10_000;

    pub fn rate_limit(&self) -> Option<RateLimitSpec> {
        let burst = self.burst;
        self.rate.map(|rate| RateLimitSpec { rate, burst })
    }
}

/// The keys take turns at the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fairness {
    /// A template of the key.
    pub by: String,
    /// How many steps a key has in its turn; 1 where nothing is said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
}

/// What is wrong with the lanes of an agent: each fault as the field that is at fault, and a message.
pub(crate) fn lane_faults(
    limits: &[KeyLimit],
    fairness: Option<&Fairness>,
) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if limits.len() > MOST_LIMITS {
        let message = format!(
            "must hold at most {MOST_LIMITS} limits, holds {}",
            limits.len()
        );
        faults.push(("limits".to_owned(), message));
    }
    for (i, limit) in limits.iter().enumerate().take(MOST_LIMITS) {
        let mut fault = |field: &str, message: String| {
            faults.push((format!("limits/{i}{field}"), message));
        };
        if let Err(message) = parse_key(&limit.by) {
            fault("/by", message);
        }
        if limit.max_in_flight.is_none() && limit.rate.is_none() {
            fault("", "must have `max_in_flight`, `rate` or both".to_owned());
        }
        if limit
            .max_in_flight
            .is_some_and(|most| !KeyLimit::MOST_IN_FLIGHT.contains(&i64::from(most)))
        {
            fault(
                "/max_in_flight",
                format!("must be 1 to {}", KeyLimit::MOST_IN_FLIGHT.end()),
            );
        }
        if limit.burst.is_some() && limit.rate.is_none() {
            fault("/burst", "needs a `rate`".to_owned());
        }
        for (field, message) in limit.rate_limit().iter().flat_map(RateLimitSpec::faults) {
            fault(&format!("/{field}"), message);
        }
    }
    let Some(Fairness { by, weights }) = fairness else {
        return faults;
    };
    if let Err(message) = parse_key(by) {
        faults.push(("fairness/by".to_owned(), message));
    }
    if weights.len() > MOST_WEIGHTS {
        let message = format!("must hold at most {MOST_WEIGHTS} keys");
        faults.push(("fairness/weights".to_owned(), message));
    }
    for (key, weight) in weights {
        if key.contains('\0') {
            // PostgreSQL holds no such text, so no task has it.
            let message = "has a key with the character U+0000, which no task has".to_owned();
            faults.push(("fairness/weights".to_owned(), message));
        }
        if !(1..=MOST_WEIGHT).contains(weight) {
            let key = key.replace('~', "~0").replace('/', "~1");
            let message = format!("must be 1 to {MOST_WEIGHT}");
            faults.push((format!("fairness/weights/{key}"), message));
        }
    }
    faults
}

pub(crate) fn parse_key(source: &str) -> Result<Template, String> {
    const FORM: &str = "such as \"{{ task.labels.customer }}\"";
    if source.len() > LONGEST_SOURCE {
        return Err(format!("must be at most {LONGEST_SOURCE} bytes long"));
    }
    let budget = Budget::evaluation();
    let template = Template::parse(source, Origin::Submitted(&budget))?;
    let reads = template.reads();
    if reads.names.is_empty() {
        return Err(format!("must hold an expression, {FORM}"));
    }
    match reads
        .names
        .iter()
        .find(|name| !["task", "input"].contains(&name.as_str()))
    {
        Some(name) => Err(format!(
            "must be made of `task` and `input`, {FORM}; the outputs of steps, and `{name}`, are not known to it"
        )),
        None => Ok(template),
    }
}

/// How an agent's steps are divided, and what holds for the parts.
#[derive(Debug)]
pub struct LaneRule {
    /// Each once.
    keys: Vec<Template>,
    /// Each with the position of its key.
    limits: Vec<(usize, KeyLimit)>,
    /// With the position of its key.
    fairness: Option<(usize, Fairness)>,
}

/// A limit of one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LimitedKey {
    /// Which limit of the agent.
    pub limit: usize,
    pub key: String,
}

/// A lane whose turn it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneTurn {
    pub lane: Arc<str>,
    /// How many steps it may still have in this turn.
    pub credit: u32,
}

impl LaneRule {
    /// `None`: the queue is not divided.
    pub fn of(limits: &[KeyLimit], fairness: Option<&Fairness>) -> Option<Self> {
        if limits.is_empty() && fairness.is_none() {
            return None;
        }
        let mut sources: Vec<&str> = Vec::new();
        let mut at = |source| {
            let known = sources.iter().position(|known| *known == source);
            known.unwrap_or_else(|| {
                sources.push(source);
                sources.len() - 1
            })
        };
        let limits = limits.iter().map(|limit| (at(&limit.by), limit.clone()));
        let limits = limits.collect();
        let fairness = fairness.map(|fairness| (at(&fairness.by), fairness.clone()));
        let key = |source: &&str| {
            let template = Template::parse(source, Origin::Stored);
            template.unwrap_or_else(|_| Template::literal(""))
        };
        Some(Self {
            keys: sources.iter().map(key).collect(),
            limits,
            fairness,
        })
    }

    /// Of an agent without a rule, in whose queue steps stand that a workflow limits.
    pub fn undivided() -> Self {
        Self {
            keys: Vec::new(),
            limits: Vec::new(),
            fairness: None,
        }
    }

    pub fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    pub fn has_rates(&self) -> bool {
        self.limits.iter().any(|(_, limit)| limit.rate.is_some())
    }

    /// Whether it limits how many steps run at once.
    pub fn has_slots(&self) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|(_, limit)| limit.max_in_flight.is_some())
    }

    /// Whether the lane may be one of this rule. In any other stand steps that belong elsewhere.
    pub fn is_lane(&self, lane: &str) -> bool {
        self.keys(lane.strip_prefix(POLLS).unwrap_or(lane))
            .is_some()
    }

    /// The lanes in which steps run that count for the limits of these; `None`: all may.
    pub fn counted<'l>(&self, lanes: impl Iterator<Item = &'l str>) -> Option<Vec<String>> {
        let counted = lanes.flat_map(|lane| {
            let lane = agent_part(lane);
            [polls_of(&lane), lane.into_owned()]
        });
        (self.keys.len() == 1).then(|| counted.collect())
    }

    pub fn limit(&self, key: &LimitedKey) -> Option<&KeyLimit> {
        self.limits.get(key.limit).map(|(_, limit)| limit)
    }

    /// The lane of a step. A key that cannot be made, such as that of a label that the task does not have, is empty.
    pub fn lane(&self, task: &Task, step: StepIndex) -> String {
        let key = |template: &Template| short(task.details.render_key(template));
        let keys: Vec<String> = self.keys.iter().map(key).collect();
        let lane = match keys.is_empty() {
            true => String::new(),
            // Texts always serialise.
            false => serde_json::to_string(&keys).unwrap_or_default(),
        };
        match task.step(step).status() {
            // A poll belongs to a call that was let through: it must not wait until its own call is over.
            StepStatus::Processing if task.due_at(step).is_some() && !lane.is_empty() => {
                format!("{POLLS}{lane}")
            }
            StepStatus::Pending if task.has_step_limits() => limited_lane(task, lane),
            _ => lane,
        }
    }

    /// The keys of a lane; none if it was made by another rule.
    pub fn keys(&self, lane: &str) -> Option<Vec<String>> {
        let lane = agent_part(lane);
        if self.keys.is_empty() {
            return lane.is_empty().then(Vec::new);
        }
        let keys: Vec<String> = serde_json::from_str(&lane).ok()?;
        (keys.len() == self.keys.len()).then_some(keys)
    }

    /// The lane in which steps of this one run.
    pub fn runs_in(&self, lane: &str) -> String {
        agent_part(lane).into_owned()
    }

    /// How many steps a lane has in its turn.
    pub fn weight(&self, lane: &str) -> u32 {
        if lane.is_empty() && self.keys.is_empty() {
            return UNLIMITED_WEIGHT;
        }
        let weight = self.fairness.as_ref().and_then(|(at, fairness)| {
            let keys = self.keys(lane)?;
            fairness.weights.get(keys.get(*at)?).copied()
        });
        weight.unwrap_or(1)
    }

    /// The limits that hold for a lane, each with its key.
    pub fn limited(&self, lane: &str) -> Vec<LimitedKey> {
        let Some(keys) = self.keys(lane) else {
            return Vec::new();
        };
        let limits = self.limits.iter().enumerate();
        let limited = limits.map(|(limit, (at, _))| LimitedKey {
            limit,
            key: keys.get(*at).cloned().unwrap_or_default(),
        });
        limited.collect()
    }

    /// The limit that lets no step of the lane begin now, and its key. See [`LaneRule::room`].
    pub fn blocking(
        &self,
        lane: &str,
        running: &HashMap<String, u32>,
        begin: &HashMap<LimitedKey, u32>,
    ) -> Option<(&KeyLimit, String)> {
        let credit = 1;
        let turn = LaneTurn {
            lane: lane.into(),
            credit,
        };
        let room = self.room(&[turn], running, begin);
        let key = room.into_iter().find(|(_, room)| *room == 0)?.0;
        Some((self.limit(&key)?, key.key))
    }

    /// How many steps may begin for each key of these lanes, as far as it is limited. `running`: how many run in each
    /// lane; `begin`: how many may begin by the rates of keys.
    pub fn room(
        &self,
        lanes: &[LaneTurn],
        running: &HashMap<String, u32>,
        begin: &HashMap<LimitedKey, u32>,
    ) -> HashMap<LimitedKey, u32> {
        let mut used: HashMap<LimitedKey, u32> = HashMap::new();
        for (lane, count) in running {
            for key in self.limited(lane.strip_prefix(POLLS).unwrap_or(lane)) {
                *used.entry(key).or_default() += count;
            }
        }
        let keys = lanes.iter().flat_map(|turn| self.limited(&turn.lane));
        let room = keys.filter_map(|key| {
            let limit = self.limit(&key)?;
            let used = used.get(&key).copied().unwrap_or(0);
            let slots = limit.max_in_flight.map(|most| most.saturating_sub(used));
            let calls = limit.rate.map(|_| begin.get(&key).copied().unwrap_or(0));
            let room = slots.into_iter().chain(calls).min()?;
            Some((key, room))
        });
        room.collect()
    }

    /// How many steps each of these lanes gets of so many free slots: in turns, as far as the limits of its keys allow, and
    /// those of its workflow (`of_workflows`). `None`: no slot was left when its turn came, which it keeps.
    pub fn shares(
        &self,
        free: usize,
        lanes: &[LaneTurn],
        mut room: HashMap<LimitedKey, u32>,
        of_workflows: &mut StepRoom,
    ) -> Vec<Option<usize>> {
        let mut shares = vec![Some(0); lanes.len()];
        let keys: Vec<_> = lanes.iter().map(|turn| self.limited(&turn.lane)).collect();
        let mut left = free;
        let mut is_first = true;
        loop {
            let before = left;
            for (at, turn) in lanes.iter().enumerate() {
                let turn_of = match is_first {
                    true => turn.credit,
                    false => self.weight(&turn.lane),
                };
                let allowed = keys[at].iter().filter_map(|key| room.get(key).copied());
                let of_workflow = of_workflows.of(&lanes[at].lane);
                let most = allowed.chain([turn_of]).chain(of_workflow).min();
                let most = most.unwrap_or(turn_of) as usize;
                if is_first && left == 0 && most > 0 {
                    shares[at] = None;
                    continue;
                }
                let given = left.min(most);
                of_workflows.take(&lanes[at].lane, given as u32);
                for key in &keys[at] {
                    if let Some(room) = room.get_mut(key) {
                        *room -= given as u32;
                    }
                }
                shares[at] = shares[at].map(|share| share + given);
                left -= given;
            }
            is_first = false;
            if left == 0 || left == before {
                return shares;
            }
        }
    }
}

impl Details {
    /// Empty where it cannot be made.
    pub(crate) fn render_key(&self, template: &Template) -> String {
        let budget = Budget::new(COST);
        let scope = Scope {
            task_id: self.id,
            key: self.key.as_deref(),
            labels: &self.labels,
            input: Some(&self.input),
            ..Scope::empty(&budget)
        };
        template.render_text(&scope).unwrap_or_default()
    }
}

/// The lane in which the polls of a lane's steps stand.
pub fn polls_of(lane: &str) -> String {
    format!("{POLLS}{lane}")
}

pub(crate) fn short(key: String) -> String {
    const KEPT: usize = LONGEST_KEY - 17;
    if key.len() <= LONGEST_KEY {
        // PostgreSQL takes no text with it.
        return key.replace('\0', "\u{fffd}");
    }
    let hash = Sha256::digest(key.as_bytes());
    let hash: String = hash
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = &key[..key.floor_char_boundary(KEPT)];
    format!("{}~{hash}", kept.replace('\0', "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepLane;

    fn limit(max_in_flight: Option<u32>, rate: Option<&str>) -> KeyLimit {
        KeyLimit {
            by: "{{ task.labels.customer }}".to_owned(),
            max_in_flight,
            rate: rate.map(|rate| Rate::parse(rate).unwrap()),
            burst: None,
        }
    }

    fn fairness(weights: &[(&str, u32)]) -> Fairness {
        let weights = weights
            .iter()
            .map(|(key, weight)| ((*key).to_owned(), *weight));
        Fairness {
            by: "{{ task.labels.customer }}".to_owned(),
            weights: weights.collect(),
        }
    }

    fn turns(rule: &LaneRule, lanes: &[&str]) -> Vec<LaneTurn> {
        let turn = |lane: &&str| LaneTurn {
            lane: Arc::from(*lane),
            credit: rule.weight(lane),
        };
        lanes.iter().map(turn).collect()
    }

    fn shares_of(
        rule: &LaneRule,
        free: usize,
        lanes: &[LaneTurn],
        room: HashMap<LimitedKey, u32>,
    ) -> Vec<usize> {
        let shares = rule.shares(free, lanes, room, &mut StepRoom::default());
        shares.into_iter().map(Option::unwrap_or_default).collect()
    }

    const A: &str = r#"["a"]"#;
    const B: &str = r#"["b"]"#;
    const C: &str = r#"["c"]"#;

    #[test]
    fn lanes_share_free_slots_in_turns() {
        let rule = LaneRule::of(&[], Some(&fairness(&[("b", 3)]))).unwrap();
        let lanes = turns(&rule, &[A, B, C]);
        let shares = |free| shares_of(&rule, free, &lanes, HashMap::new());
        assert_eq!(shares(1), [1, 0, 0]);
        assert_eq!(shares(5), [1, 3, 1]);
        assert_eq!(shares(10), [2, 6, 2]);
    }

    #[test]
    fn a_lane_for_which_no_slot_is_left_keeps_its_turn() {
        let rule = LaneRule::of(&[limit(Some(5), None)], Some(&fairness(&[("a", 3)]))).unwrap();
        let lanes = turns(&rule, &[A, B, C]);
        let shares = |free, room| rule.shares(free, &lanes, room, &mut StepRoom::default());
        assert_eq!(shares(3, HashMap::new()), [Some(3), None, None]);
        assert_eq!(shares(4, HashMap::new()), [Some(3), Some(1), None]);
        // That one may begin nothing, whatever slots are free.
        let running = HashMap::from([(B.to_owned(), 5)]);
        let room = || rule.room(&lanes, &running, &HashMap::new());
        assert_eq!(shares(3, room()), [Some(3), Some(0), None]);
    }

    #[test]
    fn a_lane_gets_no_more_than_its_key_may_have() {
        let rule = LaneRule::of(&[limit(Some(5), None)], None).unwrap();
        let lanes = turns(&rule, &[A, B, C]);
        let running = HashMap::from([(A.to_owned(), 3), (polls_of(A), 1), (B.to_owned(), 7)]);
        let room = rule.room(&lanes, &running, &HashMap::new());
        assert_eq!(shares_of(&rule, 64, &lanes, room), [1, 0, 5]);
    }

    #[test]
    fn a_rate_without_calls_lets_nothing_begin() {
        let rule = LaneRule::of(&[limit(Some(5), Some("1/s"))], None).unwrap();
        let lanes = turns(&rule, &[A, B]);
        let [of_a] = &rule.limited(A)[..] else {
            panic!()
        };
        let begin = HashMap::from([(of_a.clone(), 2)]);
        let room = rule.room(&lanes, &HashMap::new(), &begin);
        assert_eq!(shares_of(&rule, 64, &lanes, room), [2, 0]);
    }

    #[test]
    fn limits_of_several_keys_hold_over_all_lanes_that_have_the_key() {
        let by_region = KeyLimit {
            by: "{{ task.labels.region }}".to_owned(),
            ..limit(Some(3), None)
        };
        let rule = LaneRule::of(&[limit(Some(2), None), by_region], None).unwrap();
        let lanes = [r#"["a","eu"]"#, r#"["b","eu"]"#, r#"["a","us"]"#];
        let lanes = turns(&rule, &lanes);
        let room = rule.room(&lanes, &HashMap::new(), &HashMap::new());
        assert_eq!(shares_of(&rule, 64, &lanes, room), [1, 2, 1]);
    }

    #[test]
    fn a_lane_of_another_rule_and_one_of_polls_have_no_limits() {
        let rule = LaneRule::of(&[limit(Some(0), None)], None).unwrap();
        let lanes = turns(&rule, &["", r#"["a","b"]"#, &polls_of(A)]);
        let room = rule.room(&lanes, &HashMap::new(), &HashMap::new());
        assert_eq!(shares_of(&rule, 3, &lanes, room), [1, 1, 1]);
    }

    #[test]
    fn a_key_of_a_workflow_is_shared_by_lanes_and_by_agents() {
        let rule = LaneRule::undivided();
        let one = r#"limits:["sync",[["k",5,null,null]],null]"#;
        let other = r#"limits:["sync",[["k",9,null,null],["l",1,null,null]],null]"#;
        let lanes = turns(&rule, &["", one, other]);
        let mut room = StepRoom::default();
        let key = |id: &str, room| (id.to_owned(), room);
        // Four of the key run.
        room.set(lanes[1].lane.clone(), vec![key("k", 1)]);
        room.set(lanes[2].lane.clone(), vec![key("k", 5), key("l", 3)]);
        assert_eq!(
            rule.shares(40, &lanes, HashMap::new(), &mut room),
            [36, 1, 3].map(Some),
            "the place that one has taken is no place of the other"
        );
        assert_eq!(room.of(one), Some(0));
        assert_eq!(room.of(other), Some(0));
        // Nothing is forgotten where the lanes of the next agent are looked at.
        room.set(lanes[2].lane.clone(), vec![key("k", 5), key("l", 9)]);
        assert_eq!(room.of(other), Some(1));
        assert_eq!(room.of(""), None);
    }

    #[test]
    fn the_rule_of_an_agent_holds_for_what_a_workflow_limits() {
        let rule = LaneRule::of(&[limit(Some(5), None)], Some(&fairness(&[("a", 3)]))).unwrap();
        let lane = r#"limits:["sync",[["k",5,"10/s",2]],["a"]]"#;
        assert_eq!(rule.keys(lane), Some(vec!["a".to_owned()]));
        assert_eq!(rule.limited(lane), rule.limited(A));
        assert_eq!(rule.weight(lane), 3);
        let counted = rule.counted([lane].into_iter()).unwrap();
        assert!(counted.contains(&A.to_owned()) && counted.contains(&polls_of(A)));
        let undivided = LaneRule::undivided();
        assert!(undivided.is_lane("") && !undivided.is_lane(A) && !undivided.is_lane(lane));
        let StepLane { workflow, keys } = StepLane::of(lane).unwrap();
        assert_eq!((workflow.as_str(), keys.len()), ("sync", 1));
        assert_eq!(keys[0].rate.as_ref().unwrap().burst, Some(2));
        assert_eq!(StepLane::of(A), None);
    }

    #[test]
    fn long_keys_are_cut_and_stay_different() {
        let (one, other) = ("é".repeat(500), "é".repeat(501));
        let (one, other) = (short(one), short(other));
        assert!(one.len() <= LONGEST_KEY && other.len() <= LONGEST_KEY);
        assert_ne!(one, other);
        assert_eq!(short("a\0b".to_owned()), "a\u{fffd}b");
    }

    #[test]
    fn every_fault_is_named() {
        let bad = KeyLimit {
            by: "{{ steps.pay.output.id }}".to_owned(),
            max_in_flight: Some(0),
            rate: None,
            burst: Some(1),
        };
        let none = KeyLimit {
            by: "customer".to_owned(),
            ..limit(None, None)
        };
        let faults = lane_faults(&[bad, none], Some(&fairness(&[("a/b", 0)])));
        let fields: Vec<_> = faults.iter().map(|(field, _)| field.as_str()).collect();
        let expected = [
            "limits/0/by",
            "limits/0/max_in_flight",
            "limits/0/burst",
            "limits/1/by",
            "limits/1",
            "fairness/weights/a~1b",
        ];
        assert_eq!(fields, expected);
        assert_eq!(
            lane_faults(&[limit(Some(1), Some("5/s"))], Some(&fairness(&[]))),
            []
        );
    }
}
