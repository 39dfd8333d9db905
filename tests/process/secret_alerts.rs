//! Unusable secrets: an operator gets one alert for each secret, which says where the secret cannot be used, and closes
//! by itself.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use crate::{
    harness::{Provost, Remote, alerts, new_database, setups, step, until},
    secrets::{SecretFiles, one_step_of, secret, spec},
};

const GAUGE: &str = "provost_secrets_unusable";

async fn open(provost: &Provost) -> Vec<Value> {
    alerts(provost, "open").await
}

/// Waits until the only open alert has a message with these words.
async fn until_open(provost: &Provost, words: &str) -> Value {
    until(true, || async {
        let open = open(provost).await;
        open.len() == 1 && open[0]["message"].as_str().unwrap().contains(words)
    })
    .await;
    open(provost).await.remove(0)
}

async fn until_closed(provost: &Provost) {
    until(0, || async { open(provost).await.len() }).await;
}

#[tokio::test]
async fn a_secret_that_cannot_be_used_has_one_alert_until_it_can() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let files = SecretFiles::new().name("token", &[remote.url()]);
        let provost = setup.config(&files.config).start().await;
        let bearer = json!({ "auth": { "bearer": secret("token") } });
        for agent in ["payments", "refunds"] {
            let path = format!("/v1/agents/{agent}");
            let put = provost.put(&path, &spec(&remote.url(), bearer.clone()));
            put.await.expect(201);
        }
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        let alert = until_open(&provost, "its file does not exist").await;
        assert_eq!(alert["kind"], "secret.unusable");
        assert_eq!(alert["receiver"], "secret:token");
        let message = alert["message"].as_str().unwrap();
        let end = "; calls of agents payments, refunds wait there";
        assert!(message.ends_with(end), "{message}");
        let instance = provost.get("/v1/instances").await.expect(200);
        let instance = instance["items"][0]["id"].as_str().unwrap().to_owned();
        assert!(
            message.contains(&format!("at instance {instance}: ")),
            "{message}"
        );
        assert!(
            !message.contains(files.path("").to_str().unwrap()),
            "{message}"
        );
        assert!(provost.metric(GAUGE).await > 0.0);
        // The file now exists, but others can read it: this is the same alert with another reason.
        files.put("token", "the-first-token\n");
        let readable = fs::Permissions::from_mode(0o444);
        fs::set_permissions(files.path("token"), readable).unwrap();
        let same = until_open(&provost, "mode 0444").await;
        assert_eq!(same["id"], alert["id"]);
        let private = fs::Permissions::from_mode(0o400);
        fs::set_permissions(files.path("token"), private).unwrap();
        let task = provost.settled(&id).await;
        assert_eq!(step(&task, "only")["failure_count"], 0);
        until_closed(&provost).await;
        assert_eq!(provost.metric(GAUGE).await, 0.0);
        assert_eq!(alerts(&provost, "closed").await.len(), 1);
        // The secret exists, but cannot be sent.
        files.put("token", "two\nlines-of-it");
        let alert = until_open(&provost, "contains a line break").await;
        assert_eq!(alert["receiver"], "secret:token");
    }
}

#[tokio::test]
async fn the_alert_says_which_instance_lacks_the_secret_and_goes_with_it() {
    let remote = Remote::quick().await;
    let hook = Remote::quick().await;
    let url = new_database().await;
    let webhook = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\nsecrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]\n",
        hook.url()
    );
    let there = SecretFiles::new().with("token", "the-token-of-payments", &[remote.url()]);
    let missing = SecretFiles::new().name("token", &[remote.url()]);
    let setup = |id: &str, files: &SecretFiles| {
        let setup = Provost::setup().database_url(&url).set("INSTANCE_ID", id);
        setup.config(&format!("{}{webhook}", files.config))
    };
    let with = setup("machine-1", &there).start().await;
    let mut without: Provost = setup("machine-2", &missing).start().await;
    let bearer = json!({ "auth": { "bearer": secret("token") } });
    with.put("/v1/agents/payments", &spec(&remote.url(), bearer))
        .await
        .expect(201);
    let alert = until_open(&with, "at instance machine-2: its file does not exist").await;
    for _ in 0..5 {
        let task = without.run(&one_step_of("payments", "/x")).await;
        assert_eq!(step(&task, "only")["failure_count"], 0);
    }
    // A restart with the same fault closes and raises nothing.
    without.kill().await;
    without.restart().await;
    let said = without.get("/v1/instances").await.expect(200);
    assert_eq!(said["items"].as_array().unwrap().len(), 2);
    without.kill().await;
    until_closed(&with).await;
    let closed = alerts(&with, "closed").await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["id"], alert["id"]);
    let told = hook.requests(2).await;
    let kinds: Vec<_> = told.iter().map(|seen| seen.body["type"].clone()).collect();
    assert_eq!(kinds, ["alert.raised", "alert.closed"]);
}
