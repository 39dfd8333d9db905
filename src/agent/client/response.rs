//! Reads the addresses that a response names. The domain decides how the response counts.

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use url::Url;

pub(in crate::agent) use crate::domain::agent::answer::{
    ResponseClass, classify, encoding, excerpt, leaves_effect_unknown, output,
};
use crate::domain::values::{LONGEST_URL, WebAddress};

const OPERATION_LOCATION: HeaderName = HeaderName::from_static("operation-location");

/// The headers in which a service names addresses.
pub(in crate::agent) const ADDRESS_HEADERS: [HeaderName; 3] = [
    OPERATION_LOCATION,
    header::LOCATION,
    header::CONTENT_LOCATION,
];

/// Returns the address at which the service promises its reply. A relative one is resolved against the URL that was
/// called.
pub(in crate::agent) fn operation_address(
    status: StatusCode,
    headers: &HeaderMap,
    called: &Url,
) -> Option<Result<String, String>> {
    let promises = status == StatusCode::ACCEPTED;
    let named = headers
        .get(OPERATION_LOCATION)
        .or_else(|| headers.get(header::LOCATION).filter(|_| promises))
        .or_else(|| headers.get(header::CONTENT_LOCATION).filter(|_| promises))?;
    Some(address_at(named, called, "the address for polling"))
}

/// Returns the address of the result of an operation. The service has responded 303, by which the operation has ended.
pub(in crate::agent) fn result_address(
    headers: &HeaderMap,
    called: &Url,
) -> Result<String, String> {
    let named = headers
        .get(header::LOCATION)
        .ok_or("the service responded 303 See Other without the Location of the result")?;
    address_at(named, called, "the address of the result")
}

/// Returns an address that a service named, as an absolute URL. The next request sends the step's headers there, and
/// their contents are for this service alone.
fn address_at(named: &HeaderValue, called: &Url, what: &str) -> Result<String, String> {
    if named.len() > LONGEST_URL {
        return Err(format!(
            "{what} that the service named is longer than {LONGEST_URL} bytes: let it name a shorter one"
        ));
    }
    let address = named
        .to_str()
        .ok()
        .and_then(|named| called.join(named).ok());
    let mut address =
        address.ok_or_else(|| format!("{what} that the service named is not a URL"))?;
    address.set_fragment(None);
    if address.origin() != called.origin() {
        return Err(format!(
            "{what} that the service named is at another origin, {}: only the origin that was called is polled",
            address.origin().ascii_serialization()
        ));
    }
    WebAddress::parse(address.as_str()).map_err(|why| format!("{what} {why}"))?;
    Ok(address.into())
}

pub(in crate::agent) fn too_large(limit: usize) -> String {
    format!(
        "the response is longer than an output may be ({limit} bytes); send less, or raise the setting `limits.max_output`"
    )
}
