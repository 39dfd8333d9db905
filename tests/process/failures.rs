//! Failures that need a person: an operator sees how many tasks failed for which cause, and fixes all of one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, new_database, until};

/// Returns a service that refuses orders with two causes until it is repaired.
async fn service() -> (Remote, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let seen_by_service = works.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        _ if seen_by_service.load(Ordering::Relaxed) => Act::Ok(json!({})),
        "/charge" => {
            let order = seen.body["order"].to_string();
            let body = json!({ "error": { "code": "no_currency", "detail": order } });
            Act::answer(422, &[], &body.to_string())
        }
        _ => Act::answer(409, &[], "label 17 is not printable"),
    });
    (remote.await, works)
}

async fn register(provost: &Provost, remote: &Remote) {
    provost.register("shop", &remote.url(), 64).await;
    for name in ["charge", "ship"] {
        let path = format!("/{name}");
        let request = json!({ "path": path, "body": { "order": "{{ input.order }}" } });
        let steps = json!([{ "name": name, "agent": "shop", "request": request }]);
        let definition = json!({ "steps": steps });
        provost
            .put(&format!("/v1/workflows/{name}"), &definition)
            .await;
    }
}

async fn fail(instances: &[Provost], workflow: &str, count: usize) -> Vec<String> {
    let tasks = (0..count).map(async |order| {
        let provost = &instances[order % instances.len()];
        let submission = json!({
            "workflow": workflow, "key": format!("Ö-{workflow}-{order}"), "input": { "order": order },
        });
        let id = provost.submit(&submission).await;
        assert_eq!(provost.settled(&id).await["state"], "error");
        id
    });
    join_all(tasks).await
}

async fn failures(provost: &Provost, query: &str) -> Vec<Value> {
    let page = provost.get(&format!("/v1/failures{query}")).await;
    let page = page.expect(200);
    assert_eq!(page["more_causes"], false);
    page["items"].as_array().unwrap().clone()
}

async fn two_causes_are_found_and_one_is_fixed(mut instances: Vec<Provost>) {
    let (remote, works) = service().await;
    register(&instances[0], &remote).await;
    let ships = fail(&instances, "ship", 3).await;
    let charges = fail(&instances, "charge", 20).await;
    instances[0].kill().await;
    instances[0].restart().await;
    for provost in &instances {
        let found = failures(provost, "").await;
        assert_eq!(found.len(), 2, "{found:#?}");
        let charge = &found[0];
        assert_eq!(
            charge["sentence"],
            "Step charge of workflow charge failed: shop refused with 422 Unprocessable Entity: no_currency"
        );
        assert_eq!(
            (&charge["tasks"], &charge["more"]),
            (&json!(20), &json!(false))
        );
        assert_eq!(charge["kind"], "permanent");
        assert_eq!(charge["growing"], true);
        let by_hour = charge["trend"]["by_hour"].as_array().unwrap();
        let sum: u64 = by_hour.iter().filter_map(Value::as_u64).sum();
        assert_eq!((by_hour.len(), sum), (24, 20));
        assert_eq!(charge["remedies"][0]["do"], "retry");
        assert_eq!(found[1]["words"], "label # is not printable");
        assert_eq!(found[1]["tasks"], 3);
    }
    let provost = &instances[0];
    let found = failures(provost, "").await;
    let charge = &found[0];

    // The example leads to the request and the response.
    let example = &charge["example"];
    let (task, step) = (example["task"].as_str().unwrap(), &example["step"]);
    assert!(charges.iter().any(|id| id == task));
    let (step, attempt) = (step.as_str().unwrap(), &example["attempt"]);
    let attempt = format!("/v1/tasks/{task}/steps/{step}/attempts/{attempt}");
    let attempt = provost.get(&attempt).await.expect(200);
    assert_eq!(attempt["items"][0]["response"]["status"], 422);

    // The cause selects its tasks, also page by page, and its alert.
    let cause = charge["fingerprint"].as_str().unwrap();
    let page = provost
        .get(&format!("/v1/tasks?cause={cause}&limit=15"))
        .await;
    let page = page.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 15);
    let next = page["next_cursor"].as_str().unwrap();
    let rest = format!("/v1/tasks?cause={cause}&limit=15&cursor={next}");
    let rest = provost.get(&rest).await.expect(200);
    assert_eq!(rest["items"].as_array().unwrap().len(), 5);
    let alert = provost.get(&format!("/v1/alerts?cause={cause}")).await;
    assert_eq!(alert.expect(200)["items"][0]["id"], charge["alert"]);
    let gauge = format!(
        "provost_failed_tasks{{cause=\"{cause}\",workflow=\"charge\",step=\"charge\",agent=\"shop\"}} 20\n"
    );
    until(true, || async {
        let metrics = provost.get("/metrics").await.expect(200);
        metrics.as_str().unwrap().contains(&gauge)
    })
    .await;
    let by_text = provost.get("/v1/tasks?text=PRINTABLE").await.expect(200);
    assert_eq!(by_text["items"].as_array().unwrap().len(), 3);

    // Capital letters beyond ASCII are found as they are written.
    let by_key = provost.get("/v1/tasks?text=%C3%96-SHIP").await.expect(200);
    assert_eq!(by_key["items"].as_array().unwrap().len(), 3);

    // Filters and pages.
    assert_eq!(failures(provost, "?workflow=ship").await, found[1..]);
    assert_eq!(
        failures(provost, "?status=422&text=No_Currency").await,
        found[..1]
    );
    assert!(failures(provost, "?agent=other").await.is_empty());
    let first = provost.get("/v1/failures?limit=1").await.expect(200);
    assert_eq!(first["items"], json!(found[..1]));
    let next = first["next_cursor"].as_str().unwrap();
    let second = provost
        .get(&format!("/v1/failures?limit=1&cursor={next}"))
        .await;
    assert_eq!(second.expect(200)["items"], json!(found[1..]));

    // All tasks of the cause are fixed, and the others are not touched.
    works.store(true, Ordering::Relaxed);
    let all = json!({ "cause": cause, "reason": "has a currency again" });
    provost.post("/v1/tasks/retry", &all).await;
    for id in &charges {
        until(json!("processed"), || async {
            provost.settled(id).await["state"].clone()
        })
        .await;
    }
    for id in &ships {
        assert_eq!(provost.settled(id).await["state"], "error");
    }
    assert_eq!(failures(provost, "").await.len(), 1);
    let gone = provost
        .get(&format!("/v1/failures/{cause}"))
        .await
        .expect(200);
    assert_eq!((&gone["open"], &gone["tasks"]), (&json!(false), &json!(0)));
    assert_eq!(gone["failures"], 20);
    assert_eq!(gone["example"], Value::Null);
    assert_eq!(gone["alert"], Value::Null);
}

#[tokio::test]
async fn failures_are_grouped_by_cause_and_one_cause_is_fixed_with_one_command() {
    two_causes_are_found_and_one_is_fixed(vec![Provost::start().await]).await;
}

#[tokio::test]
async fn instances_group_their_failures_together() {
    let setup = Provost::setup().database_url(&new_database().await);
    let instances = vec![setup.clone().start().await, setup.start().await];
    two_causes_are_found_and_one_is_fixed(instances).await;
}

#[tokio::test]
async fn what_no_cause_can_be_is_refused_or_not_found() {
    let provost = Provost::start().await;
    for unknown in ["0000000000000001", "7", "CHARGE", "0000000000000001%20"] {
        let answer = provost.get(&format!("/v1/failures/{unknown}")).await;
        answer.expect_problem(404, "no-such-failure");
    }
    for query in [
        "tasks?cause=7",
        "alerts?cause=xyz",
        "tasks?text=",
        "failures?status=7",
        "failures?kind=odd",
        "failures?causes=1",
    ] {
        let answer = provost.get(&format!("/v1/{query}")).await;
        answer.expect_problem(400, "invalid-query");
    }
    for body in [
        json!({ "cause": "7" }),
        json!({ "text": "" }),
        json!({ "cause": 7 }),
    ] {
        let answer = provost.post("/v1/tasks/retry", &body).await;
        answer.expect_problem(422, "invalid");
    }
}
