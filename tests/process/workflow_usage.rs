//! The tasks of a workflow by version, with both databases.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, setups};

async fn register(provost: &Provost, service: &Remote, path: &str) -> Value {
    let step = json!({ "name": "charge", "url": service.url(), "request": { "path": path } });
    let body = json!({ "steps": [step] });
    let put = provost.put("/v1/workflows/order", &body).await;
    put.expect(201)
}

async fn run(provost: &Provost, state: &str) {
    let task = provost.run(&json!({ "workflow": "order" })).await;
    assert_eq!(task["state"], state, "{task:#}");
}

#[tokio::test]
async fn a_version_that_does_worse_than_the_one_before_is_seen_in_the_counts() {
    for setup in setups().await {
        let provost = setup.start().await;
        let service = Remote::with(|seen| match seen.path.as_str() {
            "/good" => Act::Ok(json!({})),
            _ => Act::answer(422, &[], "{}"),
        })
        .await;
        provost.get("/v1/workflows/order/usage").await.expect(404);
        register(&provost, &service, "/good").await;
        let usage = async || provost.get("/v1/workflows/order/usage").await.expect(200);
        let none = json!({ "tasks": 0, "more": false, "more_in_error": false, "versions": [] });
        assert_eq!(usage().await, none);
        for _ in 0..3 {
            run(&provost, "processed").await;
        }
        register(&provost, &service, "/bad").await;
        for _ in 0..2 {
            run(&provost, "error").await;
        }
        let mut usage = usage().await;
        for version in usage["versions"].as_array_mut().unwrap() {
            let since = version.as_object_mut().unwrap().remove("since").unwrap();
            assert!(since.is_string(), "{since}");
        }
        let version = |version, tasks, processed, error| json!({ "version": version, "tasks": tasks, "processed": processed, "error": error, "undone": 0, "in_error": error });
        assert_eq!(
            usage,
            json!({ "tasks": 5, "more": false, "more_in_error": false,
                "versions": [version(2, 2, 0, 2), version(1, 3, 3, 0)] })
        );
    }
}
