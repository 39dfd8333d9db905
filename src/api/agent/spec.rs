//! Tests of the specification of an agent, as it is registered.

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use crate::domain::{
        agent::{AgentSpec, RetrySpec},
        values::{Object, Span},
    };

    fn spec(json: &str) -> Result<AgentSpec, Vec<String>> {
        let body = RawValue::from_string(json.to_owned()).unwrap();
        AgentSpec::parse(&body)
            .map_err(|faults| faults.into_iter().map(|fault| fault.pointer).collect())
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let read = spec(r#"{"endpoints": [{"url": "http://10.0.0.5:8080"}]}"#).unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 64);
        assert_eq!(read.retry, RetrySpec::default());
        let read = spec(
            r#"{"endpoints": [{"url": "http://a", "max_in_flight": 3}, {"url": "http://b/v1"}],
                "retry": {"initial": "1s", "max": "1m", "factor": 3}}"#,
        )
        .unwrap();
        assert_eq!(read.endpoints[0].max_in_flight, 3);
        assert_eq!(read.retry.max, Span::from_secs(60));
    }

    #[test]
    fn all_faults_are_reported_at_once_each_with_its_pointer() {
        let faults = spec(
            r#"{"endpoints": [{"urls": "http://a"}, {"url": 7}, {"url": "http://b", "max_in_flight": "many"}],
                "retry": {"initial": "soon", "jitter": true}, "secret": 1}"#,
        )
        .unwrap_err();
        for pointer in [
            "/endpoints/0/urls",
            "/endpoints/0/url",
            "/endpoints/1/url",
            "/endpoints/2/max_in_flight",
            "/retry/initial",
            "/retry/jitter",
            "/secret",
        ] {
            let count = faults.iter().filter(|fault| *fault == pointer).count();
            assert_eq!(count, 1, "{pointer} in {faults:?}");
        }
        assert_eq!(faults.len(), 7, "{faults:?}");
    }

    #[test]
    fn values_that_can_be_read_but_not_used_are_refused_too() {
        for (json, pointer) in [
            ("{}", "/endpoints"),
            (r#"{"endpoints": []}"#, "/endpoints"),
            (r#"{"endpoints": [{"url": "ftp://a"}]}"#, "/endpoints/0/url"),
            (
                r#"{"endpoints": [{"url": "http://a", "max_in_flight": 0}]}"#,
                "/endpoints/0/max_in_flight",
            ),
            (
                r#"{"endpoints": [{"url": "http://a"}], "retry": {"factor": 0}}"#,
                "/retry/factor",
            ),
        ] {
            assert_eq!(spec(json).unwrap_err(), [pointer], "{json}");
        }
        assert_eq!(spec("7").unwrap_err(), [""]);
    }
}
