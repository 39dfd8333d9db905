//! Renders the request that an agent sends, from the step's definition and the task's data.

use http::HeaderValue;

use crate::{
    definition::{Body, Method, RequestTemplate},
    task::call::CallBody,
    template::{RenderError, Scope, payload::Payload},
    values::{hidden::is_secret_header, path::path_fault},
};

/// A request, without the endpoint and the headers that Provost adds.
#[derive(Clone, PartialEq, Debug)]
pub struct Rendered {
    pub method: Method,
    /// Empty, or starts with `/`; includes the query.
    pub path: String,
    /// The names are in lower case.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Option<CallBody>,
}

impl Rendered {
    /// Returns the request as an undo can read it.
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
        // Each part is JSON, so the whole is.
        Payload::parse(json).unwrap_or_else(Payload::null)
    }
}

/// Renders a request. `body` is a body that an operator has set instead of the definition's, which is not rendered
/// then.
///
/// Values in the path are percent-encoded, and the path as a whole cannot climb: with any data, the request stays below
/// the endpoint and under the segments that the definition wrote.
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
                // The parts of the value may be secret as well.
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

#[cfg(test)]
mod tests;
