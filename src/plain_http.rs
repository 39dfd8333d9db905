//! The HTTP client of the commands that use a running Provost from outside, as its users do.

use std::{error::Error, time::Duration};

use crate::agent;

/// Returns a client configured like that of the agents: connections are kept, and small requests are sent at once.
pub fn client() -> Result<reqwest::Client, reqwest::Error> {
    agent::install_crypto();
    let builder = || {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never().max_retries_per_request(0))
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5))
    };
    // A bare container has no certificates, which is no reason to refuse plain HTTP.
    builder().build().or_else(|_| {
        let trusts_nobody = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder().tls_backend_preconfigured(trusts_nobody).build()
    })
}

/// Returns the text of the innermost cause, which is more useful than "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
