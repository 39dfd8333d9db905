//! Tests of the order of the sources, and of the report for each refused setting.

use std::path::Path;

use super::*;
use crate::{config::Role, domain::values::Span};

/// Loads the settings from `text` as the configuration file, `env` and `flags`.
fn load_from(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&'static str, &'static str, &str)],
) -> Result<Config, ConfigError> {
    with_sources(text, env, flags, load)
}

fn with_sources<T>(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&'static str, &'static str, &str)],
    run: impl FnOnce(&Sources) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("provost.toml");
    fs::write(&file, text).unwrap();
    run(&Sources {
        file: Some(file),
        env: env
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        flags: flags
            .iter()
            .map(|(flag, setting, value)| FlagValue {
                flag,
                setting,
                value: value.to_string(),
            })
            .collect(),
    })
}

/// Returns the only fault of these settings.
fn fault(text: &str, env: &[(&str, &str)]) -> SettingFault {
    match load_from(text, env, &[]) {
        Err(ConfigError::Settings(mut faults)) if faults.len() == 1 => faults.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(load_from("", &[], &[]), Ok(Config::default()));
}

#[test]
fn each_source_is_stronger_than_the_one_before() {
    let text =
        "log = \"warn\"\n[supervisor]\ninterval = \"2s\"\nbatch = 7\n[scheduler]\npoll = \"2s\"";
    let env = [
        ("PROVOST_SUPERVISOR__INTERVAL", "3s"),
        ("PROVOST_SCHEDULER__POLL", "3s"),
        ("HOME", "/root"),
    ];
    let flags = [("--poll", "scheduler.poll", "4s")];
    let config = load_from(text, &env, &flags).unwrap();
    assert_eq!(config.log, "warn".parse().unwrap());
    assert_eq!(config.supervisor.batch, 7);
    assert_eq!(config.supervisor.interval, Span::from_secs(3));
    assert_eq!(config.scheduler.poll, Span::from_secs(4));
    assert_eq!(config.retention, Config::default().retention);
}

#[test]
fn a_database_on_the_same_machine_is_left_half_of_the_cores() {
    let config = |url: &str| load_from(&format!("database_url = {url:?}"), &[], &[]).unwrap();
    for local in [
        "postgres://ann@127.0.0.1/tasks",
        "postgres://ann@[::1]:6000/tasks",
        "postgres://ann@Localhost,127.0.0.2/tasks",
        "postgres:///tasks?host=/run/postgresql&user=ann",
    ] {
        let threads = [1, 2, 3, 8].map(|cores| config(local).threads(cores));
        assert_eq!(threads, [1, 1, 2, 4], "{local}");
    }
    for other in [
        "sqlite://provost.db",
        "postgres://ann@db.example/tasks",
        "postgres://ann@localhost,db.example/tasks",
        "postgres://ann@10.0.0.1/tasks",
    ] {
        assert_eq!(config(other).threads(8), 8, "{other}");
    }
    let text = "database_url = \"postgres://ann@localhost/tasks\"";
    for (variable, threads) in [
        (("PROVOST_INSTANCE__THREADS", "3"), 3),
        (("PROVOST_POSTGRES__LISTEN", "false"), 8),
    ] {
        let config = load_from(text, &[variable], &[]).unwrap();
        assert_eq!(config.threads(8), threads, "{variable:?}");
    }
}

#[test]
fn a_list_in_the_environment_may_be_json() {
    let of = |text| {
        let env = [("PROVOST_ALERT_WEBHOOKS", text)];
        load_from("", &env, &[]).unwrap().alert_webhooks
    };
    let json = of(r#"[{"name": "ops", "url": "https://ops.example/hook"}]"#);
    assert_eq!(json.len(), 1);
    assert_eq!(json, of(r#"[{name="ops",url="https://ops.example/hook"}]"#));
}

#[test]
fn the_words_of_a_list_in_the_environment_need_no_quotation_marks() {
    let of = |text| {
        let env = [("PROVOST_CALLS__ALLOW", text)];
        load_from("", &env, &[]).map(|config| config.calls.allow)
    };
    let quoted = of(r#"["10.0.0.0/8", "db.local"]"#).unwrap();
    assert_eq!(quoted.0.len(), 2);
    assert_eq!(of("[10.0.0.0/8,db.local]").unwrap(), quoted);
    assert_eq!(of("[]").unwrap().0.len(), 0);
    for wrong in ["[10.0.0.0/8, 2020-01-01, \"x]", "2020-01-01", "10.0.0.0/8"] {
        assert!(of(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn values_from_the_environment_are_of_their_settings_type() {
    let env = [
        ("PROVOST_INSTANCE_ID", "007"),
        ("PROVOST_LIMITS__MAX_STEPS", "9"),
        ("PROVOST_LIMITS__MAX_REQUEST", "2048"),
        ("PROVOST_LIMITS__MAX_OUTPUT", "2KiB"),
        ("PROVOST_CALLS__ALLOW_URL_STEPS", "false"),
        ("PROVOST_CALLS__ALLOW_PRIVATE_ADDRESSES", "auto"),
        ("PROVOST_RETENTION__KEEP", "forever"),
        (
            "PROVOST_AGENTS__PAYMENTS__ENDPOINTS",
            "[{url=\"http://10.0.0.5:80\"}]",
        ),
    ];
    let config = load_from("", &env, &[]).unwrap();
    assert_eq!(config.instance_id.unwrap().as_str(), "007");
    assert_eq!(config.limits.max_steps, 9);
    assert_eq!(config.limits.max_request, config.limits.max_output);
    assert!(!config.calls.allow_url_steps.or(true));
    assert_eq!(config.retention.keep.to_string(), "forever");
    assert_eq!(
        config.agents["payments"].endpoints[0].url,
        "http://10.0.0.5:80"
    );
}

#[test]
fn what_kubernetes_puts_beside_a_service_called_provost_is_passed_over() {
    let env = [
        ("PROVOST_SERVICE_HOST", "10.0.0.1"),
        ("PROVOST_SERVICE_PORT_HTTP", "8080"),
        ("PROVOST_PORT", "tcp://10.0.0.1:8080"),
        ("PROVOST_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("PROVOST_DB_PORT_5432_TCP", "tcp://10.0.0.2:5432"),
        ("PROVOST_CONFIG", "/etc/provost.toml"),
    ];
    assert_eq!(load_from("", &env, &[]), Ok(Config::default()));
    let shown = with_sources("", &env, &[], describe).unwrap();
    assert!(
        shown.contains("# environment PROVOST_PORT is not a setting and is ignored\n"),
        "{shown}"
    );
}

#[test]
fn a_wrong_value_is_named_with_its_place_and_what_is_allowed() {
    let wrong = fault("", &[("PROVOST_SUPERVISOR__INTERVAL", "fast")]);
    assert_eq!(wrong.setting, "supervisor.interval");
    assert_eq!(wrong.origin, "environment PROVOST_SUPERVISOR__INTERVAL");
    assert_eq!(wrong.found, "\"fast\"");
    assert_eq!(
        wrong.allowed,
        "a duration from 10ms to 1h, such as \"250ms\", \"30s\" or \"15m\""
    );

    let wrong = fault("[limits]\nmax_steps = 0", &[]);
    assert_eq!(
        (wrong.setting.as_str(), wrong.found.as_str()),
        ("limits.max_steps", "0")
    );
    assert!(wrong.origin.starts_with("file ") && wrong.origin.ends_with("provost.toml"));
    assert_eq!(wrong.allowed, "a whole number from 1 to 10000");
}

#[test]
fn all_wrong_settings_are_reported_at_once() {
    let text = "listen = \"here\"\nlog = 3\nshutdown_grace = 10\nlog_json = \"yes\"\n[supervisor]\nevery = \"1s\"";
    let Err(error) = load_from(text, &[], &[]) else {
        panic!("accepted");
    };
    let message = error.to_string();
    assert!(message.starts_with("5 settings are wrong:"), "{message}");
    for setting in [
        "listen",
        "log",
        "shutdown_grace",
        "log_json",
        "supervisor.every",
    ] {
        assert!(
            message.contains(&format!("\n  {setting}\n")),
            "{setting} in {message}"
        );
    }
}

#[test]
fn an_unknown_setting_is_refused_by_name_with_those_that_exist_beside_it() {
    let unknown = fault("[supervisor]\nintervall = \"1s\"", &[]);
    assert_eq!(unknown.setting, "supervisor.intervall");
    assert_eq!(unknown.found, "an unknown setting; did you mean interval?");
    assert_eq!(
        unknown.allowed,
        "interval, batch, prediction_interval, alert_at_risk"
    );
    for (text, meant) in [
        ("listn = \"x\"", "listen"),
        ("[cals]\nallow = []", "calls"),
        ("[calls]\nalow = []", "allow"),
        ("[tls]\ncertificat = \"x\"", "certificate"),
        (
            "[[receivers]]\nname = \"x\"\nulr = \"http://a\"\nsecrets = []",
            "url",
        ),
    ] {
        let unknown = fault(text, &[]);
        let expected = format!("did you mean {meant}?");
        assert!(unknown.found.ends_with(&expected), "{text}: {unknown}");
    }
    let unknown = fault("colour = 1", &[]);
    assert_eq!(unknown.found, "an unknown setting");

    let unknown = fault("", &[("PROVOST_LISTENS", "s3cret")]);
    assert_eq!(unknown.setting, "listens");
    assert_eq!(unknown.origin, "environment PROVOST_LISTENS");
    assert!(
        unknown
            .allowed
            .starts_with("listen, insecure, database_url,"),
        "{unknown}"
    );
    assert!(unknown.allowed.contains("supervisor") && unknown.allowed.ends_with("intake"));
    assert!(!unknown.to_string().contains("s3cret"), "{unknown}");

    assert_eq!(
        unknown.found,
        "an unknown setting; did you mean PROVOST_LISTEN?"
    );

    let unknown = fault("supervisor = \"1s\"", &[]);
    assert_eq!(unknown.found, "one value, but a table is expected");
}

#[test]
fn a_wrong_database_is_refused_without_its_password() {
    let refused = fault(
        "",
        &[(
            "PROVOST_DATABASE_URL",
            "postgres://me:hunter2@db:many/provost",
        )],
    );
    assert_eq!(
        refused.found,
        "\"postgres://(hidden)\": invalid port number"
    );
    assert!(
        refused
            .allowed
            .contains("postgres://user:password@host/name")
    );
}

#[test]
fn a_listen_that_others_can_reach_needs_tokens_or_a_decision() {
    let listen = [("PROVOST_LISTEN", "0.0.0.0:8080")];
    let open = fault("", &listen);
    assert_eq!(open.setting, "listen");
    assert_eq!(open.origin, "environment PROVOST_LISTEN");
    assert_eq!(
        open.found,
        "\"0.0.0.0:8080\", which other machines can reach, and no tokens"
    );
    for remedy in [
        "127.0.0.1:8080",
        "[[tokens]]",
        "PROVOST_TOKENS",
        "insecure = true",
    ] {
        assert!(open.allowed.contains(remedy), "{remedy} in {open}");
    }

    assert!(load_from("insecure = true", &listen, &[]).is_ok());
    let token = "[[tokens]]\nname = \"ci\"\nrole = \"submit\"\ntoken = \"0123456789abcdef\"";
    assert!(load_from(token, &listen, &[]).is_ok());
    for loopback in ["127.0.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(
            load_from("", &[("PROVOST_LISTEN", loopback)], &[]).is_ok(),
            "{loopback}"
        );
    }
}

#[test]
fn an_open_listen_closes_what_is_open_only_for_development() {
    let here = Config::default();
    assert!(here.allows_private_addresses() && here.allows_url_steps());
    let env = [
        ("PROVOST_LISTEN", "0.0.0.0:1"),
        ("PROVOST_INSECURE", "true"),
    ];
    let open = load_from("", &env, &[]).unwrap();
    assert!(!open.allows_private_addresses() && !open.allows_url_steps());
    let open = load_from("[calls]\nallow_private_addresses = true", &env, &[]).unwrap();
    assert!(open.allows_private_addresses() && !open.allows_url_steps());
}

#[test]
fn tokens_of_the_environment_take_the_place_of_those_in_the_file() {
    let text = "[[tokens]]\nname = \"file\"\nrole = \"read\"\ntoken = \"0123456789abcdef\"";
    let env = [(
        "PROVOST_TOKENS",
        "ci:submit:aaaaaaaaaaaaaaaa, ops:operate:bbbbbbbb:bbbbbbbb",
    )];
    let tokens = load_from(text, &env, &[]).unwrap().tokens;
    let names: Vec<_> = tokens
        .iter()
        .map(|token| (token.name.as_str(), token.role))
        .collect();
    assert_eq!(names, [("ci", Role::Submit), ("ops", Role::Operate)]);
    assert!(tokens[1].is(b"bbbbbbbb:bbbbbbbb"));
}

#[test]
fn a_wrong_token_is_refused_and_never_shown() {
    let secret = "hunter2hunter2hunter2";
    for (text, env) in [
        (
            format!("[[tokens]]\nname = \"ci\"\nrole = \"{secret}\"\ntoken = \"{secret}\""),
            None,
        ),
        (
            format!("[[tokens]]\nname = \"ci\"\nrole = \"read\"\nsecret = \"{secret}\""),
            None,
        ),
        (
            format!("[[tokens]]\nname = \"ci\"\nrole = \"read\"\nsha256 = \"{secret}\""),
            None,
        ),
        (format!("tokens = \"{secret}\""), None),
        (
            String::new(),
            Some(("PROVOST_TOKENS", format!("ci:{secret}"))),
        ),
        (
            String::new(),
            Some(("PROVOST_TOKENS", format!("ci:{secret}:submit"))),
        ),
        (
            String::new(),
            Some((
                "PROVOST_TOKENS",
                format!("a:read:{secret},a:submit:{secret}"),
            )),
        ),
    ] {
        let env: Vec<_> = env
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let refused = fault(&text, &env);
        assert!(refused.setting.starts_with("tokens"), "{refused}");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line_and_without_its_text() {
    let text = "log = \"info\"\n[[tokens]]\ntoken = \"hunter2";
    let Err(error) = load_from(text, &[], &[]) else {
        panic!("accepted");
    };
    let message = error.to_string();
    assert!(
        message.contains("provost.toml is not TOML: line 3: "),
        "{message}"
    );
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn a_named_file_must_exist() {
    let sources = Sources {
        file: Some(Path::new("/nowhere/provost.toml").to_owned()),
        ..Sources::default()
    };
    let message = load(&sources).unwrap_err().to_string();
    assert!(
        message.contains("/nowhere/provost.toml cannot be read"),
        "{message}"
    );
    assert!(message.contains("--config"), "{message}");
}

#[test]
fn a_wrong_retention_is_named_to_the_field() {
    let mut many = String::new();
    for days in 1..=40 {
        many.push_str(&format!(
            "[retention.workflows.w{days}]\nkeep = \"{days}d\"\n"
        ));
    }
    let wrong = |table: &str, line: &str| format!("[retention{table}]\n{line}");
    for (text, setting) in [
        (wrong("", "processed = \"1y\""), "retention.processed"),
        (wrong("", "error = \"1d\""), "retention.error"),
        (
            wrong(".workflows.ship", "keep = \"1y\""),
            "retention.workflows.ship.keep",
        ),
        (
            wrong(".workflows.ship", "failed = \"1d\""),
            "retention.workflows.ship.failed",
        ),
        (
            wrong(".workflows.\"a b\"", "keep = \"1d\""),
            "retention.workflows.a b",
        ),
        (wrong("", "workflows = 3"), "retention.workflows"),
        (many, "retention.workflows"),
    ] {
        let wrong = fault(&text, &[]);
        assert_eq!(wrong.setting, setting, "{text}");
        assert!(wrong.origin.starts_with("file "), "{wrong}");
    }
}

#[test]
fn a_name_may_contain_dots() {
    let text = "[retention.workflows.\"order.v2\"]\nkeep = \"1d\"\n\
                [agents.\"pay.eu\"]\nendpoints = [{ url = \"http://h\" }]";
    let config = load_from(text, &[], &[]).unwrap();
    assert_eq!(config.agents["pay.eu"].endpoints.len(), 1);
    let names: Vec<_> = config
        .retention
        .workflows
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["order.v2"]);
    let wrong = fault("\"retention.keep\" = \"1d\"", &[]);
    assert!(wrong.found.starts_with("an unknown setting"), "{wrong}");
}

#[test]
fn a_wrong_agent_is_named_to_the_field() {
    for (text, setting) in [
        ("[agents.a]", "agents.a.endpoints"),
        ("[agents.a]\nendpoints = []", "agents.a.endpoints"),
        (
            "[agents.a]\nendpoints = [{ uri = \"http://h\" }]",
            "agents.a.endpoints.0.uri",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"ftp://h\" }]",
            "agents.a.endpoints.0.url",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://me:hunter2@h\" }]",
            "agents.a.endpoints.0.url",
        ),
        (
            "[agents.a]\nendpoints = { url = \"http://me:hunter2@h\" }",
            "agents.a.endpoints",
        ),
        (
            "[agents.a]\nendpoints = [\"http://me:hunter2@h\"]",
            "agents.a.endpoints.0",
        ),
        (
            "[agents.\"a/b\"]\nendpoints = [{ url = \"http://h\" }]",
            "agents.a/b",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://h\" }]\nretry = { initial = \"x\" }",
            "agents.a.retry.initial",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://h\" }]\nretry = { initial = \"2s\", max = \"1s\" }",
            "agents.a.retry.max",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://h\" }]\nretry = { factor = 11 }",
            "agents.a.retry.factor",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://h\" }]\nretry = { initial = \"0s\" }",
            "agents.a.retry.initial",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://0x7f.1\" }]",
            "agents.a.endpoints.0.url",
        ),
        (
            "[agents.a]\nendpoints = [{ url = \"http://h\", max_in_flight = 100001 }]",
            "agents.a.endpoints.0.max_in_flight",
        ),
    ] {
        let wrong = fault(text, &[]);
        assert_eq!(wrong.setting, setting, "{text}");
        assert!(wrong.origin.starts_with("file "), "{wrong}");
        assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
    }
}

#[test]
fn what_names_secrets_is_checked_and_a_secret_in_place_of_its_name_is_not_shown() {
    const SECRETS: &str = "[[secrets]]\nname = \"token\"\nfile = \"/t\"\nurls = [\"https://h/v1\"]";
    const AGENT: &str = "[agents.a]\nendpoints = [{ url = \"https://h/v1/x\" }]";
    load_from(
        &format!("{SECRETS}\n{AGENT}\nauth = {{ bearer = {{ secret = \"token\" }} }}"),
        &[],
        &[],
    )
    .unwrap();
    for (text, setting) in [
        (SECRETS.replace("token", "a b"), "secrets.0.name"),
        (format!("{SECRETS}\n{SECRETS}"), "secrets.1.name"),
        (SECRETS.replace("/t", ""), "secrets.0.file"),
        (
            SECRETS.replace("file", "env").replace("/t", "a=b"),
            "secrets.0.env",
        ),
        (SECRETS.replace("file = \"/t\"", ""), "secrets.0.file"),
        (
            SECRETS.replace("file = \"/t\"", "file = \"/t\"\nenv = \"T\""),
            "secrets.0.env",
        ),
        (SECRETS.replace("https://h/v1", "h"), "secrets.0.urls.0"),
        (
            SECRETS.replace("https://h/v1", "https://h?x"),
            "secrets.0.urls.0",
        ),
        (
            SECRETS.replace("file", "value").replace("/t", "hunter2"),
            "secrets.0.value",
        ),
        (
            format!("{AGENT}\nauth = {{ bearer = {{ secret = \"token\" }} }}"),
            "agents.a.auth.bearer.secret",
        ),
        (
            format!("{SECRETS}\n{AGENT}\nsign = [{{ secret = \"token\" }}]")
                .replace("/v1/x", "/v2"),
            "agents.a.sign.0.secret",
        ),
        (
            format!("{AGENT}\nauth = {{ bearer = \"hunter2\" }}"),
            "agents.a.auth.bearer",
        ),
        (format!("{AGENT}\nauth = \"hunter2\""), "agents.a.auth"),
        (
            format!("{AGENT}\nheaders = {{ authorization = \"hunter2\" }}"),
            "agents.a.headers.authorization",
        ),
        (format!("{AGENT}\nsign = [\"hunter2\"]"), "agents.a.sign.0"),
    ] {
        let wrong = fault(&text, &[]);
        assert_eq!(wrong.setting, setting, "{text}");
        assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
    }
}

const RECEIVER: &str = "[[receivers]]\nname = \"shop\"\nurl = \"https://shop.example/r\"\n\
                        secrets = [\"whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\"]";

#[test]
fn receivers_come_from_the_file_or_the_environment() {
    let in_file = load_from(RECEIVER, &[], &[]).unwrap();
    let text = r#"[{name="shop",url="https://shop.example/r",secrets=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"]}]"#;
    let in_environment = load_from("", &[("PROVOST_RECEIVERS", text)], &[]).unwrap();
    assert_eq!(in_file.receivers, in_environment.receivers);
    assert_eq!(in_file.receivers[0].name, "shop");
}

#[test]
fn a_wrong_secret_is_refused_and_never_shown() {
    for (wrong, setting) in [
        (RECEIVER.replace("whsec_C2FV", "whsec_C2"), "receivers"),
        (RECEIVER.replace("whsec_", ""), "receivers"),
        (
            RECEIVER
                .replace("receivers", "alert_webhooks")
                .replace("https:", "ftp:"),
            "alert_webhooks",
        ),
    ] {
        let fault = fault(&wrong, &[]);
        assert!(fault.setting.starts_with(setting), "{fault}");
        assert!(fault.allowed.contains("whsec_"), "{fault}");
        assert!(!fault.to_string().contains("VsBQIhrscChlQ"), "{fault}");
    }
    let unknown = fault(&RECEIVER.replace("secrets =", "secret ="), &[]);
    assert!(
        unknown.found.ends_with("did you mean secrets?"),
        "{unknown}"
    );
    assert!(!unknown.to_string().contains("VsBQIhrscChlQ"), "{unknown}");
}

#[test]
fn a_secret_and_the_address_of_a_webhook_are_not_shown() {
    let webhook = RECEIVER.replace("receivers", "alert_webhooks");
    let text = format!("{RECEIVER}\n{webhook}");
    let shown = with_sources(&text, &[], &[], describe).unwrap();
    let debug = format!("{:?}", load_from(&text, &[], &[]).unwrap());
    for shown in [shown, debug] {
        assert!(
            shown.contains("https://shop.example:443/(hidden)"),
            "{shown}"
        );
        assert!(!shown.contains("VsBQIhrscChlQ"), "{shown}");
    }
}

#[test]
fn the_longest_wait_is_no_shorter_than_the_first() {
    let fault = fault("[courier]\nretry_initial = \"20m\"", &[]);
    assert_eq!(fault.setting, "courier.retry_max");
}

#[test]
fn the_description_names_every_setting_with_its_origin_and_no_secret() {
    let text = "[supervisor]\nbatch = 7\n[[tokens]]\nname = \"ci\"\nrole = \"read\"\ntoken = \"hunter2hunter2hunter2\"";
    let env = [("PROVOST_LOG", "debug")];
    let flags = [("--listen", "listen", "127.0.0.1:9")];
    let shown = with_sources(text, &env, &flags, describe).unwrap();
    for setting in &SETTINGS {
        assert!(shown.contains(setting.path), "{} in {shown}", setting.path);
    }
    assert!(
        shown.contains("listen = \"127.0.0.1:9\"  # flag --listen\n"),
        "{shown}"
    );
    assert!(
        shown.contains("log = \"debug\"  # environment PROVOST_LOG\n"),
        "{shown}"
    );
    assert!(
        shown.contains("supervisor.interval = \"1s\"  # default\n"),
        "{shown}"
    );
    assert!(shown.contains("# instance_id is not set\n"), "{shown}");
    assert!(
        shown.contains("name = \"ci\"") && !shown.contains("hunter2"),
        "{shown}"
    );
    assert!(toml::from_str::<toml::Table>(&shown).is_ok(), "{shown}");
}

#[test]
fn debug_shows_no_secret() {
    let text = "[[tokens]]\nname = \"ci\"\nrole = \"read\"\ntoken = \"hunter2hunter2hunter2\"";
    let shown = format!("{:?}", load_from(text, &[], &[]).unwrap());
    assert!(
        shown.contains("ci") && !shown.contains("hunter2"),
        "{shown}"
    );
}
