//! Requests of workers for work. A request offers slots for the steps of one agent; a step that is claimed with such a
//! slot is sent to the worker after the commit.
//!
//! Requests of one agent take turns, so that steps which become ready at once are spread over all waiting workers.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    clock::{self, Instant, timeout},
    domain::{
        task::Call,
        values::{AgentName, Span, WorkerName},
    },
};

/// The longest time that a worker with steps waits for more steps that are being claimed for it.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);

/// The most workers whose requests are remembered here.
const MOST_SEEN: usize = 10_000;

/// Releases steps that no worker got.
type TakeBack = Box<dyn Fn(Vec<Call>) + Send + Sync>;

pub(super) struct WorkRequests {
    state: Mutex<State>,
    /// The number of waiting requests. A claim takes no lock while it is 0.
    count: AtomicUsize,
    take_back: TakeBack,
}

#[derive(Default)]
struct State {
    next_id: u64,
    requests: HashMap<u64, RequestState>,
    agents: HashMap<AgentName, AgentRequests>,
    seen: HashMap<(AgentName, WorkerName), LastWorkRequest>,
}

/// The time when a worker last asked for work here.
struct LastWorkRequest {
    at: Instant,
    is_saved: bool,
}

/// The requests for the steps of one agent.
#[derive(Default)]
struct AgentRequests {
    count: usize,
    /// The free slots of all requests.
    free: usize,
    /// The requests that have free slots, or had some.
    turns: VecDeque<u64>,
}

impl State {
    fn see(&mut self, agent: &AgentName, worker: &WorkerName) {
        let now = LastWorkRequest {
            at: clock::instant(),
            is_saved: false,
        };
        if let Some(seen) = self.seen.get_mut(&(agent.clone(), worker.clone())) {
            *seen = now;
            return;
        }
        if self.seen.len() >= MOST_SEEN {
            // The store contains these workers.
            self.seen.retain(|_, seen| !seen.is_saved);
        }
        if self.seen.len() < MOST_SEEN {
            self.seen.insert((agent.clone(), worker.clone()), now);
        }
    }
}

struct RequestState {
    agent: AgentName,
    worker: WorkerName,
    /// The number of further steps that the worker accepts.
    free: usize,
    /// The number of steps that are being claimed for the worker.
    reserved: usize,
    is_in_turns: bool,
    /// True while further steps may be claimed for the worker.
    is_open: bool,
    /// The steps that have been claimed for the worker.
    arrived: Vec<ClaimedStep>,
    changed: Arc<Notify>,
}

impl WorkRequests {
    pub fn new(take_back: TakeBack) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            count: AtomicUsize::new(0),
            take_back,
        })
    }

    /// Adds the request of a worker for up to `most` steps.
    pub fn add(self: &Arc<Self>, agent: AgentName, worker: WorkerName, most: usize) -> WorkRequest {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        let changed = Arc::new(Notify::new());
        state.see(&agent, &worker);
        state.requests.insert(
            id,
            RequestState {
                agent: agent.clone(),
                worker,
                free: most,
                reserved: 0,
                is_in_turns: true,
                is_open: true,
                arrived: Vec::new(),
                changed: changed.clone(),
            },
        );
        let of_agent = state.agents.entry(agent).or_default();
        of_agent.count += 1;
        of_agent.free += most;
        of_agent.turns.push_back(id);
        self.count.store(state.requests.len(), Ordering::Release);
        WorkRequest {
            all: self.clone(),
            id,
            changed,
        }
    }

    /// Returns how many steps the waiting workers accept now.
    pub fn free(&self, agent: &AgentName) -> usize {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let state = self.state.lock();
        state.agents.get(agent).map_or(0, |agent| agent.free)
    }

    /// Takes a slot for one step from the request whose turn it is.
    pub fn try_take(self: &Arc<Self>, agent: &AgentName) -> Option<WorkerSlot> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let State {
            requests, agents, ..
        } = &mut *state;
        let of_agent = agents.get_mut(agent)?;
        while let Some(id) = of_agent.turns.pop_front() {
            let Some(request) = requests.get_mut(&id) else {
                continue;
            };
            request.is_in_turns = request.free > 1;
            if request.free == 0 {
                continue;
            }
            request.free -= 1;
            request.reserved += 1;
            of_agent.free -= 1;
            if request.is_in_turns {
                of_agent.turns.push_back(id);
            }
            return Some(WorkerSlot {
                all: self.clone(),
                id,
                worker: request.worker.clone(),
                is_used: false,
            });
        }
        None
    }

    /// Returns the workers that have asked for work since the last call, each with the time since the request.
    pub fn take_seen(&self) -> Vec<(AgentName, WorkerName, Span)> {
        let mut state = self.state.lock();
        let unsaved = state.seen.iter_mut().filter(|(_, seen)| !seen.is_saved);
        unsaved
            .map(|((agent, worker), seen)| {
                seen.is_saved = true;
                (agent.clone(), worker.clone(), Span::from(seen.at.elapsed()))
            })
            .collect()
    }

    /// Marks workers as unsaved after their save has failed.
    pub fn see_again(&self, unsaved: &[(AgentName, WorkerName, Span)]) {
        let mut state = self.state.lock();
        for (agent, worker, _) in unsaved {
            let key = (agent.clone(), worker.clone());
            if let Some(seen) = state.seen.get_mut(&key) {
                seen.is_saved = false;
            }
        }
    }

    /// Returns the workers of an agent that have asked for work here, each with the time since then.
    pub fn seen(&self, agent: &AgentName) -> Vec<(WorkerName, Span)> {
        let state = self.state.lock();
        let of_agent = state.seen.iter().filter(|((of, _), _)| of == agent);
        of_agent
            .map(|((_, worker), seen)| (worker.clone(), Span::from(seen.at.elapsed())))
            .collect()
    }

    /// Returns the steps of a request, and closes it for further ones. Without `is_last` it returns `None` if there is
    /// no step, or while another step is being claimed for the request.
    fn collect(&self, id: u64, is_last: bool) -> Option<Vec<ClaimedStep>> {
        let mut state = self.state.lock();
        let State {
            requests, agents, ..
        } = &mut *state;
        let request = requests.get_mut(&id)?;
        if request.arrived.is_empty() && !is_last {
            return None;
        }
        if let Some(of_agent) = agents.get_mut(&request.agent) {
            of_agent.free -= request.free;
        }
        request.free = 0;
        request.is_open = false;
        if request.reserved > 0 && !is_last {
            return None;
        }
        Some(std::mem::take(&mut request.arrived))
    }

    fn remove(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(request) = state.requests.remove(&id) else {
            return;
        };
        state.see(&request.agent, &request.worker);
        if let Some(of_agent) = state.agents.get_mut(&request.agent) {
            of_agent.free -= request.free;
            of_agent.turns.retain(|other| *other != id);
            of_agent.count -= 1;
            if of_agent.count == 0 {
                state.agents.remove(&request.agent);
            }
        }
        self.count.store(state.requests.len(), Ordering::Release);
        drop(state);
        self.take_back(request.arrived);
    }

    fn take_back(&self, steps: Vec<ClaimedStep>) {
        if !steps.is_empty() {
            (self.take_back)(steps.into_iter().map(|step| step.call).collect());
        }
    }
}

/// A step that was claimed for a worker.
struct ClaimedStep {
    call: Call,
    /// The time when the claim was decided.
    at: Instant,
}

/// The steps of a response. They are released if the response is not sent.
pub struct FetchedSteps {
    all: Arc<WorkRequests>,
    steps: Vec<ClaimedStep>,
}

impl FetchedSteps {
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.steps.iter().map(|step| &step.call)
    }

    /// Returns the time since the first of the steps was claimed.
    pub fn age(&self) -> Duration {
        let ages = self.steps.iter().map(|step| step.at.elapsed());
        ages.max().unwrap_or_default()
    }

    /// Returns the calls, which are sent now.
    pub fn into_calls(mut self) -> Vec<Call> {
        let steps = std::mem::take(&mut self.steps);
        steps.into_iter().map(|step| step.call).collect()
    }
}

impl Drop for FetchedSteps {
    fn drop(&mut self) {
        self.all.take_back(std::mem::take(&mut self.steps));
    }
}

/// A waiting request. It is withdrawn when it is dropped.
pub struct WorkRequest {
    all: Arc<WorkRequests>,
    id: u64,
    changed: Arc<Notify>,
}

impl WorkRequest {
    /// Waits until there are steps.
    pub async fn arrived(&mut self) -> FetchedSteps {
        loop {
            let changed = self.changed.notified();
            if let Some(steps) = self.all.collect(self.id, false) {
                return self.fetched(steps);
            }
            let has_some = {
                let state = self.all.state.lock();
                let request = state.requests.get(&self.id);
                request.is_some_and(|request| !request.arrived.is_empty())
            };
            if !has_some {
                changed.await;
            } else if timeout(COLLECT_WITHIN, changed).await.is_err() {
                return self.rest();
            }
        }
    }

    /// Returns the steps that have arrived. Nothing more is claimed for this request.
    pub fn rest(&mut self) -> FetchedSteps {
        let steps = self.all.collect(self.id, true);
        self.fetched(steps.unwrap_or_default())
    }

    fn fetched(&self, steps: Vec<ClaimedStep>) -> FetchedSteps {
        FetchedSteps {
            all: self.all.clone(),
            steps,
        }
    }
}

impl Drop for WorkRequest {
    fn drop(&mut self) {
        self.all.remove(self.id);
    }
}

/// The right to claim one step for a worker. When it is dropped unused, the worker takes another step.
pub(super) struct WorkerSlot {
    all: Arc<WorkRequests>,
    id: u64,
    pub worker: WorkerName,
    is_used: bool,
}

impl WorkerSlot {
    /// Sends the step to the worker. Its claim was decided at the instant `at`.
    pub fn deliver(mut self, call: Call, at: Instant) {
        self.is_used = true;
        let step = ClaimedStep { call, at };
        let mut state = self.all.state.lock();
        match state.requests.get_mut(&self.id) {
            Some(request) => {
                request.reserved -= 1;
                request.arrived.push(step);
                request.changed.notify_one();
            }
            None => {
                drop(state);
                self.all.take_back(vec![step]);
            }
        }
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut state = self.all.state.lock();
        let State {
            requests, agents, ..
        } = &mut *state;
        let Some(request) = requests.get_mut(&self.id) else {
            return;
        };
        request.reserved -= 1;
        if request.is_open
            && let Some(of_agent) = agents.get_mut(&request.agent)
        {
            request.free += 1;
            of_agent.free += 1;
            if !request.is_in_turns {
                request.is_in_turns = true;
                of_agent.turns.push_back(self.id);
            }
        }
        request.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::{
        definition::{Method, ReplyMode, Target},
        task::{DroppedBy, Purpose},
        values::{Attempt, CallTrace, StepIndex, StepName, StepRef, TaskId, Timestamp},
    };

    type TakenBack = Arc<Mutex<Vec<Attempt>>>;

    fn all() -> (Arc<WorkRequests>, TakenBack) {
        let taken_back = TakenBack::default();
        let noted = taken_back.clone();
        let all = WorkRequests::new(Box::new(move |calls| {
            let attempts = calls.iter().map(|call| call.attempt);
            noted.lock().extend(attempts);
        }));
        (all, taken_back)
    }

    fn video() -> AgentName {
        AgentName::new("video")
    }

    fn ask(all: &Arc<WorkRequests>, worker: &str, most: usize) -> WorkRequest {
        all.add(video(), WorkerName::new(worker), most)
    }

    fn call(number: u32) -> Call {
        let step = StepRef {
            task: TaskId(Uuid::from_u128(1)),
            step: StepIndex(0),
        };
        Call {
            step,
            step_name: StepName::new("a"),
            task_key: None,
            attempt: Attempt(number),
            transient_faults: 0,
            idempotency_key: String::new(),
            target: Target::Agent(video()),
            method: Method::Post,
            path: String::new(),
            headers: Vec::new(),
            body: None,
            complete_by: Timestamp::from_millis(0),
            wall_complete_by: Timestamp::from_millis(0),
            complete_within: Span::default(),
            trace: CallTrace::of(None, step, Attempt(number)),
            purpose: Purpose::Work,
            needs_new_connection: false,
            dropped_by: DroppedBy::Withdrawal,
            reply_mode: ReplyMode::Response,
            heartbeat_within: None,
            reply_url: None,
            rules: None,
        }
    }

    fn attempts(fetched: FetchedSteps) -> Vec<u32> {
        let calls = fetched.into_calls();
        calls.iter().map(|call| call.attempt.0).collect()
    }

    #[tokio::test]
    async fn what_is_claimed_with_its_slots_goes_to_the_worker_and_then_it_takes_nothing_more() {
        let (all, taken_back) = all();
        assert!(all.try_take(&video()).is_none());
        let mut asked = ask(&all, "w-1", 3);
        assert_eq!(all.free(&video()), 3);
        assert_eq!(all.free(&AgentName::new("audio")), 0);
        for number in [1, 2] {
            let slot = all.try_take(&video()).unwrap();
            assert_eq!(slot.worker.as_str(), "w-1");
            slot.deliver(call(number), clock::instant());
        }
        assert_eq!(attempts(asked.arrived().await), [1, 2]);
        assert_eq!(all.free(&video()), 0);
        assert!(all.try_take(&video()).is_none());
        drop(asked);
        assert!(taken_back.lock().is_empty());
        assert!(all.state.lock().agents.is_empty());
    }

    #[tokio::test]
    async fn requests_take_turns() {
        let (all, _) = all();
        let requests = [
            ask(&all, "w-1", 2),
            ask(&all, "w-2", 2),
            ask(&all, "w-3", 1),
        ];
        let slots = std::iter::from_fn(|| all.try_take(&video()));
        let slots: Vec<_> = slots.collect();
        let workers: Vec<_> = slots.iter().map(|slot| slot.worker.to_string()).collect();
        assert_eq!(workers, ["w-1", "w-2", "w-3", "w-1", "w-2"]);
        drop(slots);
        assert_eq!(all.free(&video()), 5, "unused slots are free again");
        let again: Vec<_> = std::iter::from_fn(|| all.try_take(&video())).collect();
        assert_eq!(again.len(), 5);
        drop((again, requests));
        assert_eq!(all.free(&video()), 0);
    }

    #[tokio::test]
    async fn a_worker_with_steps_waits_for_those_that_are_being_claimed_but_not_for_long() {
        let (all, taken_back) = all();
        let mut asked = ask(&all, "w-1", 3);
        let (first, second) = (
            all.try_take(&video()).unwrap(),
            all.try_take(&video()).unwrap(),
        );
        first.deliver(call(1), clock::instant());
        let given_back = all.try_take(&video()).unwrap();
        {
            let arrived = asked.arrived();
            tokio::pin!(arrived);
            assert!(futures::poll!(&mut arrived).is_pending());
            drop(given_back);
            assert_eq!(all.free(&video()), 0, "it is about to respond");
            assert_eq!(attempts(arrived.await), [1]);
        }
        second.deliver(call(2), clock::instant());
        drop(asked);
        assert_eq!(*taken_back.lock(), [Attempt(2)], "it came too late");
    }

    #[tokio::test]
    async fn what_a_worker_does_not_get_because_it_hung_up_is_taken_back() {
        let (all, taken_back) = all();
        let asked = ask(&all, "w-1", 2);
        all.try_take(&video())
            .unwrap()
            .deliver(call(1), clock::instant());
        let under_way = all.try_take(&video()).unwrap();
        drop(asked);
        assert_eq!(*taken_back.lock(), [Attempt(1)]);
        under_way.deliver(call(2), clock::instant());
        assert_eq!(*taken_back.lock(), [Attempt(1), Attempt(2)]);
    }

    #[tokio::test]
    async fn workers_are_saved_once_after_each_request() {
        let (all, _) = all();
        let seen = |all: &WorkRequests| -> Vec<String> {
            let seen = all.take_seen();
            seen.iter()
                .map(|(_, worker, _)| worker.to_string())
                .collect()
        };
        let asked = ask(&all, "w-1", 1);
        assert_eq!(seen(&all), ["w-1"]);
        assert!(seen(&all).is_empty());
        drop(asked);
        let unsaved = all.take_seen();
        assert_eq!(unsaved.len(), 1);
        all.see_again(&unsaved);
        assert_eq!(seen(&all), ["w-1"]);
        assert_eq!(all.seen(&video()).len(), 1);
        for number in 0..MOST_SEEN + 10 {
            drop(ask(&all, &format!("x-{number}"), 1));
        }
        assert!(all.state.lock().seen.len() <= MOST_SEEN);
    }
}
