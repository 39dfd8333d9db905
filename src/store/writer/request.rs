//! The requests that are sent to the writer, each with where its answer goes.

use std::{any::Any, pin::pin, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{
    known_queues::KnownQueues,
    ticket::{CallerTicket, Refusals},
};
use crate::{
    domain::{
        Actor, AgentName, Command, Details, Holder, IdInUse, Lease, Renewal, Task, TaskId, Term,
        Timestamp,
    },
    store::{CommandError, StoreError, Transaction},
};

/// A command for one task.
#[derive(Debug)]
pub struct Apply {
    pub task: TaskId,
    pub command: Command,
    pub by: Actor,
    /// Refused unless the task is at this version.
    pub if_version: Option<u64>,
    pub idempotency: Option<Idempotency>,
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

/// Where the answer to a request goes.
pub(super) struct ReplySender<T, E> {
    sender: oneshot::Sender<Result<T, E>>,
    /// `None`: the loop that asked waits as long as it takes.
    ticket: Option<CallerTicket>,
}

impl<T, E> ReplySender<T, E> {
    /// An answer that is nobody's any more comes back.
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

/// Sends a request with where its answer goes, and waits for the answer, as long as it takes.
pub(super) async fn ask<R, T, E: From<StoreError>>(
    requests: &mpsc::Sender<R>,
    request: impl FnOnce(ReplySender<T, E>) -> R,
) -> Result<T, E> {
    let (answer, answered) = oneshot::channel();
    let sent = requests.send(request(answer.into())).await;
    sent.map_err(|_| StoreError::Stopping)?;
    answered.await.map_err(|_| StoreError::Stopping)?
}

/// [`ask`] for a caller of the API, who is turned away when the turn of the request does not come in time.
pub(super) async fn ask_in_time<R, T, E: From<StoreError>>(
    requests: &mpsc::Sender<R>,
    refusals: &Refusals,
    request: impl FnOnce(ReplySender<T, E>) -> R,
) -> Result<T, E> {
    let arrived = Instant::now();
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
    /// Claims as many steps of these agents' queues as they have free slots; returns how many were claimed.
    ClaimQueued {
        agents: Vec<AgentName>,
        /// What other instances have just enqueued is left to them.
        leaves_some: bool,
        answer: ReplySender<usize, StoreError>,
    },
    Write(RareWrite),
    /// Served in a transaction of its own, and where the backend can on a connection of its own.
    Leases(LeaseCall),
}

impl Request {
    /// The one task that it is about.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Request::Submit { details, .. } => Some(details.id),
            Request::Apply { apply, .. } => Some(apply.task),
            Request::ClaimQueued { .. } | Request::Write(_) | Request::Leases(_) => None,
        }
    }

    /// The task that it makes.
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

    /// Whether it claims steps from agent queues.
    pub fn claims(&self) -> bool {
        matches!(self, Request::ClaimQueued { .. })
    }

    /// Whether a person asked for it, who hears at once what came of it.
    pub fn is_by_operator(&self) -> bool {
        matches!(self, Request::Apply { apply, .. } if apply.by.is_operator())
    }

    /// Whether it must be saved alone. Claims must, where they read a queue.
    pub fn is_exclusive(&self, heads: &KnownQueues) -> bool {
        match self {
            Request::Submit { .. } | Request::Apply { .. } => false,
            Request::ClaimQueued { agents, .. } => heads.need_read(agents),
            Request::Write(_) | Request::Leases(_) => true,
        }
    }
}

impl Request {
    /// `None` where nobody waits who may leave.
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

    /// Whether it may be carried out: not if its caller has left. From now on the caller waits for the response.
    pub(super) fn begin(&self) -> bool {
        self.ticket().is_none_or(CallerTicket::begin)
    }

    /// Whether its caller has waited for as long as anybody waits in the queue.
    pub(super) fn is_overdue(&self) -> bool {
        self.ticket().is_some_and(CallerTicket::is_overdue)
    }

    /// Itself, to wait in the queue again; `None` if its caller waits no longer, and has got a response.
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
        // A caller that is gone needs no answer.
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

/// How a renewal went.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// On the store's clock.
    pub now: Timestamp,
    /// The term under which the instance supervises, if it does; or that another process has its id.
    pub outcome: Result<Option<Term>, IdInUse>,
    /// The supervisors' lease, held by any instance.
    pub supervisor: Option<Lease>,
}

/// What a process asks for its leases.
#[derive(Clone, Debug)]
pub(super) enum LeaseRequest {
    Renew(Renewal),
    GiveUp(Holder),
}

pub(super) struct LeaseCall {
    pub asked: LeaseRequest,
    pub answer: ReplySender<Renewed, StoreError>,
}

/// What a write returned, until it is given to its caller.
pub(super) type WriteResult = Box<dyn Any + Send>;

/// A rare write on its way to a committer.
pub(super) struct RareWrite {
    pub write: Box<dyn AnyWrite>,
    /// Runs in a transaction of its own, before the batch.
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

/// A write whose result only its caller knows the type of.
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
        // It is what `run` returned, and so of this type.
        let typed = |written: WriteResult| written.downcast().map_err(|_| StoreError::Stopping);
        // A caller that is gone needs no answer.
        let _ = self
            .answer
            .send(written.and_then(typed).map(|typed| *typed));
    }

    fn ticket(&self) -> Option<&CallerTicket> {
        self.answer.ticket.as_ref()
    }
}
