//! Breakers and pauses: an agent whose service fails, or is down for maintenance, is not called, and its steps wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{
    Act, Api, Gate, PATIENCE, Provost, Remote, alerts, kinds, new_database, setups, step, until,
};

fn charge() -> Value {
    json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": "10m" }] })
}

/// Returns a breaker that opens soon, and stays open until it is reset.
fn breaker() -> Value {
    json!({ "min_calls": 4, "window": "10m", "open_for": "1h", "canaries": 2 })
}

async fn register(api: &Api, remotes: &[&Remote], breaker: Value) {
    let endpoints = remotes.iter();
    let endpoints = endpoints.map(|remote| json!({ "url": remote.url(), "max_in_flight": 4 }));
    let spec = json!({ "endpoints": endpoints.collect::<Vec<_>>(), "breaker": breaker,
        "retry": { "initial": "10ms", "max": "50ms" } });
    api.put("/v1/agents/payments", &spec).await.expect(201);
}

async fn agent(api: &Api) -> Value {
    api.get("/v1/agents/payments").await.expect(200)
}

async fn states(api: &Api) -> Vec<String> {
    let agent = agent(api).await;
    let breakers = agent["breakers"].as_array().unwrap().iter();
    breakers
        .map(|breaker| breaker["state"].as_str().unwrap().to_owned())
        .collect()
}

async fn until_states(api: &Api, wanted: &[&str]) {
    let wanted: Vec<_> = wanted.iter().map(|state| (*state).to_owned()).collect();
    until(wanted, || states(api)).await;
}

async fn operate(api: &Api, action: &str) -> Value {
    let body = json!({ "action": action, "reason": "as the test says" });
    let done = api.post("/v1/agents/payments/breaker", &body).await;
    done.expect(200)
}

async fn submit(api: &Api, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(api.submit(&charge()).await);
    }
    ids
}

async fn all_processed(api: &Api, ids: &[String]) {
    for id in ids {
        assert_eq!(api.settled(id).await["state"], "processed");
    }
}

/// Submits until a failing endpoint has got `calls` calls. The better endpoints get most of the calls.
async fn submit_until_called(api: &Api, remote: &Remote, calls: usize) {
    let called = async {
        while remote.count() < calls {
            let ids = submit(api, 10).await;
            all_processed(api, &ids).await;
        }
    };
    if timeout(PATIENCE, called).await.is_err() {
        panic!("{} calls came to {}", remote.count(), remote.url());
    }
}

/// A service that responds 503 while it is sick.
struct Service {
    remote: Remote,
    sick: Arc<AtomicBool>,
}

impl Service {
    async fn sick() -> Self {
        let sick = Arc::new(AtomicBool::new(true));
        let is_sick = sick.clone();
        let remote = Remote::with(move |_| match is_sick.load(Ordering::SeqCst) {
            true => Act::status(503),
            false => Act::Ok(json!({})),
        })
        .await;
        Self { remote, sick }
    }

    fn recover(&self) {
        self.sick.store(false, Ordering::SeqCst);
    }
}

/// Waits until no call is running. None may begin from then on.
async fn at_rest(api: &Api) {
    until(json!(0), || async { agent(api).await["in_flight"].clone() }).await;
}

#[tokio::test]
async fn an_open_breaker_makes_steps_wait_and_nothing_fails() {
    for setup in setups().await {
        let service = Service::sick().await;
        let provost = setup.start().await;
        register(provost.api(), &[&service.remote], breaker()).await;
        let mut ids = submit(provost.api(), 20).await;
        until_states(provost.api(), &["open"]).await;
        at_rest(provost.api()).await;
        let made = service.remote.count();
        // Four failures open the breaker, and four more calls may have been sent before.
        assert!((4..=8).contains(&made), "{made}");
        ids.extend(submit(provost.api(), 5).await);
        let waiting = provost.task(ids.last().unwrap()).await;
        let blocked = &step(&waiting, "charge")["blocked_by"];
        assert_eq!(blocked["reason"], "breaker", "{blocked}");
        assert_eq!(blocked["agent"], "payments");
        assert!(blocked["until"].is_string(), "{blocked}");
        let message = blocked["message"].as_str().unwrap();
        let cause = "calls in 10m failed; the last one: the service responded 503";
        assert!(message.contains(cause), "{message}");
        let raised = alerts(&provost, "open").await;
        assert_eq!(raised.len(), 1, "{raised:#?}");
        assert_eq!(raised[0]["kind"], "breaker.open");
        let metric = format!(
            r#"provost_breaker_state{{agent="payments",endpoint="{}"}}"#,
            service.remote.url()
        );
        assert_eq!(provost.metric(&metric).await, 2.0);
        assert_eq!(service.remote.count(), made, "it was called while open");

        service.recover();
        operate(provost.api(), "reset").await;
        all_processed(provost.api(), &ids).await;
        assert_eq!(states(provost.api()).await, ["closed"]);
        assert!(alerts(&provost, "open").await.is_empty());
        assert_eq!(provost.metric(&metric).await, 0.0);
        for id in &ids {
            let task = provost.task(id).await;
            assert_eq!(step(&task, "charge")["failure_count"], 0, "{task:#}");
        }
    }
}

#[tokio::test]
async fn a_few_canaries_close_it_or_open_it_again() {
    for setup in setups().await {
        let (sick, gated) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(false)),
        );
        let (gate, canaries) = (Gate::closed(), Arc::new(AtomicUsize::new(0)));
        let shared = (sick.clone(), gated.clone(), gate.clone(), canaries.clone());
        // The response is chosen when the request comes.
        let remote = Remote::with(move |_| {
            let (sick, gated, gate, canaries) = &shared;
            let response = match sick.load(Ordering::SeqCst) {
                true => Act::status(503),
                false => Act::Ok(json!({})),
            };
            if !gated.load(Ordering::SeqCst) {
                return response;
            }
            canaries.fetch_add(1, Ordering::SeqCst);
            Act::Gated(gate.clone(), Box::new(response))
        })
        .await;
        let provost = setup.start().await;
        let mut soon = breaker();
        soon["open_for"] = json!("300ms");
        register(provost.api(), &[&remote], soon).await;
        let ids = submit(provost.api(), 12).await;
        until_states(provost.api(), &["open"]).await;
        gated.store(true, Ordering::SeqCst);
        let asked = || async { canaries.load(Ordering::SeqCst) };
        until(2, asked).await;
        assert_eq!(states(provost.api()).await, ["half_open"]);
        let task = provost.task(&ids[11]).await;
        assert_eq!(step(&task, "charge")["blocked_by"]["reason"], "breaker");
        // Both calls fail. One failure is enough, and the other call is not waited for.
        sick.store(false, Ordering::SeqCst);
        gate.let_through(1);
        until_states(provost.api(), &["open"]).await;
        let reason = agent(provost.api()).await["breakers"][0]["reason"].clone();
        let reason = reason.as_str().unwrap();
        assert!(
            reason.starts_with("it was tried again and failed: the service responded 503"),
            "{reason}"
        );
        until(4, asked).await;
        assert_eq!(states(provost.api()).await, ["half_open"]);
        assert_eq!(agent(provost.api()).await["in_flight"], 3);
        // The result of the remaining call of the first two no longer counts.
        gate.let_through(1);
        until(json!(2), || async {
            agent(provost.api()).await["in_flight"].clone()
        })
        .await;
        assert_eq!(states(provost.api()).await, ["half_open"]);
        gate.let_through(2);
        until_states(provost.api(), &["closed"]).await;
        gate.open();
        all_processed(provost.api(), &ids).await;
        assert!(alerts(&provost, "open").await.is_empty());
    }
}

#[tokio::test]
async fn only_the_sick_endpoint_is_left_out() {
    let provost = Provost::start().await;
    let (service, healthy) = (Service::sick().await, Remote::quick().await);
    register(provost.api(), &[&service.remote, &healthy], breaker()).await;
    submit_until_called(provost.api(), &service.remote, 4).await;
    until_states(provost.api(), &["open", "closed"]).await;
    let made = service.remote.count();
    assert!((4..=8).contains(&made), "{made}");
    let ids = submit(provost.api(), 20).await;
    all_processed(provost.api(), &ids).await;
    assert_eq!(service.remote.count(), made);
    // The one alert names the endpoint.
    let raised = alerts(&provost, "open").await;
    let message = raised[0]["message"].as_str().unwrap();
    assert!(message.contains(&service.remote.url()), "{message}");
}

#[tokio::test]
async fn its_alert_names_the_endpoints_that_are_open() {
    for setup in setups().await {
        let (one, two) = (Service::sick().await, Service::sick().await);
        two.recover();
        let provost = setup.start().await;
        register(provost.api(), &[&one.remote, &two.remote], breaker()).await;
        let said = || async {
            let open = alerts(&provost, "open").await;
            let messages = open.iter().filter_map(|alert| alert["message"].as_str());
            let message = messages.collect::<Vec<_>>().join("; ");
            let named = [&one, &two].map(|service| message.contains(&service.remote.url()));
            (open.len(), named)
        };
        // Four failures at an endpoint open its breaker.
        submit_until_called(provost.api(), &one.remote, 4).await;
        until((1, [true, false]), said).await;
        two.sick.store(true, Ordering::SeqCst);
        submit(provost.api(), 30).await;
        until((1, [true, true]), said).await;
        one.recover();
        two.recover();
        operate(provost.api(), "reset").await;
        until((0, [false, false]), said).await;
    }
}

#[tokio::test]
async fn what_kept_a_step_waiting_is_in_its_history_and_how_a_service_recovers_is_shown() {
    for setup in setups().await {
        // The service is sick, then well for two canaries, and then slow.
        let (left, gate) = (Arc::new(AtomicUsize::new(0)), Gate::closed());
        let (well, slow) = (left.clone(), gate.clone());
        let is_sick = Arc::new(AtomicBool::new(true));
        let sick = is_sick.clone();
        let remote = Remote::with(move |_| {
            if sick.load(Ordering::SeqCst) {
                return Act::status(503);
            }
            let one_less = |left: usize| left.checked_sub(1);
            match well.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
                Ok(_) => Act::Ok(json!({})),
                Err(_) => slow.then(json!({})),
            }
        });
        let remote = remote.await;
        let provost = setup.start().await;
        let mut breaker = breaker();
        breaker["open_for"] = json!("500ms");
        // The limit allows the canaries that may hang, and as many other calls.
        let spec = json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 12 }], "breaker": breaker,
            "retry": { "initial": "10ms", "max": "50ms" } });
        let put = provost.put("/v1/agents/payments", &spec).await;
        put.expect(201);
        let ids = submit(provost.api(), 24).await;
        until_states(provost.api(), &["open"]).await;
        left.store(2, Ordering::SeqCst);
        is_sick.store(false, Ordering::SeqCst);
        until_states(provost.api(), &["closed"]).await;
        let endpoint = || async { agent(provost.api()).await["endpoints"][0].clone() };
        let is_recovering = || async { endpoint().await["slow_start"].is_number() };
        until(true, is_recovering).await;
        let mut waiting = Value::Null;
        for id in &ids {
            let task = provost.task(id).await;
            let blocked = &step(&task, "charge")["blocked_by"];
            if blocked["reason"] == "capacity" {
                waiting = blocked.clone();
            }
        }
        let limit = &waiting["slow_start"];
        let growing = 2..12;
        assert!(
            growing.contains(&limit["limit"].as_u64().unwrap()),
            "{limit}"
        );
        assert_eq!(limit["most"], 12);
        gate.open();
        all_processed(provost.api(), &ids).await;
        let mut explained = 0;
        for id in &ids {
            let history = provost
                .get(&format!("/v1/tasks/{id}/history"))
                .await
                .expect(200);
            let events = history["items"].as_array().unwrap().iter();
            let claims = events.filter(|event| event["type"] == "step.claimed");
            let reasons = claims.filter_map(|claim| claim["reason"].as_str());
            explained += reasons
                .filter(|reason| reason.contains("its breaker was open: "))
                .count();
        }
        assert!(explained >= ids.len(), "{explained}");
        until(json!(null), || async {
            endpoint().await["slow_start"].clone()
        })
        .await;
    }
}

#[tokio::test]
async fn slow_calls_open_it_too() {
    let gate = Gate::closed();
    let slow = gate.clone();
    let remote = Remote::with(move |_| slow.then(json!({}))).await;
    let provost = Provost::start().await;
    let slow = json!({ "min_calls": 4, "window": "10m", "open_for": "1h", "slow_after": "1ms" });
    register(provost.api(), &[&remote], slow).await;
    submit(provost.api(), 4).await;
    let seen = remote.requests(4).await;
    let last = seen.iter().map(|seen| seen.at).max().unwrap();
    while last.elapsed() < std::time::Duration::from_millis(5) {
        tokio::task::yield_now().await;
    }
    gate.open();
    until_states(provost.api(), &["open"]).await;
    let reason = agent(provost.api()).await["breakers"][0]["reason"].clone();
    assert_eq!(reason, "4 of 4 calls in 10m took longer than 1ms");
}

#[tokio::test]
async fn it_stays_open_over_sigkill_and_refusals_and_429_are_no_reason() {
    for setup in setups().await {
        let service = Service::sick().await;
        let mut provost = setup.start().await;
        register(provost.api(), &[&service.remote], breaker()).await;
        let ids = submit(provost.api(), 20).await;
        until_states(provost.api(), &["open"]).await;
        at_rest(provost.api()).await;
        let made = service.remote.count();
        provost.kill().await;
        provost.restart().await;
        assert_eq!(states(provost.api()).await, ["open"]);
        let more = submit(provost.api(), 3).await;
        let waiting = provost.task(&more[0]).await;
        assert_eq!(step(&waiting, "charge")["blocked_by"]["reason"], "breaker");
        assert_eq!(service.remote.count(), made);
        service.recover();
        operate(provost.api(), "reset").await;
        all_processed(provost.api(), &ids).await;
        all_processed(provost.api(), &more).await;

        let refusing = Remote::script([Act::status(400)]).await;
        let endpoint = json!({ "endpoints": [{ "url": refusing.url() }], "breaker": breaker(),
            "retry": { "initial": "10ms", "max": "50ms" } });
        provost
            .put("/v1/agents/payments", &endpoint)
            .await
            .expect(200);
        for id in submit(provost.api(), 6).await {
            assert_eq!(provost.settled(&id).await["state"], "error");
        }
        assert_eq!(states(provost.api()).await, ["closed"]);
        let busy = Remote::script([Act::status(429)]).await;
        let endpoint = json!({ "endpoints": [{ "url": busy.url() }], "breaker": breaker(),
            "retry": { "initial": "10ms", "max": "50ms" } });
        provost
            .put("/v1/agents/payments", &endpoint)
            .await
            .expect(200);
        submit(provost.api(), 6).await;
        busy.requests(20).await;
        assert_eq!(states(provost.api()).await, ["closed"]);
    }
}

#[tokio::test]
async fn an_operator_decides_until_it_is_reset() {
    let service = Service::sick().await;
    let provost = Provost::start().await;
    let api = provost.api();
    let unprotected = json!({ "endpoints": [{ "url": service.remote.url() }] });
    api.put("/v1/agents/payments", &unprotected)
        .await
        .expect(201);
    let reset = json!({ "action": "reset" });
    let path = "/v1/agents/payments/breaker";
    api.post(path, &reset)
        .await
        .expect_problem(409, "no-breaker");
    api.post("/v1/agents/nobody/breaker", &reset)
        .await
        .expect_problem(404, "no-such-agent");
    assert!(agent(api).await.get("breakers").is_none());
    let protected = json!({ "endpoints": [{ "url": service.remote.url() }], "breaker": breaker(),
        "retry": { "initial": "1ms", "max": "2ms" } });
    api.put("/v1/agents/payments", &protected).await.expect(200);
    let elsewhere = json!({ "action": "open", "endpoint": "http://elsewhere" });
    assert_eq!(
        api.post(path, &elsewhere).await.expect_faults(),
        ["/endpoint"]
    );

    let closed = operate(api, "close").await;
    assert_eq!(closed["breakers"][0]["state"], "forced_closed");
    assert_eq!(closed["breakers"][0]["by"], "operator:anonymous");
    let ids = submit(api, 4).await;
    service.remote.requests(30).await;
    assert_eq!(states(api).await, ["forced_closed"]);
    let opened = operate(api, "open").await;
    assert_eq!(opened["breakers"][0]["state"], "forced_open");
    at_rest(api).await;
    let made = service.remote.count();
    let expected = json!({ "reason": "breaker", "agent": "payments", "until": null, "message": "as the test says" });
    until(expected, || async {
        step(&provost.task(&ids[0]).await, "charge")["blocked_by"].clone()
    })
    .await;
    service.recover();
    assert_eq!(service.remote.count(), made);
    operate(api, "reset").await;
    all_processed(api, &ids).await;
    // When an agent is deleted, its breakers and pauses are deleted with it.
    operate(api, "open").await;
    assert_eq!(alerts(&provost, "open").await.len(), 1);
    assert_eq!(api.delete("/v1/agents/payments").await.status, 204);
    assert!(alerts(&provost, "open").await.is_empty());
    api.put("/v1/agents/payments", &protected).await.expect(201);
    assert_eq!(states(api).await, ["closed"]);
}

#[tokio::test]
async fn what_one_instance_learns_holds_for_the_others_and_one_of_them_probes() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (mut one, two) = (start().await, start().await);
    let service = Service::sick().await;
    let mut soon = breaker();
    soon["open_for"] = json!("200ms");
    soon["canaries"] = json!(1);
    register(one.api(), &[&service.remote], breaker()).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    let mut ids = submit(one.api(), 20).await;
    until_states(two.api(), &["open"]).await;
    at_rest(one.api()).await;
    at_rest(two.api()).await;
    let made = service.remote.count();
    ids.extend(submit(two.api(), 5).await);
    let waiting = two.task(ids.last().unwrap()).await;
    assert_eq!(step(&waiting, "charge")["blocked_by"]["reason"], "breaker");
    assert_eq!(service.remote.count(), made, "the other one called it");
    assert_eq!(alerts(&two, "open").await.len(), 1);
    operate(two.api(), "open").await;
    until_states(one.api(), &["forced_open"]).await;
    one.kill().await;
    service.recover();
    operate(two.api(), "reset").await;
    all_processed(two.api(), &ids).await;
}

/// The instance that makes the canaries is killed during its canary, and another takes over.
#[tokio::test]
async fn another_instance_probes_when_the_first_is_killed() {
    let url = new_database().await;
    let start = |id: &str| {
        let setup = Provost::setup().database_url(&url);
        setup
            .set("INSTANCE__LEASE", "2s")
            .set("INSTANCE_ID", id)
            .start()
    };
    let (one, two) = (start("one").await, start("two").await);
    let (opened, canaries) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_opened, first) = (opened.clone(), canaries.clone());
    // The first canary gets no response.
    let remote = Remote::with(move |_| match is_opened.load(Ordering::SeqCst) {
        false => Act::status(503),
        true => match first.fetch_add(1, Ordering::SeqCst) {
            0 => Act::Hang,
            _ => Act::Ok(json!({})),
        },
    })
    .await;
    let soon = json!({ "min_calls": 4, "window": "10m", "open_for": "1s", "canaries": 1 });
    register(one.api(), &[&remote], soon).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    let ids = submit(one.api(), 10).await;
    until_states(two.api(), &["open"]).await;
    at_rest(one.api()).await;
    at_rest(two.api()).await;
    opened.store(true, Ordering::SeqCst);
    until_states(two.api(), &["half_open"]).await;
    let in_flight =
        async |instance: &Provost| agent(instance.api()).await["in_flight"].as_u64().unwrap();
    // The hanging canary is the only one, and stays in flight.
    until((1, 1), || async {
        let running = in_flight(&one).await + in_flight(&two).await;
        (running, canaries.load(Ordering::SeqCst))
    })
    .await;
    let (mut dying, left) = match in_flight(&one).await {
        1 => (one, two),
        _ => (two, one),
    };
    dying.kill().await;
    for id in &ids {
        let settled = tokio::time::timeout(PATIENCE * 2, left.settled(id)).await;
        assert_eq!(settled.unwrap()["state"], "processed");
    }
    assert_eq!(states(left.api()).await, ["closed"]);
}

/// A canary lasts until the complete-by of its step, which may be far in the future.
#[tokio::test]
async fn a_canary_without_a_response_does_not_keep_the_breaker_half_open() {
    let (opened, first) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let is_opened = opened.clone();
    let remote = Remote::with(move |_| match is_opened.load(Ordering::SeqCst) {
        false => Act::status(503),
        true => match first.fetch_add(1, Ordering::SeqCst) {
            0 => Act::Hang,
            _ => Act::Ok(json!({})),
        },
    })
    .await;
    let provost = Provost::start().await;
    let soon = json!({ "min_calls": 4, "window": "10m", "open_for": "500ms", "canaries": 1 });
    register(provost.api(), &[&remote], soon).await;
    let ids = submit(provost.api(), 10).await;
    until_states(provost.api(), &["open"]).await;
    at_rest(provost.api()).await;
    opened.store(true, Ordering::SeqCst);
    until_states(provost.api(), &["closed"]).await;
    let processed = async || {
        let tasks = provost.get("/v1/tasks?state=processed").await.expect(200);
        tasks["items"].as_array().unwrap().len()
    };
    until(ids.len() - 1, processed).await;
}

#[tokio::test]
async fn a_paused_agent_is_not_called_by_any_instance_and_its_steps_wait() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |_| held.then(json!({}))).await;
        let mut provost = setup.start().await;
        let api = provost.api();
        api.register("payments", &remote.url(), 4).await;
        let running = submit(api, 1).await;
        remote.requests(1).await;
        let pause = json!({ "reason": "the database is moved" });
        let paused = api
            .post("/v1/agents/payments/pause", &pause)
            .await
            .expect(200);
        assert_eq!(paused["pause"]["reason"], "the database is moved");
        assert_eq!(paused["pause"]["until"], Value::Null);
        let waiting = submit(api, 3).await;
        let task = provost.task(&waiting[0]).await;
        assert_eq!(
            step(&task, "charge")["blocked_by"],
            json!({ "reason": "agent_paused", "agent": "payments", "until": null, "message": "the database is moved" })
        );
        // The running calls end as usual.
        gate.open();
        all_processed(api, &running).await;
        provost.kill().await;
        provost.restart().await;
        let api = provost.api();
        assert_eq!(agent(api).await["pause"]["by"], "operator:anonymous");
        assert_eq!(
            provost
                .metric(r#"provost_agent_paused{agent="payments"}"#)
                .await,
            1.0
        );
        assert_eq!(remote.count(), 1);
        let resumed = api.command("/v1/agents/payments/resume").await.expect(200);
        assert!(resumed.get("pause").is_none());
        all_processed(api, &waiting).await;
        api.command("/v1/agents/payments/resume").await.expect(200);
        // The pause ends by itself.
        let pause = json!({ "for": "1s" });
        api.post("/v1/agents/payments/pause", &pause)
            .await
            .expect(200);
        let ids = submit(api, 3).await;
        all_processed(api, &ids).await;
        assert!(agent(api).await.get("pause").is_none());
        let wrong = json!({ "for": "1h", "until": "2100-01-01T00:00:00Z" });
        let faults = api.post("/v1/agents/payments/pause", &wrong).await;
        assert_eq!(faults.expect_faults(), ["/until"]);
        // The limit also applies to times that are beyond the largest possible time.
        for until in ["2200-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
            let pause = json!({ "until": until });
            let refused = api.post("/v1/agents/payments/pause", &pause).await;
            let refused = refused.expect_problem(422, "invalid");
            let message = refused["errors"][0]["message"].as_str().unwrap();
            let says = "must be at most 366 days from now";
            assert!(
                message.starts_with(says) && message.contains("until you resume it"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn every_instance_knows_of_a_pause() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (one, two) = (start().await, start().await);
    let remote = Remote::quick().await;
    one.api().register("payments", &remote.url(), 4).await;
    one.command("/v1/agents/payments/pause").await.expect(200);
    until(true, || async {
        let agent = two.get("/v1/agents/payments").await;
        agent.status == 200 && agent.expect(200)["pause"].is_object()
    })
    .await;
    let ids = submit(two.api(), 5).await;
    let task = one.task(&ids[0]).await;
    assert_eq!(
        step(&task, "charge")["blocked_by"]["reason"],
        "agent_paused"
    );
    assert_eq!(remote.count(), 0);
    two.command("/v1/agents/payments/resume").await.expect(200);
    all_processed(one.api(), &ids).await;
}

#[tokio::test]
async fn workers_of_a_paused_agent_get_nothing_until_it_is_resumed() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        let pull = json!({ "mode": "pull" });
        api.put("/v1/agents/payments", &pull).await.expect(201);
        api.command("/v1/agents/payments/pause").await.expect(200);
        let id = submit(api, 1).await.remove(0);
        let ask = |wait: &str| {
            let body = json!({ "worker": "w-1", "max": 1, "wait": wait });
            api.post("/v1/agents/payments/claim", &body)
        };
        assert_eq!(ask("0s").await.expect(200)["steps"], json!([]));
        let task = provost.task(&id).await;
        assert_eq!(
            step(&task, "charge")["blocked_by"]["reason"],
            "agent_paused"
        );
        let waiting = tokio::spawn(ask("60s").attempt());
        until(1.0, || {
            provost.metric(r#"provost_agent_waiting_workers{agent="payments"}"#)
        })
        .await;
        api.command("/v1/agents/payments/resume").await.expect(200);
        let fetched = waiting.await.unwrap().unwrap().expect(200);
        assert_eq!(fetched["steps"][0]["task"], id.as_str());
        let history = provost.history(&id).await;
        assert!(!kinds(&history).contains(&"step.released"), "{history:#?}");
    }
}

#[tokio::test]
async fn what_was_decided_about_an_endpoint_goes_with_it() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        let (gone, stays) = (Remote::quick().await, Remote::quick().await);
        let metric = |of: &Remote| {
            let url = of.url();
            format!(r#"provost_breaker_state{{agent="payments",endpoint="{url}"}}"#)
        };
        register(api, &[&gone, &stays], breaker()).await;
        let gone_only = json!({ "action": "open", "endpoint": gone.url() });
        let path = "/v1/agents/payments/breaker";
        api.post(path, &gone_only).await.expect(200);
        assert_eq!(alerts(&provost, "open").await.len(), 1);
        let endpoints = json!([{ "url": stays.url() }]);
        let protected = json!({ "endpoints": endpoints, "breaker": breaker() });
        api.put("/v1/agents/payments", &protected).await.expect(200);
        assert!(alerts(&provost, "open").await.is_empty());
        assert_eq!(provost.metric(&metric(&gone)).await, 0.0);

        operate(api, "open").await;
        assert_eq!(provost.metric(&metric(&stays)).await, 2.0);
        let unprotected = json!({ "endpoints": endpoints });
        api.put("/v1/agents/payments", &unprotected)
            .await
            .expect(200);
        assert!(alerts(&provost, "open").await.is_empty());
        assert_eq!(provost.metric(&metric(&stays)).await, 0.0);
        let ids = submit(api, 1).await;
        all_processed(api, &ids).await;

        api.put("/v1/agents/payments", &protected).await.expect(200);
        assert_eq!(states(api).await, ["closed"]);
        operate(api, "open").await;
        api.command("/v1/agents/payments/pause").await.expect(200);
        assert_eq!(api.delete("/v1/agents/payments").await.status, 204);
        assert_eq!(provost.metric(&metric(&stays)).await, 0.0);
        let paused = r#"provost_agent_paused{agent="payments"}"#;
        assert_eq!(provost.metric(paused).await, 0.0);
    }
}
