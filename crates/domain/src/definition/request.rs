//! The request of a step: method, path, headers and body.

use http::{HeaderName, HeaderValue, header};

use super::{Body, Method, RequestTemplate, json_template};
use crate::{
    template::{Origin, Reads, Template},
    values::{
        fields::{FieldFault, Fields, text},
        path::path_fault,
    },
};

/// Most HTTP servers accept about this number of headers, together with those that Provost adds.
const MOST_HEADERS: usize = 100;

pub(super) struct RequestDraft {
    pub path: Template,
    pub method: Method,
    headers: Vec<(String, Template)>,
    body: Body,
}

impl RequestDraft {
    pub fn finish(self) -> RequestTemplate {
        RequestTemplate {
            method: self.method,
            path: self.path,
            headers: self.headers,
            body: self.body,
        }
    }
}

/// Reads the field `request`, and collects the names that its expressions read. Without the field, the request has the
/// task's input as its body. `usual` is the method if none is named.
pub(super) fn read(
    step: &mut Fields<'_>,
    usual: Method,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<RequestDraft> {
    let given = step.has("request");
    let Some(mut fields) = step.object("request") else {
        return (!given).then(|| RequestDraft {
            path: Template::literal(""),
            method: usual,
            headers: Vec::new(),
            body: Body::Input,
        });
    };
    let wrong_method = fields.has("method");
    let method = fields.choice("method", Method::ALL);
    let path = path(&mut fields, origin, reads);
    let headers = headers(&mut fields, origin, reads);
    let body = body(&mut fields, method.unwrap_or(usual), origin, reads);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(RequestDraft {
        path: path?,
        method: if wrong_method { method? } else { usual },
        headers,
        body: body?,
    })
}

fn path(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<Template> {
    let source = fields.string("path", usize::MAX).unwrap_or_default();
    let fault = match Template::parse(&source, origin) {
        // The values of expressions are percent-encoded, so any harmless text can stand for them.
        Ok(template) => match path_fault(&template.outline("x")) {
            None => {
                note(reads, fields.pointer("path"), template.reads());
                return Some(template);
            }
            Some(fault) => fault.to_owned(),
        },
        Err(message) => message,
    };
    fields.fault("path", fault);
    None
}

fn headers(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Vec<(String, Template)> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    let given = fields.entries("headers");
    if given.len() > MOST_HEADERS {
        let message = format!(
            "{} headers are too many: at most {MOST_HEADERS}",
            given.len()
        );
        fields.fault("headers", message);
        return headers;
    }
    for (name, pointer, value) in given {
        let header = header_name(&name).and_then(|name| {
            if headers.iter().any(|(known, _)| *known == name) {
                return Err(format!("`{name}` is set twice: remove one"));
            }
            let value = text(value.get()).ok_or("must be a string")?;
            let template = Template::parse(&value, origin)?;
            // A header with an expression is checked when it is rendered.
            HeaderValue::from_str(&template.outline("")).map_err(
                |_| "contains a line break or another character that is not allowed in a header",
            )?;
            Ok((name, template))
        });
        match header {
            Ok((name, template)) => {
                note(reads, pointer, template.reads());
                headers.push((name, template));
            }
            Err(message) => fields.extend([FieldFault::new(pointer, message)]),
        }
    }
    headers
}

/// The headers that frame the message.
pub(crate) const FRAMING_HEADERS: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Refuses the framing headers, and those by which Provost identifies the attempt.
fn header_name(name: &str) -> Result<String, String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not a valid header name"))?;
    let lower = parsed.as_str();
    if FRAMING_HEADERS.contains(&parsed)
        || lower.starts_with("provost-")
        || ["idempotency-key", "traceparent"].contains(&lower)
    {
        return Err(format!("`{lower}` is set by Provost: remove it"));
    }
    Ok(lower.to_owned())
}

fn body(
    fields: &mut Fields<'_>,
    method: Method,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<Body> {
    let Some(raw) = fields.raw("body") else {
        return Some(if method.sends_body() {
            Body::Input
        } else {
            Body::None
        });
    };
    if raw.get() == "null" {
        return Some(Body::None);
    }
    if method == Method::Get {
        fields.fault(
            "body",
            "a GET has no body: remove it, or put its content into the query of the path",
        );
        return None;
    }
    json_template::parse(fields, "body", raw, origin, reads).map(Body::Json)
}

fn note(reads: &mut Vec<(String, Reads)>, pointer: String, read: Reads) {
    if !read.names.is_empty() {
        reads.push((pointer, read));
    }
}
