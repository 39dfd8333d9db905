//! TLS of an agent whose connections differ from those of all others: by a certificate authority, a client
//! certificate, another name of the server or a minimum version.

use hyper_rustls::ConfigBuilderExt;
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};

use super::connector::root_cause;
use crate::domain::agent::{AgentSpec, AuthSpec, TextOrSecret, TlsVersion};

/// The texts of a TLS specification, with the values of its secrets.
#[derive(Clone, PartialEq, Default)]
pub(in crate::agent) struct TlsTexts {
    pub ca: Option<String>,
    /// The certificate chain of the client, and its key.
    pub identity: Option<(String, String)>,
    pub server_name: Option<String>,
    pub min_version: Option<TlsVersion>,
}

pub(in crate::agent) struct ClientTls {
    pub config: ClientConfig,
    pub server_name: Option<ServerName<'static>>,
}

/// Makes the TLS configuration. An error repeats no part of the texts, because a user may have put a key into the
/// field for a certificate.
pub(in crate::agent) fn client_tls(texts: &TlsTexts) -> Result<ClientTls, String> {
    const LATEST: &[&SupportedProtocolVersion] = &[&TLS13];
    const USUAL: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
    crate::agent::install_crypto();
    let versions = match texts.min_version {
        Some(TlsVersion::Tls13) => LATEST,
        Some(TlsVersion::Tls12) | None => USUAL,
    };
    let builder = ClientConfig::builder_with_protocol_versions(versions);
    let builder = match &texts.ca {
        Some(pem) => builder.with_root_certificates(roots(pem)?),
        None => match builder.try_with_platform_verifier() {
            Ok(builder) => builder,
            Err(error) => {
                let why = root_cause(&error);
                return Err(format!(
                    "this machine has no CA certificates ({why}): install them, or give the agent `tls.ca`"
                ));
            }
        },
    };
    let config = match &texts.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(chain, "tls.certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                .map_err(|_| "`tls.key` contains no private key in PEM form".to_owned())?;
            builder.with_client_auth_cert(chain, key).map_err(|_| {
                "`tls.certificate` and `tls.key` cannot be used together: the first certificate must belong to the key"
                    .to_owned()
            })?
        }
    };
    let server_name = texts.server_name.as_deref().map(|name| {
        let parsed = ServerName::try_from(name.to_owned());
        parsed.map_err(|_| format!("`tls.server_name` {name:?} is not the name of a host"))
    });
    Ok(ClientTls {
        config,
        server_name: server_name.transpose()?,
    })
}

/// Returns the faults of the certificates that are not secrets, each with the JSON pointer of its field. The domain
/// cannot read certificates, so they are validated here.
pub fn certificate_faults(spec: &AgentSpec) -> Vec<(String, String)> {
    crate::agent::install_crypto();
    let of_token = match &spec.auth {
        Some(AuthSpec::OAuth2(oauth)) => oauth.tls.as_ref(),
        _ => None,
    };
    let both = [("/tls", spec.tls.as_ref()), ("/auth/oauth2/tls", of_token)];
    let mut faults = Vec::new();
    for (pointer, tls) in both {
        let Some(tls) = tls else {
            continue;
        };
        if let Some(TextOrSecret::Text(pem)) = &tls.ca
            && let Err(message) = roots(pem)
        {
            faults.push((format!("{pointer}/ca"), message));
        }
        if let Some(TextOrSecret::Text(pem)) = &tls.certificate
            && let Err(message) = certificates(pem, "tls.certificate")
        {
            faults.push((format!("{pointer}/certificate"), message));
        }
    }
    faults
}

fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "tls.ca")? {
        let added = roots.add(certificate);
        added.map_err(|_| "`tls.ca` contains a certificate that cannot be used".to_owned())?;
    }
    Ok(roots)
}

fn certificates(pem: &str, field: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("`{field}` contains no certificate in PEM form")),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_named_and_not_repeated() {
        let one = generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let other = generate_simple_self_signed(["b.example".to_owned()]).unwrap();
        let (certificate, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        let texts = |ca: &str, identity: Option<(&str, &str)>| TlsTexts {
            ca: Some(ca.to_owned()),
            identity: identity.map(|(chain, key)| (chain.to_owned(), key.to_owned())),
            ..TlsTexts::default()
        };
        let fault = |texts: &TlsTexts| client_tls(texts).err();
        assert_eq!(
            fault(&texts(&certificate, Some((&certificate, &key)))),
            None
        );
        let hint = &key[40..60];
        for (texts, expected) in [
            (texts(&key, None), "`tls.ca` contains no certificate"),
            (texts("", None), "`tls.ca` contains no certificate"),
            (
                texts(&certificate, Some((&key, &key))),
                "`tls.certificate` contains no certificate",
            ),
            (
                texts(&certificate, Some((&certificate, &certificate))),
                "`tls.key` contains no private key",
            ),
            (
                texts(&certificate, Some((&other.cert.pem(), &key))),
                "cannot be used together",
            ),
        ] {
            let found = fault(&texts).unwrap();
            assert!(found.contains(expected), "{found}");
            assert!(!found.contains(hint), "{found}");
        }
        let spec = |ca: &str| -> AgentSpec {
            serde_json::from_value(serde_json::json!({ "endpoints": [], "tls": { "ca": ca },
                "auth": { "oauth2": { "token_url": "https://a", "client_id": "b", "client_secret": { "secret": "c" },
                    "tls": { "certificate": ca } } } }))
            .unwrap()
        };
        assert_eq!(certificate_faults(&spec(&certificate)), []);
        let damaged = certificate.replace("MII", "AAA");
        let faults = certificate_faults(&spec(&damaged));
        assert_eq!(faults[0].0, "/tls/ca", "{faults:?}");
        let no_base64 = "-----BEGIN CERTIFICATE-----\n-\n-----END CERTIFICATE-----";
        let faults = certificate_faults(&spec(no_base64)).into_iter();
        let pointers: Vec<_> = faults.map(|(pointer, _)| pointer).collect();
        assert_eq!(pointers, ["/tls/ca", "/auth/oauth2/tls/certificate"]);
        let unnamed = TlsTexts {
            server_name: Some("..".to_owned()),
            ..texts(&certificate, None)
        };
        assert!(fault(&unnamed).unwrap().contains("server_name"));
    }
}
