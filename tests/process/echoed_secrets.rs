//! Services that echo the secret of their agent: in replies and in what comes later, in encodings of all kinds.

use std::{fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::{
    harness::{Act, Provost, Remote, Seen},
    secrets::{SecretFiles, secret, spec},
};

/// Its beginning is in nothing else, nor are the encodings of that.
const CANARY: &str = "canary7/echo+x=/&\"9f";

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn units(text: &str) -> String {
    text.chars()
        .map(|letter| format!("\\u{:04x}", u32::from(letter)))
        .collect()
}

/// In encodings that are no more than letters of a text.
fn echoes() -> Vec<String> {
    vec![
        CANARY.to_owned(),
        // Without what needs no encoding in a path.
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

/// As JSON is written by those who escape what need not be.
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

/// As the services of most steps do: the path says how.
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

/// The path of the address that the service was given.
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
    let mut paths: Vec<String> = ["escaped", "redirect", "elsewhere", "poll"]
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

    // What comes later: heartbeats, outputs and errors.
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
        // Recognised again, although it is not on record as it was sent.
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

    // Another agent may say what it wants: the text is none of its secrets.
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
