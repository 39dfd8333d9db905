//! Every rule by example, and the invariants over random sequences of commands.

mod ask;
mod ask_links;
mod block;
mod bounds;
mod cancel_step;
mod children;
mod facts;
mod fetched;
mod finally;
mod from_input;
mod held;
mod invariants;
mod items;
mod keys;
mod later;
mod milestone;
mod patch;
mod prediction;
mod race;
mod race_of_tasks;
mod record;
mod repeat;
mod rerun;
mod room;
mod rules;
mod set;
mod start;
mod tries;
mod undo;
mod undo_plan;
mod version_move;
mod wait;
mod waiting;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    definition::{Accepted, Definition, Limits, Policies, StepLayout, parse_steps},
    task::{
        call::CallOutcome,
        command::{Claimant, Release},
        status::TaskStatus,
        step::StepStatus,
        version_move::VersionMove,
    },
    template::payload::Payload,
    values::{
        fault::{Effect, FaultKind},
        ids::{InstanceId, Priority, TaskId, WorkflowName, WorkflowRef},
        time::Span,
    },
};

/// The definition of an array of steps, or of an object with `steps` and `finally`.
fn definition(steps: &Value) -> Arc<Definition> {
    let policies = match steps.get("finally") {
        Some(finally) => Policies::parse(&json!({ "finally": finally }).to_string()).unwrap(),
        None => Policies::default(),
    };
    let steps = steps.get("steps").unwrap_or(steps);
    let parsed = parse_steps(
        &Payload::from_value(steps),
        "/steps",
        &policies,
        &Limits::default(),
        &Accepted,
    );
    Arc::new(parsed.unwrap_or_else(|faults| panic!("{faults:?}")))
}

fn details(steps: &Value, complete_within: Option<Span>) -> Arc<Details> {
    Arc::new(Details {
        id: TaskId(Uuid::from_u128(7)),
        key: Some("order-1".into()),
        workflow: None,
        definition: definition(steps),
        input: Payload::from_value(&json!({ "total": 30 })),
        labels: BTreeMap::new(),
        priority: Priority::default(),
        complete_within,
        start_at: None,
        trace: None,
        reply_to: None,
        parent: None,
        key_prefix: None,
    })
}

/// A task under test, with a clock of its own.
struct Bench {
    draft: Draft,
    now: Timestamp,
    by: Actor,
}

impl Bench {
    fn new(steps: Value) -> Self {
        Self::limited(steps, None)
    }

    fn limited(steps: Value, complete_within: Option<Span>) -> Self {
        let now = Timestamp::from_millis(1_000_000);
        Self {
            draft: Draft::submit(details(&steps, complete_within), now),
            now,
            by: Actor::operator("test"),
        }
    }

    /// A task of version 1 of a workflow.
    fn of_workflow(steps: &Value, complete_within: Option<Span>) -> Self {
        let mut bench = Self::limited(steps.clone(), complete_within);
        let details = details(steps, complete_within);
        let details = Arc::into_inner(details).unwrap();
        let workflow = Some(WorkflowRef {
            name: WorkflowName::new("order"),
            version: 1,
        });
        let details = Details {
            workflow,
            ..details
        };
        bench.draft = Draft::submit(Arc::new(details), bench.now);
        bench
    }

    /// The move to a version with these steps, laid out over those of the task.
    fn version(&self, steps: &Value, version: u32) -> VersionMove {
        let plain = definition(steps);
        let layout = StepLayout::for_move(&self.draft.task.details.definition, &plain);
        let laid_out = layout.map(|layout| Arc::new(plain.with_layout(&layout).unwrap()));
        VersionMove {
            workflow: WorkflowRef {
                name: WorkflowName::new("order"),
                version,
            },
            definition: laid_out.unwrap_or(plain),
        }
    }

    /// The command that moves the task to that of two versions which it does not have.
    fn other_version(&self, versions: &[Value; 2]) -> Command {
        let has = self.draft.task.details.workflow.as_ref();
        let is_first = has.is_some_and(|has| has.version == 1);
        let to = match is_first {
            true => self.version(&versions[1], 2),
            false => self.version(&versions[0], 1),
        };
        Command::Migrate {
            to: Arc::new(to),
            reason: None,
        }
    }

    fn later(&mut self, span: Span) {
        self.now = self.now + span;
    }

    fn apply(&mut self, command: Command) -> Result<CommandOutput, Refusal> {
        self.draft.apply(command, &self.by, self.now)
    }

    fn step(&self, name: &str) -> StepIndex {
        self.draft.task.find(name).unwrap()
    }

    fn record(&self, name: &str) -> &Step {
        self.draft.task.step(self.step(name))
    }

    fn status(&self, name: &str) -> StepStatus {
        self.record(name).status()
    }

    fn task(&self) -> TaskStatus {
        self.draft.task.status()
    }

    fn claim(&mut self, name: &str) -> Result<Attempt, Refusal> {
        let step = self.step(name);
        let by = Claimant::Instance(InstanceId::new("node-1"));
        self.apply(Command::Claim { step, by })?;
        Ok(self.draft.task.step(step).attempt)
    }

    fn reply(&mut self, name: &str, attempt: Attempt, outcome: CallOutcome) -> Result<(), Refusal> {
        let step = self.step(name);
        self.apply(Command::Reply {
            step,
            attempt,
            outcome,
        })
        .map(|_| ())
    }

    /// Claims a step and has its service ask for another try.
    fn defer(&mut self, name: &str, status: u16, wait: Duration) {
        let attempt = self.claim(name).unwrap();
        let outcome = self.transient(status, wait);
        self.reply(name, attempt, outcome).unwrap();
    }

    fn transient(&self, status: u16, wait: Duration) -> CallOutcome {
        let message = format!("the service responded {status}");
        let fault = Fault {
            status: Some(status),
            effect: Effect::unknown_if(status != 503),
            ..Fault::transient(message, self.now)
        };
        let wait = wait.into();
        CallOutcome::Transient { fault, wait }
    }

    /// Claims a step and has it succeed.
    fn process(&mut self, name: &str) {
        let attempt = self.claim(name).unwrap();
        self.reply(name, attempt, success(json!({ "id": name })))
            .unwrap();
    }

    /// The instance that holds the step confirms that its call is dropped.
    fn confirm_drop(&mut self, name: &str) {
        let step = self.step(name);
        let attempt = self.draft.task.step(step).attempt;
        let why = Release::Dropped;
        let confirm = Command::Release { step, attempt, why };
        self.apply(confirm).unwrap();
    }

    fn expire(&mut self, name: &str) -> Result<(), Refusal> {
        let step = self.step(name);
        let attempt = self.draft.task.step(step).attempt;
        let cause = Expiry::CompleteBy;
        self.apply(Command::Expire {
            step,
            attempt,
            cause,
        })
        .map(|_| ())
    }

    fn lose(&mut self, name: &str, attempt: Attempt) -> Result<(), Refusal> {
        let step = self.step(name);
        let cause = Expiry::InstanceLost;
        self.apply(Command::Expire {
            step,
            attempt,
            cause,
        })
        .map(|_| ())
    }

    fn events(&self) -> Vec<&str> {
        self.draft.events.iter().map(|e| e.kind.as_ref()).collect()
    }
}

fn success(output: Value) -> CallOutcome {
    CallOutcome::Success(Payload::from_value(&output))
}

fn refusal(status: u16) -> CallOutcome {
    CallOutcome::Failed(Fault {
        status: Some(status),
        ..Fault::permanent(
            format!("the service refused with {status}"),
            Timestamp::from_millis(0),
        )
    })
}

/// Every change of the task's state is in the history once, with the event that its messages are about.
fn changes_are_told(draft: &Draft) -> Result<(), String> {
    let told = draft.events.iter().filter(|event| event.step.is_none());
    let mut state = None;
    for event in told {
        let from = event.from.as_deref();
        let status = TaskStatus::parse(&event.to).unwrap();
        let is_change = from.is_some_and(|from| from != event.to);
        let names_a_change = TaskStatus::ALL
            .iter()
            .any(|status| status.event() == event.kind);
        let is_named = match is_change {
            true => event.kind == status.event(),
            false => !names_a_change,
        };
        if !is_named || state.is_some_and(|state| Some(state) != from) {
            return Err(format!("after {state:?}: {event:?}"));
        }
        state = Some(&*event.to);
    }
    match state {
        Some(state) if state != draft.task.status().as_str() => {
            Err(format!("the history ends with {state}"))
        }
        _ => Ok(()),
    }
}
