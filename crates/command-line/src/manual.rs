//! Man pages, made from the arguments.

use std::{fs, path::Path};

use clap::{Command, ValueEnum};
use clap_mangen::Man;

use crate::outcome::ClientError;

/// A shell that completes commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

impl Shell {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::Powershell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Writes a page for the program and one for each of its commands to a folder. Returns their names, in order.
pub fn write_pages(command: Command, folder: &Path) -> Result<Vec<String>, ClientError> {
    let failed = |error| ClientError::file(folder, error);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut names = Vec::new();
    let mut command = command;
    command.build();
    write_page(&command, "provost", folder, &mut names)?;
    names.sort();
    Ok(names)
}

fn write_page(
    command: &Command,
    name: &str,
    folder: &Path,
    names: &mut Vec<String>,
) -> Result<(), ClientError> {
    let file = format!("{name}.1");
    let mut page = Vec::new();
    // The name of a page has hyphens, as `git-log` has.
    let titled = command.clone().name(name.to_owned());
    let failed = |error| ClientError::file(folder.join(&file), error);
    Man::new(titled)
        .manual("Provost")
        .render(&mut page)
        .map_err(failed)?;
    fs::write(folder.join(&file), page).map_err(failed)?;
    names.push(file);
    let commands = command
        .get_subcommands()
        .filter(|command| command.get_name() != "help");
    for below in commands.filter(|command| !command.is_hide_set()) {
        write_page(
            below,
            &format!("{name}-{}", below.get_name()),
            folder,
            names,
        )?;
    }
    Ok(())
}
