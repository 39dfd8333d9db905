//! The receivers of messages, and the secrets that sign them. A secret is never shown, nor is the address of a
//! webhook, which often is a secret too.

use serde::{Deserialize, Serialize, Serializer};

use super::tokens::HIDDEN;
use crate::domain::{
    message::{AlertFormat, SECRET_FORM, Secret},
    values::{PLAIN_WORD, WebAddress, is_plain_word},
};

/// A receiver that submitters may name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverConfig {
    /// The value of `reply_to.receiver`.
    pub name: String,
    /// This receiver covers every URL below it. Default: every URL that no other receiver covers.
    pub url: Option<String>,
    /// Each secret signs every message; the receiver needs to know one of them.
    pub secrets: Vec<Secret>,
}

/// A webhook that receives alerts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertWebhookConfig {
    pub name: String,
    pub url: HiddenUrl,
    #[serde(default)]
    pub format: AlertFormat,
    #[serde(default)]
    pub secrets: Vec<Secret>,
}

/// A URL whose path may be a secret.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct HiddenUrl(pub WebAddress);

impl TryFrom<String> for HiddenUrl {
    type Error = String;

    fn try_from(url: String) -> Result<Self, String> {
        WebAddress::parse(&url).map(Self)
    }
}

impl Serialize for HiddenUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}/{HIDDEN}", self.0.origin))
    }
}

impl std::fmt::Debug for HiddenUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{HIDDEN}", self.0.origin)
    }
}

/// Returns the report about a receiver that cannot be parsed. The value may contain a secret.
pub fn allowed(list: &str) -> String {
    match list {
        "receivers" => format!(
            "each of [[receivers]] needs a `name` and `secrets`, and may have a `url`; a secret is {SECRET_FORM}"
        ),
        _ => format!(
            "each of [[alert_webhooks]] needs a `name` and a `url`, and may have a `format` (\"generic\" or \"slack\") and `secrets`; a secret is {SECRET_FORM}"
        ),
    }
}

/// The fault of one entry of a list: the path, the value that was found, the values that are allowed.
pub type ListFault = (String, String, String);

pub fn faults(receivers: &[ReceiverConfig], webhooks: &[AlertWebhookConfig]) -> Vec<ListFault> {
    let mut faults = Vec::new();
    let names = receivers.iter().map(|receiver| &receiver.name);
    check_names("receivers", names, &mut faults);
    let names = webhooks.iter().map(|webhook| &webhook.name);
    check_names("alert_webhooks", names, &mut faults);
    for (at, receiver) in receivers.iter().enumerate() {
        if let Some(Err(fault)) = receiver.url.as_deref().map(WebAddress::parse) {
            let found = format!("a URL that {fault}");
            let allowed = "an http:// or https:// URL".to_owned();
            faults.push((format!("receivers.{at}.url"), found, allowed));
        }
        if receiver.secrets.is_empty() {
            let path = format!("receivers.{at}.secrets");
            faults.push((
                path,
                "[]".to_owned(),
                format!("at least one: {SECRET_FORM}"),
            ));
        }
    }
    let without_url: Vec<_> = receivers.iter().filter(|r| r.url.is_none()).collect();
    if without_url.len() > 1 {
        faults.push((
            "receivers".to_owned(),
            "more than one without a url".to_owned(),
            "at most one: it covers every URL that no other receiver covers".to_owned(),
        ));
    }
    faults
}

fn check_names<'n>(
    list: &str,
    names: impl Iterator<Item = &'n String>,
    faults: &mut Vec<ListFault>,
) {
    let mut known: Vec<&str> = Vec::new();
    for (at, name) in names.enumerate() {
        let path = format!("{list}.{at}.name");
        if !is_plain_word(name) {
            faults.push((path, format!("{name:?}"), PLAIN_WORD.to_owned()));
        } else if known.contains(&name.as_str()) {
            faults.push((
                path,
                format!("{name:?}, which another one has already"),
                "a unique name".to_owned(),
            ));
        }
        known.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";

    #[test]
    fn neither_debug_nor_json_shows_a_secret_or_the_path_of_a_webhook() {
        let json = format!(
            r#"{{"name":"chat","url":"https://hooks.example/T1/B2/verysecret","format":"slack","secrets":["{SECRET}"]}}"#
        );
        let webhook: AlertWebhookConfig = serde_json::from_str(&json).unwrap();
        assert_eq!(webhook.format, AlertFormat::Slack);
        for shown in [
            format!("{webhook:?}"),
            serde_json::to_string(&webhook).unwrap(),
        ] {
            assert!(shown.contains("https://hooks.example:443"), "{shown}");
            assert!(
                !shown.contains("verysecret") && !shown.contains("bmV3"),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_a_list_is_reported_with_its_path() {
        let receiver = |name: &str, url: Option<&str>, secrets: &[&str]| ReceiverConfig {
            name: name.to_owned(),
            url: url.map(str::to_owned),
            secrets: secrets.iter().map(|s| Secret::parse(s).unwrap()).collect(),
        };
        let receivers = [
            receiver("shop", Some("https://shop.example"), &[SECRET]),
            receiver("shop", None, &[SECRET]),
            receiver("a b", Some("shop.example"), &[]),
            receiver("rest", None, &[SECRET]),
        ];
        let found = faults(&receivers, &[]);
        let paths: Vec<_> = found.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "receivers.1.name",
                "receivers.2.name",
                "receivers.2.url",
                "receivers.2.secrets",
                "receivers"
            ]
        );
    }
}
