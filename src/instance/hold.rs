//! The hold of an instance: a restored copy of a database must not begin to make calls by accident. A held instance
//! accepts requests and responds; it makes no call and delivers no message.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// An instance is held from its start, or never: a released instance is not held again.
#[derive(Debug, Default)]
pub struct Hold {
    /// Every claim reads this value.
    held: AtomicBool,
    released: CancellationToken,
}

impl Hold {
    pub fn new(held: bool) -> Self {
        let hold = Self {
            held: AtomicBool::new(held),
            released: CancellationToken::new(),
        };
        if !held {
            hold.released.cancel();
        }
        hold
    }

    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Releases the instance. Returns whether it was held until now.
    pub fn release(&self) -> bool {
        let was_held = self.held.swap(false, Ordering::AcqRel);
        self.released.cancel();
        was_held
    }

    /// Waits until the instance is not held.
    pub async fn released(&self) {
        self.released.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hold_is_released_once_and_for_all() {
        let hold = Hold::new(true);
        assert!(hold.is_held());
        assert!(hold.release());
        assert!(!hold.is_held());
        assert!(!hold.release());
        hold.released().await;
    }

    #[tokio::test]
    async fn without_a_hold_nobody_waits() {
        let hold = Hold::new(false);
        hold.released().await;
        assert!(!hold.is_held() && !hold.release());
    }
}
