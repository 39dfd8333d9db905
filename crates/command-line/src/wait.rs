//! Waits until a task has ended or needs a person, or the time is over.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    api::Api,
    away::Away,
    find_task::FoundTask,
    operations::GET_TASK,
    outcome::{ClientError, Outcome},
    shapes::TaskJson,
};

/// The longest wait of one request.
const LONGEST: Duration = Duration::from_secs(30);

/// The time that is left without a timeout.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// The time for a response beside the wait that it was asked for.
pub const MARGIN: Duration = Duration::from_secs(5);

/// Does what comes before a wait for the end of a task. A server that is silent ends it soon after the timeout of the wait.
pub async fn before_wait<T>(
    api: &Api,
    timeout: Option<Duration>,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let within = timeout.unwrap_or(Duration::MAX).saturating_add(MARGIN);
    let done = tokio::time::timeout(within, work).await;
    done.unwrap_or_else(|_| {
        Err(ClientError::NoResponse {
            server: api.server().to_owned(),
            cause: "it is silent".to_owned(),
            was_sent: true,
        })
    })
}

/// Returns the outcome of a task, if it has ended or needs a person.
pub fn outcome(task: &TaskJson) -> Option<Outcome> {
    match task.state.as_str() {
        "processed" => Some(Outcome::Done),
        "undone" => Some(Outcome::Undone),
        "error" | "cancelled" => Some(Outcome::Failed),
        // An undo that failed waits for a person.
        "undoing"
            if task
                .error
                .as_ref()
                .is_some_and(|error| error.kind == "undo_failed") =>
        {
            Some(Outcome::Failed)
        }
        _ => None,
    }
}

/// Returns the task with its outcome, which is `Running` if the time is over.
pub async fn until_rest(
    api: &Api,
    id: &str,
    timeout: Option<Duration>,
) -> Result<(FoundTask, Outcome), ClientError> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let mut away = Away::default();
    loop {
        let left = end.map_or(FOREVER, |end| end.saturating_duration_since(Instant::now()));
        let wait = left.min(LONGEST);
        let request = api.request(&GET_TASK, &[id]);
        let request = request.query("wait", &format!("{}ms", wait.as_millis()));
        // A server that is silent must not outlast the time of the person.
        let most = left.saturating_add(MARGIN);
        match request.waiting(wait).within(most).send().await {
            Ok(response) => {
                away.ends();
                let task: TaskJson = response.read()?;
                let json = response.text;
                match outcome(&task) {
                    Some(outcome) => return Ok((FoundTask { task, json }, outcome)),
                    None if left.is_zero() => {
                        return Ok((FoundTask { task, json }, Outcome::Running));
                    }
                    None => {}
                }
            }
            Err(error) if left.is_zero() => return Err(error),
            Err(error) => away.wait_after(error).await?,
        }
    }
}

/// Returns the task with its outcome as it is now, also of a server that is just restarted.
pub async fn look(api: &Api, id: &str) -> Result<(FoundTask, Outcome), ClientError> {
    let mut away = Away::default();
    loop {
        match until_rest(api, id, Some(Duration::ZERO)).await {
            Ok(looked) => return Ok(looked),
            Err(error) => away.wait_after(error).await?,
        }
    }
}
