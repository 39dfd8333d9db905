//! A real Chromium. The test sends it commands of the DevTools protocol through a pipe, clicks and types as a person does, and
//! awaits what the page shows. Nothing waits for a time: the browser itself reports when an element is there.

use std::{path::PathBuf, process::Stdio};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::PATIENCE;

/// The program reads commands from the descriptor 3 and writes to 4: the shell makes them of its own input and output.
const AS_PIPE: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#;

const FLAGS: [&str; 11] = [
    "--headless",
    "--remote-debugging-pipe",
    // It opens the pages of the test only; as root, and in containers, the sandbox cannot be made.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--font-render-hinting=none",
];

/// Functions that every page gets before its own script runs.
const HELPERS: &str = r#"
globalThis.test = {
  find: (selector, text) => [...document.querySelectorAll(selector)].find((element) =>
    element.checkVisibility() && (!text || (element.innerText ?? element.textContent).includes(text))),
  shown: (selector, text) => new Promise((done) => {
    const look = () => {
      if (!test.find(selector, text)) return;
      observer.disconnect();
      done(true);
    };
    const observer = new MutationObserver(look);
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    document.addEventListener("DOMContentLoaded", look);
    document.addEventListener("focusin", look);
    addEventListener("load", look);
    look();
  }),
  place: (selector, text) => {
    const element = test.find(selector, text);
    if (!element) return null;
    element.scrollIntoView({ block: "center", inline: "center" });
    const box = element.getClientRects()[0];
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const top = document.elementFromPoint(x, y);
    return { x, y, covered: !element.contains(top) && !top?.contains(element) };
  },
};
"#;

/// The look of a page: the width of the screen, and the colours.
#[derive(Clone, Copy)]
pub struct Look {
    pub name: &'static str,
    pub width: u32,
    pub height: u32,
    pub is_dark: bool,
}

impl Look {
    pub const DESK: Self = Self::of("desk-light", 1280, 800, false);
    pub const PHONE: Self = Self::of("phone-light", 390, 844, false);
    pub const ALL: [Self; 4] = [
        Self::DESK,
        Self::of("desk-dark", 1280, 800, true),
        Self::PHONE,
        Self::of("phone-dark", 390, 844, true),
    ];

    const fn of(name: &'static str, width: u32, height: u32, is_dark: bool) -> Self {
        Self {
            name,
            width,
            height,
            is_dark,
        }
    }
}

pub struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The page, once the browser has one.
    session: Option<String>,
    last_command: u64,
    clicks: usize,
    profile: TempDir,
}

/// A promise of the end of the load of a page, with its stylesheets.
const LOADED: &str = "(document.readyState === 'complete' ? Promise.resolve() : new Promise((done) => addEventListener('load', done)))";

impl Browser {
    pub async fn start() -> Self {
        let profile = TempDir::new().unwrap();
        let errors = std::fs::File::create(profile.path().join("errors")).unwrap();
        let mut process = Command::new("sh")
            .args(["-c", AS_PIPE, "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("LANG", "en_GB.UTF-8")
            .env("TZ", "Etc/UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser = Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
            session: None,
            last_command: 0,
            clicks: 0,
            profile,
        };
        let page = json!({ "url": "about:blank" });
        let page = browser.command("Target.createTarget", page).await;
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.command("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.command("Page.enable", json!({})).await;
        let focused = json!({ "enabled": true });
        browser
            .command("Emulation.setFocusEmulationEnabled", focused)
            .await;
        let helpers = json!({ "source": HELPERS });
        browser
            .command("Page.addScriptToEvaluateOnNewDocument", helpers)
            .await;
        browser.look(Look::DESK).await;
        browser
    }

    /// Returns the number of clicks so far.
    pub fn clicks(&self) -> usize {
        self.clicks
    }

    /// Sets the size of the screen, and whether colours are dark.
    pub async fn look(&mut self, look: Look) {
        let is_phone = look.width < 700;
        let screen = json!({ "width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.command("Emulation.setDeviceMetricsOverride", screen)
            .await;
        let scheme = if look.is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features).await;
    }

    pub async fn time_zone(&mut self, zone: &str) {
        let zone = json!({ "timezoneId": zone });
        self.command("Emulation.setTimezoneOverride", zone).await;
    }

    pub async fn open(&mut self, url: &str) {
        let opened = self.command("Page.navigate", json!({ "url": url })).await;
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
    }

    /// Waits until an element with this text is on the page, and can be seen. An empty text is any. The selector may have
    /// `:focus`, but no other state of a person's input.
    #[track_caller]
    pub fn see(&mut self, selector: &str, text: &str) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        // Until the page has loaded, its stylesheet may not apply, and what is measured is wrong.
        let shown = format!(
            "{LOADED}.then(() => test.shown({}, {}))",
            Value::from(selector),
            Value::from(text)
        );
        let what = format!("{at}: {selector} with {text:?}");
        async move {
            if timeout(PATIENCE, self.resolved(&shown)).await.is_err() {
                self.fail(&what).await;
            }
        }
    }

    /// Returns the value of a promise. A page that is left while it waits is asked again once the next one is there.
    async fn resolved(&mut self, script: &str) -> Value {
        loop {
            let ask = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
            let Ok(found) = self.attempt("Runtime.evaluate", ask, true).await else {
                continue;
            };
            let fault = &found["exceptionDetails"];
            // The helpers are not there yet while a document begins.
            let is_early = fault.to_string().contains("test is not defined");
            if is_early {
                continue;
            }
            assert!(fault.is_null(), "{script}: {fault:#}");
            return found["result"]["value"].clone();
        }
    }

    /// Returns the value of an expression on the page.
    pub async fn value(&mut self, script: &str) -> Value {
        let value = timeout(PATIENCE, self.resolved(script)).await;
        value.unwrap_or_else(|_| panic!("{script} did not end"))
    }

    /// Waits until the page has run its script.
    pub async fn loaded(&mut self) {
        let loaded = "new Promise((done) => document.readyState === 'complete' ? done(true) \
            : addEventListener('load', () => done(true)))";
        self.value(loaded).await;
    }

    /// Returns the text of the first such element.
    pub async fn text(&mut self, selector: &str) -> String {
        let script = format!("test.find({}, '')?.innerText", Value::from(selector));
        let text = self.value(&script).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks an element with this text, at its place on the screen, once it is there.
    #[track_caller]
    pub fn click(&mut self, selector: &str, text: &str) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        let (selector, text) = (selector.to_owned(), text.to_owned());
        async move {
            self.see(&selector, &text).await;
            let script = format!(
                "test.place({}, {})",
                Value::from(selector.as_str()),
                Value::from(text.as_str())
            );
            let place = self.value(&script).await;
            assert_eq!(
                place["covered"], false,
                "{at}: {selector} with {text:?} is covered, or out of sight: {place}"
            );
            for kind in ["mousePressed", "mouseReleased"] {
                let event = json!({ "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1 });
                self.command("Input.dispatchMouseEvent", event).await;
            }
            self.clicks += 1;
        }
    }

    /// Moves the pointer to an element with this text, without a click.
    pub async fn point(&mut self, selector: &str, text: &str) {
        self.see(selector, text).await;
        let script = format!(
            "test.place({}, {})",
            Value::from(selector),
            Value::from(text)
        );
        let place = self.value(&script).await;
        let event = json!({ "type": "mouseMoved", "x": place["x"], "y": place["y"] });
        self.command("Input.dispatchMouseEvent", event).await;
    }

    /// Types into the element that has the focus.
    pub async fn keys(&mut self, text: &str) {
        self.command("Input.insertText", json!({ "text": text }))
            .await;
    }

    /// Presses a key, such as `Tab`, `Enter` or `/`.
    pub async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Space" => (32, " "),
            "ArrowDown" => (40, ""),
            "Backspace" => (8, ""),
            other => (other.chars().next().map_or(0, u32::from), other),
        };
        let key = if key == "Space" { " " } else { key };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.command("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Presses Tab until an element with this text has the focus. Fails if it comes round without it, or if an element on
    /// the way does not show that it has the focus.
    pub async fn tab_to(&mut self, selector: &str, text: &str) {
        let script = format!(
            "(() => {{ const at = document.activeElement; const style = getComputedStyle(at); return {{ \
             met: at.matches({}) && (at.innerText ?? '').includes({}), name: at.outerHTML.slice(0, 200), \
             body: at === document.body, outline: style.outlineStyle !== 'none' || at === document.body }} }})()",
            Value::from(selector),
            Value::from(text)
        );
        let mut way = Vec::new();
        let mut left_page = 0;
        while left_page < 2 {
            let focus = self.value(&script).await;
            if focus["met"] == true {
                assert_eq!(focus["outline"], true, "no visible focus: {focus}");
                return;
            }
            assert_eq!(focus["outline"], true, "no visible focus: {focus}");
            left_page += usize::from(focus["body"] == true);
            way.push(focus["name"].clone());
            self.press("Tab").await;
        }
        panic!("Tab never came to {selector} with {text:?}, but to {way:#?}");
    }

    /// Returns a picture of the whole page as PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        let sizes = self.command("Page.getLayoutMetrics", json!({})).await;
        let size = &sizes["cssContentSize"];
        let clip =
            json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let whole = json!({ "format": "png", "optimizeForSpeed": true, "captureBeyondViewport": true, "clip": clip });
        let taken = self.command("Page.captureScreenshot", whole).await;
        STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()
    }

    /// Returns a picture of the screen as WebP.
    pub async fn screen(&mut self) -> Vec<u8> {
        let screen = json!({ "format": "webp", "quality": 80 });
        let taken = self.command("Page.captureScreenshot", screen).await;
        STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()
    }

    /// Ends the browser, and returns once it has ended.
    pub async fn close(mut self) {
        self.attempt("Browser.close", json!({}), false).await.ok();
        self.process.wait().await.unwrap();
    }

    async fn fail(&mut self, what: &str) -> ! {
        let page = "location.href + '\\n' + document.body.innerText";
        let page = timeout(PATIENCE, self.resolved(page)).await;
        let folder = screenshots();
        let picture = self.picture().await;
        std::fs::write(folder.join("failed.png"), picture).unwrap();
        panic!(
            "{what} did not come; the page is {}\nSee failed.png in {}",
            page.unwrap_or_default().as_str().unwrap_or_default(),
            folder.display()
        );
    }

    async fn command(&mut self, method: &str, params: Value) -> Value {
        let is_of_page = self.session.is_some();
        let done = timeout(PATIENCE, self.attempt(method, params, is_of_page)).await;
        let done = done.unwrap_or_else(|_| panic!("{method} did not end: {}", self.errors()));
        done.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn attempt(
        &mut self,
        method: &str,
        params: Value,
        is_of_page: bool,
    ) -> Result<Value, Value> {
        self.last_command += 1;
        let id = self.last_command;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = self.session.as_ref().filter(|_| is_of_page) {
            message["sessionId"] = session.as_str().into();
        }
        let mut line = message.to_string().into_bytes();
        line.push(0);
        self.input.write_all(&line).await.unwrap();
        loop {
            let mut line = Vec::new();
            self.output.read_until(0, &mut line).await.unwrap();
            assert!(!line.is_empty(), "the browser has ended: {}", self.errors());
            let message: Value = serde_json::from_slice(&line[..line.len() - 1]).unwrap();
            if message["id"] != id {
                continue;
            }
            return match message.get("error") {
                Some(error) => Err(error.clone()),
                None => Ok(message["result"].clone()),
            };
        }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.profile.path().join("errors")).unwrap_or_default()
    }
}

/// Returns the folder of the pictures that tests take, which is part of the build output.
pub fn screenshots() -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_provost"));
    let target = binary.ancestors().nth(2).unwrap();
    let folder = target.join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
