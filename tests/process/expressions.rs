//! Expressions that would cost too much, and their effect on other requests and tasks.

use serde_json::{Value, json};

use crate::harness::{
    Answer, Database, PATIENCE, Provost, Remote, id_of, one_step, pipeline, step,
};

/// Returns the faults of a submission, each with its JSON pointer.
fn faults(answer: Answer) -> Vec<String> {
    let problem = answer.expect(422);
    let errors = problem["errors"].as_array().unwrap();
    let text = |error: &Value, name: &str| error[name].as_str().unwrap().to_owned();
    errors
        .iter()
        .map(|error| format!("{}: {}", text(error, "pointer"), text(error, "message")))
        .collect()
}

/// Returns texts of which no two are equal.
fn distinct() -> Vec<String> {
    (0..60_000).map(|at| format!("a{at}")).collect()
}

/// Returns a task with a step that sends the value of the expression.
fn sends(url: &str, expression: &str, input: Value) -> Value {
    json!({
        "steps": [{ "name": "one", "url": url, "request": { "body": { "x": format!("{{{{ {expression} }}}}") } } }],
        "input": input,
    })
}

/// Returns the step's fault once the task needs an operator.
async fn fault(provost: &Provost, submission: &Value) -> String {
    let task = provost.run(submission).await;
    assert_eq!(task["state"], "error", "{task:#}");
    step(&task, "one")["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Checks that the service runs, and does other work.
async fn goes_on(provost: &Provost, remote: &Remote) {
    assert_eq!(provost.get("/livez").await.status, 200);
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(task["state"], "processed");
}

#[tokio::test]
async fn an_expression_that_would_be_folded_into_gigabytes_is_refused() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let big = ["\"x\"*99999999"; 12].join("~");
    let long = format!("range(9999) | join('{}') | length", "0123456789".repeat(11));
    for (expression, why) in [
        (big.as_str(), "two numbers"),
        (long.as_str(), "is larger than"),
        (
            "range(99999) | reject('in', range(99999)) | list",
            "costs too much",
        ),
    ] {
        let answer = provost.post("/v1/tasks", &sends(&remote.url(), expression, json!({})));
        let faults = faults(answer.await);
        assert!(
            faults[0].starts_with("/steps/0/request/body/x: "),
            "{faults:?}"
        );
        assert!(faults[0].contains(why), "{faults:?}");
    }
    assert!(!provost.has_ended());
    goes_on(&provost, &remote).await;
}

#[tokio::test]
async fn an_expression_that_costs_too_much_ends_its_step_in_error_and_no_start() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let many = json!({ "l": distinct(), "s": "s".repeat(300_000) });
    for expression in [
        "input.l|map('replace','a',input.s)|list|length",
        "input.l|reject('in',input.l)|list",
        "input.l|map('default', input.l)|map('join', input.s)|list|length",
        "input.s|replace('s', input.s)|length",
    ] {
        let message = fault(&provost, &sends(&remote.url(), expression, many.clone())).await;
        let is_bounded = message.contains("costs too much") || message.contains("is larger than");
        assert!(is_bounded && message.contains(expression), "{message}");
        provost.kill().await;
        provost.restart().await;
        goes_on(&provost, &remote).await;
    }
}

#[tokio::test]
async fn what_was_accepted_once_and_is_refused_today_fails_when_it_is_its_turn() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let mut submission = sends(&remote.url(), "input.poison", json!({}));
    // The task is paused, so that nothing of it is evaluated before the record is changed.
    submission["steps"][0]["when"] = json!("input.go");
    submission["input"] = json!({ "go": true });
    submission["steps"].as_array_mut().unwrap().insert(
        0,
        json!({ "name": "first", "agent": "later", "request": {} }),
    );
    provost.register("later", "http://127.0.0.1:9", 1).await;
    let id = provost.submit(&submission).await;
    provost.kill().await;
    let record = Database::open(&provost.database());
    record
        .execute("UPDATE task_details SET steps = replace(steps, 'input.poison', '''x''*99999999~input.go|groupby(1)')");
    drop(record);
    provost.restart().await;
    provost.register("later", &remote.url(), 1).await;
    let task = tokio::time::timeout(PATIENCE, async {
        loop {
            let task = provost.settled(&id).await;
            if task["state"] == "error" || task["state"] == "processed" {
                return task;
            }
        }
    })
    .await
    .expect("the task comes to an end");
    assert_eq!(task["state"], "error", "{task:#}");
    let message = step(&task, "one")["error"]["message"].as_str().unwrap();
    assert!(message.contains("groupby"), "{message}");
    goes_on(&provost, &remote).await;
}

#[tokio::test]
async fn others_are_served_while_many_expensive_tasks_are_decided() {
    const MANY: usize = 30;
    let remote = Remote::quick().await;
    let provost = Provost::setup().set("INSTANCE__LEASE", "3s").start().await;
    let many = json!({ "l": distinct() });
    let mut expensive = sends(&remote.url(), "input.l|reject('in',input.l)|list", many);
    expensive["steps"][0]["when"] = json!("input.l|select('in',input.l)|list|length > 0");
    let flood = async {
        let sent = (0..MANY).map(|_| provost.post("/v1/tasks", &expensive));
        let sent = futures::future::join_all(sent.map(IntoFuture::into_future)).await;
        sent.iter().map(|answer| answer.status).collect::<Vec<_>>()
    };
    let mut served = 0;
    let beside = async {
        loop {
            goes_on(&provost, &remote).await;
            served += 1;
        }
    };
    let statuses = tokio::select! {
        statuses = flood => statuses,
        () = beside => Vec::new(),
    };
    assert_eq!(statuses, [202; MANY]);
    goes_on(&provost, &remote).await;
    let instances = provost.get("/v1/instances").await.expect(200);
    assert_eq!(
        instances["items"].as_array().map(Vec::len),
        Some(1),
        "{instances:#}"
    );
    let log = provost.log();
    assert!(
        !log.contains("lease is lost") && !log.contains("lease was lost"),
        "{log}"
    );
}

/// Returns the number of transactions that the committer has committed.
async fn commits(provost: &Provost) -> usize {
    let metrics = provost.get("/metrics").await.expect(200);
    let metrics = metrics.as_str().unwrap();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("provost_store_commit_seconds_count "));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_batch_ends_when_its_expressions_have_cost_what_one_command_s_may() {
    const MANY: usize = 20;
    let provost = Provost::start().await;
    let mut expensive = sends("http://127.0.0.1:9", "1", json!({ "l": distinct() }));
    expensive["steps"][0]["when"] = json!("input.l|reject('in',input.l)|list|length > 0");
    let before = commits(&provost).await;
    let sent = (0..MANY).map(|_| provost.post("/v1/tasks", &expensive).into_future());
    for answer in futures::future::join_all(sent).await {
        assert_eq!(answer.expect(202)["state"], "error");
    }
    // They have arrived together, and each alone has used the cost that a batch may have.
    let count = commits(&provost).await - before;
    assert!(count >= MANY, "{count} commits for {MANY} expensive tasks");
}

#[tokio::test]
async fn a_task_of_many_conditions_over_a_large_input_is_decided_at_once() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let steps: Vec<_> = (0..500)
        .map(|at| {
            json!({ "name": format!("s{at}"), "url": remote.url(), "after": [],
                "when": "input.l | reject('in', input.l) | list | length > 0" })
        })
        .collect();
    let submission = json!({ "steps": steps, "input": { "l": distinct() } });
    let id = provost.submit(&submission).await;
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "error");
    let message = task["steps"][499]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("together with the expressions before it"),
        "{message}"
    );
    goes_on(&provost, &remote).await;
}

#[tokio::test]
async fn dry_runs_of_expensive_expressions_hold_nobody_up() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let many = json!({ "l": distinct() });
    let expensive = sends(&remote.url(), "input.l|reject('in',input.l)|list", many);
    let runs = (0..4).map(|_| provost.post("/v1/tasks?dry_run=true", &expensive));
    let runs = futures::future::join_all(runs.map(IntoFuture::into_future));
    let (verdicts, ()) = tokio::join!(runs, goes_on(&provost, &remote));
    for verdict in verdicts {
        let verdict = verdict.expect(200);
        let warnings = verdict["warnings"].as_array().unwrap();
        let found = warnings
            .iter()
            .find(|warning| warning["code"] == "cannot_render");
        let message = found.unwrap()["message"].as_str().unwrap();
        assert!(message.contains("costs too much"), "{message}");
    }
}

#[tokio::test]
async fn many_dry_runs_at_once_share_memory_and_processor() {
    /// Nine evaluations of 16 MiB, and the memory of the service itself.
    const MOST: u64 = 256 << 20;
    const MANY: usize = 100;
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    // Each list takes 2.4 MB, and all are in memory at the same time.
    let lists = format!("[{}]", ["range(100000)"; 15].join(","));
    let expensive = sends(
        &remote.url(),
        &format!("{lists}|length + (input.a|int)"),
        json!({ "a": 1 }),
    );
    let flood = async {
        let sent = (0..MANY).map(|_| provost.post("/v1/tasks?dry_run=true", &expensive));
        futures::future::join_all(sent.map(IntoFuture::into_future)).await
    };
    let mut served = 0;
    let beside = async {
        loop {
            goes_on(&provost, &remote).await;
            served += 1;
        }
    };
    let answers = tokio::select! {
        answers = flood => answers,
        () = beside => Vec::new(),
    };
    assert!(served > 0, "nobody was served meanwhile");
    if let Some(peak) = provost.peak_memory() {
        assert!(peak < MOST, "it held {} MiB", peak >> 20);
    }
    for answer in answers {
        let verdict = answer.expect(200);
        let warnings = verdict["warnings"].to_string();
        assert!(warnings.contains("about 16 MiB"), "{warnings}");
    }
}

#[tokio::test]
async fn a_dry_run_beyond_those_that_may_wait_is_told_to_come_back() {
    let provost = Provost::start().await;
    let lists = format!("[{}]", ["range(100000)"; 6].join(","));
    let expensive = sends(
        "http://127.0.0.1:9",
        &format!("{lists}|length + input.a"),
        json!({ "a": 1 }),
    );
    // At most eight requests are evaluated, and 64 wait for each of them.
    let sent = (0..700).map(|_| provost.post("/v1/tasks?dry_run=true", &expensive));
    let answers = futures::future::join_all(sent.map(IntoFuture::into_future)).await;
    let mut busy = 0;
    for answer in answers {
        match answer.status {
            200 => {}
            _ => {
                assert!(answer.headers.contains_key("retry-after"));
                assert_eq!(answer.expect(503)["type"], "/problems/busy");
                busy += 1;
            }
        }
    }
    assert!(busy > 0);
    provost
        .post("/v1/tasks?dry_run=true", &expensive)
        .await
        .expect(200);
}

#[tokio::test]
async fn a_body_of_many_fields_names_or_levels_is_read_in_no_time() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let many =
        |entry: &dyn Fn(usize) -> String| (0..60_000).map(entry).collect::<Vec<_>>().join(",");
    let step = |more: String| {
        format!(
            r#"{{"steps":[{{"name":"a","url":"{}",{more}}}]}}"#,
            remote.url()
        )
    };
    let bodies = [
        format!("{{{}}}", many(&|at| format!("\"f{at}\":1"))),
        step(many(&|at| format!("\"f{at}\":1"))),
        step(format!(
            r#""request":{{"headers":{{{}}}}}"#,
            many(&|at| format!("\"h{at}\":\"\""))
        )),
        step(format!(
            r#""request":{{"body":{}{}{}}}"#,
            "[".repeat(60_000),
            many(&|_| "\"{{a}}\"".to_owned()),
            "]".repeat(60_000)
        )),
        step(format!(
            r#""request":{{"body":[{}]}}"#,
            many(&|_| "\"{{a.b-c-d-e-f}}\"".to_owned())
        )),
    ];
    for body in bodies {
        let posted = provost.call(reqwest::Method::POST, "/v1/tasks");
        let answer = posted.text("application/json", body).await;
        assert!((400..500).contains(&answer.status), "{}", answer.status);
    }
    goes_on(&provost, &remote).await;
}

#[tokio::test]
async fn what_people_write_who_know_another_language_is_answered_with_a_hint() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 1).await;
    let mut base = pipeline(&remote.url(), &["my-step", "two"]);
    for (field, value, hint) in [
        ("when", json!("${input.a} > 1"), "write `{{ … }}`"),
        ("when", json!("input.a && input.b"), "write `and` for `&&`"),
        ("when", json!("input.a || input.b"), "write `or` for `||`"),
        ("when", json!("!input.a"), "write `not` for `!`"),
        ("when", json!("input.a = 1"), "write `==` to compare"),
        ("when", json!("steps.my-step.output.ok"), "steps['my-step']"),
        ("when", json!("input.a | slice(2)"), "x[2:5]"),
        ("when", json!("input.a | uper"), "did you mean `upper`?"),
        ("when", json!("input.a | upcase"), "write `upper`"),
        ("when", json!("len(input.a)"), "x | length"),
        ("when", json!("input.a.strip()"), "use a filter"),
        ("depends_on", json!(["my-step"]), "did you mean `after`?"),
        ("timeout", json!("5s"), "did you mean `complete_within`?"),
        ("retries", json!(3), "did you mean `max_attempts`?"),
        ("agent", json!("paymets"), "did you mean `payments`?"),
    ] {
        let step = base["steps"][1].as_object_mut().unwrap();
        let before = step.clone();
        if field == "agent" {
            step.remove("url");
        }
        step.insert(field.to_owned(), value);
        let faults = faults(provost.post("/v1/tasks", &base).await);
        assert!(
            faults.iter().any(|fault| fault.contains(hint)),
            "{field}: {faults:?}"
        );
        base["steps"][1] = before.into();
    }
    let workflow = json!({ "steps": base["steps"] });
    provost.put("/v1/workflows/orders", &workflow).await;
    let answer = provost.post("/v1/tasks", &json!({ "workflow": "order" }));
    let faults = faults(answer.await);
    assert!(faults[0].contains("did you mean \"orders\"?"), "{faults:?}");
}

#[tokio::test]
async fn a_dry_run_warns_of_what_may_not_be_there() {
    let provost = Provost::start().await;
    let url = "http://127.0.0.1:9";
    let submission = json!({ "steps": [
        { "name": "check", "url": url, "when": "input.careful is defined" },
        { "name": "charge", "url": url, "request": { "body": { "id": "{{ steps.check.output.id }}", "sum": "{{ input.sum }}" } } },
        { "name": "guarded", "url": url, "when": "steps.check.output is not none",
            "request": { "body": "{{ steps.check.output.id }}" } },
        { "name": "defaulted", "url": url, "request": { "body": {
            "id": "{{ steps.check.output.id | default(0) }}", "note": "{{ input.note | default('') }}", "who": "${input.who}" } } },
    ] });
    let verdict = provost
        .post("/v1/tasks?dry_run=true", &submission)
        .await
        .expect(200);
    let found: Vec<_> = verdict["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| {
            (
                warning["code"].as_str().unwrap(),
                warning["pointer"].as_str().unwrap(),
            )
        })
        .filter(|(code, _)| {
            ["reads_skipped", "input_needed", "looks_like_expression"].contains(code)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("reads_skipped", "/steps/1/request/body/id"),
            ("input_needed", "/input"),
            ("looks_like_expression", "/steps/3/request/body/who"),
        ]
    );
    let messages = verdict["warnings"].to_string();
    assert!(messages.contains("error: input.sum;"), "{messages}");
}

#[tokio::test]
async fn a_whole_number_beyond_128_bits_is_passed_on_or_refused_and_never_rounded() {
    const LARGE: &str = "340282366920938463463374607431768211457";
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let submission = |body: &str| {
        let url = remote.url();
        let text = format!(
            r#"{{"steps":[{{"name":"one","url":"{url}","request":{{"body":{body}}}}}],"input":{{"n":{LARGE}}}}}"#
        );
        let call = provost.call(reqwest::Method::POST, "/v1/tasks");
        call.text("application/json", text)
    };
    for body in [r#"{"all":"{{ input }}"}"#, &format!(r#"{{"n":{LARGE}}}"#)] {
        let task = id_of(&submission(body).await.expect(202));
        assert_eq!(provost.settled(&task).await["state"], "processed");
        let sent = remote.ledger().pop().unwrap().raw;
        assert!(sent.contains(&format!(r#""n":{LARGE}"#)), "{sent}");
    }
    for body in [r#"{"n":"{{ input.n }}"}"#, r#"{"n":"{{ input.n + 1 }}"}"#] {
        let task = id_of(&submission(body).await.expect(202));
        let task = provost.settled(&task).await;
        assert_eq!(task["state"], "error", "{task:#}");
        let fault = step(&task, "one")["error"]["message"].as_str().unwrap();
        assert!(fault.contains("39 digits"), "{fault}");
        assert!(fault.contains("128 bits"), "{fault}");
    }
    assert_eq!(remote.count(), 2);
}
