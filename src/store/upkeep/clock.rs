//! The record and the alert of the clock of a store that is a file: see [`StoreClock`].

use std::sync::Arc;

use futures::FutureExt;

use crate::domain::{
    task::AlertKind,
    upkeep::{clock_alert, clock_alert_subject, is_of_earlier_setting},
    values::Span,
};
use crate::{
    chance,
    store::{Store, StoreError, sqlite::StoreClock, statement::Statement},
};

const SAVE: &str = r#"
INSERT INTO clock (id, at, boot, elapsed) VALUES (1, $1, $2, $3)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, boot = excluded.boot, elapsed = excluded.elapsed"#;

impl Store {
    /// Records the time of the clock, so that the next process continues from it.
    pub async fn save_clock(&self, clock: &StoreClock) -> Result<(), StoreError> {
        let clock = clock.clone();
        self.send_write(true, None, move |tx| {
            let record = clock.record();
            async move {
                tx.lock_out_of_order();
                let elapsed = i64::try_from(record.elapsed.as_millis()).unwrap_or(i64::MAX);
                let save = Statement::new(SAVE).bind(record.at);
                tx.run(save.bind(record.boot.as_str()).bind(elapsed)).await
            }
            .boxed()
        })
        .await
    }

    /// Raises the alert of a wall clock that was set, with the reason, or closes it. An open alert is replaced, unless
    /// an earlier process has raised it (`may_stay`) and its text holds for a clock that is this number of milliseconds
    /// ahead.
    pub async fn report_clock(
        &self,
        reason: Option<String>,
        may_stay: Option<i64>,
    ) -> Result<(), StoreError> {
        let (reason, sender) = (Arc::new(reason), self.sender.clone());
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (reason, sender) = (reason.clone(), sender.load_full());
            async move {
                tx.lock_out_of_order();
                let (kind, subject) = (AlertKind::ClockSet, clock_alert_subject());
                let stays = match may_stay.filter(|_| reason.is_some()) {
                    Some(ahead) => {
                        let open = tx.message_of_alert(kind, &subject).await?;
                        open.is_some_and(|(text, raised_at)| {
                            let raised_ago = Span::from(tx.now().since(raised_at));
                            !is_of_earlier_setting(&text, raised_ago, ahead)
                        })
                    }
                    None => false,
                };
                if !stays {
                    tx.close_alert_of(kind, &subject, &sender).await?;
                }
                if let Some(reason) = &*reason {
                    let alert = clock_alert(chance::id(), reason, tx.now());
                    tx.raise_alert(&alert, None, &sender).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await
    }
}
