//! The parts of a response that a step keeps besides its output, because its definition names them.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The status of a response, and the headers that the step keeps of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptResponse {
    #[schema(example = 201)]
    pub status: u16,
    /// The headers that `keep_headers` names and the response had, with names in lower case.
    #[schema(example = json!({"location": "/orders/41"}))]
    pub headers: BTreeMap<String, String>,
}

impl KeptResponse {
    /// The most bytes of the names and values of all headers together. A header that finds no room is left out, because
    /// the beginning of an address is another address.
    pub const LONGEST: usize = 8 << 10;

    /// Makes the record of a response. `hide` removes the secrets of the agent from a text.
    pub fn of(
        names: &[HeaderName],
        status: u16,
        headers: &HeaderMap,
        hide: impl Fn(String) -> String,
    ) -> Self {
        let mut room = Self::LONGEST;
        let mut kept = BTreeMap::new();
        for name in names {
            let values = headers.get_all(name).iter();
            let values = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
            let values: Vec<_> = values.collect();
            let value = hide(values.join(", "));
            let length = name.as_str().len() + value.len();
            if !values.is_empty() && length <= room {
                room -= length;
                kept.insert(name.as_str().to_owned(), value);
            }
        }
        Self {
            status,
            headers: kept,
        }
    }

    /// Returns the bytes of the names and values.
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        headers.map(|(name, value)| name.len() + value.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn named_headers_are_kept_within_their_bound_and_without_secrets() {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, HeaderValue::from_static("/orders/s3cret"));
        headers.append(header::LINK, HeaderValue::from_static("<a>"));
        headers.append(header::LINK, HeaderValue::from_static("<b>"));
        let long = "x".repeat(KeptResponse::LONGEST);
        headers.insert(header::ETAG, HeaderValue::from_str(&long).unwrap());
        headers.insert(header::SERVER, HeaderValue::from_static("not named"));
        let names = [header::ETAG, header::LOCATION, header::LINK, header::AGE];
        let kept = KeptResponse::of(&names, 201, &headers, |text| text.replace("s3cret", "***"));
        let of = |name: &str| kept.headers.get(name).map(String::as_str);
        assert_eq!(kept.status, 201);
        assert_eq!(of("location"), Some("/orders/***"));
        assert_eq!(of("link"), Some("<a>, <b>"));
        assert_eq!((of("etag"), of("age"), of("server")), (None, None, None));
        assert_eq!(kept.bytes(), "location/orders/***link<a>, <b>".len());
    }
}
