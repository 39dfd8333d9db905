//! Values are as their schemas say. A schema is derived from the struct that makes the value; its attributes can still
//! give a field another type, or forget that a field is always there.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    agent::{AdaptedLimit, SlowStartLimit},
    definition::{Accepted, Limits, OnConflict, Policies, parse_steps},
    message::{
        ASK_EVENT, AlertData, AlertFormat, AlertNotice, AlertWebhook, AskData, LinkForm, Sender,
    },
    queue::AwaitedKey,
    task::{
        Actor, AskChange, CallOutcome, Claimant, Command, Details, Draft, Event, ParentStep,
        ReplyKey, ReplyTo, Task, UnmappedStep, VersionChange,
    },
    template::Payload,
    values::{
        AgentName, Attempt, Effect, Fault, FaultKind, InstanceId, Priority, StepIndex, StepName,
        TaskId, Timestamp, WorkflowName,
    },
    view::{
        AtRisk, Blocked, Extent, PlannedClone, ReplyData, StepView, TaskComparison, TaskDifference,
        TaskFields, TaskView, clone_difference, dry_run, undo_plan,
    },
};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Returns the schema of a type, with the schemas that it refers to.
fn document<T: ToSchema>() -> Value {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    let schemas: BTreeMap<_, _> = schemas.into_iter().collect();
    json!({
        "$ref": format!("#/components/schemas/{}", T::name()),
        "components": { "schemas": schemas },
    })
}

/// The properties of an object and those that it requires, from all parts of its schema.
#[derive(Default)]
struct Members<'d> {
    properties: BTreeMap<&'d str, &'d Value>,
    required: Vec<&'d str>,
    others: Option<&'d Value>,
}

impl<'d> Members<'d> {
    /// Adds a schema and its parts, but not the alternatives that are tagged with another word than the value.
    fn add(&mut self, document: &'d Value, schema: &'d Value, value: &Map<String, Value>) {
        if let Some(target) = schema["$ref"].as_str() {
            let target = document.pointer(target.trim_start_matches('#'));
            return self.add(document, target.unwrap(), value);
        }
        for parts in ["allOf", "oneOf"] {
            for part in schema[parts].as_array().into_iter().flatten() {
                let words = part["properties"]["reason"]["enum"].as_array();
                if words.is_none_or(|words| words.contains(&value["reason"])) {
                    self.add(document, part, value);
                }
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.properties.insert(name, property);
        }
        let required = schema["required"].as_array().into_iter().flatten();
        self.required.extend(required.filter_map(Value::as_str));
        if let Some(others) = schema.get("additionalProperties") {
            self.others = Some(others);
        }
    }
}

/// Checks that the schema has each member of the value, and requires those that are null: they are never left out.
/// A payload may be null for itself.
fn check_members(document: &Value, schema: &Value, value: &Value, pointer: &str) {
    if let (Some(items), Some(schema)) = (value.as_array(), schema.get("items")) {
        for item in items {
            check_members(document, schema, item, &format!("{pointer}/0"));
        }
    }
    let Some(object) = value.as_object() else {
        return;
    };
    let mut members = Members::default();
    members.add(document, schema, object);
    // Any JSON has neither.
    if members.properties.is_empty() && members.others.is_none() {
        return;
    }
    for (name, member) in object {
        let pointer = format!("{pointer}/{name}");
        let known = members.properties.get(name.as_str()).copied();
        let property = known.or(members.others);
        let property = property.unwrap_or_else(|| panic!("{pointer} is not in its schema"));
        let is_required = members.required.contains(&name.as_str());
        let is_payload = property["$ref"] == "#/components/schemas/Json";
        assert!(
            is_required || is_payload || !member.is_null(),
            "{pointer} is null: it is required"
        );
        check_members(document, property, member, &pointer);
    }
}

/// Checks that the schema of the type describes the value.
fn describes<T: ToSchema>(value: &impl Serialize) {
    let value = serde_json::to_value(value).unwrap();
    let document = document::<T>();
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .should_ignore_unknown_formats(true)
        .build(&document)
        .unwrap();
    let faults: Vec<_> = validator
        .iter_errors(&value)
        .map(|e| e.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:?}: {value:#}");
    check_members(&document, &document, &value, "");
}

fn details(id: u128, steps: &Value) -> Details {
    with_policies(id, steps, &Policies::default())
}

fn with_policies(id: u128, steps: &Value, policies: &Policies) -> Details {
    let parsed = parse_steps(
        &Payload::from_value(steps),
        "",
        policies,
        &Limits::default(),
        &Accepted,
    );
    Details {
        id: TaskId(Uuid::from_u128(id)),
        key: None,
        workflow: None,
        definition: Arc::new(parsed.unwrap()),
        input: Payload::null(),
        labels: BTreeMap::from([("customer".to_owned(), "acme".to_owned())]),
        priority: Priority::default(),
        complete_within: None,
        start_at: None,
        trace: None,
        reply_to: Some(Box::new(ReplyTo {
            url: Some("http://shop:9000/r".into()),
            events: [Arc::from("task.processed"), Arc::from("step.asked")].into(),
            ..ReplyTo::default()
        })),
        parent: None,
        key_prefix: None,
    }
}

fn submit(details: Details) -> Draft {
    Draft::submit(Arc::new(details), NOW)
}

fn apply(draft: &mut Draft, command: Command, by: &Actor) {
    let done = draft.apply(command, by, NOW);
    done.map_or_else(|refusal| panic!("{refusal}"), |_| ());
}

/// Returns a task whose first step, which has an undo, is claimed.
fn claimed() -> Draft {
    let steps = json!([
        { "name": "charge", "agent": "pay", "undo": { "request": { "path": "/undo" } } },
        { "name": "ship", "agent": "pay" },
    ]);
    let mut draft = submit(details(7, &steps));
    let claim = Command::Claim {
        step: StepIndex(0),
        by: Claimant::Instance(InstanceId::new("node-1")),
    };
    apply(&mut draft, claim, &Actor::scheduler("node-1"));
    draft
}

fn replied(mut draft: Draft, outcome: CallOutcome) -> Draft {
    let reply = Command::Reply {
        step: StepIndex(0),
        attempt: draft.task.step(StepIndex(0)).attempt,
        outcome,
    };
    apply(&mut draft, reply, &Actor::scheduler("node-1"));
    draft
}

/// Returns a task whose undo has begun.
fn undoing() -> Task {
    let mut draft = replied(claimed(), CallOutcome::Success(Payload::null()));
    let undo = Command::Undo { reason: None };
    apply(&mut draft, undo, &Actor::operator("test"));
    draft.task
}

/// Returns a processed child whose output cannot be evaluated.
fn processed() -> Details {
    let steps = json!([{ "name": "pause", "wait": { "for": "0s" } }]);
    let policies = Policies::parse(r#"{"output":"{{ steps.pause.output.id }}"}"#).unwrap();
    let parent = ParentStep {
        task: TaskId(Uuid::from_u128(8)),
        step: StepName::new("ship"),
        index: StepIndex(0),
        attempt: Attempt(1),
        root: TaskId(Uuid::from_u128(8)),
        depth: 1,
    };
    Details {
        parent: Some(Box::new(parent)),
        ..with_policies(7, &steps, &policies)
    }
}

/// Returns a task whose step has a child.
fn nested() -> Task {
    let steps = json!([{ "name": "ship", "task": { "workflow": "ship" } }]);
    let mut draft = submit(details(8, &steps));
    let begin = Command::BeginChild {
        step: StepIndex(0),
        attempt: Attempt(1),
        child: Arc::new(processed()),
    };
    apply(&mut draft, begin, &Actor::scheduler("node-1"));
    draft.task
}

/// Returns a task whose step asks a person.
fn asking() -> Task {
    let ask = json!({ "title": "Approve?", "text": "It is 120 EUR", "of": ["ops"],
        "fields": [{ "name": "a", "label": "A", "type": "choice", "choices": ["x"] }, { "name": "b", "label": "B" }] });
    let steps = json!([{ "name": "approval", "signal": { "within": "1d", "ask": ask } }]);
    submit(details(7, &steps)).task
}

fn paused() -> Task {
    let mut task = claimed().task;
    task.paused = true;
    task
}

/// Returns tasks that have between them every part of a view.
fn tasks() -> Vec<Task> {
    let items = json!([{ "name": "all", "for_each": ["x"], "wait": { "for": "{{ item }}" } }]);
    let repeat = json!({ "until": "index == 1", "at_most": 2, "every": "1h" });
    let repeated = json!([{ "name": "all", "repeat": repeat, "wait": { "for": "0s" } }]);
    vec![
        claimed().task,
        undoing(),
        replied(claimed(), CallOutcome::Deferred).task,
        submit(details(7, &items)).task,
        submit(details(7, &repeated)).task,
        submit(processed()).task,
        asking(),
        nested(),
        paused(),
    ]
}

fn fault() -> Fault {
    Fault {
        kind: FaultKind::Permanent,
        message: "the service refused".to_owned(),
        status: Some(402),
        body: Some("no".to_owned()),
        at: NOW,
        effect: Effect::Unknown,
        step: Some(StepName::new("charge")),
        undo_on_resume: true,
        cancelled: true,
        unwanted: true,
    }
}

#[test]
fn tasks_are_as_their_schemas_say() {
    for task in tasks() {
        let mut view = TaskView::new(&task, NOW);
        view.set_at_risk(Some(AtRisk {
            predicted_end: None,
            agent: AgentName::new("payments"),
            since: NOW,
        }));
        describes::<TaskView<'_>>(&view);
        describes::<TaskView<'_>>(&TaskView::snapshot(&task, Extent::Head));
        for index in task.own_indexes() {
            describes::<StepView<'_>>(&StepView::new(&task, index, Some(NOW)));
        }
    }
    describes::<Fault>(&fault());
    describes::<Fault>(&Fault::transient("no response", NOW));
}

#[test]
fn a_plan_of_an_undo_is_as_its_schema_says() {
    for task in tasks() {
        describes::<crate::view::UndoPlan>(&undo_plan(&task, NOW));
    }
}

#[test]
fn a_difference_of_tasks_is_as_its_schema_says() {
    let failed = replied(claimed(), CallOutcome::Failed(fault()));
    let records = failed.attempts.clone();
    for task in tasks() {
        let mut details = details(9, &json!([{ "name": "charge", "url": "http://a/?key=1" }]));
        details.input = Payload::from_value(&json!("x".repeat(1_000)));
        let other = submit(details).task;
        for (a, b) in [(&failed.task, &task), (&task, &other)] {
            let attempts = [records.clone(), Vec::new()];
            let report = TaskComparison::new(a, b).report(attempts, NOW);
            describes::<TaskDifference>(&report);
        }
        let planned = PlannedClone {
            details: &other.details,
            shows_definition: true,
        };
        describes::<TaskDifference>(&clone_difference(&task, &planned));
    }
}

#[test]
fn a_dry_run_is_as_its_schema_says() {
    for task in tasks() {
        let definition = &task.details.definition;
        let report = dry_run(definition, &TaskFields::default(), &|_| None);
        describes::<crate::view::DryRunReport>(&report);
    }
}

#[test]
fn entries_of_a_history_are_as_their_schema_says() {
    let by = Actor::operator("ann");
    let plain = Event::submission("processing", by.clone());
    describes::<Event>(&plain);
    describes::<Event>(&Event {
        step: Some(StepName::new("charge")),
        attempt: Some(Attempt(1)),
        from: Some("pending".into()),
        reason: Some("no response".to_owned()),
        ready_at: Some(NOW),
        failure_count: Some(1),
        effect: Effect::Unknown,
        error: Some(fault()),
        versions: Some(VersionChange { from: 3, to: 4 }),
        ..plain
    });
    describes::<UnmappedStep>(&UnmappedStep {
        step: StepName::new("charge"),
        state: "processed",
        reason: "its `request` differs".to_owned(),
    });
}

#[test]
fn messages_are_as_their_schemas_say() {
    let sender = Sender {
        public_url: Some("https://p.example".to_owned()),
        console_url: None,
        webhooks: vec![AlertWebhook {
            receiver: AlertWebhook::queue_of("ops"),
            format: AlertFormat::Generic,
        }],
        ask_key: ReplyKey::new(b"0123456789abcdef"),
        full: Arc::default(),
    };
    let task = asking();
    let (opened, id) = ([AskChange::Open(StepIndex(0))], || Uuid::from_u128(3));
    let sent = sender.asks(&task, &opened, NOW, LinkForm::Incomplete, id);
    let sent: Value = serde_json::from_str(&sent[0].body).unwrap();
    assert_eq!(sent["type"], ASK_EVENT);
    describes::<AskData<'_>>(&sent["data"]);
    let reply = json!({
        "key": null, "step": "approval", "ask": sent["data"]["ask"],
        "task": TaskView::snapshot(&task, Extent::WithoutPayloads),
        "left_out": Extent::WithoutPayloads.left_out(),
    });
    describes::<ReplyData<'_>>(&reply);
    let notice = AlertNotice::raised(Uuid::from_u128(1), "task.error", "402", NOW);
    describes::<AlertData<'_>>(&json!({ "alert": notice, "link": "/v1/tasks/7" }));
}

#[test]
fn reasons_why_a_step_is_blocked_are_as_their_schema_says() {
    let (step, agent) = (StepName::new("charge"), AgentName::new("pay"));
    let limit = AdaptedLimit {
        limit: 6,
        most: 64,
        message: None,
    };
    let message = "the service responded 429 Too Many Requests".to_owned();
    let all = [
        Blocked::Steps {
            steps: vec![step.clone()],
            more: Some(20),
        },
        Blocked::Start { until: NOW },
        Blocked::Time { until: NOW },
        Blocked::Wait { until: NOW },
        Blocked::Signal { until: NOW },
        Blocked::Child {
            task: Some(Uuid::from_u128(7)),
            state: None,
        },
        Blocked::Items {
            waiting: 30,
            running: 10,
            error: 1,
        },
        Blocked::Repeat {
            until: NOW,
            iterations: 3,
            at_most: 20,
        },
        Blocked::MaxParallel { max_parallel: 10 },
        Blocked::Capacity {
            agent: agent.clone(),
            ahead: None,
            ahead_is_at_least: false,
            adaptive: Some(limit),
            slow_start: Some(SlowStartLimit { limit: 6, most: 64 }),
        },
        Blocked::Worker {
            agent: agent.clone(),
            ahead: None,
            ahead_is_at_least: false,
        },
        Blocked::OpenReplies {
            agent: agent.clone(),
            max_open: 1,
        },
        Blocked::RateLimit {
            agent: agent.clone(),
            rate: "50/s".to_owned(),
        },
        Blocked::KeyLimit {
            agent: agent.clone(),
            workflow: None,
            key: "acme".to_owned(),
            by: "{{ task.labels.customer }}".to_owned(),
            max_in_flight: None,
            rate: None,
        },
        Blocked::KeyLimit {
            agent: agent.clone(),
            workflow: Some(WorkflowName::new("order")),
            key: "acme".to_owned(),
            by: "{{ task.labels.customer }}".to_owned(),
            max_in_flight: Some(5),
            rate: Some("10/s".to_owned()),
        },
        Blocked::Throttled {
            agent: agent.clone(),
            until: NOW,
            message: message.clone(),
        },
        Blocked::AgentPaused {
            agent: agent.clone(),
            until: None,
            message: None,
        },
        Blocked::Breaker {
            agent: agent.clone(),
            until: None,
            message: message.clone(),
        },
        Blocked::Unhealthy {
            agent: agent.clone(),
            until: None,
            message: message.clone(),
        },
        Blocked::Secret {
            agent: agent.clone(),
            message,
        },
        Blocked::Held,
        Blocked::Agent { agent },
        Blocked::Drop {
            step,
            instance: InstanceId::new("node-1"),
        },
        Blocked::TaskLimit {
            keys: vec![AwaitedKey {
                by: "{{ task.labels.customer }}".to_owned(),
                key: "acme".to_owned(),
                max_running: 1,
                on_conflict: OnConflict::Wait,
            }],
        },
        Blocked::Paused,
        Blocked::Operator,
    ];
    for blocked in all {
        describes::<Blocked>(&blocked);
    }
}
