//! A call is running at one instance and is given up by another: nothing is undone, and no probe is sent, while another
//! attempt of it is still possible.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    cluster,
    harness::{Act, Gate, PATIENCE, Provost, Remote, Setup, kinds, step},
};

async fn new_database() -> String {
    let made = tokio::task::spawn_blocking(cluster::new_database);
    made.await.unwrap()
}

/// Starts two instances that compare their calls with the record only every few minutes.
async fn pair(url: &str, listen: bool) -> (Provost, Provost) {
    let on = || -> Setup {
        Provost::setup()
            .database_url(url)
            .set("INSTANCE__LEASE", "10m")
            .set("POSTGRES__LISTEN", if listen { "true" } else { "false" })
            .set("LOG", "info,provost::scheduler=debug")
    };
    tokio::join!(on().start(), on().start())
}

/// A service that does the work of `x`, and whose probe returns truthfully whether it was done.
#[derive(Clone)]
struct Service {
    remote: Remote,
    /// Blocks the response to the first attempt of `x`.
    x: Gate,
    z: Gate,
}

impl Service {
    /// Starts a service that is too busy for the first attempt of `x`, and accepts one after `retry_after` seconds.
    async fn start(retry_after: &'static str) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let tried = AtomicBool::new(false);
        let (x, z) = (Gate::closed(), Gate::closed());
        let (x_gate, z_gate) = (x.clone(), z.clone());
        let remote = Remote::with(move |seen| match seen.path.as_str() {
            "/x" if !tried.swap(true, Ordering::SeqCst) => {
                let busy = Act::answer(503, &[("retry-after", retry_after)], "");
                Act::Gated(x_gate.clone(), Box::new(busy))
            }
            "/x" => {
                done.store(true, Ordering::SeqCst);
                Act::Ok(json!(1))
            }
            "/x/state" if done.load(Ordering::SeqCst) => Act::Ok(json!(1)),
            "/x/state" => Act::status(404),
            "/z" => Act::Gated(z_gate.clone(), Box::new(Act::status(400))),
            // The time is later than the retry of `x`.
            "/clock" if seen.body["wait"] == json!(true) && seen.attempt() == 1 => {
                Act::answer(503, &[("retry-after", "4")], "")
            }
            "/hang" => Act::Hang,
            _ => Act::Ok(json!(1)),
        })
        .await;
        Self { remote, x, z }
    }

    fn x(&self) -> Value {
        json!({ "name": "x", "url": self.remote.url(), "complete_within": "1h", "on_undo": "drop",
                "request": { "path": "/x" }, "undo": { "request": { "path": "/x/undo" } },
                "probe": { "request": { "path": "/x/state" } } })
    }

    /// Submits a task of `x` at this instance, and waits until its first attempt was refused.
    async fn put_off_at(&self, holder: &Provost) -> String {
        self.x.open();
        let id = holder.submit(&json!({ "steps": [self.x()] })).await;
        holder.events(&id).await.until("step.retrying").await;
        id
    }

    /// Submits a task of `x` at this instance, and returns while its first attempt has no response.
    async fn called_by(&self, holder: &Provost) -> String {
        let id = holder.submit(&json!({ "steps": [self.x()] })).await;
        self.remote.paths("/x", 1).await;
        id
    }

    fn asked_for(&self, path: &str) -> usize {
        let ledger = self.remote.ledger();
        ledger.iter().filter(|seen| seen.path == path).count()
    }

    /// Waits for a retry of this instance that comes later than a retry of `x` would.
    async fn a_retry_later(&self, holder: &Provost) {
        let before = self.asked_for("/clock");
        let clock = json!({ "input": { "wait": true }, "steps": [
            { "name": "clock", "url": self.remote.url(), "request": { "path": "/clock" } }] });
        holder.submit(&clock).await;
        self.remote.paths("/clock", before + 2).await;
    }

    fn was_left_alone(&self) {
        assert_eq!(
            self.asked_for("/x"),
            1,
            "a try came after its attempt was given up"
        );
        assert_eq!(self.asked_for("/x/undo"), 0, "there is nothing to undo");
    }
}

#[tokio::test]
async fn a_step_that_waits_for_its_next_try_has_none_once_another_instance_undoes_its_task() {
    for listen in [true, false] {
        let service = Service::start("2").await;
        let (a, b) = pair(&new_database().await, listen).await;
        let id = service.put_off_at(&a).await;
        b.command(&format!("/v1/tasks/{id}/undo")).await.expect(200);
        let task = b.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        service.a_retry_later(&a).await;
        service.was_left_alone();
        let history = b.history(&id).await;
        let of = |kind: &str| kinds(&history).iter().position(|found| *found == kind);
        assert_eq!(of("step.dropping"), None, "nobody holds it: {history:#?}");
        assert!(of("step.cancelled") < of("task.undone"), "{history:#?}");
    }
}

#[tokio::test]
async fn a_drop_reaches_the_holder_at_once() {
    // Neither the response nor the reconciliation comes before the test is over.
    let service = Service::start("3000").await;
    let (a, b) = pair(&new_database().await, true).await;
    let id = service.called_by(&a).await;
    b.command(&format!("/v1/tasks/{id}/undo")).await.expect(200);
    assert_eq!(b.settled(&id).await["state"], "undone");
    assert_eq!(service.asked_for("/x/state"), 1);
    service.was_left_alone();

    let service = Service::start("3000").await;
    let id = service.called_by(&a).await;
    b.command(&format!("/v1/tasks/{id}/cancel"))
        .await
        .expect(200);
    a.says("its attempt is over in the record").await;
    service.was_left_alone();
}

#[tokio::test]
async fn a_policy_at_another_instance_drops_a_call_before_its_effect_is_asked_about() {
    for listen in [true, false] {
        let service = Service::start("2").await;
        let url = new_database().await;
        // Without notifications the holder finds out when it compares its calls with the record.
        let (a, b) = match listen {
            true => pair(&url, listen).await,
            false => quick_pair(&url, listen).await,
        };
        a.register("narrow", &service.remote.url(), 1).await;
        let narrow = |name: &str| {
            json!({ "name": name, "agent": "narrow", "complete_within": "1h", "after": [],
                    "on_permanent": "undo", "request": { "path": format!("/{name}") } })
        };
        // The tasks run until the scheduler of B, and not only its API, knows the agent.
        let warm = json!({ "steps": [{ "name": "warm", "agent": "narrow" }] });
        while b.run(&warm).await["state"] != "processed" {}
        // A's only slot is taken, so B claims the next step of the queue.
        a.submit(&json!({ "steps": [narrow("hang")] })).await;
        service.remote.paths("/hang", 1).await;
        let submission = json!({ "steps": [service.x(), narrow("z")] });
        let id = a.submit(&submission).await;
        service.remote.paths("/x", 1).await;
        service.remote.paths("/z", 1).await;
        service.z.open();
        let task = b.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        service.a_retry_later(&a).await;
        service.was_left_alone();
        let claimed = a.history(&id).await;
        let by: Vec<_> = claimed
            .iter()
            .filter(|entry| entry["type"] == "step.claimed")
            .map(|entry| {
                (
                    entry["step"].as_str().unwrap(),
                    entry["by"].as_str().unwrap(),
                )
            })
            .collect();
        let of = |name| by.iter().find(|(step, _)| *step == name).unwrap().1;
        assert_ne!(of("x"), of("z"), "{by:?}");
    }
}

#[tokio::test]
async fn no_try_comes_after_a_cancellation_by_another_instance() {
    for listen in [true, false] {
        let service = Service::start("2").await;
        let (a, b) = pair(&new_database().await, listen).await;
        let id = service.put_off_at(&a).await;
        let task = b
            .command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
        assert_eq!(task["state"], "cancelled");
        service.a_retry_later(&a).await;
        service.was_left_alone();
    }
}

/// Starts two instances with leases that expire during the test.
async fn quick_pair(url: &str, listen: bool) -> (Provost, Provost) {
    let on = || {
        Provost::setup()
            .database_url(url)
            .set("INSTANCE__LEASE", "1s")
            .set("POSTGRES__LISTEN", if listen { "true" } else { "false" })
            .set("LOG", "info,provost::scheduler=debug")
    };
    tokio::join!(on().start(), on().start())
}

#[tokio::test]
async fn an_instance_suspended_while_its_task_is_undone_does_nothing_for_it_afterwards() {
    let service = Service::start("2").await;
    let (a, b) = quick_pair(&new_database().await, true).await;
    let id = service.called_by(&a).await;
    a.suspend();
    b.command(&format!("/v1/tasks/{id}/undo")).await.expect(200);
    let task = b.settled(&id).await;
    assert_eq!(task["state"], "undone", "{task:#}");
    a.resume();
    a.says("its attempt is over in the record").await;
    service.a_retry_later(&a).await;
    service.was_left_alone();
    assert_eq!(
        b.task(&id).await["version"],
        task["version"],
        "it was changed"
    );
}

#[tokio::test]
async fn an_undo_says_whom_it_waits_for_and_goes_on_when_the_holder_is_dead() {
    let service = Service::start("3000").await;
    let (mut a, b) = quick_pair(&new_database().await, true).await;
    let id = service.called_by(&a).await;
    a.kill().await;
    let task = b.command(&format!("/v1/tasks/{id}/undo")).await.expect(200);
    let holder = step(&task, "x")["locked_by"].clone();
    assert_eq!(
        step(&task, "x.undo")["blocked_by"],
        json!({ "reason": "drop", "step": "x", "instance": holder }),
        "{task:#}"
    );
    let undone = timeout(PATIENCE, b.settled(&id)).await.unwrap();
    assert_eq!(undone["state"], "undone", "{undone:#}");
    service.was_left_alone();
}
