//! `--history`: gives the full server a database with the history of many tasks. The server saves some tasks of every
//! kind, and while it is stopped their rows are multiplied.

use serde_json::{Value, json};

use super::{
    BenchError,
    load::{self, Amount},
    requests::{Requests, WORKFLOW},
    server::BenchServers,
};
use crate::{
    clock,
    domain::values::Timestamp,
    store::{MANY_VALUES, MultiplyPlan},
};

/// The numbers, of a hundred tasks, that are cancelled or in error.
const CANCELLED: u32 = 3;
const IN_ERROR: u32 = 1;
const TEMPLATES: u32 = 100;

/// The number of values of one of the labels.
const LABELS: u32 = 10_000;
/// The label that nearly every task has.
pub const COMMON: (&str, &str) = ("region", "eu");
const RARE: (&str, &str) = ("region", "us");

/// The history lies in the last days, less than the month that ended tasks are kept.
const DAYS: i64 = 20;
const DAY: i64 = 86_400_000;

/// The history that was made.
#[derive(Clone, Copy, Debug)]
pub struct History {
    pub tasks: u64,
    /// A time in the middle of it.
    pub middle: Timestamp,
}

pub async fn make(
    servers: &mut BenchServers,
    tasks: u64,
    dead_workflow: &str,
) -> Result<History, BenchError> {
    save_templates(&servers.requests(), dead_workflow).await?;
    let now = clock::wall().as_millis();
    let from = now - DAYS * DAY;
    let step = (DAYS * DAY / i64::try_from(tasks).unwrap_or(i64::MAX)).max(1);
    let plan = MultiplyPlan {
        tasks,
        from,
        step,
        labels: LABELS,
    };
    servers.multiply(plan).await?;
    Ok(History {
        tasks,
        middle: Timestamp::from_millis(from + step * (i64::try_from(tasks).unwrap_or(0) / 2)),
    })
}

/// Saves the tasks whose rows are multiplied. Most are processed. All have a key and labels.
async fn save_templates(requests: &[Requests], dead_workflow: &str) -> Result<(), BenchError> {
    let alone = |tasks: u32| Amount {
        tasks,
        in_flight: 1,
    };
    let labelled = |region: (&str, &str), mut body: Value| {
        body["key"] = json!("key");
        body["labels"] = json!({ MANY_VALUES.0: MANY_VALUES.1, region.0: region.1 });
        body.to_string()
    };
    let input =
        json!({ "sku": "book-7", "quantity": 2, "price": 1800, "address": "7 Station Road" });
    let processed = json!({ "workflow": WORKFLOW, "input": input });
    let count = TEMPLATES - CANCELLED - IN_ERROR;
    for (region, tasks) in [(COMMON, count - 10), (RARE, 10)] {
        load::processed(requests, &labelled(region, processed.clone()), alone(tasks)).await?;
    }
    let cancelled = labelled(COMMON, json!({ "workflow": dead_workflow }));
    let (_, ids) = load::queued(requests, &cancelled, alone(CANCELLED)).await?;
    load::cancel(&requests[0], ids).await?;
    // The input lacks the fields that the steps read.
    let in_error = labelled(COMMON, json!({ "workflow": WORKFLOW, "input": {} }));
    load::queued(requests, &in_error, alone(IN_ERROR)).await?;
    Ok(())
}
