//! What connections may take: how many, and how long each wait for a client lasts.

use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::config::ListenerConfig;

/// The share of the file descriptors that connections leave to the database, to calls and to files.
const RESERVE: u64 = 4;

/// Which connections are accepted, and how long they may keep it waiting.
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
    /// As configured, within what the process may have open. Raises that as far as it goes.
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
            // The other half is for those who have asked something: silence never drives all of them out.
            max_without_request: config.max_without_request.min(max_connections.div_ceil(2)),
            head_timeout: config.head_timeout.duration(),
            body_timeout: config.body_timeout.duration(),
            idle_timeout: config.idle_timeout.duration(),
            stall_timeout: config.stall_timeout.duration(),
        }
    }

    /// How often connections are looked at: often enough for the shortest of their waits.
    pub fn tick(&self) -> Duration {
        let shortest = [self.head_timeout, self.idle_timeout, self.stall_timeout]
            .into_iter()
            .min()
            .unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(25), Duration::from_millis(500))
    }
}

/// The soft limit is for old programs that use select(2); this one may have what the hard limit allows.
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
