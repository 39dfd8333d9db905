//! Settings: their precedence, and wrong settings that prevent the start.

use serde_json::Value;

use crate::harness::{Postgres, Provost, Remote, binary, one_step, step};

#[tokio::test]
async fn a_wrong_setting_stops_the_start_and_is_named_with_what_is_allowed() {
    let wrong = [
        (
            Provost::setup().set("SUPERVISOR__INTERVAL", "often"),
            "PROVOST_SUPERVISOR__INTERVAL",
        ),
        (
            Provost::setup().set("STORE__MAX_SIZE", "1"),
            "PROVOST_STORE__MAX_SIZE",
        ),
        (
            Provost::setup().set("SUPERVISR__INTERVAL", "1s"),
            "SUPERVISR",
        ),
        (
            Provost::setup()
                .argument("--shutdown-grace")
                .argument("later"),
            "--shutdown-grace",
        ),
        (
            Provost::setup().config("[scheduler]\npoll = 5\n"),
            "scheduler.poll",
        ),
        (
            Provost::setup().config("[suprevisor]\ninterval = \"5s\"\n"),
            "suprevisor",
        ),
    ];
    for (setup, name) in wrong {
        let (code, said) = setup.refused().await;
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.to_lowercase().contains(&name.to_lowercase()),
            "{name}: {said}"
        );
    }
}

#[tokio::test]
async fn variables_that_are_no_settings_are_warned_about_and_a_near_miss_stops_the_start() {
    let setup = Provost::setup()
        .set("SERVICE_HOST", "10.96.0.7")
        .set("SERVICE_PORT_HTTP", "8080")
        .set("PORT", "tcp://10.96.0.7:8080")
        .set("PORT_8080_TCP_ADDR", "10.96.0.7")
        .set("DB_SERVICE_HOST", "10.96.0.8")
        .set("DB_PORT", "tcp://10.96.0.8:5432")
        .set("IMAGE_TAG", "s3cret");
    let provost = setup.start().await;
    provost.says("PROVOST_IMAGE_TAG").await;
    let log = provost.log();
    let warning = log.lines().find(|line| line.contains("PROVOST_IMAGE_TAG"));
    let warning: Value = serde_json::from_str(warning.unwrap()).unwrap();
    assert_eq!(warning["level"], "WARN", "{warning}");
    for name in ["PROVOST_PORT", "PROVOST_DB_SERVICE_HOST"] {
        let names = warning["variables"].as_str().unwrap();
        assert!(names.contains(name), "{name}: {warning}");
    }
    assert!(!log.contains("s3cret"), "a value may be a secret");

    for (slip, meant) in [
        ("TOKENSS", "PROVOST_TOKENS"),
        ("LIMITS__MAX_REQUESTS", "PROVOST_LIMITS__MAX_REQUEST"),
        ("SUPERVISOR_BATCH", "PROVOST_SUPERVISOR__BATCH"),
    ] {
        let (code, said) = Provost::setup().set(slip, "s3cret").refused().await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&format!("did you mean {meant}?")), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    // The client's own variable with a token of the server in it.
    let slip = Provost::setup().set("TOKEN", "ci:submit:s3cret");
    let (code, said) = slip.refused().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("did you mean PROVOST_TOKENS?"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test]
async fn other_than_loopback_needs_tokens() {
    let setup = Provost::setup().config("listen = \"0.0.0.0:0\"\n");
    // The flag with which every test starts takes precedence over the file, so here it has the same value.
    let setup = setup.listen("0.0.0.0:0");
    let (code, said) = setup.refused().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("tokens") && said.contains("insecure"),
        "{said}"
    );
}

#[tokio::test]
async fn the_environment_is_stronger_than_the_file_and_a_flag_than_both() {
    let remote = Remote::quick().await;
    let instance = async |setup: crate::harness::Setup| {
        let provost = setup.start().await;
        let task = provost.run(&one_step(&remote.url(), "/work")).await;
        assert_eq!(step(&task, "only")["state"], "processed");
        let history = provost.history(task["id"].as_str().unwrap()).await;
        let claimed = history
            .into_iter()
            .find(|entry| entry["type"] == "step.claimed");
        claimed.unwrap_or(Value::Null)["by"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let setup = Provost::setup().config("instance_id = \"file\"\n");
    assert_eq!(instance(setup.clone()).await, "scheduler:file");
    let setup = setup.set("INSTANCE_ID", "variable");
    assert_eq!(instance(setup.clone()).await, "scheduler:variable");
    let setup = setup.argument("--instance-id").argument("flag");
    assert_eq!(instance(setup).await, "scheduler:flag");
}

#[tokio::test]
async fn with_tokens_each_role_may_do_what_it_is_for() {
    let remote = Remote::quick().await;
    let tokens = "shop:submit:shop-secret-0123456789,eye:read:eye-secret-0123456789,\
                  ops:operate:ops-secret-0123456789,root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let submission = one_step(&remote.url(), "/work");
    let nobody = provost.post("/v1/tasks", &submission).await;
    assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
    nobody.expect_problem(401, "unauthenticated");
    let wrong = provost
        .get("/v1/tasks")
        .header("authorization", "Bearer wrong")
        .await;
    wrong.expect_problem(401, "unauthenticated");
    assert_eq!(provost.get("/livez").await.status, 200);

    let bearer = |name: &str| format!("Bearer {name}-secret-0123456789");
    let as_shop = provost
        .post("/v1/tasks", &submission)
        .header("authorization", &bearer("shop"));
    let id = as_shop.await.expect(202)["id"].as_str().unwrap().to_owned();
    let read = format!("/v1/tasks/{id}?wait=30s");
    let as_eye = provost
        .get(&read)
        .header("authorization", &bearer("eye"))
        .await;
    assert_eq!(as_eye.expect(200)["state"], "processed");
    let as_eye = provost
        .post("/v1/tasks", &submission)
        .header("authorization", &bearer("eye"));
    as_eye.await.expect_problem(403, "forbidden");
    let cancel = format!("/v1/tasks/{id}/cancel");
    for name in ["shop", "eye"] {
        let refused = provost
            .command(&cancel)
            .header("authorization", &bearer(name))
            .await;
        refused.expect_problem(403, "forbidden");
    }
    let as_ops = provost
        .command(&cancel)
        .header("authorization", &bearer("ops"))
        .await;
    as_ops.expect_problem(409, "task-ended");
    let agent = serde_json::json!({ "endpoints": [{ "url": remote.url() }] });
    let as_ops = provost
        .put("/v1/agents/a", &agent)
        .header("authorization", &bearer("ops"));
    as_ops.await.expect_problem(403, "forbidden");
    let as_root = provost
        .put("/v1/agents/a", &agent)
        .header("authorization", &bearer("root"));
    assert!(as_root.await.status < 300);
    assert!(
        !provost.log().contains("secret-0123456789"),
        "a token is in the log"
    );
}

#[tokio::test]
async fn what_settings_name_and_is_not_there_is_found_before_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display().to_string();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for (arguments, code, said) in [
        (vec![format!("sqlite://{here}/p.db")], 0, String::new()),
        (
            vec![format!("sqlite://{here}/no/p.db")],
            2,
            format!("database_url: the folder {here}/no: No such file or directory"),
        ),
        (
            vec![format!("sqlite://{here}/file/p.db")],
            2,
            format!("database_url: {here}/file is not a folder"),
        ),
    ] {
        let mut check = binary();
        check
            .args(["check-config", "--database-url"])
            .args(&arguments);
        let output = check.current_dir(&here).output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(&said), "{error}");
        assert!(output.stdout.starts_with(b"listen = "), "{output:?}");
    }
    let mut check = binary();
    check.env("PROVOST_TLS__CERTIFICATE", format!("{here}/crt"));
    check.env("PROVOST_TLS__KEY", format!("{here}/key"));
    let output = check.arg("check-config").current_dir(&here).output();
    let output = output.await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("tls.certificate"), "{error}");
}

#[tokio::test]
async fn an_instance_has_as_many_threads_as_it_is_told() {
    let few = Provost::setup().set("INSTANCE__THREADS", "1").start().await;
    let many = Provost::setup()
        .set("INSTANCE__THREADS", "60")
        .start()
        .await;
    assert_eq!(said_threads(&many), 60);
    let (Some(few), Some(many)) = (few.threads(), many.threads()) else {
        return;
    };
    assert!(few < 60 && many >= 60, "{few}, {many}");
}

#[tokio::test]
async fn beside_its_database_an_instance_has_a_thread_for_every_second_core() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let alone = Provost::setup().start().await;
    assert_eq!(said_threads(&alone), cores);
    let postgres = Postgres::start().await;
    let beside = Provost::setup().database_url(&postgres.url());
    assert_eq!(said_threads(&beside.start().await), cores.div_ceil(2));
}

/// Returns the number of threads that it logs when it is ready.
fn said_threads(provost: &Provost) -> usize {
    let log = provost.log();
    let mut events = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let ready = events.find(|event: &Value| event["message"] == "provost is ready");
    let threads = ready.and_then(|event| event["threads"].as_u64());
    threads.unwrap().try_into().unwrap()
}
