//! `provost.toml.example` is the documentation of the settings. These tests keep it true.

use std::fs;

use serde_json::Value;

use super::{
    Config, Sources,
    layers::find,
    load,
    settings::{LISTS, SETTINGS},
};
use crate::domain::agent::{
    AgentMode, AgentSpec, BreakerSpec, EjectionSpec, HealthSpec, HttpVersion, RetrySpec,
};

const EXAMPLE: &str = include_str!("../../provost.toml.example");

/// Returns the example with every setting uncommented; comments that are text stay comments.
fn uncommented() -> String {
    let is_setting =
        |line: &&str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
    let lines = EXAMPLE
        .lines()
        .map(|line| match Some(line).filter(is_setting) {
            // A token has either this field or `sha256`, never both.
            Some("#token = \"...\"") => "",
            Some(line) => &line[1..],
            None => line,
        });
    lines.collect::<Vec<_>>().join("\n")
}

fn load_text(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("provost.toml");
    fs::write(&file, text).unwrap();
    let sources = Sources {
        file: Some(file),
        ..Sources::default()
    };
    load(&sources).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_example_as_it_is_changes_nothing() {
    assert_eq!(load_text(EXAMPLE), Config::default());
}

#[test]
fn the_example_shows_every_setting() {
    let all = toml::from_str::<Value>(&uncommented()).unwrap();
    for path in SETTINGS.iter().map(|setting| setting.path).chain(LISTS) {
        assert!(
            find(&all, path).is_some(),
            "{path} is not in provost.toml.example"
        );
    }
}

#[test]
fn the_example_uncommented_is_the_defaults_but_for_what_has_none() {
    let mut config = load_text(&uncommented());
    assert!(config.instance_id.take().is_some());
    assert!(config.store.max_size.take().is_some());
    assert!(config.instance.zone.take().is_some());
    assert!(config.instance.threads.take().is_some());
    assert!(config.public_url.take().is_some());
    assert!(config.console_url.take().is_some());
    let tls = std::mem::take(&mut config.tls);
    assert!(tls.certificate.is_some() && tls.key.is_some());
    let retention = &mut config.retention;
    let of_states = [
        retention.processed.take(),
        retention.undone.take(),
        retention.cancelled.take(),
    ];
    assert!(of_states.iter().all(Option::is_some));
    let ship = retention.workflows.remove("ship").unwrap();
    assert!(ship.keep.is_some() && ship.cancelled.is_some());
    let receiver = config.receivers.remove(0);
    assert_eq!(
        (receiver.name.as_str(), receiver.secrets.len()),
        ("shop", 1)
    );
    let webhook = config.alert_webhooks.remove(0);
    assert_eq!(
        webhook.format,
        crate::domain::message::AlertFormat::default()
    );
    assert!(config.broker.url.take().is_some());
    let intake = config.intake.remove(0);
    assert_eq!(
        intake.dead_letter_routing_key(),
        format!("{}.dead", intake.queue)
    );
    assert_eq!(intake.prefetch, super::intake::default_prefetch());
    assert_eq!(config.tokens.len(), 1);
    config.tokens.clear();
    let AgentSpec {
        endpoints,
        retry,
        max_open,
        max_in_flight,
        adaptive,
        breaker,
        ejection,
        health,
        rate_limit,
        limits,
        fairness,
        headers,
        downtime,
        auth,
        tls,
        http_version,
        ..
    } = config.agents.remove("payments").unwrap();
    assert_eq!(config.agents.remove("video").unwrap().mode, AgentMode::Pull);
    assert_eq!(retry, RetrySpec::default());
    assert_eq!(max_open, Some(1000));
    assert_eq!(max_in_flight, Some(20));
    assert_eq!(rate_limit.map(|limit| limit.burst()), Some(5));
    assert_eq!(limits[0].max_in_flight, Some(5));
    assert_eq!(fairness.unwrap().weights["acme"], 3);
    assert!(headers.contains_key("x-tenant") && auth.is_some() && tls.is_some());
    assert_eq!(http_version, Some(HttpVersion::Http2));
    assert_eq!(downtime[0].reason.as_deref(), Some("maintenance"));
    let secret = config.secrets.remove(0);
    assert!(secret.file.is_some() && secret.env.is_none());
    let usual: HealthSpec = serde_json::from_str(r#"{"path": "/health"}"#).unwrap();
    assert_eq!(health, Some(usual));
    assert_eq!(ejection, Some(EjectionSpec::default()));
    let adaptive = adaptive.unwrap();
    assert_eq!((adaptive.least, adaptive.slow_after), (2, None));
    let breaker = breaker.unwrap();
    assert!(breaker.slow_after.is_some());
    assert_eq!(
        breaker,
        BreakerSpec {
            slow_after: breaker.slow_after,
            ..BreakerSpec::default()
        }
    );
    assert_eq!(
        endpoints[0].max_in_flight,
        crate::domain::agent::Endpoint::default_max_in_flight()
    );
    assert_eq!(config, Config::default());
}
