//! Tests of the smallest services of `docs/agents.md`, one for each way to reply. Authors of services begin with them.

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::{
    cluster,
    harness::{Provost, step},
};

fn programs() -> Vec<&'static str> {
    let page = include_str!("../../docs/agents.md");
    let programs = page.split("```python\n").skip(1);
    programs
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

fn run(program: &str, replaced: &[(&str, &str)]) -> Child {
    let mut program = program.replace("sleep(5)", "sleep(0.1)");
    for (documented, actual) in replaced {
        assert!(program.contains(documented), "{program}");
        program = program.replace(documented, actual);
    }
    let mut python = Command::new("python3");
    python.args(["-c", &program]).kill_on_drop(true);
    python.spawn().unwrap()
}

async fn prints(provost: &Provost, mut print: Value) {
    print["name"] = json!("print");
    print["request"] = json!({ "path": "/jobs", "body": { "pages": 7 } });
    let task = provost.run(&json!({ "steps": [print] })).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let output = json!({ "printed": { "pages": 7 } });
    assert_eq!(step(&task, "print")["output"], output);
}

#[tokio::test]
async fn the_services_of_the_documentation_work_in_each_way_to_reply() {
    let programs = programs();
    let [at_once, later, polled, fetched] = programs[..] else {
        panic!("{} programs", programs.len());
    };
    let provost = Provost::start().await;
    let poll = json!({ "poll": {
        "until": "response.body.status in ['succeeded', 'failed']",
        "failed": "response.body.status == 'failed'",
        "output": "response.body.result",
        "every": "1s",
    } });
    for (program, reply) in [
        (at_once, None),
        (later, Some(json!("callback"))),
        (polled, Some(poll)),
    ] {
        let port = cluster::free_port().to_string();
        let _service = run(program, &[("9000", &port)]);
        let mut print = json!({ "url": format!("http://127.0.0.1:{port}") });
        if let Some(reply) = reply {
            print["reply"] = reply;
        }
        prints(&provost, print).await;
    }
    let put = provost.put("/v1/agents/printer", &json!({ "mode": "pull" }));
    put.await.expect(201);
    let address = provost.api().address().to_string();
    let _worker = run(fetched, &[("127.0.0.1:8080", &address)]);
    prints(&provost, json!({ "agent": "printer" })).await;
}
