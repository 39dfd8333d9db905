//! What is known of an agent: where its service answers and how hard to try.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::Uri;
use serde::{Deserialize, Serialize, ser::SerializeStruct};

use crate::{
    adaptive::AdaptiveSpec,
    agent_access::{AgentTlsSpec, AuthSpec, ExtraFields, HttpVersion, SecretRef},
    backoff::Backoff,
    breaker::BreakerSpec,
    downtime::{DowntimeSpec, MOST_DOWNTIMES},
    ejection::EjectionSpec,
    health_check::HealthSpec,
    lanes::{Fairness, KeyLimit, lane_faults},
    queue_address::{MAIN_BROKER, QUEUE_SCHEME, QueueAddress},
    rate_limit::RateLimitSpec,
    time::Span,
    web_address::WebAddress,
};

const MOST_ENDPOINTS: usize = 32;
const LONGEST_ZONE: usize = 64;
const MOST_IN_FLIGHT: u32 = 100_000;
const MOST_OPEN: u32 = 1_000_000;
const MOST_FACTOR: u32 = 10;
const SHORTEST_WAIT: Span = Span::from_millis(1);

/// A registered agent, as `PUT /v1/agents/{name}` and the configuration file give it.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    #[serde(default)]
    pub mode: AgentMode,
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub retry: RetrySpec,
    /// The most replies of its service that are awaited at once. `None`: any number.
    #[serde(default)]
    pub max_open: Option<u32>,
    /// The most calls in flight of all instances together. `None`: what its endpoints take from each.
    #[serde(default)]
    pub max_in_flight: Option<u32>,
    /// `None`: as many as its endpoints take, however its calls go.
    #[serde(default)]
    pub adaptive: Option<AdaptiveSpec>,
    /// `None`: its endpoints are called whatever they respond.
    #[serde(default)]
    pub breaker: Option<BreakerSpec>,
    /// `None`: an endpoint that fails several times in a row is called as ever.
    #[serde(default)]
    pub ejection: Option<EjectionSpec>,
    /// `None`: nobody asks its endpoints whether they are well.
    #[serde(default)]
    pub health: Option<HealthSpec>,
    /// `None`: as many calls a second as there are slots for.
    #[serde(default)]
    pub rate_limit: Option<RateLimitSpec>,
    /// Limits of keys that are made of the tasks.
    #[serde(default)]
    pub limits: Vec<KeyLimit>,
    /// `None`: the steps of all tasks stand in one queue.
    #[serde(default)]
    pub fairness: Option<Fairness>,
    /// ExtraFields to every request, instead of headers of the step with the same names.
    #[serde(default)]
    pub headers: ExtraFields,
    /// ExtraFields to the query of every request.
    #[serde(default)]
    pub query: ExtraFields,
    /// ExtraFields to every body, which is an object then.
    #[serde(default)]
    pub body: ExtraFields,
    #[serde(default)]
    pub auth: Option<AuthSpec>,
    /// The secrets that sign every request, as Standard Webhooks.
    #[serde(default)]
    pub sign: Vec<SecretRef>,
    #[serde(default)]
    pub tls: Option<AgentTlsSpec>,
    /// Of its requests. `None`: HTTP/1.1.
    #[serde(default)]
    pub http_version: Option<HttpVersion>,
    /// Windows in which it is paused.
    #[serde(default)]
    pub downtime: Vec<DowntimeSpec>,
}

/// How the service of an agent gets its work.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AgentMode {
    /// It is called at its endpoints.
    #[default]
    Call,
    /// Its workers fetch it.
    Pull,
}

impl AgentMode {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// An agent that is called says nothing of its mode, and one that is not says nothing of calls.
impl Serialize for AgentSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("AgentSpec", 2)?;
        match self.mode {
            AgentMode::Call => {
                fields.serialize_field("endpoints", &self.endpoints)?;
                fields.serialize_field("retry", &self.retry)?;
                if let Some(most) = &self.max_open {
                    fields.serialize_field("max_open", most)?;
                }
                if let Some(most) = &self.max_in_flight {
                    fields.serialize_field("max_in_flight", most)?;
                }
                if let Some(adaptive) = &self.adaptive {
                    fields.serialize_field("adaptive", adaptive)?;
                }
                if let Some(breaker) = &self.breaker {
                    fields.serialize_field("breaker", breaker)?;
                }
                if let Some(ejection) = &self.ejection {
                    fields.serialize_field("ejection", ejection)?;
                }
                if let Some(health) = &self.health {
                    fields.serialize_field("health", health)?;
                }
                if let Some(limit) = &self.rate_limit {
                    fields.serialize_field("rate_limit", limit)?;
                }
                let added = [
                    ("headers", &self.headers),
                    ("query", &self.query),
                    ("body", &self.body),
                ];
                for (name, added) in added.into_iter().filter(|(_, added)| !added.is_empty()) {
                    fields.serialize_field(name, added)?;
                }
                if let Some(auth) = &self.auth {
                    fields.serialize_field("auth", auth)?;
                }
                if !self.sign.is_empty() {
                    fields.serialize_field("sign", &self.sign)?;
                }
                if let Some(tls) = &self.tls {
                    fields.serialize_field("tls", tls)?;
                }
                if let Some(version) = &self.http_version {
                    fields.serialize_field("http_version", version)?;
                }
            }
            AgentMode::Pull => fields.serialize_field("mode", &self.mode)?,
        }
        if !self.limits.is_empty() {
            fields.serialize_field("limits", &self.limits)?;
        }
        if let Some(fairness) = &self.fairness {
            fields.serialize_field("fairness", fairness)?;
        }
        if !self.downtime.is_empty() {
            fields.serialize_field("downtime", &self.downtime)?;
        }
        fields.end()
    }
}

impl AgentSpec {
    /// Whether it matters how each call to its endpoints goes.
    pub fn watches_calls(&self) -> bool {
        self.leaves_endpoints_out() || self.adaptive.is_some()
    }

    /// Whether endpoints that fail get no calls.
    pub fn leaves_endpoints_out(&self) -> bool {
        self.breaker.is_some() || self.ejection.is_some() || self.health.is_some()
    }

    /// Whether time decides about its calls, or an instance has something to say of them, although nothing happened.
    pub fn needs_looks(&self) -> bool {
        !self.downtime.is_empty() || self.endpoints.iter().any(|endpoint| endpoint.drain)
    }

    /// Everything that is wrong with it, each fault as the JSON pointer of what is at fault, below
    /// `pointer`, and a message.
    pub fn faults(&self, pointer: &str) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut fault = |field: String, message: String| {
            faults.push((format!("{pointer}/{field}"), message));
        };
        for (field, message) in lane_faults(&self.limits, self.fairness.as_ref()) {
            fault(field, message);
        }
        if self.downtime.len() > MOST_DOWNTIMES {
            let message = format!("must hold at most {MOST_DOWNTIMES} windows");
            fault("downtime".to_owned(), message);
        }
        for (i, downtime) in self.downtime.iter().enumerate().take(MOST_DOWNTIMES) {
            for (field, message) in downtime.faults() {
                fault(format!("downtime/{i}/{field}"), message);
            }
        }
        if self.mode == AgentMode::Pull {
            if !self.endpoints.is_empty() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("endpoints".to_owned(), message.to_owned());
            }
            if self.retry != RetrySpec::default() {
                let message = "remove it: no call to an agent with the mode pull is retried";
                fault("retry".to_owned(), message.to_owned());
            }
            if self.max_open.is_some() {
                let message = "remove it: the workers of an agent with the mode pull fetch no more than they want";
                fault("max_open".to_owned(), message.to_owned());
            }
            if self.max_in_flight.is_some() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("max_in_flight".to_owned(), message.to_owned());
            }
            if self.adaptive.is_some() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("adaptive".to_owned(), message.to_owned());
            }
            if self.breaker.is_some() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("breaker".to_owned(), message.to_owned());
            }
            if self.ejection.is_some() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("ejection".to_owned(), message.to_owned());
            }
            if self.health.is_some() {
                let message = "remove it: an agent with the mode pull is not called";
                fault("health".to_owned(), message.to_owned());
            }
            if self.rate_limit.is_some() {
                let message = "remove it: the workers of an agent with the mode pull fetch no more than they want";
                fault("rate_limit".to_owned(), message.to_owned());
            }
            for field in self.access_fields() {
                let message = "remove it: an agent with the mode pull is not called";
                fault(field.to_owned(), message.to_owned());
            }
            return faults;
        }
        let count = self.endpoints.len();
        if !(1..=MOST_ENDPOINTS).contains(&count) {
            let message = format!("must hold 1 to {MOST_ENDPOINTS} endpoints, holds {count}");
            fault("endpoints".to_owned(), message);
        }
        for (i, endpoint) in self.endpoints.iter().enumerate().take(MOST_ENDPOINTS) {
            let checked = match endpoint.url.starts_with(QUEUE_SCHEME) {
                true => check_endpoint_queue(&endpoint.url),
                false => check_endpoint_url(&endpoint.url).map_err(str::to_owned),
            };
            if let Err(why) = checked {
                fault(format!("endpoints/{i}/url"), why);
            }
            if !(1..=MOST_IN_FLIGHT).contains(&endpoint.max_in_flight) {
                let message = format!("must be 1 to {MOST_IN_FLIGHT}");
                fault(format!("endpoints/{i}/max_in_flight"), message);
            }
            if endpoint.zone.as_deref().is_some_and(|zone| !is_zone(zone)) {
                fault(
                    format!("endpoints/{i}/zone"),
                    format!("must be {ZONE_FORM}"),
                );
            }
        }
        for (i, first) in self.duplicates() {
            let message = format!(
                "is the endpoint of {pointer}/endpoints/{first}/url once more: remove one of them; one that is to get more calls has a larger `max_in_flight`"
            );
            fault(format!("endpoints/{i}/url"), message);
        }
        if count > 0 && self.endpoints.iter().all(|endpoint| endpoint.drain) {
            let message = "at least one must take new calls, without `drain`; to keep calls from all, pause the agent: POST /v1/agents/{name}/pause";
            fault("endpoints".to_owned(), message.to_owned());
        }
        if let Some(most) = self.max_open
            && !(1..=MOST_OPEN).contains(&most)
        {
            fault("max_open".to_owned(), format!("must be 1 to {MOST_OPEN}"));
        }
        if let Some(most) = self.max_in_flight
            && !(1..=MOST_IN_FLIGHT).contains(&most)
        {
            let message = format!("must be 1 to {MOST_IN_FLIGHT}");
            fault("max_in_flight".to_owned(), message);
        }
        let most = self.endpoints.iter().map(|endpoint| endpoint.max_in_flight);
        // What is zero is a fault of its own.
        let most = most
            .chain(self.max_in_flight)
            .filter(|most| *most > 0)
            .min();
        let adaptive = self.adaptive.iter();
        for (field, message) in adaptive.flat_map(|adaptive| adaptive.faults(most)) {
            fault(format!("adaptive/{field}"), message);
        }
        let breaker = self.breaker.iter().flat_map(BreakerSpec::faults);
        for (field, message) in breaker {
            fault(format!("breaker/{field}"), message);
        }
        let ejection = self.ejection.iter().flat_map(EjectionSpec::faults);
        for (field, message) in ejection {
            fault(format!("ejection/{field}"), message);
        }
        let health = self.health.iter().flat_map(HealthSpec::faults);
        for (field, message) in health {
            fault(format!("health/{field}"), message);
        }
        let mut urls = self.endpoints.iter().map(|endpoint| &endpoint.url);
        let has_queue = urls.any(|url| url.starts_with(QUEUE_SCHEME));
        if self.health.is_some() && has_queue {
            let message = "remove it: an endpoint that is a queue cannot be checked";
            fault("health".to_owned(), message.to_owned());
        }
        if self.adaptive.is_some() && has_queue {
            let message = "remove it: a queue takes every request at once, however much the service has to do; `max_open` limits the replies that are awaited";
            fault("adaptive".to_owned(), message.to_owned());
        }
        let limit = self.rate_limit.iter().flat_map(RateLimitSpec::faults);
        for (field, message) in limit {
            fault(format!("rate_limit/{field}"), message);
        }
        for (field, message) in self.access_faults() {
            fault(field, message);
        }
        let RetrySpec {
            initial,
            max,
            factor,
            budget_percent,
        } = self.retry;
        if initial < SHORTEST_WAIT {
            let message = format!("must be at least {SHORTEST_WAIT}");
            fault("retry/initial".to_owned(), message);
        }
        if max < initial {
            let message = format!("must be at least as long as `initial` ({initial})");
            fault("retry/max".to_owned(), message);
        }
        if !(1..=MOST_FACTOR).contains(&factor) {
            let message = format!("must be 1 to {MOST_FACTOR}");
            fault("retry/factor".to_owned(), message);
        }
        if budget_percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
            fault(
                "retry/budget_percent".to_owned(),
                "must be 1 to 100".to_owned(),
            );
        }
        faults
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

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user. Or `amqp://broker/` and a queue
    /// of the configured message broker.
    pub url: String,
    /// Calls in flight at once, from one instance.
    #[serde(default = "Endpoint::default_max_in_flight")]
    pub max_in_flight: u32,
    /// Instances of this zone call it rather than others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// It gets no new work, so that it can be stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}

/// Whether a text can be the name of a zone.
pub fn is_zone(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST_ZONE).contains(&text.len()) && text.bytes().all(is_plain)
}

/// What every refusal of a zone says.
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

/// Waits between the tries of one call: full jitter between zero and `initial * factor^n`, at most `max`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    pub initial: Span,
    pub max: Span,
    pub factor: u32,
    /// How many percent of the agent's calls may be retries. `None`: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_percent: Option<u32>,
}

impl RetrySpec {
    pub fn backoff(&self) -> Backoff {
        Backoff {
            initial: self.initial.duration(),
            max: self.max.duration(),
            factor: self.factor,
        }
    }
}

impl Default for RetrySpec {
    fn default() -> Self {
        Self {
            initial: Span::from_millis(100),
            max: Span::from_secs(10),
            factor: 2,
            budget_percent: None,
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
            "/agents/payments/max_open",
            "/agents/payments/max_in_flight",
            "/agents/payments/retry/initial",
            "/agents/payments/retry/factor",
            "/agents/payments/retry/budget_percent",
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
        queue.health = Some(HealthSpec::at("health".to_owned()));
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
            health: Some(HealthSpec::at("/health".to_owned())),
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
