//! Media types in `Content-Type` headers.

/// Returns whether a `Content-Type` names JSON: `application/json`, `text/json`, or any type with the suffix `+json`
/// (RFC 6839).
pub fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

/// Returns whether a `Content-Type` names YAML: `application/yaml` (RFC 9512), any type with the suffix `+yaml`, or one of
/// the names that were used before.
pub fn is_yaml(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    let known = [
        "application/yaml",
        "application/x-yaml",
        "text/yaml",
        "text/x-yaml",
    ];
    known.contains(&&*essence) || essence.ends_with("+yaml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_by_its_type_or_its_suffix_whatever_the_case() {
        for content_type in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "text/json",
            "application/merge-patch+json",
            " application/Problem+JSON ;x=y",
        ] {
            assert!(is_json(content_type), "{content_type}");
        }
        for content_type in ["", "json", "text/plain", "application/jsonl", "é+jso"] {
            assert!(!is_json(content_type), "{content_type}");
        }
    }

    #[test]
    fn yaml_is_recognised_by_its_types_and_its_suffix() {
        for content_type in [
            "application/yaml; charset=utf-8",
            "Text/X-YAML",
            "application/x+yaml",
        ] {
            assert!(is_yaml(content_type), "{content_type}");
        }
        for content_type in ["application/json", "yaml", "text/plain"] {
            assert!(!is_yaml(content_type), "{content_type}");
        }
    }
}
