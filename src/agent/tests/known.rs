//! Agents that are known or unknown, the addresses where they may be called, and their counters.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::mpsc;

use super::{
    servers::{Server, hang, response},
    *,
};
use crate::domain::queue::Fairness;

fn at_url(url: &str) -> Call {
    let after_scheme = url.find("://").unwrap() + 3;
    let path = url[after_scheme..].find('/').map(|at| at + after_scheme);
    Call {
        target: Target::Url {
            url: url.into(),
            origin: AgentName::new(&url[..path.unwrap_or(url.len())]),
        },
        ..a_call()
    }
}

#[tokio::test]
async fn an_unknown_agent_is_a_permanent_fault_that_names_it() {
    let agents = Agents::new(settings());
    let fault = run(&agents, a_call(), AMPLE).await.fault();
    assert!(
        fault.message.contains("agent `payments` is not registered"),
        "{}",
        fault.message
    );
}

#[tokio::test]
async fn a_step_with_a_url_needs_no_registered_agent() {
    let mut server = Server::answering(response("200 OK", "", "1")).await;
    let agents = Agents::new(settings());
    let call = at_url(&format!("{}/hooks/", server.url));
    assert_eq!(run(&agents, call, AMPLE).await.output(), "1");
    assert_eq!(server.next().await.line(), "POST /hooks/charges HTTP/1.1");
    assert!(agents.list().is_empty());
}

#[tokio::test]
async fn inner_addresses_are_refused_unless_they_are_allowed() {
    let mut server = Server::answering(response("200 OK", "", "1")).await;
    let by_name = server.url.replace("127.0.0.1", "localhost");
    let agents = Agents::new(AgentSettings::default());
    for url in [&server.url, &by_name] {
        agents.put(payments(), spec(&[url]));
        for call in [a_call(), at_url(url)] {
            let fault = run(&agents, call, AMPLE).await.fault();
            assert!(
                fault.message.contains("allow_private_addresses"),
                "{}",
                fault.message
            );
        }
    }
    assert!(server.rest().is_empty());
    assert_eq!(
        run(&agents_at(&by_name), a_call(), AMPLE).await.output(),
        "1"
    );
}

#[tokio::test]
async fn a_busy_endpoint_is_passed_over() {
    let mut slow = Server::start(|_, stream| hang(stream)).await;
    let agents = Arc::new(agents_at(&slow.url));
    let busy = Arc::clone(&agents);
    let hanging = tokio::spawn(async move { run(&busy, a_call(), AMPLE).await.outcome });
    slow.next().await;
    for _ in 0..3 {
        // Each round uses a new server, because its latency is unknown, and known latencies are long on a slow
        // machine.
        let mut quick = Server::answering(response("200 OK", "", "1")).await;
        agents.put(payments(), spec(&[&slow.url, &quick.url]));
        assert_eq!(run(&agents, a_call(), AMPLE).await.output(), "1");
        assert_eq!(quick.rest().len(), 1);
    }
    assert!(slow.rest().is_empty());
    hanging.abort();
}

#[tokio::test]
async fn a_changed_agent_keeps_what_is_under_way() {
    let agents = agents_at("http://127.0.0.1:1");
    let slot = agents.try_take(&payments()).unwrap();
    assert_eq!(agents.claimable(&payments()), 3);
    agents.put(
        payments(),
        spec(&["http://127.0.0.1:1", "http://127.0.0.1:2"]),
    );
    assert_eq!(agents.claimable(&payments()), 7);
    drop(slot);
    assert_eq!(agents.claimable(&payments()), 8);

    assert!(agents.remove(&payments()));
    assert!(!agents.remove(&payments()));
    assert_eq!(agents.claimable(&payments()), 0);
    assert!(agents.try_take(&payments()).is_none());
}

#[tokio::test]
async fn whoever_waits_for_capacity_hears_of_new_agents_and_of_slots_that_come_back() {
    let agents = Agents::new(settings());
    let (tell, mut told) = mpsc::unbounded_channel();
    agents.on_freed(move |agent| {
        let _ = tell.send(agent.to_string());
    });
    agents.put(payments(), spec(&["http://127.0.0.1:1"]));
    assert_eq!(told.try_recv().unwrap(), "payments");
    let slot = agents.try_take(&payments()).unwrap();
    assert!(told.try_recv().is_err());
    drop(slot);
    assert_eq!(told.try_recv().unwrap(), "payments");
}

#[tokio::test]
async fn agents_are_listed_by_name() {
    let agents = agents_at("http://127.0.0.1:1");
    agents.put(AgentName::new("inventory"), spec(&["http://127.0.0.1:2"]));
    let names: Vec<_> = agents
        .list()
        .iter()
        .map(|agent| agent.name().to_string())
        .collect();
    assert_eq!(names, ["inventory", "payments"]);
    assert_eq!(
        agents.get(&payments()).unwrap().spec(),
        &spec(&["http://127.0.0.1:1"])
    );
}

#[tokio::test]
async fn after_closing_no_slot_is_given_out() {
    let agents = agents_at("http://127.0.0.1:1");
    let url = AgentName::new("http://127.0.0.1:2");
    assert!(agents.try_take(&url).is_some());
    agents.close();
    assert!(agents.try_take(&payments()).is_none());
    assert!(agents.try_take(&url).is_none());
    assert_eq!(agents.claimable(&url), 0);
}

#[tokio::test]
async fn origins_are_forgotten_but_never_what_is_under_way_with_them() {
    let agents = Agents::new(settings());
    let origin = |port: usize| AgentName::new(format!("http://127.0.0.1:{port}"));
    let slots: Vec<_> = std::iter::from_fn(|| agents.try_take(&origin(1))).collect();
    assert_eq!(slots.len(), 64);
    for port in 2..3_000 {
        assert_eq!(agents.claimable(&origin(port)), 64);
    }
    assert!(agents.try_take(&origin(1)).is_none());
    assert!(agents.origins_known() <= 1024);
}

#[tokio::test]
async fn tries_retries_and_calls_are_counted_per_agent() {
    let server = Server::start(|number, mut stream| async move {
        use tokio::io::AsyncWriteExt;
        let statuses = ["503 Service Unavailable", "200 OK", "400 Bad Request"];
        let Some(status) = statuses.get(number - 1) else {
            return hang(stream).await;
        };
        let _ = stream.write_all(&response(status, "", "")).await;
        servers::finish(stream).await;
    })
    .await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let agents = agents_at(&server.url);
    let unused = handle.render();
    assert!(
        !unused.contains("payments"),
        "of an agent that nobody has used: {unused}"
    );
    let slot = agents.try_take(&payments());
    run(&agents, a_call(), AMPLE).await.output();
    run(&agents, a_call(), AMPLE).await.fault();
    assert_eq!(run(&agents, a_call(), SHORT).await.outcome, None);
    let rendered = handle.render();
    for line in [
        r#"provost_agent_tries_total{agent="payments",result="success"} 1"#,
        r#"provost_agent_tries_total{agent="payments",result="transient"} 1"#,
        r#"provost_agent_tries_total{agent="payments",result="permanent"} 1"#,
        r#"provost_agent_tries_total{agent="payments",result="dropped"} 1"#,
        r#"provost_agent_retries_total{agent="payments"} 1"#,
        r#"provost_agent_in_flight{agent="payments"} 1"#,
        r#"provost_agent_call_seconds_count{agent="payments"} 4"#,
    ] {
        assert!(rendered.contains(line), "{line} is missing in\n{rendered}");
    }
    drop(slot);
    assert!(
        handle
            .render()
            .contains(r#"provost_agent_in_flight{agent="payments"} 0"#)
    );
}

/// A claimer that saw the slots without the rule would claim as if the queue were not divided into lanes.
#[tokio::test]
async fn slots_that_come_with_a_rule_are_not_seen_before_it() {
    const AGENTS: usize = 300;
    let agents = Arc::new(Agents::new(settings()));
    let spec = |max_in_flight, fairness| {
        let mut spec = spec(&["http://127.0.0.1:9"]);
        spec.endpoints[0].max_in_flight = max_in_flight;
        AgentSpec { fairness, ..spec }
    };
    let by_customer = Fairness {
        by: "{{ task.labels.customer }}".to_owned(),
        weights: BTreeMap::new(),
    };
    let name = |number: usize| AgentName::new(format!("agent-{number}"));
    let current = Arc::new(AtomicUsize::new(0));
    let looking = std::thread::spawn({
        let (agents, current) = (agents.clone(), current.clone());
        move || {
            let mut undivided = 0;
            loop {
                let number = current.load(Ordering::Relaxed);
                if number == AGENTS {
                    return undivided;
                }
                let free = agents.free(&name(number));
                undivided += usize::from(free > 1 && agents.lane_rule(&name(number)).is_none());
            }
        }
    });
    for number in 0..AGENTS {
        current.store(number, Ordering::Relaxed);
        agents.put(name(number), spec(1, None));
        agents.put(name(number), spec(30, Some(by_customer.clone())));
    }
    current.store(AGENTS, Ordering::Relaxed);
    assert_eq!(looking.join().unwrap(), 0);
}
