//! Decides which environment variables are settings. Others may have the prefix too: Kubernetes describes the
//! service `provost`, and every service whose name begins with `provost-`, to each pod in variables such as
//! `PROVOST_SERVICE_HOST`. Those are ignored with a warning. A misspelt setting prevents the start: if it were
//! ignored, it would silently not apply.

use super::settings::{LISTS, SETTINGS};
use crate::domain::values::nearest;

const PREFIX: &str = "PROVOST_";

/// Flags that are not settings but read the environment.
const FLAGS: [&str; 8] = [
    "CONFIG",
    "BENCH_TOKEN",
    "API_TOKEN",
    "URL",
    "TOKEN",
    "CONTEXT",
    "CONTEXTS",
    "COMPLETE",
];

/// The meaning of a variable.
#[derive(PartialEq, Eq, Debug)]
pub enum Variable {
    /// The setting at this path: `supervisor.interval` for `PROVOST_SUPERVISOR__INTERVAL`.
    Setting(String),
    /// The variable is unknown, but probably a misspelt setting.
    Misspelt {
        path: String,
        /// The variable of the most similar setting, if there is one.
        meant: Option<String>,
    },
    /// The variable has the prefix, but is not for Provost.
    NoSetting,
    /// The variable does not have the prefix, or a flag reads it: no warning is needed.
    Unrelated,
}

pub fn variable(name: &str, value: &str) -> Variable {
    let Some(key) = name.strip_prefix(PREFIX) else {
        return Variable::Unrelated;
    };
    // A bearer token has no colon (RFC 6750, section 2.1), and each entry of PROVOST_TOKENS has two: a server that ignored the
    // slip would start without tokens.
    let is_slip = key == "TOKEN" && value.contains(':');
    if FLAGS.contains(&key) && !is_slip {
        return Variable::Unrelated;
    }
    let path = key.to_lowercase().replace("__", ".");
    // A variable does not preserve case, and a workflow under another name would get another rule.
    if path != WORKFLOWS && is_in(WORKFLOWS, &path) {
        return Variable::Misspelt {
            path,
            meant: Some(name_of(WORKFLOWS)),
        };
    }
    let is_list = LISTS.iter().any(|list| is_in(list, &path));
    if is_list || paths().any(|known| known == path) {
        return Variable::Setting(path);
    }
    if is_service_link(key, value) {
        return Variable::NoSetting;
    }
    let meant = nearest(&path, paths());
    let meant_table = path
        .split_once('.')
        .is_some_and(|(table, _)| paths().any(|known| is_in(table, known)));
    if meant.is_none() && !meant_table {
        return Variable::NoSetting;
    }
    let meant = meant.map(name_of);
    Variable::Misspelt { path, meant }
}

/// The rules of all workflows are one value, as JSON.
const WORKFLOWS: &str = "retention.workflows";

fn paths() -> impl Iterator<Item = &'static str> {
    let settings = SETTINGS.iter().map(|setting| setting.path);
    settings.chain(LISTS)
}

fn is_in(table: &str, path: &str) -> bool {
    let rest = path.strip_prefix(table);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the variable of the setting at this path.
fn name_of(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_uppercase())
}

/// Returns whether Kubernetes creates variables of this form for a service: `…SERVICE_HOST`, `…SERVICE_PORT`, one
/// `…SERVICE_PORT_<NAME>` for each named port, and for each port the variables of Docker's links: `…PORT`,
/// `…PORT_8080_TCP` and this with `_ADDR`, `_PORT` or `_PROTO`. The text before `…` is the rest of the service's
/// name.
fn is_service_link(key: &str, value: &str) -> bool {
    // A lone `PORT` could be a typing error: its value has a recognisable form, `tcp://10.0.0.1:8080`.
    let has_address = value.contains("://");
    let parts: Vec<&str> = key.split('_').collect();
    (0..parts.len()).any(|at| match parts[at..] {
        ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..] => true,
        ["PORT"] => has_address,
        ["PORT", port, "TCP" | "UDP" | "SCTP"]
        | [
            "PORT",
            port,
            "TCP" | "UDP" | "SCTP",
            "ADDR" | "PORT" | "PROTO",
        ] => port.parse::<u16>().is_ok(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(path: &str) -> Variable {
        Variable::Setting(path.to_owned())
    }

    fn meant(name: &str) -> Option<String> {
        match variable(name, "7") {
            Variable::Misspelt { meant, .. } => meant,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn every_setting_and_every_list_has_its_variable() {
        for path in paths() {
            assert_eq!(variable(&name_of(path), "x"), setting(path));
        }
        let rule = "PROVOST_RETENTION__WORKFLOWS__SHIP__KEEP";
        assert_eq!(meant(rule).as_deref(), Some("PROVOST_RETENTION__WORKFLOWS"));
        let below = variable("PROVOST_AGENTS__PAYMENTS__ENDPOINTS", "[]");
        assert_eq!(below, setting("agents.payments.endpoints"));
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_is_no_setting_and_no_slip() {
        for service in ["", "DB_", "POSTGRES_", "LIMITS_", "AGENTS_", "LISTEN_"] {
            for (rest, value) in [
                ("SERVICE_HOST", "10.0.0.1"),
                ("SERVICE_PORT", "8080"),
                ("SERVICE_PORT_HTTP", "8080"),
                ("PORT", "tcp://10.0.0.1:8080"),
                ("PORT_8080_TCP", "tcp://10.0.0.1:8080"),
                ("PORT_8080_TCP_ADDR", "10.0.0.1"),
                ("PORT_8080_TCP_PORT", "8080"),
                ("PORT_8080_TCP_PROTO", "tcp"),
                ("PORT_53_UDP", "udp://10.0.0.1:53"),
            ] {
                let name = format!("PROVOST_{service}{rest}");
                assert_eq!(variable(&name, value), Variable::NoSetting, "{name}");
            }
        }
    }

    #[test]
    fn a_slip_names_the_setting_that_was_meant() {
        for (slip, expected) in [
            ("PROVOST_LISTENS", "PROVOST_LISTEN"),
            ("PROVOST_DATABASE_URI", "PROVOST_DATABASE_URL"),
            (
                "PROVOST_SUPERVISR__INTERVAL",
                "PROVOST_SUPERVISOR__INTERVAL",
            ),
            (
                "PROVOST_SUPERVISOR_INTERVAL",
                "PROVOST_SUPERVISOR__INTERVAL",
            ),
            (
                "PROVOST_LIMITS__MAX_REQUESTS",
                "PROVOST_LIMITS__MAX_REQUEST",
            ),
        ] {
            assert_eq!(meant(slip).as_deref(), Some(expected), "{slip}");
        }
    }

    #[test]
    fn the_form_of_a_token_shows_if_it_was_meant_for_the_server() {
        let of_client = variable("PROVOST_TOKEN", "8f2c0b6d1e5a4793");
        assert_eq!(of_client, Variable::Unrelated);
        let of_server = variable("PROVOST_TOKEN", "ci:submit:8f2c0b6d1e5a4793");
        let expected = Variable::Misspelt {
            path: "token".to_owned(),
            meant: Some("PROVOST_TOKENS".to_owned()),
        };
        assert_eq!(of_server, expected);
    }

    #[test]
    fn what_names_a_table_was_meant_for_it() {
        assert_eq!(meant("PROVOST_LIMITS__LARGEST_NUMBER_OF_ALL"), None);
    }

    #[test]
    fn other_words_are_no_settings() {
        for name in [
            "PROVOST_HOME",
            "PROVOST_VERSION",
            "PROVOST_IMAGE_TAG",
            "PROVOST_TEST_SEED",
            "PROVOST_",
        ] {
            assert_eq!(variable(name, "x"), Variable::NoSetting, "{name}");
        }
        for name in [
            "HOME",
            "PROVOST",
            "PROVOST_CONFIG",
            "PROVOST_BENCH_TOKEN",
            "PROVOST_API_TOKEN",
            "PROVOST_URL",
            "PROVOST_TOKEN",
            "PROVOST_CONTEXT",
            "PROVOST_CONTEXTS",
        ] {
            assert_eq!(variable(name, "x"), Variable::Unrelated, "{name}");
        }
    }
}
