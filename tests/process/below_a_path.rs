//! The console below a path of `public_url`, with nginx before it as `deploy/nginx.conf` has it.

use std::{collections::BTreeSet, fs, path::Path, process::Stdio};

use reqwest::{Client, Response, StatusCode, redirect::Policy};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::harness::{Gate, Provost, Remote, free_port, until};

const TOKENS: &str = "ada:admin:0123456789abcdef-ada";
const ADA: &str = "Bearer 0123456789abcdef-ada";

/// Starts nginx with the file of the documentation, in a folder of its own.
fn nginx(folder: &TempDir, port: u16, upstream: &str) -> Child {
    let documented = include_str!("../../deploy/nginx.conf");
    let site = documented
        .replace("listen 80;", &format!("listen 127.0.0.1:{port};"))
        .replace("127.0.0.1:8080", upstream);
    let path = folder.path().display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {path}/{kind};\n"));
    let whole = format!(
        "daemon off;\nmaster_process off;\npid {path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{}{site}}}\n",
        temporary.concat()
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, whole).unwrap();
    // Debian has it in a folder that is not in everybody's path, and `scripts/prepare` unpacks it where it is missing.
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/nginx/usr/sbin");
    Command::new("sh")
        .args([
            "-c",
            r#"PATH="$PATH:/usr/sbin:$2" exec nginx -e stderr -p "$0" -c "$1""#,
        ])
        .args([folder.path(), &file, &unpacked])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

struct Browser {
    client: Client,
    origin: String,
    cookie: String,
}

impl Browser {
    async fn send(&self, method: &str, path: &str, form: &str) -> Response {
        let request = self
            .client
            .request(method.parse().unwrap(), format!("{}{path}", self.origin))
            .header("accept", "text/html")
            .header("origin", &self.origin)
            .header("cookie", &self.cookie)
            .header("content-type", "application/x-www-form-urlencoded");
        request.body(form.to_owned()).send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Response {
        self.send("GET", path, "").await
    }

    async fn html(&self, path: &str) -> String {
        let page = self.get(path).await;
        assert_eq!(page.status(), StatusCode::OK, "{path}");
        page.text().await.unwrap()
    }
}

/// Returns where a page leads to, without the parts after `#`.
fn links(html: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for attribute in ["href=\"", "src=\"", "action=\"", "data-events=\""] {
        for part in html.split(attribute).skip(1) {
            let link = part.split('"').next().unwrap().replace("&#38;", "&");
            found.insert(link.split('#').next().unwrap().to_owned());
        }
    }
    found.remove("");
    found
}

fn location(response: &Response) -> &str {
    response.headers()["location"].to_str().unwrap()
}

#[tokio::test]
async fn links_forms_redirects_cookies_and_events_work_below_the_path_behind_nginx() {
    let gate = Gate::closed();
    let wait = gate.clone();
    let remote = Remote::with(move |_| wait.then(json!({}))).await;
    let port = free_port();
    let origin = format!("http://127.0.0.1:{port}");
    let setup = Provost::setup().set("TOKENS", TOKENS);
    let provost = setup
        .set("PUBLIC_URL", &format!("{origin}/ops"))
        .start()
        .await;
    let folder = TempDir::new().unwrap();
    let _nginx = nginx(&folder, port, provost.address());
    let client = Client::builder().redirect(Policy::none()).build().unwrap();
    let ready = async || {
        let health = client.get(format!("{origin}/ops/livez")).send().await;
        health.is_ok()
    };
    until(true, ready).await;
    let mut browser = Browser {
        client,
        origin,
        cookie: String::new(),
    };

    // The root leads to the console, and that to the page on which people sign in.
    assert_eq!(location(&browser.get("/ops/").await), "/ops/console");
    let to = location(&browser.get("/ops/console").await).to_owned();
    assert_eq!(to, "/ops/console/login?to=%2Fconsole");
    let login = browser.html(&to).await;
    assert!(login.contains("action=\"/ops/console/login\""), "{login}");
    let form = "token=0123456789abcdef-ada&to=%2Fconsole%2Ftasks";
    let signed_in = browser.send("POST", "/ops/console/login", form).await;
    assert_eq!(location(&signed_in), "/ops/console/tasks");
    let cookie = signed_in.headers()["set-cookie"].to_str().unwrap();
    browser.cookie = cookie.split(';').next().unwrap().to_owned();

    let task = json!({ "key": "slow-1", "steps": [{ "name": "only", "url": remote.url(), "request": { "path": "/" } }] });
    let submitted = provost
        .post("/v1/tasks", &task)
        .header("authorization", ADA);
    let task = submitted.await.expect(202)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let page = format!("/ops/console/tasks/{task}");
    let html = browser.html(&page).await;
    let mut seen = BTreeSet::new();
    for from in [html.clone(), browser.html("/ops/console").await] {
        for link in links(&from) {
            assert!(link.starts_with("/ops/"), "{link}");
            // A stream does not end, and a session would.
            let is_page = !link.contains("/events") && !link.ends_with("/logout");
            if is_page && seen.insert(link.clone()) {
                let found = browser.get(&link).await;
                assert!(
                    found.status().is_success() || found.status().is_redirection(),
                    "{link}: {found:?}"
                );
            }
        }
    }
    assert!(
        seen.iter().any(|link| link.ends_with("/console.css")),
        "{seen:?}"
    );

    // The addresses that programs read lead below the path, too.
    let own = |path: &str| format!("{}{path}", browser.origin);
    let body = json!({ "steps": [{ "name": "only", "wait": { "for": "0s" } }] });
    let made = browser.client.post(own("/ops/v1/tasks")).json(&body);
    let made = made.header("authorization", ADA).send().await.unwrap();
    assert!(location(&made).starts_with("/ops/v1/tasks/"), "{made:?}");
    let read = browser.client.get(own(location(&made)));
    let read = read.header("authorization", ADA).send().await.unwrap();
    assert_eq!(read.status(), StatusCode::OK);
    let problem = browser.client.post(own("/ops/v1/tasks")).json(&json!({}));
    let problem = problem.header("authorization", ADA).send().await.unwrap();
    let problem = problem.json::<serde_json::Value>().await.unwrap();
    assert_eq!(problem["type"], "/ops/problems/invalid");
    let explained = browser.html(problem["type"].as_str().unwrap()).await;
    assert!(explained.contains("<title>invalid</title>"), "{explained}");
    let document = browser.client.get(own("/ops/openapi.json"));
    let document = document.send().await.unwrap().json::<serde_json::Value>();
    let servers = document.await.unwrap()["servers"].clone();
    assert_eq!(servers, json!([{ "url": "/ops" }]));
    let docs = browser.html("/ops/docs").await;
    assert!(docs.contains("fetch(\"openapi.json\")"), "{docs}");

    // Each event of the task passes while the stream is open.
    let events = links(&html)
        .into_iter()
        .find(|link| link.contains("/events"));
    let mut events = browser.get(&events.unwrap()).await;
    assert_eq!(events.status(), StatusCode::OK);
    let paused = browser
        .send("POST", &format!("{page}/pause"), "reason=lunch")
        .await;
    let paused = (paused.status(), location(&paused).to_owned());
    assert_eq!(paused, (StatusCode::SEE_OTHER, page.clone()));
    let mut text = String::new();
    while !text.contains("task.pause") {
        let part = events
            .chunk()
            .await
            .unwrap()
            .expect("the stream has closed");
        text.push_str(&String::from_utf8_lossy(&part));
    }
    gate.open();

    // The page for people who are asked has its stylesheet below the path, too.
    let unknown = browser
        .get("/ops/v1/asks/unknown")
        .await
        .text()
        .await
        .unwrap();
    assert!(unknown.contains("href=\"/ops/console/assets/"), "{unknown}");
    assert_eq!(
        browser.get("/ops/metrics").await.status(),
        StatusCode::NOT_FOUND
    );
    let away = browser.send("POST", "/ops/console/logout", "").await;
    assert!(location(&away).starts_with("/ops/console"), "{away:?}");
}
