//! Random commands.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    task::{
        open_reply::{Progress, ReplyDigest},
        retry_budget::RetryWait,
    },
    values::ids::WorkerName,
};

/// A random command; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Claim(usize),
    Fetch(usize),
    TakeBack(usize, u32),
    Succeed(usize, u32),
    Fail(usize, u32),
    Break(usize, u32),
    Probed(usize, u16),
    Defer(usize, u32, u64),
    Promise(usize, u32),
    LaterReply(usize, u32, bool),
    Heartbeat(usize, u32),
    Release(usize, u32),
    Expire(usize, u32),
    Lose(usize, u32),
    Overdue,
    Signal(usize, bool),
    Retry(Option<usize>),
    Again(usize),
    SkipFailed,
    Skip(usize),
    Resolve(usize),
    CancelStep(usize),
    Cancel,
    Undo,
    Pause,
    Resume,
    Admit,
    Start,
    /// To the other version, or back.
    Migrate,
    Wait(u64),
}

pub(super) fn asks() -> impl Strategy<Value = Vec<Ask>> {
    vec(ask(), 0..90)
}

/// The commands to a task that has not begun: pauses, resumptions, admissions, starts, and signals that come early.
pub(super) fn early_asks() -> impl Strategy<Value = Vec<Ask>> {
    let early = prop_oneof![
        3 => Just(Ask::Pause),
        3 => Just(Ask::Resume),
        2 => Just(Ask::Admit),
        2 => Just(Ask::Start),
        1 => Just(Ask::Overdue),
        2 => (0..12usize).prop_map(Ask::Skip),
        1 => (0..12usize).prop_map(Ask::Resolve),
        3 => (0..12usize, any::<bool>()).prop_map(|(step, first)| Ask::Signal(step, first)),
        1 => (1..100_000u64).prop_map(Ask::Wait),
    ];
    let early = vec(early, 0..8);
    (early, vec(ask(), 0..40)).prop_map(|(mut early, later)| {
        early.extend(later);
        early
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    // Up to six steps, and what undoes them.
    let step = 0..12usize;
    // Mostly the live attempt; sometimes one before it.
    let behind = prop_oneof![4 => Just(0u32), 1 => 1..3u32];
    prop_oneof![
        8 => step.clone().prop_map(Ask::Claim),
        3 => step.clone().prop_map(Ask::Fetch),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::TakeBack(s, b)),
        6 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Succeed(s, b)),
        3 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Fail(s, b)),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Break(s, b)),
        3 => (step.clone(), any::<bool>())
            .prop_map(|(s, done)| Ask::Probed(s, if done { 200 } else { 404 })),
        3 => (step.clone(), behind.clone(), prop_oneof![0..30u64, Just(3600)])
            .prop_map(|(s, b, wait)| Ask::Defer(s, b, wait)),
        3 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Promise(s, b)),
        3 => (step.clone(), behind.clone(), any::<bool>())
            .prop_map(|(s, b, succeeds)| Ask::LaterReply(s, b, succeeds)),
        1 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Heartbeat(s, b)),
        2 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Release(s, b)),
        4 => (step.clone(), behind.clone()).prop_map(|(s, b)| Ask::Expire(s, b)),
        2 => (step.clone(), behind).prop_map(|(s, b)| Ask::Lose(s, b)),
        1 => Just(Ask::Overdue),
        3 => (step.clone(), any::<bool>()).prop_map(|(s, b)| Ask::Signal(s, b)),
        3 => proptest::option::of(step.clone()).prop_map(Ask::Retry),
        2 => step.clone().prop_map(Ask::Again),
        1 => Just(Ask::SkipFailed),
        1 => step.clone().prop_map(Ask::Skip),
        1 => step.clone().prop_map(Ask::Resolve),
        2 => step.prop_map(Ask::CancelStep),
        1 => Just(Ask::Cancel),
        2 => Just(Ask::Undo),
        1 => Just(Ask::Pause),
        2 => Just(Ask::Resume),
        3 => Just(Ask::Migrate),
        4 => (1..100_000u64).prop_map(Ask::Wait),
    ]
}

impl Ask {
    pub(super) fn command(&self, task: &Task, now: Timestamp) -> Option<Command> {
        // Mostly one that the command is meant for, or next to nothing would ever get far.
        let choose = |step: &usize, meant: &dyn Fn(StepIndex) -> bool| {
            let meant: Vec<_> = task.indexes().filter(|index| meant(*index)).collect();
            match meant.get(step % (meant.len() + 1)) {
                Some(index) => *index,
                None => StepIndex((step % task.indexes().count()) as u16),
            }
        };
        let due = |step: &usize| choose(step, &|index| task.due_at(index).is_some());
        let at = |step: &usize| {
            choose(step, &|index| {
                matches!(task.step(index).state, StepState::Processing { .. })
            })
        };
        let attempt = |step: StepIndex, behind: &u32| {
            Attempt(task.step(step).attempt.0.saturating_sub(*behind))
        };
        let fault = || Fault::transient("503", now);
        Some(match self {
            Ask::Claim(step) => Command::Claim {
                step: due(step),
                by: Claimant::Instance(InstanceId::new("node-1")),
            },
            Ask::Fetch(step) => Command::Claim {
                step: due(step),
                by: Claimant::Worker(WorkerName::new("w-1")),
            },
            Ask::TakeBack(step, behind) => Command::Release {
                step: at(step),
                attempt: attempt(at(step), behind),
                why: Release::Undelivered,
            },
            Ask::Succeed(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: success(json!({})),
            },
            Ask::Fail(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: refusal(400),
            },
            Ask::Break(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Crashed(fault()),
            },
            Ask::Probed(step, status) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), &0),
                outcome: CallOutcome::Probed {
                    status: *status,
                    body: Payload::null(),
                },
            },
            Ask::Defer(step, behind, wait) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Transient {
                    fault: fault(),
                    wait: RetryWait {
                        backoff: Duration::from_secs(*wait),
                        parked: Duration::from_secs(*wait / 2),
                    },
                },
            },
            Ask::Promise(step, behind) => Command::Reply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: CallOutcome::Deferred,
            },
            Ask::LaterReply(step, behind, succeeds) => Command::LaterReply {
                step: at(step),
                attempt: attempt(at(step), behind),
                outcome: match succeeds {
                    true => success(json!({})),
                    false => refusal(400),
                },
                digest: ReplyDigest(succeeds.to_string()),
            },
            Ask::Heartbeat(step, behind) => Command::Heartbeat {
                step: at(step),
                attempt: attempt(at(step), behind),
                progress: Progress {
                    fraction: Some(0.5),
                    ..Progress::default()
                },
            },
            Ask::Release(step, behind) => Command::Release {
                step: at(step),
                attempt: attempt(at(step), behind),
                why: match task.is_to_be_dropped(at(step)) {
                    true => Release::Dropped,
                    false => Release::Restart,
                },
            },
            Ask::Expire(step, behind) => Command::Expire {
                step: at(step),
                attempt: attempt(at(step), behind),
                cause: Expiry::CompleteBy,
            },
            Ask::Lose(step, behind) => Command::Expire {
                step: at(step),
                attempt: attempt(at(step), behind),
                cause: Expiry::InstanceLost,
            },
            Ask::Overdue => Command::Overdue,
            Ask::Signal(step, first) => Command::Signal {
                step: at(step),
                payload: Payload::null(),
                digest: ReplyDigest(first.to_string()),
            },
            Ask::Retry(step) => Command::Retry {
                step: step.as_ref().map(due),
                body: None,
                reason: None,
            },
            Ask::Again(step) => Command::RetryFrom {
                step: StepIndex((step % task.steps.len()) as u16),
                reason: None,
            },
            Ask::SkipFailed => Command::SkipFailed {
                step: None,
                output: None,
                reason: None,
            },
            Ask::Skip(step) => Command::Skip {
                step: due(step),
                output: None,
                reason: None,
            },
            Ask::Resolve(step) => Command::Resolve {
                step: due(step),
                output: Payload::null(),
                reason: None,
            },
            Ask::CancelStep(step) => Command::CancelStep {
                step: choose(step, &|index| {
                    task.step(index).status() == StepStatus::Processing
                }),
                reason: None,
            },
            Ask::Cancel => Command::Cancel { reason: None },
            Ask::Undo => Command::Undo { reason: None },
            Ask::Pause => Command::Pause { reason: None },
            Ask::Resume => Command::Resume { reason: None },
            Ask::Admit => Command::Admit,
            Ask::Start => Command::Start { reason: None },
            Ask::Migrate | Ask::Wait(_) => return None,
        })
    }
}
