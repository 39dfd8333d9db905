//! After a restore, callers submit tasks again that were accepted after the backup: services get the same keys as
//! before.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    backup::copied,
    harness::{Answer, Api, Provost, Remote, Setup, id_of, new_database, sql, until},
};

const TOKENS: &str = r#"
[[tokens]]
name = "shop"
token = "shop-0123456789abcdef"
role = "admin"
[[tokens]]
name = "other"
token = "other-0123456789abcdef"
role = "admin"
"#;
const SHOP: &str = "Bearer shop-0123456789abcdef";
const OTHER: &str = "Bearer other-0123456789abcdef";

/// A copy of a database that has the workflows, and no task.
enum Backup {
    File(TempDir),
    Postgres(String),
}

impl Backup {
    async fn of(provost: &mut Provost, url: Option<&str>) -> Self {
        match url {
            None => {
                let folder = TempDir::new().unwrap();
                copied(&provost.database(), &folder.path().join("copy.db")).await;
                Self::File(folder)
            }
            Some(url) => {
                provost.terminate();
                provost.ended().await;
                let copy = copy_of(url).await;
                provost.restart().await;
                Self::Postgres(copy)
            }
        }
    }

    async fn restored(&self) -> Setup {
        match self {
            Self::File(folder) => {
                let path = folder.path().join(format!("{}.db", rand::random::<u64>()));
                std::fs::copy(folder.path().join("copy.db"), &path).unwrap();
                setup().database(Path::new(&path))
            }
            Self::Postgres(url) => setup().database_url(&copy_of(url).await),
        }
    }
}

fn setup() -> Setup {
    Provost::setup().config(TOKENS)
}

/// Copies the database once it has no connections any more.
async fn copy_of(url: &str) -> String {
    let empty = new_database().await;
    let name = |url: &str| url.rsplit_once('/').unwrap().1.to_owned();
    let (from, to) = (name(url), name(&empty));
    let admin = empty.replace(&to, "postgres");
    until("0".to_owned(), async || {
        sql(
            &admin,
            &format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{from}'"),
        )
    })
    .await;
    sql(&admin, &format!("DROP DATABASE {to}"));
    sql(&admin, &format!("CREATE DATABASE {to} TEMPLATE {from}"));
    empty
}

async fn register(api: &Api, url: &str) {
    let undo = json!({ "request": { "method": "DELETE", "path": "/undo" } });
    let ship = json!({ "steps": [{ "name": "pack", "url": url, "request": { "path": "/pack" }, "undo": undo }] });
    let order = json!({ "steps": [
        { "name": "charge", "url": url, "request": { "path": "/charge" }, "undo": undo },
        { "name": "import", "url": url, "for_each": "{{ input.items }}", "request": { "path": "/import" }, "undo": undo },
        { "name": "poll", "url": url, "repeat": { "until": "index == 1", "at_most": 5 }, "request": { "path": "/poll" } },
        { "name": "ship", "task": { "workflow": "ship" } },
    ] });
    for (name, workflow) in [("ship", ship), ("order", order)] {
        let put = api.put(&format!("/v1/workflows/{name}"), &workflow);
        put.header("authorization", SHOP).await.expect(201);
    }
}

async fn submit(api: &Api, caller: &str, item: &str) -> Answer {
    let body = json!({ "workflow": "order", "input": { "items": [item, "b"] } });
    let submission = api.post("/v1/tasks", &body).header("authorization", caller);
    submission.header("idempotency-key", "order-1001").await
}

async fn ended(api: &Api, id: &str, state: &str) -> Value {
    let found = api.get(&format!("/v1/tasks/{id}?wait=30s"));
    let task = found.header("authorization", SHOP).await.expect(200);
    assert_eq!(task["state"], state, "{task:#}");
    task
}

/// Has a task done and undone. Returns its id and the keys that the service has seen, with the steps.
async fn keys(
    remote: &Remote,
    api: &Api,
    caller: &str,
    item: &str,
) -> (String, BTreeSet<(String, String)>) {
    let before = remote.count();
    let id = id_of(&submit(api, caller, item).await.expect(202));
    ended(api, &id, "processed").await;
    let undo = api.command(&format!("/v1/tasks/{id}/undo"));
    undo.header("authorization", SHOP).await.expect(200);
    until(true, async || {
        let task = api.get(&format!("/v1/tasks/{id}"));
        task.header("authorization", SHOP).await.expect(200)["state"] == "undone"
    })
    .await;
    let ledger = remote.ledger().split_off(before);
    let seen = ledger.iter().map(|seen| {
        let undone = seen
            .headers
            .get("provost-undoes")
            .map_or("", String::as_str);
        (
            format!("{} {undone}", seen.header("provost-step")),
            seen.key().to_owned(),
        )
    });
    (id, seen.collect())
}

#[tokio::test]
async fn a_task_that_is_submitted_again_after_a_restore_calls_its_services_under_the_keys_of_the_lost_one()
 {
    let url = new_database().await;
    for url in [None, Some(url.as_str())] {
        let remote = Remote::quick().await;
        let start = match url {
            None => setup(),
            Some(url) => setup().database_url(url),
        };
        let mut provost = start.start().await;
        register(provost.api(), &remote.url()).await;
        let backup = Backup::of(&mut provost, url).await;
        let (lost, first) = keys(&remote, provost.api(), SHOP, "a").await;
        // Each step and its undo occur once: charge, import[0], import[1], poll[0], poll[1], pack.
        assert_eq!(first.len(), 6 + 4, "{first:?}");
        provost.kill().await;

        let restored = backup.restored().await.start().await;
        let (again, second) = keys(&remote, restored.api(), SHOP, "a").await;
        assert_ne!(lost, again);
        assert_eq!(first, second);
        // Provost recognises the repetition as well.
        assert_eq!(
            submit(restored.api(), SHOP, "a").await.expect(202)["id"],
            *again
        );
        // The keys of another caller are different, and so are those of another request with the same idempotency key,
        // after the key was lost by the restore.
        let (_, others) = keys(&remote, restored.api(), OTHER, "a").await;
        assert!(first.is_disjoint(&others), "{others:?}");
        drop(restored);
        let restored = backup.restored().await.start().await;
        let (_, changed) = keys(&remote, restored.api(), SHOP, "c").await;
        assert!(first.is_disjoint(&changed), "{changed:?}");
    }
}
