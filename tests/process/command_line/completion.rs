//! Completion by a shell: commands, and ids, keys and names of the server; nothing if the server does not respond.

use serde_json::json;
use tokio::net::TcpListener;

use super::Person;
use crate::harness::{Provost, Remote, one_step};

/// Asks for the candidates of the last word, as the script of bash does.
async fn candidates(person: &Person, words: &[&str], url: Option<&str>) -> String {
    let mut command = person.command();
    let index = words.len().to_string();
    command
        .env("PROVOST_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", index)
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "true")
        .env("_CLAP_IFS", "\n")
        .args(["--", "provost"])
        .args(words);
    if let Some(url) = url {
        command.env("PROVOST_URL", url);
    }
    let ran = super::ran(&mut command).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}: {ran:?}");
    ran.out
}

#[tokio::test]
async fn names_come_from_the_server_and_a_server_that_hangs_is_left_alone() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    provost.register("payments", &remote.url(), 5).await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["key"] = json!("order-1001");
    provost.run(&submission).await;
    assert!(
        candidates(&person, &["sta"], None)
            .await
            .lines()
            .any(|word| word.trim() == "status")
    );
    assert_eq!(
        candidates(&person, &["agent", "pause", "pay"], None)
            .await
            .trim(),
        "payments"
    );
    assert_eq!(
        candidates(&person, &["task", "order"], None).await.trim(),
        "order-1001"
    );
    assert_eq!(
        candidates(&person, &["tasks", "--state", "undoi"], None)
            .await
            .trim(),
        "undoing"
    );

    // This server accepts connections and never responds: the command ends by itself, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    assert_eq!(
        candidates(&person, &["agent", "pause", "pay"], Some(&url))
            .await
            .trim(),
        ""
    );
    assert_eq!(
        candidates(&person, &["task", "order"], Some("http://127.0.0.1:1"))
            .await
            .trim(),
        ""
    );
}

#[tokio::test]
async fn every_shell_gets_a_script() {
    let person = Person::without_server();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = person.done(&["completions", shell]).await;
        assert!(
            script.contains("PROVOST_COMPLETE") && script.contains("provost"),
            "{shell}: {script}"
        );
    }
    let bash = person.file("provost.bash", &person.done(&["completions", "bash"]).await);
    let loaded = tokio::process::Command::new("bash")
        .args(["-n", &bash])
        .output()
        .await
        .unwrap();
    assert!(loaded.status.success(), "{loaded:?}");
}
