//! An address from a definition or a setting that is to be called: checked once, with its origin.

use std::sync::Arc;

use http::Uri;

use crate::values::path::path_fault;

pub const LONGEST_URL: usize = 2000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WebAddress {
    /// The address as it was written.
    pub url: Arc<str>,
    /// `scheme://host:port`, always with its port and in lower case: one host is one origin.
    pub origin: String,
}

impl WebAddress {
    /// Parses `http://` or `https://`, a host, and any path.
    pub fn parse(url: &str) -> Result<Self, String> {
        const FORM: &str = "give `http://` or `https://`, a host and an optional path";
        if url.contains('#') {
            return Err("has a fragment, which is never sent: remove it".to_owned());
        }
        let uri: Uri = url.parse().map_err(|_| format!("is not a URL: {FORM}"))?;
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return Err(format!("is not a URL to call: {FORM}")),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| format!("has no host: {FORM}"))?;
        if authority.as_str().contains('@') {
            return Err(
                "contains a user name or password, which logs would show: send an `authorization` header"
                    .to_owned(),
            );
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(format!("has no host: {FORM}"));
        }
        if let Some(fault) = path_fault(uri.path()) {
            return Err(fault.to_owned());
        }
        let port = match (uri.port_u16(), scheme) {
            (Some(port), _) => port,
            (None, "https") => 443,
            (None, _) => 80,
        };
        // The case of a host name does not matter, and one host is one origin.
        let host = authority.host().to_ascii_lowercase();
        Ok(Self {
            url: url.into(),
            origin: format!("{scheme}://{host}:{port}"),
        })
    }

    /// Returns whether this address is `base` or below it: it has the same origin, and its path continues the path of
    /// `base` at a `/`. It cannot climb out again: an address has no `..`.
    pub fn is_below(&self, base: &WebAddress) -> bool {
        if self.origin != base.origin {
            return false;
        }
        let (path, base) = (self.path(), base.path());
        let base = base.trim_end_matches('/');
        path.strip_prefix(base)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }

    /// Returns the path with its query.
    fn path(&self) -> &str {
        let behind_scheme = self.url.find("://").map_or(0, |at| at + 3);
        let rest = &self.url[behind_scheme..];
        rest.find(['/', '?']).map_or("", |at| &rest[at..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> WebAddress {
        WebAddress::parse(url).unwrap()
    }

    #[test]
    fn one_host_is_one_origin_however_it_is_written() {
        assert_eq!(
            address("HTTPS://Shop.example/x").origin,
            "https://shop.example:443"
        );
        assert_eq!(address("http://[::1]:9000").origin, "http://[::1]:9000");
    }

    #[test]
    fn an_address_lies_below_another_only_at_a_whole_part_of_its_path() {
        let base = address("https://shop.example/replies");
        for below in [
            "https://shop.example/replies",
            "https://SHOP.example:443/replies/7",
            "https://shop.example/replies?order=7",
        ] {
            assert!(address(below).is_below(&base), "{below}");
        }
        for beside in [
            "https://shop.example/",
            "https://shop.example/repliesx",
            "http://shop.example/replies",
            "https://shop.example:8443/replies",
            "https://other.example/replies",
        ] {
            assert!(!address(beside).is_below(&base), "{beside}");
        }
        let mut left = Vec::new();
        for climbing in [
            "/replies/../admin",
            "/replies/%2E%2e/admin",
            "/replies/..%2fadmin",
            "/replies/..%5Cadmin",
            "/replies/%2e.%5c..%2F..%5cadmin",
            "/replies/a%2f..",
            "/replies/..;x=1/admin",
            "/replies/%252e%252e/admin",
            "/replies/..%255cadmin",
            "/replies/%c0%ae%c0%ae/x",
            "/replies/%e0%80%ae%f0%80%80%ae/x",
            "/replies/%c0%2e./x",
            "/replies/..%c0%af",
            "/replies/．．/x",
            "/replies/%uff0e%uff0e/x",
            "/replies/%u002e%u002e%u002fx",
            "/replies/%ef%bc%8e%ef%bc%8e/x",
            "/replies/%e2%80%a5/x",
            "/replies/..%ef%bc%8fx",
            "/replies/..%09/x",
            "/replies/.%00./x",
            "/replies/..%00.html",
            "/replies/..%c2%85/x",
            "/replies/.%ff./x",
            "/replies/%%32%65./x",
            "/replies/..%23/x",
            "/replies/..%3fx",
            "/replies/..%2523x",
            "/replies/.%252e%253F/x",
            "/replies/..%ef%bc%83/x",
            "/replies/.%e2%80%8b./x",
            "/replies/.\u{ad}./x",
            "/replies/..%ef%bb%bf/x",
            "/replies/..%25e2%2580%258b/x",
        ] {
            let climbing = format!("https://shop.example{climbing}");
            if WebAddress::parse(&climbing).is_ok() {
                left.push(climbing);
            }
        }
        assert_eq!(left, [""; 0]);
        for plain in [
            "/replies/a..b",
            "/replies/...",
            "/replies/50%25",
            "/replies/a%2Fb",
            "/replies?to=../x",
            "/replies/%zz%",
            "/replies/%ff%fe",
            "/replies/%e2%80%a6",
            "/replies/%e6%97%a5%e6%9c%ac/é",
            "/replies/a%09b",
            "/replies/%00",
            "/replies/%u00zz",
            "/replies/100%25252541",
            "/replies/a%23b%3f..",
            "/replies/%23",
            "/replies/a%e2%80%8b",
        ] {
            assert!(
                WebAddress::parse(&format!("https://shop.example{plain}")).is_ok(),
                "{plain}"
            );
        }
        let all = address("https://shop.example");
        assert!(address("https://shop.example").is_below(&all));
        assert!(address("https://shop.example/any").is_below(&all));
    }
}
