//! The requests of the benchmark, built once: a task of three steps, and the same three requests without Provost.

use bytes::Bytes;
use serde_json::{Value, json};

pub const AGENT: &str = "bench";
pub const WORKFLOW: &str = "bench";

const INPUT: &str = r#"{"sku":"book-7","quantity":2,"price":1800,"address":"7 Station Road"}"#;

/// The path and the body of each step, as [`workflow`] renders them with the input above and the stub's responses.
pub const STEP_BODIES: [(&str, &str); 3] = [
    ("/reservations", r#"{"sku":"book-7","quantity":2}"#),
    ("/charges", r#"{"amount":3600,"hold":"r-1001"}"#),
    ("/shipments", r#"{"to":"7 Station Road","charge":"r-1001"}"#),
];

/// Returns a pipeline in which every step reads the outputs of earlier ones, as real ones do.
pub fn workflow() -> Value {
    let bodies = [
        json!({ "sku": "{{ input.sku }}", "quantity": "{{ input.quantity }}" }),
        json!({ "amount": "{{ input.price * input.quantity }}", "hold": "{{ steps.reserve.output.id }}" }),
        json!({ "to": "{{ input.address }}", "charge": "{{ steps.charge.output.id }}" }),
    ];
    let names = ["reserve", "charge", "ship"];
    let steps = names.iter().zip(STEP_BODIES).zip(bodies);
    let steps: Vec<Value> = steps
        .map(|((name, (path, _)), body)| {
            json!({
                "name": name,
                "agent": AGENT,
                "request": { "method": "POST", "path": path, "body": body },
            })
        })
        .collect();
    json!({ "steps": steps })
}

/// Complete HTTP/1.1 requests, ready to be written.
#[derive(Clone)]
pub struct Requests {
    /// The host and the port.
    pub authority: String,
    pub submit: Bytes,
    /// A submission whose response comes when the task has ended.
    pub submit_and_wait: Bytes,
    wait_head: String,
    wait_tail: String,
    prefix: String,
    headers: String,
}

impl Requests {
    /// `prefix` is the path before `/v1`.
    pub fn new(authority: String, prefix: &str, token: Option<&str>) -> Self {
        let authorization = match token {
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let headers = format!("host: {authority}\r\n{authorization}");
        let body = format!(r#"{{"workflow":"{WORKFLOW}","input":{INPUT}}}"#);
        let submit = |more: &str| {
            let length = body.len();
            Bytes::from(format!(
                "POST {prefix}/v1/tasks HTTP/1.1\r\n{headers}content-type: application/json\r\n\
                 content-length: {length}\r\n{more}\r\n{body}"
            ))
        };
        Self {
            submit: submit(""),
            submit_and_wait: submit("prefer: wait=30\r\n"),
            wait_head: format!("GET {prefix}/v1/tasks/"),
            wait_tail: format!("?wait=30s HTTP/1.1\r\n{headers}\r\n"),
            authority,
            prefix: prefix.to_owned(),
            headers,
        }
    }

    pub fn get(&self, path: &str) -> Bytes {
        let (prefix, headers) = (&self.prefix, &self.headers);
        Bytes::from(format!("GET {prefix}{path} HTTP/1.1\r\n{headers}\r\n"))
    }

    pub fn post(&self, path: &str, json: &str) -> Bytes {
        self.post_with(path, "", json)
    }

    /// Returns a POST whose response comes when the task has ended.
    pub fn post_and_wait(&self, path: &str, json: &str) -> Bytes {
        self.post_with(path, "prefer: wait=30\r\n", json)
    }

    fn post_with(&self, path: &str, more: &str, json: &str) -> Bytes {
        let (prefix, headers) = (&self.prefix, &self.headers);
        let body_headers = match json.len() {
            0 => "content-length: 0\r\n".to_owned(),
            length => format!("content-type: application/json\r\ncontent-length: {length}\r\n"),
        };
        Bytes::from(format!(
            "POST {prefix}{path} HTTP/1.1\r\n{headers}{body_headers}{more}\r\n{json}"
        ))
    }

    /// Writes the request whose response comes when this task has ended.
    pub fn wait_for(&self, id: &[u8], request: &mut Vec<u8>) {
        request.clear();
        request.extend_from_slice(self.wait_head.as_bytes());
        request.extend_from_slice(id);
        request.extend_from_slice(self.wait_tail.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::frame;

    #[test]
    fn a_request_is_framed_as_it_says() {
        let requests = Requests::new("localhost:8080".to_owned(), "", Some("secret"));
        for request in [&requests.submit, &requests.submit_and_wait] {
            let (head, body) = frame::whole(request).unwrap().unwrap();
            assert_eq!(head + body, request.len());
            let body: Value = serde_json::from_slice(&request[head..]).unwrap();
            assert_eq!(body["input"]["price"], 1800);
            let text = String::from_utf8_lossy(request);
            assert!(text.contains("\r\nauthorization: Bearer secret\r\n"));
        }
        let mut wait = b"left over".to_vec();
        requests.wait_for(b"0197", &mut wait);
        assert!(wait.starts_with(b"GET /v1/tasks/0197?wait=30s HTTP/1.1\r\n"));
        assert_eq!(frame::whole(&wait), Ok(Some((wait.len(), 0))));
    }

    #[test]
    fn the_requests_without_provost_are_of_the_shape_that_its_steps_have() {
        let steps = workflow()["steps"].clone();
        for (step, (path, body)) in steps.as_array().unwrap().iter().zip(STEP_BODIES) {
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(step["request"]["path"], path);
            let names = |body: &Value| -> Vec<String> {
                body.as_object().unwrap().keys().cloned().collect()
            };
            assert_eq!(names(&step["request"]["body"]), names(&body));
        }
    }
}
