//! The last checks of agents.

use super::harness::Harness;
use crate::domain::{
    agent::{AgentCheck, AgentSpec, CheckPoint, CheckStatus, CheckVerdict, KeptFinding},
    values::{AgentName, Precondition, Timestamp},
};

fn check(at: i64) -> AgentCheck {
    AgentCheck {
        checked_at: Timestamp::from_millis(at),
        status: CheckVerdict::Failed,
        request: "POST /charges".to_owned(),
        spec: "\"tag\"".to_owned(),
        findings: vec![KeptFinding {
            name: CheckPoint::Again,
            status: CheckStatus::Failed,
            seen: "another output".to_owned(),
        }],
    }
}

pub async fn the_last_check_is_kept_as_long_as_its_agent(h: Harness) {
    let payments = AgentName::new("payments");
    let keep = async |at, is_configured| {
        let kept = h
            .store
            .keep_agent_check(AgentName::new("payments"), check(at), is_configured);
        kept.await.unwrap()
    };
    let all = async || h.store.reader.agent_checks().await.unwrap();
    assert!(!keep(1, false).await, "it does not exist");
    assert_eq!(all().await, []);
    let spec: AgentSpec =
        serde_json::from_str(r#"{"endpoints": [{"url": "http://payments"}]}"#).unwrap();
    let any = Precondition::default();
    let put = h.store.put_agent(payments.clone(), spec, any.clone());
    put.await.unwrap();
    assert!(keep(1, false).await);
    assert!(keep(2, false).await);
    assert_eq!(all().await, [(payments.clone(), check(2))]);
    assert!(
        h.store
            .delete_agent(payments.clone(), any, true)
            .await
            .unwrap()
    );
    assert_eq!(all().await, []);
    // An agent of the configuration file is in no table, and can have a check nevertheless.
    assert!(keep(3, true).await);
    assert_eq!(all().await, [(payments, check(3))]);
}
