//! `provost agent check`, with the services of `examples` and with faulty ones.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::{
    cluster,
    harness::{Act, Api, Gate, Provost, Remote, binary, new_database, setups, until},
    secrets::{SecretFiles, secret, spec},
};

const POINTS: [&str; 19] = [
    "work",
    "again",
    "twice_at_once",
    "after_dropped_answer",
    "after_complete_by",
    "late_request",
    "undo",
    "undo_twice",
    "undo_before_work",
    "work_after_undo",
    "probe_before_work",
    "probe_during_work",
    "probe_after_work",
    "probe_output",
    "probe_after_undo",
    "error_classes",
    "retry_after",
    "size",
    "latency",
];

fn examples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Returns the request of the examples, with more time, so that a busy machine does not look like a slow service.
fn request(complete_within: &str) -> Value {
    let text = std::fs::read_to_string(examples().join("check.json")).unwrap();
    let mut request: Value = serde_json::from_str(&text).unwrap();
    request["complete_within"] = json!(complete_within);
    request["within"] = json!("2m");
    request
}

/// Starts a service of the examples, which works until it is dropped.
async fn example(api: &Api, agent: &str, fault: Option<&str>) -> Child {
    let port = cluster::free_port().to_string();
    let mut python = Command::new("python3");
    match fault {
        None => python.arg(examples().join("service.py")).arg(&port),
        Some(fault) => python
            .arg(examples().join("broken_service.py"))
            .args([&port, fault]),
    };
    let child = python.kill_on_drop(true).spawn().unwrap();
    let address = format!("127.0.0.1:{port}");
    until(true, || async {
        tokio::net::TcpStream::connect(&address).await.is_ok()
    })
    .await;
    api.register(agent, &format!("http://{address}"), 8).await;
    child
}

/// Returns the points with this status.
fn with_status<'r>(result: &'r Value, status: &str) -> Vec<&'r str> {
    let findings = result["findings"].as_array().unwrap().iter();
    let found = findings.filter(|finding| finding["status"] == status);
    found
        .map(|finding| finding["name"].as_str().unwrap())
        .collect()
}

async fn checked(api: &Api, agent: &str, request: &Value) -> Value {
    let path = format!("/v1/agents/{agent}/check");
    api.post(&path, request).await.expect(200)
}

#[tokio::test]
async fn each_fault_of_a_service_fails_its_own_point_and_no_other() {
    let provost = Provost::start().await;
    let faults: Vec<_> = [None].into_iter().chain(POINTS.map(Some)).collect();
    for some in faults.chunks(4) {
        let checks = some.iter().map(|fault| async {
            let agent = fault.unwrap_or("good");
            let _service = example(provost.api(), agent, *fault).await;
            let within = if agent == "latency" { "2s" } else { "20s" };
            let result = checked(provost.api(), agent, &request(within)).await;
            let failed = with_status(&result, "failed");
            let expected: Vec<_> = fault.iter().copied().collect();
            assert_eq!(failed, expected, "{agent}: {result:#}");
            let names: Vec<_> = { result["findings"].as_array().unwrap().iter() }
                .map(|finding| finding["name"].as_str().unwrap())
                .collect();
            assert_eq!(names, POINTS);
            let status = if fault.is_some() { "failed" } else { "passed" };
            assert_eq!(result["status"], status, "{agent}: {result:#}");
            // Each failed finding has the exchanges that show the failure.
            for finding in result["findings"].as_array().unwrap() {
                if finding["status"] == "failed" {
                    let shown = finding["exchanges"].as_array().unwrap();
                    assert!(!shown.is_empty(), "{finding:#}");
                    let known = result["exchanges"].as_array().unwrap();
                    let is_known =
                        |number: &Value| known.iter().any(|known| known["number"] == *number);
                    assert!(shown.iter().all(is_known), "{result:#}");
                }
                assert!(!finding["means"].as_str().unwrap().is_empty());
            }
        });
        join_all(checks).await;
    }
}

#[tokio::test]
async fn the_command_says_what_it_found_and_steps_are_warned_of_it() {
    for setup in setups().await {
        let mut provost = setup.start().await;
        let services = [
            example(provost.api(), "good", None).await,
            example(provost.api(), "bad", Some("undo_twice")).await,
        ];
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("check.json");
        std::fs::write(&file, request("20s").to_string()).unwrap();
        let check = async |agent: &str, more: &[&str]| {
            let server = format!("http://{}", provost.api().address());
            let mut command = binary();
            command.args(["agent", "check", agent, "--server", &server, "--request"]);
            let output = command.arg(&file).args(more).output().await.unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let complained = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), said, complained)
        };
        let (code, said, complained) = check("good", &[]).await;
        assert_eq!((code, &*complained), (0, ""), "{said}");
        assert!(said.contains("agent good: passed"), "{said}");
        // The server may be named as for every other command.
        let mut command = binary();
        command.args(["agent", "check", "nobody", "--request"]);
        command.env("PROVOST_URL", format!("http://{}", provost.api().address()));
        let output = command.arg(&file).output().await.unwrap();
        let complained = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complained}");
        assert!(
            complained.contains("Agent not found: agent \"nobody\""),
            "{complained}"
        );
        let (code, said, _) = check("bad", &[]).await;
        assert_eq!(code, 1, "{said}");
        for line in [
            "undo_twice failed: ",
            "DELETE /charges",
            "agent bad: failed",
        ] {
            assert!(said.contains(line), "{said}");
        }
        let (code, said, _) = check("bad", &["--json"]).await;
        let result: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((code, &result["status"]), (1, &json!("failed")));
        let (code, _, complained) = check("nobody", &[]).await;
        assert_eq!(code, 2);
        assert!(complained.contains("does not exist"), "{complained}");
        std::fs::write(&file, "amount: 5").unwrap();
        let (code, _, complained) = check("good", &[]).await;
        assert_eq!(code, 2);
        assert!(complained.contains("is not JSON"), "{complained}");

        // The result is stored, and is shown after a restart.
        provost.restart().await;
        let kept = provost.get("/v1/agents/bad").await.expect(200);
        assert_eq!(kept["check"]["checked_at"], result["checked_at"]);
        assert_eq!(kept["check"]["is_outdated"], false);
        assert_eq!(with_status(&kept["check"], "failed"), ["undo_twice"]);
        let steps = json!({ "steps": [
            { "name": "a", "agent": "bad", "undo": { "request": { "method": "DELETE" } } },
            { "name": "b", "agent": "bad" },
            { "name": "c", "agent": "good", "undo": { "request": { "method": "DELETE" } } },
        ] });
        let warned = async || {
            let report = provost.post("/v1/workflows/w/validate", &steps).await;
            let report = report.expect(200);
            let warnings = report["warnings"].as_array().unwrap().iter();
            let of_checks = warnings.filter(|warning| warning["code"] == "agent_failed_check");
            of_checks.cloned().collect::<Vec<_>>()
        };
        let warnings = warned().await;
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert_eq!(warnings[0]["step"], "a");
        let message = warnings[0]["message"].as_str().unwrap();
        assert!(message.contains("undo_twice"), "{message}");

        // The result for the agent before the change does not apply after it.
        provost.register("bad", "http://127.0.0.1:9", 4).await;
        let kept = provost.get("/v1/agents/bad").await.expect(200);
        assert_eq!(kept["check"]["is_outdated"], true);
        assert!(warned().await.is_empty());
        provost.delete("/v1/agents/bad").await.expect(204);
        provost.register("bad", "http://127.0.0.1:9", 4).await;
        let kept = provost.get("/v1/agents/bad").await.expect(200);
        assert_eq!(kept["check"], Value::Null);
        drop(services);
    }
}

#[tokio::test]
async fn what_cannot_be_checked_says_why() {
    let provost = Provost::start().await;
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!({ "id": 1 }))]).await;
    let path = "/v1/agents/slow/check";
    let minimal = json!({ "request": { "path": "/" } });
    let not_now = async |path: &str, reason: &str| {
        let refused = provost.post(path, &minimal).await;
        let refused = refused.expect_problem(409, "cannot-check");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(reason), "{detail}");
    };
    let pull = provost.put("/v1/agents/pull", &json!({ "mode": "pull" }));
    pull.await.expect(201);
    not_now("/v1/agents/pull/check", "mode pull").await;
    provost.register("slow", &remote.url(), 4).await;
    provost.command("/v1/agents/slow/pause").await.expect(200);
    not_now(path, "paused").await;
    provost.command("/v1/agents/slow/resume").await.expect(200);
    let mut broken = spec(&remote.url(), json!({}));
    broken["breaker"] = json!({});
    provost.put("/v1/agents/broken", &broken).await.expect(201);
    let open = json!({ "action": "open" });
    let opened = provost.post("/v1/agents/broken/breaker", &open).await;
    opened.expect(200);
    not_now(
        "/v1/agents/broken/check",
        "the breakers of all its endpoints are open",
    )
    .await;
    let close = json!({ "action": "close" });
    let closed = provost.post("/v1/agents/broken/breaker", &close).await;
    closed.expect(200);
    for (body, pointer) in [
        (json!({ "requst": {} }), "/requst"),
        (json!({ "agent": "pull" }), "/agent"),
        (json!({ "url": "http://127.0.0.1:9" }), "/url"),
        (
            json!({ "undo": { "request": {}, "reply": "callback" } }),
            "/undo/reply",
        ),
        (json!({ "within": "3m" }), "/within"),
        (json!({ "reply": "callback" }), "/reply"),
        (
            json!({ "undo": { "request": { "path": "x" } } }),
            "/undo/request/path",
        ),
        (
            json!({ "request": { "path": "/{{ steps.a.output }}" } }),
            "/request/path",
        ),
        (json!([1]), ""),
    ] {
        let refused = provost.post(path, &body).await;
        let refused = refused.expect_problem(422, "invalid");
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{body}");
    }
    // Two operators check at the same time, and one has to wait.
    let checking = tokio::spawn({
        let (api, minimal) = (provost.api().clone(), minimal.clone());
        async move { api.post(path, &minimal).await }
    });
    remote.requests(1).await;
    not_now(path, "another caller").await;
    // The agent is deleted during the check.
    provost.delete("/v1/agents/slow").await.expect(204);
    gate.open();
    let answer = checking.await.unwrap();
    answer.expect_problem(404, "no-such-agent");
}

/// One of three instances checks. All of them show the result, and show that the agent was changed after it.
#[tokio::test]
async fn what_one_instance_has_checked_all_know() {
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b, c) = tokio::join!(on().start(), on().start(), on().start());
    let service = example(a.api(), "good", None).await;
    let status = async |api: &Api| {
        let agent = api.get("/v1/agents/good").await;
        agent.body["check"]["status"].clone()
    };
    until(json!(null), || status(b.api())).await;
    let result = checked(b.api(), "good", &request("20s")).await;
    assert_eq!(result["status"], "passed", "{result}");
    for provost in [&a, &b, &c] {
        until(json!("passed"), || status(provost.api())).await;
    }
    let changed = json!({ "endpoints": [{ "url": "http://127.0.0.1:9" }] });
    c.put("/v1/agents/good", &changed).await.expect(200);
    for provost in [&a, &b, &c] {
        until(json!(true), async || {
            let agent = provost.get("/v1/agents/good").await.expect(200);
            agent["check"]["is_outdated"].clone()
        })
        .await;
    }
    drop(service);
}

#[tokio::test]
async fn a_check_survives_whatever_its_service_does() {
    let provost = Provost::start().await;
    let text = json!({ "request": { "path": "/" }, "complete_within": "300ms", "within": "30s" });
    for (name, act) in [
        ("hang", Act::Hang),
        ("flood", Act::Flood),
        ("close", Act::Close),
        ("halfway", Act::CloseHalfway),
        ("drip", Act::Drip),
        ("interim", Act::Interim),
        ("raw", Act::Raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n{{{{".to_owned())),
        ("none", Act::Raw("\u{0}\u{1}garbage".to_owned())),
        ("later", Act::answer(202, &[("provost-async", "true")], "")),
        ("same", Act::Ok(json!({ "ok": true }))),
        ("busy", Act::answer(503, &[("retry-after", "999999999999")], "")),
    ] {
        let remote = Remote::script([act]).await;
        provost.register(name, &remote.url(), 2).await;
        let result = checked(provost.api(), name, &text).await;
        assert_ne!(result["status"], "passed", "{name}: {result:#}");
        let size = result.to_string().len();
        assert!(size < 200_000, "{name}: {size} bytes");
        // Outputs that are all the same show nothing.
        if name == "same" {
            let unclear = with_status(&result, "inconclusive");
            assert!(unclear.contains(&"again"), "{result:#}");
        }
        if name == "busy" {
            assert!(with_status(&result, "failed").contains(&"retry_after"), "{result:#}");
        }
    }
}

#[tokio::test]
async fn a_check_ends_with_the_service_and_with_its_own_time() {
    let remote = Remote::script([Act::Hang]).await;
    let mut provost = Provost::start().await;
    provost.register("hangs", &remote.url(), 2).await;
    let path = "/v1/agents/hangs/check";
    let short = json!({ "within": "1s" });
    let result = checked(provost.api(), "hangs", &short).await;
    assert_eq!(result["status"], "incomplete", "{result:#}");
    let seen = result["findings"][0]["seen"].as_str().unwrap();
    assert!(seen.contains("1s, was over"), "{seen}");
    let checking = tokio::spawn({
        let api = provost.api().clone();
        async move { api.post(path, &json!({})).await }
    });
    remote.requests(2).await;
    provost.terminate();
    let answer = checking.await.unwrap();
    answer.expect_problem(503, "stopping");
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_service_that_echoes_secrets_shows_none() {
    let remote = Remote::with(|seen| {
        let all = json!({ "path": seen.path, "headers": seen.headers, "raw": seen.raw });
        match seen.header("provost-attempt") {
            "1" => Act::answer(
                503,
                &[("retry-after", seen.header("x-key"))],
                &all.to_string(),
            ),
            _ => Act::Ok(all),
        }
    })
    .await;
    let files = SecretFiles::new().with("key", "canary-of-a-check", &[remote.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let added = json!({ "headers": { "x-key": secret("key") }, "query": { "k": secret("key") } });
    let put = provost.put("/v1/agents/leaky", &spec(&remote.url(), added));
    put.await.expect(201);
    let result = checked(provost.api(), "leaky", &json!({ "within": "20s" })).await;
    assert_eq!(remote.ledger()[0].header("x-key"), "canary-of-a-check");
    let kept = provost.get("/v1/agents/leaky").await.expect(200);
    for text in [result.to_string(), kept.to_string()] {
        assert!(!text.contains("canary"), "{text}");
    }
    assert!(result.to_string().contains("***"), "{result:#}");
}

/// A service that does its work for each request, or once for each key, and its output.
struct ChargingService {
    once: bool,
    output: fn(id: usize, key: &str, at: usize) -> Value,
}

impl ChargingService {
    /// Starts the service. It refuses calls after their complete-by, and returns to a probe the number of its charges
    /// for a key.
    async fn start(self) -> Remote {
        let charges = Mutex::new(Vec::<String>::new());
        let calls = AtomicUsize::new(0);
        Remote::with(move |seen| {
            if seen.method == "GET" {
                let key = seen.header("provost-probes");
                let charges = charges.lock().unwrap();
                let count = charges.iter().filter(|charged| *charged == key).count();
                let state = if count > 0 { "done" } else { "not_done" };
                return Act::Ok(json!({ "state": state, "charges": count, "all": charges.len() }));
            }
            let complete_by: jiff::Timestamp = seen.header("provost-complete-by").parse().unwrap();
            if complete_by < jiff::Timestamp::now() {
                return Act::status(409);
            }
            let key = seen.key();
            let mut charges = charges.lock().unwrap();
            let known = charges.iter().position(|charged| charged == key);
            let id = known.filter(|_| self.once).unwrap_or_else(|| {
                charges.push(key.to_owned());
                charges.len() - 1
            });
            let at = calls.fetch_add(1, Ordering::Relaxed);
            Act::Ok((self.output)(id, key, at))
        })
        .await
    }
}

#[tokio::test]
async fn a_count_shows_whether_a_service_whose_outputs_are_equal_does_its_work_once() {
    const REPEATS: [&str; 3] = ["again", "twice_at_once", "after_dropped_answer"];
    let provost = Provost::start().await;
    let request = |count: &str| {
        json!({
            "request": { "method": "PUT", "path": "/charges" },
            "probe": { "request": { "path": "/charges" }, "outcome": "response.body.state", "output": "'charged'" },
            "count": count, "within": "2m",
        })
    };
    let output = |_, _: &str, _| json!({ "ok": true });
    for (once, expected) in [(true, "passed"), (false, "failed")] {
        let remote = ChargingService { once, output }.start().await;
        provost.register("constant", &remote.url(), 4).await;
        let result = checked(provost.api(), "constant", &request("response.body.charges")).await;
        let with = with_status(&result, expected);
        for name in REPEATS {
            assert!(with.contains(&name), "{name}: {result:#}");
        }
        let passes = with_status(&result, "passed").contains(&"after_complete_by");
        assert_eq!(passes, once, "{result:#}");
        // A number that counts other keys too, or a field that is no number, shows nothing.
        for count in ["response.body.all", "response.body.state"] {
            let result = checked(provost.api(), "constant", &request(count)).await;
            let with = with_status(&result, "inconclusive");
            for name in &REPEATS[..2] {
                assert!(with.contains(name), "{name}: {result:#}");
            }
        }
    }
    for (count, probe) in [
        ("response.body.charges", None),
        ("steps.a.output", Some(())),
        ("response.", Some(())),
    ] {
        let mut body = request(count);
        if probe.is_none() {
            body.as_object_mut().unwrap().remove("probe");
        }
        let refused = provost.post("/v1/agents/constant/check", &body).await;
        assert_eq!(refused.expect_faults(), ["/count"], "{count}");
    }
}

/// It charges for each request, and its outputs differ between keys because the requests do.
#[tokio::test]
async fn a_service_that_repeats_what_it_was_sent_shows_nothing_by_its_outputs() {
    let provost = Provost::start().await;
    let remote = Remote::with(|seen| {
        let complete_by: jiff::Timestamp = seen.header("provost-complete-by").parse().unwrap();
        match complete_by < jiff::Timestamp::now() {
            true => Act::status(409),
            false => Act::Ok(seen.body.clone()),
        }
    })
    .await;
    provost.register("echo", &remote.url(), 4).await;
    let request = json!({
        "request": { "path": "/charges", "body": { "ref": "{{ task.key | sha256 }}", "amount": 5 } },
        "within": "2m",
    });
    let result = checked(provost.api(), "echo", &request).await;
    let unclear = with_status(&result, "inconclusive");
    for name in ["again", "twice_at_once", "after_complete_by"] {
        assert!(unclear.contains(&name), "{name}: {result:#}");
    }
    assert_eq!(with_status(&result, "failed"), [""; 0], "{result:#}");
    // One request, under two keys.
    let ledger = remote.ledger();
    let same: Vec<_> = ledger[1..3].iter().map(|seen| &seen.body).collect();
    assert_eq!(same[0], same[1]);
    assert_ne!(ledger[1].key(), ledger[2].key());
}

#[tokio::test]
async fn only_ids_of_the_service_show_that_its_work_was_done_once() {
    let provost = Provost::start().await;
    let constant = |_, _: &str, _| json!({ "ok": true });
    let echo = |_, key: &str, _| json!({ "ok": true, "key": key });
    let id = |id, _: &str, _| json!({ "id": id });
    let dated = |id, _: &str, at| json!({ "id": id, "date": format!("2026-01-31T09:30:{at:02}Z") });
    let only_dated = |_, _: &str, at| json!({ "date": format!("2026-01-31T09:30:{at:02}Z") });
    type Output = fn(usize, &str, usize) -> Value;
    let services: [(&str, bool, Output, &str); 8] = [
        ("charges-constant", false, constant, "inconclusive"),
        ("charges-echo", false, echo, "inconclusive"),
        ("charges-date", false, only_dated, "inconclusive"),
        ("charges-new-id", false, id, "failed"),
        ("charges-new-id-and-date", false, dated, "failed"),
        ("once-id", true, id, "passed"),
        ("once-id-and-date", true, dated, "passed"),
        ("once-constant", true, constant, "inconclusive"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("check.json");
    let text = json!({ "request": { "method": "PUT", "path": "/charges" }, "within": "2m" });
    std::fs::write(&file, text.to_string()).unwrap();
    for (name, once, output, expected) in services {
        let remote = ChargingService { once, output }.start().await;
        provost.register(name, &remote.url(), 4).await;
        let server = format!("http://{}", provost.api().address());
        let check = async |more: &[&str]| {
            let mut command = binary();
            command.args(["agent", "check", name, "--server", &server, "--request"]);
            let output = command.arg(&file).args(more).output().await.unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            (output.status.code().unwrap(), said)
        };
        let (code, said) = check(&["--json"]).await;
        let result: Value = serde_json::from_str(&said).unwrap();
        let with = with_status(&result, expected);
        assert!(with.contains(&"again"), "{name}: {result:#}");
        assert!(with.contains(&"twice_at_once"), "{name}: {result:#}");
        // For a service that does the work again at each repeat, the call after the complete-by shows nothing more.
        let failed = expected == "failed";
        assert_eq!(
            with.contains(&"after_complete_by"),
            !failed,
            "{name}: {result:#}"
        );
        // For the whole check, `error_classes` is not known either, because the request names no body that the service
        // must refuse.
        let verdict = if failed { "failed" } else { "incomplete" };
        assert_eq!(result["status"], verdict, "{name}: {result:#}");
        assert_eq!(code, if failed { 1 } else { 2 }, "{name}");
        if expected == "inconclusive" {
            let again = &result["findings"][1]["seen"];
            assert!(
                again
                    .as_str()
                    .unwrap()
                    .contains("an id that the service gives"),
                "{again}"
            );
            let (_, said) = check(&[]).await;
            let line = said.lines().last().unwrap();
            assert!(line.contains("incomplete"), "{line}");
            assert!(
                line.contains("inconclusive: again, twice_at_once, after_complete_by"),
                "{line}"
            );
        }
    }
}
