//! A small world: the tasks that are submitted to it, and what may happen to them.

use std::{collections::BTreeMap, sync::Arc};

use provost_domain::{
    definition::{Accepted, Definition, Limits, Policies, parse_steps},
    task::{ChildWorkflow, Details, Draft, MOST_OF_TASK},
    template::Payload,
    values::{Fields, Priority, Span, TaskId, Timestamp, WorkflowName, WorkflowRef},
};
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use crate::{action::Troubles, state::WorldState};

/// The time at which every world begins.
const BEGINS_AT: Timestamp = Timestamp::from_millis(1_000_000);

/// A world, as it is before anything has happened.
pub struct SmallWorld {
    pub name: &'static str,
    pub about: &'static str,
    /// The tasks that are submitted at the begin, the first one admitted at once.
    pub(crate) tasks: Vec<Arc<Details>>,
    pub(crate) child: Option<ChildWorkflow>,
    pub(crate) troubles: Troubles,
    /// Instances decide on copies of the record that may be stale.
    pub(crate) has_caches: bool,
    /// The service may promise a later reply.
    pub(crate) has_promises: bool,
    /// The number of tasks that may run at once.
    pub(crate) max_running: usize,
}

impl SmallWorld {
    /// Makes a world of one task. `workflow` has `steps` and the policies beside it.
    pub fn new(name: &'static str, about: &'static str, workflow: &Value) -> Self {
        Self {
            name,
            about,
            tasks: vec![details(1, workflow)],
            child: None,
            troubles: Troubles::none(),
            has_caches: false,
            has_promises: false,
            max_running: 1,
        }
    }

    #[must_use]
    pub fn with_troubles(mut self, troubles: Troubles) -> Self {
        self.troubles = troubles;
        self
    }

    #[must_use]
    pub fn with_caches(mut self) -> Self {
        self.has_caches = true;
        self
    }

    #[must_use]
    pub fn with_promises(mut self) -> Self {
        self.has_promises = true;
        self
    }

    /// Adds a second task of the same workflow, which waits until the first one has ended.
    #[must_use]
    pub fn with_second_task(mut self, workflow: &Value) -> Self {
        self.tasks.push(details(2, workflow));
        self
    }

    /// Gives the children of the task their workflow.
    #[must_use]
    pub fn with_child(mut self, workflow: &Value) -> Self {
        self.child = Some(ChildWorkflow {
            workflow: Some(reference("child")),
            definition: definition(workflow),
            complete_within: None,
        });
        self
    }

    /// Returns the state in which nothing has happened yet, and at most so many troubles will happen in total.
    pub fn start(&self, most_troubles: u8) -> WorldState {
        let mut state = WorldState::new(self.troubles.at_most(most_troubles), BEGINS_AT);
        for (number, details) in self.tasks.iter().enumerate() {
            let waits = number >= self.max_running;
            let draft = Draft::submit_keeping(details.clone(), waits, MOST_OF_TASK, BEGINS_AT);
            state.submit(draft);
        }
        state
    }
}

fn reference(name: &str) -> WorkflowRef {
    WorkflowRef {
        name: WorkflowName::new(name),
        version: 1,
    }
}

fn definition(workflow: &Value) -> Arc<Definition> {
    let body = RawValue::from_string(workflow.to_string()).expect("a value is JSON");
    let mut fields = Fields::of(&body, "").expect("a workflow is an object");
    let policies = Policies::read_of_workflow(&mut fields);
    fields.value("steps");
    fields.value("complete_within");
    let faults = fields.finish();
    assert!(faults.is_ok(), "{faults:?}");
    let steps = Payload::from_value(&workflow["steps"]);
    let limits = Limits::default();
    let parsed = parse_steps(&steps, "/steps", &policies, &limits, &Accepted);
    Arc::new(parsed.unwrap_or_else(|faults| panic!("{faults:?}")))
}

fn details(number: u128, workflow: &Value) -> Arc<Details> {
    Arc::new(Details {
        id: TaskId(Uuid::from_u128(number)),
        key: Some("order-1".into()),
        workflow: Some(reference("order")),
        definition: definition(workflow),
        input: Payload::from_value(&json!({ "total": 30 })),
        labels: BTreeMap::new(),
        priority: Priority::default(),
        complete_within: workflow["complete_within"].as_u64().map(Span::from_secs),
        start_at: None,
        trace: None,
        reply_to: None,
        parent: None,
        key_prefix: None,
    })
}
