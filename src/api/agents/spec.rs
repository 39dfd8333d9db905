//! The specification of an agent, as it is registered: its shape for the OpenAPI document, and how it is read.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    api::{
        agent_access::{self, AuthBody, SecretRefBody, TextOrSecretBody, TlsBody},
        agent_lanes::{self, FairnessBody, KeyLimitBody},
        openapi::words::{AgentModeSchema, DurationSchema, HttpVersionSchema},
    },
    domain::{
        AdaptiveSpec, AgentMode, AgentSpec, BreakerSpec, DowntimeSpec, EjectionSpec, Endpoint,
        FieldFault, Fields, HealthSpec, RATE_FORMS, RateLimitSpec, RetrySpec, Span, read_rate,
    },
};

pub(in crate::api) const LONGEST_URL: usize = 2000;

/// The endpoints of an agent's service, and how it is called; or the mode `pull`, perhaps with `limits` and `fairness`.
#[derive(ToSchema)]
#[schema(as = AgentSpec)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SpecBody {
    mode: Option<AgentModeSchema>,
    /// Required unless the mode is `pull`. Each call goes to the better of two endpoints: the one with fewer calls
    /// in flight, unless the other is clearly faster; failures count as slow.
    #[schema(min_items = 1, max_items = 32)]
    endpoints: Option<Vec<EndpointBody>>,
    retry: Option<RetryBody>,
    /// The most replies of its service that are awaited at once, by all instances: further steps wait in the queue.
    /// Calls in flight count too. Default: any number.
    #[schema(minimum = 1, maximum = 1_000_000, example = 1000)]
    max_open: Option<u32>,
    /// The most calls in flight at once, all instances together. Default: what the endpoints take from each instance.
    #[schema(minimum = 1, maximum = 100_000, example = 20)]
    max_in_flight: Option<u32>,
    /// How many calls are in flight to an endpoint adapts to what it takes, between `least` and its `max_in_flight`, by the
    /// latency of calls and by refusals; each instance goes by its own calls. Not for queues. `{}` has the defaults. Default:
    /// as many as `max_in_flight` says.
    adaptive: Option<AdaptiveBody>,
    /// Protects the service: an endpoint that keeps failing is not called for a while, and its steps wait. `{}` has the
    /// defaults. Default: no breaker.
    breaker: Option<BreakerSpecBody>,
    /// An endpoint that fails several times in a row gets no calls for a while, if at least half of the endpoints stay.
    /// `{}` has the defaults. Default: none is ejected.
    ejection: Option<EjectionBody>,
    /// Each endpoint is asked again and again whether it is well; one that is not gets no calls until it is. Not for
    /// queues. Default: nobody asks.
    health: Option<HealthBody>,
    /// How many calls may begin in a time, all instances together. Default: any number.
    rate_limit: Option<RateLimitBody>,
    /// What holds for each key of the tasks, such as a customer. Also for agents with the mode `pull`.
    #[schema(max_items = 4)]
    limits: Option<Vec<KeyLimitBody>>,
    /// Default: steps go by priority and age alone. Also for agents with the mode `pull`.
    fairness: Option<FairnessBody>,
    /// Added to every request, in place of headers of the step with these names.
    #[schema(example = json!({"x-tenant": "acme", "x-api-key": {"secret": "payments-key"}}))]
    headers: Option<BTreeMap<String, TextOrSecretBody>>,
    /// Added to the query of every request, in place of parameters of the step with these names.
    #[schema(example = json!({"key": {"secret": "payments-key"}}))]
    query: Option<BTreeMap<String, TextOrSecretBody>>,
    /// Added to every body, in place of members of the step with these names. The body must be an object then.
    #[schema(example = json!({"api_key": {"secret": "payments-key"}}))]
    body: Option<BTreeMap<String, TextOrSecretBody>>,
    auth: Option<AuthBody>,
    /// Every request is signed with each of these secrets, as <https://www.standardwebhooks.com>: the service needs to
    /// know one of them.
    #[schema(max_items = 4)]
    sign: Option<Vec<SecretRefBody>>,
    tls: Option<TlsBody>,
    /// With `2` the endpoints are called with HTTP/2 and nothing else: over `https://` they must offer it by ALPN, over `http://` it is
    /// spoken at once (prior knowledge). Not for queues. Default: 1.1.
    http_version: Option<HttpVersionSchema>,
    /// Windows in which it is paused as by an operator, also an agent with the mode `pull`.
    #[schema(max_items = 16)]
    downtime: Option<Vec<DowntimeBody>>,
}

/// A window that repeats, in which an agent is paused.
#[derive(ToSchema)]
#[schema(as = Downtime)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct DowntimeBody {
    /// When it begins: minute, hour, day of the month, month and day of the week, by the clock of `timezone`. Where that
    /// jumps over a time, it begins as much later; of a time that comes twice, the first counts.
    #[schema(max_length = 200, example = "0 2 * * SUN")]
    cron: String,
    /// How long it takes, 1 m to 7 d, and less than it takes until the next one begins.
    #[schema(example = "2h")]
    r#for: DurationSchema,
    /// The name of a time zone of IANA.
    #[schema(default = "UTC", example = "Europe/Berlin")]
    timezone: Option<String>,
    #[schema(max_length = 1000, example = "maintenance of the database")]
    reason: Option<String>,
}

/// The most calls that begin in a time, all instances together. Steps beyond wait in the queue.
#[derive(ToSchema)]
#[schema(as = RateLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RateLimitBody {
    /// A number of calls, 1 to 1,000,000, in a second (`s`), a minute (`m`) or an hour (`h`).
    #[schema(pattern = "^[0-9]+/[smh]$", example = "50/s")]
    rate: String,
    /// How many calls may begin at once after a rest. Default: what the rate gives in a tenth of a second, at least 1.
    #[schema(minimum = 1, maximum = 100_000, example = 10)]
    burst: Option<u32>,
}

/// How the limit of calls in flight to an endpoint adapts: it grows while calls are quick, and falls when they queue or are
/// refused.
#[derive(ToSchema)]
#[schema(as = Adaptive)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AdaptiveBody {
    /// Where it begins, and below which it never falls. At most the smallest `max_in_flight` of the agent and its endpoints.
    #[schema(default = 2, minimum = 1, maximum = 100_000, example = 2)]
    least: Option<u32>,
    /// Half of the calls must be quicker, 1 ms to 1 h. Default: it goes by how long calls take with few in flight.
    #[schema(example = "2s")]
    slow_after: Option<DurationSchema>,
}

/// When the breaker of an endpoint opens, and how it closes. Every endpoint has one of its own.
#[derive(ToSchema)]
#[schema(as = Breaker)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BreakerSpecBody {
    /// It opens when so many percent of the calls in the window failed: no response, or one that is retried, but for 429.
    #[schema(default = 50, minimum = 1, maximum = 100, example = 50)]
    failure_percent: Option<u32>,
    /// A call that takes longer is slow, 1 ms to 1 h. Default: no call is.
    #[schema(example = "5s")]
    slow_after: Option<DurationSchema>,
    /// It opens as well when so many percent of the calls in the window were slow.
    #[schema(default = 50, minimum = 1, maximum = 100, example = 50)]
    slow_percent: Option<u32>,
    /// The time that counts, 1 s to 1 h, by each instance for its own calls.
    #[schema(default = "30s", example = "30s")]
    window: Option<DurationSchema>,
    /// With fewer calls in the window it does not open.
    #[schema(default = 20, minimum = 1, maximum = 10_000, example = 20)]
    min_calls: Option<u32>,
    /// How long no call is made then, 100 ms to 1 h.
    #[schema(default = "15s", example = "15s")]
    open_for: Option<DurationSchema>,
    /// Afterwards one instance makes so many calls at a time. When so many have succeeded, it closes; when one fails, it
    /// opens again.
    #[schema(default = 3, minimum = 1, maximum = 100, example = 3)]
    canaries: Option<u32>,
}

/// When an endpoint is ejected: it gets no calls for a while, and the others of its agent take them.
#[derive(ToSchema)]
#[schema(as = Ejection)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EjectionBody {
    /// So many calls in a row failed, by the calls of one instance. What counts is what counts for a breaker.
    #[schema(default = 5, minimum = 1, maximum = 1000, example = 5)]
    after: Option<u32>,
    /// For how long the first time, 100 ms to 1 h; the second time in a row twice as long, and so on.
    #[schema(default = "10s", example = "10s")]
    r#for: Option<DurationSchema>,
    /// The longest time, up to 1 h.
    #[schema(default = "5m", example = "5m")]
    max: Option<DurationSchema>,
}

/// A GET to each endpoint, made by one instance. 2xx means that it is well.
#[derive(ToSchema)]
#[schema(as = HealthCheck)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct HealthBody {
    /// Below the URL of the endpoint; it may have a query.
    #[schema(pattern = "^/", example = "/health")]
    path: String,
    /// From one check to the next, 1 s to 1 h.
    #[schema(default = "10s", example = "10s")]
    interval: Option<DurationSchema>,
    /// Within which the response comes, 100 ms to 1 m, and at most `interval`.
    #[schema(default = "2s", example = "2s")]
    timeout: Option<DurationSchema>,
    /// So many checks in a row must fail.
    #[schema(default = 3, minimum = 1, maximum = 100, example = 3)]
    unhealthy_after: Option<u32>,
    /// So many checks in a row must succeed afterwards.
    #[schema(default = 2, minimum = 1, maximum = 100, example = 2)]
    healthy_after: Option<u32>,
}

/// One address of the service.
#[derive(ToSchema)]
#[schema(as = Endpoint)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct EndpointBody {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user. Or a queue of the message broker:
    /// `amqp://broker/` and its name.
    #[schema(example = "http://10.0.0.5:8080")]
    url: String,
    /// The most calls in flight at once, from one instance.
    #[schema(default = 64, minimum = 1, maximum = 100_000, example = 64)]
    max_in_flight: Option<u32>,
    /// Instances with this `instance.zone` call it rather than others, while it is well and has room.
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = "^[A-Za-z0-9._-]+$",
        example = "eu-central-1a"
    )]
    zone: Option<String>,
    /// It gets no new work, so that it can be stopped when nothing is left there; one endpoint must get some. Calls in flight
    /// continue, and so do polls and cancellations of operations that began there.
    #[schema(default = false, example = false)]
    drain: Option<bool>,
}

/// Backoff between the tries of one call after transient faults: a random wait between zero and `initial *
/// factor^n`, at most `max`.
#[derive(ToSchema)]
#[schema(as = Retry)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RetryBody {
    #[schema(default = "100ms", example = "100ms")]
    initial: Option<DurationSchema>,
    #[schema(default = "10s", example = "10s")]
    max: Option<DurationSchema>,
    #[schema(default = 2, minimum = 1, maximum = 10, example = 2)]
    factor: Option<u32>,
    /// The most retries among the agent's calls, in percent, by each instance for its own calls of the last ten seconds;
    /// one retry a second is always made. Further ones wait, for a minute at most, and keep the time that they have to
    /// complete. Default: any number.
    #[schema(minimum = 1, maximum = 100, example = 20)]
    budget_percent: Option<u32>,
}

/// Parses a specification and reports all its faults at once.
pub(super) fn read(body: &RawValue) -> Result<AgentSpec, Vec<FieldFault>> {
    let mut fields = Fields::of(body, "")?;
    let mut endpoints = Vec::new();
    let mode = fields.choice("mode", AgentMode::ALL).unwrap_or_default();
    if !fields.has("endpoints") && mode == AgentMode::Call {
        let remedy =
            "give an array such as [{\"url\": \"http://10.0.0.5:8080\"}], or \"mode\": \"pull\"";
        fields.missing("endpoints", remedy);
    }
    let listed = fields.array("endpoints").unwrap_or_default();
    for (at, endpoint) in listed.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("endpoints"));
        match read_endpoint(endpoint, &pointer) {
            Ok(endpoint) => endpoints.extend(endpoint),
            Err(faults) => fields.extend(faults),
        }
    }
    let mut retry = RetrySpec::default();
    if let Some(mut waits) = fields.object("retry") {
        let any = Span::default()..=Span::LONGEST;
        retry.initial = waits.span("initial", any.clone()).unwrap_or(retry.initial);
        retry.max = waits.span("max", any).unwrap_or(retry.max);
        let factor = waits.integer("factor", 0..=i64::from(u32::MAX));
        retry.factor = factor.map_or(retry.factor, |factor| factor as u32);
        let percent = waits.integer("budget_percent", 0..=i64::from(u32::MAX));
        retry.budget_percent = percent.map(|percent| percent as u32);
        if let Err(faults) = waits.finish() {
            fields.extend(faults);
        }
    }
    let max_open = fields.integer("max_open", 0..=i64::from(u32::MAX));
    let max_open = max_open.map(|most| most as u32);
    let max_in_flight = fields.integer("max_in_flight", 0..=i64::from(u32::MAX));
    let max_in_flight = max_in_flight.map(|most| most as u32);
    let adaptive = fields.object("adaptive").and_then(|adaptive| {
        let read = read_adaptive(adaptive);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let breaker = fields.object("breaker").and_then(|breaker| {
        let read = read_breaker(breaker);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let ejection = fields.object("ejection").and_then(|ejection| {
        let read = read_ejection(ejection);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let health = fields.object("health").and_then(|health| {
        let read = read_health(health);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let mut downtime = Vec::new();
    let listed = fields.array("downtime").unwrap_or_default();
    for (at, window) in listed.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("downtime"));
        match read_downtime(window, &pointer) {
            Ok(window) => downtime.push(window),
            Err(faults) => fields.extend(faults),
        }
    }
    let rate_limit = fields.object("rate_limit").and_then(|limit| {
        let read = read_rate_limit(limit);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let mut spec = AgentSpec {
        mode,
        endpoints,
        retry,
        max_open,
        adaptive,
        breaker,
        ejection,
        health,
        downtime,
        max_in_flight,
        rate_limit,
        ..AgentSpec::default()
    };
    agent_access::read(&mut fields, &mut spec);
    agent_lanes::read(&mut fields, &mut spec);
    // A field that could not be parsed would be reported a second time below, as missing.
    fields.finish()?;
    let wrong = spec.faults("").into_iter();
    let wrong: Vec<_> = wrong
        .map(|(pointer, message)| FieldFault::new(pointer, message))
        .collect();
    if wrong.is_empty() {
        Ok(spec)
    } else {
        Err(wrong)
    }
}

fn read_adaptive(mut fields: Fields<'_>) -> Result<AdaptiveSpec, Vec<FieldFault>> {
    let mut spec = AdaptiveSpec::default();
    let least = fields.integer("least", AdaptiveSpec::LEAST);
    spec.least = least.map_or(spec.least, |least| least as u32);
    spec.slow_after = fields.span("slow_after", Span::default()..=Span::LONGEST);
    fields.finish()?;
    Ok(spec)
}

fn read_breaker(mut fields: Fields<'_>) -> Result<BreakerSpec, Vec<FieldFault>> {
    let mut spec = BreakerSpec::default();
    let any = Span::default()..=Span::LONGEST;
    for (name, number, range) in [
        (
            "failure_percent",
            &mut spec.failure_percent,
            BreakerSpec::PERCENTS,
        ),
        (
            "slow_percent",
            &mut spec.slow_percent,
            BreakerSpec::PERCENTS,
        ),
        ("min_calls", &mut spec.min_calls, BreakerSpec::MIN_CALLS),
        ("canaries", &mut spec.canaries, BreakerSpec::CANARIES),
    ] {
        let given = fields.integer(name, range);
        *number = given.map_or(*number, |given| given as u32);
    }
    spec.slow_after = fields.span("slow_after", any.clone());
    spec.window = fields.span("window", any.clone()).unwrap_or(spec.window);
    spec.open_for = fields.span("open_for", any).unwrap_or(spec.open_for);
    fields.finish()?;
    Ok(spec)
}

fn read_ejection(mut fields: Fields<'_>) -> Result<EjectionSpec, Vec<FieldFault>> {
    let mut spec = EjectionSpec::default();
    let any = Span::default()..=Span::LONGEST;
    let after = fields.integer("after", EjectionSpec::FAILURES);
    spec.after = after.map_or(spec.after, |after| after as u32);
    spec.base = fields.span("for", any.clone()).unwrap_or(spec.base);
    spec.max = fields.span("max", any).unwrap_or(spec.max);
    fields.finish()?;
    Ok(spec)
}

fn read_health(mut fields: Fields<'_>) -> Result<HealthSpec, Vec<FieldFault>> {
    if fields.peek("path").is_none() {
        fields.missing("path", "give a path such as \"/health\"");
    }
    let mut spec = HealthSpec::at(fields.string("path", LONGEST_URL).unwrap_or_default());
    let any = Span::default()..=Span::LONGEST;
    for (name, span) in [
        ("interval", &mut spec.interval),
        ("timeout", &mut spec.timeout),
    ] {
        *span = fields.span(name, any.clone()).unwrap_or(*span);
    }
    for (name, count) in [
        ("unhealthy_after", &mut spec.unhealthy_after),
        ("healthy_after", &mut spec.healthy_after),
    ] {
        let given = fields.integer(name, HealthSpec::COUNTS);
        *count = given.map_or(*count, |given| given as u32);
    }
    fields.finish()?;
    Ok(spec)
}

fn read_downtime(body: &RawValue, pointer: &str) -> Result<DowntimeSpec, Vec<FieldFault>> {
    let mut fields = Fields::of(body, pointer)?;
    for (name, remedy) in [
        ("cron", "give five fields such as \"0 2 * * SUN\""),
        ("for", "give a duration such as \"2h\""),
    ] {
        if fields.peek(name).is_none() {
            fields.missing(name, remedy);
        }
    }
    let spec = DowntimeSpec {
        cron: fields
            .string("cron", DowntimeSpec::LONGEST_CRON)
            .unwrap_or_default(),
        length: { fields.span("for", Span::default()..=Span::LONGEST) }.unwrap_or_default(),
        timezone: { fields.string("timezone", 100) }.unwrap_or_else(DowntimeSpec::default_timezone),
        reason: fields.string("reason", DowntimeSpec::LONGEST_REASON),
    };
    fields.finish()?;
    Ok(spec)
}

fn read_rate_limit(mut fields: Fields<'_>) -> Result<RateLimitSpec, Vec<FieldFault>> {
    if fields.peek("rate").is_none() {
        fields.missing("rate", format!("give a rate {RATE_FORMS}"));
    }
    let rate = read_rate(&mut fields);
    let burst = fields.integer("burst", RateLimitSpec::BURSTS);
    let burst = burst.map(|burst| burst as u32);
    fields.finish()?;
    // Without a rate there was a fault.
    let rate = rate.ok_or_else(Vec::new)?;
    Ok(RateLimitSpec { rate, burst })
}

fn read_endpoint(body: &RawValue, pointer: &str) -> Result<Option<Endpoint>, Vec<FieldFault>> {
    let mut fields = Fields::of(body, pointer)?;
    if !fields.has("url") {
        fields.missing("url", "give a URL such as \"http://10.0.0.5:8080\"");
    }
    let url = fields.string("url", LONGEST_URL);
    let max_in_flight = fields.integer("max_in_flight", 0..=i64::from(u32::MAX));
    let max_in_flight =
        max_in_flight.map_or(Endpoint::default_max_in_flight(), |count| count as u32);
    let zone = fields.string("zone", LONGEST_URL);
    let drain = fields.boolean("drain").unwrap_or_default();
    fields.finish()?;
    Ok(url.map(|url| Endpoint {
        url,
        max_in_flight,
        zone,
        drain,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Result<AgentSpec, Vec<String>> {
        let body = RawValue::from_string(json.to_owned()).unwrap();
        read(&body).map_err(|faults| faults.into_iter().map(|fault| fault.pointer).collect())
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let read = spec(r#"{"endpoints": [{"url": "http://10.0.0.5:8080"}]}"#).unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 64);
        assert_eq!(read.retry, RetrySpec::default());
        let read = spec(
            r#"{"endpoints": [{"url": "http://a", "max_in_flight": 3}, {"url": "http://b/v1"}],
                "retry": {"initial": "1s", "max": "1m", "factor": 3}}"#,
        )
        .unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 3);
        assert_eq!(read.retry.max, Span::from_secs(60));
    }

    #[test]
    fn all_faults_are_reported_at_once_each_with_its_pointer() {
        let faults = spec(
            r#"{"endpoints": [{"urls": "http://a"}, {"url": 7}, {"url": "http://b", "max_in_flight": "many"}],
                "retry": {"initial": "soon", "jitter": true}, "secret": 1}"#,
        )
        .unwrap_err();
        for pointer in [
            "/endpoints/0/urls",
            "/endpoints/0/url",
            "/endpoints/1/url",
            "/endpoints/2/max_in_flight",
            "/retry/initial",
            "/retry/jitter",
            "/secret",
        ] {
            let count = faults.iter().filter(|fault| *fault == pointer).count();
            assert_eq!(count, 1, "{pointer} in {faults:?}");
        }
        assert_eq!(faults.len(), 7, "{faults:?}");
    }

    #[test]
    fn values_that_can_be_read_but_not_used_are_refused_too() {
        for (json, pointer) in [
            ("{}", "/endpoints"),
            (r#"{"endpoints": []}"#, "/endpoints"),
            (r#"{"endpoints": [{"url": "ftp://a"}]}"#, "/endpoints/0/url"),
            (
                r#"{"endpoints": [{"url": "http://a", "max_in_flight": 0}]}"#,
                "/endpoints/0/max_in_flight",
            ),
            (
                r#"{"endpoints": [{"url": "http://a"}], "retry": {"factor": 0}}"#,
                "/retry/factor",
            ),
        ] {
            assert_eq!(spec(json).unwrap_err(), [pointer], "{json}");
        }
        assert_eq!(spec("7").unwrap_err(), [""]);
    }
}
