//! Sessions of the console.

use super::harness::Harness;
use crate::{
    domain::values::{Span, Timestamp},
    store::{ConsoleSession, upkeep::console_sessions::MOST_SESSIONS_OF_TOKEN},
};

async fn add(h: &Harness, id: &str, token: &str, ends_at: Timestamp, now: Timestamp) {
    let session = ConsoleSession {
        id: id.to_owned(),
        credential: token.to_owned(),
        ends_at,
    };
    h.store.add_console_session(session, now).await.unwrap();
}

async fn is_there(h: &Harness, id: &str) -> bool {
    let found = h.store.reader.console_session(id).await.unwrap();
    found.is_some_and(|found| found.id == id)
}

pub async fn a_session_is_kept_until_it_has_ended_is_removed_or_gives_way_to_one_of_its_token(
    h: Harness,
) {
    let now = h.store.reader.now().await.unwrap();
    let after = |seconds: u64| now + Span::from_secs(seconds);
    add(&h, "of-eve", "eve", after(1), now).await;
    for number in 0..=MOST_SESSIONS_OF_TOKEN as u64 {
        let id = format!("of-ada-{number}");
        add(&h, &id, "ada", after(10 + number), now).await;
    }
    assert!(is_there(&h, "of-eve").await, "ada signs out nobody else");
    assert!(
        !is_there(&h, "of-ada-0").await,
        "the first to end gives way"
    );
    assert!(is_there(&h, "of-ada-1").await);
    h.store
        .remove_console_session("of-ada-1".to_owned())
        .await
        .unwrap();
    assert!(!is_there(&h, "of-ada-1").await);
    // The next one to sign in deletes what has ended.
    add(&h, "new", "bob", after(20), after(1)).await;
    assert!(!is_there(&h, "of-eve").await);
    assert!(is_there(&h, "new").await);
}
