//! The specification of an agent: the address of its service, and the rules for calls to it.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::{HeaderName, Uri, header};
use provost_object::{Faults, Fields, Object, Span, text};

use crate::{
    agent::{
        access::{
            AgentTlsSpec, AuthSpec, ExtraFields, HttpVersion, MOST_EXTRA, MOST_SIGNATURES,
            check_extra, check_headers,
        },
        adaptive::AdaptiveSpec,
        breaker::BreakerSpec,
        downtime::{DowntimeSpec, MOST_DOWNTIMES},
        ejection::EjectionSpec,
        health::HealthSpec,
        signature::{SignSpec, repeated_headers},
    },
    definition::KeyLimit,
    queue::lanes::{Fairness, MOST_LIMITS},
    values::{
        backoff::Backoff,
        queue_address::{MAIN_BROKER, QUEUE_SCHEME, QueueAddress},
        rate::RateLimitSpec,
        web_address::{LONGEST_URL, WebAddress},
    },
};

const MOST_ENDPOINTS: usize = 32;
const LONGEST_ZONE: usize = 64;
const MOST_IN_FLIGHT: u32 = 100_000;
const MOST_OPEN: u32 = 1_000_000;

/// The endpoints of an agent's service, and how it is called; or the mode `pull`, perhaps with `limits` and `fairness`.
// An agent that is called says nothing of its mode, and one that is not says nothing of calls.
#[derive(Clone, PartialEq, Debug, Object)]
#[object(default, before = AgentSpec::need_endpoints, check = AgentSpec::check_rules)]
pub struct AgentSpec {
    #[field(default, omit_default)]
    pub mode: AgentMode,
    /// Required unless the mode is `pull`. Each call goes to the better of two endpoints: the one with fewer calls
    /// in flight, unless the other is clearly faster; failures count as slow.
    #[field(
        late,
        1..=MOST_ENDPOINTS,
        items = " endpoints, holds {count}",
        written_if = AgentSpec::is_called
    )]
    pub endpoints: Vec<Endpoint>,
    #[field(default, written_if = AgentSpec::is_called)]
    pub retry: RetrySpec,
    /// The most replies of its service that are awaited at once, by all instances: further steps wait in the queue.
    /// Calls in flight count too. Default: any number.
    #[field(late, 1..=MOST_OPEN, example = 1000)]
    pub max_open: Option<u32>,
    /// The most calls in flight at once, all instances together. Default: what the endpoints take from each instance.
    #[field(late, 1..=MOST_IN_FLIGHT, example = 20)]
    pub max_in_flight: Option<u32>,
    /// How many calls are in flight to an endpoint adapts to what it takes, between `least` and its `max_in_flight`, by the
    /// latency of calls and by refusals; each instance goes by its own calls. Not for queues. `{}` has the defaults. Default:
    /// as many as `max_in_flight` says.
    pub adaptive: Option<AdaptiveSpec>,
    /// Protects the service: an endpoint that keeps failing is not called for a while, and its steps wait. `{}` has the
    /// defaults. Default: no breaker.
    pub breaker: Option<BreakerSpec>,
    /// An endpoint that fails several times in a row gets no calls for a while, if at least half of the endpoints stay.
    /// `{}` has the defaults. Default: none is ejected.
    pub ejection: Option<EjectionSpec>,
    /// Each endpoint is asked again and again whether it is well; one that is not gets no calls until it is. Not for
    /// queues. Default: nobody asks.
    pub health: Option<HealthSpec>,
    /// How many calls may begin in a time, all instances together. Default: any number.
    pub rate_limit: Option<RateLimitSpec>,
    /// Added to every request, in place of headers of the step with these names.
    #[field(
        late,
        ..=MOST_EXTRA,
        default,
        check = check_headers,
        example = {"x-tenant": "acme", "x-api-key": {"secret": "payments-key"}}
    )]
    pub headers: ExtraFields,
    /// Added to the query of every request, in place of parameters of the step with these names.
    #[field(
        late,
        ..=MOST_EXTRA,
        default,
        check = check_extra,
        example = {"key": {"secret": "payments-key"}}
    )]
    pub query: ExtraFields,
    /// Added to every body, in place of members of the step with these names. The body must be an object then.
    #[field(
        late,
        ..=MOST_EXTRA,
        default,
        check = check_extra,
        example = {"api_key": {"secret": "payments-key"}}
    )]
    pub body: ExtraFields,
    pub auth: Option<AuthSpec>,
    /// The signatures of every request: as <https://www.standardwebhooks.com> with each of the secrets, of which the service needs
    /// to know one, or an HMAC in a header that the service verifies.
    #[field(late, ..=MOST_SIGNATURES, items = " secrets")]
    pub sign: Vec<SignSpec>,
    pub tls: Option<AgentTlsSpec>,
    /// With `2` the endpoints are called with HTTP/2 and nothing else: over `https://` they must offer it by ALPN, over `http://` it is
    /// spoken at once (prior knowledge). Not for queues. Default: 1.1.
    pub http_version: Option<HttpVersion>,
    /// What holds for each key of the tasks, such as a customer. Also for agents with the mode `pull`.
    #[field(late, ..=MOST_LIMITS, items = " limits, holds {count}")]
    pub limits: Vec<KeyLimit>,
    /// Default: steps go by priority and age alone. Also for agents with the mode `pull`.
    pub fairness: Option<Fairness>,
    /// Windows in which it is paused as by an operator, also an agent with the mode `pull`.
    #[field(late, ..=MOST_DOWNTIMES, items = " windows")]
    pub downtime: Vec<DowntimeSpec>,
    /// True if its service does the work of each `Idempotency-Key` once, however often it is called: then dry runs do not warn of that.
    #[field(default, omit_default)]
    pub idempotent: bool,
}

/// `call`, the default: it is called at its endpoints; `pull`: its workers fetch it
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Object)]
pub enum AgentMode {
    #[default]
    Call,
    Pull,
}

impl AgentSpec {
    /// Returns whether the result of each call to its endpoints matters.
    pub fn watches_calls(&self) -> bool {
        self.leaves_endpoints_out() || self.adaptive.is_some()
    }

    /// Returns whether endpoints that fail get no calls.
    pub fn leaves_endpoints_out(&self) -> bool {
        self.breaker.is_some() || self.ejection.is_some() || self.health.is_some()
    }

    /// Returns whether time alone changes its calls, or an instance must report on them although nothing happened.
    pub fn needs_looks(&self) -> bool {
        !self.downtime.is_empty() || self.endpoints.iter().any(|endpoint| endpoint.drain)
    }

    fn is_called(&self) -> bool {
        self.mode == AgentMode::Call
    }

    /// Everything that is wrong with it, each fault as the JSON pointer of what is at fault, below
    /// `pointer`, and a message.
    pub fn faults(&self, pointer: &str) -> Vec<(String, String)> {
        let faults = self.object_faults(pointer).into_iter();
        faults.map(|fault| (fault.pointer, fault.message)).collect()
    }

    fn need_endpoints(fields: &mut Fields<'_>) {
        let mode = fields.peek("mode").and_then(text);
        if !fields.has("endpoints") && mode.as_deref() != Some(AgentMode::Pull.as_str()) {
            let remedy = "give an array such as [{\"url\": \"http://10.0.0.5:8080\"}], or \"mode\": \"pull\"";
            fields.missing("endpoints", remedy);
        }
    }

    /// Checks the rules between its fields.
    fn check_rules(&self, faults: &mut Faults) {
        if self.mode == AgentMode::Pull {
            return self.check_pulled(faults);
        }
        for (i, first) in self.duplicates() {
            let message = format!(
                "is the endpoint of {}/endpoints/{first}/url once more: remove one of them; one that is to get more calls has a larger `max_in_flight`",
                faults.pointer()
            );
            faults.field(&format!("endpoints/{i}/url"), message);
        }
        if !self.endpoints.is_empty() && self.endpoints.iter().all(|endpoint| endpoint.drain) {
            let message = "at least one must take new calls, without `drain`; to keep calls from all, pause the agent: POST /v1/agents/{name}/pause";
            faults.field("endpoints", message);
        }
        let most = self.endpoints.iter().map(|endpoint| endpoint.max_in_flight);
        // A limit of zero is a fault of its own.
        let most = most
            .chain(self.max_in_flight)
            .filter(|most| *most > 0)
            .min();
        let adaptive = self.adaptive.as_ref();
        let fault = adaptive.and_then(|adaptive| adaptive.least_fault(most?));
        // One that is too large for any endpoint is a fault already.
        if let Some(message) = fault.filter(|_| !faults.has("adaptive/least")) {
            faults.field("adaptive/least", message);
        }
        let mut urls = self.endpoints.iter().map(|endpoint| &endpoint.url);
        let has_queue = urls.any(|url| url.starts_with(QUEUE_SCHEME));
        if self.health.is_some() && has_queue {
            let message = "remove it: an endpoint that is a queue cannot be checked";
            faults.field("health", message);
        }
        if self.adaptive.is_some() && has_queue {
            let message = "remove it: a queue takes every request at once, however much the service has to do; `max_open` limits the replies that are awaited";
            faults.field("adaptive", message);
        }
        self.check_access(faults);
    }

    /// Refuses all that is about calls, and says nothing else of it.
    fn check_pulled(&self, faults: &mut Faults) {
        const CALLED: &str = "remove it: an agent with the mode pull is not called";
        const RETRIED: &str = "remove it: no call to an agent with the mode pull is retried";
        const FETCHED: &str =
            "remove it: the workers of an agent with the mode pull fetch no more than they want";
        let fields = [
            ("endpoints", !self.endpoints.is_empty(), CALLED),
            ("retry", self.retry != RetrySpec::default(), RETRIED),
            ("max_open", self.max_open.is_some(), FETCHED),
            ("max_in_flight", self.max_in_flight.is_some(), CALLED),
            ("adaptive", self.adaptive.is_some(), CALLED),
            ("breaker", self.breaker.is_some(), CALLED),
            ("ejection", self.ejection.is_some(), CALLED),
            ("health", self.health.is_some(), CALLED),
            ("rate_limit", self.rate_limit.is_some(), FETCHED),
        ];
        let access = self.access_fields();
        let access = access.into_iter().map(|field| (field, true, CALLED));
        for (field, is_given, message) in fields.into_iter().chain(access) {
            faults.remove(field);
            if is_given {
                faults.field(field, message);
            }
        }
    }

    /// Returns whether the agent adds nothing to the requests of its steps.
    pub fn adds_nothing(&self) -> bool {
        self.headers.is_empty()
            && self.query.is_empty()
            && self.body.is_empty()
            && self.auth.is_none()
            && self.sign.is_empty()
            && self.tls.is_none()
    }

    /// Checks the rules between what it adds and the rest of it.
    fn check_access(&self, faults: &mut Faults) {
        let is_queue = |endpoint: &Endpoint| endpoint.url.starts_with(QUEUE_SCHEME);
        let has_queue = self.endpoints.iter().any(is_queue);
        if has_queue {
            for field in self.access_fields() {
                let message = "remove it: an agent with a queue sends no HTTP requests";
                faults.field(field, message);
            }
        }
        for at in repeated_headers(&self.sign) {
            let message = "has another signature already: give each a header of its own";
            faults.field(&format!("sign/{at}/header"), message);
        }
        for (at, sign) in self.sign.iter().enumerate() {
            let Some(header) = &sign.header else { continue };
            let is_same = |name: &String| name.eq_ignore_ascii_case(header);
            if self.headers.keys().any(is_same) {
                let message = "is one of `headers` already: remove one of them";
                faults.field(&format!("sign/{at}/header"), message);
            } else if self.auth.is_some() && header.eq_ignore_ascii_case("authorization") {
                let message = "is set by `auth` already: remove one of them";
                faults.field(&format!("sign/{at}/header"), message);
            }
        }
        let has_authorization = self.headers.keys().any(|name| {
            HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| name == header::AUTHORIZATION)
        });
        if has_authorization && self.auth.is_some() {
            let message = "remove it, or `auth`: both set the header Authorization";
            faults.field("headers/authorization", message);
        }
        let is_https = |endpoint: &Endpoint| endpoint.url.starts_with("https://");
        if self.tls.is_some() && !has_queue && !self.endpoints.iter().any(is_https) {
            let message = "remove it, or give an endpoint with https://: this one has no TLS";
            faults.field("tls", message);
        }
    }

    /// The names of the fields that say what it adds.
    fn access_fields(&self) -> Vec<&'static str> {
        let fields = [
            ("headers", !self.headers.is_empty()),
            ("query", !self.query.is_empty()),
            ("body", !self.body.is_empty()),
            ("auth", self.auth.is_some()),
            ("sign", !self.sign.is_empty()),
            ("tls", self.tls.is_some()),
            ("http_version", self.http_version.is_some()),
        ];
        let given = fields.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }

    /// Endpoints that stand there already, each with the first of them: what is known of an endpoint is known by its URL.
    fn duplicates(&self) -> Vec<(usize, usize)> {
        let endpoints = self.endpoints.iter().take(MOST_ENDPOINTS);
        let known: Vec<_> = endpoints.map(Endpoint::identity).collect();
        let first = |at: usize| known.iter().position(|other| *other == known[at]);
        let firsts = (0..known.len()).filter_map(|at| Some((at, first(at)?)));
        firsts.filter(|(at, first)| first < at).collect()
    }
}

fn check_endpoint_queue(url: &str) -> Result<(), String> {
    let address = QueueAddress::parse(url)?;
    match &*address.broker == MAIN_BROKER {
        true => Ok(()),
        false => Err(format!(
            "must name the broker of [broker], as in {QUEUE_SCHEME}{MAIN_BROKER}/{}",
            address.queue
        )),
    }
}

fn check_endpoint_url(url: &str) -> Result<(), &'static str> {
    // The parser of URIs drops a fragment without a word.
    if url.contains('#') {
        return Err("must have no fragment (#)");
    }
    let uri: Uri = url
        .parse()
        .map_err(|_| "must be a URL such as \"http://10.0.0.5:8080\"")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("must start with http:// or https://");
    }
    if uri.query().is_some() {
        return Err("must have no query (?)");
    }
    let Some(authority) = uri.authority() else {
        return Err("must name a host");
    };
    if authority.as_str().contains('@') {
        return Err(
            "must not contain a user or password: give the agent `auth`, which names a secret",
        );
    }
    let host = authority.host();
    if host.is_empty() || host == "[]" {
        return Err("must name a host");
    }
    let port = authority.as_str()[host.len()..].strip_prefix(':');
    if port.is_some_and(|port| port.parse::<u16>().unwrap_or(0) == 0) {
        return Err("must have a port from 1 to 65535, if it has one");
    }
    let is_ip = match host.strip_prefix('[') {
        Some(v6) => v6.trim_end_matches(']').parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    };
    if !is_ip && (host.starts_with('[') || ends_in_a_number(host)) {
        return Err("must name a host or a plain IP address");
    }
    Ok(())
}

/// Such a host is an IPv4 address to every URL parser, in odd spellings too (`0x7f.1`); only the plain
/// one is clear to a reader.
fn ends_in_a_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let last = host.rsplit('.').next().unwrap_or_default();
    match last.strip_prefix("0x") {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// One address of the service.
#[derive(Clone, PartialEq, Debug, Object)]
pub struct Endpoint {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user. Or a queue of the message broker:
    /// `amqp://broker/` and its name.
    #[field(
        ..=LONGEST_URL,
        required = "give a URL such as \"http://10.0.0.5:8080\"",
        check = check_endpoint,
        example = "http://10.0.0.5:8080"
    )]
    pub url: String,
    /// The most calls in flight at once, from one instance.
    #[field(late, 1..=MOST_IN_FLIGHT, default = Endpoint::default_max_in_flight(), example = 64)]
    pub max_in_flight: u32,
    /// Instances with this `instance.zone` call it rather than others, while it is well and has room.
    #[field(
        late,
        1..=LONGEST_ZONE,
        check = check_zone,
        pattern = "^[A-Za-z0-9._-]+$",
        example = "eu-central-1a"
    )]
    pub zone: Option<String>,
    /// It gets no new work, so that it can be stopped when nothing is left there; one endpoint must get some. Calls in flight
    /// continue, and so do polls and cancellations of operations that began there.
    #[field(default = false, omit_default, example = false)]
    pub drain: bool,
}

fn check_endpoint(url: &str, faults: &mut Faults) {
    let checked = match url.starts_with(QUEUE_SCHEME) {
        true => check_endpoint_queue(url),
        false => check_endpoint_url(url).map_err(str::to_owned),
    };
    if let Err(why) = checked {
        faults.add(why);
    }
}

fn check_zone(zone: &str, faults: &mut Faults) {
    if !is_zone(zone) {
        faults.add(format!("must be {ZONE_FORM}"));
    }
}

/// Returns whether a text can be the name of a zone.
pub fn is_zone(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST_ZONE).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The words of every refusal of a zone.
pub const ZONE_FORM: &str = "1 to 64 letters, digits, `-`, `_` or `.`";

impl Endpoint {
    pub const fn default_max_in_flight() -> u32 {
        64
    }

    /// The same however its URL is written.
    fn identity(&self) -> String {
        let path = self.url.parse::<Uri>();
        let path = path.as_ref().map_or("", Uri::path).trim_end_matches('/');
        match WebAddress::parse(&self.url) {
            Ok(address) => format!("{}{path}", address.origin),
            Err(_) => self.url.clone(),
        }
    }
}

/// Backoff between the tries of one call after transient faults: a random wait between zero and `initial *
/// factor^n`, at most `max`.
#[derive(Clone, PartialEq, Debug, Object)]
#[object(name = "Retry", default, check = RetrySpec::check_max)]
pub struct RetrySpec {
    #[field(late, "1ms".., default = "100ms")]
    pub initial: Span,
    #[field(default = "10s")]
    pub max: Span,
    #[field(late, 1..=10, default = 2, example = 2)]
    pub factor: u32,
    /// The most retries among the agent's calls, in percent, by each instance for its own calls of the last ten seconds;
    /// one retry a second is always made. Further ones wait, for a minute at most, and keep the time that they have to
    /// complete. Default: any number.
    #[field(late, 1..=100, example = 20)]
    pub budget_percent: Option<u32>,
}

impl RetrySpec {
    fn check_max(&self, faults: &mut Faults) {
        if self.max < self.initial {
            let initial = self.initial;
            let message = format!("must be at least as long as `initial` ({initial})");
            faults.field("max", message);
        }
    }

    pub fn backoff(&self) -> Backoff {
        Backoff {
            initial: self.initial.duration(),
            max: self.max.duration(),
            factor: self.factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(url: &str) -> AgentSpec {
        AgentSpec {
            mode: AgentMode::Call,
            endpoints: vec![Endpoint {
                url: url.to_owned(),
                max_in_flight: 64,
                zone: None,
                drain: false,
            }],
            ..AgentSpec::default()
        }
    }

    fn pointers(spec: &AgentSpec) -> Vec<String> {
        let faults = spec.faults("/agents/payments");
        faults.into_iter().map(|(pointer, _)| pointer).collect()
    }

    #[test]
    fn a_plain_http_address_is_a_good_endpoint() {
        for url in [
            "http://10.0.0.5:8080",
            "https://payments.internal",
            "http://payments",
            "http://1st.payments.3rd",
            "http://localhost:1/base/path/",
            "http://[::1]:8080/",
        ] {
            assert_eq!(spec(url).faults(""), [], "{url}");
        }
    }

    #[test]
    fn an_endpoint_that_is_given_twice_is_refused_where_it_comes_again() {
        let of = |urls: &[&str]| AgentSpec {
            endpoints: urls
                .iter()
                .map(|url| spec(url).endpoints.remove(0))
                .collect(),
            ..AgentSpec::default()
        };
        let twice = |urls: &[&str]| of(urls).duplicates();
        assert_eq!(
            twice(&["http://a", "http://b", "https://a", "http://a/x"]),
            []
        );
        let again = ["http://a/x", "http://b", "http://A:80/x/", "http://a:80/x"];
        assert_eq!(twice(&again), [(2, 0), (3, 0)]);
        let queues = ["amqp://broker/a", "amqp://broker/A", "amqp://broker/a"];
        assert_eq!(twice(&queues), [(2, 0)]);
        assert_eq!(pointers(&of(&again)).len(), 2);
    }

    #[test]
    fn an_address_that_is_more_or_less_than_that_is_refused() {
        for url in [
            "",
            "payments:8080",
            "/payments",
            "ftp://payments",
            "http://",
            "http://user@payments",
            "http://user:secret@payments:8080/",
            "http://payments?key=1",
            "http://payments/#top",
            "http://payments:99999",
            "http://payments:0",
            "http://payments:",
            "http://pay ments",
            "http://999.1.1.1",
            "http://0x7f.1",
            "http://2130706433",
            "http://[::1",
            "http://[10.0.0.1]",
        ] {
            assert_eq!(
                pointers(&spec(url)),
                ["/agents/payments/endpoints/0/url"],
                "{url}"
            );
        }
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let mut bad = spec("nowhere");
        bad.endpoints[0].max_in_flight = 0;
        bad.max_open = Some(0);
        bad.max_in_flight = Some(0);
        bad.retry = RetrySpec {
            initial: Span::default(),
            max: Span::default(),
            factor: 11,
            budget_percent: Some(0),
        };
        let all = [
            "/agents/payments/endpoints/0/url",
            "/agents/payments/endpoints/0/max_in_flight",
            "/agents/payments/retry/initial",
            "/agents/payments/retry/factor",
            "/agents/payments/retry/budget_percent",
            "/agents/payments/max_open",
            "/agents/payments/max_in_flight",
        ];
        assert_eq!(pointers(&bad), all);
        bad.endpoints.clear();
        bad.max_open = Some(1_000_000);
        bad.max_in_flight = Some(100_000);
        bad.retry = RetrySpec {
            max: Span::from_millis(99),
            ..RetrySpec::default()
        };
        let all = ["/agents/payments/endpoints", "/agents/payments/retry/max"];
        assert_eq!(pointers(&bad), all);
        let many = (1..=33).map(|port| spec(&format!("http://payments:{port}")));
        bad.endpoints = many.flat_map(|one| one.endpoints).collect();
        assert_eq!(pointers(&bad), all);
    }

    #[test]
    fn an_endpoint_may_have_a_zone_and_be_drained_if_another_is_not() {
        let spec: AgentSpec = serde_json::from_str(
            r#"{"endpoints": [{"url": "http://a", "zone": "eu-1.a", "drain": true}, {"url": "http://b"}]}"#,
        )
        .unwrap();
        assert_eq!(spec.faults(""), []);
        let json = serde_json::to_value(&spec.endpoints).unwrap();
        assert_eq!(json[0]["zone"], "eu-1.a");
        assert_eq!(json[1].as_object().unwrap().len(), 2, "{json}");
        let mut all = spec.clone();
        all.endpoints[1].drain = true;
        all.endpoints[1].zone = Some("eu 1".to_owned());
        let faults = [
            "/agents/payments/endpoints/1/zone",
            "/agents/payments/endpoints",
        ];
        assert_eq!(pointers(&all), faults);
    }

    #[test]
    fn an_agent_of_either_mode_may_have_downtime() {
        for json in [
            r#"{"mode":"pull","downtime":[{"cron":"0 2 * * SUN","for":"2h","timezone":"Europe/Berlin"}]}"#,
            r#"{"endpoints":[{"url":"http://a"}],"downtime":[{"cron":"0 2 * * SUN","for":"2h"}]}"#,
        ] {
            let spec: AgentSpec = serde_json::from_str(json).unwrap();
            assert_eq!(spec.faults(""), []);
            let again = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<AgentSpec>(&again).unwrap(), spec);
        }
        let mut bad = spec("http://payments");
        let wrong = r#"{"cron": "0 2 * *", "for": "2h"}"#;
        bad.downtime = vec![serde_json::from_str(wrong).unwrap(); 17];
        let faults = pointers(&bad);
        assert_eq!(faults.len(), 17);
        assert_eq!(
            faults[..2],
            [
                "/agents/payments/downtime",
                "/agents/payments/downtime/0/cron"
            ]
        );
    }

    #[test]
    fn a_queue_cannot_be_checked() {
        let mut queue = spec("amqp://broker/charges");
        queue.health = Some(serde_json::from_str(r#"{"path": "health"}"#).unwrap());
        let both = ["/agents/payments/health/path", "/agents/payments/health"];
        assert_eq!(pointers(&queue), both);
    }

    #[test]
    fn the_least_of_an_adaptive_agent_is_what_each_endpoint_takes() {
        let mut adaptive = spec("http://payments");
        adaptive.adaptive = Some(AdaptiveSpec {
            least: 64,
            ..AdaptiveSpec::default()
        });
        assert_eq!(adaptive.faults(""), []);
        let json = serde_json::to_string(&adaptive).unwrap();
        let again: AgentSpec = serde_json::from_str(&json).unwrap();
        assert_eq!(again, adaptive);
        let fault = ["/agents/payments/adaptive/least"];
        let mut shared = adaptive.clone();
        shared.max_in_flight = Some(63);
        assert_eq!(pointers(&shared), fault);
        adaptive.endpoints.extend(spec("http://other").endpoints);
        adaptive.endpoints[1].max_in_flight = 63;
        assert_eq!(pointers(&adaptive), fault);
        let mut queue = spec("amqp://broker/charges");
        queue.adaptive = Some(AdaptiveSpec::default());
        assert_eq!(pointers(&queue), ["/agents/payments/adaptive"]);
    }

    #[test]
    fn an_agent_that_is_not_called_has_no_endpoints_and_no_retry() {
        let pull: AgentSpec = serde_json::from_str(r#"{"mode": "pull"}"#).unwrap();
        assert_eq!(pull.faults(""), []);
        assert_eq!(serde_json::to_string(&pull).unwrap(), r#"{"mode":"pull"}"#);
        let both = AgentSpec {
            mode: AgentMode::Pull,
            max_open: Some(1),
            max_in_flight: Some(1),
            adaptive: Some(AdaptiveSpec::default()),
            breaker: Some(BreakerSpec::default()),
            ejection: Some(EjectionSpec::default()),
            health: Some(serde_json::from_str(r#"{"path": "/health"}"#).unwrap()),
            rate_limit: serde_json::from_str(r#"{"rate": "5/s"}"#).unwrap(),
            retry: RetrySpec {
                factor: 3,
                ..RetrySpec::default()
            },
            ..spec("http://payments")
        };
        assert_eq!(
            pointers(&both),
            [
                "/agents/payments/endpoints",
                "/agents/payments/retry",
                "/agents/payments/max_open",
                "/agents/payments/max_in_flight",
                "/agents/payments/adaptive",
                "/agents/payments/breaker",
                "/agents/payments/ejection",
                "/agents/payments/health",
                "/agents/payments/rate_limit"
            ]
        );
        let called = serde_json::to_string(&spec("http://payments")).unwrap();
        assert!(!called.contains("mode"), "{called}");
    }
}
