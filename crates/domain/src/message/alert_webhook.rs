//! The webhooks that receive alerts.

use serde::{Deserialize, Serialize};

use crate::values::ids::ReceiverName;

/// The receivers of alerts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertWebhook {
    pub receiver: ReceiverName,
    pub format: AlertFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertFormat {
    /// The CloudEvents `alert.raised`, `alert.updated` and `alert.closed`.
    #[default]
    Generic,
    /// A text message when an alert is raised or has grown, in the format of Slack's incoming webhooks and compatible
    /// services.
    Slack,
}

impl AlertWebhook {
    /// Returns the queue of a webhook's messages. No receiver can be configured under this name, and it is not an
    /// origin.
    pub fn queue_of(name: &str) -> ReceiverName {
        ReceiverName::new(format!("alerts:{name}"))
    }
}

/// Escapes the three characters that have a special meaning in Slack.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
