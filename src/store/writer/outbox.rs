//! Requests of the delivery loop and of operators, each in a transaction of its own: it locks queues, which a
//! batch of commands locks only after its tasks, and waits for no task.

use tokio::sync::oneshot;

use super::{Committer, Store, TRIES, handle::Request};
use crate::{
    domain::{InstanceId, Span, Timestamp},
    store::{ClaimRequest, ClaimResponse, MessageAction, MessageId, StoreError},
};

#[derive(Clone, Debug)]
pub(super) enum OutboxRequest {
    Claim {
        request: Box<ClaimRequest>,
        by: InstanceId,
        /// How long the claims last at most.
        hold: Span,
    },
    Act(MessageAction, Vec<MessageId>),
    Release(Option<InstanceId>),
    PurgeDeadLetters(Timestamp, usize),
    PurgeDestinations(Timestamp, usize),
}

pub(super) enum OutboxResponse {
    Claimed(ClaimResponse),
    Changed(Vec<MessageId>),
    Count(u64),
}

impl Store {
    /// Releases queues and claims others, for at most `hold`.
    pub async fn claim_queues(
        &self,
        request: ClaimRequest,
        by: InstanceId,
        hold: Span,
    ) -> Result<ClaimResponse, StoreError> {
        match self
            .outbox(OutboxRequest::Claim {
                request: Box::new(request),
                by,
                hold,
            })
            .await?
        {
            OutboxResponse::Claimed(response) => Ok(response),
            _ => Ok(ClaimResponse::default()),
        }
    }

    /// Returns the messages that exist and whose state allows the action.
    pub async fn apply_message_action(
        &self,
        action: MessageAction,
        ids: Vec<MessageId>,
    ) -> Result<Vec<MessageId>, StoreError> {
        match self.outbox(OutboxRequest::Act(action, ids)).await? {
            OutboxResponse::Changed(ids) => Ok(ids),
            _ => Ok(Vec::new()),
        }
    }

    /// Releases the queues that `by` claimed, or all: the process that claimed them has ended.
    pub async fn release_queues(&self, by: Option<InstanceId>) -> Result<u64, StoreError> {
        self.counted(OutboxRequest::Release(by)).await
    }

    /// Deletes up to `limit` dead letters that died before `died_before`.
    pub async fn purge_dead_letters(
        &self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.counted(OutboxRequest::PurgeDeadLetters(died_before, limit))
            .await
    }

    /// Deletes up to `limit` destinations without a backlog that last failed before `failed_before`.
    pub async fn purge_destinations(
        &self,
        failed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.counted(OutboxRequest::PurgeDestinations(failed_before, limit))
            .await
    }

    async fn counted(&self, asked: OutboxRequest) -> Result<u64, StoreError> {
        match self.outbox(asked).await? {
            OutboxResponse::Count(count) => Ok(count),
            _ => Ok(0),
        }
    }

    async fn outbox(&self, asked: OutboxRequest) -> Result<OutboxResponse, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Outbox { asked, answer }).await?;
        answered.await.map_err(|_| StoreError::Stopping)?
    }
}

impl Committer<'_> {
    /// Answers what is asked of the outbox, and takes it out of what was gathered.
    pub(super) async fn serve_outbox(&mut self, gathered: &mut Vec<Request>) {
        let is_outbox = |request: &mut Request| matches!(request, Request::Outbox { .. });
        for request in gathered.extract_if(.., is_outbox) {
            if let Request::Outbox { asked, answer } = request {
                let served = self.serve_outbox_request(&asked).await;
                if served.is_ok()
                    && matches!(asked, OutboxRequest::Act(MessageAction::Redeliver, _))
                {
                    self.writer.outbox.notify_one();
                }
                // A caller that is gone needs no answer.
                let _ = answer.send(served);
            }
        }
    }

    async fn serve_outbox_request(
        &mut self,
        asked: &OutboxRequest,
    ) -> Result<OutboxResponse, StoreError> {
        let mut interrupted = String::new();
        for _ in 0..TRIES {
            match self.try_serve_outbox(asked).await {
                Err(StoreError::Retryable(reason)) => interrupted = reason,
                Err(error) => {
                    self.backend.failed(&error);
                    return Err(error);
                }
                served => return served,
            }
        }
        Err(StoreError::Unavailable(interrupted))
    }

    async fn try_serve_outbox(
        &mut self,
        asked: &OutboxRequest,
    ) -> Result<OutboxResponse, StoreError> {
        let mut tx = self.backend.begin().await?;
        let answer = match asked {
            OutboxRequest::Claim { request, by, hold } => {
                let (until, sender) = (tx.now() + *hold, self.writer.settings.sender.load_full());
                OutboxResponse::Claimed(tx.claim_queues(request, by, until, &sender).await?)
            }
            OutboxRequest::Act(action, ids) => {
                OutboxResponse::Changed(tx.apply_message_action(*action, ids).await?)
            }
            OutboxRequest::Release(by) => {
                OutboxResponse::Count(tx.release_queues(by.as_ref()).await?)
            }
            OutboxRequest::PurgeDeadLetters(died_before, limit) => {
                OutboxResponse::Count(tx.purge_dead_letters(*died_before, *limit).await?)
            }
            OutboxRequest::PurgeDestinations(failed_before, limit) => {
                OutboxResponse::Count(tx.purge_destinations(*failed_before, *limit).await?)
            }
        };
        tx.commit().await?;
        Ok(answer)
    }
}
