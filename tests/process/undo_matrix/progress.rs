//! Shows the state of each case if one does not end. A case that waits in vain fails and says what it waits for, well
//! before the test runner ends a silent test.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout, timeout_at},
};

use super::{cases::Case, judge::calls, services::Services};
use crate::harness::Api;

/// The time limit for all cases of a test together: many times what they take on a busy machine, and less than the test
/// runner allows.
const DEADLINE: Duration = Duration::from_secs(300);
/// The time to wait for each response that is shown.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The largest number of cases that are shown in full.
const SHOWN: usize = 20;

#[derive(Clone)]
pub struct Progress {
    deadline: Instant,
    open: Arc<Mutex<BTreeMap<String, Open>>>,
}

/// A case that has begun and not ended.
struct Open {
    turn: String,
    plans: String,
    task: Option<String>,
    doing: &'static str,
    since: Instant,
}

impl Progress {
    pub fn start() -> Self {
        Self {
            deadline: Instant::now() + DEADLINE,
            open: Arc::default(),
        }
    }

    pub fn begins(&self, case: &Case) {
        let open = Open {
            turn: format!("{:?}", case.turn),
            plans: format!("{:?}", case.plans),
            task: None,
            doing: "submits the task",
            since: Instant::now(),
        };
        self.open.lock().unwrap().insert(case.name.clone(), open);
    }

    pub fn goes_on(&self, case: &Case, task: &str, doing: &'static str) {
        if let Some(open) = self.open.lock().unwrap().get_mut(&case.name) {
            open.task = Some(task.to_owned());
            (open.doing, open.since) = (doing, Instant::now());
        }
    }

    pub fn ends(&self, case: &Case) {
        self.open.lock().unwrap().remove(&case.name);
    }

    /// Returns the results of all cases. If one fails, or the deadline passes, fails and shows the state of each.
    pub async fn all<T: 'static>(
        &self,
        mut running: JoinSet<T>,
        api: &Api,
        services: &Services,
    ) -> Vec<T> {
        let mut done = Vec::new();
        loop {
            let failed = match timeout_at(self.deadline, running.join_next()).await {
                Ok(None) => return done,
                Ok(Some(Ok(outcome))) => {
                    done.push(outcome);
                    continue;
                }
                Ok(Some(Err(failed))) => Some(failed),
                Err(_) => None,
            };
            eprintln!(
                "{} cases ended, {} did not:\n{}",
                done.len(),
                running.len() + usize::from(failed.is_some()),
                self.shown(api, services).await
            );
            match failed.map(JoinError::try_into_panic) {
                Some(Ok(panic)) => resume_unwind(panic),
                Some(Err(failed)) => panic!("a case did not end: {failed}"),
                None => panic!("not every case ended within {DEADLINE:?}"),
            }
        }
    }

    async fn shown(&self, api: &Api, services: &Services) -> String {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        let mut shown = String::new();
        for (case, open) in open.iter().take(SHOWN) {
            let Open {
                turn,
                plans,
                task,
                doing,
                since,
            } = open;
            let since = since.elapsed();
            let _ = writeln!(shown, "{case} {doing}, for {since:.1?}");
            let _ = writeln!(shown, "  turn: {turn}; plans: {plans}");
            let task = match task {
                Some(task) => asked(api, &format!("/v1/tasks/{task}")).await,
                None => "not submitted".to_owned(),
            };
            let _ = writeln!(shown, "  the task: {task}");
            let _ = writeln!(shown, "  the calls:\n{}", calls(&services.book(case)));
        }
        for case in open.keys().skip(SHOWN) {
            let _ = writeln!(shown, "{case}");
        }
        let _ = writeln!(shown, "metrics:\n{}", asked(api, "/metrics").await);
        shown
    }
}

/// Returns the response of Provost, or says that there is none.
async fn asked(api: &Api, path: &str) -> String {
    match timeout(ANSWER_WITHIN, api.get(path).attempt()).await {
        Ok(Ok(answer)) => match answer.body {
            Value::String(text) => format!("{} {text}", answer.status),
            json => format!("{} {json}", answer.status),
        },
        Ok(Err(error)) => format!("no answer: {error:?}"),
        Err(_) => "no answer in time".to_owned(),
    }
}
