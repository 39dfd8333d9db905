//! Texts for operators: the messages of a service in causes and alerts, the reason of a missing result, the number of
//! dead letters, and the log lines and metrics of commands, migrations and workflows.

use serde_json::{Value, json};

use crate::harness::{
    Act, Provost, Remote, alerts, id_of, one_step, pipeline, setups, step, until, until_messages,
};

fn causes(alerts: &[Value]) -> Vec<&str> {
    let mut causes: Vec<_> = { alerts.iter() }
        .map(|alert| alert["cause"].as_str().unwrap())
        .collect();
    causes.sort_unstable();
    causes
}

#[tokio::test]
async fn two_refusals_with_one_status_are_two_alerts_that_say_what_the_service_said() {
    let remote = Remote::with(|seen| {
        let number = seen.body["number"].as_u64().unwrap_or_default();
        let body = match seen.path.as_str() {
            "/card" => json!({ "code": "card_declined", "message": format!("card {number}") }),
            _ => json!({ "error": format!("address {number} of 'Ann {number}' is unknown") }),
        };
        Act::answer(422, &[], &body.to_string())
    })
    .await;
    for setup in setups().await {
        let provost = setup.start().await;
        for number in 1..=3 {
            for path in ["/card", "/address"] {
                let mut submission = one_step(&remote.url(), path);
                submission["input"] = json!({ "number": number });
                provost.run(&submission).await;
            }
        }
        let open = alerts(&provost, "open").await;
        let prefix = format!("agent {}: 422 Unprocessable Entity", remote.url());
        let expected = [
            format!("{prefix}: address # of # is unknown"),
            format!("{prefix}: card_declined"),
        ];
        assert_eq!(causes(&open), expected);
        for alert in &open {
            assert_eq!(alert["count"], 3);
            let cause = alert["cause"].as_str().unwrap();
            let (_, words) = cause.split_once("Entity: ").unwrap();
            assert!(
                alert["message"].as_str().unwrap().ends_with(words),
                "{alert}"
            );
        }
    }
}

/// The names of customers in the messages of a service cannot be distinguished from other words.
#[tokio::test]
async fn words_that_differ_for_each_task_make_a_bounded_number_of_alerts() {
    const TASKS: usize = 30;
    let remote = Remote::with(|seen| {
        let body = format!(
            "customer {} is blocked",
            seen.body["name"].as_str().unwrap()
        );
        Act::answer(403, &[], &body)
    })
    .await;
    for setup in setups().await {
        let provost = setup.start().await;
        let submit = async |number: usize| {
            let letter =
                |place: usize| char::from(b'a' + (number / 26_usize.pow(place as u32) % 26) as u8);
            let mut submission = one_step(&remote.url(), "/");
            submission["input"] = json!({ "name": format!("x{}{}", letter(1), letter(0)) });
            assert_eq!(provost.run(&submission).await["state"], "error");
        };
        futures::future::join_all((0..TASKS).map(submit)).await;
        // Two committers that look at the same time may each find room for twenty causes. From now on there is no room.
        futures::future::join_all((TASKS..2 * TASKS).map(submit)).await;
        let open = alerts(&provost, "open").await;
        let general = format!("agent {}: 403 Forbidden", remote.url());
        let others = open.iter().find(|alert| alert["cause"] == general);
        assert!(
            others.unwrap()["count"].as_u64().unwrap() >= TASKS as u64,
            "{open:#?}"
        );
        assert!(
            open.len() <= TASKS + 1,
            "a further one had words: {open:#?}"
        );
        let counts = open.iter().map(|alert| alert["count"].as_u64().unwrap());
        assert_eq!(counts.sum::<u64>(), 2 * TASKS as u64);
    }
}

#[tokio::test]
async fn an_alert_of_items_names_each_task_once() {
    let remote = Remote::script([Act::status(402)]).await;
    for setup in setups().await {
        let provost = setup.start().await;
        let list = json!({
            "input": { "items": [1, 2, 3, 4, 5] },
            "steps": [{ "name": "each", "url": remote.url(), "for_each": "{{ input.items }}" }],
        });
        let mut expected = Vec::new();
        for _ in 0..2 {
            expected.push(json!(id_of(&provost.run(&list).await)));
            let open = alerts(&provost, "open").await;
            let of_items = open
                .iter()
                .find(|alert| alert["agent"].is_string())
                .unwrap();
            assert_eq!(of_items["count"], 5 * expected.len());
            assert_eq!(of_items["tasks"], json!(expected));
        }
    }
}

#[tokio::test]
async fn the_alert_of_a_receiver_counts_its_dead_letters() {
    const TASKS: usize = 7;
    let (remote, shop) = (
        Remote::quick().await,
        Remote::script([Act::status(410)]).await,
    );
    for setup in setups().await {
        let provost = setup.set("COURIER__POLL", "20ms").start().await;
        let mut submission = one_step(&remote.url(), "/");
        submission["reply_to"] = json!({ "url": shop.url() });
        for _ in 0..TASKS {
            provost.run(&submission).await;
        }
        until_messages(&provost, "dead", TASKS).await;
        let open = alerts(&provost, "open").await;
        assert_eq!(open.len(), 1);
        assert_eq!(open[0]["kind"], "message.undeliverable");
        assert_eq!(open[0]["count"], TASKS);
    }
}

#[tokio::test]
async fn a_request_without_a_result_that_it_reads_says_which_step_has_none_and_why() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/charge" => Act::status(402),
        _ => Act::Ok(json!({})),
    })
    .await;
    for setup in setups().await {
        let provost = setup.start().await;
        let task = provost
            .run(&json!({ "steps": [
                { "name": "charge", "url": remote.url(), "request": { "path": "/charge" }, "on_permanent": "skip" },
                { "name": "ship", "url": remote.url(),
                  "request": { "path": "/ship", "body": { "id": "{{ steps.charge.output.id }}" } } },
            ] }))
            .await;
        assert_eq!(task["state"], "error", "{task:#}");
        let [alert] = &alerts(&provost, "open").await[..] else {
            panic!("one alert")
        };
        let message = alert["message"].as_str().unwrap();
        for words in [
            "step ship: its request could not be made",
            "`steps.charge.output.id`",
            "step charge was skipped after \"the service responded 402 Payment Required\" and has no result",
        ] {
            assert!(message.contains(words), "{words} in {message}");
        }
        assert_eq!(
            step(&task, "ship")["error"]["message"],
            message["step ship: ".len()..]
        );
        let cause = alert["cause"].as_str().unwrap();
        assert!(
            cause.contains("step ship has no result: its request"),
            "{cause}"
        );
        assert!(cause.contains("`steps.charge.output.id`"), "{cause}");
    }
}

#[tokio::test]
async fn bulk_commands_and_the_migration_leave_lines_in_the_log() {
    for setup in setups().await {
        let remote = Remote::script([Act::status(402)]).await;
        let provost = setup.start().await;
        provost
            .says("the schema of the database was migrated")
            .await;
        for _ in 0..2 {
            provost.run(&one_step(&remote.url(), "/")).await;
        }
        // The reason has almost the largest length.
        let long = format!("they wait no longer{}", "ü".repeat(490));
        for (dry_run, reason) in [(true, "a rehearsal"), (false, &*long)] {
            let body = json!({ "state": "error", "reason": reason, "dry_run": dry_run });
            let cancel = provost.post("/v1/tasks/cancel", &body);
            let cancel = cancel.header("prefer", "wait=60");
            let cancel = cancel.header("provost-actor", "ada").await.expect(200);
            assert_eq!(cancel["accepted"], 2);
        }
        let discard = provost.post(
            "/v1/messages/discard",
            &json!({ "receiver": "https://shop.example" }),
        );
        discard.await.expect(200);
        provost.says("a bulk command was carried out").await;
        provost.says(r#""command":"discard""#).await;
        let log = provost.log();
        assert!(!log.contains("a rehearsal"), "{log}");
        let line = log
            .lines()
            .find(|line| line.contains(r#""command":"cancel""#));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        for words in [
            "a bulk command was carried out",
            r#""by":"ada""#,
            r#"{\"state\":\"error\"}"#,
            "they wait no longer",
            r#""matched":2"#,
            r#""accepted":2"#,
        ] {
            assert!(line.contains(words), "{words} in {line}");
        }
        let event: Value = serde_json::from_str(line).unwrap();
        let reason = event["reason"].as_str().unwrap();
        assert!(reason.len() < 210 && reason.ends_with("ü…"), "{reason}");
        let migrated = log
            .lines()
            .find(|line| line.contains("was migrated"))
            .unwrap();
        for words in [r#""from":0"#, r#""to":"#, r#""took_seconds":"#] {
            assert!(migrated.contains(words), "{words} in {migrated}");
        }
    }
}

#[tokio::test]
async fn tasks_are_counted_by_workflow() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let definition = pipeline(&remote.url(), &["a"]);
    provost
        .put("/v1/workflows/order", &definition)
        .await
        .expect(201);
    for _ in 0..3 {
        provost.run(&json!({ "workflow": "order" })).await;
    }
    provost.run(&definition).await;
    for (workflow, count) in [("order", 3.0), ("(inline)", 1.0)] {
        for kind in ["task.accepted", "task.processed"] {
            let name = format!("provost_events_total{{type=\"{kind}\",workflow=\"{workflow}\"}}");
            assert_eq!(provost.metric(&name).await, count, "{name}");
        }
        let name = format!("provost_task_seconds_count{{workflow=\"{workflow}\"}}");
        until(count, || provost.metric(&name)).await;
    }
}

/// A browser has no token, and would get 401.
#[tokio::test]
async fn a_chat_gets_a_path_instead_of_a_link_where_tokens_are_needed() {
    let (chat, service) = (
        Remote::quick().await,
        Remote::script([Act::status(402)]).await,
    );
    let config = format!(
        "public_url = \"https://provost.example\"\n\
         [[tokens]]\nname = \"ops\"\nrole = \"admin\"\ntoken = \"0123456789abcdef-ops\"\n\
         [[alert_webhooks]]\nname = \"chat\"\nurl = \"{}\"\nformat = \"slack\"\n",
        chat.url()
    );
    let provost = Provost::setup().config(&config).start().await;
    let submitted = provost
        .post("/v1/tasks", &one_step(&service.url(), "/"))
        .header("authorization", "Bearer 0123456789abcdef-ops")
        .await
        .expect(202);
    let told = chat.requests(1).await.remove(0);
    let text = told.body["text"].as_str().unwrap();
    let id = submitted["id"].as_str().unwrap();
    assert!(text.ends_with(&format!("\n/v1/tasks/{id}")), "{text}");
    assert!(!text.contains("https://provost.example"), "{text}");
}
