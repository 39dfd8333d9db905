//! Callers who continue to submit whatever happens, and keep the responses.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use super::{Api, PATIENCE};

pub struct Load {
    stop: watch::Sender<bool>,
    accepted: watch::Sender<Vec<(String, String)>>,
    refused: watch::Sender<usize>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts a caller for each of these. It submits one task after the other, each under an `Idempotency-Key`, and
    /// repeats submissions that were not accepted.
    pub fn on(apis: &[&Api], submission: Value) -> Self {
        let (stop, accepted, refused) = (
            watch::Sender::new(false),
            watch::Sender::new(Vec::new()),
            watch::Sender::new(0),
        );
        let submission = Arc::new(submission);
        let mut callers = Vec::new();
        for (number, api) in apis.iter().enumerate() {
            let (api, submission) = ((*api).clone(), submission.clone());
            let (stop, accepted, refused) = (stop.subscribe(), accepted.clone(), refused.clone());
            callers.push(tokio::spawn(async move {
                for turn in 0.. {
                    let key = format!("caller-{number}-{turn}");
                    loop {
                        let call = api
                            .post("/v1/tasks", &submission)
                            .header("idempotency-key", &key);
                        let answer = call.await;
                        if answer.status == 202 {
                            let id = super::api::id_of(&answer.body);
                            accepted.send_modify(|all| all.push((key, id)));
                            break;
                        }
                        assert!(answer.header("retry-after").is_some(), "{answer:?}");
                        answer.expect_problem(503, "store-unavailable");
                        refused.send_modify(|count| *count += 1);
                        if *stop.borrow() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    if *stop.borrow() {
                        return;
                    }
                }
            }));
        }
        Self {
            stop,
            accepted,
            refused,
            callers,
        }
    }

    /// Waits until `count` more tasks were accepted.
    pub async fn more(&self, count: usize) {
        let wanted = self.accepted.borrow().len() + count;
        let mut accepted = self.accepted.subscribe();
        let come = timeout(PATIENCE, accepted.wait_for(|all| all.len() >= wanted)).await;
        assert!(
            come.is_ok(),
            "only {} of {wanted} were accepted",
            self.accepted.borrow().len()
        );
    }

    /// Waits until a submission was refused.
    pub async fn refusal(&self) {
        let mut refused = self.refused.subscribe();
        let come = timeout(PATIENCE, refused.wait_for(|count| *count > 0)).await;
        assert!(come.is_ok(), "nobody was turned away");
    }

    /// Ends the load. Returns the key and the id of each accepted task.
    pub async fn end(self) -> Vec<(String, String)> {
        self.stop.send_replace(true);
        for caller in self.callers {
            caller.await.unwrap();
        }
        self.accepted.borrow().clone()
    }
}
