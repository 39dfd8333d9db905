//! The messages about a task: which of them a change causes, for whom, and their contents. They are decided here, saved
//! with the change, and sent by the delivery loop.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    message::{
        ask::{AskNotice, LinkForm},
        envelope::{CloudEvent, Message, Sender, position},
    },
    task::{aggregate::Task, history::Event},
    values::{ids::StepName, time::Timestamp},
    view::task::{Extent, TaskView},
};

/// The data of a message to a submitter.
#[derive(Serialize, ToSchema)]
pub struct ReplyData<'a> {
    /// The caller's own id.
    #[schema(required, example = "order-1001")]
    key: Option<&'a str>,
    /// The step that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "charge")]
    step: Option<&'a StepName>,
    /// For `step.asked`: the question that people are asked, with a link for each of them where the definition allows
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<AskNotice<'a>>,
    /// The task when the event was saved, without `blocked_by`. An event of a step has the head of the task with this
    /// step alone, and with null as `input`.
    #[schema(value_type = TaskView<'a>)]
    task: &'a RawValue,
    /// The fields of the task that are left out, because it takes more than 4 MiB: they are null, empty or absent.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(example = json!(["steps.output", "steps.item", "steps.awaited_reply"]))]
    left_out: &'a [&'a str],
}

/// The longest task that a message has without shortening, in bytes.
const LONGEST_TASK: usize = 4 << 20;

/// Returns a task as messages about it show it: shortened if it is too long. `is_full`: too many bytes wait for the
/// receiver.
fn bounded(task: &Task, is_full: bool) -> (Box<RawValue>, Extent) {
    if is_full {
        let json = json_of(&TaskView::snapshot(task, Extent::Head));
        return (json, Extent::Head);
    }
    for extent in Extent::ALL {
        // A task that is known to be too long is not serialised completely first.
        if extent == Extent::Whole && task.kept_bytes() > LONGEST_TASK {
            continue;
        }
        let json = json_of(&TaskView::snapshot(task, extent));
        if json.get().len() <= LONGEST_TASK || extent == Extent::Head {
            return (json, extent);
        }
    }
    (RawValue::NULL.to_owned(), Extent::Head)
}

/// Returns a task as messages about one of its steps show it. The total length of these messages grows with the number
/// of steps, and not with its square.
fn of_step(task: &Task, step: &StepName, is_full: bool) -> (Box<RawValue>, Extent) {
    let index = task.find(step.as_str());
    let json = json_of(&TaskView::of_step(task, index, !is_full));
    let extent = match is_full {
        true => Extent::WithoutOutputs,
        false => Extent::Whole,
    };
    (json, extent)
}

fn json_of(view: &TaskView<'_>) -> Box<RawValue> {
    // Strings, numbers and JSON that was checked always serialise.
    serde_json::value::to_raw_value(view).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl Sender {
    /// Makes the messages to the submitter about a change: one for each of its events that the submitter chose. They
    /// contain the task as it was saved with the events; for an event of a step, the head of the task and that step.
    pub fn replies(
        &self,
        task: &Task,
        events: &[Event],
        at: Timestamp,
        links: LinkForm,
        mut new_id: impl FnMut() -> Uuid,
    ) -> Vec<Message> {
        let Some(reply_to) = &task.details.reply_to else {
            return Vec::new();
        };
        let events = events
            .iter()
            .filter_map(|event| Some((event, reply_event(event)?)));
        let events: Vec<_> = events.filter(|(_, kind)| reply_to.wants(kind)).collect();
        if events.is_empty() {
            return Vec::new();
        }
        let queue = reply_to.queue();
        let is_full = self.full.contains(&queue);
        let mut whole = None;
        let message = |(index, (event, kind)): (usize, (&Event, &str))| {
            let id = new_id();
            let step_view;
            let (view, extent) = match &event.step {
                Some(step) if kind.starts_with("step.") => {
                    step_view = of_step(task, step, is_full);
                    (&*step_view.0, step_view.1)
                }
                _ => {
                    let (view, extent) = whole.get_or_insert_with(|| bounded(task, is_full));
                    (&**view, *extent)
                }
            };
            let data = ReplyData {
                key: task.details.key.as_deref(),
                step: event.step.as_ref(),
                ask: self.notice_of(task, event, id, links),
                task: view,
                left_out: extent.left_out(),
            };
            let source = self.link("/v1/tasks");
            let subject = task.id().to_string();
            let mut envelope = CloudEvent::new(id, source, kind, subject, at, data);
            envelope.correlationid = reply_to.correlation_id.as_deref();
            Message {
                id,
                receiver: queue.clone(),
                subject: task.id().0,
                position: position(task.version, index),
                task: Some(task.id()),
                kind: kind.to_owned(),
                url: reply_to.address(),
                body: envelope.into_json(),
                at,
            }
        };
        events.into_iter().enumerate().map(message).collect()
    }
}

/// Returns the event of a reply for an event of the history. For submitters, a step that an operator has resolved is
/// processed.
fn reply_event(event: &Event) -> Option<&str> {
    match &*event.kind {
        "step.resolved" => Some("step.processed"),
        kind => crate::task::reply_to::REPLIES
            .into_iter()
            .find(|reply| *reply == kind),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        definition::{Accepted, Limits, Policies, parse_steps},
        task::{
            aggregate::Details,
            call::CallOutcome,
            command::{Claimant, Command},
            decide::Draft,
            history::Actor,
            reply_to::ReplyTo,
        },
        template::payload::Payload,
        values::ids::{Attempt, InstanceId, Priority, ReceiverName, StepIndex, TaskId},
    };

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn details(events: &[&str], steps: usize) -> Arc<Details> {
        let step = |at: usize| match at {
            0 => json!({ "name": "charge", "agent": "pay", "request": { "body": {} } }),
            at => json!({ "name": format!("s{at}"), "agent": "pay", "request": { "body": {} } }),
        };
        let steps: Vec<_> = (0..steps).map(step).collect();
        let steps = Payload::from_value(&Value::from(steps));
        let (limits, policies) = (Limits::default(), Policies::default());
        let definition = parse_steps(&steps, "", &policies, &limits, &Accepted);
        Arc::new(Details {
            id: TaskId(Uuid::from_u128(7)),
            key: Some("order-1".into()),
            workflow: None,
            definition: Arc::new(definition.unwrap()),
            input: Payload::from_value(&json!({ "n": 1.50 })),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: Some(Box::new(ReplyTo {
                url: Some("http://shop:9000/r".into()),
                events: events.iter().map(|event| Arc::from(*event)).collect(),
                ..ReplyTo::default()
            })),
            parent: None,
            key_prefix: None,
        })
    }

    /// The messages of a task with one step that was submitted, claimed and processed, all in one change.
    fn done(events: &[&str]) -> Vec<Message> {
        let output = Payload::from_value(&json!({ "id": "ch_1" }));
        done_with(details(events, 1), &output)
    }

    /// The messages of a task all of whose steps had this output.
    fn done_with(details: Arc<Details>, output: &Payload) -> Vec<Message> {
        done_while(details, output, &[])
    }

    /// Makes the messages of a task that is done while too many bytes wait for these receivers.
    fn done_while(details: Arc<Details>, output: &Payload, full: &[&str]) -> Vec<Message> {
        let by = Actor::operator("test");
        let count = details.definition.steps.len() as u16;
        let mut draft = Draft::submit(details, NOW);
        for step in (0..count).map(StepIndex) {
            let claim = Command::Claim {
                step,
                by: Claimant::Instance(InstanceId::new("node-1")),
            };
            draft.apply(claim, &by, NOW).unwrap();
            let reply = Command::Reply {
                step,
                attempt: Attempt(1),
                outcome: CallOutcome::Success(output.clone()),
            };
            draft.apply(reply, &by, NOW).unwrap();
        }
        draft.task.version = 3;
        let sender = Sender {
            public_url: Some("https://provost.example".to_owned()),
            webhooks: Vec::new(),
            console_url: None,
            ask_key: None,
            full: Arc::new(full.iter().map(|name| ReceiverName::new(*name)).collect()),
        };
        let mut ids = (1..).map(Uuid::from_u128);
        sender.replies(
            &draft.task,
            &draft.events,
            NOW,
            LinkForm::Incomplete,
            || ids.next().unwrap(),
        )
    }

    #[test]
    fn each_chosen_event_becomes_a_reply_in_order_and_no_other_event_does() {
        let all = done(&[
            "task.accepted",
            "step.processed",
            "task.processed",
            "task.error",
        ]);
        let kinds: Vec<_> = all.iter().map(|message| message.kind.as_str()).collect();
        assert_eq!(kinds, ["task.accepted", "step.processed", "task.processed"]);
        assert!(all.is_sorted_by(|a, b| a.position < b.position));
        assert!(
            all.iter()
                .all(|m| m.position >= position(3, 0) && m.position < position(4, 0))
        );
        assert!(done(&["task.undone"]).is_empty());
    }

    #[test]
    fn a_message_is_a_cloud_event_with_the_key_and_the_task() {
        let message = &done(&["task.processed"])[0];
        assert_eq!(message.receiver.as_str(), "http://shop:9000");
        assert_eq!(message.url.as_deref(), Some("http://shop:9000/r"));
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!(body["specversion"], "1.0");
        assert_eq!(body["id"], message.id.to_string());
        assert_eq!(body["source"], "https://provost.example/v1/tasks");
        assert_eq!(body["type"], "task.processed");
        assert_eq!(body["subject"], TaskId(Uuid::from_u128(7)).to_string());
        assert_eq!(body["time"], "2023-11-14T22:13:20.000Z");
        assert_eq!(body["datacontenttype"], "application/json");
        assert_eq!(body["data"]["key"], "order-1");
        assert_eq!(body["data"].get("step"), None);
        assert_eq!(body["data"].get("left_out"), None);
        assert_eq!(body["data"]["task"]["state"], "processed");
        assert_eq!(body["data"]["task"]["version"], 3);
        assert_eq!(body["data"]["task"]["steps"][0]["output"]["id"], "ch_1");
        assert!(message.body.contains(r#"{"n":1.5}"#), "{}", message.body);
    }

    fn data(message: &Message) -> Value {
        let body: Value = serde_json::from_str(&message.body).unwrap();
        body["data"].clone()
    }

    #[test]
    fn a_message_about_a_step_has_the_head_of_the_task_and_that_step_with_its_output() {
        let output = Payload::from_value(&json!({ "id": "ch_1" }));
        let messages = done_with(details(&["step.processed"], 3), &output);
        assert_eq!(messages.len(), 3);
        for (message, name) in messages.iter().zip(["charge", "s1", "s2"]) {
            let data = data(message);
            assert_eq!(data["step"], name);
            let task = &data["task"];
            assert_eq!(task["key"], "order-1");
            assert_eq!(task["version"], 3);
            assert_eq!(task["input"], Value::Null);
            let steps = task["steps"].as_array().unwrap();
            assert_eq!(steps.len(), 1);
            assert_eq!(steps[0]["name"], name);
            assert_eq!(steps[0]["output"]["id"], "ch_1");
        }
    }

    #[test]
    fn the_messages_of_a_task_grow_with_its_steps_and_not_with_their_square() {
        let output = Payload::from_string(&"x".repeat(20_000));
        let bytes = |steps| {
            let messages = done_with(details(&["step.processed"], steps), &output);
            let lengths = messages.iter().map(|message| message.body.len());
            lengths.sum::<usize>()
        };
        assert!(bytes(60) < 60 * 22_000);
    }

    #[test]
    fn a_task_that_is_too_long_for_a_message_is_shortened_and_the_message_says_so() {
        let large = Payload::from_string(&"x".repeat(1 << 20));
        let messages = done_with(details(&["task.processed"], 5), &large);
        let data = data(&messages[0]);
        assert!(messages[0].body.len() < 10_000);
        assert_eq!(data["left_out"][0], "steps.output");
        let task = &data["task"];
        assert_eq!(task["input"]["n"], 1.5);
        assert_eq!(task["steps"].as_array().unwrap().len(), 5);
        assert_eq!(task["steps"][4]["state"], "processed");
        assert_eq!(task["steps"][4]["output"], Value::Null);
    }

    #[test]
    fn a_receiver_for_which_too_much_waits_gets_messages_without_payloads() {
        let output = Payload::from_string(&"x".repeat(20_000));
        let events = ["step.processed", "task.processed"];
        let messages = done_while(details(&events, 3), &output, &["http://shop:9000"]);
        assert_eq!(messages.len(), 4);
        for message in &messages {
            assert!(message.body.len() < 4_000, "{}", message.body.len());
            let data = data(message);
            assert!(!data["left_out"].as_array().unwrap().is_empty());
            assert_eq!(data["task"]["key"], "order-1");
        }
        assert_eq!(data(&messages[1])["task"]["steps"][0]["name"], "s1");
        let others = done_while(details(&events, 3), &output, &["http://other:1"]);
        assert!(others.iter().all(|message| message.body.len() > 20_000));
    }

    #[test]
    fn a_task_whose_input_is_too_long_for_a_message_is_shown_without_it() {
        let mut details = Arc::into_inner(details(&["task.processed"], 1)).unwrap();
        details.input = Payload::from_string(&"x".repeat(LONGEST_TASK));
        let messages = done_with(Arc::new(details), &Payload::null());
        let data = data(&messages[0]);
        assert!(messages[0].body.len() < 10_000);
        assert_eq!(data["left_out"][0], "input");
        assert_eq!(data["task"]["input"], Value::Null);
        assert_eq!(data["task"]["steps"][0]["name"], "charge");
    }
}
