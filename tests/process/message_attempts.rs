//! The failed attempts of a message, with both databases.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use crate::harness::{Act, Remote, one_step, setups, until_messages};

#[tokio::test]
async fn a_message_has_its_failed_attempts_until_it_is_delivered() {
    for setup in setups().await {
        let setup = setup
            .set("COURIER__RETRY_INITIAL", "20ms")
            .set("COURIER__RETRY_MAX", "50ms")
            .set("COURIER__GIVE_UP_AFTER", "300ms");
        let provost = setup.start().await;
        let service = Remote::quick().await;
        let works = Arc::new(AtomicBool::new(false));
        let is_repaired = works.clone();
        let receiver = Remote::with(move |_| match is_repaired.load(Ordering::Relaxed) {
            true => Act::Ok(json!({})),
            false => Act::answer(503, &[], "come back at /v1/asks/secret-of-a-person later"),
        })
        .await;
        let mut task = one_step(&service.url(), "/charge");
        task["reply_to"] = json!({ "url": receiver.url() });
        provost.run(&task).await;
        let dead = until_messages(&provost, "dead", 1).await;
        let path = format!("/v1/messages/{}", dead[0]["id"].as_str().unwrap());
        assert!(dead[0].get("attempts").is_none(), "a list has none");
        let message = provost.get(&path).await.expect(200);
        let attempts = message["attempts"].as_array().unwrap();
        let tries = message["tries"].as_u64().unwrap();
        assert!(tries > 1, "{message:#}");
        let numbers: Vec<_> = attempts.iter().map(|tried| &tried["attempt"]).collect();
        let expected: Vec<Value> = (1..=tries).rev().take(20).map(Value::from).collect();
        assert_eq!(numbers, expected.iter().collect::<Vec<_>>());
        for tried in attempts {
            assert_eq!(tried["status"], 503);
            let reason = tried["reason"].as_str().unwrap();
            assert!(reason.contains("come back at"), "{reason}");
            assert!(!reason.contains("secret-of-a-person"), "{reason}");
            assert!(tried["ended_at"].as_str() >= tried["began_at"].as_str());
            assert!(tried["instance"].is_string());
        }
        assert_eq!(attempts[0]["next_at"], Value::Null, "the last one");
        assert!(
            attempts[1..]
                .iter()
                .all(|tried| tried["next_at"].is_string())
        );
        works.store(true, Ordering::Relaxed);
        provost
            .post(&format!("{path}/redeliver"), &json!({}))
            .await
            .expect(202);
        until_messages(&provost, "dead", 0).await;
        until_messages(&provost, "pending", 0).await;
        provost.get(&path).await.expect(404);
    }
}
