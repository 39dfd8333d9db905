//! The people whom steps of the operated chaos ask: they open their links again and again, decide by some of them, and
//! change their decisions.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{
    super::{
        audit::{At, Decision},
        harness::Api,
    },
    operators::Odd,
};

pub const PEOPLE: [&str; 5] = ["ann@x", "bob@x", "cem@x", "dan@x", "eve@x"];
const PATIENCE: Duration = Duration::from_millis(800);

#[derive(Clone, Default)]
pub struct People(Arc<Mutex<Vec<Decision>>>);

impl People {
    pub fn decisions(&self) -> Vec<Decision> {
        self.0.lock().unwrap().clone()
    }

    /// Starts people who decide until the test is over.
    pub fn start(&self, seed: u64, apis: &Arc<Vec<Api>>, odd: &Odd) {
        for number in 0..2 {
            let (people, apis, odd) = (self.clone(), Arc::clone(apis), odd.clone());
            let random = StdRng::seed_from_u64(seed.rotate_left(41) + number);
            tokio::spawn(async move { people.work(random, &apis, &odd).await });
        }
    }

    async fn work(&self, mut random: StdRng, apis: &[Api], odd: &Odd) {
        loop {
            sleep(Duration::from_millis(random.random_range(100..600))).await;
            let api = &apis[random.random_range(0..apis.len())];
            let list = api.get("/v1/asks?open=true&limit=100").attempt();
            let Ok(Ok(list)) = timeout(PATIENCE, list).await else {
                continue;
            };
            for ask in list.body["items"].as_array().into_iter().flatten() {
                for person in ask["people"].as_array().into_iter().flatten() {
                    let api = &apis[random.random_range(0..apis.len())];
                    self.look(&mut random, api, ask, person, odd).await;
                }
            }
        }
    }

    async fn look(&self, random: &mut StdRng, api: &Api, ask: &Value, person: &Value, odd: &Odd) {
        let link = person["link"].as_str().unwrap_or_default();
        let Some((_, token)) = link.split_once("/v1/asks/") else {
            return odd.add(format!("no link: {ask}"));
        };
        let path = format!("/v1/asks/{token}");
        let method = match random.random_range(0..10) {
            0..2 => Method::GET,
            2 => Method::HEAD,
            3..6 => Method::POST,
            _ => return,
        };
        if method != Method::POST {
            let shown = api.call(method, &path).attempt();
            if let Ok(Ok(shown)) = timeout(PATIENCE, shown).await
                && ![200, 410, 503].contains(&shown.status)
            {
                odd.add(format!("{} to {path}: {}", shown.status, shown.body));
            }
            return;
        }
        let choice = if random.random_ratio(3, 4) {
            "approve"
        } else {
            "reject"
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let sent = At::now();
        let form = format!("choice={choice}");
        let decide = api.call(Method::POST, &path);
        let decide = decide.text("application/x-www-form-urlencoded", form);
        let status = match timeout(PATIENCE, decide.attempt()).await {
            Ok(Ok(answer)) => answer.status,
            _ => 0,
        };
        if ![0, 200, 409, 410, 503].contains(&status) {
            odd.add(format!("{status} to a decision at {path}"));
        }
        self.0.lock().unwrap().push(Decision {
            task: text(&ask["task"]),
            step: text(&ask["step"]),
            person: text(&person["person"]),
            choice: choice.to_owned(),
            sent,
            answered: At::now(),
            status,
        });
    }
}
