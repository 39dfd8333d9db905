//! The check of an agent: calls its service as steps would, under keys of its own, and notes what came back. The rules that
//! say what it means, and the requests that it sends, are in the domain.
//!
//! `points` has the calls of each point in order, `run` makes a call with its retries, `log` notes each exchange.
//! `bounds` is the time of a check, `call_options` are the time and the retries of a call.

mod bounds;
mod call_options;
mod log;
mod points;
mod run;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

pub use self::log::ShownExchange;
use self::{
    bounds::{CheckTime, CutShort},
    points::check_points,
    run::CheckRun,
};
use super::registry::{Agent, Agents};
use crate::domain::{
    agent::{CheckObservations, StepRequests},
    definition::Definition,
    template::{Expression, Payload},
    values::Timestamp,
};

/// A check to make: the step, its input, and the bounds.
pub struct CheckRequest {
    /// One step, with its undo if it has one.
    pub definition: Definition,
    pub input: Payload,
    /// A body that the service must refuse.
    pub invalid: Option<Payload>,
    /// Gives how often the work was done, from the response of the probe.
    pub count: Option<Expression>,
    /// The most time for all calls together.
    pub within: Duration,
    /// The store's time at the start.
    pub now: Timestamp,
    pub max_output: u64,
}

/// The result of a check.
pub struct CheckReport {
    pub seen: CheckObservations,
    pub exchanges: Vec<ShownExchange>,
}

impl Agents {
    /// Checks an agent. It makes real work at the service, and undoes what it can.
    pub async fn check(&self, agent: &Arc<Agent>, request: &CheckRequest) -> CheckReport {
        let count = request.count.as_ref();
        let requests = StepRequests::new(&request.definition, &request.input, count);
        let facts = requests.facts(request.invalid.is_some(), request.max_output);
        let mut seen = CheckObservations::new(facts);
        let run = CheckRun {
            agents: self,
            agent,
            requests,
            invalid: request.invalid.as_ref(),
            time: CheckTime::begin(request.now, request.within),
            log: Mutex::default(),
        };
        if let Err(CutShort(why)) = check_points(&run, &mut seen).await {
            seen.cut_short = Some(why);
        }
        let exchanges = run.log.into_inner().add_to(&mut seen);
        CheckReport { seen, exchanges }
    }
}
