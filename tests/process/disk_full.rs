//! The disk is full: submissions are refused with 503, nothing that was accepted is lost, and the service continues by
//! itself once there is space.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Answer, Api, Gate, Provost, Remote, SmallDisk, alerts, all_processed, free_port, one_step,
    pipeline, step, submit_charges, until,
};

fn large(remote: &Remote) -> Value {
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!({ "text": "x".repeat(50 << 10) });
    submission
}

/// Submits until a submission is refused. Returns the accepted tasks, and the refusal.
async fn fill(provost: &Provost, remote: &Remote) -> (Vec<String>, Answer) {
    let mut accepted = Vec::new();
    loop {
        let answer = provost.post("/v1/tasks", &large(remote)).await;
        if answer.status != 202 {
            return (accepted, answer);
        }
        accepted.push(answer.body["id"].as_str().unwrap().to_owned());
        assert!(accepted.len() < 1000, "it never gets full");
    }
}

#[track_caller]
fn assert_store_full(refused: Answer) {
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    refused.expect_problem(503, "store-full");
}

#[tokio::test]
async fn a_store_at_its_largest_refuses_submissions_and_keeps_what_it_accepted() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let setup = Provost::setup().set("STORE__MAX_SIZE", "2MiB");
    let mut provost = setup.start().await;
    let (accepted, refused) = fill(&provost, &remote).await;
    assert!(!accepted.is_empty());
    assert_store_full(refused);
    for id in &accepted {
        let task = provost.task(id).await;
        assert_eq!(task["input"], large(&remote)["input"]);
    }
    provost.kill().await;
    provost
        .restart_with(|setup| setup.set("STORE__MAX_SIZE", "64MiB"))
        .await;
    gate.open();
    for id in &accepted {
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    assert_eq!(provost.run(&large(&remote)).await["state"], "processed");
}

async fn is_ready(api: &Api) -> bool {
    matches!(api.get("/readyz").attempt().await, Ok(answer) if answer.status == 200)
}

#[tokio::test]
async fn on_a_full_disk_it_waits_for_space_and_goes_on_by_itself() {
    let disk = SmallDisk::mount(4);
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/a" => held.then(json!("first")),
        _ => Act::Ok(json!("later")),
    })
    .await;
    let setup = Provost::setup().database(&disk.path().join("provost.db"));
    let provost = setup.start().await;
    for cycle in 1..=3 {
        let mut running = Vec::new();
        for _ in 0..5 {
            running.push(provost.submit(&pipeline(&remote.url(), &["a", "b"])).await);
        }
        remote.paths("/a", cycle * 5).await;

        let ballast = disk.ballast("ballast");
        let (mut accepted, refused) = fill(&provost, &remote).await;
        assert_store_full(refused);
        let ready = provost.get("/readyz").await;
        assert_eq!(ready.status, 503, "{ready:?}");
        assert_eq!(provost.get("/livez").await.status, 200);
        // The services respond while hardly anything can be recorded, because other files take the space of the
        // reserve: their responses are kept until they can be recorded.
        let rest = disk.ballast("rest");
        gate.let_through(5);
        for id in &running {
            provost.task(id).await;
        }

        fs::remove_file(ballast).unwrap();
        fs::remove_file(rest).unwrap();
        for id in &running {
            let task = provost.settled(id).await;
            assert_eq!(step(&task, "a")["output"], "first");
            assert_eq!(step(&task, "a")["attempt"], 1, "called twice: {task:#}");
            assert_eq!(step(&task, "b")["output"], "later");
        }
        until(true, || is_ready(provost.api())).await;
        let after = provost.post("/v1/tasks", &large(&remote)).await.expect(202);
        accepted.push(after["id"].as_str().unwrap().to_owned());
        for id in &accepted {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert_eq!(provost.get("/readyz").await.status, 200);
    }
}

/// Checks that the service reports the full disk, and refuses everything new because of it.
async fn assert_full(provost: &Provost, remote: &Remote) {
    for _ in 0..10 {
        let refused = provost
            .post("/v1/tasks", &one_step(&remote.url(), "/work"))
            .await;
        assert_store_full(refused);
        assert_store_full(provost.get("/readyz").await);
    }
    let metrics = provost.get("/metrics").await.body.to_string();
    let shown = r#"provost_store_fault{fault=\"full\"} 1"#;
    assert!(metrics.contains(shown), "{metrics}");
}

#[tokio::test]
async fn a_disk_that_filled_up_with_tasks_finishes_them_and_takes_more_when_a_little_is_freed() {
    let disk = SmallDisk::mount(16);
    let gate = Gate::closed();
    let remote = Remote::with({
        let gate = gate.clone();
        move |_| gate.then(json!("done"))
    })
    .await;
    let spare = |round| disk.path().join(format!("spare-{round}"));
    for round in 1..=2 {
        fs::write(spare(round), vec![1; 1 << 20]).unwrap();
    }
    let setup = Provost::setup().database(&disk.path().join("provost.db"));
    let mut provost = setup.start().await;
    let mut accepted = Vec::new();
    for round in 1..=2 {
        let (more, refused) = fill(&provost, &remote).await;
        accepted.extend(more);
        assert_store_full(refused);
        assert_full(&provost, &remote).await;
        // The responses of the services need space of their own.
        gate.open();
        for id in &accepted {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert_full(&provost, &remote).await;
        if round == 2 {
            provost.kill().await;
            provost.restart().await;
        }
        fs::remove_file(spare(round)).unwrap();
        until(true, || is_ready(provost.api())).await;
        accepted.push(provost.submit(&large(&remote)).await);
    }
    for id in &accepted {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
}

#[tokio::test]
async fn started_on_a_full_disk_it_waits_for_room_and_says_so() {
    let disk = SmallDisk::mount(8);
    let gate = Gate::closed();
    let remote = Remote::with({
        let gate = gate.clone();
        move |_| gate.then(json!("done"))
    })
    .await;
    let listen = format!("127.0.0.1:{}", free_port());
    let database = disk.path().join("provost.db");
    let setup = Provost::setup().database(&database).listen(&listen);
    let mut provost = setup.start().await;
    let spare = |round| disk.path().join(format!("spare-{round}"));
    for round in 0..2 {
        fs::write(spare(round), vec![1; 1 << 20]).unwrap();
    }
    let (accepted, refused) = fill(&provost, &remote).await;
    assert_store_full(refused);
    let api = Api::new(&listen);
    let losses = [&["-shm"][..], &["-shm", ".reserve", ".lock"]];
    for (round, gone) in losses.into_iter().enumerate() {
        provost.kill().await;
        for suffix in gone {
            let _ = fs::remove_file(format!("{}{suffix}", database.display()));
        }
        let ballast = disk.ballast("ballast");
        provost.launch();
        provost.says("disk").await;
        until(Some(json!("/problems/store-full")), || async {
            let ready = api.get("/readyz").attempt().await.ok()?;
            ready.body.get("type").cloned()
        })
        .await;
        assert_eq!(api.get("/livez").await.status, 200);
        assert!(!provost.has_ended());
        fs::remove_file(ballast).unwrap();
        fs::remove_file(spare(round)).unwrap();
        provost.ready().await;
        until(true, || is_ready(&api)).await;
    }
    gate.open();
    for id in &accepted {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
}

/// The calls that open the breaker fail while its opening cannot be recorded, and once it is open the disk is full when
/// its canary is due.
#[tokio::test]
async fn a_breaker_opens_and_closes_although_the_disk_is_full_meanwhile() {
    let disk = SmallDisk::mount(4);
    let (gate, sick) = (Gate::closed(), Arc::new(AtomicBool::new(true)));
    let (held, is_sick) = (gate.clone(), sick.clone());
    let service = Remote::with(move |_| match is_sick.load(Ordering::SeqCst) {
        true => Act::Gated(held.clone(), Box::new(Act::status(503))),
        false => Act::Ok(json!({})),
    })
    .await;
    let quick = Remote::quick().await;
    let setup = Provost::setup().database(&disk.path().join("provost.db"));
    let provost = setup.start().await;
    let breaker = json!({ "min_calls": 4, "window": "10m", "open_for": "1s", "canaries": 1 });
    let spec = json!({ "endpoints": [{ "url": service.url() }], "breaker": breaker,
        "retry": { "initial": "10ms", "max": "50ms" } });
    let path = "/v1/agents/payments";
    provost.put(path, &spec).await.expect(201);
    let ids = submit_charges(provost.api(), 8).await;
    service.requests(8).await;
    let state = async || provost.get(path).await.expect(200)["breakers"][0]["state"].clone();
    let mut accepted = Vec::new();
    for round in 0..2 {
        let ballast = disk.ballast("ballast");
        let (more, refused) = fill(&provost, &quick).await;
        accepted.extend(more);
        assert_store_full(refused);
        let rest = disk.ballast("rest");
        let made = service.count();
        let began = std::time::Instant::now();
        match round {
            0 => {
                gate.open();
                // The results are kept until they can be recorded.
                until(json!(0), async || {
                    provost.get(path).await.expect(200)["in_flight"].clone()
                })
                .await;
            }
            _ => {
                // The time is longer than the breaker's time to be open.
                while began.elapsed() < std::time::Duration::from_secs(3) {
                    assert_ne!(state().await, "closed");
                }
            }
        }
        let canaries = 1 + began.elapsed().as_secs() as usize;
        let calls = service.count() - made;
        assert!(calls <= canaries, "{calls} calls, {canaries} canaries");
        fs::remove_file(ballast).unwrap();
        fs::remove_file(rest).unwrap();
        until(true, || is_ready(provost.api())).await;
        until(1, async || alerts(&provost, "open").await.len()).await;
        assert_ne!(state().await, "closed");
    }
    sick.store(false, Ordering::SeqCst);
    all_processed(provost.api(), &ids).await;
    all_processed(provost.api(), &accepted).await;
    until(json!("closed"), state).await;
    until(0, async || alerts(&provost, "open").await.len()).await;
    for id in &ids {
        let task = provost.task(id).await;
        assert_eq!(step(&task, "charge")["failure_count"], 0, "{task:#}");
    }
}
