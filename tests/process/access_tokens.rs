//! OAuth 2.0 with client credentials: one token for many calls, fetched when it is needed, and never recorded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    harness::{Act, Provost, Remote, step},
    secrets::{SecretFiles, one_step_of, secret, spec},
};

const SECRET: &str = "the client/secret+7";

/// Returns a token endpoint that issues token-number-1, token-number-2 and so on, each valid for this number of
/// seconds.
async fn token_endpoint(seconds: u64) -> Remote {
    let count = AtomicUsize::new(0);
    Remote::with(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        Act::Ok(json!({ "access_token": format!("token-number-{number}"), "token_type": "Bearer", "expires_in": seconds }))
    })
    .await
}

fn oauth(login: &Remote, more: Value) -> Value {
    let mut oauth = json!({
        "token_url": format!("{}/oauth2/token", login.url()), "client_id": "provost", "client_secret": secret("client"),
    });
    oauth
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "auth": { "oauth2": oauth } })
}

async fn start(login: &Remote, service: &Remote, more: Value) -> (Provost, SecretFiles) {
    let files = SecretFiles::new().with("client", SECRET, &[login.url(), service.url()]);
    let setup = Provost::setup()
        .config(&files.config)
        .argument("--log=trace");
    let provost = setup.start().await;
    let put = provost.put(
        "/v1/agents/payments",
        &spec(&service.url(), oauth(login, more)),
    );
    put.await.expect(201);
    (provost, files)
}

fn tokens(service: &Remote) -> Vec<String> {
    let ledger = service.ledger();
    let tokens = ledger.iter().map(|seen| {
        seen.header("authorization")
            .replace("Bearer token-number-", "")
    });
    tokens.collect()
}

#[tokio::test]
async fn one_token_is_fetched_for_many_calls_and_recorded_nowhere() {
    let login = Remote::with(|_| {
        Act::After(
            Duration::from_millis(300),
            json!({ "access_token": "token-number-1", "expires_in": "3600" }),
        )
    })
    .await;
    let service = Remote::with(|seen| Act::Ok(json!({ "echo": seen.headers }))).await;
    let more = json!({ "scope": "pay write", "audience": "https://payments" });
    let (provost, _files) = start(&login, &service, more).await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(provost.submit(&one_step_of("payments", "/x")).await);
    }
    for id in &ids {
        let task = provost.settled(id).await;
        assert_eq!(
            step(&task, "only")["output"]["echo"]["authorization"],
            "Bearer ***"
        );
        assert!(!task.to_string().contains("token-number"), "{task:#}");
    }
    assert_eq!(tokens(&service), ["1"; 10]);
    let ledger = login.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0].path, "/oauth2/token");
    let pair = STANDARD.encode("provost:the+client%2Fsecret%2B7");
    assert_eq!(ledger[0].header("authorization"), format!("Basic {pair}"));
    assert_eq!(
        ledger[0].raw,
        "grant_type=client_credentials&scope=pay+write&audience=https%3A%2F%2Fpayments"
    );
    let log = provost.log();
    for canary in ["token-number", SECRET, &pair] {
        assert!(!log.contains(canary), "{canary} is in the log");
    }
}

#[tokio::test]
async fn a_token_that_the_service_refuses_is_replaced_once() {
    let login = token_endpoint(3600).await;
    // The service refuses the first token as revoked, and refuses one path for every token.
    let service = Remote::with(|seen| match (&*seen.path, seen.header("authorization")) {
        ("/forbidden", _) | (_, "Bearer token-number-1") => {
            Act::answer(401, &[], seen.header("authorization"))
        }
        _ => Act::Ok(json!(1)),
    })
    .await;
    let (provost, _files) =
        start(&login, &service, json!({ "method": "client_secret_post" })).await;
    let task = provost.run(&one_step_of("payments", "/x")).await;
    assert_eq!(
        (&task["state"], &step(&task, "only")["failure_count"]),
        (&json!("processed"), &json!(0))
    );
    assert_eq!(tokens(&service), ["1", "2"]);
    let form = &login.ledger()[0];
    assert!(!form.headers.contains_key("authorization"));
    assert_eq!(
        form.raw,
        "grant_type=client_credentials&client_id=provost&client_secret=the+client%2Fsecret%2B7"
    );

    // For every token a 401 is handled as from any other service.
    let task = provost.run(&one_step_of("payments", "/forbidden")).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(
        (&error["kind"], &error["status"]),
        (&json!("permanent"), &json!(401)),
        "{error}"
    );
    assert_eq!(error["body"], "Bearer ***");
    assert_eq!((tokens(&service).len(), login.count()), (3, 2));
}

#[tokio::test]
async fn a_token_that_expires_is_replaced() {
    let login = token_endpoint(1).await;
    let service = Remote::quick().await;
    let (provost, _files) = start(&login, &service, json!({})).await;
    let began = std::time::Instant::now();
    while login.count() < 3 && began.elapsed() < crate::harness::PATIENCE {
        provost.run(&one_step_of("payments", "/x")).await;
    }
    assert!(tokens(&service).contains(&"3".to_owned()));
}

#[tokio::test]
async fn while_there_is_no_token_the_service_is_not_called_and_the_token_endpoint_is_spared() {
    let down = Arc::new(AtomicUsize::new(0));
    let asked = down.clone();
    let login = Remote::with(move |seen| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Act::answer(
            400,
            &[],
            &format!(
                "{{\"error\":\"invalid_client\",\"got\":\"{}\"}}",
                seen.header("authorization")
            ),
        ),
        1 => Act::answer(200, &[], "no JSON"),
        2 => Act::Ok(json!({ "access_token": "a\nb" })),
        _ => Act::Ok(json!({ "access_token": "token-number-1", "token_type": "bearer" })),
    })
    .await;
    let service = Remote::quick().await;
    let (provost, _files) = start(&login, &service, json!({})).await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(provost.submit(&one_step_of("payments", "/x")).await);
    }
    login.requests(1).await;
    for id in &ids {
        let task = provost.settled(id).await;
        assert_eq!(
            (&task["state"], &step(&task, "only")["failure_count"]),
            (&json!("processed"), &json!(0))
        );
    }
    // At most one token is fetched in a second, however many calls there are.
    assert_eq!(login.count(), 4);
    assert_eq!(tokens(&service), ["1"; 10]);
    let log = provost.log();
    assert!(
        log.contains("it responded 400")
            && log.contains("not JSON")
            && log.contains("cannot be sent")
    );
    let pair = STANDARD.encode("provost:the+client%2Fsecret%2B7");
    assert!(!log.contains(&pair), "the client secret is in the log");
}

#[tokio::test]
async fn the_token_endpoint_obeys_the_rules_for_addresses() {
    let service = Remote::quick().await;
    let files = SecretFiles::new().with(
        "client",
        SECRET,
        &["http://169.254.169.254".to_owned(), service.url()],
    );
    let provost = Provost::setup().config(&files.config).start().await;
    let auth = json!({ "auth": { "oauth2": { "token_url": "http://169.254.169.254/token", "client_id": "provost",
        "client_secret": secret("client") } } });
    provost
        .put("/v1/agents/payments", &spec(&service.url(), auth))
        .await
        .expect(201);
    let id = provost.submit(&one_step_of("payments", "/x")).await;
    provost.says("which is never called").await;
    assert_eq!(service.count(), 0);
    let _ = id;
}

#[tokio::test]
async fn nobody_has_a_token_of_another_client_sent_to_them() {
    let (login, evil) = (token_endpoint(60).await, Remote::quick().await);
    let files = SecretFiles::new().with("client", SECRET, &[login.url()]);
    let provost = Provost::setup().config(&files.config).start().await;
    let put = provost.put(
        "/v1/agents/mine",
        &spec(&evil.url(), oauth(&login, json!({}))),
    );
    assert_eq!(
        put.await.expect_faults(),
        ["/auth/oauth2/client_secret/secret"]
    );
    let put = provost.put(
        "/v1/agents/mine",
        &spec(&login.url(), oauth(&evil, json!({}))),
    );
    assert_eq!(
        put.await.expect_faults(),
        ["/auth/oauth2/client_secret/secret"]
    );
    assert_eq!((login.count(), evil.count()), (0, 0));
}

#[tokio::test]
async fn a_token_endpoint_that_is_down_opens_no_breaker_of_the_service() {
    let count = AtomicUsize::new(0);
    let login = Remote::with(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Act::status(503),
        _ => Act::Ok(json!({ "access_token": "token-number-1" })),
    })
    .await;
    let service = Remote::quick().await;
    let (provost, _files) = start(&login, &service, json!({})).await;
    let mut added = oauth(&login, json!({}));
    added["breaker"] = json!({ "min_calls": 2, "open_for": "1h" });
    let put = provost.put("/v1/agents/payments", &spec(&service.url(), added));
    put.await.expect(200);
    let task = provost.run(&one_step_of("payments", "/x")).await;
    assert_eq!(task["state"], "processed", "{task}");
    assert_eq!(login.count(), 3);
    let agent = provost.get("/v1/agents/payments").await.expect(200);
    assert_eq!(agent["breakers"][0]["state"], "closed", "{agent}");
}
