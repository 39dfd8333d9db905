//! docs/command-line.md, made from the arguments. A test of the main package compares the page with what this makes.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

const BEGINNING: &str = include_str!("reference.md");

/// Returns the page.
pub fn reference(mut command: Command) -> String {
    command.build();
    let mut page = BEGINNING.to_owned();
    for below in commands(&command) {
        section(&mut page, "provost", below, 2);
    }
    page
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    let shown = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    shown.filter(|command| command.get_name() != "help")
}

fn section(page: &mut String, above: &str, command: &Command, depth: usize) {
    let name = format!("{above} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut text = format!(
        "\n{} {name}\n\n{}.\n",
        "#".repeat(depth),
        about.trim_end_matches('.')
    );
    let positionals: Vec<_> = command
        .get_positionals()
        .filter(|arg| !arg.is_hide_set())
        .collect();
    let has_commands = commands(command).next().is_some();
    let usage: Vec<_> = positionals.iter().map(|arg| usage_of(arg)).collect();
    if !has_commands {
        let _ = writeln!(
            text,
            "\n    {} [OPTIONS]",
            [vec![name.clone()], usage].concat().join(" ")
        );
    }
    let own: Vec<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !is_of_clap(arg))
        .filter(|arg| !matches!(arg.get_help_heading(), Some("Server" | "Output")))
        .collect();
    if !own.is_empty() {
        text.push_str("\n| argument | what it does |\n| --- | --- |\n");
        for arg in own {
            let _ = writeln!(text, "| `{}` | {} |", name_of(arg), help_of(arg));
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(text, "{}", after_help(&after.to_string()));
    }
    page.push_str(&text);
    for below in commands(command) {
        section(page, &name, below, depth + 1);
    }
}

/// Returns whether every program has the argument: `--help` or `--version`.
fn is_of_clap(arg: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(arg.get_action(), Help | HelpShort | HelpLong | Version)
}

fn usage_of(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let name = names
        .first()
        .map_or_else(|| arg.get_id().to_string(), ToString::to_string);
    let dots = if arg
        .get_num_args()
        .is_some_and(|range| range.max_values() > 1)
    {
        "..."
    } else {
        ""
    };
    match arg.is_required_set() {
        true => format!("<{name}>{dots}"),
        false => format!("[{name}]{dots}"),
    }
}

/// Returns how an argument is written: `-y, --yes` or `--limit <COUNT>`.
fn name_of(arg: &Arg) -> String {
    if arg.is_positional() {
        return usage_of(arg).replace('|', "\\|");
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = short.into_iter().chain(long).collect();
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().unwrap_or_default();
    match values.first().filter(|_| takes_value) {
        Some(value) => format!("{} <{value}>", names.join(", ")),
        None => names.join(", "),
    }
}

fn help_of(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut text = help
        .replace('\n', " ")
        .replace('|', "\\|")
        .replace('<', "&lt;");
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        let _ = write!(text, ": {}", values.join(", "));
    }
    let defaults = arg.get_default_values();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let defaults: Vec<_> = defaults
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    text
}

/// Returns the text after the help: its examples become code.
fn after_help(text: &str) -> String {
    let mut shown = String::from("\n");
    for line in text.lines() {
        match line.strip_prefix("  ") {
            Some(code) => {
                let _ = writeln!(shown, "    {code}");
            }
            None => {
                // A paragraph ends before an example begins.
                let is_title = line.starts_with("Example");
                let _ = writeln!(shown, "{line}{}", if is_title { "\n" } else { "" });
            }
        }
    }
    shown
}
