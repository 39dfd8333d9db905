//! Requests that no page gets, and what all responses have.

use http::StatusCode;

use crate::{browser::Visitor, full};

#[tokio::test]
async fn a_form_that_is_too_long_is_refused_by_every_page_and_nothing_is_done() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    let form = format!(
        "for=30m&instance=eu-1&reason={}",
        "x".repeat(2 * 1024 * 1024)
    );
    for address in [
        "/console/agents/payments/pause",
        "/console/agents/http:%2F%2F127.0.0.1:9/open",
        "/console/bulk/01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55/resume",
        "/console/instances/release",
        "/console/messages/all/discard",
        "/console/schedules/nightly/pause",
        "/console/tasks/1/retry",
        "/console/tasks/fix",
        "/console/workflows/order/activate",
    ] {
        let seen = visitor.post(address, &form).await;
        assert_eq!(seen.status, StatusCode::PAYLOAD_TOO_LARGE, "{address}");
        assert_eq!(seen.text("h1"), "The form is too long", "{address}");
        let lead = seen.text(".lead");
        assert!(
            lead.contains("may have 2 MiB") && lead.contains("Shorten"),
            "{lead}"
        );
    }
    let calls = api.calls();
    assert!(calls.is_empty(), "{}", calls[0].target);
    let seen = visitor.post("/console/login", &form).await;
    assert_eq!(seen.status, StatusCode::PAYLOAD_TOO_LARGE);
    let form_of_sign_in = format!("token={}", "x".repeat(17 * 1024));
    let seen = visitor.post("/console/login", &form_of_sign_in).await;
    assert!(
        seen.text(".lead").contains("may have 16 KiB"),
        "{}",
        seen.html
    );
    // Longer than the limit that forms had, and than many bodies of retries.
    let form = format!(
        "if_match=%229%22&reason=why&body=%22{}%22",
        "x".repeat(1024 * 1024)
    );
    visitor.post("/console/tasks/1/retry", &form).await;
    let sent = api.calls().into_iter().find(|sent| sent.method == "POST");
    let body = sent.unwrap().body;
    assert!(body.len() > 1024 * 1024 && body.contains("\"reason\":\"why\""));
}

#[tokio::test]
async fn the_form_of_somebody_who_has_not_signed_in_is_not_read() {
    let visitor = Visitor::of(full().with_token("secret-of-ada", "ada", "operate"));
    let form = format!("reason={}", "x".repeat(3 * 1024 * 1024));
    let seen = visitor.post("/console/tasks/fix", &form).await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER);
    assert!(seen.header("location").starts_with("/console/login"));
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_with_a_page() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    for address in [
        "/console/tasks/%ff",
        "/console/tasks/%ff/events",
        "/console/schedules/%ff",
        "/console/agents/%ff/pause",
        "/console/none/%ff",
    ] {
        let seen = visitor.get(address).await;
        assert_eq!(seen.status, StatusCode::NOT_FOUND, "{address}");
        assert_eq!(seen.text("h1"), "No such page", "{address}");
    }
    let seen = visitor.post("/console/tasks/1/retry", "reason=%FF").await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    assert_eq!(seen.text("h1"), "The form is not text");
    assert!(api.calls().is_empty());
}

#[tokio::test]
async fn redirects_and_errors_have_the_headers_of_pages() {
    let visitor = Visitor::of(full());
    let signs_in = Visitor::of(full().with_token("secret-of-ada", "ada", "operate"));
    let long = "x".repeat(3 * 1024 * 1024);
    for (seen, status) in [
        (
            visitor.get("/console/find?q=order").await,
            StatusCode::SEE_OTHER,
        ),
        (signs_in.get("/console").await, StatusCode::SEE_OTHER),
        (
            signs_in.post("/console/login", "token=secret-of-ada").await,
            StatusCode::SEE_OTHER,
        ),
        (
            signs_in.post("/console/logout", "").await,
            StatusCode::SEE_OTHER,
        ),
        (
            visitor.post("/console/agents", "").await,
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        (
            visitor.get("/console/assets/0/none.css").await,
            StatusCode::NOT_FOUND,
        ),
        (
            visitor.get("/console/tasks/%ff").await,
            StatusCode::NOT_FOUND,
        ),
        (
            visitor.post("/console/tasks/1/retry", &long).await,
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (
            visitor.get("/console/tasks/1/events").await,
            StatusCode::NOT_FOUND,
        ),
    ] {
        assert_eq!(seen.status, status);
        assert_eq!(
            seen.header("content-security-policy"),
            provost_console::POLICY,
            "{status}"
        );
        assert_eq!(seen.header("cache-control"), "no-store", "{status}");
        assert_eq!(seen.header("x-content-type-options"), "nosniff", "{status}");
        assert_eq!(seen.header("referrer-policy"), "same-origin", "{status}");
    }
    let page = visitor.get("/console").await;
    let file = page.all("link")[0].attribute("href").unwrap().to_owned();
    let file = visitor.get(&file).await;
    assert!(
        file.header("cache-control").contains("immutable"),
        "a file keeps its own"
    );
}

#[tokio::test]
async fn options_lists_the_methods_of_a_page() {
    let visitor = Visitor::of(full());
    for (address, methods) in [
        ("/console", "GET,HEAD"),
        ("/console/agents/payments/pause", "GET,HEAD,POST"),
    ] {
        let seen = visitor.send("OPTIONS", address, &[], "").await;
        assert_eq!(seen.status, StatusCode::NO_CONTENT, "{address}");
        assert_eq!(seen.header("allow"), methods, "{address}");
    }
}

#[tokio::test]
async fn a_parameter_that_a_page_does_not_know_is_refused_and_nothing_is_asked() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    for (address, part) in [
        (
            "/console/tasks?sate=error",
            r#""sate" is not known here: did you mean "state"?"#,
        ),
        (
            "/console/messages?reciever=audit",
            r#"did you mean "receiver"?"#,
        ),
        (
            "/console/workflows/order?compare=99",
            r#""compare" is not known here."#,
        ),
        (
            "/console/agents/payments/pause?fro=30m",
            r#"did you mean "for"?"#,
        ),
        ("/console/tasks/1?atempt=2", r#"did you mean "attempt"?"#),
        (
            "/console/tasks/fix?do=cancel&sate=error",
            r#"did you mean "state"?"#,
        ),
        (
            "/console/causes/5f1d0a7c93b2e846/fix?do=retry&stat=error",
            r#"did you mean "state"?"#,
        ),
        ("/console?colour=red", "This page has no parameters."),
    ] {
        let seen = visitor.get(address).await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST, "{address}");
        assert_eq!(seen.text("h1"), "Unknown parameter", "{address}");
        assert!(seen.text(".lead").contains(part), "{}", seen.text(".lead"));
    }
    let seen = visitor
        .post("/console/messages/all/discard?reciever=audit", "")
        .await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    assert!(api.calls().is_empty());
    let seen = visitor
        .get("/console/tasks?live=5s&after=c&sort=created_at&state=")
        .await;
    assert_eq!(seen.status, StatusCode::OK);
}

#[tokio::test]
async fn every_link_of_every_page_has_only_parameters_that_its_page_knows() {
    let visitor = Visitor::of(full());
    for address in crate::PAGES {
        let seen = visitor.get(address).await;
        let links = seen
            .all("a")
            .into_iter()
            .filter_map(|link| link.attribute("href").map(str::to_owned));
        for link in links.filter(|link| link.starts_with("/console")) {
            let seen = visitor.get(link.split('#').next().unwrap()).await;
            assert!(
                !seen.html.contains("Unknown parameter"),
                "{address}: {link}"
            );
        }
    }
}

#[tokio::test]
async fn the_home_page_is_found_with_a_slash_too() {
    let seen = Visitor::of(full().below("/ops"))
        .get("/console/?live=5s")
        .await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER);
    assert_eq!(seen.header("location"), "/ops/console?live=5s");
}

#[tokio::test]
async fn the_first_command_has_the_address_by_which_the_browser_came() {
    let first_run = |api: crate::browser::FakeApi, host: &'static str| async move {
        let mut idle = crate::overview();
        idle["tasks"] = serde_json::json!([]);
        idle["by_hour"] = serde_json::json!([]);
        api.returns("GET /v1/overview", &idle);
        api.returns("GET /v1/tasks", &crate::page_of(&[]));
        let seen = Visitor::of(api)
            .send("GET", "/console", &[("host", host)], "")
            .await;
        seen.all("pre")[1].text.clone()
    };
    let local = || full().without_public_url();
    for (api, host, address) in [
        (local(), "10.0.0.7:9090", "http://10.0.0.7:9090/v1/tasks "),
        (local(), "[::1]:9090", "http://[::1]:9090/v1/tasks "),
        (local(), "a;rm", "http://127.0.0.1:8080/v1/tasks "),
        (
            full().below("/ops"),
            "10.0.0.7:9090",
            "https://provost.example/ops/v1/tasks ",
        ),
    ] {
        let command = first_run(api, host).await;
        assert!(
            command.starts_with(&format!("curl -s {address}")),
            "{command}"
        );
    }
}

#[tokio::test]
async fn an_agent_that_is_a_url_has_no_link_and_one_task_needs_a_person() {
    let api = full();
    let mut cause = crate::failure("5f1d0a7c93b2e846", 1, false);
    cause["agent"] = "http://127.0.0.1:9000".into();
    api.returns("GET /v1/failures/5f1d0a7c93b2e846", &cause);
    let seen = Visitor::of(api)
        .get("/console/causes/5f1d0a7c93b2e846")
        .await;
    let links = seen.all("a");
    let mut links = links.iter().filter_map(|link| link.attribute("href"));
    assert!(
        !links.any(|link| link.contains("/agents/")),
        "{}",
        seen.html
    );
    assert!(
        seen.html
            .contains("The step calls http://127.0.0.1:9000, a URL")
    );
    let lead = seen.text(".lead");
    assert!(
        lead.starts_with("1 task needs a person for this cause"),
        "{lead}"
    );
}

#[tokio::test]
async fn a_version_that_is_no_number_is_refused() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    for address in [
        "/console/workflows/order/activate?version=abc",
        "/console/workflows/order/activate",
        "/console/workflows/order?version=abc",
        "/console/workflows/order?diff=1",
        "/console/workflows/order?diff=1..x",
    ] {
        let seen = visitor.get(address).await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST, "{address}");
        assert!(
            seen.text(".lead").contains("the number of a version"),
            "{address}"
        );
    }
    let seen = visitor
        .post("/console/workflows/order/activate", "version=abc&reason=x")
        .await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    assert!(api.calls().iter().all(|sent| sent.method == "GET"));
}
