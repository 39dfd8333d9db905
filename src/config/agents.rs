//! What an agent of the configuration file must be, beyond its form.

use std::collections::BTreeMap;

use http::Uri;

use super::{
    settings::{PLAIN_NAME, is_plain_name},
    show,
};
use crate::domain::{AgentName, AgentSpec};

/// What is wrong with one agent: the path below `agents`, what was found, what is allowed.
pub struct AgentFault {
    pub path: String,
    pub found: String,
    pub allowed: &'static str,
}

pub fn faults(agents: &BTreeMap<AgentName, AgentSpec>) -> Vec<AgentFault> {
    let mut faults = Vec::new();
    for (name, spec) in agents {
        let mut wrong = |path: String, found: String, allowed| {
            faults.push(AgentFault {
                path,
                found,
                allowed,
            });
        };
        if !is_plain_name(name.as_str()) {
            wrong(name.to_string(), format!("{name:?}"), PLAIN_NAME);
        }
        if spec.endpoints.is_empty() {
            wrong(
                format!("{name}.endpoints"),
                "[]".to_owned(),
                "at least one endpoint",
            );
        }
        for (at, endpoint) in spec.endpoints.iter().enumerate() {
            if !is_base_url(&endpoint.url) {
                wrong(
                    format!("{name}.endpoints.{at}.url"),
                    show::url_without_secrets(&endpoint.url),
                    "an http:// or https:// URL with a host, without user, query or fragment",
                );
            }
            if endpoint.max_in_flight == 0 {
                wrong(
                    format!("{name}.endpoints.{at}.max_in_flight"),
                    "0".to_owned(),
                    "at least 1",
                );
            }
        }
        if spec.retry.factor == 0 {
            wrong(format!("{name}.retry.factor"), "0".to_owned(), "at least 1");
        }
        if spec.retry.max < spec.retry.initial {
            wrong(
                format!("{name}.retry.max"),
                format!("\"{}\"", spec.retry.max),
                "at least as long as `initial`",
            );
        }
    }
    faults
}

fn is_base_url(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else {
        return false;
    };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| {
            !authority.host().is_empty() && !authority.as_str().contains('@')
        })
        && uri.query().is_none()
        && !url.contains('#')
}
