//! Makes one attempt of a call at an endpoint, within its deadline.

use ::http::HeaderMap;

use super::{
    client::http,
    notes::{CallNotes, CallReport},
    registry::{Agent, Agents},
    transport::{CallAttempt, Permission},
};
use crate::{
    chance,
    clock::{self, Instant},
    domain::{
        definition::Target,
        task::{Call, CallBody},
    },
};

/// Tells what was sent in a call that is dropped: at its deadline, or once its attempt is known to be over.
struct TellOfDrop<'a> {
    request: CallAttempt<'a>,
    is_answered: bool,
}

impl Drop for TellOfDrop<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.request.dropped();
        }
    }
}

impl Agent {
    /// Makes the call with this body, which is freed when it has been sent. `deadline` is the complete-by on the
    /// monotonic clock of this machine. Returns `None` if the deadline came first: the call is dropped and its result
    /// is not reported, because another instance may be running the step by then.
    pub async fn call(
        &self,
        call: &Call,
        body: Option<CallBody>,
        deadline: Instant,
        permission: &dyn Permission,
        is_sampled: bool,
    ) -> Option<CallReport> {
        let meters = self.meters();
        let _meter = meters.begin_call();
        if call.transient_faults > 0 {
            meters.retries.increment(1);
        }
        let notes = CallNotes::new(is_sampled);
        let request = CallAttempt {
            call,
            deadline,
            permission,
            notes: &notes,
        };
        let mut dropping = TellOfDrop {
            request,
            is_answered: false,
        };
        let called = self.wire().call(request, body);
        let answered = clock::timeout_at(deadline, called).await;
        // A response that is noticed only after complete-by is late, even if it had arrived before.
        let answered = answered.ok().filter(|_| clock::instant() < deadline);
        dropping.is_answered = answered.is_some();
        answered
    }
}

impl Agents {
    /// Returns the headers of a step that a worker fetches. An error says why the headers cannot be made.
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
    ) -> Option<CallReport> {
        let name = match &call.target {
            Target::Agent(name) => name,
            Target::Url { origin, .. } => origin,
            // The credentials of the agent are for its operations too. An agent without credentials may have lost the
            // endpoint in the meantime.
            Target::Operation { origin, agent, .. } => match self.get(agent) {
                Some(known) if known.wire().access.is_some() => agent,
                _ => origin,
            },
        };
        match self.get(name) {
            Some(agent) => {
                let is_sampled = self.record_successes().takes(chance::random());
                let called = agent.call(call, body, deadline, permission, is_sampled);
                called.await
            }
            None => {
                let message =
                    format!("agent `{name}` is not registered; register it, then retry the step");
                let notes = CallNotes::new(false);
                let unsent = CallAttempt {
                    call,
                    deadline,
                    permission,
                    notes: &notes,
                };
                Some(unsent.permanent(message).into())
            }
        }
    }
}
