//! The HTTP client: names and addresses, connections, TLS, HTTP/2, one exchange, and what its response means.
//!
//! `connections` sends a request and keeps the connection. Below it, `connector` opens one over `tls`, to an address
//! that `address` allows; `http2` drives one that many calls share, `counted` limits the data on it, `times` notes
//! when its parts are done. `http` makes the
//! requests, `response` and `body` read the responses. `exchange` is a request with its response for the check of an
//! agent.

pub(super) mod address;
pub(super) mod body;
pub(super) mod connections;
pub(super) mod connector;
pub(super) mod counted;
pub(super) mod exchange;
pub(super) mod http;
pub(super) mod http2;
pub(super) mod response;
pub(super) mod times;
pub(super) mod tls;
