//! The stylesheet and the scripts. They are part of the binary, and their path has their hash, so that a browser
//! keeps them until they change.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use sha2::{Digest, Sha256};

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files with their types. `assets/README.md` says where they come from.
const FILES: [(&str, &str, &str); 4] = [
    ("console.css", CSS, include_str!("../assets/console.css")),
    ("console.js", SCRIPT, include_str!("../assets/console.js")),
    (
        "htmx.js",
        SCRIPT,
        include_str!("../assets/htmx-4.0.1.min.js"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
];

/// The first 16 hexadecimal digits of the SHA-256 of all files.
pub static HASH: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (name, _, content) in FILES {
        hash.update(name);
        hash.update(content);
    }
    hex(&hash.finalize()[..8])
});

/// Returns the address of a file below the path of the public URL.
pub fn address(base: &str, name: &str) -> String {
    format!("{base}/console/assets/{}/{name}", *HASH)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of hexadecimal digits; `None` if they are not as many as wanted.
pub fn unhex<const BYTES: usize>(digits: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

pub async fn asset(Path((hash, name)): Path<(String, String)>) -> Response {
    let found = FILES
        .iter()
        .find(|(known, ..)| *known == name && hash == *HASH);
    let Some((_, kind, content)) = found else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, *content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest is that of `dist/htmx.min.js` in the package `htmx.org` 4.0.1 of npm.
    #[test]
    fn htmx_is_the_file_of_its_package() {
        let (.., content) = FILES[2];
        assert_eq!(
            hex(&Sha256::digest(content)),
            "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
        );
    }

    #[test]
    fn our_own_script_is_short() {
        let (_, _, content) = FILES[1];
        assert!(content.len() < 15_000, "{}", content.len());
    }
}
