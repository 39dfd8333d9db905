//! Agents against real sockets on loopback. What differs is the remote service: see `servers`.

mod answers;
mod faults;
mod known;
mod servers;
mod undo;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::mpsc, time::Instant};

use super::{AddressPolicy, AgentSettings, Agents, Notes};
use crate::domain::{
    AgentName, AgentSpec, Attempt, Call, CallTrace, Endpoint, Fault, FaultKind, Method, Outcome,
    Purpose, RetrySpec, Span, StepIndex, StepName, StepRef, Target, TaskId, Timestamp,
};

/// Long enough to never be what ends a call on a busy machine.
const AMPLE: Duration = Duration::from_secs(30);
/// For calls that can only end at their complete-by.
const SHORT: Duration = Duration::from_millis(150);

fn settings() -> AgentSettings {
    AgentSettings {
        addresses: AddressPolicy::private_too(),
        ..AgentSettings::default()
    }
}

fn spec(urls: &[&str]) -> AgentSpec {
    let endpoint = |url: &&str| Endpoint {
        url: (*url).to_owned(),
        max_in_flight: 4,
    };
    AgentSpec {
        endpoints: urls.iter().map(endpoint).collect(),
        retry: RetrySpec {
            initial: Span::from_millis(1),
            max: Span::from_millis(2),
            factor: 2,
        },
    }
}

fn payments() -> AgentName {
    AgentName::new("payments")
}

/// The agent `payments` at `url`, and nothing else.
fn agents_at(url: &str) -> Agents {
    let agents = Agents::new(settings());
    agents.put(payments(), spec(&[url]));
    agents
}

fn a_call() -> Call {
    Call {
        step: StepRef {
            task: TaskId(uuid::Uuid::from_u128(7)),
            step: StepIndex(1),
        },
        step_name: StepName::new("charge"),
        task_key: Some("order-1001".into()),
        attempt: Attempt(2),
        idempotency_key: "0197-charge".to_owned(),
        target: Target::Agent(payments()),
        method: Method::Post,
        path: "/charges".to_owned(),
        headers: vec![],
        body: Some(r#"{"amount":5}"#.to_owned()),
        complete_by: Timestamp::from_millis(1_700_000_000_000),
        complete_within: Span::from_secs(30),
        trace: CallTrace {
            id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
            flags: 0,
            state: Some("rojo=00f067aa0ba902b7".into()),
            step: StepRef {
                task: TaskId(uuid::Uuid::from_u128(7)),
                step: StepIndex(1),
            },
            attempt: Attempt(2),
        },
        purpose: Purpose::Work,
        is_dropped_by_undo: false,
        has_probe: false,
    }
}

/// One transient fault as it was noted: number of the try, fault, wait.
type Noted = (u32, Fault, Duration);

/// Notes that a test can wait for.
struct Recorder(mpsc::UnboundedSender<Noted>);

#[async_trait]
impl Notes for Recorder {
    async fn may_try(&self, _: &Call, _: u32) {}

    async fn transient(&self, _: &Call, try_number: u32, fault: Fault, next_try_in: Duration) {
        let _ = self.0.send((try_number, fault, next_try_in));
    }
}

struct Ended {
    outcome: Option<Outcome>,
    noted: Vec<Noted>,
}

impl Ended {
    fn output(self) -> String {
        match self.outcome {
            Some(Outcome::Success(output)) => output.as_json().to_owned(),
            other => panic!("no success: {other:?}"),
        }
    }

    fn fault(self) -> Fault {
        match self.outcome {
            Some(Outcome::Failed(fault)) => {
                assert_eq!(fault.kind, FaultKind::Permanent);
                fault
            }
            other => panic!("no fault: {other:?}"),
        }
    }
}

async fn run(agents: &Agents, call: Call, within: Duration) -> Ended {
    let (tell, mut told) = mpsc::unbounded_channel();
    let outcome = agents
        .call(call, Instant::now() + within, &Recorder(tell))
        .await;
    let noted = std::iter::from_fn(|| told.try_recv().ok()).collect();
    Ended { outcome, noted }
}

/// Calls until `count` transient faults are noted, then drops the call.
async fn run_until_noted(agents: Agents, count: usize) -> Vec<Noted> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let agents = Arc::new(agents);
    let notes = Recorder(tell);
    let call = agents.call(a_call(), Instant::now() + AMPLE, &notes);
    let noted = async {
        let mut noted = Vec::new();
        while noted.len() < count {
            noted.push(told.recv().await.unwrap());
        }
        noted
    };
    tokio::select! {
        outcome = call => panic!("ended before {count} notes: {outcome:?}"),
        noted = noted => noted,
    }
}
