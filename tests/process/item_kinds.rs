//! Items of lists that have children, or that ask people; and children at another version.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Act, Api, Remote, Seen, setups, step, until};

/// Returns a task that ships each parcel by a child, and then mails.
fn order(url: &str) -> Value {
    json!({
        "input": { "parcels": [{ "id": 0 }, { "id": 1 }, { "id": 2 }, { "id": 3 }] },
        "steps": [
            { "name": "ship", "for_each": "{{ input.parcels }}", "max_parallel": 2, "on_item_error": "undo",
              "task": { "workflow": "parcel", "key": "parcel-{{ index }}", "input": { "id": "{{ item.id }}" } } },
            { "name": "mail", "url": url, "on_permanent": "undo",
              "request": { "path": "/mail", "body": "{{ steps.ship.output }}" } },
        ],
    })
}

fn parcel(url: &str) -> Value {
    json!({
        "output": { "of": "{{ input.id }}", "label": "{{ steps.pack.output.id }}" },
        "steps": [{
            "name": "pack", "url": url, "request": { "path": "/pack/{{ input.id }}" }, "on_permanent": "undo",
            "undo": { "request": { "method": "DELETE", "path": "/pack/{{ input.id }}" } },
        }],
    })
}

async fn register(api: &Api, name: &str, workflow: &Value) {
    let answer = api.put(&format!("/v1/workflows/{name}"), workflow).await;
    assert!(answer.status < 300, "{answer:?}");
}

/// Returns the paths that were called with this method, sorted.
fn paths(remote: &Remote, method: &str) -> Vec<String> {
    let ledger = remote.ledger().into_iter();
    let mut paths: Vec<_> = ledger
        .filter(|seen| seen.method == method)
        .map(|seen| seen.path)
        .collect();
    paths.sort_unstable();
    paths
}

async fn children(api: &Api, id: &str) -> Vec<Value> {
    let list = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
    list["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_item_has_a_task_of_its_own() {
    for setup in setups().await {
        let remote = Remote::with(|seen: &Seen| Act::Ok(json!({ "id": seen.path }))).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "parcel", &parcel(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let outputs: Vec<_> = (0..4)
            .map(|at| json!({ "of": at, "label": format!("/pack/{at}") }))
            .collect();
        assert_eq!(step(&task, "ship")["output"], json!(outputs));
        let id = task["id"].as_str().unwrap();
        let children = children(api, id).await;
        let mut keys: Vec<_> = children.iter().map(|child| &child["key"]).collect();
        keys.sort_by_key(|key| key.to_string());
        assert_eq!(keys, ["parcel-0", "parcel-1", "parcel-2", "parcel-3"]);
        let pages = api.get(&format!("/v1/tasks/{id}/steps?of=ship")).await;
        let items = pages.expect(200)["items"].clone();
        for item in items.as_array().unwrap() {
            let child = item["child"]["id"].as_str().unwrap();
            let child = api.task(child).await;
            assert_eq!(child["parent"]["step"], item["name"]);
        }
        // All children are undone with their parent.
        let undo = format!("/v1/tasks/{id}/undo");
        api.post(&undo, &json!({})).await.expect(200);
        until("undone".to_owned(), async || {
            api.task(id).await["state"].as_str().unwrap().to_owned()
        })
        .await;
        assert_eq!(
            paths(&remote, "DELETE"),
            ["/pack/0", "/pack/1", "/pack/2", "/pack/3"]
        );
    }
}

#[tokio::test]
async fn a_task_of_an_item_that_fails_has_all_undone() {
    for setup in setups().await {
        let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
            "/pack/2" => Act::status(422),
            _ => Act::Ok(json!({ "id": seen.path })),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, "parcel", &parcel(&remote.url())).await;
        let task = api.run(&order(&remote.url())).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let id = task["id"].as_str().unwrap();
        for child in children(api, id).await {
            let state = child["state"].as_str().unwrap();
            assert!(["undone", "cancelled"].contains(&state), "{child:#}");
        }
        let mut packed = paths(&remote, "POST");
        packed.retain(|path| path != "/pack/2");
        assert_eq!(paths(&remote, "DELETE"), packed);
    }
}

#[tokio::test]
async fn each_item_asks_a_person_of_its_own() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Ok(json!({}))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let task = json!({
            "input": { "of": [{ "who": "ann@x", "what": "Paris" }, { "who": "bob@x", "what": "Rome" }] },
            "steps": [
                { "name": "approve", "for_each": "{{ input.of }}",
                  "signal": { "within": "1h", "ask": { "title": "To {{ item.what }}?", "of": ["{{ item.who }}"] } } },
                { "name": "book", "url": remote.url(), "request": { "path": "/book", "body": "{{ steps.approve.output }}" } },
            ],
        });
        let id = provost.submit(&task).await;
        let list = api.get("/v1/asks?open=true").await.expect(200);
        let asks = list["items"].as_array().unwrap();
        assert_eq!(asks.len(), 2, "{list:#}");
        for ask in asks {
            let person = &ask["people"][0];
            let link = person["link"].as_str().unwrap();
            let (_, token) = link.split_once("/v1/asks/").unwrap();
            let link = format!("/v1/asks/{token}");
            let page = api.get(&link).await;
            let what = match person["person"].as_str().unwrap() {
                "ann@x" => "To Paris?",
                _ => "To Rome?",
            };
            assert!(page.body.as_str().unwrap().contains(what), "{page:?}");
            let form = "choice=approve".to_owned();
            let decided = api.call(Method::POST, &link);
            let decided = decided.text("application/x-www-form-urlencoded", form);
            assert_eq!(decided.await.status, 200);
        }
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let output = &step(&task, "approve")["output"];
        assert_eq!(
            (&output[0]["by"], &output[1]["by"]),
            (&json!("ann@x"), &json!("bob@x"))
        );
    }
}

#[tokio::test]
async fn a_task_whose_list_is_known_does_not_move_to_another_version() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Ok(json!({}))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let workflow = |path: &str| {
            json!({ "steps": [
                { "name": "approve", "for_each": ["a", "b"], "signal": { "within": "1h" } },
                { "name": "mail", "url": remote.url(), "request": { "path": path } },
            ] })
        };
        register(api, "mailing", &workflow("/v1")).await;
        let id = provost.submit(&json!({ "workflow": "mailing" })).await;
        register(api, "mailing", &workflow("/v2")).await;
        let to = json!({ "to_version": 2 });
        let refused = api.post(&format!("/v1/tasks/{id}/migrate"), &to).await;
        let problem = refused.expect_problem(409, "wrong-task-state");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("for_each"), "{detail}");
        for item in ["approve%5B0%5D", "approve%5B1%5D"] {
            let signal = format!("/v1/tasks/{id}/signals/{item}");
            api.post(&signal, &json!(1)).await.expect(200);
        }
        assert_eq!(api.settled(&id).await["state"], "processed");
        assert_eq!(paths(&remote, "POST"), ["/v1"]);
    }
}
