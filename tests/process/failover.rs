//! The primary is lost, and its synchronous standby is promoted manually.

use crate::{
    harness::{Api, Load, Postgres, Provost, Remote, pipeline},
    outage::all_are_there,
};

#[tokio::test]
async fn instances_follow_a_promoted_standby_and_lose_nothing_that_was_accepted() {
    let primary = Postgres::start().await;
    let standby = primary.synchronous_standby().await;
    let url = Postgres::url_of(&[&primary, &standby]);
    let remote = Remote::quick().await;
    let setup = Provost::setup()
        .database_url(&format!("{url}?target_session_attrs=read-write"))
        .set("LOG", "warn,provost::service=info,provost::store=info");
    let (mut a, b) = tokio::join!(setup.clone().start(), setup.clone().start());
    let apis: Vec<&Api> = [a.api(), b.api()].repeat(8);
    let load = Load::on(&apis, pipeline(&remote.url(), &["one", "two"]));
    load.more(150).await;

    primary.crash().await;
    load.refusal().await;
    standby.promote().await;
    load.more(150).await;
    all_are_there(&a, &b, load.end().await).await;
    a.says("now accepts writes").await;

    // The old primary starts again with its old data, and is the first in the URL: no instance may use it.
    primary.start_again().await;
    primary
        .sql("ALTER SYSTEM RESET synchronous_standby_names")
        .await;
    primary.sql("SELECT pg_reload_conf()").await;
    let mut starts_late = setup.start().await;
    let late = starts_late.submit(&pipeline(&remote.url(), &["one"])).await;
    standby
        .sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'provost'")
        .await;
    let early = loop {
        let answer = a
            .post("/v1/tasks", &pipeline(&remote.url(), &["one"]))
            .await;
        if answer.status == 202 {
            break answer.body["id"].as_str().unwrap().to_owned();
        }
    };
    let ids = format!("SELECT count(*) FROM tasks WHERE id IN ('{early}', '{late}')");
    assert_eq!(standby.sql(&ids).await, "2");
    assert_eq!(primary.sql(&ids).await, "0");
    a.kill().await;
    starts_late.kill().await;
}
