//! Tests docs/how-do-i.md: a service accepts every request of the page and every list of steps, without a warning that
//! would confuse a reader; and `provost test` runs what decides the flow, in the cases below and in those of the page.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::Path};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Act, Provost, Remote, binary};

const PAGE: &str = include_str!("../../docs/how-do-i.md");
/// The folder of the secrets on the page.
const SECRETS: &str = "/run/secrets";

/// Cases for the steps of an entry, by its heading.
const CASES: [(&str, &str); 29] = [
    (
        "Let an operator stop one step and undo what it did",
        "
  - name: nobody stops the charge
    services: { charge: { delay: 2s }, ship: {} }
    expect: { state: processed, path: [stop, charge, ship] }
  - name: an operator stops the charge
    signals: [{ step: stop, at: 1s }]
    services: { charge: { delay: 20s }, undo charge: {} }
    expect: { state: processed, path: [stop, charge, undo charge] }",
    ),
    (
        "Stop a step once something else has happened (milestone)",
        "
  - name: nobody pays in three days
    signals: [{ step: pay, at: 5d }]
    services: { remind: {} }
    expect: { path: [pay, timer, remind] }
  - name: somebody pays at once
    signals: [{ step: pay, at: 1h }]
    services: {}
    expect: { state: processed, path: [pay, timer], ended_after: 1h }",
    ),
    (
        "Do a step only if something is true (if)",
        "
  - name: a gift
    input: { gift: true }
    services: { gift.wrap: {}, gift.card: {}, ship: {} }
    expect: { state: processed, path: [gift.wrap, gift.card, ship] }
  - name: no gift
    input: { gift: false }
    services: { ship: {} }
    expect: { state: processed, path: [ship] }",
    ),
    (
        "Call the agent that the data name (dynamic task)",
        "
  - name: to Europe
    input: { region: eu }
    services: { ship.eu: { body: { id: 7 } }, notify: {} }
    expect: { state: processed, path: [ship.eu, notify], requests: [{ step: notify, body: { id: 7 } }] }
  - name: to nowhere
    input: { region: moon }
    services: {}
    expect: { state: error, path: [] }",
    ),
    (
        "Take one of several ways (switch)",
        "
  - name: a large order
    input: { total: 200 }
    services: { way.express: {}, notify: {} }
    expect: { state: processed, path: [way.express, notify] }
  - name: a small order
    input: { total: 20 }
    services: { way.parcel: {}, notify: {} }
    expect: { state: processed, path: [way.parcel, notify] }",
    ),
    (
        "Run branches in parallel, and join them",
        "
  - name: the invoice waits for both
    services: { flight: { delay: 2s }, hotel: { delay: 3s }, invoice: {} }
    expect: { state: processed, path: [flight, hotel, invoice], ended_after: 3s }",
    ),
    (
        "Pass a value on",
        "
  - name: the id and the price
    input: { sku: lamp-4, price: 21 }
    services: { reserve: { body: { id: res-1 } }, charge: {} }
    expect:
      requests: [{ step: charge, body: { for: res-1, amount: 42 } }]",
    ),
    (
        "Use a fallback if a service refuses",
        "
  - name: the first one works
    services: { primary: { body: { km: 3 } }, route: {} }
    expect: { path: [primary, route], requests: [{ step: route, body: { km: 3 } }] }
  - name: the first one returns nothing, which is no failure
    services: { primary: { status: 204 }, route: {} }
    expect: { path: [primary, route] }
  - name: the first one refuses
    services: { primary: { status: 422 }, fallback: { body: { km: 4 } }, route: {} }
    expect: { path: [primary, fallback, route], requests: [{ step: route, body: { km: 4 } }] }
  - name: the first one is down
    services: { primary: { unreachable: true }, fallback: { body: { km: 4 } }, route: {} }
    expect: { state: processed, path: [primary, fallback, route] }",
    ),
    (
        "Catch one error, and no other",
        "
  - name: the customer exists
    input: { customer: c-1 }
    services: { customer: { body: { id: c-1 } } }
    expect: { state: processed, path: [customer] }
  - name: the customer does not exist
    input: { customer: c-1 }
    services: { customer: { status: 404 }, create: {} }
    expect: { state: processed, path: [customer, create] }
  - name: the request is wrong
    input: { customer: c-1 }
    services: { customer: { status: 400 } }
    expect: { state: error, path: [customer] }",
    ),
    (
        "Find an error in the body of a 200",
        "
  - name: it is charged
    services: { charge: { body: { ok: true } } }
    expect: { state: processed }
  - name: it is not
    services: { charge: { body: { ok: false, error: no such card } } }
    expect: { state: error, error: no such card }",
    ),
    (
        "Continue although a step failed",
        "
  - name: no newsletter
    services: { newsletter: { status: 400 }, ship: {} }
    expect: { state: processed, path: [newsletter, ship], stands: [ship] }",
    ),
    (
        "Limit the time of a step",
        "
  - name: no quote in time
    services: { quote: { never: true } }
    expect: { state: processed, ended_after: 5s, steps: { quote: { state: skipped, attempts: 1 } } }",
    ),
    (
        "Run a workflow as a step (sub-workflow)",
        "
  - name: the child ships
    input: { order: 7 }
    services: { ship: { body: { parcel: p-1 } } }
    expect: { state: processed, steps: { ship: { output: { parcel: p-1 } } } }",
    ),
    (
        "Run several steps for each item of a list",
        "
  - name: two parcels
    input: { parcels: [{ id: 1 }, { id: 2 }] }
    services: { parcels: {} }
    expect: { state: processed }
  - name: one cannot be sent
    input: { parcels: [{ id: 1 }, { id: 2 }] }
    services: { parcels: [{}, { status: 409 }] }
    expect: { state: error }",
    ),
    (
        "Start a task and do not wait for it (fire and forget)",
        "
  - name: nothing is waited for
    input: { mail: ann@example.com }
    expect: { state: processed, ended_after: 0s }",
    ),
    (
        "Do something for each item of a list",
        "
  - name: one of three is refused
    input: { products: [{ sku: a }, { sku: b }, { sku: c }] }
    services: { import: [{ body: 1 }, { status: 422 }, { body: 3 }] }
    expect: { state: processed, steps: { import: { output: [1, null, 3] } } }",
    ),
    (
        "Repeat until something is true",
        "
  - name: the third analysis is good
    input: { sample: s-1 }
    services: { analyse: [{ body: { quality: 0.5 } }, { body: { quality: 0.8 } }, { body: { quality: 0.95 } }] }
    expect: { state: processed, ended_after: 1m, steps: { analyse: { output: { quality: 0.95 } } } }",
    ),
    (
        "Read all pages of a list",
        "
  - name: three pages
    services: { pages: [{ body: { next: p2 } }, { body: { next: p3 } }, { body: { next: null } }] }
    expect:
      state: processed
      requests: [{ step: pages, path: /products/first }, { step: pages, path: /products/p2 }, { step: pages, path: /products/p3 }]
      steps: { pages: { output: [{ next: p2 }, { next: p3 }, { next: null }] } }",
    ),
    (
        "Call a service at most once",
        "
  - name: the connection breaks
    services: { announce: { dropped: true } }
    expect: { state: processed, steps: { announce: { state: skipped, attempts: 1 } } }",
    ),
    (
        "Have the work done exactly once",
        "
  - name: the response is lost, and the probe finds the charge
    key: order-1
    services:
      charge: { dropped: true }
      probe charge: { body: { total: 1, items: [{ id: ch-1 }] } }
    expect: { state: processed, steps: { charge: { attempts: 1, output: { id: ch-1 } } } }",
    ),
    (
        "Retry as the service likes it",
        "
  - name: the third attempt succeeds
    services: { charge: [{ status: 503 }, { status: 429 }, { body: { id: ch-1 } }] }
    expect: { state: processed, ended_after: 3s, steps: { charge: { attempts: 3 } } }
  - name: it never succeeds
    services: { charge: { status: 503 } }
    expect: { state: error, steps: { charge: { attempts: 5 } } }",
    ),
    (
        "Wait for some time",
        "
  - name: a day, and then until the departure
    input: { departure: 2026-01-08T00:00:00Z }
    expect: { state: processed, ended_after: 7d }",
    ),
    (
        "Wait for a callback of the service",
        "
  - name: it prints for an hour and a half
    services: { print: { status: 202, later: { after: 90m, heartbeat_every: 30m, output: { pages: 4 } } } }
    expect: { state: processed, ended_after: 90m, steps: { print: { output: { pages: 4 } } } }",
    ),
    (
        "Give the service the callback's address in the body",
        "
  - name: it replies with what it has
    services: { transcode: { status: 202, later: { after: 1h, output: { status: done } } } }
    expect: { state: processed, ended_after: 1h, steps: { transcode: { output: { status: done } } } }
  - name: what it has is an error
    services: { transcode: { status: 202, later: { after: 1h, output: { status: broken } } } }
    expect: { state: error, steps: { transcode: { state: error } } }",
    ),
    (
        "Poll a job until it is done",
        "
  - name: the second poll finds the result
    services:
      render: { status: 202, headers: { Location: /jobs/7 } }
      poll render: [{ body: { status: running } }, { body: { status: succeeded, result: { url: u } } }]
    expect: { state: processed, steps: { render: { output: { url: u } } } }",
    ),
    (
        "Wait for a signal, or go on without it",
        "
  - name: it is paid
    input: { order: 7 }
    signals: [{ step: paid, body: { order: 7 }, at: 1d }]
    expect: { state: processed, path: [paid], ended_after: 1d }
  - name: nobody pays
    input: { order: 7 }
    services: { remind: {} }
    expect: { state: processed, path: [paid, remind], ended_after: 3d }",
    ),
    (
        "Ask a person (approval, human task)",
        "
  - name: it is approved
    input: { amount: 20 }
    decisions: [{ step: approval, by: ops@example.com, choice: approve }]
    services: { refund: {} }
    expect: { state: processed, path: [approval, refund] }
  - name: it is rejected
    input: { amount: 20 }
    decisions: [{ step: approval, by: ops@example.com, choice: reject }]
    expect: { state: processed, path: [approval] }",
    ),
    (
        "Undo what was done (saga, compensation)",
        "
  - name: the card is declined
    services: { reserve: {}, charge: { status: 402 }, undo reserve: { status: 204 } }
    expect: { state: undone, undone: [reserve], stands: [] }",
    ),
    (
        "Mark the point of no return",
        "
  - name: the card is declined before it
    services: { reserve: {}, pay: { status: 402 }, undo reserve: { status: 204 } }
    expect: { state: undone, undone: [reserve] }
  - name: shipping fails after it
    services: { reserve: {}, pay: {}, ship: { status: 422 } }
    commands: [{ command: undo, at: 1h, refused: true }]
    expect: { state: error, undone: [] }",
    ),
];

/// A part of the page between fences, with the heading of its entry.
struct Block {
    heading: &'static str,
    language: &'static str,
    text: String,
}

fn blocks() -> Vec<Block> {
    let (mut blocks, mut heading) = (Vec::new(), "");
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(named) = line.strip_prefix("### ") {
            heading = named;
        } else if let Some(language) = line.strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| *line != "```");
            let text: Vec<_> = inside.collect();
            blocks.push(Block {
                heading,
                language,
                text: text.join("\n"),
            });
        }
    }
    blocks
}

impl Block {
    /// Returns the workflow of the steps that the block shows.
    fn workflow(&self) -> Value {
        let steps = format!("[{}]", self.text);
        let steps: Value = serde_json::from_str(&steps).expect(&steps);
        json!({ "steps": steps })
    }
}

/// Returns the agents that a definition names.
fn agents(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let agent = fields.get("agent").unwrap_or(&Value::Null);
            let one_of = agent["one_of"].as_array();
            let names = one_of.map_or(std::slice::from_ref(agent), Vec::as_slice);
            found.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| agents(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| agents(value, found)),
        _ => {}
    }
}

/// Returns the settings of the page, with its secrets in this folder.
fn settings(folder: &Path) -> Vec<(&'static str, String)> {
    let secret = folder.join("payments-token");
    fs::write(&secret, "a token that is long enough").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).unwrap();
    let shown = blocks().into_iter();
    let settings = shown.filter(|block| block.language == "toml");
    settings
        .map(|block| {
            let text = block.text.replace(SECRETS, folder.to_str().unwrap());
            (block.heading, text)
        })
        .collect()
}

/// A service with the agents and the workflows that the page relies on.
struct Reader {
    provost: Provost,
    _secrets: TempDir,
    _remote: Remote,
}

impl Reader {
    async fn start() -> Self {
        let remote = Remote::with(|seen| match seen.path.as_str() {
            "/refused" => Act::status(422),
            _ => Act::Ok(json!({ "id": 1 })),
        })
        .await;
        let secrets = TempDir::new().unwrap();
        let settings = settings(secrets.path()).into_iter();
        // The settings of the broker need one; `every_setting_of_the_page_is_known` checks them.
        let settings = settings.filter(|(_, text)| !text.contains("[broker]"));
        let settings: Vec<_> = settings.map(|(_, text)| text).collect();
        let provost = Provost::setup().config(&settings.join("\n")).start().await;
        let mut named = BTreeSet::new();
        for block in blocks() {
            match block.language {
                "json" => agents(&block.workflow(), &mut named),
                "http" => {
                    let body = block.text.split_once("\n\n").map(|(_, body)| body);
                    let body = body.map(|body| serde_json::from_str::<Value>(body).expect(body));
                    agents(&body.unwrap_or_default(), &mut named);
                }
                _ => {}
            }
        }
        for agent in &named {
            provost.register(agent, &remote.url(), 8).await;
        }
        for workflow in ["order", "report", "ship", "welcome"] {
            let steps = json!({ "steps": [{ "name": "work", "agent": "payments" }] });
            let put = provost.put(&format!("/v1/workflows/{workflow}"), &steps);
            put.await.expect(201);
        }
        Self {
            provost,
            _secrets: secrets,
            _remote: remote,
        }
    }

    /// Returns the id of a new task, which waits, or whose second step was refused.
    async fn task(&self, is_refused: bool) -> String {
        let charge = json!({ "name": "charge", "agent": "payments", "request": {
            "path": if is_refused { "/refused" } else { "/" },
            "body": { "amount": "{{ input.amount }}" } } });
        let task = json!({ "input": { "amount": 3 }, "steps": [
            { "name": "reserve", "agent": "inventory" }, charge,
            { "name": "hold", "signal": { "within": "1h" } },
        ] });
        let id = self.provost.submit(&task).await;
        if is_refused {
            let ended = self.provost.settled(&id).await;
            assert_eq!(ended["state"], "error", "{ended:#}");
        }
        id
    }

    /// Sends a request of the page, and returns the response.
    async fn send(&self, block: &Block) -> Value {
        let (head, body) = block.text.split_once("\n\n").unwrap_or((&block.text, ""));
        let mut head = head.lines();
        let (method, path) = head.next().unwrap().split_once(' ').unwrap();
        let mut path = path.to_owned();
        for (name, is_refused) in [("{id}", false), ("{failed}", true)] {
            if path.contains(name) {
                path = path.replace(name, &self.task(is_refused).await);
            }
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut call = self.provost.api().call(method, &path);
        for line in head {
            let (name, value) = line.split_once(": ").expect(line);
            call = call.header(name, value);
        }
        if !body.is_empty() {
            call = call.json(&serde_json::from_str(body).expect(body));
        }
        let answer = call.await;
        assert!(
            (200..300).contains(&answer.status),
            "{}: {answer:?}",
            block.heading
        );
        answer.body
    }
}

#[tokio::test]
async fn a_service_accepts_every_block_of_the_page() {
    /// Warnings that every few lines without their surroundings have.
    const EXPECTED: [&str; 2] = ["relies_on_idempotency_key", "input_needed"];
    let reader = Reader::start().await;
    for block in blocks() {
        match block.language {
            "json" => {
                let path = "/v1/workflows/how-do-i/validate";
                let report = reader.provost.post(path, &block.workflow()).await;
                assert_eq!(report.status, 200, "{}: {report:?}", block.heading);
                for warning in report.body["warnings"].as_array().unwrap() {
                    let code = warning["code"].as_str().unwrap();
                    assert!(EXPECTED.contains(&code), "{}: {warning:#}", block.heading);
                }
            }
            "http" => {
                let first = reader.send(&block).await;
                // The same key gets the same task, and the field `key` alone does not.
                if block.text.contains("Idempotency-Key") {
                    assert_eq!(reader.send(&block).await["id"], first["id"]);
                }
            }
            "toml" | "yaml" => {}
            other => panic!("{}: a block of {other:?}", block.heading),
        }
    }
}

#[tokio::test]
async fn every_setting_of_the_page_is_known() {
    let folder = TempDir::new().unwrap();
    let settings = settings(folder.path());
    assert_eq!(settings.len(), 3);
    for (heading, text) in settings {
        let file = folder.path().join("provost.toml");
        fs::write(&file, text).unwrap();
        let mut command = binary();
        let checked = command.args(["check-config", "--config"]).arg(&file);
        let output = checked.output().await.unwrap();
        assert!(output.status.success(), "{heading}: {output:?}");
    }
}

#[tokio::test]
async fn what_decides_the_flow_does_what_the_page_says() {
    let shown = blocks();
    let steps = |heading: &str| {
        let mut of_entry = shown.iter().filter(|block| block.heading == heading);
        let found = of_entry.find(|block| block.language == "json");
        found.unwrap_or_else(|| panic!("no steps in {heading:?}"))
    };
    let of_page = shown.iter().filter(|block| block.language == "yaml");
    let of_page = of_page.map(|block| (block.heading, block.text.clone()));
    let own = CASES.map(|(heading, cases)| (heading, format!("cases:{cases}\n")));
    for (heading, cases) in of_page.chain(own) {
        let folder = TempDir::new().unwrap();
        let workflow = steps(heading).workflow().to_string();
        fs::write(folder.path().join("workflow.json"), workflow).unwrap();
        fs::write(folder.path().join("cases.yaml"), cases).unwrap();
        let mut command = binary();
        command.args(["test", "workflow.json", "cases.yaml"]);
        let output = command.current_dir(folder.path()).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{heading}\n{said}{complained}");
        assert!(!said.contains("warning"), "{heading}\n{said}");
    }
}

#[test]
fn every_entry_has_a_block_and_a_link_and_is_short() {
    let headings = PAGE.lines().filter_map(|line| line.strip_prefix("### "));
    let headings: Vec<_> = headings.collect();
    assert!(headings.len() >= 40, "{} entries", headings.len());
    let shown = blocks();
    for heading in headings {
        let (_, entry) = PAGE.split_once(&format!("### {heading}\n")).unwrap();
        let entry = entry.split("\n#").next().unwrap();
        let is_linked = entry.lines().last().unwrap().starts_with('[');
        assert!(is_linked, "{heading}: {entry}");
        let lines = shown.iter().filter(|block| block.heading == heading);
        let lines: Vec<_> = lines.map(|block| block.text.lines().count()).collect();
        assert!(!lines.is_empty(), "{heading} shows nothing");
        assert!(
            lines.iter().all(|count| *count <= 6),
            "{heading}: {lines:?}"
        );
    }
}
