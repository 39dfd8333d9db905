//! Work that takes the processor for milliseconds, kept from holding up other requests.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does the work on this thread, while the runtime's other work moves to another.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // Nothing can move where there is one thread, as in tests.
        _ => work(),
    }
}
