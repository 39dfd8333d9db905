//! Completion by a shell: commands, and ids, keys and names of the server; nothing if the server does not respond.

use serde_json::json;
use tokio::net::TcpListener;

use super::Person;
use crate::harness::{Provost, Remote, one_step, until};

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

/// Waits until these are the candidates: a server that is busy for longer than a person waits after a tab completes nothing.
async fn completes(person: &Person, words: &[&str], url: Option<&str>, expected: &str) {
    let shown = async || candidates(person, words, url).await.trim().to_owned();
    until(expected.to_owned(), shown).await;
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
    completes(&person, &["agent", "pause", "pay"], None, "payments").await;
    completes(&person, &["task", "order"], None, "order-1001").await;
    assert_eq!(
        candidates(&person, &["tasks", "--state", "undoi"], None)
            .await
            .trim(),
        "undoing"
    );

    let workflow = json!({ "steps": [{ "name": "charge", "agent": "payments", "request": { "path": "/work" } }] });
    let put = provost.put("/v1/workflows/order", &workflow).await;
    assert_eq!(put.status, 201, "{put:?}");
    for (words, expected) in [
        (&["get", "workflow", "or"][..], "order"),
        (&["get", "agent", "p"], "payments"),
        (&["skip", "order-1001", "o"], "only"),
        (&["rerun", "order-1001", "o"], "only"),
        (&["workflow", "promote", "order", "1"], "1"),
    ] {
        completes(&person, words, None, expected).await;
    }
    // The server of the line is asked, and not that of the environment.
    let server = format!("http://{}", provost.address());
    let elsewhere = Some("http://127.0.0.1:1");
    let named = ["agent", "pause", "--server", &server, "pay"];
    completes(&person, &named, elsewhere, "payments").await;
    let login = ["login", "here", "--url", &server, "--no-token"];
    person.done(&login).await;
    let by_context = ["task", "--context", "here", "order"];
    completes(&person, &by_context, elsewhere, "order-1001").await;

    // The command of this token ends with the program that runs it, and not before: it is left alone.
    let endless = "while kill -0 $PPID; do sleep 0.05; done";
    let contexts = format!("[contexts.slow]\nurl = \"{server}\"\ntoken_command = \"{endless}\"\n");
    person.file("contexts.toml", &contexts);
    let slow = ["task", "--context", "slow", "order"];
    assert_eq!(candidates(&person, &slow, None).await.trim(), "");

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
async fn a_line_is_completed_in_bash_and_runs_nothing_that_a_submitter_wrote() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    provost.register("payments", &remote.url(), 5).await;
    let workflow = json!({ "steps": [{ "name": "charge", "agent": "payments", "request": { "path": "/work" } }] });
    let put = provost.put("/v1/workflows/order", &workflow).await;
    assert_eq!(put.status, 201, "{put:?}");
    let paid = json!({ "name": "paid", "signal": { "within": "1h", "ask": { "title": "Paid?", "of": ["ada"] } } });
    for key in [
        "order-1001",
        "order-$(touch ran)",
        "order-`touch ran`",
        "order;touch ran",
    ] {
        let mut submission = json!({ "key": key, "steps": [paid.clone()] });
        submission["steps"][0]["signal"]
            .as_object_mut()
            .unwrap()
            .remove("ask");
        provost.submit(&submission).await;
    }
    let script = person.file("provost.bash", &person.done(&["completions", "bash"]).await);
    let server = format!("http://{}", provost.address());
    // Bash splits `a=b` and `a:b` before it asks, as these words are.
    let lines: [(&[&str], &str); 9] = [
        (&["task", "order"], "order-1001"),
        (&["retry", "--filter", "workflow", "=", "or"], "order"),
        (&["retry", "--filter", "workflow", "="], "order"),
        (
            &["retry", "--filter", "cre"],
            "created_after= created_before=",
        ),
        (&["tasks", "--state", "=", "undoi"], "undoing"),
        (&["agent", "check", "pay"], "payments"),
        (&["rerun", "order-1001", "pa"], "paid"),
        (&["--server", &server, "task", "order"], "order-1001"),
        (&["--utc", "agent", "pause", "pay"], "payments"),
    ];
    for (words, expected) in lines {
        let shown = async || in_bash(&person, &script, words).await;
        until(expected.to_owned(), shown).await;
    }
    assert_eq!(in_bash(&person, &script, &["--cont"]).await, "--context");
    assert!(!person.folder.path().join("ran").exists());
}

/// Has bash complete the last of these words as it does after a tab, and returns the candidates.
async fn in_bash(person: &Person, script: &str, words: &[&str]) -> String {
    let complete = r#"
        source "$0"
        COMP_WORDS=(provost "$@") COMP_CWORD=$# COMP_TYPE=9
        [[ ${!#} == = ]] && COMP_WORDS+=("") COMP_CWORD=$(($# + 1))
        _provost_whole_words provost "${COMP_WORDS[COMP_CWORD]}" "" 2> /dev/null
        eval ": ${COMPREPLY[*]}"
        echo "${COMPREPLY[*]}""#;
    let mut command = tokio::process::Command::new("bash");
    let binary = person.command();
    let binary = std::path::Path::new(binary.as_std().get_program())
        .parent()
        .unwrap()
        .to_owned();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    command
        .args(["--norc", "-c", complete, script])
        .args(words)
        .env("PATH", path)
        .env(
            "PROVOST_CONTEXTS",
            person.folder.path().join("contexts.toml"),
        )
        .env("COMP_WORDBREAKS", " \t\n\"'><=;|&(:")
        .current_dir(person.folder.path());
    if let Some(url) = &person.url {
        command.env("PROVOST_URL", url);
    }
    let ended = command.output().await.unwrap();
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
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
