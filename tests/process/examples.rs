//! Tests docs/examples.md as a reader uses it: a shell runs every command on the page against `provost demo`, and the
//! output is compared with the page.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::harness::{Api, PATIENCE, binary};

const PAGE: &str = include_str!("../../docs/examples.md");
/// The address on the page, which is the default.
const USUAL: &str = "http://127.0.0.1:8080";
/// Times of the saga that are too long for a test.
const SHORTENED: [(&str, &str); 2] = [("\"30s\"", "\"1s\""), ("\"10m\"", "\"3s\"")];

/// The files of the page, in order.
const EXAMPLES: [&str; 6] = [
    "order.json",
    "order-saga.json",
    "fan-out.json",
    "approved-order.json",
    "hotel.json",
    "travel.json",
];

/// A part of the page between fences.
#[derive(Debug)]
struct Block {
    language: String,
    text: String,
    /// The last line before the block.
    before: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| *line != "```");
            let text: Vec<_> = inside.collect();
            blocks.push(Block {
                language: language.to_owned(),
                text: text.join("\n"),
                before: before.to_owned(),
            });
            before = "";
        } else if !line.is_empty() {
            before = line;
        }
    }
    blocks
}

/// Returns the file that a block shows, by the link before it.
fn file_of(block: &Block) -> Option<&str> {
    let (_, link) = block.before.rsplit_once("](../examples/")?;
    link.strip_suffix("):")
}

/// Returns whether everything expected is there: the fields of an object, and the items of an array in their order.
fn holds(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => expected
            .iter()
            .all(|(name, value)| found.get(name).is_some_and(|found| holds(value, found))),
        (Value::Array(expected), Value::Array(found)) => {
            let mut found = found.iter();
            let mut items = expected.iter();
            items.all(|item| found.any(|found| holds(item, found)))
                && (!expected.is_empty() || found.next().is_none())
        }
        (expected, found) => expected == found,
    }
}

/// `provost demo`, which runs until it is dropped.
struct Demo {
    _child: Child,
    _folder: TempDir,
    api: Api,
}

impl Demo {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let mut child = binary()
            .args(["demo", "--listen", "127.0.0.1:0"])
            // The demo creates its database there, so that nothing is left.
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, said.next_line()).await.unwrap().unwrap();
        let first = first.expect("it says where it is");
        let address = first.split("http://").nth(1).expect(&first);
        let address = address.split(['/', ' ']).next().unwrap();
        // The output must be read, or the process would block when the pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        Self {
            _child: child,
            _folder: folder,
            api: Api::new(address),
        }
    }

    /// Returns the address of a service, once the demo has registered it.
    async fn service(&self, agent: &str) -> String {
        let started = Instant::now();
        loop {
            let answer = self.api.get(&format!("/v1/agents/{agent}")).await;
            if answer.status == 200 {
                let url = &answer.body["spec"]["endpoints"][0]["url"];
                return url.as_str().unwrap().to_owned();
            }
            assert!(started.elapsed() < PATIENCE, "{answer:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A shell that keeps variables from one block to the next.
struct Shell {
    folder: TempDir,
    base: String,
    variables: Vec<(String, String)>,
}

impl Shell {
    async fn run(&mut self, script: &str) -> String {
        let script = script.replace(USUAL, &self.base);
        let assigned = script
            .split_once("=$(")
            .map(|(name, _)| name.to_owned())
            .filter(|name| name.chars().all(|c| c.is_ascii_uppercase()));
        let script = match &assigned {
            Some(name) => format!("{script}\nprintf %s \"${name}\""),
            None => script,
        };
        let run = Command::new("sh")
            .args(["-euc", &script])
            .current_dir(self.folder.path())
            .envs(self.variables.iter().cloned())
            .env("no_proxy", "127.0.0.1")
            .output();
        let output = timeout(PATIENCE * 2, run).await.unwrap().unwrap();
        assert!(output.status.success(), "{script}\n{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        if let Some(name) = assigned {
            assert!(!said.is_empty(), "{script}\ngave nothing");
            self.variables.push((name, said.clone()));
        }
        said
    }

    /// Runs a command until its output is as expected. A command that changes something runs only once.
    async fn check(&mut self, script: &str, expected: &Value) {
        let once = ["-d ", "-X "].iter().any(|option| script.contains(option));
        let started = Instant::now();
        loop {
            let said = self.run(script).await;
            let found: Value = serde_json::from_str(&said).expect(&said);
            if holds(expected, &found) {
                return;
            }
            let patient = !once && started.elapsed() < PATIENCE;
            assert!(
                patient,
                "{script}\nshould give {expected:#}\nand gave {found:#}"
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Copies the files unchanged, except for the times of the saga.
fn copy_examples(folder: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    fs::create_dir(folder.join("examples")).unwrap();
    for name in EXAMPLES {
        let mut text = fs::read_to_string(from.join(name)).unwrap();
        if name == "order-saga.json" {
            for (long, short) in SHORTENED {
                assert!(text.contains(long), "{long} is not in {name}");
                text = text.replace(long, short);
            }
        }
        fs::write(folder.join("examples").join(name), text).unwrap();
    }
}

#[test]
fn the_page_shows_the_examples_as_they_are() {
    let shown = blocks(PAGE);
    let shown: Vec<_> = shown
        .iter()
        .filter_map(|block| Some((file_of(block)?, block)))
        .collect();
    let names: Vec<_> = shown.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, EXAMPLES);
    for (name, block) in shown {
        let path = format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(
            fs::read_to_string(path).unwrap().trim_end(),
            block.text,
            "{name}"
        );
    }
}

#[tokio::test]
async fn every_command_of_the_examples_gives_what_the_page_says() {
    let demo = Demo::start().await;
    let folder = TempDir::new().unwrap();
    copy_examples(folder.path());
    let mut shell = Shell {
        folder,
        base: format!("http://{}", demo.api.address()),
        variables: vec![
            ("INVENTORY".to_owned(), demo.service("inventory").await),
            ("SHIPPING".to_owned(), demo.service("shipping").await),
        ],
    };
    // Readers of the page may have done the demo before, in which they make the service accept the card of its order.
    let payments = demo.service("payments").await;
    let accept = json!({ "accepted": true });
    let put = format!(
        "curl -fsS -X PUT {payments}/cards/tok_declined -H 'content-type: application/json' -d '{accept}'"
    );
    shell.run(&put).await;
    let page = blocks(PAGE);
    let mut checked = 0;
    let mut blocks = page.iter().filter(|block| file_of(block).is_none());
    let mut next = blocks.next();
    while let Some(block) = next {
        assert_eq!(
            block.language, "sh",
            "an answer without a command: {block:?}"
        );
        next = blocks.next();
        match next {
            Some(answer) if answer.language == "json" => {
                let expected = serde_json::from_str(&answer.text).expect(&answer.text);
                shell.check(&block.text, &expected).await;
                checked += 1;
                next = blocks.next();
            }
            _ => drop(shell.run(&block.text).await),
        }
    }
    assert_eq!(
        checked, 27,
        "the page has more or fewer commands than it had"
    );
}
