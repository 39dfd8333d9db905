//! Lanes: the steps in an agent's queue are divided by keys that are made of their tasks, such as a label that names a
//! customer. So each customer can have a limit, and the customers take turns.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use provost_object::{Faults, FieldFault, Fields, Object};

use crate::{
    definition::key_limit::{KeyLimit, LONGEST_SOURCE, check_key},
    queue::{
        key::{LONGEST_KEY, short},
        step_limits::{StepRoom, agent_part, limited_lane},
    },
    task::{aggregate::Task, step::StepStatus},
    template::{Origin, Template},
    values::ids::StepIndex,
};

pub(crate) const MOST_LIMITS: usize = 4;
const MOST_WEIGHTS: usize = 1000;
const MOST_WEIGHT: u32 = 100;
/// The prefix of the lane of a step whose operation is polled.
const POLLS: &str = "poll:";
/// The number of steps without a limit of a workflow that have a turn together, where an agent's queue is divided only
/// for other steps.
const UNLIMITED_WEIGHT: u32 = 4;

/// Keys take turns at the agent, however many steps of one are queued.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "Fairness")]
pub struct Fairness {
    /// A template of the key, made of `task` and `input`, at most 500 bytes long. Tasks for which it cannot be made share the empty key.
    #[field(
        ..=LONGEST_SOURCE,
        required = "give a template of the key, such as \"{{ task.labels.customer }}\"",
        check = check_key,
        pattern = "[{][{]",
        example = "{{ task.labels.customer }}"
    )]
    pub by: String,
    /// How many steps a key has in its turn, 1 to 100. Default: 1.
    #[field(late, ..=MOST_WEIGHTS, read = read_weights, check = check_weights, example = {"acme": 3})]
    pub weights: BTreeMap<String, u32>,
}

/// The keys are those of tasks, so their names are bounded as those are.
fn read_weights(fields: &mut Fields<'_>, name: &str) -> Option<BTreeMap<String, u32>> {
    let mut weights = BTreeMap::new();
    for (key, pointer, weight) in fields.entries(name) {
        let fault = match serde_json::from_str::<u32>(weight.get()) {
            _ if key.len() > LONGEST_KEY => {
                format!("its name must be at most {LONGEST_KEY} bytes long")
            }
            Ok(weight) => {
                weights.insert(key, weight);
                continue;
            }
            Err(_) => format!("must be a whole number from 1 to {MOST_WEIGHT}"),
        };
        fields.extend([FieldFault::new(pointer, fault)]);
    }
    Some(weights)
}

fn check_weights(weights: &BTreeMap<String, u32>, faults: &mut Faults) {
    if weights.len() > MOST_WEIGHTS {
        faults.add(format!("must hold at most {MOST_WEIGHTS} keys"));
    }
    for (key, weight) in weights {
        if key.contains('\0') {
            // PostgreSQL holds no such text, so no task has it.
            faults.add("has a key with the character U+0000, which no task has");
        }
        if !(1..=MOST_WEIGHT).contains(weight) {
            faults.part(key, |faults| {
                faults.add(format!("must be 1 to {MOST_WEIGHT}"))
            });
        }
    }
}

/// The division of an agent's steps into lanes, and the limits of the lanes.
#[derive(Debug)]
pub struct LaneRule {
    /// The templates of the keys, without repeats.
    keys: Vec<Template>,
    /// Each limit with the position of its key.
    limits: Vec<(usize, KeyLimit)>,
    /// The shares of the keys, with the position of their key.
    fairness: Option<(usize, Fairness)>,
}

/// A limit of one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LimitedKey {
    /// The position of the limit among those of the agent.
    pub limit: usize,
    pub key: String,
}

/// A lane whose turn it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneTurn {
    pub lane: Arc<str>,
    /// The number of steps that the lane may still have in this turn.
    pub credit: u32,
}

impl LaneRule {
    /// Returns the rule of an agent. `None`: the queue is not divided.
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

    /// Returns the rule of an agent that has none, and whose queue holds steps that a workflow limits.
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

    /// Returns whether the rule limits the number of steps that run at once.
    pub fn has_slots(&self) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|(_, limit)| limit.max_in_flight.is_some())
    }

    /// Returns whether the lane may be one of this rule. Steps in any other lane belong elsewhere.
    pub fn is_lane(&self, lane: &str) -> bool {
        self.keys(lane.strip_prefix(POLLS).unwrap_or(lane))
            .is_some()
    }

    /// Returns the lanes whose running steps count for the limits of `lanes`; `None`: all lanes may.
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

    /// Returns the lane of a step. A key that cannot be made, such as that of a label that the task lacks, is empty.
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

    /// Returns the keys of a lane; `None` if another rule made it.
    pub fn keys(&self, lane: &str) -> Option<Vec<String>> {
        let lane = agent_part(lane);
        if self.keys.is_empty() {
            return lane.is_empty().then(Vec::new);
        }
        let keys: Vec<String> = serde_json::from_str(&lane).ok()?;
        (keys.len() == self.keys.len()).then_some(keys)
    }

    /// Returns the lane in which steps of this one run.
    pub fn runs_in(&self, lane: &str) -> String {
        agent_part(lane).into_owned()
    }

    /// Returns the number of steps that a lane has in its turn.
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

    /// Returns the limits that hold for a lane, each with its key.
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

    /// Returns the limit that lets no step of the lane begin now, and its key. See [`LaneRule::room`].
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

    /// Returns, for each limited key of these lanes, the number of steps that may begin. `running`: the number of steps
    /// that run in each lane; `begin`: the number that may begin by the rates of keys.
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

    /// Divides the free slots among these lanes: in turns, as far as the limits of their keys allow, and those of their
    /// workflows (`of_workflows`). `None`: no slot was left at the lane's turn, and the lane keeps its turn.
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

/// Returns the lane in which the polls of a lane's steps are queued.
pub fn polls_of(lane: &str) -> String {
    format!("{POLLS}{lane}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{queue::step_limits::StepLane, values::rate::Rate};

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
        let faults = |limits, fairness| {
            let spec = crate::agent::spec::AgentSpec {
                mode: crate::agent::spec::AgentMode::Pull,
                limits,
                fairness: Some(fairness),
                ..crate::agent::spec::AgentSpec::default()
            };
            let faults = spec.object_faults("/").into_iter();
            faults
                .map(|fault| fault.pointer[2..].to_owned())
                .collect::<Vec<_>>()
        };
        let fields = faults(vec![bad, none], fairness(&[("a/b", 0)]));
        let expected = [
            "limits/0/by",
            "limits/0/max_in_flight",
            "limits/0/burst",
            "limits/1/by",
            "limits/1",
            "fairness/weights/a~1b",
        ];
        assert_eq!(fields, expected);
        let well = vec![limit(Some(1), Some("5/s"))];
        assert_eq!(faults(well, fairness(&[])), [""; 0]);
    }
}
