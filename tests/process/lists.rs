//! Lists of tasks: filters, and cursors that stay correct while tasks are submitted.

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Provost, Remote, id_of, one_step, until},
};

/// Returns the keys of a page's tasks.
fn keys(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|task| task["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_filter_that_is_given_must_hold() {
    let remote = Remote::with(|seen| match seen.body["card"].as_str() {
        Some("tok_declined") => Act::status(402),
        _ => Act::Ok(json!("done")),
    })
    .await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 8).await;
    let definition = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    provost.put("/v1/workflows/order", &definition).await;
    for (key, card, customer) in [
        ("o-1", "tok_visa", "acme"),
        ("o-2", "tok_declined", "acme"),
        ("o-3", "tok_declined", "other"),
    ] {
        let submission = json!({
            "workflow": "order", "key": key, "input": { "card": card },
            "labels": { "customer": customer, "region": "eu:west" },
        });
        provost.run(&submission).await;
    }
    let mut in_place = one_step(&remote.url(), "/work");
    in_place["key"] = json!("o-4");
    let last = provost.run(&in_place).await;
    let at = last["created_at"].as_str().unwrap();
    let (until, since) = (
        format!("created_before={at}"),
        format!("created_after={at}"),
    );
    for (filter, expected) in [
        ("", &["o-4", "o-3", "o-2", "o-1"][..]),
        ("state=error", &["o-3", "o-2"]),
        ("state=processed", &["o-4", "o-1"]),
        ("state=cancelled", &[]),
        ("workflow=order", &["o-3", "o-2", "o-1"]),
        ("workflow=other", &[]),
        ("key=o-2", &["o-2"]),
        ("agent=payments", &["o-3", "o-2", "o-1"]),
        ("label=customer:acme", &["o-2", "o-1"]),
        ("label=region:eu:west&label=customer:other", &["o-3"]),
        ("label=customer:acme&state=error", &["o-2"]),
        (&until, &["o-3", "o-2", "o-1"]),
        (&format!("{since}&state=error"), &[]),
        ("created_after=2000-01-01T00:00:00Z&key=o-1", &["o-1"]),
    ] {
        let page = provost
            .get(&format!("/v1/tasks?{filter}"))
            .await
            .expect(200);
        assert_eq!(keys(&page), expected, "{filter}");
        assert_eq!(page["next_cursor"], Value::Null);
    }
    let page = provost.get("/v1/tasks?key=o-2").await.expect(200);
    assert_eq!(page["items"][0]["error"]["status"], 402);
    assert_eq!(page["items"][0]["labels"]["customer"], "acme");
    assert!(page["items"][0].get("steps").is_none());
}

#[tokio::test]
async fn alerts_messages_and_questions_are_found_by_a_text() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/gone" => Act::answer(410, &[], "the shop has CLOSED"),
        path => Act::answer(422, &[], format!("no {path}").as_str()),
    })
    .await;
    let provost = Provost::start().await;
    for (path, receiver) in [("/currency", "/gone"), ("/weight", "/lost")] {
        let mut task = one_step(&remote.url(), path);
        task["reply_to"] = json!({ "url": format!("{}{receiver}", remote.url()) });
        provost.run(&task).await;
    }
    for (key, person) in [("refund-1", "ada"), ("holiday-1", "bob")] {
        let ask = json!({ "title": format!("Grant {key}?"), "of": [person] });
        let step = json!({ "name": "approval", "signal": { "within": "1h", "ask": ask } });
        provost
            .submit(&json!({ "key": key, "steps": [step] }))
            .await;
    }
    let found = async |list: &str| {
        let page = provost.get(list).await.expect(200);
        page["items"].as_array().unwrap().len()
    };
    for (list, count) in [
        ("/v1/alerts?text=weight", 1),
        ("/v1/alerts?text=NO%20/CURRENCY", 1),
        ("/v1/alerts?text=nothing", 0),
        ("/v1/messages?text=/gone", 1),
        ("/v1/messages?text=closed&limit=1", 1),
        ("/v1/asks?text=grant", 2),
        ("/v1/asks?text=REFUND", 1),
        ("/v1/asks?text=bob&of=bob", 1),
        ("/v1/asks?text=bob&of=ada", 0),
    ] {
        until(count, || found(list)).await;
    }
    for list in ["alerts", "messages", "asks"] {
        let path = format!("/v1/{list}?text=");
        provost
            .get(&path)
            .await
            .expect_problem(400, "invalid-query");
    }
}

#[tokio::test]
async fn pages_stay_true_while_tasks_are_submitted() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let submit = async |key: String| {
        let mut submission = one_step(&remote.url(), "/work");
        submission["key"] = json!(key);
        provost.submit(&submission).await;
    };
    for number in 0..10 {
        submit(format!("old-{number}")).await;
    }
    let mut listed = Vec::new();
    let mut path = "/v1/tasks?limit=3".to_owned();
    loop {
        let page = provost.get(&path).await.expect(200);
        assert!(page["items"].as_array().unwrap().len() <= 3);
        listed.extend(keys(&page).into_iter().map(str::to_owned));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/tasks?limit=3&cursor={cursor}");
        submit(format!("new-{}", listed.len())).await;
    }
    let expected: Vec<String> = (0..10)
        .rev()
        .map(|number| format!("old-{number}"))
        .collect();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_last_page_that_is_full_is_the_last() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    for _ in 0..4 {
        provost.submit(&one_step(&remote.url(), "/work")).await;
    }
    let page = provost.get("/v1/tasks?limit=2").await.expect(200);
    let cursor = page["next_cursor"].as_str().unwrap();
    let page = provost
        .get(&format!("/v1/tasks?limit=2&cursor={cursor}"))
        .await
        .expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn a_parameter_that_cannot_be_used_is_refused_by_name() {
    let provost = Provost::start().await;
    for (query, name) in [
        ("state=done", "state"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("cursor=nonsense", "cursor"),
        ("label=customer", "label"),
        ("created_after=yesterday", "created_after"),
        ("stat=error", "stat"),
        ("state=error&state=processed", "state"),
    ] {
        let refused = provost.get(&format!("/v1/tasks?{query}")).await;
        let problem = refused.expect_problem(400, "invalid-query");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(name), "{query}: {detail}");
    }
}

/// Requests a page of one item of each list, of which there are two items.
async fn paged(provost: &Provost) -> Vec<String> {
    let broken = Remote::script([Act::status(402), Act::status(403)]).await;
    let gone = json!({ "url": "http://127.0.0.1:9/replies" });
    let mut ids = Vec::new();
    for number in 0..2 {
        let mut submission = one_step(&broken.url(), "/work");
        submission["reply_to"] = gone.clone();
        ids.push(id_of(&provost.run(&submission).await));
        let name = format!("name-{number}");
        provost.register(&name, &broken.url(), 1).await;
        let body = json!({ "steps": [{ "name": "a", "agent": name }] });
        provost
            .put(&format!("/v1/workflows/{name}"), &body)
            .await
            .expect(201);
    }
    let history = format!("/v1/tasks/{}/history", ids[0]);
    [
        "/v1/tasks",
        "/v1/alerts",
        "/v1/messages",
        "/v1/agents",
        "/v1/workflows",
        &history,
    ]
    .map(str::to_owned)
    .to_vec()
}

#[tokio::test]
async fn a_cursor_is_good_for_its_own_list_with_its_own_filters_only() {
    let mut provost = Provost::start().await;
    let lists = paged(&provost).await;
    let mut cursors = Vec::new();
    for list in &lists {
        let page = provost.get(&format!("{list}?limit=1")).await.expect(200);
        let cursor = page["next_cursor"].as_str();
        let cursor = cursor.unwrap_or_else(|| panic!("{list} has one page: {page}"));
        cursors.push((list, cursor.to_owned()));
    }
    provost.kill().await;
    provost.restart().await;
    for (list, cursor) in &cursors {
        let next = provost
            .get(&format!("{list}?cursor={cursor}&limit=2"))
            .await;
        let next = next.expect(200);
        assert_eq!(
            next["items"].as_array().map(Vec::is_empty),
            Some(false),
            "{list}"
        );
        for (other, foreign) in &cursors {
            if other == list {
                continue;
            }
            let refused = provost.get(&format!("{list}?cursor={foreign}")).await;
            let problem = refused.expect_problem(400, "invalid-query");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("another list"), "{list}: {detail}");
        }
        let (end, flip) = (
            cursor.len() - 1,
            if cursor.ends_with('A') { "B" } else { "A" },
        );
        for touched in [
            &cursor[..end],
            &format!("{}{flip}", &cursor[..end]),
            &format!("{cursor}A"),
            "7",
            "",
        ] {
            let refused = provost.get(&format!("{list}?cursor={touched}")).await;
            let problem = refused.expect_problem(400, "invalid-query");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("next_cursor"), "{list} {touched}: {detail}");
        }
    }
    for (list, filter) in [
        ("/v1/tasks", "state=error"),
        ("/v1/tasks", "label=a:b"),
        ("/v1/alerts", "state=open"),
        ("/v1/messages", "state=dead"),
    ] {
        let (_, cursor) = cursors.iter().find(|(of, _)| *of == list).unwrap();
        let refused = provost
            .get(&format!("{list}?{filter}&cursor={cursor}"))
            .await;
        refused.expect_problem(400, "invalid-query");
    }
}

#[tokio::test]
async fn a_cursor_of_one_instance_is_good_at_another() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let on = || Provost::setup().database_url(&url).start();
    let (a, b) = tokio::join!(on(), on());
    for name in ["one", "two"] {
        a.register(name, "http://127.0.0.1:9", 1).await;
    }
    let page = a.get("/v1/agents?limit=1").await.expect(200);
    let next = format!(
        "/v1/agents?cursor={}",
        page["next_cursor"].as_str().unwrap()
    );
    // The other instance is notified of the registration.
    let items = loop {
        let page = b.get(&next).await.expect(200);
        match page["items"].as_array().unwrap().as_slice() {
            [] => continue,
            items => break items.to_vec(),
        }
    };
    assert_eq!(items[0]["name"], "two");
}
