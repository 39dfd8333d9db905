//! If-Match and If-None-Match: on agents, workflows and schedules, and wherever the OpenAPI document lists them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Answer, Gate, Provost, Remote, pipeline},
};

fn agent(port: usize) -> Value {
    json!({ "endpoints": [{ "url": format!("http://127.0.0.1:{port}") }] })
}

fn workflow(path: usize) -> Value {
    json!({ "steps": [{ "name": "a", "url": "http://127.0.0.1:9", "request": { "path": format!("/{path}") } }] })
}

fn schedule(minute: usize) -> Value {
    json!({ "cron": format!("{minute} 2 * * *"), "workflow": "order" })
}

type Body = fn(usize) -> Value;

/// The three kinds of things that are registered: their path, and a function that returns different bodies.
const REGISTERED: [(&str, Body); 3] = [
    ("/v1/agents/payments", agent),
    ("/v1/workflows/order", workflow),
    ("/v1/schedules/nightly", schedule),
];

fn etag(answer: &Answer) -> String {
    assert!(answer.status < 300, "{answer:?}");
    let tag = answer.header("etag").expect("an ETag").to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag} is weak");
    tag
}

#[tokio::test]
async fn what_somebody_else_has_changed_is_not_overwritten() {
    let provost = Provost::start().await;
    for (path, body) in REGISTERED {
        let put = |n, name: &str, tag: &str| provost.put(path, &body(n)).header(name, tag);
        let nothing = put(1, "if-match", "*").await;
        let problem = nothing.expect_problem(412, "precondition-failed");
        assert_eq!(problem["etag"], Value::Null);
        let first = etag(&put(1, "if-none-match", "*").await);
        let there = put(2, "if-none-match", "*").await;
        let problem = there.expect_problem(412, "precondition-failed");
        assert_eq!(problem["etag"], first);
        assert_eq!(etag(&provost.get(path).await), first);
        let second = etag(&put(2, "if-match", &first).await);
        assert_ne!(first, second);
        let late = put(3, "if-match", &first).await;
        let problem = late.expect_problem(412, "precondition-failed");
        assert_eq!(problem["etag"], second);
        let weak = put(3, "if-match", &format!("W/{second}")).await;
        weak.expect_problem(412, "precondition-failed");
        assert_eq!(etag(&provost.get(path).await), second, "nothing changed");
        let either = put(3, "if-match", &format!("{first}, {second}")).await;
        let third = etag(&either);
        let known = provost.get(path).header("if-none-match", &third).await;
        assert_eq!(known.status, 304);
        for broken in ["7", "\"a", "\"a\" \"b\"", ""] {
            let refused = put(4, "if-match", broken).await;
            refused.expect_problem(400, "invalid-query");
        }
    }
    let agent = "/v1/agents/payments";
    let gone = provost.delete(agent).header("if-match", "\"old\"").await;
    let problem = gone.expect_problem(412, "precondition-failed");
    let gone = provost.delete(agent);
    let gone = gone.header("if-match", problem["etag"].as_str().unwrap());
    gone.await.expect(204);
    let gone = provost.delete(agent).header("if-match", "*").await;
    gone.expect_problem(404, "no-such-agent");
}

#[tokio::test]
async fn what_was_not_there_is_created_and_what_was_is_changed() {
    let provost = Provost::start().await;
    for (path, body) in REGISTERED {
        let created = provost.put(path, &body(1)).await.expect(201);
        assert_eq!(created["name"], provost.get(path).await.body["name"]);
        provost.put(path, &body(1)).await.expect(200);
    }
    let path = "/v1/agents/payments";
    provost.put(path, &agent(2)).await.expect(200);
    provost.delete(path).await.expect(204);
    let again = provost.put(path, &agent(2)).await;
    assert_eq!(again.header("location"), Some(path));
    again.expect(201);
}

#[tokio::test]
async fn calls_under_way_do_not_change_the_tag_of_an_agent() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 4).await;
    let idle = provost.get("/v1/agents/payments").await;
    let charge = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    let id = provost.submit(&charge).await;
    remote.requests(1).await;
    let busy = provost.get("/v1/agents/payments").await;
    assert_eq!(etag(&busy), etag(&idle));
    assert_eq!(
        (&idle.body["in_flight"], &busy.body["in_flight"]),
        (&json!(0), &json!(1))
    );
    gate.open();
    provost.settled(&id).await;
}

#[tokio::test]
async fn who_is_shown_less_of_a_workflow_has_another_tag() {
    let tokens = "eye:read:eye-secret-0123456789,root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let mut body = workflow(1);
    body["steps"][0]["request"]["headers"] = json!({ "x-api-key": "secret" });
    let path = "/v1/workflows/order";
    let put = provost.put(path, &body);
    let put = put
        .header("authorization", "Bearer root-secret-0123456789")
        .await;
    let whole = etag(&put);
    let read = |name: &str| {
        let bearer = format!("Bearer {name}-secret-0123456789");
        provost.get(path).header("authorization", &bearer)
    };
    assert_eq!(etag(&read("root").await), whole);
    assert_ne!(etag(&read("eye").await), whole);
    let known = read("eye").header("if-none-match", &whole).await;
    assert_eq!(known.status, 200, "it was never shown that");
}

#[tokio::test]
async fn of_two_instances_that_change_the_same_at_once_one_is_refused() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let on = || Provost::setup().database_url(&url).start();
    let (a, b) = tokio::join!(on(), on());
    for (path, body) in REGISTERED {
        let mut tag: Option<String> = None;
        for round in 0..20 {
            let put = |provost: &Provost, n| match &tag {
                None => provost.put(path, &body(n)).header("if-none-match", "*"),
                Some(tag) => provost.put(path, &body(n)).header("if-match", tag),
            };
            let (one, two) = tokio::join!(put(&a, round * 2 + 1), put(&b, round * 2 + 2));
            let (won, lost) = match one.status {
                412 => (two, one),
                _ => (one, two),
            };
            let won = etag(&won);
            let problem = lost.expect_problem(412, "precondition-failed");
            assert_eq!(problem["etag"], won, "round {round} of {path}");
            tag = Some(won);
        }
    }
}

/// Returns a condition that is never true of an existing thing.
fn never(name: &str, path: &str) -> &'static str {
    match name {
        "If-None-Match" => "*",
        _ if path.starts_with("/v1/tasks/") || path.starts_with("/v1/signals/") => "\"999999\"",
        _ => "\"never\"",
    }
}

#[tokio::test]
async fn each_condition_that_the_document_lists_is_judged_and_no_other_is_passed_over() {
    let gate = Gate::closed();
    let remote = Remote::with(move |_| gate.then(json!(1))).await;
    let provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a", "b"])).await;
    for (path, body) in REGISTERED {
        etag(&provost.put(path, &body(1)).await);
    }
    let reader = provost.put("/v1/readers/payments", &json!({ "position": "oldest" }));
    reader.await.expect(201);
    let of_workflow = json!({ "workflow": "order", "key": "known" });
    let with_key = provost.submit(&of_workflow).await;
    let with_key = provost.task(&with_key).await;
    let of_key = with_key["steps"][0]["name"].as_str().unwrap();
    let before = provost.task(&id).await;
    let document = provost.get("/openapi.json").await.expect(200);
    let mut judged = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let of_workflow = path.starts_with("/v1/workflows");
        let of_schedule = path.starts_with("/v1/schedules");
        let target = path
            .replace("{id}", &id)
            .replace("{version}", "1")
            .replace("{kind}", "busy")
            .replace("{workflow}", "order")
            .replace("{key}", "known")
            .replace(
                "{name}",
                match path {
                    _ if path.starts_with("/v1/tasks") => "a",
                    _ if path.starts_with("/v1/signals") => of_key,
                    _ if of_workflow => "order",
                    _ if of_schedule => "nightly",
                    _ => "payments",
                },
            );
        for (method, operation) in item.as_object().unwrap() {
            let lists = |name: &str| {
                let mut parameters = operation["parameters"].as_array().into_iter().flatten();
                parameters.any(|parameter| parameter["name"] == name)
            };
            let method: Method = method.to_uppercase().parse().unwrap();
            for name in ["If-Match", "If-None-Match"] {
                let mut asked = provost
                    .call(method.clone(), &target)
                    .header(name, never(name, path));
                let own_body = match path.as_str() {
                    "/v1/tasks/{id}/migrate" => Some(json!({ "to_version": 1 })),
                    "/v1/workflows/{name}/activate" => Some(json!({ "version": 1 })),
                    _ => None,
                };
                if let Some(body) = own_body.filter(|_| method == Method::POST) {
                    asked = asked.json(&body);
                }
                if method == Method::PUT {
                    let body = match path {
                        _ if of_workflow => workflow(2),
                        _ if of_schedule => schedule(2),
                        _ if path == "/v1/readers/{name}" => json!({ "position": "newest" }),
                        _ => agent(2),
                    };
                    asked = asked.json(&body);
                }
                let place = format!("{method} {path} with {name}");
                if method != Method::GET {
                    let answer = asked.await;
                    assert_eq!(answer.status, 412, "{place}: {:?}", answer.body);
                } else if lists(name) {
                    assert_eq!(name, "If-None-Match", "{place}");
                    assert_eq!(asked.await.status, 304, "{place}");
                }
                judged += usize::from(lists(name));
            }
        }
    }
    assert!(judged > 15, "only {judged} conditions are listed");
    assert_eq!(provost.task(&id).await, before, "nothing was changed");
    for (path, body) in REGISTERED {
        let same = provost.put(path, &body(1)).await;
        assert_eq!(same.status, 200, "{path}");
    }
    // A condition that is always true is no reason to refuse.
    let submission = provost.post("/v1/tasks", &pipeline(&remote.url(), &["a"]));
    submission.header("if-match", "*").await.expect(202);
}
