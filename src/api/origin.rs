//! Checks the host that a request names and the site that it comes from.
//!
//! Every request must name one host (RFC 9112 section 3.2, RFC 9113 section 8.3.1). Without tokens, a page could
//! make a browser on this machine send requests: a page of another site (CSRF), or a page whose own name was
//! pointed at this machine after it was loaded (DNS rebinding). The host must then be a loopback name, and the
//! request must come from no other site. With tokens neither check is needed, because no page has a token.

use axum::http::{HeaderMap, Method, Uri, Version, header, uri::Authority};

use super::problem::{Problem, ProblemKind};
use crate::config::Config;

/// The hosts that requests may name if no token is needed.
#[derive(Clone, Default, Debug)]
pub struct Site {
    /// True if only programs on this machine can reach the service.
    pub is_loopback: bool,
    /// The host of `public_url`: a proxy on this machine may forward requests for it.
    pub public_host: Option<String>,
}

/// Returns an error if the request may not be handled. `site` is `None` if tokens are configured.
pub fn check(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
    site: Option<&Site>,
) -> Result<(), Problem> {
    let host = host(uri, version, headers)?;
    let Some(site) = site else {
        return Ok(());
    };
    if site.is_loopback
        && let Some(host) = &host
        && !is_loopback(host.host())
        && !site.is_public(host.host())
    {
        return Err(Problem::new(
            ProblemKind::Misdirected,
            format!(
                "this service accepts requests for localhost and loopback addresses, not for {host:?}: use one of those, set public_url to the URL under which the service is reached, or configure tokens"
            ),
        ));
    }
    let from_elsewhere = comes_from_elsewhere(method, headers, host.as_ref());
    from_elsewhere.map_or(Ok(()), |header| {
        Err(Problem::new(
            ProblemKind::CrossSite,
            format!(
                "the header {header} says that a page of another site makes this request: without tokens, only pages of this service may send requests"
            ),
        ))
    })
}

/// Returns the one host that a request names; `None` only for HTTP/1.0, which may omit it.
fn host(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<Option<Authority>, Problem> {
    let bad = |detail: &str| Problem::new(ProblemKind::InvalidQuery, detail);
    let mut named = headers.get_all(header::HOST).iter();
    let first = named.next();
    if named.next().is_some() {
        return Err(bad("the header Host is repeated: send it once"));
    }
    let first = first.map(|value| {
        let text = value.to_str().ok();
        let host = text.and_then(|text| text.parse::<Authority>().ok());
        host.filter(is_plain).ok_or_else(|| {
            bad("Host is not a valid host: write a name or an address, and a port unless it is 80")
        })
    });
    let first = first.transpose()?;
    let target = uri.authority();
    if target.is_some_and(|target| target.as_str().contains('@')) {
        return Err(bad("the request target contains a user name: remove it"));
    }
    if version >= Version::HTTP_2 {
        return match (target, first) {
            (Some(target), Some(first)) if *target != first => {
                Err(bad("Host and :authority name different hosts: name one"))
            }
            (Some(host), _) => Ok(Some(host.clone())),
            (None, Some(host)) => Ok(Some(host)),
            (None, None) => Err(bad("the request names no host: send :authority")),
        };
    }
    if first.is_none() && version == Version::HTTP_11 {
        return Err(bad("the request names no host: send the header Host"));
    }
    // With an absolute target, Host is ignored (RFC 9112 section 3.2.2).
    Ok(target.cloned().or(first))
}

/// Returns whether the text is a host with an optional port, and nothing else.
fn is_plain(host: &Authority) -> bool {
    let name = host.host();
    let rest = host.as_str().strip_prefix(name);
    let has_port = || host.port_u16().is_some();
    !name.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest == ":" || has_port())
}

impl Site {
    pub fn of(config: &Config) -> Self {
        // The configuration was validated at start, so this is a URL.
        let public = config
            .public_url
            .as_deref()
            .and_then(|url| url.parse::<Uri>().ok());
        Self {
            // Browsers do not use Unix sockets, and the host that other programs send there has no meaning.
            is_loopback: config.listens_on_loopback() && config.listen.tcp().is_some(),
            public_host: public.as_ref().and_then(Uri::host).map(str::to_owned),
        }
    }

    fn is_public(&self, host: &str) -> bool {
        let public = self.public_host.as_deref();
        public.is_some_and(|public| public.eq_ignore_ascii_case(host))
    }
}

/// Returns whether the host is `localhost`, a name below it (RFC 6761 section 6.3), or a loopback address.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    if let Ok(address) = address {
        return address.to_canonical().is_loopback();
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Returns the header that shows that a page of another site made the request. Browsers send `Sec-Fetch-Site` with
/// every request to this machine, and pages cannot change it; older browsers send `Origin` with every POST. Other
/// programs send neither.
fn comes_from_elsewhere(
    method: &Method,
    headers: &HeaderMap,
    host: Option<&Authority>,
) -> Option<&'static str> {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    // A person follows a link on another site, such as an alert in a chat. The page with the link does not see the
    // response.
    let follows_link = (method == Method::GET || method == Method::HEAD)
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document");
    if headers.contains_key("sec-fetch-site") {
        let mut sites = headers.get_all("sec-fetch-site").iter();
        let own = follows_link || sites.all(|site| site == "same-origin" || site == "none");
        // `Origin` is not checked as well: a proxy may have given the request another Host than the page's origin.
        return (!own).then_some("Sec-Fetch-Site");
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let own = origins.all(|origin| {
        let origin = origin.to_str().ok().and_then(|text| text.split_once("://"));
        let Some((scheme, theirs)) = origin else {
            return false;
        };
        // A proxy may terminate TLS in front of this service.
        let usual = if scheme == "https" { ":443" } else { ":80" };
        let plain = |host: &str| {
            let host = host.to_ascii_lowercase();
            host.strip_suffix(usual).map(str::to_owned).unwrap_or(host)
        };
        host.is_some_and(|host| plain(host.as_str()) == plain(theirs))
    });
    (!own).then_some("Origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Site = Site {
        is_loopback: true,
        public_host: None,
    };

    fn asked(
        method: Method,
        target: &str,
        version: Version,
        given: &[(&'static str, &str)],
        site: Option<&Site>,
    ) -> Result<(), ProblemKind> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        let target = target.parse().unwrap();
        check(&method, &target, version, &headers, site).map_err(|problem| problem.kind())
    }

    fn host(host: &str) -> Result<(), ProblemKind> {
        let headers = [("host", host)];
        asked(Method::GET, "/", Version::HTTP_11, &headers, Some(&LOCAL))
    }

    fn from(method: Method, headers: &[(&'static str, &str)]) -> Result<(), ProblemKind> {
        let mut all = vec![("host", "localhost:8080")];
        all.extend_from_slice(headers);
        asked(method, "/", Version::HTTP_11, &all, Some(&LOCAL))
    }

    #[test]
    fn names_and_addresses_of_loopback_are_answered_for_on_any_port() {
        for name in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:8080",
            "provost.localhost:1",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(host(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn other_hosts_are_not_unless_public_url_names_them_or_tokens_are_needed() {
        for name in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "10.0.0.1:8080",
            "0.0.0.0:8080",
            "[::]:8080",
            "[fe80::1]",
        ] {
            assert_eq!(host(name), Err(ProblemKind::Misdirected), "{name}");
            let headers = [("host", name)];
            let with_tokens = asked(Method::GET, "/", Version::HTTP_11, &headers, None);
            assert_eq!(with_tokens, Ok(()), "{name}");
        }
        let public = Site {
            public_host: Some("provost.example".to_owned()),
            ..LOCAL
        };
        let headers = [("host", "Provost.example:443")];
        let public = asked(Method::GET, "/", Version::HTTP_11, &headers, Some(&public));
        assert_eq!(public, Ok(()));
    }

    #[test]
    fn a_request_names_one_host() {
        for given in [
            &[][..],
            &[("host", "localhost"), ("host", "localhost")],
            &[("host", "")],
            &[("host", "a b")],
            &[("host", "user@localhost")],
            &[("host", "localhost:port")],
            &[("host", "http://localhost")],
        ] {
            for site in [Some(&LOCAL), None] {
                let refused = asked(Method::GET, "/", Version::HTTP_11, given, site);
                assert_eq!(refused, Err(ProblemKind::InvalidQuery), "{given:?}");
            }
        }
        let old = asked(Method::GET, "/", Version::HTTP_10, &[], Some(&LOCAL));
        assert_eq!(old, Ok(()));
    }

    #[test]
    fn an_absolute_target_counts_and_not_the_host_beside_it() {
        let ask = |target, host| {
            let headers = [("host", host)];
            asked(
                Method::GET,
                target,
                Version::HTTP_11,
                &headers,
                Some(&LOCAL),
            )
        };
        assert_eq!(ask("http://localhost/livez", "evil.example"), Ok(()));
        let evil = ask("http://evil.example/livez", "localhost");
        assert_eq!(evil, Err(ProblemKind::Misdirected));
    }

    #[test]
    fn http_2_names_its_host_once_in_either_form() {
        let ask = |target, headers: &[_]| {
            asked(Method::GET, target, Version::HTTP_2, headers, Some(&LOCAL))
        };
        let there = "http://localhost:8080/livez";
        assert_eq!(ask(there, &[]), Ok(()));
        assert_eq!(ask(there, &[("host", "localhost:8080")]), Ok(()));
        assert_eq!(ask("/livez", &[("host", "localhost")]), Ok(()));
        for (target, headers) in [
            (there, &[("host", "evil.example")][..]),
            ("/livez", &[]),
            (
                there,
                &[("host", "localhost:8080"), ("host", "localhost:8080")],
            ),
        ] {
            assert_eq!(
                ask(target, headers),
                Err(ProblemKind::InvalidQuery),
                "{target}"
            );
        }
        let evil = ask("http://evil.example/", &[]);
        assert_eq!(evil, Err(ProblemKind::Misdirected));
    }

    #[test]
    fn a_page_of_another_site_is_refused_whatever_it_asks() {
        for headers in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "iframe"),
            ],
            &[("origin", "http://evil.example")],
            &[("origin", "null")],
            &[("origin", "http://localhost:3000")],
            &[("origin", "http://localhost")],
            &[
                ("origin", "http://localhost:8080"),
                ("origin", "http://evil.example"),
            ],
            &[
                ("origin", "http://localhost:8080"),
                ("sec-fetch-site", "cross-site"),
            ],
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
                assert_eq!(
                    from(method, headers),
                    Err(ProblemKind::CrossSite),
                    "{headers:?}"
                );
            }
        }
        let navigates = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(from(Method::GET, &navigates), Ok(()), "a link");
        assert_eq!(
            from(Method::POST, &navigates),
            Err(ProblemKind::CrossSite),
            "a form"
        );
    }

    #[test]
    fn pages_of_the_service_and_other_programs_are_not() {
        for headers in [
            &[][..],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[
                ("origin", "https://proxy.example"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[("origin", "http://localhost:8080")],
            &[
                ("origin", "http://LOCALHOST:8080"),
                ("sec-fetch-site", "same-origin"),
            ],
        ] {
            assert_eq!(from(Method::POST, headers), Ok(()), "{headers:?}");
        }
        for (host, origin) in [
            ("provost.example", "https://provost.example"),
            ("provost.example:443", "https://provost.example"),
            ("localhost:80", "http://localhost"),
        ] {
            let open = Site {
                is_loopback: false,
                public_host: None,
            };
            let headers = [("host", host), ("origin", origin)];
            let own = asked(Method::POST, "/", Version::HTTP_11, &headers, Some(&open));
            assert_eq!(own, Ok(()), "{host} {origin}");
        }
    }
}
