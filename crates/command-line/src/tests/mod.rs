//! Tests of the whole crate.

mod document;
mod requests;
mod stub;

use clap::{Command, Subcommand};

use crate::{AgentCommand, ClientCommand, reference};

fn commands() -> Command {
    let agent = AgentCommand::augment_subcommands(Command::new("agent").about("The agents"));
    ClientCommand::augment_subcommands(Command::new("provost")).subcommand(agent)
}

#[test]
fn the_arguments_are_consistent() {
    commands().debug_assert();
}

#[test]
fn every_command_has_a_section_with_its_arguments_and_examples() {
    let page = reference(commands());
    for expected in [
        "\n## provost retry\n",
        "\n    provost retry [TASK] [STEP] [OPTIONS]\n",
        "| `--cause <FINGERPRINT>` |",
        "\n    provost retry --cause 5f1d0a7c93b2e846 --dry-run\n",
        "\n### provost agent pause\n",
        "| `-w, --wait` |",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}
