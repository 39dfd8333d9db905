//! The choice of endpoints by their settings: those of the own zone come first, and drained ones get no calls.

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, Seen, all_processed, new_database, setups, submit_charges,
    until,
};

async fn register(api: &Api, endpoints: Value) {
    let spec = json!({ "endpoints": endpoints, "retry": { "initial": "10ms", "max": "50ms" } });
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

/// Returns what is left at the first endpoint.
async fn left(api: &Api) -> Value {
    let agent = api.get("/v1/agents/payments").await.expect(200);
    agent["endpoints"][0]["left"].clone()
}

fn calls_left(calls: u32) -> Value {
    json!({ "calls": calls, "unconfirmed": [], "operations": 0, "is_at_least": false })
}

#[tokio::test]
async fn a_drained_endpoint_ends_its_calls_and_gets_no_others() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let old = Remote::with(move |_| held.then(json!({}))).await;
        let new = Remote::quick().await;
        let mut provost = setup.start().await;
        let api = provost.api();
        register(api, json!([{ "url": old.url() }])).await;
        let running = submit_charges(api, 3).await;
        old.requests(3).await;
        let drained = json!([{ "url": old.url(), "drain": true }, { "url": new.url() }]);
        register(api, drained.clone()).await;
        let agent = api.get("/v1/agents/payments").await.expect(200);
        assert_eq!(agent["endpoints"][0]["state"], "draining");
        assert_eq!(agent["endpoints"][0]["in_flight"], 3);
        assert_eq!(agent["endpoints"][1]["state"], "healthy");
        assert!(agent["endpoints"][1].get("left").is_none());
        until(calls_left(3), || left(api)).await;
        let ids = submit_charges(api, 20).await;
        all_processed(api, &ids).await;
        assert_eq!(old.count(), 3, "it got new work");
        gate.open();
        all_processed(api, &running).await;
        until(calls_left(0), || left(api)).await;
        provost.kill().await;
        provost.restart().await;
        let api = provost.api();
        let ids = submit_charges(api, 5).await;
        all_processed(api, &ids).await;
        assert_eq!(old.count(), 3, "it got new work after a restart");
        let all = json!([{ "url": old.url(), "drain": true }]);
        let spec = json!({ "endpoints": all });
        let put = api.put("/v1/agents/payments", &spec).await;
        assert_eq!(put.expect_faults(), ["/endpoints"]);
        register(api, json!([{ "url": old.url() }])).await;
        let ids = submit_charges(api, 5).await;
        all_processed(api, &ids).await;
        assert_eq!(old.count(), 8);
    }
}

/// Operations count until they have ended, also while all instances that polled them are down.
#[tokio::test]
async fn operations_at_a_drained_endpoint_are_polled_there_and_are_left_until_they_end() {
    for setup in setups().await {
        let (done, is_done) = tokio::sync::watch::channel(false);
        let (hold, is_held) = tokio::sync::watch::channel(false);
        let (gate, polled) = (Gate::closed(), json!({ "status": "running" }));
        let held = gate.clone();
        let operates = move |seen: &Seen| match &*seen.method {
            "POST" => {
                let address = format!("/jobs/{}", seen.header("provost-task"));
                Act::answer(202, &[("location", &address)], "{}")
            }
            _ if *is_done.borrow() => Act::Ok(json!({ "status": "succeeded" })),
            _ if *is_held.borrow() => held.then(polled.clone()),
            _ => Act::Ok(polled.clone()),
        };
        let old = Remote::with(operates.clone()).await;
        let new = Remote::with(operates).await;
        let mut provost = setup.start().await;
        let api = provost.api();
        register(api, json!([{ "url": old.url() }])).await;
        let submit = async |api: &Api, every: &str| {
            let until = "response.body.status == 'succeeded'";
            let step = json!({ "name": "charge", "agent": "payments", "complete_within": "10m",
                "reply": { "poll": { "until": until, "every": every } } });
            api.submit(&json!({ "steps": [step] })).await
        };
        // An operation counts once, however often it is polled.
        let mut ids = vec![submit(api, "1s").await, submit(api, "5s").await];
        old.requests(3).await;
        let drained = json!([{ "url": old.url(), "drain": true }, { "url": new.url() }]);
        register(api, drained).await;
        // Operations at another endpoint do not count.
        ids.push(submit(api, "1s").await);
        new.requests(2).await;
        let operations = |count: u32| json!({ "calls": 0, "unconfirmed": [], "operations": count, "is_at_least": false });
        until(operations(2), || left(api)).await;
        provost.kill().await;
        provost.restart().await;
        let api = provost.api();
        until(operations(2), || left(api)).await;
        let (polls, begun) = (old.count(), new.count());
        old.requests(polls + 1).await;
        // Operations that are being polled at this moment count too.
        hold.send(true).unwrap();
        let polls = old.count();
        old.requests(polls + 1).await;
        assert_eq!(left(api).await["operations"], 2);
        gate.open();
        done.send(true).unwrap();
        assert_eq!(api.settled(&ids[0]).await["state"], "processed");
        all_processed(api, &ids).await;
        until(operations(0), || left(api)).await;
        let ledger = [old.ledger(), new.ledger()].map(|ledger| {
            let posted = ledger.iter().filter(|seen| seen.method == "POST");
            posted.count()
        });
        assert_eq!(ledger, [2, 1]);
        assert!(new.count() > begun);
    }
}

#[tokio::test]
async fn all_instances_say_how_many_calls_they_have_left() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (one, mut two) = (start().await, start().await);
    let gate = Gate::closed();
    let held = gate.clone();
    let old = Remote::with(move |_| held.then(json!({}))).await;
    let new = Remote::quick().await;
    register(one.api(), json!([{ "url": old.url(), "max_in_flight": 2 }])).await;
    until(200, async || two.get("/v1/agents/payments").await.status).await;
    let mut ids = submit_charges(one.api(), 2).await;
    ids.extend(submit_charges(two.api(), 2).await);
    old.requests(4).await;
    let drained = json!([{ "url": old.url(), "drain": true }, { "url": new.url() }]);
    register(one.api(), drained).await;
    for instance in [&one, &two] {
        until(calls_left(4), || left(instance.api())).await;
    }
    two.kill().await;
    gate.open();
    all_processed(one.api(), &ids).await;
    // The counts of the lost instance apply until its lease expires.
    until(calls_left(0), || left(one.api())).await;
}

#[tokio::test]
async fn endpoints_of_the_own_zone_are_called_while_they_have_room_and_work() {
    let gate = Gate::closed();
    let held = gate.clone();
    let near = Remote::with(move |_| held.then(json!({}))).await;
    let far = Remote::quick().await;
    let provost = Provost::setup().set("INSTANCE__ZONE", "west").start().await;
    let api = provost.api();
    let endpoints = json!([{ "url": far.url(), "zone": "east" }, { "url": near.url(), "zone": "west", "max_in_flight": 2 }]);
    register(api, endpoints).await;
    let ids = submit_charges(api, 2).await;
    near.requests(2).await;
    assert_eq!(far.count(), 0);
    let more = submit_charges(api, 10).await;
    all_processed(api, &more).await;
    assert_eq!((near.count(), far.count()), (2, 10), "the near one is full");
    gate.open();
    all_processed(api, &ids).await;
    for _ in 0..10 {
        let ids = submit_charges(api, 1).await;
        all_processed(api, &ids).await;
    }
    assert_eq!((near.count(), far.count()), (12, 10));

    // A failing endpoint of the own zone has no advantage.
    let failing = Remote::script([Act::status(503)]).await;
    let endpoints = json!([{ "url": far.url() }, { "url": failing.url(), "zone": "west" }]);
    register(api, endpoints).await;
    let ids = submit_charges(api, 20).await;
    all_processed(api, &ids).await;
    assert!(far.count() >= 30, "{}", far.count());
    let spec = json!({ "endpoints": [{ "url": far.url(), "zone": "the west" }] });
    let put = api.put("/v1/agents/payments", &spec).await;
    assert_eq!(put.expect_faults(), ["/endpoints/0/zone"]);
}

#[tokio::test]
async fn an_endpoint_that_is_given_twice_is_refused_however_it_is_written() {
    let provost = Provost::start().await;
    let put = |endpoints: Value| {
        let spec = json!({ "endpoints": endpoints });
        provost.put("/v1/agents/payments", &spec)
    };
    let endpoints = json!([{ "url": "http://Pay:80/v2/" }, { "url": "http://pay:81/v2" },
        { "url": "http://pay/v2", "zone": "west" }, { "url": "http://pay/v3" }]);
    let refused = put(endpoints).await.expect_problem(422, "invalid");
    let faults = refused["errors"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{faults:#?}");
    assert_eq!(faults[0]["pointer"], "/endpoints/2/url");
    let message = faults[0]["message"].as_str().unwrap();
    assert!(
        message.contains("/endpoints/0/url") && message.contains("remove"),
        "{message}"
    );
    let queues = json!([{ "url": "amqp://broker/a" }, { "url": "amqp://broker/b" }]);
    put(queues).await.expect(201);
    let queues = json!([{ "url": "amqp://broker/a" }, { "url": "amqp://broker/a" }]);
    assert_eq!(put(queues).await.expect_faults(), ["/endpoints/1/url"]);
}
