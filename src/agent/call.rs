//! One call: one try at an endpoint, and the deadline around it.

use ::http::HeaderMap;
use tokio::time::Instant;

use super::{
    http,
    registry::{Agent, Agents},
    transport::{CallAttempt, Permission},
};
use crate::domain::{Call, CallBody, CallOutcome, Target};

impl Agent {
    /// Makes the call with this body, which is freed once it is sent. `None` if `deadline`, the complete-by on this
    /// machine's monotonic clock, came first: the call is dropped and nothing is reported, because another instance
    /// may be running the step by then.
    pub async fn call(
        &self,
        call: &Call,
        body: Option<CallBody>,
        deadline: Instant,
        permission: &dyn Permission,
    ) -> Option<CallOutcome> {
        let meters = self.meters();
        let _meter = meters.begin_call();
        if call.tries > 0 {
            meters.retries.increment(1);
        }
        let request = CallAttempt {
            call,
            deadline,
            permission,
        };
        let called = self.wire().call(request, body);
        let answered = tokio::time::timeout_at(deadline, called).await;
        // An answer that was there but came to light after complete-by is late all the same.
        answered.ok().filter(|_| Instant::now() < deadline)
    }
}

impl Agents {
    /// The headers of a step that a worker fetches; an error says why there can be none.
    pub fn worker_headers(&self, call: &Call) -> Result<HeaderMap, String> {
        http::worker_headers(call, self.reply_address())
    }

    /// [`Agent::call`] on the agent that the call is for.
    pub async fn call(
        &self,
        call: &Call,
        body: Option<CallBody>,
        deadline: Instant,
        permission: &dyn Permission,
    ) -> Option<CallOutcome> {
        let name = match &call.target {
            Target::Agent(name) => name,
            Target::Url { origin, .. } => origin,
            // What the agent adds is for its operations too. One that adds nothing may have lost the endpoint since.
            Target::Operation { origin, agent, .. } => match self.get(agent) {
                Some(known) if known.wire().access.is_some() => agent,
                _ => origin,
            },
        };
        match self.get(name) {
            Some(agent) => agent.call(call, body, deadline, permission).await,
            None => {
                let message =
                    format!("agent `{name}` is not registered; register it, then retry the step");
                let unsent = CallAttempt {
                    call,
                    deadline,
                    permission,
                };
                Some(unsent.permanent(message))
            }
        }
    }
}
