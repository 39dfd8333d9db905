//! Commands without a server: `init`, `man` and `doctor`.

use serde_json::Value;

use super::Person;
use crate::harness::{Provost, free_port, setups};

#[tokio::test]
async fn the_skeleton_passes_its_cases_and_is_applied() {
    let person = Person::without_server();
    person.done(&["init", "shop"]).await;
    person
        .done(&["validate", "shop/workflows/order.yaml"])
        .await;
    person
        .done(&["test", "shop/workflows/order.yaml", "shop/order.cases.yaml"])
        .await;
    let again = person.run(&["init", "shop"]).await;
    assert_eq!(again.code, 1, "{again:?}");
    let provost = Provost::start().await;
    let url = format!("http://{}", provost.address());
    person
        .done(&["apply", "shop", "--yes", "--server", &url])
        .await;
    assert_eq!(
        provost.get("/v1/workflows/order").await.expect(200)["version"],
        1
    );
}

#[tokio::test]
async fn each_command_has_a_man_page() {
    let person = Person::without_server();
    let pages = person.done(&["man", "--to", "man1"]).await;
    for name in [
        "provost.1",
        "provost-status.1",
        "provost-agent-pause.1",
        "provost-agent-check.1",
        "provost-serve.1",
    ] {
        let page = std::fs::read_to_string(person.folder.path().join("man1").join(name)).unwrap();
        assert!(page.contains(".TH provost"), "{name}: {page}");
        assert!(pages.contains(name), "{pages}");
    }
}

/// Returns the subjects that are not fine, each with how much.
async fn doctor(person: &Person, arguments: &[&str]) -> (i32, Vec<(String, String)>) {
    let ran = person
        .run(&[&["doctor", "--json"], arguments].concat())
        .await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let text = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    let items = report["items"].as_array().unwrap().iter();
    let items = items.map(|item| (text(item, "severity"), text(item, "subject")));
    (
        ran.code,
        items.filter(|(severity, _)| severity != "ok").collect(),
    )
}

#[tokio::test]
async fn the_doctor_finds_nothing_on_a_healthy_server_and_names_what_is_wrong() {
    let person = Person::without_server();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    // Neither a database nor a server: both are for the first start.
    let (code, found) = doctor(
        &person,
        &["--listen", &listen, "--database-url", "sqlite://new.db"],
    )
    .await;
    assert_eq!((code, found.len()), (0, 0), "{found:?}");
    let taken = std::net::TcpListener::bind(&listen).unwrap();
    let (code, found) = doctor(
        &person,
        &["--listen", &listen, "--database-url", "sqlite://new.db"],
    )
    .await;
    assert_eq!(code, 1);
    assert_eq!(found, [("fault".to_owned(), "port".to_owned())]);
    drop(taken);
    // A folder that is missing is one fault, and nothing is said about the file in it.
    let missing = [
        "--listen",
        &listen,
        "--database-url",
        "sqlite://none/new.db",
    ];
    let said = person.run(&[&["doctor"], &missing[..]].concat()).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(!said.out.contains("the first start creates it"), "{said:?}");
    let away = [
        "--listen",
        &listen,
        "--database-url",
        "postgres://nobody@127.0.0.1:1/none",
    ];
    let said = person.run(&[&["doctor"], &away[..]].concat()).await;
    assert_eq!(
        (said.code, said.out.matches("check that").count()),
        (1, 1),
        "{said:?}"
    );
    let (code, found) = doctor(&person, &["--listen", "nowhere"]).await;
    assert_eq!((code, found[0].1.as_str()), (1, "settings"));
    person.file(
        "broken.db",
        "this is not a database, and it is long enough to be read as one",
    );
    let (code, found) = doctor(
        &person,
        &["--listen", &listen, "--database-url", "sqlite://broken.db"],
    )
    .await;
    assert_eq!((code, found[0].1.as_str()), (1, "database"), "{found:?}");
}

#[tokio::test]
async fn the_doctor_examines_a_database_beside_the_server_that_uses_it() {
    for setup in setups().await {
        let provost = setup.start().await;
        let person = Person::without_server();
        let url = match provost.database_url() {
            Some(url) => url,
            None => format!("sqlite://{}", provost.database().display()),
        };
        let arguments = [
            "doctor",
            "--listen",
            provost.address(),
            "--database-url",
            &url,
        ];
        let said = person.done(&arguments).await;
        for expected in [
            "a server is ready",
            "the one of this version",
            "ok       clock",
        ] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        assert_eq!(provost.get("/v1/overview").await.status, 200);
    }
}
