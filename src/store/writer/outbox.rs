//! What the delivery loop and operators do with messages, each time in a transaction of its own: it locks
//! queues, which a batch of commands locks only after its tasks, and waits for no task.

use tokio::sync::oneshot;

use super::{Committer, Store, TRIES, handle::Request};
use crate::{
    domain::{InstanceId, Span, Timestamp},
    store::{Letter, MessageId, Round, StoreError, Taken},
};

#[derive(Clone, Debug)]
pub(super) enum OutboxRequest {
    Round {
        round: Box<Round>,
        by: InstanceId,
        /// How long what is taken is held at the longest.
        hold: Span,
    },
    Letters(Letter, Vec<MessageId>),
    Free(Option<InstanceId>),
    Purge(Timestamp, usize),
    PurgeDestinations(Timestamp, usize),
}

pub(super) enum OutboxAnswer {
    Taken(Taken),
    Handled(Vec<MessageId>),
    Count(u64),
}

impl Store {
    /// Lets go of queues and takes others, for at most `hold`.
    pub async fn outbox_round(
        &self,
        round: Round,
        by: InstanceId,
        hold: Span,
    ) -> Result<Taken, StoreError> {
        match self
            .outbox(OutboxRequest::Round {
                round: Box::new(round),
                by,
                hold,
            })
            .await?
        {
            OutboxAnswer::Taken(taken) => Ok(taken),
            _ => Ok(Taken::default()),
        }
    }

    /// Answers which of the messages are there and in a state for it.
    pub async fn handle_letters(
        &self,
        letter: Letter,
        ids: Vec<MessageId>,
    ) -> Result<Vec<MessageId>, StoreError> {
        match self.outbox(OutboxRequest::Letters(letter, ids)).await? {
            OutboxAnswer::Handled(ids) => Ok(ids),
            _ => Ok(Vec::new()),
        }
    }

    /// Lets go of the queues that `by` held, or of all that are held: who held them is gone.
    pub async fn free_queues(&self, by: Option<InstanceId>) -> Result<u64, StoreError> {
        self.counted(OutboxRequest::Free(by)).await
    }

    /// Deletes up to `limit` dead letters that died before `died_before`.
    pub async fn purge_letters(
        &self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.counted(OutboxRequest::Purge(died_before, limit)).await
    }

    /// Forgets up to `limit` destinations that nothing waits for and that last failed before then.
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
            OutboxAnswer::Count(count) => Ok(count),
            _ => Ok(0),
        }
    }

    async fn outbox(&self, asked: OutboxRequest) -> Result<OutboxAnswer, StoreError> {
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
                if served.is_ok() && matches!(asked, OutboxRequest::Letters(Letter::Redeliver, _)) {
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
    ) -> Result<OutboxAnswer, StoreError> {
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
    ) -> Result<OutboxAnswer, StoreError> {
        let mut tx = self.backend.begin().await?;
        let answer = match asked {
            OutboxRequest::Round { round, by, hold } => {
                let (until, sender) = (tx.now() + *hold, self.writer.settings.sender.load_full());
                OutboxAnswer::Taken(tx.outbox_round(round, by, until, &sender).await?)
            }
            OutboxRequest::Letters(letter, ids) => {
                OutboxAnswer::Handled(tx.handle_letters(*letter, ids).await?)
            }
            OutboxRequest::Free(by) => OutboxAnswer::Count(tx.free_queues(by.as_ref()).await?),
            OutboxRequest::Purge(died_before, limit) => {
                OutboxAnswer::Count(tx.purge_letters(*died_before, *limit).await?)
            }
            OutboxRequest::PurgeDestinations(failed_before, limit) => {
                OutboxAnswer::Count(tx.purge_destinations(*failed_before, *limit).await?)
            }
        };
        tx.commit().await?;
        Ok(answer)
    }
}
