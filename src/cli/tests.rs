//! Tests of how arguments and environment are combined.

use clap::{CommandFactory, error::ErrorKind};

use super::*;

fn parse(arguments: &[&str], env: &[(&str, &str)]) -> Result<CliCommand, ConfigError> {
    let arguments = args::Arguments::try_parse_from(arguments).map_err(|e| e.to_string());
    let env = env
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    command(arguments.unwrap(), env.collect())
}

fn serve(arguments: &[&str], env: &[(&str, &str)]) -> Config {
    match parse(arguments, env) {
        Ok(CliCommand::Serve(config, _)) => *config,
        Ok(_) => panic!("another command"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    args::Arguments::command().debug_assert();
}

#[test]
fn serve_without_flags_is_the_defaults() {
    assert_eq!(serve(&["provost", "serve"], &[]), Config::default());
}

#[test]
fn a_flag_is_stronger_than_the_environment() {
    let env = [
        ("PROVOST_LISTEN", "127.0.0.1:1"),
        ("PROVOST_LOG_JSON", "true"),
    ];
    let config = serve(
        &[
            "provost",
            "serve",
            "--listen",
            "127.0.0.1:2",
            "--shutdown-grace",
            "5s",
        ],
        &env,
    );
    assert_eq!(config.listen.to_string(), "127.0.0.1:2");
    assert!(config.log_json);
    assert_eq!(config.shutdown_grace.to_string(), "5s");
}

#[test]
fn every_flag_reaches_its_setting() {
    let config = serve(
        &[
            "provost",
            "serve",
            "--listen",
            "0.0.0.0:0",
            "--insecure",
            "--database-url",
            "sqlite:///d/p.db",
            "--instance-id",
            "007",
            "--log",
            "debug",
            "--log-json",
            "--shutdown-grace",
            "1m",
        ],
        &[],
    );
    assert_eq!(config.listen.to_string(), "0.0.0.0:0");
    assert!(config.insecure && config.log_json);
    assert_eq!(config.database_url.to_string(), "sqlite:///d/p.db");
    assert_eq!(
        config.instance_id.map(|id| id.to_string()).as_deref(),
        Some("007")
    );
    assert_eq!(config.log, "debug".parse().unwrap());
    assert_eq!(config.shutdown_grace.to_string(), "1m");
}

#[test]
fn a_wrong_flag_is_named_as_the_flag() {
    let Err(error) = parse(&["provost", "serve", "--shutdown-grace", "soon"], &[]) else {
        panic!("accepted");
    };
    assert!(
        error.to_string().contains("from     flag --shutdown-grace"),
        "{error}"
    );
}

#[test]
fn a_healthcheck_goes_where_the_environment_says_that_serve_listens() {
    let env = [
        ("PROVOST_LISTEN", "127.0.0.1:9"),
        ("PROVOST_DATABASE_URL", "sqlite://x.db"),
    ];
    match parse(&["provost", "healthcheck"], &env) {
        Ok(CliCommand::Healthcheck(target)) => assert_eq!(target.listen.to_string(), "127.0.0.1:9"),
        _ => panic!("no healthcheck"),
    }
}

#[test]
fn no_command_at_all_is_answered_with_help() {
    let error = args::Arguments::try_parse_from(["provost"]).err().unwrap();
    assert_eq!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    assert!(error.to_string().contains("provost demo"), "{error}");
}

/// The environment variable writes the page instead of comparing it, as for docs/agent-fields.md.
#[test]
fn the_page_of_the_command_line_is_what_the_arguments_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/command-line.md");
    let page = provost_command_line::reference(clap_command());
    if std::env::var_os("PROVOST_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/command-line.md is out of date: PROVOST_WRITE_DOCS=1 cargo test the_page_of_the_command_line"
    );
}

/// Splits a line as a shell does, as far as examples need it.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns the examples of a command and of those below it: the lines that begin with its name.
fn examples(command: &clap::Command) -> Vec<String> {
    let after = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let lines = after.lines().filter_map(|line| line.strip_prefix("  "));
    let lines = lines.filter(|line| line.starts_with("provost "));
    let mut all: Vec<_> = lines.map(str::to_owned).collect();
    all.extend(command.get_subcommands().flat_map(examples));
    all
}

#[test]
fn options_of_the_client_may_precede_the_command() {
    let moved = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let moved = with_options_at_end(words);
        let moved: Vec<_> = moved.iter().map(|word| word.to_string_lossy()).collect();
        moved.join(" ")
    };
    for (typed, expected) in [
        (
            "provost --server http://a --utc -o json agent show payments",
            "provost agent show payments --server http://a --utc -o json",
        ),
        (
            "provost --server=http://a retry -- -key",
            "provost retry --server=http://a -- -key",
        ),
        ("provost status --utc", "provost status --utc"),
        ("provost --utc", "provost --utc"),
        ("provost --server", "provost --server"),
        ("provost --version", "provost --version"),
    ] {
        assert_eq!(moved(typed), expected);
        if typed.contains("retry") || typed.contains("agent") {
            assert!(args::Arguments::try_parse_from(moved(typed).split(' ')).is_ok());
        }
    }
}

#[test]
fn every_example_can_be_typed() {
    let operator = include_str!("../../docs/operator.md");
    let in_operator = operator
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    let in_operator = in_operator.filter(|line| line.starts_with("provost "));
    let in_page = provost_command_line::reference(clap::Command::new("provost"));
    let in_page = in_page
        .lines()
        .filter_map(|line| line.strip_prefix("    provost "));
    let in_page: Vec<_> = in_page.map(|line| format!("provost {line}")).collect();
    let mut all = examples(&clap_command());
    assert!(all.len() > 60, "{}", all.len());
    all.extend(in_operator.map(str::to_owned));
    all.extend(in_page);
    for example in all {
        // The rest is for the shell.
        let line = example.split(" # ").next().unwrap_or_default();
        let line = line.split([';', '|', '>']).next().unwrap_or_default();
        let line = line.split(" && ").next().unwrap_or_default();
        let line = line.replace("$(date +%F)", "today");
        if let Err(error) = args::Arguments::try_parse_from(words(&line)) {
            let is_help = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            assert!(is_help, "{example}\n{error}");
        }
    }
}
