//! Tests of agents against real sockets on loopback. The remote services differ: see `servers`.

mod answers;
mod faults;
mod http2;
mod known;
mod missing_secrets;
mod servers;
mod undo;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{AddressPolicy, AgentSettings, Agents, Permission};
use crate::domain::{
    agent::{AgentMode, AgentSpec, Endpoint, RetrySpec},
    definition::{Method, ReplyMode, Target},
    task::{Call, CallBody, CallOutcome, DroppedBy, Purpose},
    values::{
        AgentName, Attempt, CallTrace, Fault, FaultKind, Span, StepIndex, StepName, StepRef,
        TaskId, Timestamp,
    },
};

/// So long that it never ends a call, even on a busy machine.
const AMPLE: Duration = Duration::from_secs(30);
/// The time for calls that can end only at their complete-by.
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
        zone: None,
        drain: false,
    };
    AgentSpec {
        mode: AgentMode::Call,
        endpoints: urls.iter().map(endpoint).collect(),
        retry: RetrySpec {
            initial: Span::from_millis(1),
            max: Span::from_millis(2),
            factor: 2,
            budget_percent: None,
        },
        ..AgentSpec::default()
    }
}

fn payments() -> AgentName {
    AgentName::new("payments")
}

/// Returns a registry with the agent `payments` at `url` and no other.
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
        transient_faults: 0,
        idempotency_key: "0197-charge".to_owned(),
        target: Target::Agent(payments()),
        method: Method::Post,
        path: "/charges".to_owned(),
        headers: vec![],
        body: Some(CallBody::Rendered(r#"{"amount":5}"#.to_owned())),
        complete_by: Timestamp::from_millis(1_700_000_000_000),
        wall_complete_by: Timestamp::from_millis(1_700_000_000_000),
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
        needs_new_connection: false,
        dropped_by: DroppedBy::Withdrawal,
        reply_mode: ReplyMode::Response,
        heartbeat_within: None,
        reply_url: None,
        rules: None,
    }
}

/// A permission that is always granted.
struct Granted;

#[async_trait]
impl Permission for Granted {
    async fn granted(&self, _: &Call) {}
}

/// A transient fault, and the wait after it.
type Noted = (Fault, Duration);

struct Ended {
    outcome: Option<CallOutcome>,
    noted: Vec<Noted>,
}

impl Ended {
    fn output(self) -> String {
        match self.outcome {
            Some(CallOutcome::Success(output)) => output.as_json().to_owned(),
            other => panic!("no success: {other:?}"),
        }
    }

    fn fault(self) -> Fault {
        match self.outcome {
            Some(CallOutcome::Failed(fault)) => {
                assert_eq!(fault.kind, FaultKind::Permanent);
                fault
            }
            other => panic!("no fault: {other:?}"),
        }
    }
}

/// Calls until the outcome is not a transient fault, as a scheduler does, or until `within` is over.
async fn run(agents: &Agents, call: Call, within: Duration) -> Ended {
    run_until(agents, call, within, usize::MAX).await
}

/// Returns the first `count` transient faults.
async fn faults(agents: &Agents, count: usize) -> Vec<Noted> {
    let ended = run_until(agents, a_call(), AMPLE, count).await;
    assert_eq!(ended.noted.len(), count, "{:?}", ended.outcome);
    ended.noted
}

async fn run_until(agents: &Agents, mut call: Call, within: Duration, faults: usize) -> Ended {
    let deadline = Instant::now() + within;
    let mut noted = Vec::new();
    loop {
        let outcome = agents
            .call(&call, call.body.clone(), deadline, &Granted)
            .await
            .map(|report| report.outcome);
        let Some(CallOutcome::Transient { fault, wait }) = outcome else {
            return Ended { outcome, noted };
        };
        let wait = wait.whole();
        noted.push((fault, wait));
        call.attempt = call.attempt.next();
        call.transient_faults += 1;
        let next = Instant::now() + wait;
        if next >= deadline || noted.len() == faults {
            let outcome = None;
            return Ended { outcome, noted };
        }
        tokio::time::sleep_until(next).await;
    }
}
