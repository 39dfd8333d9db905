//! Every setting with a single value, and the rule for it. The text that a person reads and the check that a value
//! must pass come from the same rule.

use std::fmt;

use serde_json::Value;

use super::{
    allow_list,
    broker::{BROKER_URL, BrokerUrl, QueuePatterns},
    listen::{Listen, UnixMode},
    values::{ByteSize, DatabaseUrl, LogFilter},
};
use crate::domain::values::{ALLOWED_ADDRESSES, PLAIN_WORD, Span, is_plain_word};

pub struct Setting {
    /// The path, tables joined by dots.
    pub path: &'static str,
    pub rule: Rule,
}

pub enum Rule {
    Address,
    /// A list of addresses that may be called.
    Addresses,
    Broker,
    Database,
    /// The path of a file.
    File,
    Instance,
    Log,
    PublicUrl,
    /// A list of names of queues.
    Queues,
    /// `none`, `sampled` or `all`.
    Successes,
    UnixMode,
    Switch,
    SwitchOrAuto,
    Span(Span, Span),
    SpanOrForever(Span, Span),
    Bytes(ByteSize, ByteSize),
    Count(u64, u64),
}

const fn setting(path: &'static str, rule: Rule) -> Setting {
    Setting { path, rule }
}

/// The shortest interval of a loop: a shorter one would keep the loop busy.
const SOON: Span = Span::from_millis(10);
/// The shortest timeout of clients: a shorter one would close healthy connections.
const WAIT: Span = Span::from_millis(100);
const MINUTE: Span = Span::from_secs(60);
const HOUR: Span = Span::from_secs(3600);
const DAY: Span = Span::from_secs(86_400);

/// All settings, in the order of `provost.toml.example`.
pub static SETTINGS: [Setting; 70] = [
    setting("listen", Rule::Address),
    setting("insecure", Rule::Switch),
    setting("database_url", Rule::Database),
    setting("instance_id", Rule::Instance),
    setting("hold", Rule::Switch),
    setting("log", Rule::Log),
    setting("log_json", Rule::Switch),
    setting("shutdown_grace", Rule::Span(Span::from_secs(0), HOUR)),
    setting("public_url", Rule::PublicUrl),
    setting("console_url", Rule::PublicUrl),
    setting("shutdown.drain", Rule::Span(Span::from_secs(0), HOUR)),
    setting("listener.max_connections", Rule::Count(1, 1_000_000)),
    setting("listener.max_without_request", Rule::Count(1, 1_000_000)),
    setting(
        "listener.max_response_bytes",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(1024)),
    ),
    setting(
        "listener.max_request_bytes",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(1024)),
    ),
    setting("listener.head_timeout", Rule::Span(WAIT, HOUR)),
    setting("listener.body_timeout", Rule::Span(WAIT, HOUR)),
    setting("listener.stall_timeout", Rule::Span(WAIT, HOUR)),
    setting("listener.idle_timeout", Rule::Span(WAIT, HOUR)),
    setting("listener.unix_mode", Rule::UnixMode),
    setting("tls.certificate", Rule::File),
    setting("tls.key", Rule::File),
    setting("instance.lease", Rule::Span(Span::from_secs(1), HOUR)),
    setting("instance.zone", Rule::Instance),
    setting("instance.threads", Rule::Count(1, 1024)),
    setting("scheduler.poll", Rule::Span(SOON, HOUR)),
    setting("supervisor.interval", Rule::Span(SOON, HOUR)),
    setting("supervisor.batch", Rule::Count(1, 10_000)),
    setting("supervisor.prediction_interval", Rule::Span(SOON, HOUR)),
    setting("supervisor.alert_at_risk", Rule::Switch),
    setting(
        "retention.keep",
        Rule::SpanOrForever(Span::from_secs(0), Span::LONGEST),
    ),
    setting(
        "retention.processed",
        Rule::SpanOrForever(Span::from_secs(0), Span::LONGEST),
    ),
    setting(
        "retention.undone",
        Rule::SpanOrForever(Span::from_secs(0), Span::LONGEST),
    ),
    setting(
        "retention.cancelled",
        Rule::SpanOrForever(Span::from_secs(0), Span::LONGEST),
    ),
    setting("retention.interval", Rule::Span(SOON, HOUR)),
    setting("retention.batch", Rule::Count(1, 10_000)),
    setting("record.successes", Rule::Successes),
    setting("record.bodies", Rule::Switch),
    setting("record.keep", Rule::Span(Span::from_secs(0), Span::LONGEST)),
    setting(
        "record.max_task_bytes",
        Rule::Bytes(ByteSize::kib(64), ByteSize::gib(1)),
    ),
    setting(
        "record.max_bytes",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(128 * 1024)),
    ),
    setting("ledger.keep", Rule::Span(HOUR, Span::LONGEST)),
    setting("ledger.keep_changes", Rule::Span(HOUR, Span::LONGEST)),
    setting(
        "limits.max_request",
        Rule::Bytes(ByteSize::kib(1), ByteSize::mib(64)),
    ),
    setting("limits.max_steps", Rule::Count(1, 10_000)),
    setting(
        "limits.max_output",
        Rule::Bytes(ByteSize::kib(1), ByteSize::mib(64)),
    ),
    setting(
        "limits.max_task_outputs",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(1)),
    ),
    setting("calls.connect_timeout", Rule::Span(SOON, MINUTE)),
    setting("calls.max_connection_age", Rule::Span(WAIT, DAY)),
    setting("calls.allow_private_addresses", Rule::SwitchOrAuto),
    setting("calls.allow", Rule::Addresses),
    setting("calls.allow_url_steps", Rule::SwitchOrAuto),
    setting("calls.stable_keys", Rule::Switch),
    setting("courier.poll", Rule::Span(SOON, HOUR)),
    setting(
        "courier.timeout",
        Rule::Span(Span::from_millis(100), MINUTE),
    ),
    setting("courier.max_in_flight", Rule::Count(1, 1000)),
    setting("courier.retry_initial", Rule::Span(SOON, HOUR)),
    setting("courier.retry_max", Rule::Span(SOON, DAY)),
    setting(
        "courier.give_up_after",
        Rule::Span(Span::from_secs(0), Span::from_secs(30 * 86_400)),
    ),
    setting(
        "courier.max_waiting_bytes",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(1024)),
    ),
    setting("courier.allow_urls", Rule::SwitchOrAuto),
    setting("courier.allow_unsigned", Rule::SwitchOrAuto),
    setting("store.cache_tasks", Rule::Count(1, 10_000_000)),
    setting(
        "store.cache_bytes",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(1024)),
    ),
    setting(
        "store.max_size",
        Rule::Bytes(ByteSize::mib(1), ByteSize::gib(128 * 1024)),
    ),
    setting("postgres.max_connections", Rule::Count(1, 1000)),
    setting("postgres.listen", Rule::Switch),
    setting("postgres.migrate", Rule::Switch),
    setting("broker.url", Rule::Broker),
    setting("broker.reply_queues", Rule::Queues),
];

/// Settings with many values, validated by their own types.
pub const LISTS: [&str; 7] = [
    "tokens",
    "secrets",
    "agents",
    "receivers",
    "alert_webhooks",
    "intake",
    "retention.workflows",
];

/// Returns the paths of all settings.
pub fn setting_paths() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.path).chain(LISTS)
}

impl Rule {
    pub fn accepts(&self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Rule::Address => text.is_some_and(|text| text.parse::<Listen>().is_ok()),
            Rule::Addresses => allow_list::faults(value).is_empty(),
            Rule::Broker => text.is_some_and(|text| text.parse::<BrokerUrl>().is_ok()),
            Rule::Queues => QueuePatterns::accepts(value),
            Rule::Database => text.is_some_and(|text| text.parse::<DatabaseUrl>().is_ok()),
            Rule::File => text.is_some_and(|text| !text.is_empty() && !text.contains('\0')),
            Rule::Instance => text.is_some_and(is_plain_word),
            Rule::Log => text.is_some_and(|text| text.parse::<LogFilter>().is_ok()),
            Rule::PublicUrl => text.is_some_and(|text| {
                !text.contains('?') && crate::domain::values::WebAddress::parse(text).is_ok()
            }),
            Rule::Successes => text.is_some_and(|text| matches!(text, "none" | "sampled" | "all")),
            Rule::UnixMode => text.is_some_and(|text| text.parse::<UnixMode>().is_ok()),
            Rule::Switch => value.as_bool().is_some(),
            Rule::SwitchOrAuto => value.as_bool().is_some() || text == Some("auto"),
            Rule::Span(least, most) => text
                .and_then(Span::parse)
                .is_some_and(|span| (*least..=*most).contains(&span)),
            Rule::SpanOrForever(least, most) => {
                text == Some("forever") || Rule::Span(*least, *most).accepts(value)
            }
            Rule::Bytes(least, most) => text
                .and_then(|text| text.parse().ok())
                .or_else(|| value.as_u64().map(ByteSize::bytes))
                .is_some_and(|size| (*least..=*most).contains(&size)),
            Rule::Count(least, most) => value
                .as_u64()
                .is_some_and(|count| (*least..=*most).contains(&count)),
        }
    }

    /// Returns whether a value from the environment or a flag is a text even if it looks like a number: the instance
    /// `007` is not the instance `7`.
    pub fn is_text(&self) -> bool {
        matches!(
            self,
            Rule::Address
                | Rule::Broker
                | Rule::Database
                | Rule::File
                | Rule::Instance
                | Rule::Log
                | Rule::PublicUrl
                | Rule::UnixMode
        )
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Address => f.write_str(
                "an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"; or the path of a \
                 Unix socket, such as \"unix:/run/provost/api.sock\"",
            ),
            Rule::File => f.write_str("the path of a file"),
            Rule::Successes => f.write_str("\"none\", \"sampled\" (one of a hundred) or \"all\""),
            Rule::UnixMode => f.write_str(
                "permissions in octal that let the owner read and write, such as \"0600\" or \"0660\"",
            ),
            Rule::Addresses => write!(f, "a list of {ALLOWED_ADDRESSES}"),
            Rule::Broker => f.write_str(BROKER_URL),
            Rule::Queues => f.write_str(
                "a list of names of queues, of which each may end with a *, such as [\"shop.replies\", \"amq.gen-*\"]",
            ),
            Rule::Database => f.write_str(
                "the URL of an SQLite file without parameters, such as \"sqlite://provost.db\" or \
                 \"sqlite:///data/provost.db\", or of a PostgreSQL database, such as \
                 \"postgres://user:password@host/name\"; several hosts are joined by commas",
            ),
            Rule::Instance => f.write_str(PLAIN_WORD),
            Rule::Log => f.write_str(
                "off, error, warn, info, debug or trace, alone or for a module as in \"warn,provost::scheduler=debug\"",
            ),
            Rule::PublicUrl => f.write_str(
                "an http:// or https:// URL without a query, such as \"https://provost.example\"",
            ),
            Rule::Switch => f.write_str("true or false"),
            Rule::SwitchOrAuto => f.write_str("true, false or \"auto\""),
            Rule::Span(least, most) => write!(
                f,
                "a duration from {least} to {most}, such as \"250ms\", \"30s\" or \"15m\""
            ),
            Rule::SpanOrForever(least, most) => write!(
                f,
                "\"forever\", or a duration from {least} to {most}, such as \"24h\" or \"30d\""
            ),
            Rule::Bytes(least, most) => write!(
                f,
                "a size from {least} to {most}, in bytes or with a unit such as \"256KiB\" or \"1MiB\""
            ),
            Rule::Count(least, most) => write!(f, "a whole number from {least} to {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Config;

    /// Returns the paths of all settings with a single value, and the values.
    fn leaves(prefix: &str, value: Value) -> Vec<(String, Value)> {
        match value {
            Value::Object(fields) => fields
                .into_iter()
                .filter(|(name, _)| !LISTS.contains(&name.as_str()))
                .flat_map(|(name, value)| leaves(&format!("{prefix}.{name}"), value))
                .collect(),
            value => vec![(prefix.trim_start_matches('.').to_owned(), value)],
        }
    }

    #[test]
    fn every_setting_has_a_rule_and_its_default_keeps_it() {
        let defaults = leaves("", serde_json::to_value(Config::default()).unwrap());
        assert_eq!(defaults.len(), SETTINGS.len());
        for (path, default) in defaults {
            let setting = SETTINGS.iter().find(|setting| setting.path == path);
            let setting = setting.unwrap_or_else(|| panic!("{path} has no rule"));
            let value = serde_json::to_value(&default).unwrap();
            assert!(default.is_null() || setting.rule.accepts(&value), "{path}");
        }
    }

    #[test]
    fn a_range_includes_its_ends_and_nothing_beyond() {
        let span = Rule::Span(Span::from_secs(1), Span::from_secs(2));
        let accepts = |text: &str| span.accepts(&Value::from(text));
        assert!(accepts("1s") && accepts("2s") && !accepts("999ms") && !accepts("2s1ms"));
        let count = Rule::Count(1, 3);
        let accepts = |value: &Value| count.accepts(value);
        assert!(accepts(&json!(1)) && accepts(&json!(3)));
        assert!(!accepts(&json!(0)) && !accepts(&json!(4)) && !accepts(&json!(-1)));
        assert!(!accepts(&json!("2")) && !accepts(&json!(2.5)));
    }
}
