//! The links of people: who gets them, and how they stand in the outbox.

use super::*;
use crate::{
    message::{
        alert_webhook::{AlertFormat, AlertWebhook},
        ask::{LinkForm, with_complete_links},
        envelope::{Message, Sender},
    },
    task::{reply_to::ReplyTo, reply_token::ReplyKey},
};

const ALL: [&str; 2] = ["step.asked", "task.accepted"];

fn key() -> ReplyKey {
    ReplyKey::new(b"0123456789abcdef").unwrap()
}

fn sender() -> Sender {
    let webhook = |name: &str, format| AlertWebhook {
        receiver: AlertWebhook::queue_of(name),
        format,
    };
    Sender {
        full: Default::default(),
        public_url: Some("https://p.example".to_owned()),
        console_url: None,
        webhooks: vec![
            webhook("ops", AlertFormat::Generic),
            webhook("chat", AlertFormat::Slack),
        ],
        ask_key: Some(key()),
    }
}

/// The messages of a task that asks two people at once, replies first.
fn sent(send_to: Value, is_inline: bool, form: LinkForm, task_key: &str) -> Vec<Message> {
    let ask = json!({ "title": "t", "of": ["a", "b"], "approvals": 2, "send_to": send_to });
    let steps = json!([{ "name": "approval", "signal": { "within": "1d", "ask": ask } }]);
    let workflow = (!is_inline).then(|| WorkflowRef {
        name: WorkflowName::new("refund"),
        version: 1,
    });
    let details = Details {
        workflow,
        key: Some(task_key.into()),
        reply_to: Some(Box::new(ReplyTo {
            url: Some("http://shop:9000/r".into()),
            events: ALL.iter().map(|event| Arc::from(*event)).collect(),
            ..ReplyTo::default()
        })),
        ..Arc::into_inner(details(&steps, None)).unwrap()
    };
    let now = Timestamp::from_millis(1_000_000);
    let draft = Draft::submit(Arc::new(details), now);
    let mut ids = (1..).map(Uuid::from_u128);
    let mut new_id = || ids.next().unwrap();
    let sender = sender();
    let mut sent = sender.replies(&draft.task, &draft.events, now, form, &mut new_id);
    sent.extend(sender.asks(&draft.task, &draft.asks, now, form, &mut new_id));
    sent.retain(|message| message.kind != "task.accepted");
    sent
}

fn receivers_of_links(send_to: Value, is_inline: bool) -> Vec<String> {
    let sent = sent(send_to, is_inline, LinkForm::Complete, "order-1");
    let with_links = sent
        .iter()
        .filter(|message| message.body.contains("/v1/asks/"));
    let name = |message: &Message| match message.kind.as_str() {
        "step.asked" => "reply_to".to_owned(),
        _ => message.receiver.to_string(),
    };
    with_links.map(name).collect()
}

#[test]
fn the_reply_to_of_a_workflow_gets_links_only_where_the_definition_says_so() {
    let none = || Value::Null;
    assert_eq!(receivers_of_links(none(), false), ["alerts:ops"]);
    // A submitter who writes the steps may say who decides in them.
    assert_eq!(receivers_of_links(none(), true), ["reply_to", "alerts:ops"]);
    for is_inline in [true, false] {
        let of = |send_to: &[&str]| receivers_of_links(json!(send_to), is_inline);
        assert_eq!(of(&["reply_to"]), ["reply_to"]);
        assert_eq!(of(&["ops"]), ["alerts:ops"]);
        assert_eq!(of(&["mailer"]), ["asks:mailer"]);
        assert_eq!(
            of(&["reply_to", "ops", "mailer"]),
            ["reply_to", "alerts:ops", "asks:mailer"]
        );
    }
    // The others get the question all the same.
    let sent = sent(json!(["mailer"]), false, LinkForm::Complete, "order-1");
    let kinds: Vec<_> = sent.iter().map(|message| message.kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["step.asked", "ask.opened", "ask.opened", "ask.opened"]
    );
    assert!(
        sent[0].body.contains(r#"{"person":"a","link":null}"#),
        "{}",
        sent[0].body
    );
}

#[test]
fn an_incomplete_link_is_completed_to_the_one_that_works() {
    let complete = sent(Value::Null, true, LinkForm::Complete, "order-1");
    let incomplete = sent(Value::Null, true, LinkForm::Incomplete, "order-1");
    assert_eq!(complete.len(), 3);
    for (complete, incomplete) in complete.iter().zip(&incomplete) {
        let tokens = complete.body.split("/v1/asks/").skip(1);
        for token in tokens {
            let token = token.split('"').next().unwrap();
            assert!(key().verify_ask(token).is_some());
            assert!(
                !incomplete.body.contains(&token[32..]),
                "{}",
                incomplete.body
            );
        }
        let task = incomplete.task.unwrap();
        let made = with_complete_links(&key(), incomplete.id, task, &incomplete.body);
        match complete.body.contains("/v1/asks/") && incomplete.body != complete.body {
            true => assert_eq!(made.as_ref(), Some(&complete.body)),
            false => assert_eq!(made, None),
        }
        // It is no link of another task, or by another message.
        let another = TaskId(Uuid::from_u128(8));
        assert_eq!(
            with_complete_links(&key(), incomplete.id, another, &incomplete.body),
            None
        );
        assert_eq!(
            with_complete_links(&key(), Uuid::max(), task, &incomplete.body),
            None
        );
    }
}

#[test]
fn a_text_that_looks_like_an_incomplete_link_is_left_as_it_is() {
    let of_admin = sent(json!(["ops"]), false, LinkForm::Incomplete, "order-1");
    let (_, begin) = of_admin[1].body.split_once("/v1/asks/").unwrap();
    let begin = &begin[..32];
    // A submitter knows the id of the task, but not that of a message to come.
    let earlier = of_admin[0].id.simple();
    let forged = format!("https://p.example/v1/asks/{begin}{earlier}");
    let reply = &sent(json!(["ops"]), false, LinkForm::Incomplete, &forged)[0];
    let other = Uuid::from_u128(0xabcd);
    assert_eq!(
        with_complete_links(&key(), other, reply.task.unwrap(), &reply.body),
        None
    );
    for odd in ["", "x", "/v1/asks/", "ü/v1/asks/ü"] {
        let body = format!("{odd}{}", other.simple());
        assert_eq!(
            with_complete_links(&key(), other, reply.task.unwrap(), &body),
            None
        );
    }
}
