//! Secrets that instances cannot use, and their alerts.

use super::{harness::Harness, recovery::EVERY_ALERT};
use crate::domain::{
    agent::{SecretSubject, UnusableSecret, UnusableSecrets},
    values::{AgentName, InstanceId, SecretName},
};

fn missing(names: &[&str]) -> UnusableSecrets {
    let found = names.iter().map(|name| {
        let mut fault = UnusableSecret {
            reason: "its file does not exist".to_owned(),
            ..UnusableSecret::default()
        };
        fault.add_agent(&AgentName::new("payments"));
        (SecretSubject::Secret(SecretName::new(*name)), fault)
    });
    found.collect()
}

pub async fn a_secret_has_one_alert_while_some_instance_cannot_use_it(h: Harness) {
    let report = async |instance: &str, names: &[&str]| {
        let instance = InstanceId::new(instance);
        let reported = h.store.report_secrets(instance, missing(names)).await;
        reported.unwrap();
    };
    let alerts = async || {
        let alerts = h.store.reader.alerts(&EVERY_ALERT).await.unwrap();
        let alerts = alerts.into_iter();
        let shown = alerts.map(|alert| {
            let subject = alert.receiver.unwrap().to_string();
            assert_eq!(alert.kind, "secret.unusable");
            (subject, alert.closed_at.is_none(), alert.message)
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown
    };
    report("a", &[]).await;
    assert_eq!(alerts().await, []);
    // The reports are made at the same time, so that one of them is decided again.
    tokio::join!(
        report("a", &["token"]),
        report("b", &["token"]),
        report("c", &["token"])
    );
    let open = alerts().await;
    let [(subject, true, message)] = &open[..] else {
        panic!("{open:?}")
    };
    assert_eq!(subject, "secret:token");
    assert!(
        message.contains("at instances a, b, c: its file"),
        "{message}"
    );
    report("b", &["key"]).await;
    report("c", &[]).await;
    let open = alerts().await;
    assert_eq!(open.len(), 2);
    assert!(
        open[0].1 && open[0].2.contains("at instance b: "),
        "{open:?}"
    );
    assert!(
        open[1].1 && open[1].2.contains("at instance a: "),
        "{open:?}"
    );
    tokio::join!(report("a", &[]), report("b", &[]));
    let closed = alerts().await;
    assert!(closed.len() == 2 && closed.iter().all(|alert| !alert.1));
    report("a", &["token"]).await;
    assert_eq!(alerts().await.iter().filter(|alert| alert.1).count(), 1);
    // No report is stale, so none is deleted.
    assert!(
        !h.store
            .housekeeping
            .has_stale_secret_reports()
            .await
            .unwrap()
    );
    h.store.forget_stale_secret_reports().await.unwrap();
    assert_eq!(alerts().await.iter().filter(|alert| alert.1).count(), 1);
}
