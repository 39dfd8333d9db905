//! The steps of two tasks by their names, those that differ first.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    documents::{LastResponse, requests, responses},
    list::{Comparer, DifferenceList},
};
use crate::{
    definition::StepKind,
    task::{
        aggregate::Task,
        attempt_record::{AttemptPurpose, AttemptRecord, AttemptResult},
        step::{StepState, StepStatus},
    },
    values::{
        fields::escape,
        ids::{StepIndex, StepName},
        shortened::shortened,
        time::{Span, Timestamp},
    },
    view::{attempts::latest_attempt, words::DurationSchema},
};

/// The most steps that are shown.
const MOST_STEPS: usize = 100;
/// The most steps whose attempts are read and compared.
const MOST_COMPARED: usize = 40;
/// The most items in error of each group that are shown.
const MOST_ITEMS: usize = 5;
/// The longest reason, in bytes.
const LONGEST_REASON: usize = 500;
/// The longest URL of an endpoint, in bytes.
const LONGEST_ENDPOINT: usize = 250;
/// A step takes longer if it takes twice as long, and this much longer.
const NOTABLY_LONGER: Span = Span::from_millis(500);

/// A step of two tasks.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ComparedStep {
    #[schema(value_type = String, example = "charge")]
    pub name: StepName,
    /// `call`, or the kind of a step that calls no service.
    #[schema(value_type = StepKind)]
    pub kind: &'static str,
    /// The parts that differ. What follows from something else does not count: ids, keys, what comes from the input or from
    /// earlier steps; nor do other texts and numbers in the responses of steps that have not failed.
    #[schema(example = json!(["state", "request", "response"]))]
    pub differs: Vec<StepPart>,
    /// Null if task `a` has no such step.
    #[schema(required)]
    pub a: Option<ComparedSide>,
    /// Null if task `b` has no such step.
    #[schema(required)]
    pub b: Option<ComparedSide>,
    /// The differences of the last requests: `/method`, `/path` (after the URL of the endpoint, with the query),
    /// `/headers/…` and `/body…`; `/body_sha256` where a body is not recorded whole. Headers that Provost sets for
    /// each attempt are left out. If one of the requests was rendered again, only the headers that both have are
    /// compared. Null unless both requests are known.
    #[schema(required)]
    pub request: Option<DifferenceList>,
    /// The differences of the last responses: `/status`, `/headers/…` and `/body…`, each if both are known. The body of
    /// a response that was accepted is the output of the step. Null unless something is known of both responses.
    #[schema(required)]
    pub response: Option<DifferenceList>,
}

/// A part of a step that may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    State,
    Request,
    Response,
    /// The errors.
    Reason,
    /// The number of attempts.
    Attempts,
    /// One took at least twice as long, and half a second longer.
    Duration,
}

/// A step of one of the tasks.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ComparedSide {
    #[schema(value_type = StepStatus)]
    pub state: &'static str,
    /// The number of the last attempt; 0 before the first.
    #[schema(example = 3)]
    pub attempts: u32,
    /// From the first claim to the end; null until then.
    #[schema(value_type = Option<DurationSchema>, required)]
    pub duration: Option<Span>,
    /// The message of the error, or what the history says about the end of the last attempt.
    #[schema(required, example = "the service responded 422 Unprocessable Entity")]
    pub reason: Option<String>,
    /// The task of the last attempt, if the step has one.
    #[schema(required)]
    pub child: Option<Uuid>,
    /// The last attempt that is under way or recorded, or that succeeded. Null if there is none, if the step calls no
    /// service, if one of the tasks has not come to this step, and beyond the first 40 steps.
    #[schema(required)]
    pub attempt: Option<ComparedAttempt>,
}

/// The last attempt of a step. `GET /v1/tasks/{id}/steps/{name}/attempts/{attempt}` has all of it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ComparedAttempt {
    #[schema(example = 3)]
    pub attempt: u32,
    pub purpose: AttemptPurpose,
    /// Null while it is under way.
    #[schema(required)]
    pub result: Option<AttemptResult>,
    /// False: the request was rendered again from the record of the task. Null if no request is known.
    #[schema(required)]
    pub as_sent: Option<bool>,
    /// Null if it is not recorded, as for most attempts that succeed.
    #[schema(required, example = 422)]
    pub status: Option<u16>,
    /// Null if it is not recorded.
    #[schema(required, example = "https://payments.example")]
    pub endpoint: Option<String>,
    /// Null if it is not recorded.
    #[schema(required, example = "eu-1")]
    pub instance: Option<String>,
    /// From the begin of sending to the head of the response; null if that is not recorded.
    #[schema(value_type = Option<DurationSchema>, required)]
    pub duration: Option<Span>,
}

/// A step that both tasks have, or one of them.
pub(super) struct StepPair {
    name: StepName,
    indexes: [Option<StepIndex>; 2],
    /// True if its attempts are compared.
    is_compared: bool,
}

impl StepPair {
    /// Returns the rank of the pair by what the tasks alone say, and whether there may be anything to compare.
    fn rank(&self, tasks: [&Task; 2]) -> (u8, bool) {
        let steps = [0, 1].map(|side| self.indexes[side].map(|at| tasks[side].step(at)));
        let [Some(a), Some(b)] = steps else {
            return (1, false);
        };
        let states = [a.status(), b.status()];
        let failures = states.iter().filter(|state| **state == StepStatus::Error);
        let has_begun = !states.contains(&StepStatus::Waiting);
        let rank = match failures.count() {
            1 => 0,
            2 => 2,
            _ if states[0] != states[1] && has_begun => 1,
            _ if states[0] != states[1] => 4,
            _ if a.attempt != b.attempt => 3,
            _ => 5,
        };
        (rank, has_begun)
    }
}

/// Returns the steps of two tasks in their order, and whether there are more. If there are too many, those stay that are
/// likely to differ.
pub(super) fn pairs(tasks: [&Task; 2]) -> (Vec<StepPair>, bool) {
    let [a, b] = tasks;
    let name = |task: &Task, at: StepIndex| task.definition(at).name.clone();
    let own: Vec<_> = b.own_indexes().map(|at| (name(b, at), at)).collect();
    let mut others: BTreeMap<_, _> = own.iter().cloned().collect();
    let mut pairs: Vec<_> = a
        .own_indexes()
        .map(|at| {
            let name = name(a, at);
            let other = others.remove(&name);
            (name, [Some(at), other])
        })
        .collect();
    let only_b = own
        .into_iter()
        .filter(|(name, _)| others.contains_key(name));
    pairs.extend(only_b.map(|(name, at)| (name, [None, Some(at)])));
    let failed = tasks.into_iter().flat_map(|task| {
        let groups = task.groups().iter();
        groups.flat_map(|group| {
            let items = task.steps.find_in(&group.items, StepStatus::Error);
            // There are at most as many steps as an index can count.
            let items = items.take(MOST_ITEMS).map(|at| StepIndex(at as u16));
            items.map(|at| task.definition(at).name.clone())
        })
    });
    let failed: BTreeSet<_> = failed.collect();
    pairs.extend(failed.into_iter().map(|name| {
        let indexes = tasks.map(|task| task.find(name.as_str()));
        (name, indexes)
    }));
    let pairs = pairs.into_iter().map(|(name, indexes)| StepPair {
        name,
        indexes,
        is_compared: false,
    });
    let mut ranked: Vec<_> = pairs
        .enumerate()
        .map(|(number, pair)| (pair.rank(tasks), number, pair))
        .collect();
    ranked.sort_by_key(|((rank, _), number, _)| (*rank, *number));
    let has_more = ranked.len() > MOST_STEPS;
    ranked.truncate(MOST_STEPS);
    let comparable = ranked
        .iter_mut()
        .filter(|((_, is_comparable), ..)| *is_comparable);
    for (_, _, pair) in comparable.take(MOST_COMPARED) {
        pair.is_compared = true;
    }
    ranked.sort_by_key(|(_, number, _)| *number);
    let pairs = ranked.into_iter().map(|(_, _, pair)| pair);
    (pairs.collect(), has_more)
}

/// Returns the steps of each task whose last attempts are needed.
pub(super) fn with_attempts(tasks: [&Task; 2], pairs: &[StepPair]) -> [Vec<StepIndex>; 2] {
    [0, 1].map(|side| {
        let indexes = pairs.iter().filter(|pair| pair.is_compared);
        let indexes = indexes.filter_map(|pair| pair.indexes[side]);
        let is_called = |at: &StepIndex| {
            tasks[side].definition(*at).is_call() && tasks[side].step(*at).attempt.0 > 0
        };
        indexes.filter(is_called).collect()
    })
}

/// One side of a step, as far as its record says.
struct KnownSide<'t> {
    task: &'t Task,
    index: StepIndex,
    /// The last attempt, and its result.
    attempt: Option<(AttemptRecord, Option<AttemptResult>)>,
}

impl KnownSide<'_> {
    fn view(&self, response: Option<&LastResponse<'_>>) -> ComparedSide {
        let step = self.task.step(self.index);
        let ended = step.ended_at();
        let times = step.started_at.zip(ended);
        let record = self.attempt.as_ref().map(|(record, _)| record);
        let reason = match &step.state {
            StepState::Error(fault) => Some(fault.message.as_str()),
            _ => record.and_then(|record| record.reason.as_deref()),
        };
        ComparedSide {
            state: step.status().as_str(),
            attempts: step.attempt.0,
            duration: times.map(|(started, ended)| ended.since(started).into()),
            reason: reason.map(|reason| shortened(reason, LONGEST_REASON)),
            child: step.child.as_ref().map(|child| child.id.0),
            attempt: self.attempt.as_ref().map(|(record, result)| {
                let exchange = record.exchange.as_deref();
                let times = exchange.map(|exchange| exchange.times);
                let times = times.and_then(|times| times.began_at.zip(times.responded_at));
                let endpoint = exchange.and_then(|exchange| exchange.endpoint.as_deref());
                let instance = exchange.and_then(|exchange| exchange.instance.as_ref());
                ComparedAttempt {
                    attempt: record.attempt.0,
                    purpose: record.purpose,
                    result: *result,
                    as_sent: exchange.map(|exchange| exchange.is_as_sent),
                    status: response.and_then(|response| response.status),
                    endpoint: endpoint.map(|url| shortened(url, LONGEST_ENDPOINT)),
                    instance: instance.map(ToString::to_string),
                    duration: times.map(|(began, responded)| responded.since(began).into()),
                }
            }),
        }
    }
}

/// Compares the steps. `records` are the last attempts of those that [`with_attempts`] has named.
pub(super) fn compare(
    tasks: [&Task; 2],
    pairs: Vec<StepPair>,
    mut records: [BTreeMap<StepIndex, AttemptRecord>; 2],
    comparer: &mut Comparer<'_>,
    now: Timestamp,
) -> Vec<ComparedStep> {
    let mut steps = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let [a, b] = [0, 1].map(|side| {
            let (task, index) = (tasks[side], pair.indexes[side]?);
            let record = records[side].remove(&index);
            let attempt = { pair.is_compared }.then(|| latest_attempt(task, index, now, record));
            Some(KnownSide {
                task,
                index,
                attempt: attempt.flatten(),
            })
        });
        let step = step(pair, a, b, comparer);
        if let Some(list) = &step.response {
            // The body of a response is the output of its step.
            let pointer = format!("/steps/{}/output", escape(step.name.as_str()));
            comparer.add_sources(&pointer, &list.below("/body"));
        }
        steps.push(step);
    }
    steps.sort_by_key(ComparedStep::rank);
    steps
}

fn step(
    pair: StepPair,
    a: Option<KnownSide<'_>>,
    b: Option<KnownSide<'_>>,
    comparer: &Comparer<'_>,
) -> ComparedStep {
    let sides = [&a, &b].map(Option::as_ref);
    let responses_of = sides.map(|side| {
        let side = side.filter(|_| pair.is_compared)?;
        let record = side.attempt.as_ref().map(|(record, _)| record);
        Some(LastResponse::of(side.task, side.index, record))
    });
    let exchanges = sides.map(|side| {
        let (record, _) = side?.attempt.as_ref()?;
        record.exchange.as_deref()
    });
    let request = match exchanges {
        [Some(a), Some(b)] => {
            let [a, b] = requests(a, b);
            Some(comparer.list(&a, &b))
        }
        _ => None,
    };
    let response = match &responses_of {
        [Some(a), Some(b)] => responses(a, b).map(|[a, b]| comparer.list(&a, &b)),
        _ => None,
    };
    let [of_a, of_b] = [0, 1].map(|side| {
        let known = sides[side]?;
        Some(known.view(responses_of[side].as_ref()))
    });
    let kind = sides.into_iter().flatten().next();
    let kind = kind.map_or(StepKind::Call, |side| {
        side.task.definition(side.index).work.kind()
    });
    let mut step = ComparedStep {
        name: pair.name,
        kind: kind.as_str(),
        differs: Vec::new(),
        a: of_a,
        b: of_b,
        request,
        response,
    };
    step.differs = step.parts_that_differ();
    step
}

impl ComparedStep {
    fn parts_that_differ(&self) -> Vec<StepPart> {
        let (Some(a), Some(b)) = (&self.a, &self.b) else {
            return vec![StepPart::State];
        };
        let is_telling = |list: &Option<DifferenceList>| {
            let list = list.as_ref();
            list.is_some_and(DifferenceList::is_telling)
        };
        let error = StepStatus::Error.as_str();
        let failures = [a, b].map(|side| side.state == error);
        let have_failed = failures == [true, true];
        let has_other_form = match (&self.response, failures) {
            (Some(list), [false, false]) => list.has_other_form(),
            _ => is_telling(&self.response),
        };
        let parts = [
            (StepPart::State, a.state != b.state),
            (StepPart::Request, is_telling(&self.request)),
            (StepPart::Response, has_other_form),
            (StepPart::Reason, have_failed && a.reason != b.reason),
            (StepPart::Attempts, a.attempts != b.attempts),
            (
                StepPart::Duration,
                is_notably_longer(a.duration, b.duration),
            ),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs);
        parts.map(|(part, _)| part).collect()
    }

    fn rank(&self) -> u8 {
        let states = [&self.a, &self.b].map(|side| side.as_ref().map(|side| side.state));
        let is = |status: StepStatus| {
            let state = Some(status.as_str());
            states.iter().filter(|known| **known == state).count()
        };
        match self.differs.as_slice() {
            _ if is(StepStatus::Error) == 1 => 0,
            // One of the tasks has not come so far.
            [StepPart::State, ..] if is(StepStatus::Waiting) > 0 => 4,
            [StepPart::State, ..] => 1,
            _ if is(StepStatus::Error) == 2 => 2,
            [] => 6,
            [StepPart::Attempts | StepPart::Duration, ..] => 5,
            _ => 3,
        }
    }
}

fn is_notably_longer(a: Option<Span>, b: Option<Span>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    let (shorter, longer) = (a.min(b), a.max(b));
    longer >= shorter.saturating_mul(2) && longer >= shorter.saturating_add(NOTABLY_LONGER)
}
