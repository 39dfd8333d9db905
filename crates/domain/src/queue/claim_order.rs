//! The choice of the queued steps that an instance claims next: from each agent's queue as many as the agent has free
//! slots, in the order of the queue. Steps of tasks that are left alone stay queued and take no slot.

use std::collections::HashMap;

use crate::{
    task::turn::Turn,
    values::ids::{AgentName, StepRef, TaskId},
};

/// The most steps claimed from one queue in one transaction.
const MOST: usize = 64;

/// The order of a queue: by the turns of the tasks, and for equal turns the oldest task first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueRank {
    turn: Turn,
    step: StepRef,
}

impl QueueRank {
    pub fn new(step: StepRef, turn: Turn) -> Self {
        Self { turn, step }
    }

    pub fn step(self) -> StepRef {
        self.step
    }

    /// Returns whether this step comes before the other by more than a slightly earlier submission.
    pub fn is_more_important(self, other: Self) -> bool {
        self.turn.is_well_before(other.turn)
    }
}

/// The queued steps to claim, queue by queue.
#[derive(Debug)]
pub struct ClaimPlan {
    queues: Vec<QueuedSteps>,
    /// The index in `queues` of the queue of an agent: there may be a thousand queues.
    by_agent: HashMap<AgentName, usize>,
    most: usize,
}

#[derive(Debug)]
struct QueuedSteps {
    agent: AgentName,
    /// In the order of the queue.
    steps: Vec<PlannedClaim>,
    /// The queue was read, and has no other steps.
    is_whole: bool,
    /// The queue may have steps after the last of these.
    continues: bool,
    /// Some steps were left out, because their tasks were too large to load.
    is_cut: bool,
    /// The queue is divided into lanes: these steps are in the order of their turns, and no other step comes between
    /// them.
    is_divided: bool,
}

#[derive(Clone, Copy, Debug)]
struct PlannedClaim {
    position: QueueRank,
    /// The step became ready in this transaction: it is not in the queue of the record.
    is_new: bool,
}

/// The number of steps to read from one queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueRead {
    pub limit: usize,
    free: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepClaimResult {
    Claimed,
    NotClaimed,
    /// The agent has no free slot any more.
    NoSlot,
}

/// Claims the steps of a plan.
pub trait ClaimSteps {
    /// Returns whether the transaction has evaluated as many expressions as it may.
    fn is_spent(&self) -> bool;
    fn claim(&mut self, agent: &AgentName, step: StepRef) -> StepClaimResult;
}

/// The result of a plan.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct ClaimResult {
    /// The number of steps that were claimed; at least 1 if more can be claimed at once.
    pub claimed: usize,
    /// The agents whose queues are empty now.
    pub drained: Vec<AgentName>,
    /// The steps that no longer wait for a slot.
    pub gone: Vec<(AgentName, StepRef)>,
}

impl ClaimPlan {
    /// Makes an empty plan. `one_by_one`: it claims one step in total, after a panic that an unknown step caused.
    pub fn new(one_by_one: bool) -> Self {
        Self {
            queues: Vec::new(),
            by_agent: HashMap::new(),
            most: if one_by_one { 1 } else { MOST },
        }
    }

    /// Returns how much to read of the queue of an agent with `free` free slots, while `left_alone` tasks are left
    /// alone. `None`: nothing can be claimed from it.
    pub fn read(&self, agent: &AgentName, free: usize, left_alone: usize) -> Option<QueueRead> {
        let free = free.min(self.most);
        let is_known = self.by_agent.contains_key(agent);
        let is_full = self.most == 1 && self.first().is_some();
        if free == 0 || is_known || is_full {
            return None;
        }
        // Steps that are left alone must not take the slots of others.
        let limit = free + left_alone;
        Some(QueueRead { limit, free })
    }

    /// Adds the steps that were read from a queue. `is_whole`: it has no other steps.
    pub fn add(
        &mut self,
        agent: &AgentName,
        read: QueueRead,
        mut steps: Vec<QueueRank>,
        mut is_whole: bool,
        is_left_alone: impl Fn(TaskId) -> bool,
    ) {
        steps.retain(|position| !is_left_alone(position.step.task));
        is_whole &= steps.len() <= read.free;
        steps.truncate(read.free);
        self.push(QueuedSteps {
            agent: agent.clone(),
            steps: planned(steps),
            is_whole,
            continues: !is_whole,
            is_cut: false,
            is_divided: false,
        });
    }

    /// Adds steps of a queue that is divided into lanes, which share its slots in this order. `is_drained`: the queue
    /// is empty after them.
    pub fn add_in_lanes(&mut self, agent: &AgentName, steps: Vec<QueueRank>, is_drained: bool) {
        self.push(QueuedSteps {
            agent: agent.clone(),
            steps: planned(steps),
            is_whole: is_drained,
            continues: !is_drained,
            is_cut: false,
            is_divided: true,
        });
    }

    fn push(&mut self, queue: QueuedSteps) {
        self.by_agent.insert(queue.agent.clone(), self.queues.len());
        self.queues.push(queue);
    }

    /// Adds steps of a queue that was not read. `are_all`: these are all steps that may be claimed now.
    pub fn add_known(
        &mut self,
        agent: &AgentName,
        read: QueueRead,
        mut steps: impl Iterator<Item = QueueRank>,
        are_all: bool,
    ) {
        let known = planned(steps.by_ref().take(read.free));
        self.push(QueuedSteps {
            agent: agent.clone(),
            steps: known,
            is_whole: false,
            continues: !are_all || steps.next().is_some(),
            is_cut: false,
            is_divided: false,
        });
    }

    /// Adds a step that has just become ready and whose agent has steps in its queue. It is claimed in its turn, if the
    /// plan knows the queue up to there. Most often it is the first, because its task is older than the tasks that have
    /// not begun.
    pub fn enqueue(&mut self, agent: &AgentName, position: QueueRank) {
        let at = self.by_agent.get(agent).filter(|_| self.most > 1);
        let Some(queue) = at.and_then(|at| self.queues.get_mut(*at)) else {
            return;
        };
        if queue.is_divided {
            return;
        }
        let steps = &mut queue.steps;
        let at = steps.partition_point(|other| other.position < position);
        if at < steps.len() || !queue.continues && !queue.is_cut {
            let is_new = true;
            steps.insert(at, PlannedClaim { position, is_new });
        }
    }

    pub fn first(&self) -> Option<StepRef> {
        self.steps().next()
    }

    pub fn steps(&self) -> impl Iterator<Item = StepRef> {
        let planned = self.queues.iter().flat_map(|queue| &queue.steps);
        planned.map(|claim| claim.position.step)
    }

    /// Removes all steps, so that none is claimed in this transaction.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.by_agent.clear();
    }

    /// Removes from each queue the first step whose task does not fit, and all steps after it. Returns false if no task
    /// fits.
    pub fn cut(&mut self, mut fits: impl FnMut(TaskId) -> bool) -> bool {
        let (mut wanted, mut taken) = (0, 0);
        for queue in &mut self.queues {
            wanted += queue.steps.len();
            let tasks = queue.steps.iter().map(|claim| claim.position.step.task);
            let fitting = tasks.take_while(|task| fits(*task));
            let fitting = fitting.count();
            if fitting < queue.steps.len() {
                queue.steps.truncate(fitting);
                queue.is_cut = true;
            }
            taken += fitting;
        }
        taken > 0 || wanted == 0
    }

    /// Claims the steps in order.
    pub fn claim(&mut self, steps: &mut impl ClaimSteps) -> ClaimResult {
        let mut result = ClaimResult::default();
        let (mut claimed, mut is_more) = (0, false);
        self.by_agent.clear();
        for queue in std::mem::take(&mut self.queues) {
            if steps.is_spent() {
                is_more = true;
                break;
            }
            is_more |= queue.is_cut;
            let mut is_drained = queue.is_whole && !queue.is_cut;
            for PlannedClaim { position, is_new } in queue.steps {
                if steps.is_spent() {
                    is_more = true;
                    is_drained = false;
                    break;
                }
                match steps.claim(&queue.agent, position.step) {
                    StepClaimResult::Claimed => claimed += 1,
                    StepClaimResult::NotClaimed => {}
                    StepClaimResult::NoSlot => {
                        is_drained = false;
                        break;
                    }
                }
                if !is_new {
                    result.gone.push((queue.agent.clone(), position.step));
                }
            }
            if is_drained {
                result.drained.push(queue.agent);
            }
        }
        result.claimed = claimed.max(usize::from(is_more));
        result
    }
}

fn planned(steps: impl IntoIterator<Item = QueueRank>) -> Vec<PlannedClaim> {
    let planned = steps.into_iter().map(|position| PlannedClaim {
        position,
        is_new: false,
    });
    planned.collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::values::ids::StepIndex;

    fn agent(name: &str) -> AgentName {
        AgentName::new(name)
    }

    fn task(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    fn steps(tasks: std::ops::Range<u128>) -> Vec<StepRef> {
        let step = StepIndex(0);
        tasks
            .map(|number| StepRef {
                task: task(number),
                step,
            })
            .collect()
    }

    fn positions(tasks: std::ops::Range<u128>) -> Vec<QueueRank> {
        let steps = steps(tasks).into_iter();
        steps
            .map(|step| QueueRank::new(step, Turn::from_millis(0)))
            .collect()
    }

    fn gone(name: &str, tasks: std::ops::Range<u128>) -> Vec<(AgentName, StepRef)> {
        let gone = steps(tasks).into_iter().map(|step| (agent(name), step));
        gone.collect()
    }

    /// An agent with `free` slots, in a transaction that has evaluated all that it may after `until_spent` claims.
    struct TestSlots {
        free: usize,
        until_spent: usize,
        claimed: Vec<TaskId>,
    }

    impl TestSlots {
        fn new(free: usize) -> Self {
            Self {
                free,
                until_spent: usize::MAX,
                claimed: Vec::new(),
            }
        }
    }

    impl ClaimSteps for TestSlots {
        fn is_spent(&self) -> bool {
            self.claimed.len() >= self.until_spent
        }

        fn claim(&mut self, _: &AgentName, step: StepRef) -> StepClaimResult {
            if self.claimed.len() >= self.free {
                return StepClaimResult::NoSlot;
            }
            self.claimed.push(step.task);
            StepClaimResult::Claimed
        }
    }

    fn plan_of(agents: &[(&str, usize, std::ops::Range<u128>)]) -> ClaimPlan {
        let mut plan = ClaimPlan::new(false);
        for (name, free, tasks) in agents {
            let read = plan.read(&agent(name), *free, 0).unwrap();
            let read_steps: Vec<_> = positions(tasks.clone())
                .into_iter()
                .take(read.limit)
                .collect();
            let is_whole = read_steps.len() < read.limit;
            plan.add(&agent(name), read, read_steps, is_whole, |_| false);
        }
        plan
    }

    #[test]
    fn a_queue_is_claimed_in_its_order_as_far_as_there_are_slots() {
        let mut plan = plan_of(&[("x", 2, 0..5)]);
        let mut slots = TestSlots::new(2);
        let result = plan.claim(&mut slots);
        assert_eq!(slots.claimed, [task(0), task(1)]);
        assert_eq!(
            result,
            ClaimResult {
                claimed: 2,
                drained: Vec::new(),
                gone: gone("x", 0..2),
            }
        );
    }

    #[test]
    fn a_queue_that_was_read_whole_is_drained() {
        let mut plan = plan_of(&[("x", 3, 0..2), ("y", 1, 5..9)]);
        let result = plan.claim(&mut TestSlots::new(9));
        assert_eq!(
            result,
            ClaimResult {
                claimed: 3,
                drained: vec![agent("x")],
                gone: [gone("x", 0..2), gone("y", 5..6)].concat(),
            }
        );
    }

    #[test]
    fn a_queue_that_was_read_beyond_the_free_slots_is_not_drained() {
        let mut plan = ClaimPlan::new(false);
        let mut read = plan.read(&agent("x"), 2, 0).unwrap();
        read.limit = 100;
        plan.add(&agent("x"), read, positions(0..5), false, |_| false);
        let result = plan.claim(&mut TestSlots::new(9));
        assert_eq!((result.claimed, result.drained), (2, Vec::new()));
    }

    #[test]
    fn steps_that_are_left_alone_take_no_slot() {
        let mut plan = ClaimPlan::new(false);
        let read = plan.read(&agent("x"), 2, 1).unwrap();
        assert_eq!(read.limit, 3);
        plan.add(&agent("x"), read, positions(0..3), true, |id| id == task(0));
        let mut slots = TestSlots::new(9);
        plan.claim(&mut slots);
        assert_eq!(slots.claimed, [task(1), task(2)]);
    }

    #[test]
    fn of_a_queue_that_was_not_read_nobody_knows_whether_it_is_drained() {
        let mut plan = ClaimPlan::new(false);
        let read = plan.read(&agent("x"), 3, 0).unwrap();
        plan.add_known(&agent("x"), read, positions(0..2).into_iter(), true);
        let result = plan.claim(&mut TestSlots::new(9));
        assert_eq!(
            result,
            ClaimResult {
                claimed: 2,
                drained: Vec::new(),
                gone: gone("x", 0..2),
            }
        );
    }

    /// Claims from a queue with the tasks 5 and 6 that was not read, with `free` slots and these new steps.
    fn claimed_with_new(
        are_all: bool,
        free: usize,
        new: &[(u128, i64)],
    ) -> (Vec<TaskId>, ClaimResult) {
        let mut plan = ClaimPlan::new(false);
        let read = plan.read(&agent("x"), free, 0).unwrap();
        plan.add_known(&agent("x"), read, positions(5..7).into_iter(), are_all);
        for (number, turn) in new {
            let step = steps(*number..number + 1)[0];
            let position = QueueRank::new(step, Turn::from_millis(*turn));
            plan.enqueue(&agent("x"), position);
            plan.enqueue(&agent("not planned"), position);
        }
        let mut slots = TestSlots::new(free);
        let result = plan.claim(&mut slots);
        (slots.claimed, result)
    }

    #[test]
    fn a_step_that_has_become_ready_is_claimed_in_its_turn() {
        let (claimed, result) = claimed_with_new(true, 2, &[(1, 0), (9, 0)]);
        assert_eq!(claimed, [task(1), task(5)]);
        assert_eq!(
            result.gone,
            gone("x", 5..6),
            "the record has only this one in the queue"
        );
        let (claimed, _) = claimed_with_new(true, 2, &[(1, 1), (9, -1)]);
        assert_eq!(claimed, [task(9), task(5)]);
        let (claimed, _) = claimed_with_new(true, 9, &[(9, 0), (1, 0)]);
        assert_eq!(claimed, [task(1), task(5), task(6), task(9)]);
    }

    #[test]
    fn a_step_that_has_become_ready_does_not_overtake_what_is_not_known() {
        let (claimed, _) = claimed_with_new(false, 9, &[(1, 0), (9, 0)]);
        assert_eq!(claimed, [task(1), task(5), task(6)]);
        // Task 6 has no slot in the plan, but comes before task 9.
        let (claimed, _) = claimed_with_new(true, 1, &[(9, 0)]);
        assert_eq!(claimed, [task(5)]);
    }

    #[test]
    fn one_by_one_means_one_step_of_one_queue() {
        let mut plan = ClaimPlan::new(true);
        let read = plan.read(&agent("x"), 9, 0).unwrap();
        assert_eq!(read.limit, 1);
        plan.add(&agent("x"), read, positions(0..1), true, |_| false);
        assert!(plan.read(&agent("y"), 9, 0).is_none());
    }

    #[test]
    fn nothing_is_read_of_an_agent_without_slots_or_twice_of_one() {
        let plan = plan_of(&[("x", 2, 0..5)]);
        assert!(plan.read(&agent("x"), 2, 0).is_none());
        assert!(plan.read(&agent("y"), 0, 7).is_none());
    }

    #[test]
    fn a_plan_that_is_cut_or_spent_says_that_there_is_more() {
        let mut plan = plan_of(&[("x", 9, 0..5)]);
        assert!(plan.cut(|id| id == task(0)));
        let result = plan.claim(&mut TestSlots::new(0));
        assert_eq!(
            result,
            ClaimResult {
                claimed: 1,
                drained: Vec::new(),
                gone: Vec::new(),
            }
        );
        assert!(!plan_of(&[("x", 9, 0..5)]).cut(|_| false));

        let mut spent = TestSlots {
            until_spent: 2,
            ..TestSlots::new(9)
        };
        let result = plan_of(&[("x", 9, 0..5), ("y", 9, 5..9)]).claim(&mut spent);
        assert_eq!(spent.claimed, [task(0), task(1)]);
        assert_eq!(
            result,
            ClaimResult {
                claimed: 2,
                drained: Vec::new(),
                gone: gone("x", 0..2),
            }
        );
    }

    #[test]
    fn a_queue_is_not_drained_where_slots_ran_out() {
        let mut plan = ClaimPlan::new(false);
        let read = plan.read(&agent("x"), 5, 0).unwrap();
        plan.add(&agent("x"), read, positions(0..3), true, |_| false);
        // The agent has fewer slots than when the claims were planned.
        let result = plan.claim(&mut TestSlots::new(1));
        assert_eq!((result.claimed, result.drained), (1, Vec::new()));
    }
}
