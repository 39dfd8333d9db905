//! Data that the responses of the API do not show to every caller with the role `read`.

use serde_json::{Value, json};

use crate::harness::{Act, Answer, Provost, Remote, one_step, until};

const SECRET: &str = "s3cret-of-the-service";

/// Starts a Provost with one token for each role.
async fn provost() -> Provost {
    let tokens = "shop:submit:shop-secret-0123456789,eye:read:eye-secret-0123456789,\
                  ops:operate:ops-secret-0123456789,root:admin:root-secret-0123456789";
    let setup = Provost::setup().set("TOKENS", tokens);
    setup.set("COURIER__GIVE_UP_AFTER", "0s").start().await
}

async fn get(provost: &Provost, role: &str, path: &str) -> Answer {
    let call = provost.get(path);
    call.header("authorization", &bearer(role)).await
}

fn bearer(name: &str) -> String {
    format!("Bearer {name}-secret-0123456789")
}

#[tokio::test]
async fn who_submits_reads_the_steps_of_a_task_and_a_request_has_one_token() {
    let remote = Remote::quick().await;
    let provost = provost().await;
    let submit = provost.post("/v1/tasks", &one_step(&remote.url(), "/work"));
    let task = submit
        .header("authorization", &bearer("shop"))
        .await
        .expect(202);
    let steps = format!("/v1/tasks/{}/steps", task["id"].as_str().unwrap());
    let page = get(&provost, "shop", &steps).await.expect(200);
    assert_eq!(page["items"][0]["name"], task["steps"][0]["name"]);
    // A proxy might read one of the headers, and Provost the other.
    let call = provost.get(&steps).header("authorization", &bearer("shop"));
    let refused = call.header("authorization", &bearer("root")).await;
    let refused = refused.expect_problem(400, "invalid-query");
    assert!(
        refused["detail"].as_str().unwrap().contains("given twice"),
        "{refused}"
    );
}

fn workflow(url: &str) -> Value {
    let request = json!({
        "method": "GET",
        "path": "/work",
        "headers": { "Authorization": SECRET, "X-Api-Key": SECRET, "x-tenant": "acme" },
    });
    json!({ "steps": [{
        "name": "only",
        "url": url,
        "request": request,
        "undo": { "request": request },
        "probe": { "request": request },
    }]})
}

#[tokio::test]
async fn only_who_may_register_a_workflow_sees_the_values_of_its_secret_headers() {
    let remote = Remote::quick().await;
    let provost = provost().await;
    let url = format!("{}/base", remote.url());
    let put = provost.put("/v1/workflows/order", &workflow(&url));
    let put = put.header("authorization", &bearer("root")).await;
    assert_eq!(put.expect(201)["steps"], workflow(&url)["steps"]);

    let submitted = provost
        .post("/v1/tasks", &json!({ "workflow": "order", "input": {} }))
        .header("authorization", &bearer("shop"));
    let id = submitted.await.expect(202)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let wait = format!("/v1/tasks/{id}?wait=30s");
    assert_eq!(
        get(&provost, "eye", &wait).await.expect(200)["state"],
        "processed"
    );
    assert_eq!(
        remote.requests(1).await[0].header("x-api-key"),
        SECRET,
        "the service gets it"
    );

    for path in ["/v1/workflows/order", "/v1/workflows/order/versions/1"] {
        for role in ["eye", "ops"] {
            let shown = get(&provost, role, path).await.expect(200);
            assert!(
                !shown.to_string().contains(SECRET),
                "{role} {path} {shown:#}"
            );
            for request in [
                &shown["steps"][0]["request"],
                &shown["steps"][0]["undo"]["request"],
                &shown["steps"][0]["probe"]["request"],
            ] {
                let headers =
                    json!({ "Authorization": "***", "X-Api-Key": "***", "x-tenant": "acme" });
                assert_eq!(request["headers"], headers);
                assert_eq!(request["path"], "/work");
            }
        }
        let shown = get(&provost, "root", path).await.expect(200);
        assert_eq!(
            shown["steps"],
            workflow(&url)["steps"],
            "to register it again"
        );
    }
    for path in [
        "/v1/workflows",
        "/v1/workflows/order/graph",
        "/v1/tasks",
        &format!("/v1/tasks/{id}"),
        &format!("/v1/tasks/{id}/history"),
        &format!("/v1/tasks/{id}/events"),
        &format!("/v1/tasks/{id}/graph"),
        &format!("/v1/tasks/{id}/undo-plan"),
    ] {
        let shown = get(&provost, "eye", path).await.expect(200).to_string();
        assert!(!shown.contains(SECRET), "{path} {shown}");
    }
    let cloned = provost.command(&format!("/v1/tasks/{id}/clone"));
    let cloned = cloned
        .header("authorization", &bearer("ops"))
        .await
        .expect(202);
    assert!(!cloned.to_string().contains(SECRET), "{cloned:#}");
    assert_eq!(
        remote.requests(2).await[1].header("x-api-key"),
        SECRET,
        "of the clone too"
    );
}

#[tokio::test]
async fn the_query_of_a_reply_address_is_shown_to_nobody_and_is_sent() {
    let (service, shop) = (
        Remote::quick().await,
        Remote::script([Act::status(410)]).await,
    );
    let provost = provost().await;
    let mut submission = one_step(&service.url(), "/work");
    let url = format!("{}/replies?key={SECRET}", shop.url());
    submission["reply_to"] = json!({ "url": url });
    let submitted = provost.post("/v1/tasks", &submission);
    let task = submitted
        .header("authorization", &bearer("shop"))
        .await
        .expect(202);
    let shown = format!("{}/replies?***", shop.url());
    assert_eq!(task["reply_to"]["url"], shown.as_str());
    let id = task["id"].as_str().unwrap();
    let asked = shop.requests(1).await;
    assert_eq!(asked[0].path, format!("/replies?key={SECRET}"));
    assert!(!asked[0].raw.contains(SECRET), "not in the message either");

    let messages = async || {
        get(&provost, "eye", "/v1/messages?state=dead")
            .await
            .expect(200)
    };
    until(true, || async {
        !messages().await["items"].as_array().unwrap().is_empty()
    })
    .await;
    let dead = messages().await["items"][0].clone();
    assert_eq!(dead["url"], shown.as_str());
    for role in ["shop", "eye", "ops", "root"] {
        let task = get(&provost, role, &format!("/v1/tasks/{id}"))
            .await
            .expect(200);
        assert_eq!(task["reply_to"]["url"], shown.as_str(), "{role}");
    }
    for path in [
        &format!("/v1/messages/{}", dead["id"].as_str().unwrap()),
        &format!("/v1/tasks/{id}/history"),
        "/v1/alerts",
        "/v1/tasks",
    ] {
        let shown = get(&provost, "eye", path).await.expect(200).to_string();
        assert!(!shown.contains(SECRET), "{path} {shown}");
    }
    assert!(!provost.log().contains(SECRET), "it is in the log");

    // A redelivered message goes to the whole address.
    let again = format!("/v1/messages/{}/redeliver", dead["id"].as_str().unwrap());
    let again = provost
        .command(&again)
        .header("authorization", &bearer("ops"));
    assert_eq!(again.await.status, 202);
    assert_eq!(
        shop.requests(2).await[1].path,
        format!("/replies?key={SECRET}")
    );
}

#[tokio::test]
async fn an_undo_that_sends_a_secret_header_on_is_planned_without_its_value() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/refused" => Act::status(400),
        _ => Act::Ok(json!(1)),
    })
    .await;
    let provost = provost().await;
    let body = json!({ "was": "{{ request.headers.authorization }}", "of": "{{ request.headers['x-tenant'] }}" });
    let steps = json!([{
        "name": "only",
        "url": remote.url(),
        "request": { "headers": { "Authorization": SECRET, "x-tenant": "acme" } },
        "undo": { "request": { "path": "/undo", "body": body } },
    }, {
        "name": "refused",
        "url": remote.url(),
        "request": { "path": "/refused" },
    }]);
    let submitted = provost.post("/v1/tasks", &json!({ "steps": steps }));
    let submitted = submitted.header("authorization", &bearer("shop"));
    let id = crate::harness::id_of(&submitted.await.expect(202));
    get(&provost, "eye", &format!("/v1/tasks/{id}?wait=30s"))
        .await
        .expect(200);

    let plan = get(&provost, "eye", &format!("/v1/tasks/{id}/undo-plan")).await;
    let plan = plan.expect(200);
    let shown = json!({ "was": "***", "of": "acme" });
    assert_eq!(plan["calls"][0]["request"]["body"], shown, "{plan:#}");

    let undo = provost.command(&format!("/v1/tasks/{id}/undo"));
    undo.header("authorization", &bearer("ops"))
        .await
        .expect(200);
    remote.paths("/undo", 1).await;
    let ledger = remote.ledger();
    let undone = ledger.iter().find(|seen| seen.path == "/undo").unwrap();
    let sent = json!({ "was": SECRET, "of": "acme" });
    assert_eq!(undone.body, sent, "the service gets it");
}

#[tokio::test]
async fn a_secret_header_that_cannot_be_made_is_told_of_without_what_it_is_made_of() {
    let remote = Remote::quick().await;
    let provost = provost().await;
    let header = format!("{{{{ '{SECRET}' ~ input.missing }}}}");
    let steps = json!([{ "name": "only", "url": remote.url(), "request": { "headers": { "X-Api-Key": header } } }]);
    let submission = json!({ "steps": steps, "input": {}, "reply_to": { "url": format!("{}/replies", remote.url()) } });
    let submitted = provost.post("/v1/tasks", &submission);
    let submitted = submitted.header("authorization", &bearer("shop"));
    let id = crate::harness::id_of(&submitted.await.expect(202));
    let task = get(&provost, "eye", &format!("/v1/tasks/{id}?wait=30s")).await;
    let task = task.expect(200);
    assert_eq!(task["state"], "error");
    let text = task.to_string();
    assert!(
        text.contains("headers.x-api-key") && text.contains("input.missing"),
        "{text}"
    );
    remote.paths("/replies", 1).await;
    let lists = ["/v1/tasks", "/v1/alerts", "/v1/messages"].map(str::to_owned);
    let own = ["", "/history"].map(|end| format!("/v1/tasks/{id}{end}"));
    for path in lists.iter().chain(&own) {
        let shown = get(&provost, "eye", path).await.expect(200);
        assert!(!shown.to_string().contains(SECRET), "{path}: {shown:#}");
    }
    assert!(
        remote
            .ledger()
            .iter()
            .all(|seen| !seen.body.to_string().contains(SECRET))
    );
    assert!(!provost.log().contains(SECRET));
}
