//! The client of the API: one request and its response.

use std::{error::Error, fs, io, sync::Once, time::Duration};

use reqwest::{Certificate, Client, ClientBuilder, StatusCode, Url, header};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::{
    context::Target,
    operations::Operation,
    outcome::{ClientError, ProblemJson},
    page,
};

/// A request without a wait of its own.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most items of one page.
const MOST_ITEMS: usize = 500;

/// Returns a client for a Provost that is used from outside: connections are kept, small requests are sent at once, and
/// nothing is redirected, repeated or sent through a proxy.
pub fn http_client() -> Result<Client, reqwest::Error> {
    build(&|builder| builder)
}

fn build(change: &dyn Fn(ClientBuilder) -> ClientBuilder) -> Result<Client, reqwest::Error> {
    static CRYPTO: Once = Once::new();
    // It fails only if a provider is installed already, which is sufficient.
    CRYPTO.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let builder = || {
        change(
            Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never().max_retries_per_request(0))
                .no_proxy()
                .tcp_nodelay(true)
                .connect_timeout(Duration::from_secs(5)),
        )
    };
    // A bare container has no certificates, which is no reason to refuse plain HTTP.
    builder().build().or_else(|_| {
        let trusts_nobody = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder().tls_backend_preconfigured(trusts_nobody).build()
    })
}

/// Returns the error of TLS, if it is one.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(deeper) = cause {
        if let Some(found) = deeper.downcast_ref() {
            return Some(found);
        }
        // The source of an error of I/O is that of the error within it, which is the one of TLS.
        let within = deeper
            .downcast_ref::<io::Error>()
            .and_then(|error| error.get_ref());
        cause = match within {
            Some(within) => Some(within),
            None => deeper.source(),
        };
    }
    None
}

/// Says what failed in TLS, and what to do.
fn tls_in_words(error: &rustls::Error) -> String {
    use rustls::CertificateError as Wrong;
    match error {
        rustls::Error::InvalidCertificate(Wrong::UnknownIssuer) => {
            "nothing that this machine trusts has signed its certificate: give the certificate that did with --ca".to_owned()
        }
        rustls::Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "its certificate has expired: it needs a new one, or this machine's clock is wrong".to_owned()
        }
        rustls::Error::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
            "its certificate is not valid yet, or this machine's clock is wrong".to_owned()
        }
        rustls::Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            "its certificate is for another name: use the address that the certificate names".to_owned()
        }
        rustls::Error::InvalidCertificate(Wrong::BadSignature) => {
            "the certificate of --ca has the right name and has not signed its certificate: --ca needs the one that did".to_owned()
        }
        rustls::Error::InvalidCertificate(Wrong::Revoked) => "its certificate was revoked".to_owned(),
        // A self-signed certificate that `openssl req -x509` makes is one that signs others.
        rustls::Error::InvalidCertificate(wrong) if format!("{wrong:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is one that signs others, which no server may have: it needs one with basicConstraints CA:FALSE, and --ca the one that signed it".to_owned()
        }
        rustls::Error::InvalidCertificate(wrong) => format!(
            "its certificate cannot be used: {wrong}; --ca names the certificate that has signed it"
        ),
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS: its address may have http:// and not https://".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

/// Returns the text of the innermost cause, which is more useful than "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A server.
#[derive(Clone, Debug)]
pub struct Api {
    client: Client,
    /// The address as the person gave it.
    shown: String,
    base: Url,
    token: Option<String>,
}

/// A response of 2xx.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    pub status: u16,
    pub etag: Option<String>,
    pub text: String,
    request: String,
}

/// A list: the response of its last page, with the items of all pages.
#[derive(Debug)]
pub struct Listing {
    pub items: Vec<Box<RawValue>>,
    pub page: String,
}

#[derive(Deserialize)]
struct RawPage {
    items: Vec<Box<RawValue>>,
    #[serde(default)]
    next_cursor: Option<String>,
}

impl Api {
    pub fn new(target: &Target) -> Result<Self, ClientError> {
        let shown = target.url.trim_end_matches('/').to_owned();
        let wrong = |cause: &str| {
            ClientError::usage(format!(
                "{shown:?} is not a server such as http://127.0.0.1:8080, https://provost.example or unix:/run/provost.sock: {cause}"
            ))
        };
        let certificates = match &target.ca {
            None => Vec::new(),
            Some(path) => {
                let pem = fs::read(path).map_err(|error| ClientError::file(path, error))?;
                let read = Certificate::from_pem_bundle(&pem);
                let read = read.map_err(|error| {
                    ClientError::usage(format!("{}: {}", path.display(), cause(&error)))
                })?;
                if read.is_empty() {
                    return Err(ClientError::usage(format!(
                        "{} has no certificate in PEM",
                        path.display()
                    )));
                }
                read
            }
        };
        let socket = shown.strip_prefix("unix:").map(str::to_owned);
        let client = build(&|builder| {
            let builder = match certificates.is_empty() {
                true => builder,
                false => builder.tls_certs_merge(certificates.clone()),
            };
            match &socket {
                Some(path) => builder.unix_socket(path.as_str()),
                None => builder,
            }
        });
        let base = match &socket {
            Some(_) => Url::parse("http://localhost"),
            None => Url::parse(&shown),
        };
        let base = base.map_err(|error| match shown.contains("://") {
            true => wrong(&error.to_string()),
            false => wrong("it does not begin with http:// or https://"),
        })?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong("the scheme is neither http nor https"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(ClientError::usage(
                "the address of the server has a user or a password, which Provost does not take: give a token with --token-file, PROVOST_TOKEN or provost login",
            ));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("it has a ? or a #"));
        }
        let is_of_header = |c: char| c.is_ascii_graphic();
        if target
            .token
            .as_ref()
            .is_some_and(|token| !token.chars().all(is_of_header))
        {
            return Err(ClientError::usage(
                "the token has a character that no token has, such as a space or the end of a line: is it one token alone?",
            ));
        }
        Ok(Self {
            client: client.map_err(|error| wrong(&cause(&error)))?,
            shown,
            base,
            token: target.token.clone(),
        })
    }

    /// Returns the address of the server as the person gave it.
    pub fn server(&self) -> &str {
        &self.shown
    }

    /// Returns a request. `parts` are the values of the parameters in the path, in order.
    pub fn request<'a>(&'a self, operation: &'a Operation, parts: &[&str]) -> ApiRequest<'a> {
        // An address has no such part: it would be that of something else.
        let is_of_address = |part: &&&str| !matches!(**part, "" | "." | "..");
        let unusable = parts.iter().find(|part| !is_of_address(part));
        let unusable = unusable.map(|part| (*part).to_owned());
        let mut parts = parts.iter();
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            for segment in operation.path.split('/').skip(1) {
                match segment.starts_with('{') {
                    true => path.push(parts.next().unwrap_or(&"")),
                    false => path.push(segment),
                };
            }
        }
        ApiRequest {
            api: self,
            operation,
            url,
            unusable,
            headers: Vec::new(),
            body: None,
            media_type: "application/json",
            patience: Some(PATIENCE),
        }
    }

    /// Reads the pages of a list until there are `most` items.
    pub async fn list(
        &self,
        operation: &Operation,
        parts: &[&str],
        query: &[(&str, String)],
        most: usize,
    ) -> Result<Listing, ClientError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut request = self.request(operation, parts);
            for (name, value) in query {
                request = request.query(name, value);
            }
            let limit = (most - items.len()).clamp(1, MOST_ITEMS);
            request = request.query("limit", &limit.to_string());
            if let Some(cursor) = &cursor {
                request = request.query("cursor", cursor);
            }
            let response = request.send().await?;
            let page: RawPage = response.read()?;
            let is_first = items.is_empty();
            items.extend(page.items);
            cursor = page.next_cursor;
            if items.len() >= most || cursor.is_none() {
                let page = match is_first {
                    true => response.text,
                    false => with_items(&response.text, &items),
                };
                return Ok(Listing { items, page });
            }
        }
    }
}

/// Returns the response of a page with other items.
pub fn with_items(page: &str, items: &[Box<RawValue>]) -> String {
    type Members<'a> = serde_json::Map<String, Value>;
    let Ok(mut members) = serde_json::from_str::<Members<'_>>(page) else {
        return page.to_owned();
    };
    members.shift_remove("items");
    let rest = Value::Object(members).to_string();
    let items: Vec<_> = items.iter().map(|item| item.get()).collect();
    let rest = rest.trim_start_matches('{');
    let comma = if rest == "}" { "" } else { "," };
    format!("{{\"items\":[{}]{comma}{rest}", items.join(","))
}

impl Listing {
    /// Returns the items as one type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<Vec<T>, ClientError> {
        let read = self
            .items
            .iter()
            .map(|item| parse("a list", 200, item.get()));
        read.collect()
    }
}

/// A request that is not sent yet.
#[derive(Debug)]
pub struct ApiRequest<'a> {
    api: &'a Api,
    operation: &'a Operation,
    url: Url,
    /// A value of the path that no name and no id can be.
    unusable: Option<String>,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
    media_type: &'static str,
    patience: Option<Duration>,
}

impl ApiRequest<'_> {
    pub fn query(mut self, name: &str, value: &str) -> Self {
        debug_assert!(
            self.operation.query.contains(&name),
            "{name} is not declared"
        );
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets a body of the members that the operation declares.
    pub fn body(self, members: &Value) -> Self {
        let names = members
            .as_object()
            .into_iter()
            .flat_map(|members| members.keys());
        for name in names {
            debug_assert!(
                self.operation.body.contains(&name.as_str()),
                "{name} is not declared"
            );
        }
        self.document(members.to_string())
    }

    /// Sets a body that the person wrote.
    pub fn document(mut self, json: String) -> Self {
        self.body = Some(json);
        self
    }

    /// Sets a body in the form of a page.
    pub fn form(mut self, fields: &[(String, String)]) -> Self {
        let mut pairs = Url::parse("http://form").ok();
        if let Some(url) = &mut pairs {
            url.query_pairs_mut().extend_pairs(fields);
        }
        self.body = pairs.and_then(|url| url.query().map(str::to_owned));
        self.media_type = "application/x-www-form-urlencoded";
        self
    }

    /// Waits so much longer for the response.
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.patience = Some(PATIENCE + wait);
        self
    }

    /// Waits at most so long for the response.
    pub fn within(mut self, most: Duration) -> Self {
        self.patience = self.patience.map(|patience| patience.min(most));
        self
    }

    /// Returns the name for errors. The path itself may have a token.
    fn name(&self) -> String {
        format!("{} {}", self.operation.method, self.operation.path)
    }

    async fn response(self) -> Result<reqwest::Response, ClientError> {
        let (api, name) = (self.api, self.name());
        let response = self.any_response().await?;
        match response.status().is_success() {
            true => Ok(response),
            false => {
                let status = response.status();
                let text = response
                    .text()
                    .await
                    .map_err(|error| api.no_response(&error))?;
                Err(api.refused(&name, status, &text))
            }
        }
    }

    /// Sends the form of a page. If it is refused, the page says why.
    pub async fn send_form(self) -> Result<(), ClientError> {
        let (api, name) = (self.api, self.name());
        let response = self.any_response().await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let text = response.text().await;
        let text = text.map_err(|error| api.no_response(&error))?;
        match page::problem(status.as_u16(), &text) {
            Some(problem) if status.is_client_error() => {
                Err(ClientError::Refused(Box::new(problem), api.shown.clone()))
            }
            _ => Err(api.refused(&name, status, &text)),
        }
    }

    async fn any_response(self) -> Result<reqwest::Response, ClientError> {
        let api = self.api;
        if let Some(unusable) = self.unusable {
            return Err(ClientError::NotFound(format!(
                "{unusable:?} does not exist: it is no name and no id"
            )));
        }
        let mut request = api.client.request(self.operation.method.clone(), self.url);
        if let Some(patience) = self.patience {
            request = request.timeout(patience);
        }
        if let Some(token) = &api.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = self.body {
            request = request
                .header(header::CONTENT_TYPE, self.media_type)
                .body(body);
        }
        let sent = request.send().await;
        sent.map_err(|error| api.no_response(&error))
    }

    pub async fn send(self) -> Result<ApiResponse, ClientError> {
        let (api, request) = (self.api, self.name());
        let response = self.response().await?;
        let etag = response.headers().get(header::ETAG);
        Ok(ApiResponse {
            status: response.status().as_u16(),
            etag: etag.and_then(|etag| Some(etag.to_str().ok()?.to_owned())),
            text: response
                .text()
                .await
                .map_err(|error| api.no_response(&error))?,
            request,
        })
    }

    /// Sends the request, and returns the response as it comes, for as long as the server sends.
    pub async fn stream(mut self) -> Result<reqwest::Response, ClientError> {
        self.patience = None;
        self.header("accept", "text/event-stream").response().await
    }
}

impl Api {
    pub fn no_response(&self, error: &reqwest::Error) -> ClientError {
        let server = self.shown.clone();
        if let Some(error) = tls_error(error) {
            let cause = tls_in_words(error);
            return ClientError::Tls { server, cause };
        }
        match error.is_connect() || error.is_timeout() {
            true => ClientError::NoResponse {
                server,
                cause: cause(error),
                was_sent: !error.is_connect(),
            },
            false => ClientError::BrokenResponse {
                server,
                cause: cause(error),
            },
        }
    }

    fn refused(&self, request: &str, status: StatusCode, text: &str) -> ClientError {
        match serde_json::from_str::<ProblemJson>(text) {
            Ok(problem) if problem.status == status.as_u16() => {
                ClientError::Refused(Box::new(problem), self.shown.clone())
            }
            _ => ClientError::Unreadable {
                request: request.to_owned(),
                cause: format!("the status is {status}"),
                status: status.as_u16(),
            },
        }
    }
}

impl ApiResponse {
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        parse(&self.request, self.status, &self.text)
    }
}

fn parse<T: DeserializeOwned>(request: &str, status: u16, text: &str) -> Result<T, ClientError> {
    serde_json::from_str(text).map_err(|error| ClientError::Unreadable {
        request: request.to_owned(),
        cause: error.to_string(),
        status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::{COMPARE_TASKS, GET_TASK, LIST_TASKS};

    fn api(url: &str) -> Result<Api, ClientError> {
        Api::new(&Target {
            url: url.to_owned(),
            token: None,
            ca: None,
        })
    }

    #[test]
    fn a_path_takes_its_parts_escaped_below_that_of_the_server() {
        let api = api("https://example.org/provost/").unwrap();
        let request = api.request(&COMPARE_TASKS, &["a/b", "c d"]);
        assert_eq!(
            request.url.as_str(),
            "https://example.org/provost/v1/tasks/a%2Fb/diff/c%20d"
        );
        let request = api.request(&LIST_TASKS, &[]).query("label", "a:b&c");
        assert_eq!(request.url.query(), Some("label=a%3Ab%26c"));
    }

    #[tokio::test]
    async fn a_name_that_an_address_cannot_have_does_not_exist() {
        let api = api("http://127.0.0.1:1").unwrap();
        for name in ["", ".", ".."] {
            let sent = api.request(&GET_TASK, &[name]).send().await;
            assert!(matches!(sent, Err(ClientError::NotFound(_))), "{sent:?}");
        }
    }

    #[test]
    fn a_fault_of_tls_comes_with_what_to_do() {
        let issuer = rustls::CertificateError::UnknownIssuer;
        assert!(tls_in_words(&issuer.into()).contains("--ca"));
        let no_tls = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert!(tls_in_words(&no_tls).contains("http://"));
    }

    #[test]
    fn only_http_and_sockets_are_servers() {
        assert!(api("unix:/run/provost.sock").is_ok());
        for wrong in [
            "",
            "localhost:8080",
            "ftp://example.org",
            "example.org",
            "http://example.org?a",
            "http://ada:secret@example.org",
        ] {
            let refused = api(wrong).unwrap_err().to_string();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_and_two_tokens_in_one_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        fs::write(&ca, "no certificate\n").unwrap();
        let target = |token: &str, ca: Option<&std::path::Path>| Target {
            url: "http://127.0.0.1:8080".to_owned(),
            token: Some(token.to_owned()),
            ca: ca.map(Into::into),
        };
        let refused = Api::new(&target("t", Some(&ca))).unwrap_err().to_string();
        assert!(refused.contains("has no certificate"), "{refused}");
        let refused = Api::new(&target("one\ntwo", None)).unwrap_err().to_string();
        assert!(
            refused.contains("token") && !refused.contains("two"),
            "{refused}"
        );
    }

    #[test]
    fn pages_become_one_page_with_the_rest_of_the_last() {
        let items: Vec<Box<RawValue>> = serde_json::from_str("[{\"a\":1.0},2]").unwrap();
        let page = with_items(
            r#"{"items":[2],"next_cursor":null,"examined_back_to":"x"}"#,
            &items,
        );
        assert_eq!(
            page,
            r#"{"items":[{"a":1.0},2],"next_cursor":null,"examined_back_to":"x"}"#
        );
        assert_eq!(
            with_items(r#"{"items":[2]}"#, &items),
            r#"{"items":[{"a":1.0},2]}"#
        );
    }
}
