//! Passwords with characters beyond ASCII: they work, and no message repeats them.

use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use crate::{
    harness::{Act, Postgres, Provost, Rabbit, Remote, step},
    secrets::{one_step_of, spec},
};

const PASSWORD: &str = "schl\u{fc}ssel-\u{1f511}-0123456789";
/// Parts of the password, plain or escaped, that would show in a text that repeats it.
const PARTS: [&str; 5] = ["\u{1f511}", "0123456789", "u{1f511}", "%9F%94", "ud83d"];

fn encoded() -> String {
    utf8_percent_encode(PASSWORD, NON_ALPHANUMERIC).to_string()
}

#[track_caller]
fn is_in_none_of(texts: &[String]) {
    for text in texts {
        for part in PARTS {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }
}

#[tokio::test]
async fn a_password_with_an_emoji_opens_a_database_a_broker_and_a_service() {
    let server = Postgres::start().await;
    server.add_role("emoji", PASSWORD).await;
    let rabbit = Rabbit::start().await;
    rabbit.control(&["add_user", "emoji", PASSWORD]).await;
    rabbit
        .control(&["set_permissions", "emoji", ".*", ".*", ".*"])
        .await;
    let client = rabbit.client().await;
    client.declare("charges").await;
    // The service repeats the password.
    let remote = Remote::with(|seen| {
        let pair = seen.header("authorization").strip_prefix("Basic ");
        let pair = pair.and_then(|pair| STANDARD.decode(pair).ok());
        let pair = String::from_utf8(pair.unwrap_or_default()).unwrap();
        Act::Ok(json!({ "is_known": pair == format!("shop:{PASSWORD}"), "echo": pair }))
    })
    .await;
    for password in [PASSWORD.to_owned(), encoded()] {
        let database = format!("postgres://emoji:{password}@{}/postgres", server.address());
        let broker = rabbit
            .url()
            .replace("guest:guest", &format!("emoji:{password}"));
        let secret = format!(
            "[[secrets]]\nname = \"shop\"\nenv = \"SHOP_PASSWORD\"\nurls = [{:?}]\n",
            remote.url()
        );
        let provost = Provost::setup()
            .config(&secret)
            .environment("SHOP_PASSWORD", PASSWORD)
            .database_url(&database)
            .set("BROKER__URL", &broker)
            .start()
            .await;
        let basic =
            json!({ "auth": { "basic": { "user": "shop", "password": { "secret": "shop" } } } });
        let put = provost.put("/v1/agents/shop", &spec(&remote.url(), basic));
        assert!(put.await.status < 300);
        let task = provost.run(&one_step_of("shop", "/")).await;
        assert_eq!(step(&task, "only")["output"]["is_known"], true, "{task:#}");

        let queue = json!({ "endpoints": [{ "url": "amqp://broker/charges" }] });
        let put = provost.put("/v1/agents/queue", &queue);
        assert!(put.await.status < 300);
        let published = provost.submit(&one_step_of("queue", "/")).await;
        assert_eq!(
            client.take("charges").await.headers["provost-task"],
            published
        );

        let history = provost.history(task["id"].as_str().unwrap()).await;
        let history = serde_json::to_string(&history).unwrap();
        is_in_none_of(&[task.to_string(), history, provost.log()]);
    }
}

#[tokio::test]
async fn a_wrong_password_with_an_emoji_is_not_repeated() {
    let server = Postgres::start().await;
    server.add_role("emoji", "another").await;
    for password in [PASSWORD.to_owned(), encoded()] {
        let database = format!("postgres://emoji:{password}@{}/postgres", server.address());
        let (code, said) = Provost::setup().database_url(&database).refused().await;
        assert_ne!(code, Some(0));
        assert!(said.contains("password authentication failed"), "{said}");
        is_in_none_of(&[said]);
    }
}
