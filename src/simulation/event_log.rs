//! The events of a simulation, and their hash: two runs of a seed have the same one.

use std::{
    fmt::{self, Display},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use parking_lot::Mutex;

pub struct EventLog {
    state: Mutex<(DefaultHasher, Vec<String>)>,
    keeps: bool,
}

impl EventLog {
    /// If `keeps` is false, only the hash is kept.
    pub fn new(keeps: bool) -> Self {
        Self {
            state: Mutex::default(),
            keeps,
        }
    }

    pub fn note(&self, at: Duration, event: fmt::Arguments<'_>) {
        let line = format!("{:>10.3} {event}", at.as_secs_f64());
        let mut state = self.state.lock();
        line.hash(&mut state.0);
        if self.keeps {
            state.1.push(line);
        }
    }

    pub fn hash(&self) -> u64 {
        self.state.lock().0.finish()
    }

    pub fn lines(&self) -> Vec<String> {
        self.state.lock().1.clone()
    }
}

/// Shows a hash as it is printed.
pub struct ShownHash(pub u64);

impl Display for ShownHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns a path without what differs in each database: the tokens of replies and asks, and the keys of steps.
pub fn shown_path(path: &str) -> String {
    /// Ids of tasks have 36 characters.
    const SHORTEST_TOKEN: usize = 40;
    let shown = |part: &str| match part.split_once(':') {
        Some((_key, step)) => step.to_owned(),
        None if part.len() >= SHORTEST_TOKEN => "...".to_owned(),
        None => part.to_owned(),
    };
    path.split('/').map(shown).collect::<Vec<_>>().join("/")
}
