//! The harness of the tests: the binary as a child process, a client for its API, remote services that fail in the way
//! that a test says, and the database as another reader sees it.

mod act;
mod amqp_frames;
mod api;
mod browser;
mod database;
mod failure;
mod load;
mod messages;
mod postgres;
mod provost;
mod rabbit;
mod remote;
mod small_disk;
mod tasks;
pub mod wire;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use crate::cluster::free_port;
pub use act::{Act, Gate, Hook, Seen};
pub use amqp_frames::{FramePublisher, nested_table};
pub use api::{Answer, Api, Call, Events, all_processed, id_of, submit_charges};
pub use browser::{Browser, Look, screenshots};
pub use database::Database;
pub use load::Load;
pub use messages::{alerts, messages, until, until_messages, verify};
pub use postgres::{Postgres, sql};
pub use provost::{Provost, Setup, binary};
pub use rabbit::{Broker, Queued, Rabbit, RabbitClient};
pub use remote::Remote;
pub use small_disk::SmallDisk;
pub use tasks::{kinds, one_step, pipeline, step};

/// The longest time to wait for anything. It only decides how soon a broken test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the time since 1970 by the clock of the machine that everything runs on.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Returns the number of kills in a test of crashes: `few`, or the number that `scripts/test --all` sets.
pub fn kill_count(few: u64) -> u64 {
    match std::env::var("PROVOST_TEST_KILLS") {
        Ok(kills) => kills.parse().expect("PROVOST_TEST_KILLS is a number"),
        Err(_) => few,
    }
}

/// Creates an empty database on the tests' PostgreSQL.
pub async fn new_database() -> String {
    let made = tokio::task::spawn_blocking(crate::cluster::new_database);
    made.await.unwrap()
}

/// Returns setups for both databases.
pub async fn setups() -> [Setup; 2] {
    let url = new_database().await;
    [Provost::setup(), Provost::setup().database_url(&url)]
}
