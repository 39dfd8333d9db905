//! A workflow hides the payloads of its tasks from callers with the role `read`, wherever a response could have them.

use serde_json::{Value, json};

use crate::harness::{
    Act, Answer, Api, Call, Events, Provost, Remote, Setup, id_of, setups, until,
};

const TOKENS: &str = "[[tokens]]\nname = \"boss\"\nrole = \"admin\"\ntoken = \"0123456789abcdef-boss\"\n\
                      [[tokens]]\nname = \"desk\"\nrole = \"operate\"\ntoken = \"0123456789abcdef-desk\"\n\
                      [[tokens]]\nname = \"eye\"\nrole = \"read\"\ntoken = \"0123456789abcdef-eye\"\n";

/// The word in all payloads.
const CANARY: &str = "canary-4711";

async fn get(api: &Api, caller: &str, path: &str) -> Answer {
    let token = format!("Bearer 0123456789abcdef-{caller}");
    api.get(path).header("authorization", &token).await
}

/// Returns the whole response as text.
async fn seen(api: &Api, caller: &str, path: &str) -> String {
    let answer = get(api, caller, path).await;
    answer.expect(200).to_string()
}

async fn admin(call: Call, status: u16) -> Value {
    let call = call.header("authorization", "Bearer 0123456789abcdef-boss");
    call.await.expect(status)
}

/// Returns a workflow whose second step fails, with payloads at every place.
fn payroll(service: &str, hides: Option<bool>) -> Value {
    let read = json!({ "name": "read", "url": service, "request": { "path": "/read", "body": "{{ input }}" },
                       "undo": { "request": { "path": "/undo", "body": { "of": "{{ steps.read.output.salary }}" } } } });
    let each = json!({ "name": "each", "url": service, "for_each": "{{ input.list }}",
                       "request": { "path": "/read", "body": "{{ item }}" } });
    let pay = json!({ "name": "pay", "url": service, "request": { "path": "/pay", "body": "{{ input }}" } });
    let mut workflow =
        json!({ "steps": [read, each, pay], "output": { "paid": "{{ input.word }}" } });
    if let Some(hides) = hides {
        workflow["hide_bodies"] = json!(hides);
    }
    workflow
}

async fn failed(provost: &Provost, service: &Remote, word: &str) -> String {
    let submission = json!({
        "workflow": "payroll", "input": { "word": word, "list": [CANARY] },
        "reply_to": { "url": format!("{}/hook", service.url()), "events": ["step.processed", "task.error"] },
    });
    let submitted = provost.post("/v1/tasks", &submission);
    let task = admin(submitted.header("prefer", "wait=60"), 200).await;
    assert_eq!(task["state"], "error", "{task:#}");
    id_of(&task)
}

async fn hides_payloads(setup: Setup) {
    let service = Remote::with(|seen| match seen.path.as_str() {
        "/read" => Act::Ok(json!({ "salary": CANARY })),
        "/pay" => Act::answer(
            422,
            &[("content-type", "application/json")],
            &json!({ "code": "declined", "salary": CANARY }).to_string(),
        ),
        _ => Act::status(503),
    })
    .await;
    let setup = setup.set("RECORD__SUCCESSES", "all");
    let provost = setup.config(TOKENS).start().await;
    let register = |workflow: Value| admin(provost.put("/v1/workflows/payroll", &workflow), 201);
    register(payroll(&service.url(), Some(true))).await;
    let id = failed(&provost, &service, CANARY).await;
    let other = failed(&provost, &service, "another word").await;
    let messages = async || {
        let list = get(&provost, "desk", &format!("/v1/messages?task={id}")).await;
        list.expect(200)["items"].clone()
    };
    // Two steps, an item and the end.
    until(true, async || {
        messages().await.as_array().unwrap().len() >= 3
    })
    .await;
    let message = messages().await[0]["id"].as_str().unwrap().to_owned();
    let of_task = |path: &str| format!("/v1/tasks/{id}{path}");
    let with_payloads = [
        of_task(""),
        of_task("?wait=1s"),
        of_task("/steps"),
        of_task("/steps?of=each"),
        of_task("/history"),
        of_task("/undo-plan"),
        of_task("/steps/read/attempts/1"),
        of_task("/steps/pay/attempts/1"),
        "/v1/tasks?workflow=payroll".to_owned(),
        "/v1/events?workflow=payroll&limit=500".to_owned(),
        format!("/v1/messages/{message}"),
    ];
    for path in &with_payloads {
        // On PostgreSQL the ledger shows a change once no older transaction of the server runs any more.
        until(true, async || {
            seen(&provost, "desk", path).await.contains(CANARY)
        })
        .await;
        let read = seen(&provost, "eye", path).await;
        assert!(!read.contains(CANARY), "{path}: {read}");
    }
    for path in ["/graph", "/steps/read/attempts", "/steps/pay/attempts"].map(of_task) {
        let read = get(&provost, "eye", &path).await.body.to_string();
        assert!(!read.contains(CANARY), "{path}: {read}");
    }
    for path in [
        "/v1/failures",
        "/v1/alerts",
        "/v1/asks",
        "/v1/overview",
        "/v1/messages",
    ] {
        let read = seen(&provost, "eye", path).await;
        assert!(!read.contains(CANARY), "{path}: {read}");
    }
    // The rest says where the task is, and why.
    let task = get(&provost, "eye", &of_task("")).await.expect(200);
    assert_eq!(task["input"], Value::Null);
    assert_eq!(task["error"]["status"], 422);
    assert_eq!(task["error"]["body"], Value::Null);
    let attempt = get(&provost, "eye", &of_task("/steps/pay/attempts/1"))
        .await
        .expect(200);
    assert_eq!(attempt["items"][0]["response"]["status"], 422);
    assert_eq!(attempt["items"][0]["response"]["body"], Value::Null);
    assert_eq!(attempt["items"][0]["request"]["body"], Value::Null);
    let difference = of_task(&format!("/diff/{other}"));
    assert!(seen(&provost, "desk", &difference).await.contains(CANARY));
    let refused = get(&provost, "eye", &difference).await;
    let refused = refused.expect_problem(403, "forbidden");
    assert_eq!(refused["needed_role"], "operate");
    let mut shown = Vec::new();
    for caller in ["desk", "eye"] {
        let token = format!("Bearer 0123456789abcdef-{caller}");
        let events = provost.get(&of_task("/events"));
        let mut events = Events::open(events.header("authorization", &token)).await;
        shown.push(events.until("step.error").await.data["error"]["body"].clone());
    }
    assert!(shown[0].as_str().unwrap().contains(CANARY));
    assert_eq!(shown[1], Value::Null);

    // A task keeps what its own version hides, and the next ones are as the active version says.
    register(payroll(&service.url(), None)).await;
    let shown = failed(&provost, &service, CANARY).await;
    for (task, is_shown) in [(&id, false), (&shown, true)] {
        let read = seen(&provost, "eye", &format!("/v1/tasks/{task}")).await;
        assert_eq!(read.contains(CANARY), is_shown, "{read}");
    }
    register(payroll(&service.url(), Some(true))).await;
    let read = seen(&provost, "eye", &format!("/v1/tasks/{shown}")).await;
    assert!(!read.contains(CANARY), "{read}");
}

#[tokio::test]
async fn a_workflow_hides_payloads_from_readers_on_both_databases() {
    for setup in setups().await {
        hides_payloads(setup).await;
    }
}

#[tokio::test]
async fn the_children_whose_steps_stand_in_the_workflow_are_hidden_with_it() {
    for setup in setups().await {
        let service = Remote::with(|_| Act::answer(422, &[], CANARY)).await;
        let provost = setup.config(TOKENS).start().await;
        let inner =
            json!({ "name": "inner", "url": service.url(), "request": { "body": "{{ input }}" } });
        let workflow = json!({ "hide_bodies": true, "steps": [
            { "name": "outer", "task": { "input": "{{ input }}", "steps": [inner] } }
        ] });
        admin(provost.put("/v1/workflows/payroll", &workflow), 201).await;
        let submission = json!({ "workflow": "payroll", "input": { "word": CANARY } });
        let parent = id_of(&admin(provost.post("/v1/tasks", &submission), 202).await);
        let children = format!("/v1/tasks?state=error&parent={parent}");
        until(1, async || {
            let list = get(&provost, "boss", &children).await.expect(200);
            list["items"].as_array().unwrap().len()
        })
        .await;
        let child = id_of(&get(&provost, "boss", &children).await.expect(200)["items"][0]);
        let whole = seen(&provost, "desk", &format!("/v1/tasks/{child}")).await;
        assert!(whole.contains(CANARY), "{whole}");
        for path in [
            children.clone(),
            format!("/v1/tasks/{child}"),
            format!("/v1/tasks/{child}/steps"),
            format!("/v1/tasks/{child}/history"),
            "/v1/events".to_owned(),
        ] {
            let shown = seen(&provost, "eye", &path).await;
            assert!(!shown.contains(CANARY), "{path}: {shown}");
        }
        let attempts = format!("/v1/tasks/{child}/steps/inner/attempts/1");
        let attempts = get(&provost, "eye", &attempts).await;
        assert!(!attempts.body.to_string().contains(CANARY), "{attempts:?}");
    }
}
