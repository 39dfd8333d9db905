//! Contexts: the servers that a person operates, in a file, each with the place of its token.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use crate::outcome::ClientError;

/// The server that is asked if nothing names one.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// One server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A command of the shell that prints the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_command: Option<String>,
    /// A variable of the environment that has the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// Certificates in PEM that sign that of the server, beside those that the machine trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

/// The file of contexts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The name of the context that is used if nothing names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// The variables of the environment, which tests replace.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the variables of this process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Contexts {
    /// Returns the path of the file, if the environment says where the files of this person are.
    pub fn path(variables: Variables<'_>) -> Option<PathBuf> {
        if let Some(path) = variables("PROVOST_CONTEXTS") {
            return Some(path.into());
        }
        let folder = match variables("XDG_CONFIG_HOME") {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(variables("HOME")?).join(".config"),
        };
        Some(folder.join("provost").join("contexts.toml"))
    }

    pub fn of_this_person() -> Result<Self, ClientError> {
        match Self::path(&variable) {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    /// Reads the file. One that does not exist has no contexts.
    pub fn read(path: &Path) -> Result<Self, ClientError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(ClientError::file(path, error)),
        };
        toml::from_str(&text).map_err(|error| {
            ClientError::usage(format!(
                "{}: {}",
                path.display(),
                error.to_string().trim_end()
            ))
        })
    }

    /// Writes the file, which only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), ClientError> {
        let text = toml::to_string(self).map_err(|error| ClientError::usage(error.to_string()))?;
        write_secret(path, &text)
    }

    /// Returns the context with this name.
    pub fn find(&self, name: &str) -> Result<&Context, ClientError> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            ClientError::usage(match known.is_empty() {
                true => format!(
                    "the context {name} does not exist: provost login {name} --url … makes it"
                ),
                false => format!(
                    "the context {name} does not exist; there are {}",
                    known.join(", ")
                ),
            })
        })
    }
}

/// Writes a file that only its owner can read, and the folder that it is in.
pub fn write_secret(path: &Path, text: &str) -> Result<(), ClientError> {
    let failed = |error| ClientError::file(path, error);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // The new file takes the place of the old one as a whole, so that no reader sees half of it.
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .map_err(failed)?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

impl Context {
    /// Returns the token, if the context has one.
    pub fn token(&self, variables: Variables<'_>) -> Result<Option<String>, ClientError> {
        if let Some(path) = &self.token_file {
            return read_token(path).map(Some);
        }
        if let Some(command) = &self.token_command {
            return run_token_command(command).map(Some);
        }
        let Some(name) = &self.token_env else {
            return Ok(None);
        };
        let token = variables(name);
        let missing = || {
            ClientError::usage(format!(
                "the variable {name}, which the context names for its token, is not set"
            ))
        };
        token.map(Some).ok_or_else(missing)
    }
}

pub fn read_token(path: &Path) -> Result<String, ClientError> {
    let text = fs::read_to_string(path).map_err(|error| ClientError::file(path, error))?;
    match text.trim() {
        "" => Err(ClientError::usage(format!(
            "{} is empty: it should have a token",
            path.display()
        ))),
        token => Ok(token.to_owned()),
    }
}

fn run_token_command(command: &str) -> Result<String, ClientError> {
    let failed = |cause: String| {
        ClientError::usage(format!(
            "the command of the token failed: {command}: {cause}"
        ))
    };
    let run = Command::new("sh").arg("-c").arg(command).output();
    let run = run.map_err(|error| failed(error.to_string()))?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr).trim().to_owned();
        return Err(failed(match said.is_empty() {
            true => run.status.to_string(),
            false => said,
        }));
    }
    match String::from_utf8_lossy(&run.stdout).trim() {
        "" => Err(failed("it printed no token".to_owned())),
        token => Ok(token.to_owned()),
    }
}

/// The server to use, with its token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub url: String,
    pub token: Option<String>,
    pub ca: Option<PathBuf>,
}

/// The arguments that choose a server.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub server: Option<String>,
    pub context: Option<String>,
    pub token_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
}

impl Choice {
    /// Returns the server that this machine and the person mean. A file of contexts that is broken is no reason to refuse a
    /// command that does not need it.
    pub fn resolve(self) -> Result<Target, ClientError> {
        let is_named_elsewhere =
            self.server.is_some() || (self.context.is_none() && variable("PROVOST_URL").is_some());
        let contexts = match is_named_elsewhere {
            true => Contexts::default(),
            false => Contexts::of_this_person()?,
        };
        self.target(&contexts, &variable)
    }

    /// Returns the server: that of the arguments, of the environment, of the current context, or the default.
    pub fn target(
        self,
        contexts: &Contexts,
        variables: Variables<'_>,
    ) -> Result<Target, ClientError> {
        let names_nothing = self.server.is_none() && variables("PROVOST_URL").is_none();
        // A context that was named is wanted with all that it has. An address from elsewhere gets no token of a
        // context, which could be another server's.
        let named = match (&self.server, self.context) {
            (Some(_), _) => None,
            (None, Some(context)) => Some(context),
            (None, None) if variables("PROVOST_URL").is_some() => None,
            (None, None) => variables("PROVOST_CONTEXT").or_else(|| contexts.current.clone()),
        };
        let context = match named {
            Some(name) => contexts.find(&name)?.clone(),
            // Another server than the person means could be the one that runs on this machine.
            None if names_nothing && !contexts.contexts.is_empty() => {
                let known: Vec<_> = contexts.contexts.keys().map(String::as_str).collect();
                return Err(ClientError::usage(format!(
                    "no context is current: provost context use NAME makes one of {} the current one, and --server names a server",
                    known.join(", ")
                )));
            }
            None => Context {
                url: self
                    .server
                    .or_else(|| variables("PROVOST_URL"))
                    .unwrap_or_else(|| DEFAULT_SERVER.to_owned()),
                ..Context::default()
            },
        };
        let token = match (&self.token_file, variables("PROVOST_TOKEN")) {
            (Some(path), _) => Some(read_token(path)?),
            (None, Some(token)) => Some(token),
            (None, None) => context.token(variables)?,
        };
        Ok(Target {
            url: context.url,
            token,
            ca: self.ca.or(context.ca),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let text = r#"
            current = "prod"
            [contexts.prod]
            url = "https://provost.example"
            token_command = "echo secret-of-prod"
            [contexts.dev]
            url = "unix:/run/provost.sock"
            token_env = "DEV_TOKEN"
        "#;
        toml::from_str(text).unwrap()
    }

    fn target(choice: Choice, env: &[(&str, &str)]) -> Result<Target, ClientError> {
        let env: BTreeMap<_, _> = env
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        choice.target(&contexts(), &|name| env.get(name).cloned())
    }

    #[test]
    fn the_argument_is_stronger_than_the_environment_and_this_than_the_file() {
        let server = |server: &str| Choice {
            server: Some(server.to_owned()),
            ..Choice::default()
        };
        let context = |name: &str| Choice {
            context: Some(name.to_owned()),
            ..Choice::default()
        };
        let current = target(Choice::default(), &[]).unwrap();
        assert_eq!(current.url, "https://provost.example");
        assert_eq!(current.token.as_deref(), Some("secret-of-prod"));
        let env = [("PROVOST_URL", "http://env"), ("DEV_TOKEN", "t-dev")];
        assert_eq!(target(Choice::default(), &env).unwrap().url, "http://env");
        assert_eq!(
            target(server("http://flag"), &env).unwrap().url,
            "http://flag"
        );
        let dev = target(context("dev"), &env).unwrap();
        assert_eq!(
            (dev.url.as_str(), dev.token.as_deref()),
            ("unix:/run/provost.sock", Some("t-dev"))
        );
        let by_env = target(
            Choice::default(),
            &[("PROVOST_CONTEXT", "dev"), ("DEV_TOKEN", "x")],
        );
        assert_eq!(by_env.unwrap().url, "unix:/run/provost.sock");
    }

    #[test]
    fn a_server_from_elsewhere_gets_no_token_of_a_context() {
        let env = [("PROVOST_URL", "http://env")];
        assert_eq!(target(Choice::default(), &env).unwrap().token, None);
        let env = [("PROVOST_URL", "http://env"), ("PROVOST_TOKEN", "t")];
        assert_eq!(
            target(Choice::default(), &env).unwrap().token.as_deref(),
            Some("t")
        );
    }

    #[test]
    fn a_missing_token_and_an_unknown_context_are_named() {
        let dev = Choice {
            context: Some("dev".to_owned()),
            ..Choice::default()
        };
        assert!(
            target(dev, &[])
                .unwrap_err()
                .to_string()
                .contains("DEV_TOKEN")
        );
        let other = Choice {
            context: Some("other".to_owned()),
            ..Choice::default()
        };
        assert!(
            target(other, &[])
                .unwrap_err()
                .to_string()
                .contains("there are dev, prod")
        );
    }

    #[test]
    fn contexts_of_which_none_is_current_do_not_mean_this_machine() {
        let mut none = contexts();
        none.current = None;
        let no_variables = |_: &str| None;
        let refused = Choice::default().target(&none, &no_variables);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no context is current"), "{refused}");
        let server = Choice {
            server: Some("http://a".to_owned()),
            ..Choice::default()
        };
        assert_eq!(server.target(&none, &no_variables).unwrap().url, "http://a");
        let empty = Choice::default().target(&Contexts::default(), &no_variables);
        assert_eq!(empty.unwrap().url, DEFAULT_SERVER);
    }

    #[test]
    fn an_empty_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, " \n").unwrap();
        let refused = read_token(&file).unwrap_err().to_string();
        assert!(refused.contains("is empty"), "{refused}");
        let refused = run_token_command("true").unwrap_err().to_string();
        assert!(refused.contains("printed no token"), "{refused}");
    }

    #[test]
    fn the_file_reads_back_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("contexts.toml");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        contexts().write(&path).unwrap();
        assert_eq!(Contexts::read(&path).unwrap(), contexts());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
