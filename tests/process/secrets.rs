//! Secrets that agents add to their requests: services get them, and they appear nowhere else.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Act, Provost, Remote, Seen, binary, new_database, setups, sql, step, until, verify,
};

/// A canary for each part of a request that may contain a secret. Their common begin occurs in nothing else.
const CANARIES: [&str; 6] = [
    "canary7-header-b0f1",
    "canary7-query-b0f1",
    "canary7-body-b0f1",
    "canary7-password-b0f1",
    "canary7-bearer-b0f1",
    "whsec_Y2FuYXJ5Nw+canary7+signing+b0f1+aaaa",
];
const BEGIN: &str = "canary7";

/// Files of secrets, and the part of a configuration that names them.
pub struct SecretFiles {
    folder: TempDir,
    pub config: String,
}

impl SecretFiles {
    pub fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            config: String::new(),
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        let temporary = self.path(&format!("{name}.new"));
        fs::write(&temporary, text).unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o400)).unwrap();
        fs::rename(&temporary, &path).unwrap();
    }

    /// Configures a secret for these URLs. Its file does not exist yet.
    pub fn name(mut self, name: &str, urls: &[String]) -> Self {
        let path = self.path(name);
        self.config.push_str(&format!(
            "[[secrets]]\nname = \"{name}\"\nfile = {path:?}\nurls = {urls:?}\n"
        ));
        self
    }

    pub fn with(self, name: &str, text: &str, urls: &[String]) -> Self {
        self.put(name, text);
        self.name(name, urls)
    }
}

pub fn secret(name: &str) -> Value {
    json!({ "secret": name })
}

pub fn spec(url: &str, added: Value) -> Value {
    let mut spec =
        json!({ "endpoints": [{ "url": url }], "retry": { "initial": "10ms", "max": "50ms" } });
    let fields = added.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    spec
}

pub fn one_step_of(agent: &str, path: &str) -> Value {
    json!({ "steps": [{ "name": "only", "agent": agent, "request": { "path": path }, "complete_within": "1m" }],
        "input": { "n": 1 } })
}

/// Returns everything of a request, as a service echoes it.
fn echo(seen: &Seen) -> String {
    json!({ "path": seen.path, "headers": seen.headers, "raw": seen.raw }).to_string()
}

fn leaky(seen: &Seen) -> Act {
    let path = seen.path.split('?').next().unwrap();
    let location = [("location", &*seen.path)];
    match path {
        "/ok" => Act::answer(200, &[("content-type", "application/json")], &echo(seen)),
        "/text" => Act::answer(200, &[("content-type", "text/plain")], &echo(seen)),
        "/refused" => Act::answer(400, &[], &echo(seen)),
        "/not-json" => Act::answer(
            200,
            &[("content-type", "application/json")],
            &format!("{{{}", echo(seen)),
        ),
        "/redirect" => Act::answer(302, &location, ""),
        // The secret begins before the end of the part that is kept, and ends after it.
        "/cut" => {
            let sent = seen.headers.get("x-api-key");
            let sent = sent.unwrap_or(&seen.headers["authorization"]);
            let body = format!("{}{sent}", "x".repeat(4096 - 12));
            Act::answer(400, &[], &body)
        }
        "/poll" if seen.method == "POST" => Act::answer(202, &location, ""),
        "/poll" => Act::answer(200, &[], &echo(seen)),
        _ => Act::answer(503, &[("retry-after", "0")], &echo(seen)),
    }
}

/// Returns all responses of the API about these tasks, agents and alerts.
async fn all_answers(provost: &Provost, tasks: &[String]) -> Vec<(String, String)> {
    let mut paths: Vec<String> = [
        "/v1/tasks",
        "/v1/agents",
        "/v1/agents/full",
        "/v1/agents/bearer",
        "/v1/workflows",
        "/v1/alerts",
        "/v1/messages",
        "/v1/instances",
        "/v1/settings",
        "/metrics",
        "/v1/openapi.json",
        "/v1/ended-tasks",
    ]
    .map(str::to_owned)
    .into();
    for id in tasks {
        for path in ["", "/history", "/definition", "/undo-plan", "/diagram"] {
            paths.push(format!("/v1/tasks/{id}{path}"));
        }
    }
    let mut answers = Vec::new();
    for path in paths {
        let answer = provost.get(&path).await;
        answers.push((path, format!("{:?} {}", answer.headers, answer.body)));
    }
    answers
}

pub fn stored(
    database_url: Option<&str>,
    provost: &Provost,
    folder: &Path,
) -> Vec<(String, Vec<u8>)> {
    let Some(url) = database_url else {
        let path = provost.database();
        let copy = folder.join("backup.db");
        let backup = binary()
            .into_std()
            .args(["backup", "--to"])
            .arg(&copy)
            .arg("--database-url")
            .arg(format!("sqlite://{}", path.display()))
            .output()
            .unwrap();
        assert!(backup.status.success(), "{backup:?}");
        let files = [
            path.clone(),
            PathBuf::from(format!("{}-wal", path.display())),
            copy,
        ];
        let read = files.iter().map(|file| {
            (
                file.display().to_string(),
                fs::read(file).unwrap_or_default(),
            )
        });
        return read.collect();
    };
    let tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    let tables = sql(url, tables);
    assert!(tables.lines().count() > 5, "{tables}");
    tables
        .lines()
        .map(|table| {
            let rows = sql(url, &format!("SELECT t::text FROM {table} t"));
            (table.to_owned(), rows.into_bytes())
        })
        .collect()
}

/// Checks that the text has no canary: neither plain, nor in base64 at any offset, nor in hexadecimal.
fn assert_no_canary(place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let hex: String = BEGIN.bytes().map(|byte| format!("{byte:02x}")).collect();
    let basic = STANDARD.encode(format!("provost:{}", CANARIES[3]));
    for form in [BEGIN, &hex, &basic, "Y2FuYXJ5Nw"] {
        if let Some(at) = text.find(form) {
            let around: String = text[at..].chars().take(60).collect();
            panic!("a secret is in {place}: {around}");
        }
    }
}

#[tokio::test]
async fn a_canary_is_in_no_record_answer_log_metric_or_backup() {
    let url = new_database().await;
    for database in [None, Some(&*url)] {
        let remote = Remote::with(leaky).await;
        let urls = [remote.url()];
        let mut files = SecretFiles::new();
        for (name, text) in ["header", "query", "body", "password", "bearer"]
            .iter()
            .zip(CANARIES)
        {
            files = files.with(name, &format!("{text}\n"), &urls);
        }
        files.config.push_str(&format!(
            "[[secrets]]\nname = \"signing\"\nenv = \"SIGNING_KEY\"\nurls = {urls:?}\n"
        ));
        let mut setup = Provost::setup()
            .config(&files.config)
            .argument("--log=trace");
        setup = setup.environment("SIGNING_KEY", CANARIES[5]);
        if let Some(url) = database {
            setup = setup.database_url(url);
        }
        let provost = setup.start().await;
        let full = json!({
            "headers": { "x-api-key": secret("header"), "x-tenant": "acme" },
            "query": { "key": secret("query") },
            "body": { "key": secret("body") },
            "auth": { "basic": { "user": "provost", "password": secret("password") } },
            "sign": [secret("signing")],
        });
        provost
            .put("/v1/agents/full", &spec(&remote.url(), full))
            .await
            .expect(201);
        let bearer = json!({ "auth": { "bearer": secret("bearer") } });
        provost
            .put("/v1/agents/bearer", &spec(&remote.url(), bearer))
            .await
            .expect(201);

        let mut tasks = Vec::new();
        for agent in ["full", "bearer"] {
            for path in ["/ok", "/text", "/refused", "/not-json", "/redirect", "/cut"] {
                tasks.push(
                    provost.run(&one_step_of(agent, path)).await["id"]
                        .as_str()
                        .unwrap()
                        .to_owned(),
                );
            }
            let mut poll = one_step_of(agent, "/poll");
            poll["steps"][0]["reply"] = json!({ "poll": { "until": "true", "every": "1s" } });
            let task = provost.run(&poll).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            tasks.push(task["id"].as_str().unwrap().to_owned());
            let failing = provost.submit(&one_step_of(agent, "/failing")).await;
            remote.requests(remote.count() + 3).await;
            provost
                .post(&format!("/v1/tasks/{failing}/cancel"), &json!({}))
                .await;
            tasks.push(failing);
        }
        let unmakeable =
            json!({ "steps": [{ "name": "only", "agent": "full", "request": { "body": [1] } }] });
        let refused = provost.run(&unmakeable).await;
        let error = step(&refused, "only")["error"]["message"].as_str().unwrap();
        assert!(error.contains("not an object"), "{error}");
        tasks.push(refused["id"].as_str().unwrap().to_owned());

        // The service got all secrets.
        let ledger = remote.ledger();
        let first = &ledger[0];
        assert_eq!(first.header("x-api-key"), CANARIES[0]);
        assert_eq!(first.header("x-tenant"), "acme");
        assert_eq!(first.path, format!("/ok?key={}", CANARIES[1]));
        assert_eq!(first.body, json!({ "n": 1, "key": CANARIES[2] }));
        let basic = STANDARD.encode(format!("provost:{}", CANARIES[3]));
        assert_eq!(first.header("authorization"), format!("Basic {basic}"));
        assert!(verify(first, CANARIES[5]), "{first:?}");
        let polls = ledger.iter().filter(|seen| seen.method == "GET");
        for poll in polls {
            let wanted = [
                first.header("authorization").to_owned(),
                format!("Bearer {}", CANARIES[4]),
            ];
            assert!(
                wanted.contains(&poll.header("authorization").to_owned()),
                "{poll:?}"
            );
        }
        let last = ledger
            .iter()
            .rfind(|seen| seen.path.starts_with("/failing"))
            .unwrap();
        assert_eq!(
            last.header("authorization"),
            format!("Bearer {}", CANARIES[4])
        );

        // The recorded echo shows that something was hidden.
        let task = provost.task(&tasks[0]).await;
        let output = &step(&task, "only")["output"];
        assert_eq!(output["path"], "/ok?key=***", "{output:#}");
        for (path, answer) in all_answers(&provost, &tasks).await {
            assert_no_canary(&path, answer.as_bytes());
        }
        for (place, bytes) in stored(database, &provost, files.folder.path()) {
            assert_no_canary(&place, &bytes);
        }
        assert_no_canary("the log", provost.log().as_bytes());
        let shown = binary()
            .arg("check-config")
            .current_dir(provost.database().parent().unwrap())
            .output();
        let shown = shown.await.unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(text.contains("name = \"bearer\""), "{text}");
        assert_no_canary("the settings", text.as_bytes());
        let agent = provost.get("/v1/agents/full").await.expect(200);
        assert_eq!(agent["spec"]["headers"]["x-api-key"], secret("header"));
        assert_eq!(
            agent["secrets"][0],
            json!({ "name": "body", "fault": null })
        );
    }
}

#[tokio::test]
async fn nobody_who_may_register_agents_gets_a_secret_for_another_service() {
    let (payments, evil) = (Remote::quick().await, Remote::quick().await);
    let bound = format!("{}/payments", payments.url());
    let mut files = SecretFiles::new()
        .with(
            "token",
            "the-token-of-payments",
            std::slice::from_ref(&bound),
        )
        .with("internal", "for-configured-agents", &[]);
    files.config.push_str(&format!(
        "[agents.inner]\nendpoints = [{{ url = \"{}\" }}]\nauth = {{ bearer = {{ secret = \"internal\" }} }}\n",
        payments.url()
    ));
    let provost = Provost::setup().config(&files.config).start().await;
    let bearer = |name: &str| json!({ "auth": { "bearer": secret(name) } });
    for (name, url) in [
        ("token", evil.url()),
        ("token", payments.url()),
        ("token", format!("{bound}-other")),
        ("internal", payments.url()),
        ("missing", bound.clone()),
        ("/etc/passwd", bound.clone()),
    ] {
        let put = provost
            .put("/v1/agents/mine", &spec(&url, bearer(name)))
            .await;
        let faults = put.expect_faults();
        assert_eq!(faults, ["/auth/bearer/secret"], "{name} {url}");
    }
    let both = json!({ "endpoints": [{ "url": bound }, { "url": evil.url() }], "sign": [secret("token")] });
    let put = provost.put("/v1/agents/mine", &both).await;
    assert_eq!(put.expect_faults(), ["/sign/0/secret"]);
    // The name of an agent that is in the file gives no access to its secrets.
    let inner = provost
        .put("/v1/agents/inner", &spec(&evil.url(), bearer("internal")))
        .await;
    inner.expect_problem(409, "agent-configured");

    provost
        .put("/v1/agents/mine", &spec(&bound, bearer("token")))
        .await
        .expect(201);
    provost.run(&one_step_of("mine", "/x")).await;
    provost.run(&one_step_of("inner", "/x")).await;
    let got: Vec<_> = payments
        .ledger()
        .iter()
        .map(|seen| seen.header("authorization").to_owned())
        .collect();
    assert_eq!(
        got,
        [
            "Bearer the-token-of-payments",
            "Bearer for-configured-agents"
        ]
    );
    assert_eq!(evil.count(), 0);
}

/// A service that shares its host with others could have its caller's secrets sent to one of them.
#[tokio::test]
async fn a_service_cannot_have_the_secret_sent_to_its_neighbour() {
    let host = Remote::with(|seen| match seen.method.as_str() {
        "POST" => Act::answer(202, &[("location", "/neighbour/steal")], ""),
        _ => Act::Ok(json!("stolen")),
    })
    .await;
    let url = format!("{}/payments", host.url());
    let files =
        SecretFiles::new().with("token", "the-token-of-payments", std::slice::from_ref(&url));
    let provost = Provost::setup().config(&files.config).start().await;
    let bearer = json!({ "auth": { "bearer": secret("token") } });
    provost
        .put("/v1/agents/payments", &spec(&url, bearer))
        .await
        .expect(201);
    let mut poll = one_step_of("payments", "/x");
    poll["steps"][0]["reply"] = json!({ "poll": { "until": "true", "every": "1s" } });
    let task = provost.run(&poll).await;
    let error = step(&task, "only")["error"]["message"].as_str().unwrap();
    assert!(error.contains("may not get the secret `token`"), "{error}");
    assert_eq!(host.count(), 1);
}

#[tokio::test]
async fn a_step_waits_for_a_secret_that_is_not_there_and_no_failure_is_counted() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let files = SecretFiles::new().name("token", &[remote.url()]);
        let provost = setup.config(&files.config).start().await;
        let bearer = json!({ "auth": { "bearer": secret("token") } });
        provost
            .put("/v1/agents/payments", &spec(&remote.url(), bearer))
            .await
            .expect(201);
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        for (text, fault) in [
            (None, "its file does not exist"),
            (Some(("\n", 0o400)), "it is empty"),
            (Some(("the-first-token", 0o440)), "chmod 0400"),
            (Some(("the-first-t\u{f6}ken", 0o400)), "not printable ASCII"),
            (Some(("the-first\ntoken", 0o400)), "contains a line break"),
        ] {
            if let Some((text, mode)) = text {
                files.put("token", text);
                fs::set_permissions(files.path("token"), fs::Permissions::from_mode(mode)).unwrap();
            }
            until(true, || async {
                let task = provost.task(&id).await;
                let blocked = &step(&task, "only")["blocked_by"];
                assert_eq!(blocked["reason"], "secret", "{blocked}");
                let message = blocked["message"].as_str().unwrap();
                assert!(
                    !message.contains(files.folder.path().to_str().unwrap()),
                    "{message}"
                );
                message.contains(fault)
            })
            .await;
            assert_eq!(remote.count(), 0);
        }
        files.put("token", "the-first-token\n");
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "only")["failure_count"], 0);
        assert_eq!(
            remote.ledger()[0].header("authorization"),
            "Bearer the-first-token"
        );

        // A rotated secret is used without a restart.
        files.put("token", "the-second-token\n");
        until(true, || async {
            provost.run(&one_step_of("payments", "/x")).await;
            remote.ledger().last().unwrap().header("authorization") == "Bearer the-second-token"
        })
        .await;
        // A removed secret is noticed without a restart too.
        fs::remove_file(files.path("token")).unwrap();
        until(json!("its file does not exist"), || async {
            let agent = provost.get("/v1/agents/payments").await.expect(200);
            agent["secrets"][0]["fault"].clone()
        })
        .await;
        let made = remote.count();
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        let task = provost.task(&id).await;
        assert_eq!(step(&task, "only")["blocked_by"]["reason"], "secret");
        assert_eq!(remote.count(), made);
    }
}

#[tokio::test]
async fn an_instance_without_the_secret_leaves_the_steps_to_one_that_has_it() {
    let remote = Remote::quick().await;
    let files = SecretFiles::new().with("token", "the-token-of-payments", &[remote.url()]);
    let setup = || Provost::setup().set("SCHEDULER__POLL", "100ms");
    let url = new_database().await;
    let with = setup()
        .database_url(&url)
        .config(&files.config)
        .start()
        .await;
    let without: Provost = setup().database_url(&url).start().await;
    let bearer = json!({ "auth": { "bearer": secret("token") } });
    let put = without
        .put("/v1/agents/payments", &spec(&remote.url(), bearer.clone()))
        .await;
    assert_eq!(put.expect_faults(), ["/auth/bearer/secret"]);
    with.put("/v1/agents/payments", &spec(&remote.url(), bearer))
        .await
        .expect(201);
    until(json!("the secret `token` is not configured at this instance: add it to [[secrets]] of its configuration file"), || async {
        let agent = without.get("/v1/agents/payments").await;
        agent.body["secrets"][0]["fault"].clone()
    })
    .await;
    for _ in 0..5 {
        let task = without.run(&one_step_of("payments", "/x")).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "only")["failure_count"], 0);
    }
    for seen in remote.ledger() {
        assert_eq!(seen.header("authorization"), "Bearer the-token-of-payments");
        assert_eq!(seen.attempt(), 1);
    }
}

#[tokio::test]
async fn a_new_list_of_secrets_counts_at_once() {
    let remote = Remote::quick().await;
    let files = SecretFiles::new().with("token", "the-token-of-payments", &[remote.url()]);
    let provost = Provost::start().await;
    let bearer = spec(
        &remote.url(),
        json!({ "auth": { "bearer": secret("token") } }),
    );
    provost
        .put("/v1/agents/payments", &bearer)
        .await
        .expect_faults();
    provost.reload(&files.config);
    provost.says("reloaded tokens, secrets").await;
    provost
        .put("/v1/agents/payments", &bearer)
        .await
        .expect(201);
    provost.run(&one_step_of("payments", "/x")).await;
    assert_eq!(
        remote.ledger()[0].header("authorization"),
        "Bearer the-token-of-payments"
    );
    // The secret may not be sent to this URL any more.
    let elsewhere = files
        .config
        .replace(&remote.url(), "https://payments.example");
    provost.reload(&elsewhere);
    until(json!("secret"), || async {
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        let task = provost.task(&id).await;
        step(&task, "only")["blocked_by"]["reason"].clone()
    })
    .await;
}

#[tokio::test]
async fn what_the_agent_adds_stands_in_place_of_what_the_step_has_there() {
    let remote = Remote::quick().await;
    let files = SecretFiles::new().with("token", "the-token-of-payments", &[remote.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let added = json!({
        "headers": { "X-Tenant": "ours" }, "query": { "key": secret("token") }, "body": { "n": "ours" },
        "auth": { "bearer": secret("token") },
    });
    provost
        .put("/v1/agents/payments", &spec(&remote.url(), added))
        .await
        .expect(201);
    let mut submission = one_step_of("payments", "/x?%6Bey=theirs&b=%20&key=theirs");
    submission["steps"][0]["request"]["headers"] =
        json!({ "x-tenant": "theirs", "authorization": "theirs", "x-other": "theirs" });
    provost.run(&submission).await;
    let seen = &remote.ledger()[0];
    assert_eq!(seen.path, "/x?b=%20&key=the-token-of-payments");
    assert_eq!(seen.header("x-tenant"), "ours");
    assert_eq!(seen.header("x-other"), "theirs");
    assert_eq!(seen.header("authorization"), "Bearer the-token-of-payments");
    assert_eq!(seen.body, json!({ "n": "ours" }));
}

#[tokio::test]
async fn a_signed_request_is_known_by_either_secret_and_by_no_other() {
    let remote = Remote::script([Act::status(503), Act::Ok(json!(1))]).await;
    let (old, new) = (
        "whsec_b2xkIHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=",
        "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=",
    );
    let files =
        SecretFiles::new()
            .with("old", old, &[remote.url()])
            .with("new", new, &[remote.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let sign = json!({ "sign": [secret("old"), secret("new")] });
    provost
        .put("/v1/agents/payments", &spec(&remote.url(), sign))
        .await
        .expect(201);
    provost.run(&one_step_of("payments", "/x")).await;
    let ledger = remote.ledger();
    let ids: Vec<_> = ledger
        .iter()
        .map(|seen| seen.header("webhook-id"))
        .collect();
    // The id is the same for every attempt, as a service needs that accepts a message only once.
    assert_eq!((ids.len(), ids[0]), (2, ids[1]));
    for seen in &ledger {
        assert!(verify(seen, old) && verify(seen, new), "{seen:?}");
        assert!(!verify(
            seen,
            "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCwgMzIgYnl0ZXM="
        ));
        let mut changed = seen.clone();
        changed.raw.push(' ');
        assert!(!verify(&changed, new));
    }
    assert!(!provost.log().contains("whsec_"));
}

#[tokio::test]
async fn a_service_verifies_the_hmac_of_its_own_form() {
    let remote = Remote::script([Act::status(503), Act::Ok(json!(1))]).await;
    let key = "the-key-of-the-signature";
    let files = SecretFiles::new().with("signing", key, &[remote.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let sign = json!({ "query": { "tenant": "acme" }, "sign": [{
        "secret": "signing", "header": "X-Signature",
        "of": "{method} {path} {timestamp} {body}", "value": "t={timestamp},v1={signature}"
    }] });
    provost
        .put("/v1/agents/payments", &spec(&remote.url(), sign))
        .await
        .expect(201);
    provost.run(&one_step_of("payments", "/x")).await;
    let ledger = remote.ledger();
    assert_eq!(ledger.len(), 2);
    for seen in &ledger {
        let header = seen.header("x-signature");
        let (time, signature) = header.split_once(",v1=").unwrap();
        let time = time.strip_prefix("t=").unwrap();
        // With what the agent adds to the query, as the service sees it.
        let signed = format!("POST /x?tenant=acme {time} {}", seen.raw);
        assert_eq!(signature, hmac_sha256(key, &signed), "{seen:?}");
        assert!(!seen.headers.contains_key("webhook-signature"));
    }
    assert!(!provost.log().contains(key));
}

#[tokio::test]
async fn a_key_too_short_to_sign_with_stops_the_calls_and_is_told() {
    let remote = Remote::quick().await;
    let files = SecretFiles::new().with("signing", "short-key", &[remote.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let sign = json!({ "sign": [{ "secret": "signing", "header": "x-signature" }] });
    provost
        .put("/v1/agents/payments", &spec(&remote.url(), sign))
        .await
        .expect(201);
    let agent = provost.get("/v1/agents/payments").await.expect(200);
    let fault = agent["secrets"][0]["fault"].as_str();
    let is_told = fault.is_some_and(|fault| fault.contains("less than 16 bytes"));
    assert!(is_told, "{agent}");
}

fn hmac_sha256(key: &str, text: &str) -> String {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    let bytes = mac.finalize().into_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
