//! The secrets that an agent uses, and the addresses that get them. The operator of the configuration file decides where a
//! secret may go, not the caller who registers an agent.

use crate::{
    agent::{
        access::{AgentTlsSpec, AuthSpec, TextOrSecret},
        spec::AgentSpec,
    },
    values::{fields::escape, ids::SecretName, web_address::WebAddress},
};

/// A place where an agent uses a secret.
#[derive(PartialEq, Debug)]
pub struct SecretUse<'s> {
    /// The JSON pointer of the secret's name, below the pointer of the specification.
    pub pointer: String,
    pub name: &'s SecretName,
    pub goes_to: SecretTarget<'s>,
}

/// The receiver of a secret, or of a proof that Provost has the secret.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SecretTarget<'s> {
    Endpoints,
    /// This token endpoint, and the endpoints get what the secret is exchanged for.
    EndpointsAndToken(&'s str),
    /// Only this token endpoint.
    Token(&'s str),
}

/// The receivers that the configuration file of an instance allows for a secret.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SecretScope<'s> {
    /// It is sent to these URLs, and what is below them.
    Urls(&'s [WebAddress]),
    /// No URL is listed: for the agents of the configuration file alone.
    ConfiguredAgents,
}

impl AgentSpec {
    /// Every use of a secret.
    pub fn secrets(&self) -> Vec<SecretUse<'_>> {
        let mut uses = Vec::new();
        let mut add = |pointer: String, name| {
            uses.push(SecretUse {
                pointer: format!("/{pointer}/secret"),
                name,
                goes_to: SecretTarget::Endpoints,
            });
        };
        let added = [
            ("headers", &self.headers),
            ("query", &self.query),
            ("body", &self.body),
        ];
        for (field, values) in added {
            for (name, value) in values {
                if let TextOrSecret::Secret(named) = value {
                    add(format!("{field}/{}", escape(name)), &named.secret);
                }
            }
        }
        match &self.auth {
            Some(AuthSpec::Basic(basic)) => {
                add("auth/basic/password".to_owned(), &basic.password.secret);
            }
            Some(AuthSpec::Bearer(token)) => add("auth/bearer".to_owned(), &token.secret),
            Some(AuthSpec::OAuth2(_)) | None => {}
        }
        for (at, named) in self.sign.iter().enumerate() {
            add(format!("sign/{at}"), &named.secret);
        }
        if let Some(tls) = &self.tls {
            for (field, name) in tls.secrets() {
                add(format!("tls/{field}"), name);
            }
        }
        if let Some(AuthSpec::OAuth2(oauth)) = &self.auth {
            uses.push(SecretUse {
                pointer: "/auth/oauth2/client_secret/secret".to_owned(),
                name: &oauth.client_secret.secret,
                goes_to: SecretTarget::EndpointsAndToken(&oauth.token_url),
            });
            let tls = oauth.tls.iter().flat_map(AgentTlsSpec::secrets);
            uses.extend(tls.map(|(field, name)| SecretUse {
                pointer: format!("/auth/oauth2/tls/{field}/secret"),
                name,
                goes_to: SecretTarget::Token(&oauth.token_url),
            }));
        }
        uses
    }

    /// The secrets that it may not use, or that are not there: the pointer of each, and why. `is_configured`: the
    /// configuration file defines the agent.
    ///
    /// The name of an agent grants nothing, since what is registered under it can be changed by anyone who may register
    /// agents: the address that gets the secret counts.
    pub fn secret_faults<'s>(
        &self,
        is_configured: bool,
        scope: impl Fn(&SecretName) -> Option<SecretScope<'s>>,
    ) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        for used in self.secrets() {
            let SecretUse {
                pointer,
                name,
                goes_to,
            } = used;
            let fault = match scope(name) {
                None => Some(format!(
                    "the secret `{name}` is not configured at this instance: add it to [[secrets]] of its configuration file"
                )),
                Some(SecretScope::ConfiguredAgents) if is_configured => None,
                Some(SecretScope::ConfiguredAgents) => Some(format!(
                    "the secret `{name}` is for agents of the configuration file only: list the URLs that may get it as `urls` of its [[secrets]]"
                )),
                Some(SecretScope::Urls(urls)) => self.outside(urls, goes_to).map(|url| {
                    format!(
                        "the secret `{name}` may not be sent to {url}: that is not below the `urls` of its [[secrets]]"
                    )
                }),
            };
            faults.extend(fault.map(|fault| (pointer, fault)));
        }
        faults
    }

    /// The first address that is below none of these.
    fn outside<'s>(&'s self, urls: &[WebAddress], goes_to: SecretTarget<'s>) -> Option<&'s str> {
        let endpoints = self.endpoints.iter().map(|endpoint| &*endpoint.url);
        let (endpoints, token) = match goes_to {
            SecretTarget::Endpoints => (Some(endpoints), None),
            SecretTarget::EndpointsAndToken(url) => (Some(endpoints), Some(url)),
            SecretTarget::Token(url) => (None, Some(url)),
        };
        let mut addresses = endpoints.into_iter().flatten().chain(token);
        addresses.find(|url| !is_below_any(url, urls))
    }
}

fn is_below_any(url: &str, urls: &[WebAddress]) -> bool {
    WebAddress::parse(url).is_ok_and(|url| urls.iter().any(|base| url.is_below(base)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::spec::Endpoint;

    /// Returns an agent with one endpoint, and with what it adds.
    fn spec(added: Value) -> AgentSpec {
        let mut spec = json!({ "endpoints": [{ "url": "https://payments.example/v1" }] });
        spec.as_object_mut()
            .unwrap()
            .extend(added.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_key_of_tls_at_the_token_endpoint_goes_nowhere_else() {
        const PEM: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let (login, payments) = ("https://login.example", "https://payments.example");
        let spec = spec(
            json!({ "auth": { "oauth2": { "token_url": login, "client_id": "id",
            "client_secret": { "secret": "s" },
            "tls": { "certificate": PEM, "key": { "secret": "k" } } } } }),
        );
        let names: Vec<_> = spec.secrets().into_iter().map(|used| used.name).collect();
        assert_eq!(names, [&SecretName::new("s"), &SecretName::new("k")]);
        let refused = |urls: &[&str]| -> Vec<String> {
            let urls = urls.iter().map(|url| WebAddress::parse(url).unwrap());
            let urls: Vec<_> = urls.collect();
            let faults = spec.secret_faults(false, |_| Some(SecretScope::Urls(&urls)));
            faults.into_iter().map(|(pointer, _)| pointer).collect()
        };
        let (client, key) = (
            "/auth/oauth2/client_secret/secret",
            "/auth/oauth2/tls/key/secret",
        );
        // The endpoints get the token, but nothing of the key.
        assert_eq!(refused(&[login]), [client]);
        assert_eq!(refused(&[payments]), [client, key]);
        assert!(refused(&[login, payments]).is_empty());
        let read: AgentSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(read, spec);
    }

    /// The token goes to the endpoints: with a secret for the token endpoint alone, anyone could have one sent to them.
    #[test]
    fn a_client_secret_is_bound_to_token_endpoint_and_endpoints() {
        let spec = spec(
            json!({ "auth": { "oauth2": { "token_url": "https://login.example/token",
            "client_id": "provost", "client_secret": { "secret": "s" } } } }),
        );
        let (login, payments) = ("https://login.example", "https://payments.example");
        assert_eq!(refusals(&spec, false, Some(&[login])), 1);
        assert_eq!(refusals(&spec, false, Some(&[payments])), 1);
        assert_eq!(refusals(&spec, false, Some(&[payments, login])), 0);
    }

    fn refusals(spec: &AgentSpec, is_configured: bool, urls: Option<&[&str]>) -> usize {
        let urls = urls.map(|urls| {
            let parsed = urls.iter().map(|url| WebAddress::parse(url).unwrap());
            parsed.collect::<Vec<_>>()
        });
        let scope = |_: &SecretName| match &urls {
            Some(urls) => Some(SecretScope::Urls(urls)),
            None => Some(SecretScope::ConfiguredAgents),
        };
        spec.secret_faults(is_configured, scope).len()
    }

    #[test]
    fn a_secret_goes_only_where_the_configuration_file_lets_it() {
        let spec = spec(json!({ "auth": { "bearer": { "secret": "token" } } }));
        for (urls, is_refused) in [
            (&["https://payments.example"][..], false),
            (&["https://payments.example/v1"], false),
            (
                &["https://other.example", "https://payments.example"],
                false,
            ),
            (&["https://payments.example/v1/charges"], true),
            (&["https://payments.example/v"], true),
            (&["http://payments.example"], true),
            (&["https://payments.example:8443"], true),
            (&["https://payments.example.evil.example"], true),
            (&["https://evil.example"], true),
        ] {
            for is_configured in [true, false] {
                let refused = refusals(&spec, is_configured, Some(urls));
                assert_eq!(refused == 1, is_refused, "{urls:?}");
            }
        }
        assert_eq!(refusals(&spec, true, None), 0);
        assert_eq!(refusals(&spec, false, None), 1);
        assert_eq!(spec.secret_faults(true, |_| None).len(), 1);
    }

    #[test]
    fn one_endpoint_elsewhere_is_enough_to_refuse_the_secret() {
        let mut spec = spec(json!({ "sign": [{ "secret": "key" }] }));
        spec.endpoints.push(Endpoint {
            url: "https://evil.example".to_owned(),
            max_in_flight: 1,
            zone: None,
            drain: false,
        });
        assert_eq!(
            refusals(&spec, false, Some(&["https://payments.example"])),
            1
        );
    }
}
