//! The operations that are not about tasks: health, metrics and documentation; and the form of errors everywhere.

use serde_json::Value;

use crate::harness::{Provost, Remote, binary, one_step};

#[tokio::test]
async fn health_says_alive_and_ready() {
    let provost = Provost::start().await;
    assert_eq!(provost.get("/livez").await.status, 200);
    assert_eq!(provost.get("/readyz").await.status, 200);
    let check = binary()
        .args(["healthcheck", "--listen", provost.address()])
        .output();
    let check = check.await.unwrap();
    assert!(check.status.success(), "{check:?}");
}

#[tokio::test]
async fn metrics_are_in_the_format_of_prometheus_and_count_what_happened() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    provost.run(&one_step(&remote.url(), "/work")).await;
    let answer = provost.get("/metrics").await;
    let content_type = answer.header("content-type").unwrap().to_owned();
    assert!(
        content_type.starts_with("text/plain; version=0.0.4"),
        "{content_type}"
    );
    let Value::String(text) = answer.expect(200) else {
        panic!("metrics are text");
    };
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            name.starts_with("provost_") || name.starts_with("process_"),
            "{line}"
        );
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for name in ["provost_store_commit_seconds", "provost_store_batch_size"] {
        assert!(
            text.contains(&format!("# TYPE {name} histogram")),
            "{name} in {text}"
        );
    }
}

#[tokio::test]
async fn the_api_documents_itself_without_another_network() {
    let provost = Provost::start().await;
    let document = provost.get("/openapi.json").await.expect(200);
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{document}"
    );
    for path in [
        "/v1/tasks",
        "/v1/tasks/{id}",
        "/v1/tasks/{id}/history",
        "/v1/tasks/{id}/events",
        "/v1/tasks/{id}/cancel",
        "/v1/tasks/{id}/steps/{name}/retry",
        "/v1/tasks/retry",
        "/v1/workflows/{name}",
        "/v1/agents/{name}",
        "/v1/alerts",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let docs = provost.get("/docs").await;
    assert!(
        docs.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    let Value::String(html) = docs.expect(200) else {
        panic!("the docs are a page");
    };
    for outside in [
        "src=\"http",
        "src='http",
        "href=\"http://",
        "@import",
        "url(http",
    ] {
        assert!(!html.contains(outside), "{outside} in the docs");
    }
    for outside in html
        .split("<link")
        .skip(1)
        .chain(html.split("<script").skip(1))
    {
        let tag = outside.split('>').next().unwrap();
        assert!(!tag.contains("//"), "{tag}");
    }
}

#[tokio::test]
async fn instances_say_who_runs_and_who_supervises() {
    let setup = Provost::setup()
        .argument("--instance-id")
        .argument("node-1");
    let provost = setup.start().await;
    let answer = provost.get("/v1/instances").await.expect(200);
    let instances = answer["items"].as_array().unwrap();
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0]["id"], "node-1");
    assert_eq!(instances[0]["supervising"], true);
}

#[tokio::test]
async fn what_is_not_there_and_what_is_not_allowed_are_problems_too() {
    let provost = Provost::start().await;
    provost
        .get("/v2/tasks")
        .await
        .expect_problem(404, "not-found");
    provost
        .get("/v1/tasks/x/y/z")
        .await
        .expect_problem(404, "not-found");
    let refused = provost.delete("/v1/tasks").await;
    let allowed = refused.header("allow").unwrap_or_default().to_owned();
    assert!(
        allowed.contains("GET") && allowed.contains("POST"),
        "{allowed:?}"
    );
    refused.expect_problem(405, "method-not-allowed");
}

#[tokio::test]
async fn the_type_of_a_problem_leads_to_what_helps() {
    let tokens = "root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let page = include_str!("../../docs/problems.md");
    let kinds: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert!(kinds.len() > 30);
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for kind in &kinds {
        let path = format!("/problems/{kind}");
        let plain = provost.get(&path).await;
        let media_type = plain.header("content-type").unwrap().to_owned();
        assert!(media_type.starts_with("text/markdown"), "{media_type}");
        let Value::String(plain) = plain.expect(200) else {
            panic!("{kind} is no text");
        };
        assert!(plain.contains("**Cure**"), "{plain}");
        let html = provost.get(&path).header("accept", browser).await;
        let media_type = html.header("content-type").unwrap().to_owned();
        assert!(media_type.starts_with("text/html"), "{media_type}");
        assert_eq!(html.header("vary"), Some("accept"));
        let Value::String(html) = html.expect(200) else {
            panic!("{kind} is no text");
        };
        assert!(html.contains(&format!("<h1>{kind}</h1>")), "{html}");
        assert!(html.contains("<strong>Cure</strong>"), "{html}");
        assert!(!html.contains("<script"), "{html}");
    }
    for accept in ["*/*", browser] {
        let all = provost.get("/problems").header("accept", accept).await;
        let Value::String(all) = all.expect(200) else {
            panic!("the page is text");
        };
        assert!(kinds.iter().all(|kind| all.contains(kind)), "{all}");
    }
    let refused = provost.get("/v1/tasks").await;
    let problem = refused.expect_problem(401, "unauthenticated");
    let kind = problem["type"].as_str().unwrap();
    assert_eq!(provost.get(kind).await.status, 200);
    for unknown in [
        "/problems/nothing",
        "/problems/Problems",
        "/problems/not-found%0a",
    ] {
        let unknown = provost.get(unknown).await;
        unknown.expect_problem(404, "not-found");
    }
}
