//! The addresses that may be called: for steps, registered agents, replies and webhooks alike.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Provost, Remote, Setup, one_step, step, until},
};

/// Returns a setup in which private addresses may not be called, as is usual where the public can reach the service.
/// `[calls]` is the last table.
fn closed(more: &str) -> Setup {
    Provost::setup()
        .set("COURIER__GIVE_UP_AFTER", "0s")
        .set("COURIER__RETRY_INITIAL", "20ms")
        .config(&format!(
            "[calls]\nallow_private_addresses = false\n{more}\n"
        ))
}

fn by_name(remote: &Remote) -> String {
    remote.url().replace("127.0.0.1", "localhost")
}

fn port(url: &str) -> &str {
    url.rsplit(':').next().unwrap()
}

/// Returns the fault of a step that may not make its call.
async fn refused(provost: &Provost, url: &str) -> String {
    let task = provost.run(&one_step(url, "/work")).await;
    let fault = &step(&task, "only")["error"];
    assert_eq!(fault["kind"], "permanent", "{url}: {task:#}");
    fault["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn special_addresses_are_refused_and_the_fault_names_what_would_allow_them() {
    let provost = closed("").start().await;
    let mut steps = Vec::new();
    for address in [
        "10.0.0.1",
        "127.0.0.1",
        "192.88.99.1",
        "192.0.2.1",
        "198.18.0.1",
        "198.19.255.254",
        "198.51.100.1",
        "203.0.113.1",
        "0x0a000001",
        "[::ffff:10.0.0.1]",
        "[::ffff:0:10.0.0.1]",
        "[::ffff:0:8.8.8.8]",
        "[64:ff9b::10.0.0.1]",
        "[64:ff9b:1::808:808]",
        "[100::1]",
        "[2001::1]",
        "[2001:db8::1]",
        "[2002:808:808::1]",
        "[3fff::1]",
        "[5f00::1]",
    ] {
        steps.push(json!({
            "name": format!("s{}", steps.len()),
            "url": format!("http://{address}:9"),
            "after": [],
        }));
    }
    let task = provost.run(&json!({ "steps": steps })).await;
    for (asked, step) in steps.iter().zip(task["steps"].as_array().unwrap()) {
        let message = step["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(step["error"]["kind"], "permanent", "{asked} {step:#}");
        assert!(message.contains("`calls.allow`"), "{asked} {message}");
    }
}

#[tokio::test]
async fn the_allow_list_opens_what_it_names_for_steps_agents_replies_and_webhooks() {
    let (service, other) = (Remote::quick().await, Remote::quick().await);
    let allow = format!(
        "allow = [\"localhost:{}\"]\n[courier]\nallow_unsigned = true\n\
         [[alert_webhooks]]\nname = \"chat\"\nurl = \"{}/chat\"\n\
         [[alert_webhooks]]\nname = \"closed\"\nurl = \"{}/chat\"",
        port(&service.url()),
        by_name(&service),
        by_name(&other),
    );
    let provost = closed(&allow).start().await;
    provost.register("open", &by_name(&service), 4).await;
    provost.register("shut", &by_name(&other), 4).await;

    let mut submission = json!({ "steps": [
        { "name": "url", "url": by_name(&service), "request": { "path": "/url" } },
        { "name": "agent", "agent": "open", "request": { "path": "/agent" } },
    ]});
    submission["reply_to"] = json!({ "url": format!("{}/reply", by_name(&service)) });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    service.paths("/reply", 1).await;

    // The URLs have another port of the same host, or another name of the same address.
    for url in [by_name(&other), service.url()] {
        let message = refused(&provost, &url).await;
        assert!(message.contains("`calls.allow`"), "{message}");
    }
    let shut = json!({ "steps": [{ "name": "only", "agent": "shut" }] });
    let task = provost.run(&shut).await;
    let message = step(&task, "only")["error"]["message"].as_str().unwrap();
    assert!(message.contains("`calls.allow`"), "{message}");
    // These tasks are in error, and both webhooks should get the alerts.
    service.paths("/chat", 1).await;

    let mut submission = one_step(&by_name(&service), "/work");
    submission["reply_to"] = json!({ "url": format!("{}/reply", by_name(&other)) });
    provost.run(&submission).await;
    for message in dead_letters_of(&provost, 2).await {
        let reason = message["error"].as_str().unwrap_or_default();
        assert!(reason.contains("`calls.allow`"), "{message:#}");
    }
    assert_eq!(other.count(), 0, "it was called all the same");
}

/// Returns the dead letters, once there are some for this number of receivers.
async fn dead_letters_of(provost: &Provost, receivers: usize) -> Vec<Value> {
    let dead = || async {
        let page = provost.get("/v1/messages?state=dead&limit=500").await;
        page.expect(200)["items"].as_array().unwrap().clone()
    };
    until(receivers, || async {
        let dead = dead().await;
        let names = dead.iter().map(|message| message["receiver"].to_string());
        names.collect::<BTreeSet<_>>().len()
    })
    .await;
    dead().await
}

#[tokio::test]
async fn the_service_itself_its_database_and_metadata_are_never_called() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let database: url::Url = url.parse().unwrap();
    let database = format!("http://localhost:{}", database.port().unwrap());
    let provost = Provost::setup()
        .database_url(&url)
        .config("[calls]\nallow_private_addresses = true\nallow = [\"0.0.0.0/0\", \"::/0\", \"localhost\"]\n")
        .start()
        .await;
    let own = format!("http://{}", provost.address());
    let own_by_name = own.replace("127.0.0.1", "localhost");
    for (url, says) in [
        (own.as_str(), "own listener"),
        (&own_by_name, "own listener"),
        (&own.replace("127.0.0.1", "0.0.0.0"), "own listener"),
        (
            &own.replace("127.0.0.1", "[::ffff:127.0.0.1]"),
            "own listener",
        ),
        (&database, "own database"),
        (&database.replace("localhost", "127.0.0.1"), "own database"),
        ("http://169.254.169.254", "never called"),
        ("http://[fd00:ec2::254]", "never called"),
        ("http://100.100.100.200", "never called"),
        ("http://[::ffff:a9fe:a9fe]", "never called"),
        ("http://[64:ff9b::a9fe:a9fe]", "never called"),
        ("http://[fe80::1]", "never called"),
    ] {
        let message = refused(&provost, url).await;
        assert!(message.contains(says), "{url}: {message}");
    }
    let remote = Remote::quick().await;
    let task = provost.run(&one_step(&by_name(&remote), "/work")).await;
    assert_eq!(task["state"], "processed", "{task:#}");
}

#[tokio::test]
async fn a_malformed_entry_of_the_allow_list_stops_the_start_with_what_was_meant() {
    for (entry, says) in [
        (
            "\"10.0.0.5/8\"",
            "did you mean the network \\\"10.0.0.0/8\\\"",
        ),
        (
            "\"http://payments:8080\"",
            "did you mean \\\"payments:8080\\\"",
        ),
        ("\"*svc.example\"", "did you mean \\\"*.svc.example\\\""),
        ("\"169.254.169.254\"", "no setting allows"),
        ("7", "quotation marks"),
    ] {
        let setup =
            Provost::setup().config(&format!("[calls]\nallow = [\"10.0.0.0/8\", {entry}]\n"));
        let (code, said) = setup.refused().await;
        assert_eq!(code, Some(2), "{said}");
        let says = says.replace("\\\"", "\"");
        assert!(
            said.contains("calls.allow") && said.contains(&says),
            "{said}"
        );
    }
}
