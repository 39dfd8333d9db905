//! The limits of connections: their number, and the duration of each wait for a client.

use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::config::ListenerConfig;

/// The part of the file descriptors that connections leave for the database, calls and files, as a divisor.
const RESERVE: u64 = 4;

/// The limits for the number of connections, and for the waits for their clients.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    pub max_connections: usize,
    pub max_without_request: usize,
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    pub stall_timeout: Duration,
}

impl ListenerLimits {
    /// Returns the configured limits, reduced to the open files that the process may have. Raises the limit of open
    /// files as far as possible.
    pub fn new(config: &ListenerConfig) -> Self {
        let descriptors = raise_descriptors();
        let within = descriptors - descriptors / RESERVE;
        let within = usize::try_from(within).unwrap_or(usize::MAX).max(1);
        let max_connections = config.max_connections.min(within);
        if max_connections < config.max_connections {
            warn!(
                descriptors,
                max_connections,
                configured = config.max_connections,
                "the process may open too few files for listener.max_connections, so fewer connections are accepted; raise its limit (ulimit -n, LimitNOFILE=)"
            );
        }
        Self {
            max_connections,
            // Half of the connections are kept for clients that have sent a request, so that silent ones never
            // displace all of them.
            max_without_request: config.max_without_request.min(max_connections.div_ceil(2)),
            head_timeout: config.head_timeout.duration(),
            body_timeout: config.body_timeout.duration(),
            idle_timeout: config.idle_timeout.duration(),
            stall_timeout: config.stall_timeout.duration(),
        }
    }

    /// Returns the interval at which connections are checked: short enough for the shortest of their waits.
    pub fn tick(&self) -> Duration {
        let shortest = [self.head_timeout, self.idle_timeout, self.stall_timeout]
            .into_iter()
            .min()
            .unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(25), Duration::from_millis(500))
    }
}

/// Raises the soft limit of open files to the hard limit, and returns it. The soft limit protects old programs that
/// use select(2).
fn raise_descriptors() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let old = limit.current;
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            warn!(%error, "the limit of open files could not be raised");
            limit.current = old;
        }
    }
    limit.current.unwrap_or(u64::MAX)
}
