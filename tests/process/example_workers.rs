//! Tests of the workers of `examples`, with which readers begin.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::process::Command;

use crate::{
    harness::{Call, Provost, Setup, kinds, step},
    workers::{agent, pulled, render},
};

/// Each worker runs with a service that has tokens, and with one that has none.
#[tokio::test]
async fn the_workers_of_the_examples_do_their_work() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for (program, file, most) in [("python3", "worker.py", 60), ("sh", "worker.sh", 30)] {
        let file = examples.join(file);
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= most, "{file:?} has {lines} lines");
        for token in [None, Some("worker-worker-worker")] {
            let config = token.map_or(String::new(), |token| {
                format!(
                    "[[tokens]]\nname = \"ops\"\nrole = \"admin\"\ntoken = \"admin-admin-admin\"\n\
                     [[tokens]]\nname = \"w\"\nrole = \"work\"\nagents = [\"video\"]\ntoken = \"{token}\""
                )
            });
            let provost = Provost::setup().config(&config).start().await;
            let admin = |call: Call| call.header("authorization", "Bearer admin-admin-admin");
            let put = provost.put("/v1/agents/video", &json!({ "mode": "pull" }));
            admin(put).await.expect(201);
            let mut worker = Command::new(program);
            worker
                .arg(&file)
                .arg(format!("http://{}", provost.api().address()));
            // The shell starts other processes.
            worker.arg("video").process_group(0);
            if let Some(token) = token {
                worker.env("PROVOST_TOKEN", token);
            }
            let mut worker = worker.spawn().unwrap();
            let killed = KilledGroup(worker.id().unwrap());
            let beats = json!({ "heartbeat_within": "20s" });
            let posted = admin(provost.post("/v1/tasks", &render(3, beats))).await;
            let id = posted.expect(202)["id"].as_str().unwrap().to_owned();
            let path = format!("/v1/tasks/{id}?wait=60s");
            let task = admin(provost.get(&path)).await.expect(200);
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(
                step(&task, "render2")["output"],
                json!({ "done": { "n": 7 } })
            );
            drop(killed);
            worker.wait().await.unwrap();
        }
    }
}

/// A worker that fails must report it and be ready for the next step, because users begin with this program.
#[tokio::test]
async fn the_workers_of_the_examples_live_on_whatever_happens() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let folder = tempfile::tempdir().unwrap();
    // The size of the input decides how it works: with a large output, and then with three faults.
    let python = r#"n = step["request"]["body"]["n"]; return ["x" * 200000, {1}, float("nan"), "x" * 300000][n]"#;
    let shell = r#"case $(jq .body.n) in 0) printf '"%s"' "$(head -c 200000 /dev/zero | tr '\0' x)" ;; 1) echo no JSON ;; 2) ;; *) printf '"%s"' "$(head -c 300000 /dev/zero | tr '\0' x)" ;; esac"#;
    for (program, name, from, to) in [
        (
            "python3",
            "worker.py",
            r#"return {"done": step["request"]["body"]}"#,
            python,
        ),
        ("sh", "worker.sh", "jq -c '{done: .body}'", shell),
    ] {
        let text = std::fs::read_to_string(examples.join(name)).unwrap();
        assert!(text.contains(from));
        let file = folder.path().join(name);
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let mut provost = Provost::start().await;
        pulled(provost.api()).await;
        let address = provost.api().address().to_string();
        let mut worker = Command::new(program);
        worker.arg(&file).arg(format!("http://{address}"));
        let mut worker = worker.arg("video").process_group(0).spawn().unwrap();
        let killed = KilledGroup(worker.id().unwrap());
        while agent(provost.api()).await["workers"] == json!([]) {
            tokio::task::yield_now().await;
        }
        // The worker waits, and gets no response.
        provost.kill().await;
        let same = |setup: Setup| setup.listen(&address);
        provost.restart_with(same).await;
        for n in [1, 2, 3, 0] {
            let mut submission = render(1, json!({}));
            submission["input"]["n"] = json!(n);
            let id = provost.submit(&submission).await;
            if n == 0 {
                let task = provost.settled(&id).await;
                let output = step(&task, "render0")["output"].as_str().unwrap().len();
                assert_eq!(output, 200_000, "{name}");
                continue;
            }
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                let history = provost.history(&id).await;
                if kinds(&history).contains(&"step.retrying") {
                    break;
                }
                assert!(Instant::now() < deadline, "{name} {n}: {history:#?}");
            }
            let cancel = format!("/v1/tasks/{id}/cancel");
            provost.command(&cancel).await.expect(200);
        }
        drop(killed);
        worker.wait().await.unwrap();
    }
}

/// Kills the process and all processes that it has started when dropped.
struct KilledGroup(u32);

impl Drop for KilledGroup {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.0 as i32);
        let kill = rustix::process::Signal::KILL;
        let _ = group.map(|group| rustix::process::kill_process_group(group, kill));
    }
}
