//! The body of an HTML form: limited in size, in time and in the number of its fields.

use std::sync::Arc;

use axum::{
    extract::{FromRef, FromRequest, Request},
    http::header,
};
use percent_encoding::percent_decode;

use super::body::{BodyLimit, read};
use crate::api::{
    problem::{Problem, ProblemKind},
    state::App,
};

/// The longest form, in bytes. A browser encodes a character as up to twelve.
const LONGEST: usize = 64 * 1024;
const MOST_FIELDS: usize = 64;

/// Names and values, in the order in which they were sent.
#[derive(Debug)]
pub struct FormBody(pub Vec<(String, String)>);

impl FromRequest<Arc<App>> for FormBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let media_type = content_type.unwrap_or_default().split(';').next();
        let is_form = media_type.is_some_and(|media_type| {
            media_type
                .trim()
                .eq_ignore_ascii_case("application/x-www-form-urlencoded")
        });
        if !is_form {
            return Err(Problem::new(
                ProblemKind::NotJson,
                "the answer is sent by the form of this page, as application/x-www-form-urlencoded",
            ));
        }
        let limit = BodyLimit::from_ref(app);
        let limit = BodyLimit {
            length: limit.length.min(LONGEST),
            ..limit
        };
        parse(&read(request, limit).await?).map(Self)
    }
}

fn parse(body: &[u8]) -> Result<Vec<(String, String)>, Problem> {
    let mut fields = Vec::new();
    for pair in body
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
    {
        if fields.len() >= MOST_FIELDS {
            let detail = format!("the form has more than {MOST_FIELDS} fields");
            return Err(Problem::new(ProblemKind::BodyTooLarge, detail));
        }
        let at = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = match at {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &[][..]),
        };
        fields.push((decoded(name)?, decoded(value)?));
    }
    Ok(fields)
}

fn decoded(text: &[u8]) -> Result<String, Problem> {
    let spaced: Vec<u8> = text
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    let text = percent_decode(&spaced).decode_utf8().map_err(|_| {
        Problem::new(
            ProblemKind::MalformedJson,
            "the form is not encoded as UTF-8",
        )
    })?;
    // Browsers send line ends as CR LF.
    Ok(text.replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Vec<(String, String)> {
        parse(body.as_bytes()).unwrap()
    }

    #[test]
    fn a_form_is_read_as_a_browser_sends_it() {
        let read =
            fields("choice=approve&comment=fine%2C+go%0D%0Anow+%F0%9F%91%8D&field.a=&b&&c=%");
        let expected = [
            ("choice", "approve"),
            ("comment", "fine, go\nnow \u{1f44d}"),
            ("field.a", ""),
            ("b", ""),
            ("c", "%"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read, expected);
    }

    #[test]
    fn too_many_fields_and_other_encodings_are_refused() {
        assert!(parse("a=1&".repeat(MOST_FIELDS).as_bytes()).is_ok());
        assert!(parse("a=1&".repeat(MOST_FIELDS + 1).as_bytes()).is_err());
        assert!(parse(b"a=%ff").is_err());
    }
}
