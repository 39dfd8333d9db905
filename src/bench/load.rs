//! The load: workers that each send one request after another, with the given concurrency.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{Client, Method, Request, Url, header};
use tokio::task::JoinSet;

use super::{
    BenchError,
    connection::BenchConnection,
    frame,
    latency::Latencies,
    requests::{Requests, STEP_BODIES},
};
use crate::clock;

/// The longest duration of a phase: a server that hangs must not block the benchmark.
const LONGEST_PHASE: Duration = Duration::from_secs(600);

/// The result of one phase.
pub struct LoadPhase {
    pub elapsed: Duration,
    /// The latencies, one for each task.
    pub latencies: Latencies,
}

impl LoadPhase {
    pub fn per_second(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }
}

/// The number of tasks, and the number of them that run at once.
#[derive(Clone, Copy)]
pub struct Amount {
    pub tasks: u32,
    pub in_flight: u32,
}

/// The remaining work, shared by the workers of a phase.
#[derive(Clone)]
struct Tickets(Arc<AtomicU32>);

impl Tickets {
    fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        // The counter orders no other memory access.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

/// Runs one phase. `worker` creates one worker, by its number.
async fn phase<F>(
    amount: Amount,
    worker: impl Fn(usize, Tickets, Latencies) -> F,
) -> Result<LoadPhase, BenchError>
where
    F: Future<Output = Result<Latencies, BenchError>> + Send + 'static,
{
    let tickets = Tickets(Arc::new(AtomicU32::new(amount.tasks)));
    let workers = amount.in_flight.min(amount.tasks);
    let share = (amount.tasks / workers.max(1)) as usize;
    let started = clock::instant();
    let mut running = JoinSet::new();
    for number in 0..workers {
        running.spawn(worker(
            number as usize,
            tickets.clone(),
            Latencies::with_capacity(share + share / 2 + 1),
        ));
    }
    let mut latencies = Latencies::with_capacity(amount.tasks as usize);
    let all = async {
        while let Some(ended) = running.join_next().await {
            latencies.append(ended??);
        }
        Ok::<_, BenchError>(())
    };
    // One fault ends the phase: dropping the set ends the other workers.
    match clock::timeout(LONGEST_PHASE, all).await {
        Ok(ended) => ended?,
        Err(_) => return Err(BenchError::TooSlow(LONGEST_PHASE)),
    }
    Ok(LoadPhase {
        elapsed: started.elapsed(),
        latencies,
    })
}

/// Measures the ceiling: the three requests of each task by a plain client without any state.
pub async fn raw(client: &Client, stub: &Url, amount: Amount) -> Result<LoadPhase, BenchError> {
    let requests: Vec<(Url, Bytes)> = STEP_BODIES
        .iter()
        .map(|(path, body)| {
            let mut url = stub.clone();
            url.set_path(path);
            (url, Bytes::from_static(body.as_bytes()))
        })
        .collect();
    let requests = Arc::new(requests);
    phase(amount, |_, tickets, mut latencies| {
        let (client, requests) = (client.clone(), requests.clone());
        async move {
            while tickets.take() {
                let started = clock::instant();
                for (url, body) in requests.iter() {
                    let mut request = Request::new(Method::POST, url.clone());
                    let json = header::HeaderValue::from_static("application/json");
                    request.headers_mut().insert(header::CONTENT_TYPE, json);
                    *request.body_mut() = Some(body.clone().into());
                    let answer = client.execute(request).await?.error_for_status()?;
                    answer.bytes().await?;
                }
                latencies.record(started.elapsed());
            }
            Ok(latencies)
        }
    })
    .await
}

/// Measures tasks from their submission until the response says that they are processed. Each worker uses one of the
/// servers.
pub async fn end_to_end(servers: &[Requests], amount: Amount) -> Result<LoadPhase, BenchError> {
    phase(amount, |worker, tickets, mut latencies| {
        let requests = servers[worker % servers.len()].clone();
        async move {
            let mut connection = BenchConnection::open(&requests.authority).await?;
            while tickets.take() {
                let started = clock::instant();
                let answer = connection.exchange(&requests.submit_and_wait).await?;
                latencies.record(started.elapsed());
                expect_processed(answer)?;
            }
            Ok(latencies)
        }
    })
    .await
}

/// Measures tasks of this body from their submission until the response says that they are processed.
pub async fn processed(
    servers: &[Requests],
    body: &str,
    amount: Amount,
) -> Result<LoadPhase, BenchError> {
    phase(amount, |worker, tickets, mut latencies| {
        let requests = servers[worker % servers.len()].clone();
        let submit = requests.post_and_wait("/v1/tasks", body);
        async move {
            let mut connection = BenchConnection::open(&requests.authority).await?;
            while tickets.take() {
                let started = clock::instant();
                let answer = connection.exchange(&submit).await?;
                latencies.record(started.elapsed());
                expect_processed(answer)?;
            }
            Ok(latencies)
        }
    })
    .await
}

/// Measures submissions alone, until the 202. The worker waits for each task before the next submission; that wait is
/// not measured.
pub async fn submissions(servers: &[Requests], amount: Amount) -> Result<LoadPhase, BenchError> {
    phase(amount, |worker, tickets, mut latencies| {
        let requests = servers[worker % servers.len()].clone();
        async move {
            let mut connection = BenchConnection::open(&requests.authority).await?;
            let mut wait = Vec::new();
            while tickets.take() {
                let started = clock::instant();
                let answer = connection.exchange(&requests.submit).await?;
                latencies.record(started.elapsed());
                let id = field(answer, b"\"id\":\"").ok_or_else(|| unexpected(answer))?;
                requests.wait_for(id, &mut wait);
                let answer = connection.exchange(&wait).await?;
                expect_processed(answer)?;
            }
            Ok(latencies)
        }
    })
    .await
}

/// Sends submissions of this body until their 202, without waiting for the tasks. Returns their ids.
pub async fn queued(
    servers: &[Requests],
    body: &str,
    amount: Amount,
) -> Result<(LoadPhase, Vec<String>), BenchError> {
    let ids = Arc::new(Mutex::new(Vec::with_capacity(amount.tasks as usize)));
    let done = phase(amount, |worker, tickets, mut latencies| {
        let requests = servers[worker % servers.len()].clone();
        let submit = requests.post("/v1/tasks", body);
        let ids = ids.clone();
        async move {
            let mut connection = BenchConnection::open(&requests.authority).await?;
            while tickets.take() {
                let started = clock::instant();
                let answer = connection.exchange(&submit).await?;
                latencies.record(started.elapsed());
                let id = field(answer, b"\"id\":\"").ok_or_else(|| unexpected(answer))?;
                let id = String::from_utf8_lossy(id).into_owned();
                ids.lock().push(id);
            }
            Ok(latencies)
        }
    })
    .await?;
    let ids = std::mem::take(&mut *ids.lock());
    Ok((done, ids))
}

/// Sends one request repeatedly. Each must succeed.
pub async fn reads(
    requests: &Requests,
    request: &Bytes,
    amount: Amount,
) -> Result<LoadPhase, BenchError> {
    phase(amount, |_, tickets, mut latencies| {
        let (authority, request) = (requests.authority.clone(), request.clone());
        async move {
            let mut connection = BenchConnection::open(&authority).await?;
            while tickets.take() {
                let started = clock::instant();
                connection.exchange(&request).await?;
                latencies.record(started.elapsed());
            }
            Ok(latencies)
        }
    })
    .await
}

/// Cancels all of these tasks.
pub async fn cancel(requests: &Requests, ids: Vec<String>) -> Result<(), BenchError> {
    let amount = Amount {
        tasks: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        in_flight: 32,
    };
    let ids = Arc::new(Mutex::new(ids));
    let cancelled = phase(amount, |_, _, latencies| {
        let (requests, ids) = (requests.clone(), ids.clone());
        let next = move || ids.lock().pop();
        async move {
            let mut connection = BenchConnection::open(&requests.authority).await?;
            while let Some(id) = next() {
                let cancel = requests.post(&format!("/v1/tasks/{id}/cancel"), "");
                connection.exchange(&cancel).await?;
            }
            Ok(latencies)
        }
    });
    cancelled.await.map(drop)
}

/// Returns an error unless the task is processed. The task's own state precedes those of its steps in the body.
fn expect_processed(answer: &[u8]) -> Result<(), BenchError> {
    match field(answer, b"\"state\":\"") {
        Some(b"processed") => Ok(()),
        _ => Err(unexpected(answer)),
    }
}

fn unexpected(answer: &[u8]) -> BenchError {
    BenchError::NotProcessed(String::from_utf8_lossy(answer).into_owned())
}

/// Returns the text after the first `name`, up to the next quote. This costs less than parsing the whole task.
fn field<'a>(answer: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = &answer[frame::find(answer, name)? + name.len()..];
    Some(&rest[..rest.iter().position(|byte| *byte == b'"')?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_state_of_the_task_itself_counts() {
        let task = |state: &str| {
            format!(r#"{{"id":"0197","state":"{state}","steps":[{{"state":"processed"}}]}}"#)
        };
        assert!(expect_processed(task("processed").as_bytes()).is_ok());
        assert!(expect_processed(task("error").as_bytes()).is_err());
        assert!(expect_processed(b"{}").is_err());
    }

    #[tokio::test]
    async fn every_task_of_a_phase_is_done_once_however_many_workers_there_are() {
        for (tasks, in_flight) in [(1, 128), (100, 7), (5, 1)] {
            let amount = Amount { tasks, in_flight };
            let done = phase(amount, |_, tickets, mut latencies| async move {
                while tickets.take() {
                    latencies.record(Duration::from_millis(1));
                    tokio::task::yield_now().await;
                }
                Ok(latencies)
            });
            let done = done.await.unwrap();
            assert_eq!(done.latencies.count(), tasks as usize);
        }
    }

    #[tokio::test]
    async fn one_worker_in_trouble_fails_the_phase() {
        let amount = Amount {
            tasks: 10,
            in_flight: 2,
        };
        let failed = phase(amount, |_, tickets, _| async move {
            tickets.take();
            Err(BenchError::NotProcessed("error".to_owned()))
        });
        assert!(failed.await.is_err());
    }
}
