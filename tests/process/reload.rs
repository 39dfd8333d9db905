//! SIGHUP: the settings that can be changed while it runs are read again, and nothing stops for it.

use serde_json::json;

use crate::harness::{
    Act, Provost, Remote, alerts, all_processed, one_step, step, submit_charges, until,
};

fn token(name: &str) -> String {
    format!(
        "[[tokens]]\nname = \"{name}\"\nrole = \"admin\"\ntoken = \"{name}-0123456789abcdef\"\n"
    )
}

async fn admits(provost: &Provost, name: &str) -> bool {
    let bearer = format!("Bearer {name}-0123456789abcdef");
    let answer = provost
        .get("/v1/tasks")
        .header("authorization", &bearer)
        .await;
    assert!([200, 401].contains(&answer.status), "{answer:?}");
    answer.status == 200
}

#[tokio::test]
async fn tokens_change_and_what_is_wrong_changes_nothing() {
    let mut provost = Provost::setup().config(&token("old")).start().await;
    assert!(admits(&provost, "old").await && !admits(&provost, "new").await);
    let more = format!("shutdown_grace = \"3s\"\n{}[limits]\nmax_steps = 7\n", "");
    provost.reload(&format!("{more}{}", token("new")));
    provost.says("take effect at the next start").await;
    assert!(!admits(&provost, "old").await && admits(&provost, "new").await);
    let log = provost.log();
    let waiting = log
        .lines()
        .find(|line| line.contains("at the next start"))
        .unwrap();
    assert!(
        waiting.contains("shutdown_grace, limits.max_steps"),
        "{waiting}"
    );
    // The settings that wait for the next start are not in force yet.
    let bearer = "Bearer new-0123456789abcdef";
    let settings = provost.get("/v1/settings").header("authorization", bearer);
    let settings = settings.await.expect(200);
    let value = |name: &str| {
        let items = settings["items"].as_array().unwrap();
        let setting = items.iter().find(|setting| setting["name"] == name);
        setting
            .unwrap_or_else(|| panic!("{name}: {settings}"))
            .clone()
    };
    let tokens = json!({ "name": "tokens", "is_default": false,
        "value": "[{ name = \"new\", role = \"admin\", sha256 = \"(hidden)\" }]" });
    assert_eq!(value("tokens"), tokens);
    let grace = json!({ "name": "shutdown_grace", "is_default": true, "value": "\"20s\"" });
    assert_eq!(value("shutdown_grace"), grace);

    provost.reload(
        "[[tokens]]\nname = \"new\"\nrole = \"king\"\ntoken = \"other-0123456789abcdef\"\n",
    );
    provost
        .says("the reloaded settings are invalid; the previous ones stay in force")
        .await;
    assert!(admits(&provost, "new").await);
    assert!(
        !provost.log().contains("0123456789abcdef"),
        "a token is in the log"
    );
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn an_alert_webhook_that_is_added_is_told_of_the_next_alert() {
    let remote = Remote::script([Act::answer(400, &[], "no")]).await;
    let webhook = Remote::quick().await;
    let provost = Provost::start().await;
    provost.reload(&format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/alerts\"\n",
        webhook.url()
    ));
    provost
        .says("reloaded tokens, secrets, receivers, alert webhooks")
        .await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(task["state"], "error");
    webhook.requests(1).await;
    assert_eq!(webhook.ledger()[0].path, "/alerts");
}

#[tokio::test]
async fn a_receiver_that_is_added_can_be_named() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["reply_to"] = json!({ "receiver": "shop" });
    provost.post("/v1/tasks", &submission).await.expect_faults();
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let url = remote.url();
    provost.reload(&format!(
        "[[receivers]]\nname = \"shop\"\nurl = \"{url}/replies\"\nsecrets = [\"{secret}\"]\n"
    ));
    provost
        .says("reloaded tokens, secrets, receivers, alert webhooks")
        .await;
    provost.run(&submission).await;
    remote.requests(2).await;
    assert!(remote.ledger().iter().any(|seen| seen.path == "/replies"));
    let recorded = || async {
        let changes = provost.get("/v1/changes?types=instance.settings").await;
        changes.expect(200)["items"].as_array().unwrap().clone()
    };
    until(1, || async { recorded().await.len() }).await;
    let recorded = &recorded().await[0];
    assert_eq!(recorded["differences"][0]["pointer"], "/receivers/0");
    assert!(
        !recorded.to_string().contains("C2FVsBQIhrscChlQIMV"),
        "{recorded}"
    );
}

#[tokio::test]
async fn a_file_that_is_gone_or_empty_opens_no_door() {
    let provost = Provost::setup().config(&token("old")).start().await;
    provost.reload("");
    provost.says("no token is left").await;
    assert_eq!(provost.get("/v1/tasks").await.status, 401);
    provost.reload_without_file();
    provost.says("provost.toml cannot be read").await;
    assert_eq!(provost.get("/v1/tasks").await.status, 401);
    assert!(admits(&provost, "old").await);
}

/// The breaker's state stays, whatever the file says about its agent, and a new rule applies from the next start on. At
/// that time the state of an endpoint that the file no longer names is removed.
#[tokio::test]
async fn the_breaker_of_a_configured_agent_outlives_reloads_and_goes_with_its_endpoint() {
    let sick = Remote::script([Act::status(503)]).await;
    let well = Remote::quick().await;
    let config = |remote: &Remote, open_for: &str, token: &str| {
        let url = remote.url();
        format!(
            "{token}[agents.payments]\nendpoints = [{{ url = \"{url}\" }}]\n\
             retry = {{ initial = \"10ms\", max = \"50ms\" }}\n\
             breaker = {{ min_calls = 4, window = \"10m\", open_for = \"{open_for}\" }}\n"
        )
    };
    let mut provost = Provost::setup()
        .config(&config(&sick, "1h", ""))
        .start()
        .await;
    let ids = submit_charges(provost.api(), 8).await;
    let breaker = async |provost: &Provost| {
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        agent["breakers"][0].clone()
    };
    until(json!("open"), async || {
        breaker(&provost).await["state"].clone()
    })
    .await;
    let in_flight = async || {
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        agent["in_flight"].clone()
    };
    until(json!(0), in_flight).await;
    let (made, opened) = (sick.count(), breaker(&provost).await);

    let receiver = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/alerts\"\n",
        well.url()
    );
    provost.reload(&config(&sick, "1h", &receiver));
    provost.says("reloaded tokens").await;
    provost.reload(&config(&well, "100ms", &receiver));
    provost.says("take effect at the next start").await;
    assert_eq!(breaker(&provost).await, opened);
    let more = submit_charges(provost.api(), 2).await;
    let task = provost.task(&more[0]).await;
    let blocked = &step(&task, "charge")["blocked_by"];
    assert_eq!(blocked["reason"], "breaker", "{blocked}");
    assert_eq!(blocked["until"], opened["until"]);
    assert_eq!(sick.count(), made, "it was called");
    assert_eq!(alerts(&provost, "open").await.len(), 1);

    // The breaker is first as in the first file, and then as in the last one.
    provost.kill().await;
    provost.restart().await;
    assert_eq!(breaker(&provost).await, opened);
    provost.kill().await;
    let last = config(&well, "1h", "");
    provost.restart_with(|setup| setup.config(&last)).await;
    all_processed(provost.api(), &ids).await;
    all_processed(provost.api(), &more).await;
    assert_eq!(breaker(&provost).await["state"], "closed");
    until(0, async || alerts(&provost, "open").await.len()).await;
    assert_eq!(sick.count(), made);
    assert_eq!(well.count(), ids.len() + more.len());
}
