//! The record of what was done in each hour.

use serde_json::json;

use super::{
    alert_causes::fail_with,
    harness::{Harness, New, success},
};
use crate::store::{HourActivity, hour_of};

/// Returns the activity of the last two hours: one may end during the test.
async fn recent(h: &Harness) -> Vec<HourActivity> {
    let hour = hour_of(h.store.reader.now().await.unwrap());
    let hours = h.store.reader.activity(hour - 1).await.unwrap();
    hours.into_values().collect()
}

fn processed(hours: &[HourActivity]) -> u64 {
    let agents = hours.iter().flat_map(|hour| hour.agents.values());
    agents.map(|agent| agent.processed).sum()
}

pub async fn what_a_process_has_done_is_added_to_its_hour_and_old_hours_are_merged_and_deleted(
    h: Harness,
) {
    h.slots("x", 20);
    for count in 1..=2 {
        let task = h.submit(New::default()).await.id();
        h.reply(task, 0, 1, success(json!({}))).await.unwrap();
        fail_with(&h, 409).await;
        assert_eq!(
            processed(&recent(&h).await),
            count - 1,
            "only what is saved"
        );
        h.store.save_activity().await.unwrap();
        assert_eq!(processed(&recent(&h).await), count);
    }
    let hours = recent(&h).await;
    let failed = |hour: &HourActivity| (hour.agents["x"].failed, hour.workflows["(inline)"].failed);
    let failed: Vec<_> = hours.iter().map(failed).collect();
    let sum = failed
        .iter()
        .fold((0, 0), |sum, hour| (sum.0 + hour.0, sum.1 + hour.1));
    assert_eq!(sum, (2, 2));
    let count = "SELECT count(*) FROM activity WHERE shard = ''";
    assert!(
        !h.store.tidy_activity().await.unwrap(),
        "the hour is not over"
    );
    assert_eq!(h.database.count(count).await, 0);

    // Two hours ago, by this process and another one.
    h.database
        .execute("UPDATE activity SET hour = hour - 3")
        .await;
    let another = "INSERT INTO activity (hour, shard, kind, name, counts) SELECT hour, 'another', kind, name, counts FROM activity";
    h.database.execute(another).await;
    while h.store.tidy_activity().await.unwrap() {}
    let all = "SELECT count(*) FROM activity";
    assert_eq!(h.database.count(all).await, h.database.count(count).await);
    let hour = hour_of(h.store.reader.now().await.unwrap());
    let hours = h.store.reader.activity(hour - 9).await.unwrap();
    let hours: Vec<_> = hours.into_values().collect();
    assert_eq!(processed(&hours), 4, "both are counted once");

    h.database
        .execute("UPDATE activity SET hour = hour - 200")
        .await;
    while h.store.tidy_activity().await.unwrap() {}
    assert_eq!(h.database.count(all).await, 0);
}
