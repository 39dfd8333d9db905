//! The console of a running service: a browser is led to it, people sign in, and a cause is found and fixed with forms alone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use reqwest::{Client, StatusCode, redirect::Policy};
use serde_json::{Value, json};

use crate::harness::{
    Act, Gate, Postgres, Provost, Remote, id_of, new_database, one_step, setups, until,
};

const TOKENS: &str =
    "ada:operate:0123456789abcdef-ada,eye:read:0123456789abcdef-eye,ci:submit:0123456789abcdef-ci";

/// A browser without script that does not follow redirects by itself.
struct Browser {
    client: Client,
    address: String,
    cookie: String,
}

struct Page {
    status: StatusCode,
    location: String,
    html: String,
}

impl Browser {
    fn of(provost: &Provost) -> Self {
        let client = Client::builder().redirect(Policy::none()).build();
        Self {
            client: client.unwrap(),
            address: provost.address().to_owned(),
            cookie: String::new(),
        }
    }

    async fn signed_in(provost: &Provost, token: &str) -> Self {
        let mut browser = Self::of(provost);
        let form = format!("to=%2Fconsole&token={token}");
        let request = browser.request("POST", "/console/login").body(form);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        browser.cookie = cookie.split(';').next().unwrap().to_owned();
        browser
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        self.client
            .request(method.parse().unwrap(), url)
            .header("accept", "text/html,*/*;q=0.8")
            .header("sec-fetch-site", "same-origin")
            .header("cookie", &self.cookie)
    }

    /// Returns the same browser as it looks at another instance.
    fn at(&self, provost: &Provost) -> Self {
        Self {
            client: self.client.clone(),
            address: provost.address().to_owned(),
            cookie: self.cookie.clone(),
        }
    }

    async fn open(&self, path: &str) -> Page {
        read(self.request("GET", path)).await
    }

    async fn send(&self, path: &str, form: &str) -> Page {
        let form = form.to_owned();
        let kind = "application/x-www-form-urlencoded";
        read(
            self.request("POST", path)
                .header("content-type", kind)
                .body(form),
        )
        .await
    }
}

async fn read(request: reqwest::RequestBuilder) -> Page {
    let response = request.send().await.unwrap();
    let location = response.headers().get("location");
    Page {
        status: response.status(),
        location: location
            .map_or("", |value| value.to_str().unwrap())
            .to_owned(),
        html: response.text().await.unwrap(),
    }
}

#[tokio::test]
async fn a_browser_is_led_to_the_console_and_a_program_gets_a_problem() {
    let provost = Provost::start().await;
    let browser = Browser::of(&provost);
    let root = browser.open("/").await;
    assert_eq!(
        (root.status, root.location.as_str()),
        (StatusCode::SEE_OTHER, "/console")
    );
    let home = browser.open("/console").await;
    assert!(home.html.contains("<h1>No tasks yet</h1>"), "{}", home.html);
    provost.get("/").await.expect_problem(404, "not-found");
    let metrics = provost.get("/metrics").await.expect(200).to_string();
    assert!(metrics.contains("route=\\\"/console\\\""), "{metrics}");
}

#[tokio::test]
async fn the_page_of_instances_shows_the_settings_in_force_and_no_secret() {
    let setup = Provost::setup().set("TOKENS", TOKENS);
    let provost = setup.set("LIMITS__MAX_STEPS", "17").start().await;
    let eye = Browser::signed_in(&provost, "0123456789abcdef-eye").await;
    let page = eye.open("/console/instances").await.html;
    let (made, defaults) = page.split_once("settings have their defaults").unwrap();
    for shown in [
        "<code>limits.max_steps</code></td><td class=\"grow\"><code>17</code>",
        "(hidden)",
        "ada",
    ] {
        assert!(made.contains(shown), "{shown}: {page}");
    }
    assert!(
        defaults.contains("<code>limits.max_request</code>"),
        "{page}"
    );
    assert!(!page.contains("0123456789abcdef"), "{page}");
}

#[tokio::test]
async fn without_tokens_a_page_of_another_site_can_neither_look_nor_act() {
    let provost = Provost::start().await;
    let browser = Browser::of(&provost);
    for (method, site) in [("GET", "cross-site"), ("POST", "cross-site")] {
        let request = browser.request(method, "/console/tasks/fix");
        let request = request.header("sec-fetch-site", site);
        assert_eq!(
            read(request).await.status,
            StatusCode::FORBIDDEN,
            "{method}"
        );
    }
}

#[tokio::test]
async fn a_cause_is_found_and_its_tasks_are_fixed_with_forms_by_the_person_who_signed_in() {
    let works = Arc::new(AtomicBool::new(false));
    let seen_by_service = works.clone();
    let remote = Remote::with(move |_| match seen_by_service.load(Ordering::Relaxed) {
        true => Act::Ok(json!({})),
        false => Act::answer(422, &[], r#"{"error":"<b>no currency</b>"}"#),
    })
    .await;
    let provost = Provost::setup().set("TOKENS", TOKENS).start().await;
    let as_ci = "Bearer 0123456789abcdef-ci";
    let mut ids = Vec::new();
    for _ in 0..3 {
        let submission = one_step(&remote.url(), "/charge");
        let submitted = provost
            .post("/v1/tasks", &submission)
            .header("authorization", as_ci);
        let task = submitted.header("prefer", "wait=10").await.body;
        assert_eq!(task["state"], "error", "{task:#}");
        ids.push(task["id"].as_str().unwrap().to_owned());
    }
    let stranger = Browser::of(&provost).open("/console").await;
    assert_eq!(stranger.location, "/console/login?to=%2Fconsole");

    let ada = Browser::signed_in(&provost, "0123456789abcdef-ada").await;
    let home = ada.open("/console").await;
    assert!(
        home.html
            .contains("<h1>3 tasks need a person, for 1 cause</h1>"),
        "{}",
        home.html
    );
    let link = home.html.split("href=\"/console/causes/").nth(1).unwrap();
    let cause = format!("/console/causes/{}", link.split('"').next().unwrap());
    let page = ada.open(&cause).await;
    assert!(
        page.html.contains("&#60;b&#62;no currency"),
        "{}",
        page.html
    );
    let preview = ada.open(&format!("{cause}/fix?do=retry")).await;
    assert!(
        preview.html.contains("<h1>Retry 3 tasks</h1>"),
        "{}",
        preview.html
    );

    // The role of a reader has no commands, and what it may not do is refused with the role that is needed.
    let ci = Browser::signed_in(&provost, "0123456789abcdef-ci").await;
    for path in ["/console", "/console/instances"] {
        let refused = ci.open(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(
            refused.html.contains("This needs the role read"),
            "{path}: {}",
            refused.html
        );
    }
    let eye = Browser::signed_in(&provost, "0123456789abcdef-eye").await;
    let refused = eye.open(&format!("{cause}/fix?do=retry")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(
        refused.html.contains("This needs the role operate"),
        "{}",
        refused.html
    );

    works.store(true, Ordering::Relaxed);
    let form = "do=retry&expected=3&once=a1&first=all&rate=20&reason=payments+is+repaired";
    let confirmed = ada.send(&format!("{cause}/fix"), form).await;
    assert_eq!(
        confirmed.status,
        StatusCode::SEE_OTHER,
        "{}",
        confirmed.html
    );
    let job = ada.open(&confirmed.location).await;
    assert!(job.html.contains("payments is repaired"), "{}", job.html);
    let again = ada.send(&format!("{cause}/fix"), form).await;
    assert!(again.location == confirmed.location || again.status == StatusCode::CONFLICT);
    for id in &ids {
        let state = async || {
            let task = provost.get(&format!("/v1/tasks/{id}"));
            let task = task.header("authorization", as_ci).await.expect(200);
            task["state"].as_str().unwrap().to_owned()
        };
        until(String::from("processed"), state).await;
        let history = provost.get(&format!("/v1/tasks/{id}/history"));
        let history = history.header("authorization", as_ci).await.expect(200);
        let entries = history["items"].as_array().unwrap();
        let is_recorded = entries.iter().any(|entry| {
            entry["by"] == "operator:ada" && entry["reason"] == "payments is repaired"
        });
        assert!(is_recorded, "{history:#}");
    }
}

#[tokio::test]
async fn a_session_holds_at_every_instance_and_after_a_kill_until_somebody_signs_out_or_its_token_is_gone()
 {
    let setup = Provost::setup().database_url(&new_database().await);
    let tokens = |tokens: &str| setup.clone().set("TOKENS", tokens);
    let mut first = tokens(TOKENS).start().await;
    let second = tokens(TOKENS).start().await;
    let without_ada = "eye:read:0123456789abcdef-eye,ci:submit:0123456789abcdef-ci";
    let third = tokens(without_ada).start().await;
    let browser = Browser::signed_in(&first, "0123456789abcdef-ada").await;
    first.kill().await;
    first.restart().await;
    for provost in [&first, &second] {
        let page = browser.at(provost).open("/console/tasks").await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.html);
    }
    let page = browser.at(&third).open("/console/tasks").await;
    assert_eq!(page.status, StatusCode::SEE_OTHER, "no such token there");
    let out = browser.at(&second).send("/console/logout", "").await;
    assert_eq!(out.status, StatusCode::SEE_OTHER);
    let page = browser.at(&first).open("/console/tasks").await;
    assert_eq!(page.status, StatusCode::SEE_OTHER);
    assert!(
        page.location.contains("/console/login"),
        "{}",
        page.location
    );
    // A command of somebody who is not signed in any more is not lost without a word.
    let sent = browser
        .at(&first)
        .send("/console/tasks/fix", "do=retry")
        .await;
    let page = browser.at(&first).open(&sent.location).await;
    assert!(page.html.contains("nothing was done"), "{}", page.html);
}

#[tokio::test]
async fn while_the_database_takes_no_writes_people_sign_in_and_look() {
    let server = Postgres::start().await;
    let setup = Provost::setup().database_url(&server.url());
    let provost = setup.set("TOKENS", TOKENS).start().await;
    server
        .sql("ALTER SYSTEM SET default_transaction_read_only = on")
        .await;
    server.sql("SELECT pg_reload_conf()").await;
    provost.says("default_transaction_read_only").await;
    let browser = Browser::signed_in(&provost, "0123456789abcdef-ada").await;
    let page = browser.open("/console/tasks").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.html);
}

/// Returns the form of a preview of many tasks with what it hides, as a browser sends it.
fn form_of(preview: &str, typed: &[(&str, &str)]) -> String {
    form_to("/console/tasks/fix", preview, typed)
}

/// Returns the form that a page sends to an address.
fn form_to(action: &str, page: &str, typed: &[(&str, &str)]) -> String {
    let (_, form) = page
        .split_once(&format!("method=\"post\" action=\"{action}\""))
        .unwrap_or_else(|| panic!("no form: {page}"));
    let mut fields = url::form_urlencoded::Serializer::new(String::new());
    for input in form.split("<input type=\"hidden\" name=\"").skip(1) {
        let (name, rest) = input.split_once("\" value=\"").unwrap();
        let value = rest.split('"').next().unwrap();
        let value = value
            .replace("&#34;", "\"")
            .replace("&#39;", "'")
            .replace("&#38;", "&");
        fields.append_pair(name, &value);
    }
    fields.extend_pairs(typed);
    fields.finish()
}

#[tokio::test]
async fn many_tasks_are_paused_resumed_and_resolved_with_forms() {
    let remote = Remote::with(|_| Act::answer(422, &[], "no currency")).await;
    let provost = Provost::start().await;
    let browser = Browser::of(&provost);
    let later =
        json!({ "labels": { "team": "a" }, "steps": [{ "name": "a", "wait": { "for": "1h" } }] });
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(provost.submit(&later).await);
    }
    let mut failed = Vec::new();
    for _ in 0..2 {
        failed.push(id_of(
            &provost.run(&one_step(&remote.url(), "/charge")).await,
        ));
    }
    let resolve = "state=error&do=resolve&step=only&output=%7B%22id%22%3A%22ch_17%22%7D";
    for (filter, title, state, tasks) in [
        ("label=team:a&do=pause", "Pause 2 tasks", "paused", &waiting),
        (
            "label=team:a&do=resume",
            "Resume 2 tasks",
            "processing",
            &waiting,
        ),
        (
            resolve,
            "Resolve the failed step of 2 tasks",
            "processed",
            &failed,
        ),
    ] {
        let preview = browser.open(&format!("/console/tasks/fix?{filter}")).await;
        let has_title = preview.html.contains(&format!("<h1>{title}"));
        assert!(has_title, "{filter}: {}", preview.html);
        for id in tasks {
            assert_ne!(
                provost.task(id).await["state"],
                state,
                "a preview changes nothing"
            );
        }
        let form = form_of(
            &preview.html,
            &[("first", "all"), ("rate", "20"), ("reason", "a drill")],
        );
        let confirmed = browser.send("/console/tasks/fix", &form).await;
        assert_eq!(
            confirmed.status,
            StatusCode::SEE_OTHER,
            "{filter}: {}",
            confirmed.html
        );
        for id in tasks {
            let now = async || provost.task(id).await["state"].as_str().unwrap().to_owned();
            until(state.to_owned(), now).await;
        }
        let job = browser.open(&confirmed.location).await;
        assert!(job.html.contains("a drill"), "{}", job.html);
    }
    let task = provost.task(&failed[0]).await;
    assert_eq!(task["steps"][0]["output"], json!({ "id": "ch_17" }));
}

/// Nothing is done that the page did not say: not for tasks that failed later, not with a text or a time that was changed since.
#[tokio::test]
async fn a_command_does_what_its_preview_has_shown_and_nothing_else() {
    let remote = Remote::with(|_| Act::answer(422, &[], "no currency")).await;
    let provost = Provost::start().await;
    provost.register("shop", &remote.url(), 8).await;
    let browser = Browser::of(&provost);
    let fails = json!({ "steps": [{ "name": "charge", "agent": "shop",
        "request": { "path": "/charge", "body": { "amount": 5 } } }] });
    let first = id_of(&provost.run(&fails).await);
    let fix = "/console/tasks/fix?state=error&do=cancel";
    let preview = browser.open(fix).await;
    let as_of = preview
        .html
        .split("name=\"as_of\" value=\"")
        .nth(1)
        .unwrap();
    let as_of: jiff::Timestamp = as_of.split('"').next().unwrap().parse().unwrap();
    let now = || jiff::Timestamp::now().as_millisecond();
    until(true, async || now() > as_of.as_millisecond()).await;
    let later = id_of(&provost.run(&fails).await);
    // The body that was edited beside the form is shown before it is sent.
    let retry = format!("/console/tasks/{later}/retry");
    let page = browser.open(&format!("{retry}?step=charge")).await;
    let edited = "{ \"amount\": 5, \"currency\": \"EUR\" }";
    let form = form_to(
        &retry,
        &page.html,
        &[("edited", edited), ("reason", "a drill")],
    );
    let again = browser.send(&retry, &form).await;
    assert_eq!(
        again.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        again.html
    );
    assert!(
        again
            .html
            .contains("was changed after its difference was shown"),
        "{}",
        again.html
    );
    assert!(
        again.html.contains("+   &#34;currency&#34;: &#34;EUR&#34;"),
        "{}",
        again.html
    );
    assert_eq!(remote.count(), 2, "nothing was sent");
    let looked = [("edited", edited), ("look", "yes")];
    let look = browser
        .send(&retry, &form_to(&retry, &page.html, &looked))
        .await;
    assert_eq!(look.status, StatusCode::OK, "{}", look.html);
    // A browser sends the text as it stands in the page.
    let shown = look
        .html
        .split("name=\"looked_at\" value=\"")
        .nth(1)
        .unwrap();
    let shown = shown.split('"').next().unwrap().replace("&#34;", "\"");
    let form = form_to(
        &retry,
        &look.html,
        &[("edited", &shown), ("reason", "a drill")],
    );
    let sent = browser.send(&retry, &form).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.html);
    assert_eq!(provost.settled(&later).await["state"], "error");
    let bodies: Vec<_> = remote
        .ledger()
        .iter()
        .map(|seen| seen.body.clone())
        .collect();
    assert_eq!(bodies[2], json!({ "amount": 5, "currency": "EUR" }));
    // The task that failed after the preview stays.
    let form = form_of(
        &preview.html,
        &[("first", "all"), ("typed", "1"), ("reason", "a drill")],
    );
    let cancelled = browser.send("/console/tasks/fix", &form).await;
    assert_eq!(
        cancelled.status,
        StatusCode::SEE_OTHER,
        "{}",
        cancelled.html
    );
    let state = async || provost.task(&first).await["state"].clone();
    until(json!("cancelled"), state).await;
    let job = cancelled.location.rsplit('/').next().unwrap();
    provost.bulk_ended(job).await;
    assert_eq!(provost.task(&later).await["state"], "error");
    // An agent is paused for the time that the page has said.
    let pause = "/console/agents/shop/pause";
    let page = browser.open(&format!("{pause}?for=2h")).await;
    let form = form_to(pause, &page.html, &[("reason", "a drill")]);
    let another = form.replace("for=2h", "for=30d");
    let asked = browser.send(pause, &format!("for=30d&{another}")).await;
    assert!(
        asked.location.contains("/pause?for=30d"),
        "{}",
        asked.location
    );
    let pause_of = async || provost.get("/v1/agents/shop").await.expect(200)["pause"].clone();
    assert_eq!(pause_of().await, Value::Null);
    let said = browser.open(&asked.location).await;
    assert!(
        said.html.contains("Pause agent shop for 30d"),
        "{}",
        said.html
    );
    // A page that says no time shows one that is typed first, too.
    let endless = browser.open(pause).await;
    let form_without = form_to(pause, &endless.html, &[("reason", "a drill")]);
    let asked = browser.send(pause, &format!("for=2h&{form_without}")).await;
    assert!(
        asked.location.contains("/pause?for=2h"),
        "{}",
        asked.location
    );
    assert_eq!(pause_of().await, Value::Null);
    let paused = browser.send(pause, &format!("for=2h&{form}")).await;
    assert_eq!(paused.status, StatusCode::SEE_OTHER, "{}", paused.html);
    assert!(pause_of().await.is_object());
}

#[tokio::test]
async fn dead_letters_are_discarded_only_as_many_as_the_preview_has_said() {
    let gone = Remote::with(|_| Act::status(410)).await;
    let provost = Provost::start().await;
    let browser = Browser::of(&provost);
    let ends =
        json!({ "steps": [{ "name": "a", "set": { "n": 1 } }], "reply_to": { "url": gone.url() } });
    let dead = async || {
        let list = provost.get("/v1/messages?state=dead").await.expect(200);
        list["items"].as_array().unwrap().len()
    };
    provost.submit(&ends).await;
    until(1, dead).await;
    let discard = "/console/messages/all/discard";
    let preview = browser.open(discard).await;
    provost.submit(&ends).await;
    until(2, dead).await;
    let form = form_to(discard, &preview.html, &[]);
    let again = browser.send(discard, &form).await;
    assert!(
        again
            .html
            .contains("Something has changed since the preview"),
        "{}",
        again.html
    );
    assert_eq!(dead().await, 2);
    let sent = browser
        .send(discard, &form_to(discard, &again.html, &[]))
        .await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.html);
    assert_eq!(dead().await, 0);
}

/// A task that changes all the time can be commanded, as long as what the preview says is true.
#[tokio::test]
async fn a_busy_task_is_commanded_as_previewed_and_refused_once_the_preview_is_wrong() {
    let provost = Provost::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    let service = Remote::with(move |seen| match seen.path.as_str() {
        "/last" => held.then(json!({})),
        _ => Act::Ok(json!({})),
    })
    .await;
    provost.register("x", &service.url(), 8).await;
    let rows: Vec<_> = (0..40).collect();
    let task = json!({ "key": "import-1", "steps": [
        { "name": "rows", "agent": "x", "for_each": rows, "max_parallel": 1, "request": { "path": "/rows" } },
        { "name": "last", "agent": "x", "after": [], "request": { "path": "/last" } } ] });
    let id = provost.submit(&task).await;
    let browser = Browser::of(&provost);
    let preview = async |command: &str| {
        let path = format!("/console/tasks/{id}/{command}");
        let page = browser.open(&path).await;
        form_to(&path, &page.html, &[("reason", "a drill")])
    };
    let pause = preview("pause").await;
    let version = async || provost.task(&id).await["version"].as_u64().unwrap();
    let seen = version().await;
    until(true, async || version().await > seen + 10).await;
    let sent = browser
        .send(&format!("/console/tasks/{id}/pause"), &pause)
        .await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.html);
    assert_eq!(provost.task(&id).await["state"], "paused");
    // The preview of another command says what is not true any more.
    let resume = preview("resume").await;
    provost
        .post(&format!("/v1/tasks/{id}/resume"), &json!({}))
        .await
        .expect(200);
    let sent = browser
        .send(&format!("/console/tasks/{id}/resume"), &resume)
        .await;
    assert_eq!(
        sent.status,
        StatusCode::PRECONDITION_FAILED,
        "{}",
        sent.html
    );
    gate.open();
}

#[tokio::test]
async fn a_task_is_submitted_signalled_and_its_agent_checked_with_forms() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 8).await;
    let workflow = json!({ "steps": [
        { "name": "charge", "agent": "payments", "request": { "path": "/charge", "body": "{{ input }}" } },
        { "name": "paid", "signal": { "within": "1h" } } ] });
    let put = provost.put("/v1/workflows/order", &workflow).await;
    assert_eq!(put.status, 201, "{put:?}");
    let browser = Browser::of(&provost);

    let path = "/console/workflows/order/submit";
    let tried = browser
        .open("/console/workflows/order?version=1&input=%7B%7D")
        .await;
    assert!(
        tried.html.contains(&format!("action=\"{path}\"")),
        "{}",
        tried.html
    );
    let preview = browser.open(&format!("{path}?version=1")).await;
    let typed = |input: &'static str| [("input", input), ("key", "order-1")];
    let refused = browser
        .send(path, &form_to(path, &preview.html, &typed("{")))
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.html.contains("Nothing was done"),
        "{}",
        refused.html
    );
    let form = form_to(path, &preview.html, &typed(r#"{ "amount": 5.10 }"#));
    let submitted = browser.send(path, &form).await;
    assert_eq!(
        submitted.status,
        StatusCode::SEE_OTHER,
        "{}",
        submitted.html
    );
    // A person who sends the form twice makes one task.
    let again = browser.send(path, &form).await;
    assert_eq!(again.location, submitted.location);
    let charge = remote.requests(1).await;
    assert_eq!(
        charge[0].raw, r#"{ "amount": 5.10 }"#,
        "numbers are sent as they were typed"
    );

    let id = submitted.location.rsplit('/').next().unwrap().to_owned();
    let waits = async || provost.task(&id).await["steps"][1]["state"] == "processing";
    until(true, waits).await;
    let page = browser.open(&submitted.location).await;
    assert!(page.html.contains("Signal paid…"), "{}", page.html);
    let path = format!("/console/tasks/{id}/signal");
    let unsaid = browser.open(&format!("{path}?step=paid")).await;
    assert!(!unsaid.html.contains("method=\"post\""), "{}", unsaid.html);
    let said = browser
        .open(&format!(
            "{path}?step=paid&output=%7B%22by%22%3A%22card%22%7D"
        ))
        .await;
    let signalled = browser.send(&path, &form_to(&path, &said.html, &[])).await;
    assert_eq!(
        signalled.status,
        StatusCode::SEE_OTHER,
        "{}",
        signalled.html
    );
    let task = provost.settled(&id).await;
    assert_eq!(task["steps"][1]["output"], json!({ "by": "card" }));

    let path = "/console/agents/payments/check";
    let preview = browser.open(path).await;
    let step = r#"{ "request": { "path": "/charge" }, "complete_within": "1s" }"#;
    let form = form_to(path, &preview.html, &[("step", step)]);
    let checked = browser.send(path, &form).await;
    assert_eq!(checked.status, StatusCode::OK, "{}", checked.html);
    assert!(
        checked.html.contains("What steps rely on"),
        "{}",
        checked.html
    );
    let unknown = form_to(path, &preview.html, &[("step", r#"{ "requst": {} }"#)]);
    let refused = browser.send(path, &unknown).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.html.contains("did you mean"), "{}", refused.html);
}

#[tokio::test]
async fn the_page_of_a_cause_says_how_the_example_differs_from_a_success() {
    let remote = Remote::with(|seen| match seen.body["currency"].is_string() {
        true => Act::Ok(json!({ "id": "ch_1" })),
        false => Act::answer(422, &[], "currency is required"),
    })
    .await;
    for setup in setups().await {
        let provost = setup.set("RECORD__SUCCESSES", "none").start().await;
        provost.register("payments", &remote.url(), 8).await;
        let steps = json!([{ "name": "charge", "agent": "payments", "request": { "body": "{{ input }}" } }]);
        let put = provost.put("/v1/workflows/order", &json!({ "steps": steps }));
        put.await.expect(201);
        let run = async |key: &str, input: serde_json::Value| {
            let task = json!({ "workflow": "order", "key": key, "input": input });
            provost.run(&task).await
        };
        run("order-1", json!({ "amount": 5, "currency": "EUR" })).await;
        let task = run("order-2", json!({ "amount": 5 })).await;
        assert_eq!(task["state"], "error", "{task:#}");
        let causes = provost.get("/v1/failures").await.expect(200);
        let cause = causes["items"][0]["fingerprint"].as_str().unwrap();
        let browser = Browser::of(&provost);
        let page = browser.open(&format!("/console/causes/{cause}")).await.html;
        let differs = "Beside a recent success, whose request was not recorded: order-2 failed at charge, order-1 did not; the inputs differ at /currency.";
        assert!(page.contains(differs), "{page}");
        let (_, link) = page.split_once("compare=").unwrap();
        let other = link.split(['"', '&']).next().unwrap();
        let id = id_of(&task);
        let compared = browser
            .open(&format!("/console/tasks/{id}?compare={other}"))
            .await;
        assert_eq!(compared.status, StatusCode::OK, "{}", compared.html);
        assert!(compared.html.contains("order-1") && compared.html.contains("order-2"));
    }
}
