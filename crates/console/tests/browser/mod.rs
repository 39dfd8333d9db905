//! A visitor who reads pages with a parser of HTML, and an API that returns what a test wants.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use axum::{Router, body::Body, extract::Request};
use flate2::read::GzDecoder;
use html5ever::{parse_document, tendril::TendrilSink};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use markup5ever_rcdom::{Handle, NodeData, RcDom};
use provost_console::{Call, Installation, MemorySessions, Person, Reply, Role, Service};
use tower::ServiceExt;

/// A request that the console has sent to the API.
#[derive(Clone)]
pub struct Sent {
    pub method: String,
    pub target: String,
    pub body: String,
    headers: HeaderMap,
}

impl Sent {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

#[derive(Default)]
struct State {
    /// The responses, by method and path.
    responses: HashMap<String, (StatusCode, String)>,
    /// The same, for bodies with a text.
    special: Vec<(String, String, String)>,
    calls: Vec<Sent>,
    tokens: Vec<(String, Person)>,
    needs_token: bool,
}

#[derive(Clone, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    base: String,
    has_no_public_url: bool,
}

impl FakeApi {
    pub fn without_public_url(mut self) -> Self {
        self.has_no_public_url = true;
        self
    }

    pub fn returns(&self, what: &str, body: &serde_json::Value) {
        let mut state = self.state.lock().unwrap();
        state
            .responses
            .insert(what.to_owned(), (StatusCode::OK, body.to_string()));
    }

    pub fn returns_for(&self, what: &str, text: &str, body: &serde_json::Value) {
        let mut state = self.state.lock().unwrap();
        state
            .special
            .push((what.to_owned(), text.to_owned(), body.to_string()));
    }

    pub fn refuses(&self, what: &str, status: StatusCode, detail: &str) {
        let problem = serde_json::json!({"type": "/problems/some", "title": "Refused", "status": status.as_u16(), "detail": detail});
        self.refuses_with(what, status, &problem);
    }

    pub fn refuses_with(&self, what: &str, status: StatusCode, problem: &serde_json::Value) {
        let mut state = self.state.lock().unwrap();
        state
            .responses
            .insert(what.to_owned(), (status, problem.to_string()));
    }

    pub fn below(mut self, base: &str) -> Self {
        base.clone_into(&mut self.base);
        self
    }

    pub fn with_token(self, token: &str, name: &str, role: &str) -> Self {
        let person = Person {
            name: name.to_owned(),
            role: match role {
                "read" => Role::Read,
                "submit" => Role::Submit,
                _ => Role::Operate,
            },
            credential: Some([7; 32]),
        };
        {
            let mut state = self.state.lock().unwrap();
            state.tokens.push((token.to_owned(), person));
            state.needs_token = true;
        }
        self
    }

    pub fn forget_tokens(&self) {
        self.state.lock().unwrap().tokens.clear();
    }

    pub fn calls(&self) -> Vec<Sent> {
        self.state.lock().unwrap().calls.clone()
    }
}

#[async_trait]
impl Service for FakeApi {
    fn installation(&self) -> Installation {
        if self.has_no_public_url {
            return Installation::default();
        }
        Installation {
            base: self.base.clone(),
            host: Some(String::from("provost.example")),
            origin: Some(String::from("https://provost.example")),
            is_https: true,
            version: "0.1.0",
            instance: String::from("eu-1"),
        }
    }

    fn needs_token(&self) -> bool {
        self.state.lock().unwrap().needs_token
    }

    fn person_without_token(&self) -> Option<Person> {
        Some(Person {
            name: String::from("anonymous"),
            role: Role::Admin,
            credential: None,
        })
    }

    fn person_of_token(&self, token: &str) -> Option<Person> {
        let state = self.state.lock().unwrap();
        let found = state.tokens.iter().find(|(known, _)| known == token);
        found.map(|(_, person)| person.clone())
    }

    fn person_of_credential(&self, credential: &[u8; 32]) -> Option<Person> {
        let state = self.state.lock().unwrap();
        let mut people = state.tokens.iter().map(|(_, person)| person);
        people
            .find(|person| person.credential.as_ref() == Some(credential))
            .cloned()
    }

    async fn call(&self, _: &Person, call: Call) -> Reply {
        let path = call.target.split('?').next().unwrap_or_default();
        let what = format!("{} {path}", call.method);
        let body = call.body.unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        let is_meant =
            |(known, text, _): &&(String, String, String)| *known == what && body.contains(text);
        let special = state.special.iter().find(is_meant);
        let special = special.map(|(.., response)| (StatusCode::OK, response.clone()));
        let known = special.or_else(|| state.responses.get(&what).cloned());
        let (status, response) = known.unwrap_or_else(|| {
            let problem = r#"{"type":"/problems/not-found","title":"Not found","status":404,"detail":"no such thing"}"#;
            (StatusCode::NOT_FOUND, problem.to_owned())
        });
        state.calls.push(Sent {
            method: call.method.to_string(),
            target: call.target,
            body,
            headers: call.headers,
        });
        Reply {
            status,
            headers: HeaderMap::new(),
            body: response.into_bytes(),
        }
    }
}

pub struct Visitor(Router);

impl Visitor {
    pub fn of(api: FakeApi) -> Self {
        let sessions = Arc::new(MemorySessions::default());
        Self(provost_console::router(Arc::new(api), sessions))
    }

    pub async fn get(&self, address: &str) -> Seen {
        self.send("GET", address, &[], "").await
    }

    pub async fn post(&self, address: &str, form: &str) -> Seen {
        let own = [("sec-fetch-site", "same-origin")];
        self.send("POST", address, &own, form).await
    }

    pub async fn send(
        &self,
        method: &str,
        address: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Seen {
        let address = address
            .replace('{', "%7B")
            .replace('}', "%7D")
            .replace('"', "%22");
        let mut request = Request::builder().method(method).uri(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.0.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let bytes = body.len();
        let html = match parts.headers.get("content-encoding") {
            Some(_) => std::io::read_to_string(GzDecoder::new(&body[..])).unwrap(),
            None => String::from_utf8(body.to_vec()).unwrap(),
        };
        Seen {
            status: parts.status,
            headers: parts.headers,
            html,
            bytes,
        }
    }
}

/// A page as the parser sees it.
pub struct Seen {
    pub status: StatusCode,
    headers: HeaderMap,
    pub html: String,
    /// The length of the body as it was sent.
    pub bytes: usize,
}

#[derive(Debug)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    pub text: String,
}

impl Element {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn has_class(&self, class: &str) -> bool {
        self.attribute("class")
            .is_some_and(|all| all.split(' ').any(|one| one == class))
    }
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub fn elements(&self) -> Vec<Element> {
        let dom = parse_document(RcDom::default(), html5ever::ParseOpts::default())
            .one(self.html.as_str());
        let mut found = Vec::new();
        collect(&dom.document, &mut found);
        found
    }

    /// Returns the elements with this name, or with a class as in `.note`.
    pub fn all(&self, selector: &str) -> Vec<Element> {
        let is_meant = |element: &Element| match selector.strip_prefix('.') {
            Some(class) => element.has_class(class),
            None => element.name == selector,
        };
        self.elements().into_iter().filter(is_meant).collect()
    }

    /// Returns the text of the first such element.
    pub fn text(&self, selector: &str) -> String {
        let mut all = self.all(selector).into_iter();
        all.next().map_or_else(
            || panic!("{selector} is not on the page:\n{}", self.html),
            |first| first.text,
        )
    }
}

fn collect(node: &Handle, found: &mut Vec<Element>) {
    if let NodeData::Element { name, attrs, .. } = &node.data {
        let attributes = attrs.borrow();
        let attributes = attributes.iter().map(|attribute| {
            (
                attribute.name.local.to_string(),
                attribute.value.to_string(),
            )
        });
        let mut text = String::new();
        read_text(node, &mut text);
        found.push(Element {
            name: name.local.to_string(),
            attributes: attributes.collect(),
            text: text.trim().to_owned(),
        });
    }
    for child in node.children.borrow().iter() {
        collect(child, found);
    }
}

fn read_text(node: &Handle, text: &mut String) {
    if let NodeData::Text { contents } = &node.data {
        text.push_str(&contents.borrow());
    }
    for child in node.children.borrow().iter() {
        read_text(child, text);
    }
}
