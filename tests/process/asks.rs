//! Steps that ask people, who decide by links of their own.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{
    Act, Answer, Api, Provost, Remote, Seen, all_processed, new_database, setups, step, until,
};

const FORM: &str = "application/x-www-form-urlencoded";

async fn remote() -> Remote {
    Remote::with(|_| Act::Ok(json!({}))).await
}

/// Returns a task with an approval and a call that follows it. The messages go to the remote service's `/reply`.
fn order(url: &str, ask: &Value) -> Value {
    json!({
        "key": "order-1", "input": { "amount": 120, "evil": "<script>alert(1)</script>" },
        "reply_to": { "url": format!("{url}/reply") },
        "steps": [
            { "name": "approval", "signal": { "within": "1h", "ask": ask } },
            { "name": "pay", "url": format!("{url}/pay"),
              "when": "steps.approval.output.choice == 'approve'",
              "request": { "body": "{{ steps.approval.output }}" } },
        ],
    })
}

fn ask(people: &[&str], approvals: u32) -> Value {
    json!({ "title": "Refund {{ input.amount }} EUR?", "text": "To: {{ input.evil }}", "of": people, "approvals": approvals })
}

/// Returns the paths of the links of each person, as the submitter gets them.
async fn links(remote: &Remote, count: usize) -> Vec<String> {
    let seen = remote.paths("/reply", count).await;
    let asked = seen
        .iter()
        .rev()
        .find(|seen| seen.body["type"] == "step.asked");
    let people = asked.unwrap().body["data"]["ask"]["people"]
        .as_array()
        .unwrap()
        .clone();
    let path = |person: &Value| {
        let link = person["link"].as_str().unwrap();
        let (_, path) = link.split_once("/v1/asks/").unwrap();
        format!("/v1/asks/{path}")
    };
    people.iter().map(path).collect()
}

async fn decide(api: &Api, link: &str, form: &str) -> Answer {
    let form = form.to_owned();
    api.call(Method::POST, link).text(FORM, form).await
}

#[track_caller]
fn page(answer: Answer, status: u16, says: &str) -> String {
    assert_eq!(answer.status, status, "{:#}", answer.body);
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("referrer-policy"), Some("same-origin"));
    let policy = answer.header("content-security-policy").unwrap().to_owned();
    for part in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "form-action 'self'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("script-src"), "{policy}");
    let html = answer.body.as_str().unwrap().to_owned();
    assert!(html.contains(says), "{says}: {html}");
    assert!(!html.contains("<script"), "{html}");
    html
}

async fn open(api: &Api, query: &str) -> Vec<Value> {
    let list = api
        .get(&format!("/v1/asks?open=true{query}"))
        .await
        .expect(200);
    list["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_person_decides_by_a_link_and_the_task_goes_on_after_a_crash() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        let id = provost
            .submit(&order(&remote.url(), &ask(&["ops@x", "cfo@x"], 1)))
            .await;
        let links = links(&remote, 1).await;
        assert_eq!(links.len(), 2);
        let before = provost.task(&id).await;
        assert_eq!(step(&before, "approval")["ask"]["title"], "Refund 120 EUR?");
        // Mail programs open links by all methods except that of the form.
        for link in &links {
            let shown = page(provost.get(link).await, 200, "Refund 120 EUR?");
            assert!(shown.contains("&lt;script&gt;alert(1)"), "{shown}");
            assert!(shown.contains("<form method=\"post\""), "{shown}");
            let head = provost.call(Method::HEAD, link).await;
            assert_eq!(head.status, 200);
            let options = provost.call(Method::OPTIONS, link).await;
            assert_eq!(options.header("allow"), Some("GET,HEAD,POST,OPTIONS"));
            for method in [Method::PUT, Method::DELETE] {
                let refused = provost.call(method, link).await;
                let detail =
                    refused.expect_problem(405, "method-not-allowed")["detail"].to_string();
                assert!(!detail.contains(&link[9..]), "{detail}");
            }
            let query = provost.get(&format!("{link}?choice=approve")).await;
            let shown = page(query, 200, "<form method=\"post\"");
            assert!(!shown.contains("checked"), "{shown}");
            let json = provost.post(link, &json!({ "choice": "approve" })).await;
            page(json, 415, "form");
            page(
                decide(provost.api(), link, "").await,
                422,
                "choose one of approve, reject",
            );
            let long = format!("choice=approve&comment={}", "x".repeat(1001));
            page(
                decide(provost.api(), link, &long).await,
                422,
                "at most 1000",
            );
            let huge = "x".repeat(70_000);
            page(decide(provost.api(), link, &huge).await, 413, "longer than");
            page(
                decide(provost.api(), link, "choice=%ff").await,
                400,
                "UTF-8",
            );
        }
        assert_eq!(provost.task(&id).await["version"], before["version"]);
        assert_eq!(open(provost.api(), "").await.len(), 1);
        let decided = decide(provost.api(), &links[1], "choice=approve&comment=%3Cb%3Eok").await;
        let html = page(decided, 200, "you decided <strong>approve</strong>");
        assert!(html.contains("&lt;b&gt;ok"), "{html}");
        provost.kill().await;
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task}");
        let output = &step(&task, "approval")["output"];
        assert_eq!(
            (&output["choice"], &output["by"]),
            (&json!("approve"), &json!("cfo@x"))
        );
        assert_eq!(output["comment"], "<b>ok");
        let ledger = remote.ledger();
        let paid: Vec<_> = ledger.iter().filter(|seen| seen.path == "/pay").collect();
        // The process may have been killed during the call, so it may have been made again.
        assert!(!paid.is_empty() && paid.iter().all(|paid| paid.body == *output));
        let history = provost.history(&id).await;
        let decided = history
            .iter()
            .find(|event| event["type"] == "step.decided")
            .unwrap();
        assert_eq!(decided["by"], "person:cfo@x");
        // The ledger has who decided what, without the comment.
        let changes = provost
            .get("/v1/changes?types=ask.decided")
            .await
            .expect(200);
        let changes = changes["items"].as_array().unwrap().clone();
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(
            (&changes[0]["name"], &changes[0]["step"]),
            (&json!(id), &json!("approval"))
        );
        assert_eq!(
            (&changes[0]["by"], &changes[0]["reason"]),
            (&json!("person:cfo@x"), &json!("chose approve"))
        );
        assert!(changes[0]["address"].is_string(), "{changes:?}");
        // A link can be used once.
        let api = provost.api();
        page(
            decide(api, &links[1], "choice=approve").await,
            200,
            "you decided",
        );
        page(
            decide(api, &links[1], "choice=reject").await,
            409,
            "nothing has changed",
        );
        page(
            decide(api, &links[0], "choice=reject").await,
            410,
            "needs no decision any more",
        );
        page(api.get(&links[0]).await, 410, "cfo@x chose");
        page(api.get(&links[1]).await, 200, "you decided");
        assert_eq!(open(api, "").await.len(), 0);
        assert_eq!(api.task(&id).await["version"], task["version"]);
        // The links appear in no other response.
        let all = format!(
            "{} {}",
            api.task(&id).await,
            serde_json::to_string(&history).unwrap()
        );
        for link in &links {
            let token = &link["/v1/asks/".len()..];
            assert!(!all.contains(token), "{all}");
            assert!(!provost.log().contains(token));
        }
    }
}

#[tokio::test]
async fn a_link_that_was_changed_or_is_of_another_kind_is_not_known() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let id = api.submit(&order(&remote.url(), &ask(&["a"], 1))).await;
    let link = links(&remote, 1).await.remove(0);
    let token = &link["/v1/asks/".len()..];
    for at in (0..token.len()).step_by(3) {
        let mut changed = token.to_owned().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = format!("/v1/asks/{}", String::from_utf8(changed).unwrap());
        page(
            decide(api, &changed, "choice=approve").await,
            404,
            "not known",
        );
        page(api.get(&changed).await, 404, "not known");
    }
    for other in ["x", "%00", &"A".repeat(4000), &token[1..]] {
        let other = format!("/v1/asks/{other}");
        page(
            decide(api, &other, "choice=approve").await,
            404,
            "not known",
        );
    }
    let reply = api
        .post(&format!("/v1/replies/{token}"), &json!({ "output": 1 }))
        .await;
    reply.expect_problem(404, "no-such-reply");
    let signal = api
        .post(
            &format!("/v1/tasks/{id}/signals/approval"),
            &json!({ "choice": "approve" }),
        )
        .await;
    let detail = signal.expect_problem(409, "wrong-step-state")["detail"].to_string();
    assert!(detail.contains("only their links decide"), "{detail}");
    assert_eq!(
        step(&api.task(&id).await, "approval")["state"],
        "processing"
    );
}

#[tokio::test]
async fn a_question_that_is_asked_again_has_new_links_and_the_old_ones_are_dead() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let mut short = order(&remote.url(), &ask(&["a"], 1));
        short["steps"][0]["signal"]["within"] = json!("1s");
        let id = api.submit(&short).await;
        let old = links(&remote, 1).await.remove(0);
        let task = api.settled(&id).await;
        assert_eq!(task["state"], "error", "{task}");
        let message = task["error"]["message"].as_str().unwrap();
        assert!(message.contains("nobody decided within 1s"), "{message}");
        page(api.get(&old).await, 410, "closed");
        page(decide(api, &old, "choice=approve").await, 410, "closed");
        assert_eq!(open(api, "").await.len(), 0);
        api.command(&format!("/v1/tasks/{id}/retry"))
            .await
            .expect(200);
        // The message of task.error comes between.
        let new = links(&remote, 3).await.remove(0);
        assert_ne!(old, new);
        page(
            decide(api, &old, "choice=approve").await,
            410,
            "no longer valid",
        );
        page(
            decide(api, &new, "choice=approve").await,
            200,
            "you decided",
        );
        assert_eq!(api.settled(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn two_people_who_decide_at_once_at_two_instances_come_to_one_outcome() {
    let remote = remote().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b) = tokio::join!(on().start(), on().start());
    let mut ids = Vec::new();
    for round in 0..8 {
        let mut submission = order(&remote.url(), &ask(&["a", "b", "c"], 2));
        submission["reply_to"]["url"] = json!(format!("{}/reply{round}", remote.url()));
        let id = [a.api(), b.api()][round % 2].submit(&submission).await;
        // Both instances have the task in memory.
        for api in [a.api(), b.api()] {
            let bad = api
                .post(&format!("/v1/tasks/{id}/signals/approval"), &json!(1))
                .await;
            assert_eq!(bad.status, 409);
        }
        let path = format!("/reply{round}");
        let is_it = |seen: &Seen| seen.path == path;
        until(true, async || remote.ledger().iter().any(is_it)).await;
        let seen = remote.ledger().into_iter().find(is_it).unwrap();
        let people = seen.body["data"]["ask"]["people"]
            .as_array()
            .unwrap()
            .clone();
        let link = |at: usize| {
            let link = people[at]["link"].as_str().unwrap();
            format!("/v1/asks/{}", link.split_once("/v1/asks/").unwrap().1)
        };
        let second = if round % 2 == 0 { "approve" } else { "reject" };
        let (one, twice, two) = (link(0), link(0), link(1));
        let second = format!("choice={second}");
        let (first, again, other) = tokio::join!(
            decide(a.api(), &one, "choice=approve"),
            decide(b.api(), &twice, "choice=approve"),
            decide(b.api(), &two, &second),
        );
        assert_eq!(again.status, first.status, "{again:?} {first:?}");
        assert_eq!(other.status, 200, "{other:?}");
        let task = a.settled(&id).await;
        let output = &step(&task, "approval")["output"];
        let decisions = output["decisions"].as_array().unwrap();
        if round % 2 == 0 {
            assert_eq!(decisions.len(), 2, "{output}");
            assert_ne!(decisions[0]["by"], decisions[1]["by"]);
            assert_eq!(first.status, 200);
        } else {
            assert_eq!(output["choice"], "reject");
            assert!(first.status == 200 || first.status == 410, "{first:?}");
            assert_eq!(decisions.len(), if first.status == 200 { 2 } else { 1 });
        }
        ids.push(id);
    }
    all_processed(b.api(), &ids).await;
    assert_eq!(
        remote
            .ledger()
            .iter()
            .filter(|seen| seen.path == "/pay")
            .count(),
        4
    );
}

#[tokio::test]
async fn one_person_twice_is_one_approval() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let id = api
        .submit(&order(&remote.url(), &ask(&["a", "b"], 2)))
        .await;
    let links = links(&remote, 1).await;
    for _ in 0..2 {
        page(
            decide(api, &links[0], "choice=approve").await,
            200,
            "1 of 2 people",
        );
    }
    let task = api.task(&id).await;
    assert_eq!(step(&task, "approval")["state"], "processing");
    let people = &step(&task, "approval")["ask"]["people"];
    assert_eq!(
        (&people[0]["choice"], &people[1]["choice"]),
        (&json!("approve"), &Value::Null)
    );
    page(
        api.get(&links[1]).await,
        200,
        "a chose <strong>approve</strong>",
    );
    page(
        decide(api, &links[1], "choice=approve").await,
        200,
        "you decided",
    );
    assert_eq!(api.settled(&id).await["state"], "processed");
}

#[tokio::test]
async fn fields_are_asked_with_their_types_and_what_is_wrong_is_shown_again() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let mut asked = ask(&["a"], 1);
    asked["fields"] = json!([
        { "name": "amount", "type": "number", "required": true, "label": "Amount \"net\"" },
        { "name": "why", "type": "choice", "choices": ["late", "<broken>"] },
    ]);
    asked["choices"] = json!(["approve", "reject", "later"]);
    let id = api.submit(&order(&remote.url(), &asked)).await;
    let link = links(&remote, 1).await.remove(0);
    let html = page(api.get(&link).await, 200, "Amount &quot;net&quot;");
    assert!(html.contains("&lt;broken&gt;"), "{html}");
    let wrong = "choice=later&field.amount=much&comment=%22%3E%3Cscript%3E";
    let html = page(decide(api, &link, wrong).await, 422, "must be a number");
    assert!(html.contains("value=\"much\""), "{html}");
    assert!(html.contains("value=\"later\" required checked"), "{html}");
    let unknown = "choice=later&field.amount=1&field.role=admin";
    page(decide(api, &link, unknown).await, 422, "is not asked");
    let twice = "choice=approve&field.amount=1&choice=reject";
    page(
        decide(api, &link, twice).await,
        422,
        "choice</strong>: is sent more than once",
    );
    // Trackers of mails add such parameters.
    let tracked = format!("{link}?utm_source=mail&choice=reject");
    page(api.get(&tracked).await, 200, "Amount &quot;net&quot;");
    let right = "choice=approve&field.amount=99.50&field.why=%3Cbroken%3E";
    page(decide(api, &tracked, right).await, 200, "you decided");
    let task = api.settled(&id).await;
    let fields = &step(&task, "approval")["output"]["fields"];
    assert_eq!(*fields, json!({ "amount": 99.50, "why": "<broken>" }));
}

#[tokio::test]
async fn open_questions_are_listed_in_pages_by_person_and_by_workflow() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup
            .config("[[tokens]]\nname = \"boss\"\nrole = \"admin\"\ntoken = \"0123456789abcdef-boss\"\n[[tokens]]\nname = \"eye\"\nrole = \"read\"\ntoken = \"0123456789abcdef-eye\"\n")
            .start()
            .await;
        let api = provost.api();
        let boss = |call: crate::harness::Call| {
            call.header("authorization", "Bearer 0123456789abcdef-boss")
        };
        let eye = |call: crate::harness::Call| {
            call.header("authorization", "Bearer 0123456789abcdef-eye")
        };
        let mut workflow = order(&remote.url(), &ask(&["{{ task.key }}", "all"], 1));
        let steps = workflow["steps"].take();
        boss(api.put("/v1/workflows/refund", &json!({ "steps": steps })))
            .await
            .expect(201);
        for at in 0..7 {
            let task = json!({ "workflow": "refund", "key": format!("p{}", at % 2), "input": { "amount": at, "evil": "" } });
            boss(api.post("/v1/tasks", &task)).await.expect(202);
        }
        let inline = order(&remote.url(), &ask(&["all"], 1));
        boss(api.post("/v1/tasks", &inline)).await.expect(202);
        let list = async |query: &str| {
            let mut items = Vec::new();
            let mut cursor = String::new();
            loop {
                let path = format!("/v1/asks?open=true&limit=2{query}{cursor}");
                let page = eye(api.get(&path)).await.expect(200);
                items.extend(page["items"].as_array().unwrap().clone());
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => return items,
                }
            }
        };
        for (query, count) in [
            ("", 8),
            ("&of=all", 8),
            ("&of=p0", 4),
            ("&of=p0&workflow=refund", 4),
            ("&of=all&workflow=refund", 7),
            ("&workflow=refund", 7),
            ("&workflow=other", 0),
            ("&of=nobody", 0),
        ] {
            let items = list(query).await;
            assert_eq!(items.len(), count, "{query}");
            let mut tasks: Vec<_> = items.iter().map(|item| item["task"].to_string()).collect();
            assert!(tasks.is_sorted_by(|a, b| a > b), "{tasks:?}");
            tasks.dedup();
            assert_eq!(tasks.len(), count);
        }
        // Only administrators get links.
        assert!(
            !list("")
                .await
                .iter()
                .any(|item| item.to_string().contains("link"))
        );
        let seen = boss(api.get("/v1/asks?of=p1&limit=1")).await.expect(200);
        let link = seen["items"][0]["people"][0]["link"].as_str().unwrap();
        let link = format!("/v1/asks/{}", link.split_once("/v1/asks/").unwrap().1);
        // The request has no token of the API.
        page(
            decide(api, &link, "choice=reject").await,
            200,
            "you decided",
        );
        assert_eq!(list("").await.len(), 7);
        let closed = eye(api.get("/v1/asks?open=false")).await;
        closed.expect_problem(400, "invalid-query");
        let id = seen["items"][0]["task"].as_str().unwrap().to_owned();
        until(json!("processed"), async || {
            boss(api.get(&format!("/v1/tasks/{id}"))).await.expect(200)["state"].clone()
        })
        .await;
    }
}

#[tokio::test]
async fn webhooks_are_told_and_messages_that_wait_hide_the_links() {
    let (ops, chat) = (
        Remote::with(|_| Act::status(503)).await,
        Remote::quick().await,
    );
    let remote = remote().await;
    let config = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\n\
         [[alert_webhooks]]\nname = \"chat\"\nurl = \"{}/chat\"\nformat = \"slack\"\n",
        ops.url(),
        chat.url()
    );
    let provost = Provost::setup().config(&config).start().await;
    let id = provost
        .submit(&order(&remote.url(), &ask(&["ops@x"], 1)))
        .await;
    let told = ops.requests(1).await.remove(0);
    assert_eq!(told.body["type"], "ask.opened");
    assert_eq!(told.body["data"]["task"], id);
    let link = told.body["data"]["ask"]["people"][0]["link"]
        .as_str()
        .unwrap();
    let token = link.split_once("/v1/asks/").unwrap().1;
    let text = chat.requests(1).await.remove(0).body["text"].to_string();
    assert!(
        text.contains("ops@x") && !text.contains("/v1/asks/"),
        "{text}"
    );
    let list = provost.get("/v1/messages").await.expect(200);
    let mut items = list["items"].as_array().unwrap().iter();
    let message = items.find(|message| message["receiver"] == "alerts:ops");
    let message = message.unwrap()["id"].as_str().unwrap();
    let shown = provost
        .get(&format!("/v1/messages/{message}"))
        .await
        .expect(200);
    let shown = shown.to_string();
    assert!(
        shown.contains("/v1/asks/***") && !shown.contains(token),
        "{shown}"
    );
}

#[tokio::test]
async fn without_an_address_for_people_a_definition_that_asks_is_refused() {
    let provost = Provost::setup()
        .listen("0.0.0.0:0")
        .config("insecure = true\n")
        .start()
        .await;
    let refused = provost
        .post("/v1/tasks", &order("http://127.0.0.1:9", &ask(&["a"], 1)))
        .await;
    let problem = refused.expect_problem(422, "invalid");
    let errors = problem["errors"].to_string();
    assert!(
        errors.contains("/steps/0/signal/ask") && errors.contains("public_url"),
        "{errors}"
    );
}
