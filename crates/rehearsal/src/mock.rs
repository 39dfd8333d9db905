//! The mocked responses of services in a file.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use provost_domain::{
    template::Payload,
    values::{FieldFault, Fields, Span, text},
};
use serde_json::value::RawValue;

/// The mocked behaviour of a service at one call.
#[derive(Clone, Debug)]
pub struct Mock {
    /// The JSON pointer of the mock in the file.
    pub pointer: String,
    /// The time until the response.
    pub delay: Span,
    pub behaviour: Behaviour,
}

#[derive(Clone, Debug)]
pub enum Behaviour {
    Responds(Box<MockResponse>),
    /// No response comes, however long the call waits.
    Never,
    /// The connection breaks after the request was sent.
    Dropped,
    /// No connection can be made.
    Unreachable,
}

#[derive(Clone, Debug, Default)]
pub struct MockResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Option<Payload>,
    /// The reply that the service sends later.
    pub later: Option<LaterMock>,
}

/// A reply that comes later.
#[derive(Clone, Debug)]
pub struct LaterMock {
    /// The time from the response that promised the reply.
    pub after: Span,
    pub heartbeat_every: Option<Span>,
    /// The output, or the message of an error and whether it is permanent.
    pub reply: Result<Payload, (String, bool)>,
}

impl Mock {
    pub fn responds(status: StatusCode, body: Option<Payload>) -> Self {
        Self::of(Behaviour::Responds(Box::new(MockResponse {
            status,
            body,
            ..MockResponse::default()
        })))
    }

    pub fn of(behaviour: Behaviour) -> Self {
        Self {
            pointer: String::new(),
            delay: Span::default(),
            behaviour,
        }
    }

    /// Describes the behaviour for a report.
    pub fn in_words(&self) -> String {
        let mut words = match &self.behaviour {
            Behaviour::Responds(response) => match &response.later {
                None => response.status.as_u16().to_string(),
                Some(later) => {
                    format!(
                        "{}, a reply {} later",
                        response.status.as_u16(),
                        later.after
                    )
                }
            },
            Behaviour::Never => "no response".to_owned(),
            Behaviour::Dropped => "the connection breaks".to_owned(),
            Behaviour::Unreachable => "no connection".to_owned(),
        };
        if self.delay > Span::default() {
            words.push_str(&format!(" after {}", self.delay));
        }
        words
    }

    /// Reads one response, or a list: the first is for the first call, and the last for all that follow.
    pub fn read_all(value: &RawValue, pointer: &str) -> Result<Vec<Self>, Vec<FieldFault>> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
            return Self::read(value, pointer).map(|mock| vec![mock]);
        };
        if items.is_empty() {
            let message = "is empty: give a response, such as { status: 200 }";
            return Err(vec![FieldFault::new(pointer, message)]);
        }
        let mut faults = Vec::new();
        let mut mocks = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            match Self::read(item, &format!("{pointer}/{index}")) {
                Ok(mock) => mocks.push(mock),
                Err(found) => faults.extend(found),
            }
        }
        match faults.is_empty() {
            true => Ok(mocks),
            false => Err(faults),
        }
    }

    fn read(value: &RawValue, pointer: &str) -> Result<Self, Vec<FieldFault>> {
        let mut fields = Fields::of(value, pointer)?;
        let of_responses = ["status", "body", "headers", "later"];
        let responds = of_responses
            .into_iter()
            .find(|name| fields.peek(name).is_some());
        let status = fields.integer("status", 200..=599);
        let body = fields.raw("body").map(Payload::new);
        let headers = headers(&mut fields);
        let later = later(&mut fields);
        let delay = fields.span("delay", Span::default()..=Span::LONGEST);
        let mut chosen: Option<(&str, Behaviour)> = None;
        for (name, behaviour) in [
            ("never", Behaviour::Never),
            ("dropped", Behaviour::Dropped),
            ("unreachable", Behaviour::Unreachable),
        ] {
            if fields.boolean(name) != Some(true) {
                continue;
            }
            let other = responds.or(chosen.as_ref().map(|(other, _)| *other));
            if let Some(other) = other {
                fields.fault(
                    name,
                    format!("does not go with `{other}`: remove one of them"),
                );
            }
            chosen = Some((name, behaviour));
        }
        if let Some(("never", _)) = chosen
            && delay.is_some()
        {
            fields.fault("delay", "does not go with `never`: remove one of them");
        }
        fields.finish()?;
        let behaviour = match chosen {
            Some((_, behaviour)) => behaviour,
            None => Behaviour::Responds(Box::new(MockResponse {
                // The value is within 200 to 599.
                status: status
                    .and_then(|status| StatusCode::from_u16(status as u16).ok())
                    .unwrap_or_default(),
                headers,
                body,
                later,
            })),
        };
        Ok(Self {
            pointer: pointer.to_owned(),
            delay: delay.unwrap_or_default(),
            behaviour,
        })
    }
}

fn headers(fields: &mut Fields<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, pointer, value) in fields.entries("headers") {
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{name:?} is not a valid header name"))
            .and_then(|name| {
                let value = text(value.get()).ok_or("must be a string: quote it")?;
                let value = HeaderValue::from_str(&value)
                    .map_err(|_| "contains a character that is not allowed in a header")?;
                Ok((name, value))
            });
        match header {
            Ok((name, value)) => {
                headers.append(name, value);
            }
            Err(message) => fields.extend([FieldFault::new(pointer, message)]),
        }
    }
    headers
}

fn later(fields: &mut Fields<'_>) -> Option<LaterMock> {
    let mut later = fields.object("later")?;
    let after = later.span("after", Span::default()..=Span::LONGEST);
    let heartbeat_every = later.span("heartbeat_every", Span::from_millis(100)..=Span::LONGEST);
    let has_error = later.peek("error").is_some();
    let output = later.raw("output").map(Payload::new);
    let error = later.object("error").map(|mut error| {
        if error.peek("message").is_none() {
            error.missing("message", "say why the service failed");
        }
        let message = error.string("message", 4096).unwrap_or_default();
        let permanent = error.boolean("permanent").unwrap_or_default();
        ((message, permanent), error.finish())
    });
    let error = error.map(|(error, faults)| {
        if let Err(faults) = faults {
            later.extend(faults);
        }
        error
    });
    if has_error && output.is_some() {
        later.fault("error", "give either `output` or `error`, not both");
    }
    if let Err(faults) = later.finish() {
        fields.extend(faults);
        return None;
    }
    Some(LaterMock {
        after: after.unwrap_or_default(),
        heartbeat_every,
        reply: match error {
            Some(error) => Err(error),
            None => Ok(output.unwrap_or_else(Payload::null)),
        },
    })
}
