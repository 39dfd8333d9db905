//! The chaos tests' orders, services, workers, people and operators, which the simulation uses as well.

#[path = "../../tests/process/chaos/agents.rs"]
mod agents;
#[path = "no_broker.rs"]
mod broker;
#[path = "../../tests/process/chaos/closing.rs"]
mod closing;
#[path = "../../tests/process/chaos/kinds.rs"]
mod kinds;
#[path = "../../tests/process/chaos/operators.rs"]
mod operators;
#[path = "../../tests/process/chaos/orders.rs"]
mod orders;
#[path = "../../tests/process/chaos/people.rs"]
mod people;
#[path = "../../tests/process/chaos/promises.rs"]
mod promises;
#[path = "../../tests/process/chaos/receiver.rs"]
mod receiver;
#[path = "../../tests/process/chaos/schedules.rs"]
mod schedules;
#[path = "../../tests/process/chaos/services.rs"]
mod services;
#[path = "../../tests/process/chaos/submitters.rs"]
mod submitters;
#[path = "../../tests/process/chaos/summary.rs"]
mod summary;
#[path = "../../tests/process/chaos/unsubmitted.rs"]
mod unsubmitted;
#[path = "../../tests/process/chaos/workers.rs"]
mod workers;
#[path = "../../tests/process/chaos/workflows.rs"]
mod workflows;

use std::time::Duration;

pub use self::{
    agents::{register, register_workers},
    closing::Closing,
    operators::{Odd, Operator, Tasks},
    orders::Mix,
    people::People,
    receiver::Receiver,
    schedules::Schedules,
    services::{ServiceFault, Services},
    submitters::Submitter,
    summary::Summary,
    unsubmitted::{find_tasks, unsubmitted},
    workers::start as start_workers,
    workflows::Workflows,
};

/// The time in which all messages must be delivered once there are no more faults.
const END_WITHIN: Duration = Duration::from_secs(300);
/// Every wait of a task is shorter than this.
const STUCK_AFTER: Duration = Duration::from_secs(300);
