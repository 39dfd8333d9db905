//! SIGHUP: what can be changed while it runs is read again, and nothing ends for it.

use serde_json::json;

use crate::harness::{Act, Provost, Remote, one_step};

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
