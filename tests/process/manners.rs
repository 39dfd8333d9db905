//! Requests that no well-behaved program makes, byte by byte: for another host, from another site, and malformed.

use reqwest::Client;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::harness::{PATIENCE, Provost, Remote, one_step};

/// Sends these bytes on a connection of their own. Returns the status, and the body if it is JSON.
async fn send(provost: &Provost, request: &str) -> (u16, Value) {
    let answer = exchange(provost, request).await;
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status = status.unwrap_or_else(|| panic!("no status in {answer:?}"));
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// Sends these bytes, and returns the whole response.
async fn exchange(provost: &Provost, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(provost.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    };
    timeout(PATIENCE, exchange).await.expect("no answer")
}

/// Sends a request with these lines after its first.
async fn ask(provost: &Provost, first: &str, headers: &[&str]) -> (u16, Value) {
    send(provost, &request(first, headers)).await
}

async fn raw(provost: &Provost, first: &str, headers: &[&str]) -> String {
    exchange(provost, &request(first, headers)).await
}

fn request(first: &str, headers: &[&str]) -> String {
    let mut request = format!("{first}\r\nconnection: close\r\n");
    for header in headers {
        request.push_str(&format!("{header}\r\n"));
    }
    request.push_str("\r\n");
    request
}

#[track_caller]
fn is_problem(answer: &(u16, Value), status: u16, slug: &str) {
    assert_eq!(answer.0, status, "{answer:?}");
    assert_eq!(answer.1["type"], format!("/problems/{slug}"), "{answer:?}");
    assert_eq!(answer.1["status"], status, "{answer:?}");
    assert!(answer.1["request_id"].is_string(), "{answer:?}");
}

const LIST: &str = "GET /v1/tasks HTTP/1.1";
const SUBMIT: &str = "POST /v1/tasks HTTP/1.1";

#[tokio::test]
async fn a_request_names_exactly_one_host_with_tokens_and_without() {
    let token = "root:admin:root-secret-0123456789";
    let open = Provost::start().await;
    let closed = Provost::setup().set("TOKENS", token).start().await;
    for provost in [&open, &closed] {
        let bearer = "authorization: Bearer root-secret-0123456789";
        for hosts in [
            &[][..],
            &["host: localhost", "host: localhost"],
            &["host: localhost", "host: evil.example"],
            &["host:"],
            &["host: local host"],
        ] {
            let headers = [hosts, &[bearer]].concat();
            let answer = ask(provost, LIST, &headers).await;
            is_problem(&answer, 400, "invalid-query");
        }
        let answer = ask(provost, LIST, &["host: localhost", bearer]).await;
        assert_eq!(answer.0, 200, "{answer:?}");
        let absolute = "GET http://localhost/v1/tasks HTTP/1.1";
        let answer = ask(provost, absolute, &["host: evil.example", bearer]).await;
        assert_eq!(answer.0, 200, "{answer:?}");
        let answer = ask(provost, "GET /livez HTTP/1.0", &[]).await;
        assert_eq!(answer.0, 200, "{answer:?}");
    }
    // The token identifies the caller, whatever host the request names.
    let headers = [
        "host: provost.example",
        "authorization: Bearer root-secret-0123456789",
    ];
    assert_eq!(ask(&closed, LIST, &headers).await.0, 200);
}

#[tokio::test]
async fn without_tokens_a_name_that_was_made_to_lead_here_reaches_nothing() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let address: std::net::SocketAddr = provost.address().parse().unwrap();
    for client in [Client::builder(), Client::builder().http2_prior_knowledge()] {
        let client = client
            .resolve("evil.example", address)
            .resolve("provost.localhost", address)
            .build()
            .unwrap();
        let url = |host| format!("http://{host}:{}/v1/tasks", address.port());
        for host in [
            "evil.example",
            "provost.localhost",
            "127.0.0.1",
            "localhost",
        ] {
            let sent = client
                .post(url(host))
                .json(&one_step(&remote.url(), "/work"))
                .send();
            let answer = sent.await.unwrap();
            let expected = if host == "evil.example" { 421 } else { 202 };
            assert_eq!(answer.status().as_u16(), expected, "{host}");
            if expected == 421 {
                let problem: Value = answer.json().await.unwrap();
                assert_eq!(problem["type"], "/problems/misdirected");
            }
        }
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080"] {
        let answer = ask(&provost, LIST, &[&format!("host: {host}")]).await;
        is_problem(&answer, 421, "misdirected");
    }
    let absolute = "GET http://evil.example/v1/tasks HTTP/1.1";
    let answer = ask(&provost, absolute, &["host: localhost"]).await;
    is_problem(&answer, 421, "misdirected");
    let list = provost.get("/v1/tasks").await.expect(200);
    assert_eq!(
        list["items"].as_array().unwrap().len(),
        6,
        "three names, twice"
    );
}

#[tokio::test]
async fn without_tokens_a_page_of_another_site_commands_nothing() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    provost.settled(&id).await;
    let clone = format!("POST /v1/tasks/{id}/clone HTTP/1.1");
    let own = format!("origin: http://{}", provost.address());
    let host = format!("host: {}", provost.address());
    for foreign in [
        "origin: https://evil.example",
        "origin: null",
        "origin: http://127.0.0.1:1",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
    ] {
        for first in [clone.as_str(), LIST, SUBMIT, "OPTIONS /v1/tasks HTTP/1.1"] {
            let headers = [host.as_str(), foreign, "content-length: 0"];
            let answer = ask(&provost, first, &headers).await;
            is_problem(&answer, 403, "cross-site");
        }
    }
    let tasks = provost.get("/v1/tasks").await.expect(200);
    assert_eq!(
        tasks["items"].as_array().unwrap().len(),
        1,
        "none was cloned"
    );

    // The first request comes from the service's own page, and the second from a link on another site.
    let page = [
        host.as_str(),
        &own,
        "sec-fetch-site: same-origin",
        "content-length: 0",
    ];
    assert_eq!(ask(&provost, &clone, &page).await.0, 202);
    let link = [
        host.as_str(),
        "sec-fetch-site: cross-site",
        "sec-fetch-mode: navigate",
        "sec-fetch-dest: document",
    ];
    assert_eq!(ask(&provost, "GET /docs HTTP/1.1", &link).await.0, 200);
    let page = [host.as_str(), "sec-fetch-site: same-origin"];
    assert_eq!(
        ask(&provost, "GET /openapi.json HTTP/1.1", &page).await.0,
        200
    );
}

#[tokio::test]
async fn with_tokens_the_token_decides_and_not_the_site() {
    let tokens = "eye:read:eye-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let answer = provost
        .get("/v1/tasks")
        .header("origin", "https://console.example")
        .header("authorization", "Bearer eye-secret-0123456789")
        .await;
    answer.expect(200);
    let answer = provost
        .get("/v1/tasks")
        .header("origin", "https://console.example");
    answer.await.expect_problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_proxy_on_this_machine_may_pass_on_what_is_for_public_url() {
    let setup = Provost::setup().set("PUBLIC_URL", "https://provost.example/base");
    let provost = setup.start().await;
    let host = "host: provost.example";
    assert_eq!(ask(&provost, LIST, &[host]).await.0, 200);
    let own = [host, "origin: https://provost.example"];
    assert_eq!(ask(&provost, LIST, &own).await.0, 200);
    let other = ask(&provost, LIST, &["host: other.example"]).await;
    let kind = (other.0, &other.1["type"]);
    assert_eq!(kind, (421, &json!("/base/problems/misdirected")));
}

#[tokio::test]
async fn a_query_that_is_no_utf_8_is_refused() {
    let provost = Provost::start().await;
    for query in [
        "key=%ff",
        "key=%C3",
        "key=a%80b",
        "%ff=1",
        "label=a:%ed%a0%80",
    ] {
        let answer = provost.get(&format!("/v1/tasks?{query}")).await;
        let problem = answer.expect_problem(400, "invalid-query");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("UTF-8"), "{query}: {detail}");
    }
    // Malformed queries are also refused where no query is read.
    for path in ["/livez", "/metrics", "/docs", "/nothing"] {
        let answer = provost.get(&format!("{path}?%ff")).await;
        answer.expect_problem(400, "invalid-query");
    }
    provost.get("/v1/tasks?key=%C3%A9").await.expect(200);
}

#[tokio::test]
async fn a_method_that_a_route_lacks_is_told_so_whatever_the_role() {
    let tokens = "shop:submit:shop-secret-0123456789,eye:read:eye-secret-0123456789,\
                  root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let id = "01970000-0000-7000-8000-000000000001";
    for (method, path, allow) in [
        ("PATCH", "/v1/tasks".to_owned(), "POST"),
        ("DELETE", format!("/v1/tasks/{id}"), "GET"),
        ("GET", format!("/v1/tasks/{id}/cancel"), "POST"),
        ("POST", "/v1/alerts".to_owned(), "GET"),
        ("DELETE", "/v1/workflows/order".to_owned(), "PUT"),
        ("BREW", "/v1/agents/payments".to_owned(), "PUT"),
    ] {
        let method = method.parse::<reqwest::Method>().unwrap();
        for role in ["shop", "eye", "root"] {
            let bearer = format!("Bearer {role}-secret-0123456789");
            let answer = provost.call(method.clone(), &path);
            let answer = answer.header("authorization", &bearer).await;
            let allowed = answer.header("allow").unwrap_or_default().to_owned();
            answer.expect_problem(405, "method-not-allowed");
            assert!(allowed.contains(allow), "{method} {path}: {allowed}");
        }
        // A caller without a token learns nothing about the path.
        let nobody = provost.call(method, &path).await;
        nobody.expect_problem(401, "unauthenticated");
    }
    let open = provost.command("/livez").await;
    open.expect_problem(405, "method-not-allowed");
    // Existing operations are still only for the roles that may use them.
    let eye = provost.put("/v1/agents/payments", &json!({}));
    let eye = eye.header("authorization", "Bearer eye-secret-0123456789");
    eye.await.expect_problem(403, "forbidden");
}

#[tokio::test]
async fn a_body_of_very_many_fields_is_refused_with_one_fault() {
    let provost = Provost::start().await;
    let fields: serde_json::Map<_, _> = (0..80_000).map(|n| (format!("f{n}"), json!(1))).collect();
    let answer = provost.post("/v1/tasks", &Value::Object(fields)).await;
    assert_eq!(answer.expect_faults(), [""]);
}

#[tokio::test]
async fn what_is_too_long_or_no_request_gets_a_problem_too() {
    let provost = Provost::start().await;
    let a = |count| "a".repeat(count);
    let host = "host: localhost";
    for kib in [70, 200, 900] {
        let first = format!("GET /v1/tasks?key={} HTTP/1.1", a(kib << 10));
        is_problem(&ask(&provost, &first, &[host]).await, 414, "uri-too-long");
        let long = format!("x-long: {}", a(kib << 10));
        let answer = ask(&provost, LIST, &[host, &long]).await;
        is_problem(&answer, 431, "headers-too-large");
    }
    let many = vec!["x-some: a"; 200];
    let answer = ask(&provost, LIST, &[&[host][..], &many].concat()).await;
    is_problem(&answer, 431, "headers-too-large");
    for no_request in [
        "GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /v1/tasks HTTP/1.1\r\nhost localhost\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
    ] {
        let answer = send(&provost, no_request).await;
        is_problem(&answer, 400, "malformed-request");
    }
    // A head that is long, but within the limit, is accepted.
    let first = format!("GET /v1/tasks?key={} HTTP/1.1", a(40 << 10));
    assert_eq!(ask(&provost, &first, &[host]).await.0, 200);
}

#[tokio::test]
async fn options_says_which_methods_there_are() {
    let token = "root:admin:root-secret-0123456789";
    let open = Provost::start().await;
    let closed = Provost::setup().set("TOKENS", token).start().await;
    let id = "01970000-0000-7000-8000-000000000001";
    for (path, methods) in [
        (
            "/v1/tasks".to_owned(),
            &["GET", "HEAD", "POST", "OPTIONS"][..],
        ),
        (format!("/v1/tasks/{id}/cancel"), &["POST", "OPTIONS"]),
        (
            "/v1/agents/payments".to_owned(),
            &["GET", "HEAD", "PUT", "DELETE", "OPTIONS"],
        ),
        ("/livez".to_owned(), &["GET", "HEAD", "OPTIONS"]),
    ] {
        for provost in [&open, &closed] {
            let asked = provost.call(reqwest::Method::OPTIONS, &path);
            let answer = asked.header("authorization", "Bearer root-secret-0123456789");
            let answer = answer.await;
            assert_eq!((answer.status, &answer.body), (204, &json!("")), "{path}");
            let mut allowed: Vec<_> = answer.header("allow").unwrap().split(',').collect();
            let mut expected = methods.to_vec();
            allowed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(allowed, expected, "{path}");
        }
    }
    for provost in [&open, &closed] {
        let answer = raw(provost, "OPTIONS * HTTP/1.1", &["host: localhost"]).await;
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        let answer = answer.to_ascii_lowercase();
        assert!(
            answer.contains("\r\nallow: get,head,post,put,delete,options\r\n"),
            "{answer}"
        );
        assert!(answer.contains("\r\nx-request-id: "), "{answer}");
    }
    let nobody = closed.call(reqwest::Method::OPTIONS, "/v1/tasks").await;
    nobody.expect_problem(401, "unauthenticated");
    let nothing = open.call(reqwest::Method::OPTIONS, "/v1/nothing").await;
    nothing.expect_problem(404, "not-found");
    let wrong = open.call(reqwest::Method::PATCH, "/v1/tasks").await;
    assert!(wrong.header("allow").unwrap().ends_with("OPTIONS"));
    wrong.expect_problem(405, "method-not-allowed");
}
