//! Two tasks beside each other: an operator reads why one failed and the other did not, and what a clone would change.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, id_of, setups};

const SECRET: &str = "a-secret-of-the-definition";
const NOBODY: &str = "019c7a5e-0000-7000-8000-000000000000";

fn workflow(url: &str, with_currency: bool) -> Value {
    let mut body = json!({ "order": "{{ task.key }}", "card": "{{ input.card }}" });
    if with_currency {
        body["currency"] = json!("EUR");
    }
    let headers = json!({ "x-shop": "books", "x-api-key": SECRET });
    json!({ "steps": [
        { "name": "reserve", "url": url, "request": { "path": "/holds" } },
        { "name": "charge", "url": url,
          "request": { "path": "/charges", "headers": headers, "body": body } },
        { "name": "ship", "url": url, "request": { "path": "/parcels" } },
    ]})
}

fn submission(key: &str, card: &str) -> Value {
    json!({ "workflow": "order", "key": key, "input": { "sku": "book-7", "card": card } })
}

/// Returns the pointers of a list of differences.
fn pointers(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["pointer"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn of_two_runs_the_step_that_failed_comes_first_with_the_input_that_differs() {
    for setup in setups().await {
        let refusal = Act::answer(
            422,
            &[("content-type", "application/json")],
            r#"{"error":"card is not known"}"#,
        );
        let ok = |id: &str| Act::Ok(json!({ "id": id }));
        let remote =
            Remote::script([ok("rs_1"), ok("ch_1"), ok("pc_1"), ok("rs_2"), refusal]).await;
        let provost = setup.set("RECORD__SUCCESSES", "none").start().await;
        let put = provost.put("/v1/workflows/order", &workflow(&remote.url(), true));
        put.await.expect(201);
        let done = provost.run(&submission("order-1", "tok_visa")).await;
        let failed = provost.run(&submission("order-2", "tok_none")).await;
        let (done, failed) = (id_of(&done), id_of(&failed));

        let path = format!("/v1/tasks/{failed}/diff/{done}");
        let report = provost.get(&path).await.expect(200);
        assert_eq!(
            report["sentence"],
            "order-2 failed at charge, order-1 did not; the inputs differ at /card",
            "{report:#}"
        );
        assert_eq!(report["a"]["state"], "error");
        assert_eq!(report["b"]["state"], "processed");
        assert_eq!(report["definition"]["same_version"], true);
        assert_eq!(report["definition"]["same"], true);
        let card = &report["input"]["items"][0];
        assert_eq!(card["pointer"], "/card");
        assert_eq!(card["change"], "changed");
        assert_eq!(card["a"], json!({ "value": "tok_none", "bytes": 10 }));

        let names: Vec<_> = { report["steps"].as_array().unwrap().iter() }
            .map(|step| step["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["charge", "ship", "reserve"]);
        let charge = &report["steps"][0];
        assert_eq!(charge["differs"], json!(["state", "response"]));
        // One request was recorded as it was sent, and the other is rendered again: what both have is the same.
        assert_eq!(charge["a"]["attempt"]["as_sent"], true);
        assert_eq!(charge["b"]["attempt"]["as_sent"], false);
        assert_eq!(pointers(&charge["request"]), ["/body/card", "/body/order"]);
        let reasons = ["/input/card", "/key"];
        for (item, reason) in charge["request"]["items"]
            .as_array()
            .unwrap()
            .iter()
            .zip(reasons)
        {
            assert_eq!(item["follows_from"], reason, "{item}");
        }
        assert_eq!(charge["a"]["attempt"]["status"], 422);
        assert_eq!(pointers(&charge["response"]), ["/body/error", "/body/id"]);
        let error = &charge["response"]["items"][0]["a"]["value"];
        assert_eq!(error, "card is not known");
        assert_eq!(report["steps"][1]["a"]["state"], "waiting");
        // The outputs of a step that succeeded in both are compared as well. Other ids are to be expected.
        let reserve = &report["steps"][2];
        assert_eq!(pointers(&reserve["response"]), ["/body/id"]);
        assert_eq!(reserve["differs"], json!([]));
        assert!(!report.to_string().contains(SECRET), "{report:#}");

        for (a, b) in [(NOBODY, &*done), (&*done, NOBODY)] {
            let missing = provost.get(&format!("/v1/tasks/{a}/diff/{b}")).await;
            let problem = missing.expect_problem(404, "no-such-task");
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.contains(NOBODY) && !detail.contains(&done),
                "{detail}"
            );
        }
        let path = format!("/v1/tasks/{done}/diff/order-2");
        let missing = provost.get(&path).await;
        let problem = missing.expect_problem(404, "no-such-task");
        assert!(problem["detail"].as_str().unwrap().contains("order-2"));
    }
}

#[tokio::test]
async fn two_versions_are_compared_and_their_secrets_are_not_shown() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let mut tasks = Vec::new();
    for with_currency in [true, false] {
        let definition = workflow(&remote.url(), with_currency);
        provost.put("/v1/workflows/order", &definition).await;
        tasks.push(id_of(
            &provost.run(&submission("order-1", "tok_visa")).await,
        ));
    }
    let path = format!("/v1/tasks/{}/diff/{}", tasks[1], tasks[0]);
    let report = provost.get(&path).await.expect(200);
    assert_eq!(report["definition"]["same_version"], false);
    let expected = ["/steps/charge/request/body/currency"];
    assert_eq!(pointers(&report["definition"]["differences"]), expected);
    let currency = &report["definition"]["differences"]["items"][0];
    assert_eq!(currency["change"], "added");
    assert_eq!(currency["a"], Value::Null);
    assert_eq!(currency["b"]["value"], "EUR");
    assert_eq!(report["steps"][0]["name"], "charge");
    assert_eq!(pointers(&report["steps"][0]["request"]), ["/body/currency"]);
    assert!(!report.to_string().contains(SECRET), "{report:#}");
}

#[tokio::test]
async fn a_clone_shows_what_it_would_change_before_it_is_submitted() {
    let tokens = "shop:submit:shop-secret-0123456789,eye:read:eye-secret-0123456789,\
                  ops:operate:ops-secret-0123456789,root:admin:root-secret-0123456789";
    let remote = Remote::quick().await;
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let bearer = |name: &str| format!("Bearer {name}-secret-0123456789");
    for with_currency in [true, false] {
        let definition = workflow(&remote.url(), with_currency);
        let put = provost.put("/v1/workflows/order", &definition);
        put.header("authorization", &bearer("root")).await;
    }
    let mut first = submission("order-1", "tok_visa");
    first["workflow_version"] = json!(1);
    let submitted = provost.post("/v1/tasks", &first);
    let submitted = submitted.header("authorization", &bearer("shop"));
    let submitted = submitted.header("prefer", "wait=30").await.expect(200);
    let id = id_of(&submitted);
    let path = format!("/v1/tasks/{id}/clone?dry_run=true");
    let changes =
        json!({ "input_patch": { "card": "tok_other" }, "workflow_version": 2, "priority": 5 });
    let preview = async |name: &str, body: &Value| {
        let call = provost.post(&path, body);
        call.header("authorization", &bearer(name)).await
    };

    let report = preview("ops", &changes).await.expect(200);
    assert_eq!(
        report["sentence"],
        "The clone of order-1 would differ from the original: the versions of order are 1 and 2 at /steps/charge/request/body/currency, the inputs differ at /card, the submissions differ at /priority"
    );
    assert_eq!(report["a"]["id"], id.as_str());
    assert_eq!(report["b"]["id"], Value::Null);
    assert_eq!(report["b"]["workflow_version"], 2);
    assert_eq!(pointers(&report["input"]), ["/card"]);
    assert_eq!(report["steps"], json!([]));
    assert!(!report.to_string().contains(SECRET), "{report:#}");
    // A submitter may not read workflows.
    let report = preview("shop", &changes).await.expect(200);
    assert_eq!(report["definition"]["same"], false);
    assert_eq!(report["definition"]["differences"]["items"], json!([]));
    assert_eq!(pointers(&report["input"]), ["/card"]);

    // It is refused as the clone would be.
    let refused = preview("ops", &json!({ "workflow_version": 3 })).await;
    assert_eq!(refused.expect_faults(), ["/workflow_version"]);
    let stale = provost.post(&path, &changes).header("if-match", "\"1\"");
    let stale = stale.header("authorization", &bearer("ops")).await;
    stale.expect_problem(412, "version-mismatch");
    preview("eye", &changes)
        .await
        .expect_problem(403, "forbidden");
    // Nothing was stored.
    let tasks = provost.get("/v1/tasks");
    let tasks = tasks
        .header("authorization", &bearer("eye"))
        .await
        .expect(200);
    assert_eq!(tasks["items"].as_array().unwrap().len(), 1);

    let diff = format!("/v1/tasks/{id}/diff/{id}");
    let refused = provost.get(&diff).header("authorization", &bearer("shop"));
    refused.await.expect_problem(403, "forbidden");
    let same = provost.get(&diff).header("authorization", &bearer("eye"));
    let same = same.await.expect(200);
    assert_eq!(same["definition"]["same"], true);
    assert_eq!(same["input"], json!({ "items": [], "more": false }));
}
