//! Definitions and commands as they are sent: YAML, null bodies, waits that are cut, and an agent that is the service itself.

use serde_json::json;

use crate::harness::{Provost, Remote, id_of, one_step};

#[tokio::test]
async fn a_workflow_is_registered_from_yaml_and_a_fault_says_where_it_is() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let yaml = format!(
        "steps:\n  - name: only\n    url: {}\n    request: {{ path: /work, body: \"{{{{ input.n }}}}\" }}\n",
        remote.url()
    );
    let put = provost.call(reqwest::Method::PUT, "/v1/workflows/order");
    let put = put.text("application/yaml", yaml.clone());
    put.await.expect(201);
    let validate = provost.call(reqwest::Method::POST, "/v1/workflows/order/validate");
    let report = validate.text("application/yaml", yaml).await.expect(200);
    assert_eq!(report["steps"][0]["name"], "only");
    let task = provost
        .run(&json!({ "workflow": "order", "input": { "n": 7 } }))
        .await;
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(remote.ledger()[0].body, 7);
    let put = provost.call(reqwest::Method::PUT, "/v1/workflows/order");
    let refused = put.text("application/yaml", "steps:\n  - &a name\n").await;
    let problem = refused.expect_problem(400, "malformed-json");
    assert_eq!(problem["line"], 2, "{problem:#}");
}

#[tokio::test]
async fn a_task_is_submitted_in_yaml_and_a_dry_run_takes_it_too() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let yaml = format!(
        "input: {{ n: 7 }}\nsteps:\n  - name: only\n    url: {}\n    request: {{ path: /work, body: \"{{{{ input.n }}}}\" }}\n",
        remote.url()
    );
    let post = |path: &str| {
        let call = provost.call(reqwest::Method::POST, path);
        call.text("application/yaml", yaml.clone())
    };
    let report = post("/v1/tasks?dry_run=true").await.expect(200);
    assert_eq!(report["steps"][0]["name"], "only");
    let submit = || post("/v1/tasks").header("idempotency-key", "one");
    let task = submit().await.expect(202);
    let again = submit().await.expect(202);
    assert_eq!(task["id"], again["id"]);
    assert_eq!(provost.settled(&id_of(&task)).await["state"], "processed");
    assert_eq!(remote.ledger()[0].body, 7);
}

#[tokio::test]
async fn a_command_takes_null_for_no_body() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    let undo = format!("/v1/tasks/{}/undo", id_of(&task));
    provost.post(&undo, &json!(null)).await.expect(200);
}

#[tokio::test]
async fn a_wait_that_is_cut_says_so() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    let path = format!("/v1/tasks/{}", id_of(&task));
    let cut = provost.get(&format!("{path}?wait=90s")).await;
    assert_eq!(cut.header("preference-applied"), Some("wait=60"));
    let whole = provost.get(&format!("{path}?wait=30s")).await;
    assert_eq!(whole.header("preference-applied"), None);
}

#[tokio::test]
async fn an_agent_that_is_the_service_itself_is_refused() {
    let provost = Provost::start().await;
    let own = format!("http://{}", provost.address());
    let (_, port) = own.rsplit_once(':').unwrap();
    for url in [
        own.clone(),
        format!("{own}/v1/tasks"),
        format!("http://LOCALHOST:{port}/"),
        format!("http://[::1]:{port}/v1"),
    ] {
        let spec = json!({ "endpoints": [{ "url": url }] });
        let answer = provost.put("/v1/agents/self", &spec).await;
        let problem = answer.expect(422);
        assert_eq!(
            problem["errors"][0]["pointer"], "/endpoints/0/url",
            "{problem:#}"
        );
    }
    // Another port of this machine, and another path, is another service.
    for url in ["http://localhost:1".to_owned(), format!("{own}/other")] {
        let spec = json!({ "endpoints": [{ "url": url }] });
        let answer = provost.put("/v1/agents/other", &spec).await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
    }
}
