//! Pages and files are sent compressed to browsers that accept it, as all do: the list of tasks is a tenth as long. A stream
//! of events is not, because each event has to pass at once.

use std::io::Write;

use axum::{
    body::{Body, HttpBody, to_bytes},
    extract::Request,
    middleware::Next,
    response::Response,
};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, header};

/// The types that become shorter.
const TYPES: [&str; 4] = ["text/html", "text/css", "text/javascript", "image/svg+xml"];
/// A shorter body fits into one packet all the same.
const SHORTEST: u64 = 1_000;
/// A longer body takes too long.
const LONGEST: u64 = 8 * 1024 * 1024;

/// Compresses the response, if the browser accepts that.
pub async fn compress(request: Request, next: Next) -> Response {
    let is_accepted = accepts_gzip(request.headers());
    let response = next.run(request).await;
    let (mut parts, body) = response.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_text = TYPES.iter().any(|of| kind.starts_with(of));
    let length = body.size_hint().exact().unwrap_or_default();
    let is_worth_it = (SHORTEST..=LONGEST).contains(&length);
    if !is_text || !is_worth_it || parts.headers.contains_key(header::CONTENT_ENCODING) {
        return Response::from_parts(parts, body);
    }
    let vary = HeaderValue::from_static("accept-encoding");
    parts.headers.append(header::VARY, vary);
    if !is_accepted {
        return Response::from_parts(parts, body);
    }
    // The body is whole in memory already, so that reading it cannot fail.
    let whole = to_bytes(body, usize::MAX).await.unwrap_or_default();
    match gzip(&whole) {
        Ok(short) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            let gzip = HeaderValue::from_static("gzip");
            parts.headers.insert(header::CONTENT_ENCODING, gzip);
            Response::from_parts(parts, Body::from(short))
        }
        Err(_) => Response::from_parts(parts, Body::from(whole)),
    }
}

fn gzip(whole: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut short = GzEncoder::new(Vec::with_capacity(whole.len() / 4), Compression::new(4));
    short.write_all(whole)?;
    short.finish()
}

/// Returns whether `Accept-Encoding` has gzip, and not with the weight 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let mut codings = accepted.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.replace(' ', "").strip_prefix("q=")?.parse().ok());
        is_gzip && weight != Some(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_accept_it() {
        for (accepted, is_accepted) in [
            ("gzip, deflate, br", true),
            ("br;q=1, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("identity", false),
            ("xgzip", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, accepted.parse().unwrap());
            assert_eq!(accepts_gzip(&headers), is_accepted, "{accepted}");
        }
    }
}
