//! The header by which a service announces how long it keeps a connection without calls: `Keep-Alive: timeout=5,
//! max=100`.

use std::time::Duration;

/// The service closes the connection at its own time, and a request that is sent at the same moment is lost.
const MARGIN: Duration = Duration::from_secs(1);

/// Returns the time for which a connection without calls can be used again. `None` if the header does not contain it.
pub fn usable_idle_time(keep_alive: &str) -> Option<Duration> {
    let mut parameters = keep_alive.split(',').map(str::trim);
    let seconds = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim_end().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().trim_matches('"').parse().ok())?
    })?;
    Some(Duration::from_secs(seconds).saturating_sub(MARGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_left_alone_before_its_service_closes_it() {
        for (header, seconds) in [
            ("timeout=5", Some(4)),
            ("timeout=5, max=100", Some(4)),
            ("max=100,Timeout = \"15\"", Some(14)),
            ("timeout=1", Some(0)),
            ("timeout=0", Some(0)),
            ("timeout=", None),
            ("timeout=-1", None),
            ("timeout=1.5", None),
            ("timeout", None),
            ("max=5", None),
            ("", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(usable_idle_time(header), expected, "{header}");
        }
    }
}
