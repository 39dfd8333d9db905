//! The requests that are sent to the writer, each with the channel for its reply.

use std::{any::Any, pin::pin, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    known_queues::KnownQueues,
    ticket::{CallerTicket, Refusals},
};
use crate::{
    clock,
    domain::{
        task::{Actor, AttemptExchange, Command, Details, Task},
        values::{AgentName, Holder, IdInUse, Lease, Renewal, TaskId, Term, Timestamp},
        view::ChangeOrigin,
    },
    store::{CommandError, StoreError, Transaction},
};

/// A command for one task.
#[derive(Clone, Debug)]
pub struct Apply {
    pub task: TaskId,
    pub command: Command,
    pub by: Actor,
    /// The command is refused unless the task is at this version.
    pub if_version: Option<u64>,
    pub idempotency: Option<Idempotency>,
    /// The request and the response of the attempt, as the instance knows them that made the call.
    pub exchange: Option<Box<AttemptExchange>>,
    /// The caller, if the command is recorded in the ledger by itself. [`Store::apply`](super::Store::apply) sets it.
    pub(super) origin: Option<Arc<ChangeOrigin>>,
}

impl Apply {
    /// A command for whatever version of the task the store has. Nothing recognises it when it is sent again.
    pub fn new(task: TaskId, command: Command, by: Actor) -> Self {
        Self {
            task,
            command,
            by,
            if_version: None,
            idempotency: None,
            exchange: None,
            origin: None,
        }
    }

    /// Adds what is recorded of the attempt that the command ends.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Option<Box<AttemptExchange>>) -> Self {
        self.exchange = exchange;
        self
    }

    /// Refuses the command unless the task is at this version. `None`: any version will do.
    #[must_use]
    pub fn at_version(mut self, version: Option<u64>) -> Self {
        self.if_version = version;
        self
    }

    /// Has the response repeated when the command is sent again under this key.
    #[must_use]
    pub fn under_key(mut self, idempotency: Option<Idempotency>) -> Self {
        self.idempotency = idempotency;
        self
    }
}

/// An `Idempotency-Key`, with what distinguishes a repeated request from another under the same key.
#[derive(Clone, Debug)]
pub struct Idempotency {
    pub key: String,
    pub fingerprint: String,
}

/// An accepted request.
#[derive(Clone, Debug)]
pub enum Submitted {
    /// The task as it is after the commit.
    New(Arc<Task>),
    /// The same request was accepted before, for this task.
    Replayed(TaskId),
}

/// The channel for the reply to a request.
pub(super) struct ReplySender<T, E> {
    sender: oneshot::Sender<Result<T, E>>,
    /// `None` if the request comes from a loop, which waits as long as necessary.
    ticket: Option<CallerTicket>,
}

impl<T, E> ReplySender<T, E> {
    /// Sends the reply. A reply whose caller is gone is returned.
    pub fn send(self, answer: Result<T, E>) -> Result<(), Result<T, E>> {
        self.sender.send(answer)
    }
}

impl<T, E> From<oneshot::Sender<Result<T, E>>> for ReplySender<T, E> {
    fn from(sender: oneshot::Sender<Result<T, E>>) -> Self {
        Self {
            sender,
            ticket: None,
        }
    }
}

/// Sends a request with the channel for its reply, and waits for the reply as long as necessary.
pub(super) async fn ask<R, T, E: From<StoreError>>(
    requests: &mpsc::Sender<R>,
    request: impl FnOnce(ReplySender<T, E>) -> R,
) -> Result<T, E> {
    let (answer, answered) = oneshot::channel();
    let sent = requests.send(request(answer.into())).await;
    sent.map_err(|_| StoreError::Stopping)?;
    answered.await.map_err(|_| StoreError::Stopping)?
}

/// Sends a request as [`ask`] does, for a caller of the API, which gets an error when the request is not begun in time.
pub(super) async fn ask_in_time<R, T, E: From<StoreError>>(
    requests: &mpsc::Sender<R>,
    refusals: &Refusals,
    request: impl FnOnce(ReplySender<T, E>) -> R,
) -> Result<T, E> {
    let arrived = clock::instant();
    let ticket = CallerTicket::default();
    let (sender, answered) = oneshot::channel();
    let request = request(ReplySender {
        sender,
        ticket: Some(ticket.clone()),
    });
    let mut asked = pin!(async {
        let sent = requests.send(request).await;
        sent.map_err(|_| StoreError::Stopping)?;
        answered.await.map_err(|_| StoreError::Stopping)?
    });
    tokio::select! {
        biased;
        answer = &mut asked => return answer,
        error = refusals.turn_away(arrived) => {
            if ticket.leave() {
                return Err(error.into());
            }
        }
    }
    asked.await
}

pub(super) enum Request {
    Submit {
        details: Arc<Details>,
        reason: Option<String>,
        idempotency: Option<Idempotency>,
        answer: ReplySender<Submitted, CommandError>,
    },
    Apply {
        apply: Apply,
        answer: ReplySender<Submitted, CommandError>,
    },
    /// Claims as many steps of these agents' queues as they have free slots. The reply is how many were claimed.
    ClaimQueued {
        agents: Vec<AgentName>,
        /// True if the steps that other instances have just enqueued are left to them.
        leaves_some: bool,
        answer: ReplySender<usize, StoreError>,
    },
    Write(RareWrite),
    /// Served in a transaction of its own and, if the backend supports that, on a connection of its own.
    Leases(LeaseCall),
}

impl Request {
    /// Returns the one task that the request concerns.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Request::Submit { details, .. } => Some(details.id),
            Request::Apply { apply, .. } => Some(apply.task),
            Request::ClaimQueued { .. } | Request::Write(_) | Request::Leases(_) => None,
        }
    }

    /// Returns the task that the request makes.
    pub fn new_task(&self) -> Option<&Arc<Details>> {
        match self {
            Request::Submit { details, .. } => Some(details),
            Request::Apply { apply, .. } => match &apply.command {
                Command::BeginChild { child, .. } => Some(child),
                _ => None,
            },
            Request::ClaimQueued { .. } | Request::Write(_) | Request::Leases(_) => None,
        }
    }

    /// Returns whether the request claims steps from agent queues.
    pub fn claims(&self) -> bool {
        matches!(self, Request::ClaimQueued { .. })
    }

    /// Returns whether an operator sent the request, who sees the result at once.
    pub fn is_by_operator(&self) -> bool {
        matches!(self, Request::Apply { apply, .. } if apply.by.is_operator())
    }

    /// Returns whether the request must be saved alone. Claims must be if they read a queue.
    pub fn is_exclusive(&self, heads: &KnownQueues) -> bool {
        match self {
            Request::Submit { .. } | Request::Apply { .. } => false,
            Request::ClaimQueued { agents, .. } => heads.need_read(agents),
            Request::Write(_) | Request::Leases(_) => true,
        }
    }
}

impl Request {
    /// Returns `None` if the request has no caller that may leave.
    fn ticket(&self) -> Option<&CallerTicket> {
        match self {
            Request::Submit { answer, .. } | Request::Apply { answer, .. } => {
                answer.ticket.as_ref()
            }
            Request::ClaimQueued { answer, .. } => answer.ticket.as_ref(),
            Request::Write(write) => write.write.ticket(),
            Request::Leases(_) => None,
        }
    }

    /// Returns whether the request may be carried out. It may not if its caller has left. From now on the caller waits
    /// for the response.
    pub(super) fn begin(&self) -> bool {
        self.ticket().is_none_or(CallerTicket::begin)
    }

    /// Returns whether the caller has waited as long as a caller waits in the queue.
    pub(super) fn is_overdue(&self) -> bool {
        self.ticket().is_some_and(CallerTicket::is_overdue)
    }

    /// Returns the request, so that it waits in the queue again. Returns `None` if its caller waits no longer, and has
    /// a response.
    pub(super) fn put_back(self) -> Option<Self> {
        if self.ticket().is_none_or(CallerTicket::put_back) {
            return Some(self);
        }
        self.refuse(&StoreError::NotNow(
            "it has not come to this request in time".to_owned(),
        ));
        None
    }

    pub(super) fn refuse(self, error: &StoreError) {
        // A caller that is gone needs no response.
        match self {
            Request::Submit { answer, .. } | Request::Apply { answer, .. } => {
                let _ = answer.send(Err(error.clone().into()));
            }
            Request::ClaimQueued { answer, .. } => {
                let _ = answer.send(Err(error.clone()));
            }
            Request::Write(write) => write.reply(Err(error.clone())),
            Request::Leases(LeaseCall { answer, .. }) => {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

/// The result of a renewal.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The term under which the instance supervises, if it does; or the error that another process has its id.
    pub outcome: Result<Option<Term>, IdInUse>,
    /// The supervisors' lease, held by any instance.
    pub supervisor: Option<Lease>,
}

/// A request of a process for its leases.
#[derive(Clone, Debug)]
pub(super) enum LeaseRequest {
    Renew(Renewal),
    GiveUp(Holder),
}

pub(super) struct LeaseCall {
    pub asked: LeaseRequest,
    pub answer: ReplySender<Renewed, StoreError>,
}

/// The result of a write, until its caller gets it.
pub(super) type WriteResult = Box<dyn Any + Send>;

/// A rare write that was sent to a committer.
pub(super) struct RareWrite {
    pub write: Box<dyn AnyWrite>,
    /// True if it runs in a transaction of its own, before the batch.
    pub is_alone: bool,
    /// Notified after the commit.
    pub wakes: Option<Arc<Notify>>,
}

impl RareWrite {
    pub async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError> {
        self.write.run(tx).await
    }

    pub fn reply(self, written: Result<WriteResult, StoreError>) {
        if let (Ok(_), Some(wakes)) = (&written, &self.wakes) {
            wakes.notify_one();
        }
        self.write.reply(written);
    }
}

/// A write with a result whose type only its caller knows.
#[async_trait]
pub(super) trait AnyWrite: Send + Sync {
    async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError>;
    fn reply(self: Box<Self>, written: Result<WriteResult, StoreError>);
    fn ticket(&self) -> Option<&CallerTicket>;
}

pub(super) struct TypedWrite<T, F> {
    pub run: F,
    pub answer: ReplySender<T, StoreError>,
}

#[async_trait]
impl<T, F> AnyWrite for TypedWrite<T, F>
where
    T: Send + 'static,
    F: for<'t> Fn(&'t mut Transaction<'t>) -> BoxFuture<'t, Result<T, StoreError>> + Send + Sync,
{
    async fn run(&self, tx: &mut Transaction<'_>) -> Result<WriteResult, StoreError> {
        let written = (self.run)(tx).await?;
        Ok(Box::new(written))
    }

    fn reply(self: Box<Self>, written: Result<WriteResult, StoreError>) {
        // The result is what `run` returned, and therefore has this type.
        let typed = |written: WriteResult| written.downcast().map_err(|_| StoreError::Stopping);
        // A caller that is gone needs no response.
        let _ = self
            .answer
            .send(written.and_then(typed).map(|typed| *typed));
    }

    fn ticket(&self) -> Option<&CallerTicket> {
        self.answer.ticket.as_ref()
    }
}
