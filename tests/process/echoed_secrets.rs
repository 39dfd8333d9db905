//! Services that echo the secret of their agent: in responses and in later replies, in encodings of all kinds.

use std::{fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use lapin::BasicProperties;
use serde_json::{Value, json};

use crate::{
    harness::{
        Act, Broker, Provost, Queued, RabbitClient, Remote, Seen, new_database, step, until,
    },
    secrets::{SecretFiles, secret, spec, stored},
};

/// The begin of the canary, and its encodings, occur in nothing else.
const CANARY: &str = "canary7/echo+x=/&\"9f";

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn units(text: &str) -> String {
    text.chars()
        .map(|letter| format!("\\u{:04x}", u32::from(letter)))
        .collect()
}

/// Returns encodings of the canary that change single letters only.
fn echoes() -> Vec<String> {
    vec![
        CANARY.to_owned(),
        // Characters that need no encoding in a path are not encoded.
        CANARY
            .replace('+', "%2B")
            .replace('=', "%3D")
            .replace('"', "%22")
            .replace('&', "%26"),
        percent(CANARY),
        percent(&percent(CANARY)),
        CANARY
            .replace('+', "&plus;")
            .replace('=', "&#x0003d;")
            .replace('"', "&#00034;"),
        CANARY.replace('+', "\\u002B").replace('=', "\\u003d"),
        units(CANARY),
        STANDARD.encode(format!("{{\"user\":\"a\",\"token\":\"{CANARY}\"}}")),
        STANDARD.encode(format!("ab{CANARY}")),
        CANARY.bytes().map(|byte| format!("{byte:02X}")).collect(),
    ]
}

/// Returns JSON in which more is escaped than necessary.
fn escaped_json() -> String {
    let inner = CANARY
        .replace('"', "\\\"")
        .replace('/', "\\/")
        .replace('+', "\\u002B");
    format!(
        "{{\"output\":{{\"you\":\"sent {} and {inner}\",\"{}\":1}}}}",
        units(CANARY),
        units(CANARY)
    )
}

/// Returns an encoding that is recognised only as a whole: if its second half is cut, its begin is in plain text.
fn partly_encoded() -> String {
    format!("{}{}", &CANARY[..12], percent(&percent(&CANARY[12..])))
}

/// Echoes the secret as the services of most steps do. The path says in which way.
fn echoing(seen: &Seen) -> Act {
    let at: usize = seen.path.rsplit('/').next().unwrap().parse().unwrap_or(0);
    let echo = &echoes()[at % echoes().len()];
    match seen.path.split('/').nth(1).unwrap() {
        "text" => Act::answer(
            200,
            &[("content-type", "text/plain")],
            &format!("you sent {echo}."),
        ),
        "json" => Act::answer(200, &[], &json!({ "you": [echo], "n": 1 }).to_string()),
        "escaped" => Act::answer(
            200,
            &[("content-type", "application/json")],
            &escaped_json(),
        ),
        "refused" => Act::answer(422, &[], &format!("not with {echo}")),
        "cut" => Act::answer(400, &[], &format!("{}{echo}", "x".repeat(4096 - 13))),
        "redirect" => {
            let location = CANARY.replace('+', "%2B").replace('"', "%22");
            Act::answer(302, &[("location", &format!("/x/{location}"))], "")
        }
        "elsewhere" => {
            let location = "https://canary7%2Fecho.example/x";
            Act::answer(202, &[("operation-location", location)], "")
        }
        "encoded" => Act::answer(200, &[("content-encoding", &partly_encoded())], "{}"),
        "poll" => {
            let location = format!("/status/{}", CANARY.replace('+', "%2B").replace('"', "%22"));
            Act::answer(202, &[("location", &location)], "")
        }
        _ => Act::status(202),
    }
}

fn assert_no_canary(place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let begin = &CANARY[..12];
    let hex: String = begin.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![
        begin.to_owned(),
        hex,
        percent(begin),
        units(begin),
        percent(&percent(begin)),
    ];
    for before in ["", "a", "ab"] {
        let encoded = STANDARD.encode(format!("{before}{begin}"));
        forms.push(encoded[4..encoded.len() - 4].to_lowercase());
    }
    for form in forms {
        if let Some(at) = text.find(&form) {
            let around: String = text[at.saturating_sub(40)..].chars().take(120).collect();
            panic!("the secret is in {place}: {around}");
        }
    }
}

/// Returns the path of the address for later replies.
fn reply_path(seen: &Seen) -> String {
    let address = seen.header("provost-reply-to");
    address[address.find("/v1/replies/").unwrap()..].to_owned()
}

#[tokio::test]
async fn what_a_service_echoes_is_in_no_response_record_or_log_however_it_is_encoded() {
    let remote = Remote::with(echoing).await;
    let files = SecretFiles::new().with("token", CANARY, &[remote.url()]);
    let setup = Provost::setup()
        .config(&files.config)
        .argument("--log=trace");
    let provost = setup.start().await;
    let added = json!({ "auth": { "bearer": secret("token") } });
    let agent = spec(&remote.url(), added);
    provost.put("/v1/agents/echo", &agent).await.expect(201);

    let mut tasks = Vec::new();
    let mut paths: Vec<String> = ["escaped", "redirect", "elsewhere", "poll", "encoded"]
        .map(|path| format!("/{path}/0"))
        .into();
    for at in 0..echoes().len() {
        paths.extend(["text", "json", "refused", "cut"].map(|path| format!("/{path}/{at}")));
    }
    for path in &paths {
        let mut step = json!({ "name": "only", "agent": "echo", "request": { "path": path }, "complete_within": "1m" });
        if path.starts_with("/poll") || path.starts_with("/elsewhere") {
            step["reply"] = json!({ "poll": { "until": "true", "every": "1s" } });
        }
        tasks.push(provost.submit(&json!({ "steps": [step] })).await);
    }
    for id in &tasks {
        provost.settled(id).await;
    }

    // The following later messages echo the secret: heartbeats, outputs and errors.
    let slow = json!({ "steps": [{ "name": "only", "agent": "echo", "request": { "path": "/slow" }, "reply": "callback",
        "complete_within": "1h" }] });
    for (at, echo) in echoes().into_iter().enumerate() {
        let known = remote.count();
        let id = provost.submit(&slow).await;
        provost.events(&id).await.until("step.deferred").await;
        let path = reply_path(&remote.requests(known + 1).await[known]);
        let beat = json!({ "message": format!("at {echo}"), "details": { "now": [echo] } });
        provost
            .post(&format!("{path}/heartbeat"), &beat)
            .await
            .expect(204);
        let task = provost.task(&id).await;
        let shown = &task["steps"][0]["awaited_reply"];
        assert!(shown.to_string().contains("***"), "{shown:#}");
        let reply = match at % 2 {
            0 => json!({ "output": { "you": ["sent", echo], "n": 7 } }),
            _ => json!({ "error": { "message": format!("not with {echo}"), "permanent": true } }),
        };
        provost.post(&path, &reply).await.expect(204);
        // The repeated reply is recognised, although the record has it without the secret.
        provost.post(&path, &reply).await.expect(204);
        tasks.push(id);
    }
    let known = remote.count();
    let id = provost.submit(&slow).await;
    provost.events(&id).await.until("step.deferred").await;
    let path = reply_path(&remote.requests(known + 1).await[known]);
    let reply = provost.call(reqwest::Method::POST, &path);
    reply
        .text("application/json", escaped_json())
        .await
        .expect(204);
    let task = provost.settled(&id).await;
    assert_eq!(
        task["steps"][0]["output"],
        json!({ "you": "sent *** and ***", "***": 1 })
    );
    tasks.push(id);

    // Another agent may send the text, because it is none of its secrets.
    let other = json!({ "steps": [{ "name": "only", "url": remote.url(), "request": { "path": "/slow" },
        "reply": "callback", "complete_within": "1h" }] });
    let known = remote.count();
    let id = provost.submit(&other).await;
    provost.events(&id).await.until("step.deferred").await;
    let path = reply_path(&remote.requests(known + 1).await[known]);
    let words = json!({ "output": "a canary, 7 echoes" });
    provost.post(&path, &words).await.expect(204);
    assert_eq!(
        provost.settled(&id).await["steps"][0]["output"],
        words["output"]
    );

    for id in &tasks {
        for path in ["", "/history", "/undo-plan", "/diagram"] {
            let answer = provost.get(&format!("/v1/tasks/{id}{path}")).await;
            let text = format!("{:?} {}", answer.headers, answer.body);
            assert_no_canary(&format!("{path} of {id}"), text.as_bytes());
        }
    }
    for path in [
        "/v1/tasks",
        "/v1/agents/echo",
        "/v1/alerts",
        "/v1/messages",
        "/metrics",
    ] {
        let answer = provost.get(path).await;
        assert_no_canary(
            path,
            format!("{:?} {}", answer.headers, answer.body).as_bytes(),
        );
    }
    let database = provost.database();
    assert_no_canary("the log", provost.log().as_bytes());
    for end in ["", "-wal"] {
        let file = PathBuf::from(format!("{}{end}", database.display()));
        assert_no_canary("the database", &fs::read(file).unwrap_or_default());
    }
}

/// Echoes the secret in responses to probes, undos, cancellations and checks. The first part of the path says in which
/// way, and the second is the number of the encoding.
fn echoing_later(seen: &Seen) -> Act {
    let at: usize = seen.path.rsplit('/').next().unwrap().parse().unwrap_or(0);
    let echo = &echoes()[at % echoes().len()];
    match seen.path.split('/').nth(1).unwrap() {
        // The effect stays unknown, so a probe is sent.
        "lost" => Act::Close,
        "found" | "undone" => Act::answer(200, &[], &json!({ "you": [echo] }).to_string()),
        "refused" => Act::answer(422, &[], &format!("not with {echo}")),
        "sick" => Act::answer(
            503,
            &[("x-reason", echo.trim())],
            &format!("not with {echo}"),
        ),
        "slow" => Act::status(202),
        _ => Act::answer(200, &[], "{}"),
    }
}

/// Returns a step for each way in which a service may echo what it has received, other than the response to its work.
fn ways(at: usize) -> Vec<(&'static str, Value)> {
    let call = |path: &str| json!({ "path": format!("/{path}/{at}") });
    let probed = |path: &str| {
        json!({ "request": call("lost"), "max_failures": 1,
        "probe": { "request": call(path), "outcome": "'done' if response.status == 200 else response.body" } })
    };
    let undone = |path: &str| {
        json!({ "request": call("work"),
        "undo": { "request": call(path), "complete_within": "10s" } })
    };
    let cancelled = |path: &str| {
        json!({ "request": call("slow"), "reply": "callback", "complete_within": "1h",
        "on_undo": "drop", "cancel": { "request": call(path) } })
    };
    vec![
        ("a probe", probed("found")),
        ("a probe that is refused", probed("refused")),
        ("an undo", undone("undone")),
        ("an undo that is refused", undone("refused")),
        ("a cancel request", cancelled("found")),
        ("a cancel request that is refused", cancelled("refused")),
    ]
}

/// Sends a reply over a queue, as the service of a request does.
async fn reply_over_queue(client: &RabbitClient, request: &Queued, kind: &str, body: &Value) {
    let to = request.properties.reply_to().as_ref().unwrap().to_string();
    let properties = BasicProperties::default()
        .with_correlation_id(request.correlation_id().as_str().into())
        .with_content_type("application/json".into())
        .with_type(kind.into());
    client
        .publish(&to, body.to_string().as_bytes(), properties)
        .await;
}

#[tokio::test]
async fn what_is_echoed_to_probes_undos_cancel_requests_checks_and_by_workers_and_queues_is_nowhere()
 {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("charges").await;
    let url = new_database().await;
    for database in [None, Some(&*url)] {
        let remote = Remote::with(echoing_later).await;
        let files = SecretFiles::new().with("token", CANARY, &[remote.url()]);
        let mut setup = Provost::setup()
            .config(&files.config)
            .set("BROKER__URL", &rabbit.url())
            .argument("--log=trace");
        if let Some(url) = database {
            setup = setup.database_url(url);
        }
        let provost = setup.start().await;
        let auth = json!({ "auth": { "bearer": secret("token") } });
        for agent in ["echo", "worker", "queue"] {
            let put = provost.put(
                &format!("/v1/agents/{agent}"),
                &spec(&remote.url(), auth.clone()),
            );
            put.await.expect(201);
        }
        let mut sick = spec(&remote.url(), auth.clone());
        sick["health"] = json!({ "path": "/sick/0", "interval": "1s", "timeout": "1s" });
        provost.put("/v1/agents/sick", &sick).await.expect(201);

        let mut tasks = Vec::new();
        for at in 0..echoes().len() {
            for (way, mut only) in ways(at) {
                only["name"] = json!("only");
                only["agent"] = json!("echo");
                let id = provost.submit(&json!({ "steps": [only] })).await;
                if way.starts_with("a probe") {
                    let task = provost.settled(&id).await;
                    let expected = match way {
                        "a probe" => "processed",
                        _ => "error",
                    };
                    assert_eq!(task["state"], expected, "{way}: {task:#}");
                } else {
                    let reached = match way.starts_with("an undo") {
                        true => "task.processed",
                        false => "step.deferred",
                    };
                    provost.events(&id).await.until(reached).await;
                    let undo = provost
                        .post(&format!("/v1/tasks/{id}/undo"), &json!({}))
                        .await;
                    assert!(undo.status < 300, "{way}: {undo:?}");
                    let task = provost.settled(&id).await;
                    assert_ne!(task["state"], "processed", "{way}: {task:#}");
                }
                tasks.push(id);
            }
        }

        // The workers and the queue of these agents may still have the secret, because the agents had it before.
        for agent in ["worker", "queue"] {
            let known = json!({ "steps": [{ "name": "only", "agent": agent, "request": { "path": "/work/0" } }] });
            assert_eq!(provost.run(&known).await["state"], "processed");
        }
        let pull = provost.put("/v1/agents/worker", &json!({ "mode": "pull" }));
        pull.await.expect(200);
        let queue = json!({ "endpoints": [{ "url": "amqp://broker/charges" }] });
        provost.put("/v1/agents/queue", &queue).await.expect(200);
        for (at, echo) in echoes().into_iter().enumerate() {
            let beat = json!({ "message": format!("at {echo}"), "details": { "now": [echo] } });
            let reply = match at % 2 {
                0 => json!({ "output": { "you": ["sent", echo] } }),
                _ => {
                    json!({ "error": { "message": format!("not with {echo}"), "permanent": true } })
                }
            };
            let work = json!({ "steps": [{ "name": "only", "agent": "worker", "complete_within": "1h" }] });
            let id = provost.submit(&work).await;
            let asked = json!({ "worker": "w-1", "max": 1, "wait": "60s" });
            let claimed = provost
                .post("/v1/agents/worker/claim", &asked)
                .await
                .expect(200);
            let token = claimed["steps"][0]["token"].as_str().unwrap();
            let path = format!("/v1/replies/{token}");
            let sent = provost.post(&format!("{path}/heartbeat"), &beat).await;
            assert!(sent.status < 300, "{sent:?}");
            match at % 3 {
                0 => provost.post(&path, &reply).await.expect(204),
                _ => {
                    let mut one = reply.clone();
                    one["token"] = json!(token);
                    let many = json!({ "replies": [one] });
                    provost.post("/v1/replies", &many).await.expect(200)
                }
            };
            let task = provost.settled(&id).await;
            assert!(task.to_string().contains("***"), "{task:#}");
            tasks.push(id);

            let work =
                json!({ "steps": [{ "name": "only", "agent": "queue", "complete_within": "1h" }] });
            let id = provost.submit(&work).await;
            let request = client.take("charges").await;
            reply_over_queue(&client, &request, "heartbeat", &beat).await;
            until(true, async || {
                let task = provost.task(&id).await;
                step(&task, "only")["awaited_reply"]
                    .to_string()
                    .contains("***")
            })
            .await;
            reply_over_queue(&client, &request, "", &reply).await;
            let task = provost.settled(&id).await;
            assert!(task.to_string().contains("***"), "{task:#}");
            tasks.push(id);
        }
        // The result of the health check is on record.
        until(true, async || {
            let agent = provost.get("/v1/agents/sick").await.expect(200);
            agent.to_string().contains("503")
        })
        .await;
        let check = json!({ "request": { "path": "/refused/0" }, "within": "10s" });
        let checked = provost.post("/v1/agents/echo/check", &check).await;
        assert_no_canary(
            "a check",
            format!("{:?} {}", checked.headers, checked.body).as_bytes(),
        );

        let mut paths: Vec<_> = [
            "tasks",
            "agents",
            "agents/echo",
            "agents/sick",
            "agents/worker",
            "agents/queue",
            "alerts",
            "messages",
        ]
        .map(|path| format!("/v1/{path}"))
        .into();
        for id in &tasks {
            paths
                .extend(["", "/history", "/undo-plan"].map(|path| format!("/v1/tasks/{id}{path}")));
        }
        for path in paths {
            let answer = provost.get(&path).await;
            assert_no_canary(
                &path,
                format!("{:?} {}", answer.headers, answer.body).as_bytes(),
            );
        }
        for (place, bytes) in stored(database, &provost, files.folder()) {
            assert_no_canary(&place, &bytes);
        }
        assert_no_canary("the log", provost.log().as_bytes());
    }
}
