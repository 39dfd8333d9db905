//! From a step's definition and the task's data to the request that its agent sends.

use http::HeaderValue;

use crate::{
    call::CallBody,
    definition::{Body, Method, RequestTemplate},
    hidden::is_secret_header,
    payload::Payload,
    template::{RenderError, Scope},
};

/// A request, apart from where it goes and what Provost adds.
#[derive(Clone, PartialEq, Debug)]
pub struct Rendered {
    pub method: Method,
    /// Empty, or from the first `/` on, with its query.
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Option<CallBody>,
}

impl Rendered {
    /// As an undo sees it.
    pub fn as_payload(&self) -> Payload {
        let headers: serde_json::Map<_, _> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        let text = |text: &str| serde_json::Value::from(text);
        let json = format!(
            r#"{{"method":{},"path":{},"headers":{},"body":{}}}"#,
            text(self.method.as_str()),
            text(&self.path),
            serde_json::Value::Object(headers),
            self.body.as_deref().unwrap_or("null"),
        );
        // Each part is JSON.
        Payload::parse(json).unwrap_or_else(Payload::null)
    }
}

/// `body` is what an operator had sent instead of the definition's: that is not rendered then.
///
/// Values in the path are percent-encoded, and the path as a whole cannot climb: whatever the data
/// holds, the request stays below the endpoint and under the segments that the definition wrote.
pub fn render_request(
    request: &RequestTemplate,
    scope: &Scope<'_>,
    body: Option<&Payload>,
) -> Result<Rendered, RenderError> {
    let path = request.path.render_path(scope)?;
    if let Some(fault) = path_fault(&path) {
        return Err(RenderError::new(&path, fault));
    }
    let headers = request
        .headers
        .iter()
        .map(|(name, template)| {
            let value = template.render_text(scope).map_err(|error| {
                // What it is made of may be a secret as well.
                match is_secret_header(name) {
                    true => RenderError {
                        steps: error.steps,
                        ..RenderError::new(&format!("headers.{name}"), error.reason)
                    },
                    false => error,
                }
            })?;
            match HeaderValue::from_str(&value) {
                Ok(_) => Ok((name.clone(), value)),
                // The value may be a secret, so the fault contains only the name.
                Err(_) => Err(RenderError::new(
                    name,
                    "its value contains a line break or another character that is not allowed in a header",
                )),
            }
        })
        .collect::<Result<_, _>>()?;
    let body = match (body, &request.body) {
        (Some(body), _) => Some(CallBody::Whole(body.clone())),
        (None, Body::None) => None,
        (None, Body::Input) => Some(CallBody::Whole(scope.whole_input()?)),
        (None, Body::Json(template)) => Some(CallBody::Rendered(template.render(scope)?)),
    };
    Ok(Rendered {
        method: request.method,
        path,
        headers,
        body,
    })
}

/// The most times that a path is decoded.
const MOST_DECODED: usize = 4;

/// What no path may contain, from a definition or from data.
pub fn path_fault(path: &str) -> Option<&'static str> {
    if !path.is_empty() && !path.starts_with('/') {
        return Some("a path starts with `/`, or is empty");
    }
    if path.contains('#') {
        return Some("a path has no `#`: fragments are never sent");
    }
    if path.contains(|c: char| c.is_ascii_control() || c == ' ' || c == '\\') {
        return Some(
            "a path has no spaces, control characters or backslashes: percent-encode them",
        );
    }
    let whole = path.split_once('?').map_or(path, |(path, _)| path);
    has_dots(whole).then_some(
        "a path has no `.` or `..` segments, also none that are percent-encoded: they would change the path",
    )
}

/// Returns whether a path climbs, or stays where it is, for some parser: parsers decode dots, slashes and backslashes, some of them
/// several times, take a backslash for a slash, and leave out what follows a semicolon.
fn has_dots(path: &str) -> bool {
    let mut path = path.to_owned();
    for _ in 0..MOST_DECODED {
        let mut segments = path.split(['/', '\\']);
        if segments.any(|segment| matches!(segment.split(';').next(), Some("." | ".."))) {
            return true;
        }
        let decoded = decode_separators(&path);
        if decoded == path {
            return false;
        }
        path = decoded;
    }
    // Encoded again and again, it is nothing that anybody means.
    true
}

/// Decodes what may become a separator, a dot or another encoding.
fn decode_separators(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let encoded = rest.get(at + 1..at + 3).map(str::to_ascii_lowercase);
        let letter = match encoded.as_deref() {
            Some("2e") => '.',
            Some("2f") => '/',
            Some("5c") => '\\',
            Some("3b") => ';',
            Some("25") => '%',
            _ => {
                decoded.push('%');
                rest = &rest[at + 1..];
                continue;
            }
        };
        decoded.push(letter);
        rest = &rest[at + 3..];
    }
    decoded + rest
}

#[cfg(test)]
mod tests;
