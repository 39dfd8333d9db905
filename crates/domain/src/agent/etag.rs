//! The entity tags of agents.

use crate::{agent::spec::AgentSpec, values::etag::ETag};

impl ETag {
    /// Makes the tag of an agent that is registered through the API: of its specification, without anything that
    /// changes by itself.
    pub fn of_agent(spec: &AgentSpec) -> Self {
        Self::of(&[b"agent", &canonical(spec)])
    }

    /// Makes the tag of an agent of the configuration file.
    pub fn of_configured_agent(spec: &AgentSpec) -> Self {
        Self::of(&[b"configured agent", &canonical(spec)])
    }

    /// Makes the tag of an agent whose record cannot be read.
    pub fn of_damaged(spec: &str) -> Self {
        Self::of(&[b"damaged agent", spec.as_bytes()])
    }
}

fn canonical(spec: &AgentSpec) -> Vec<u8> {
    // The specification was read from JSON, or from a file with the same fields, so it always serialises.
    serde_json::to_vec(spec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_changes_with_the_specification_and_its_source() {
        let spec = |url: &str| -> AgentSpec {
            serde_json::from_value(serde_json::json!({ "endpoints": [{ "url": url }] })).unwrap()
        };
        let (a, b) = (spec("http://a"), spec("http://b"));
        assert_eq!(ETag::of_agent(&a), ETag::of_agent(&a.clone()));
        assert_ne!(ETag::of_agent(&a), ETag::of_agent(&b));
        assert_ne!(ETag::of_agent(&a), ETag::of_configured_agent(&a));
    }
}
