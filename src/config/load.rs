//! Loads file, environment and flags into one validated [`Config`].

use std::{fs, io, path::PathBuf};

use serde_json::Value;

use super::{
    Config, ConfigError, SettingFault, agents, intake,
    layers::{Layers, find},
    receivers, secrets,
    settings::{LISTS, SETTINGS, Setting},
    show, tokens,
    variables::{Variable, variable},
};
use crate::domain::values::{PLAIN_NAME, is_plain_name, nearest};

/// The file that is read if it exists and no other file was named.
pub const DEFAULT_FILE: &str = "provost.toml";

/// The sources of settings, weakest first. All of them are arguments, so that loading does not depend on the process.
#[derive(Default)]
pub struct Sources {
    /// The file that was named; `None` is [`DEFAULT_FILE`], which need not exist.
    pub file: Option<PathBuf>,
    /// All variables of the process; those that are not Provost's are ignored.
    pub env: Vec<(String, String)>,
    pub flags: Vec<FlagValue>,
}

impl Sources {
    /// Makes a default file that exists now required, so that a later reload does not silently run without it.
    pub fn keep_file(&mut self) {
        if self.file.is_none() && fs::exists(DEFAULT_FILE).unwrap_or(false) {
            self.file = Some(DEFAULT_FILE.into());
        }
    }
}

/// A setting that was given on the command line.
pub struct FlagValue {
    pub flag: &'static str,
    pub setting: &'static str,
    pub value: String,
}

/// Loads the settings from all sources.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    read(sources).map(|(config, _)| config)
}

/// Returns the variables that have Provost's prefix but are not settings, for a warning.
pub fn ignored_variables(env: &[(String, String)]) -> Vec<&str> {
    env.iter()
        .filter(|(name, value)| variable(name, value) == Variable::NoSetting)
        .map(|(name, _)| name.as_str())
        .collect()
}

/// Returns every setting in the form of the file, each with its source; secrets are hidden.
pub fn describe(sources: &Sources) -> Result<String, ConfigError> {
    let (config, layers) = read(sources)?;
    let all = serde_json::to_value(&config).unwrap_or_default();
    let paths = SETTINGS.iter().map(|setting| setting.path).chain(LISTS);
    let lines = paths.map(|path| match find(&all, path) {
        None | Some(Value::Null) => format!("# {path} is not set\n"),
        Some(value) => format!(
            "{path} = {}  # {}\n",
            show::toml(value),
            layers.origin(path).unwrap_or("default")
        ),
    });
    let ignored = ignored_variables(&sources.env).into_iter();
    let ignored =
        ignored.map(|name| format!("# environment {name} is not a setting and is ignored\n"));
    Ok(lines.chain(ignored).collect())
}

/// A setting as it is in force.
#[derive(Clone, PartialEq, Debug)]
pub struct SettingInForce {
    pub name: &'static str,
    /// The value in the form of the file, with secrets hidden. None: it is not set.
    pub value: Option<String>,
    pub is_default: bool,
}

/// Returns every setting with its value, in the order of the documentation.
pub fn in_force(config: &Config) -> Vec<SettingInForce> {
    let [all, defaults] =
        [config, &Config::default()].map(|config| serde_json::to_value(config).unwrap_or_default());
    let paths = SETTINGS.iter().map(|setting| setting.path).chain(LISTS);
    let settings = paths.map(|name| {
        let value = find(&all, name).filter(|value| !value.is_null());
        let default = find(&defaults, name).filter(|value| !value.is_null());
        SettingInForce {
            name,
            value: value.map(show::toml),
            is_default: value == default,
        }
    });
    settings.collect()
}

fn read(sources: &Sources) -> Result<(Config, Layers), ConfigError> {
    let mut faults = Vec::new();
    let layers = layers(sources, &mut faults)?;
    let merged = layers.values();

    find_unknown(&layers, "", merged, &mut faults);
    for setting in &SETTINGS {
        if let Some(value) = find(merged, setting.path)
            && !setting.rule.accepts(value)
        {
            faults.push(wrong(&layers, setting, value));
        }
    }
    if !faults.is_empty() {
        return Err(ConfigError::Settings(faults));
    }

    let config: Config = serde_path_to_error::deserialize(merged)
        .map_err(|error| ConfigError::Settings(vec![malformed(&layers, &error)]))?;
    faults.extend(contradictions(&config, &layers));
    if faults.is_empty() {
        Ok((config, layers))
    } else {
        Err(ConfigError::Settings(faults))
    }
}

/// Merges the values of all sources. The defaults are not a layer: [`Config`] has them where no layer has a value.
fn layers(sources: &Sources, faults: &mut Vec<SettingFault>) -> Result<Layers, ConfigError> {
    let mut layers = Layers::default();
    if let Some((origin, values)) = file(sources)? {
        layers.set(&origin, "", values);
    }
    for (name, value) in &sources.env {
        let origin = format!("environment {name}");
        let path = match variable(name, value) {
            Variable::Setting(path) => path,
            Variable::Misspelt { path, meant } => {
                faults.push(misspelt(path, origin, meant));
                continue;
            }
            Variable::NoSetting | Variable::Unrelated => continue,
        };
        match value_of_variable(&path, value) {
            Some(value) => layers.set(&origin, &path, value),
            None => faults.push(SettingFault {
                setting: path,
                origin,
                found: tokens::HIDDEN.to_owned(),
                allowed: "name:role:token, several joined by commas; role is submit, read, operate or admin"
                    .to_owned(),
            }),
        }
    }
    for FlagValue {
        flag,
        setting,
        value,
    } in &sources.flags
    {
        let value = typed(setting, value);
        layers.set(&format!("flag {flag}"), setting, value);
    }
    Ok(layers)
}

/// Returns the values of the file, with its name for error reports.
fn file(sources: &Sources) -> Result<Option<(String, Value)>, ConfigError> {
    let path = sources.file.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && sources.file.is_none() => {
            return Ok(None);
        }
        Err(error) => {
            let reason = error.to_string();
            return Err(ConfigError::Unreadable { path, reason });
        }
    };
    // The parser's own report quotes the line, which may contain a secret: only its message is kept.
    let values = toml::from_str(&text).map_err(|error| ConfigError::NotToml {
        path: path.clone(),
        line: 1 + error.span().map_or(0, |span| {
            text.bytes()
                .take(span.start)
                .filter(|b| *b == b'\n')
                .count()
        }),
        reason: error.message().to_owned(),
    })?;
    let origin = format!("file {}", path.display());
    Ok(Some((origin, values)))
}

fn misspelt(path: String, origin: String, meant: Option<String>) -> SettingFault {
    let table = path.split_once('.').map_or("", |(table, _)| table);
    let inside = match SETTINGS
        .iter()
        .any(|known| known.path.starts_with(&format!("{table}.")))
    {
        true => format!("{table}."),
        false => String::new(),
    };
    SettingFault {
        setting: path,
        origin,
        found: does_not_exist(meant.as_deref()),
        allowed: names_inside(&inside).join(", "),
    }
}

fn does_not_exist(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("an unknown setting; did you mean {meant}?"),
        None => "an unknown setting".to_owned(),
    }
}

fn value_of_variable(path: &str, text: &str) -> Option<Value> {
    if path == "tokens" {
        tokens::from_env(text)
    } else {
        Some(typed(path, text))
    }
}

/// Parses a text from the environment or a flag: a number, a switch, a list as JSON or in the form
/// `[{name="shop",url="…"}]` or `[10.0.0.0/8, db.local]`, or the text itself.
fn typed(path: &str, text: &str) -> Value {
    let setting = SETTINGS.iter().find(|setting| setting.path == path);
    if setting.is_some_and(|setting| setting.rule.is_text()) {
        return Value::from(text);
    }
    let trimmed = text.trim();
    if trimmed.starts_with(['[', '{'])
        && let Ok(value) = serde_json::from_str(text)
    {
        return value;
    }
    match trimmed.parse::<toml::Value>() {
        // No setting has a date as its value.
        Ok(toml::Value::Datetime(_)) | Err(_) => {}
        Ok(value) => return serde_json::to_value(value).unwrap_or_default(),
    }
    match trimmed
        .strip_prefix('[')
        .and_then(|items| items.strip_suffix(']'))
    {
        Some(items) if !items.contains(['"', '\'', '[', '{']) => items
            .split(',')
            .map(|item| Value::from(item.trim()))
            .collect(),
        _ => Value::from(text),
    }
}

fn find_unknown(layers: &Layers, prefix: &str, table: &Value, faults: &mut Vec<SettingFault>) {
    for (name, value) in table.as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        if SETTINGS.iter().any(|setting| setting.path == path) || LISTS.contains(&path.as_str()) {
            continue;
        }
        let below = format!("{path}.");
        let is_table = SETTINGS
            .iter()
            .any(|setting| setting.path.starts_with(&below));
        if is_table && value.as_object().is_some() {
            find_unknown(layers, &below, value, faults);
            continue;
        }
        let (found, allowed) = if is_table {
            let found = "one value, but a table is expected".to_owned();
            (found, names_inside(&below))
        } else {
            let known = names_inside(prefix);
            let meant = nearest(name, known.iter().copied());
            (does_not_exist(meant), known)
        };
        faults.push(SettingFault {
            origin: origin(layers, &path),
            setting: path,
            found,
            allowed: allowed.join(", "),
        });
    }
}

fn names_inside(prefix: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for path in SETTINGS.iter().map(|setting| setting.path).chain(LISTS) {
        if let Some(rest) = path.strip_prefix(prefix) {
            let name = rest.split('.').next().unwrap_or(rest);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn wrong(layers: &Layers, setting: &Setting, value: &Value) -> SettingFault {
    SettingFault {
        setting: setting.path.to_owned(),
        origin: origin(layers, setting.path),
        found: show::found(setting.path, value),
        allowed: setting.rule.to_string(),
    }
}

/// Returns the fault of an entry in a list: every other setting has been checked by its rule before.
fn malformed(
    layers: &Layers,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> SettingFault {
    let parts = error.path().iter().map(ToString::to_string);
    let parts = parts.map(|part| part.trim_matches(['[', ']']).to_owned());
    let mut path = parts.collect::<Vec<_>>().join(".");
    let reason = error.inner().to_string();
    let mut names = reason.split('`').skip(1).step_by(2);
    let list = path.split('.').next();
    let (found, allowed) = if reason.starts_with("unknown field") {
        let unknown = names.next().unwrap_or_default();
        let known: Vec<_> = names.collect();
        let meant = nearest(unknown, known.iter().copied());
        (does_not_exist(meant), known.join(", "))
    } else if reason.starts_with("missing field") {
        path = format!("{path}.{}", names.next().unwrap_or_default());
        ("nothing".to_owned(), "this setting is required".to_owned())
    } else if list == Some("tokens") {
        (tokens::HIDDEN.to_owned(), tokens::ALLOWED.to_owned())
    } else if let Some(list @ ("receivers" | "alert_webhooks")) = list {
        (tokens::HIDDEN.to_owned(), receivers::allowed(list))
    } else if list == Some("intake") {
        (tokens::HIDDEN.to_owned(), intake::allowed())
    } else {
        let value = find(layers.values(), &path).map(|value| match value {
            Value::String(_) if secrets::names_secrets(&path) => tokens::HIDDEN.to_owned(),
            // A list or a table may contain a secret, so its content is not shown.
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "a table".to_owned(),
            value => show::found(&path, value),
        });
        let allowed = reason
            .split_once(", expected ")
            .map(|(_, expected)| expected.to_owned());
        (
            value.unwrap_or_else(|| "another value".to_owned()),
            allowed.unwrap_or(reason),
        )
    };
    SettingFault {
        origin: origin(layers, &path),
        setting: path,
        found,
        allowed,
    }
}

/// The most different retention times. Each of them is a scan over all tasks that are kept longer.
const MOST_PERIODS: usize = 32;

/// Returns the faults of settings that are each valid alone.
fn contradictions(config: &Config, layers: &Layers) -> Vec<SettingFault> {
    let mut faults: Vec<SettingFault> = agents::faults(&config.agents)
        .into_iter()
        .map(|fault| {
            let setting = format!("agents.{}", fault.path);
            SettingFault {
                origin: origin(layers, &setting),
                setting,
                found: fault.found,
                allowed: fault.allowed,
            }
        })
        .collect();
    let of_lists = receivers::faults(&config.receivers, &config.alert_webhooks).into_iter();
    let of_lists = of_lists.chain(intake::faults(&config.broker, &config.intake));
    let of_lists = of_lists.chain(secrets::faults(&config.secrets));
    let of_lists = of_lists.chain(secrets::faults_of_agents(&config.secrets, &config.agents));
    for (setting, found, allowed) in of_lists {
        faults.push(SettingFault {
            origin: origin(layers, &setting),
            setting,
            found,
            allowed,
        });
    }
    for name in config.retention.workflows.keys() {
        if !is_plain_name(name.as_str()) {
            let setting = format!("retention.workflows.{name}");
            faults.push(SettingFault {
                origin: origin(layers, &setting),
                setting,
                found: format!("{:?}", name.as_str()),
                allowed: format!("the name of a workflow: {PLAIN_NAME}"),
            });
        }
    }
    if config.retention.rules().periods().len() > MOST_PERIODS {
        let periods = config.retention.rules().periods().len();
        faults.push(SettingFault {
            setting: "retention.workflows".to_owned(),
            origin: origin(layers, "retention.workflows"),
            found: format!("{periods} different lengths of time"),
            allowed: format!("at most {MOST_PERIODS} different ones: each needs a scan of its own"),
        });
    }
    if config.courier.retry_max < config.courier.retry_initial {
        faults.push(SettingFault {
            setting: "courier.retry_max".to_owned(),
            origin: origin(layers, "courier.retry_max"),
            found: format!("\"{}\"", config.courier.retry_max),
            allowed: format!(
                "at least courier.retry_initial, \"{}\"",
                config.courier.retry_initial
            ),
        });
    }
    if !tokens::are_distinct(&config.tokens) {
        faults.push(SettingFault {
            setting: "tokens".to_owned(),
            origin: origin(layers, "tokens"),
            found: "two tokens with the same name or the same secret".to_owned(),
            allowed: tokens::ALLOWED.to_owned(),
        });
    }
    let (certificate, key) = (&config.tls.certificate, &config.tls.key);
    let has_tls = certificate.is_some() && key.is_some();
    let lonely = match (certificate, key) {
        (Some(_), None) => Some(("tls.key", "tls.certificate")),
        (None, Some(_)) => Some(("tls.certificate", "tls.key")),
        _ => None,
    };
    if let Some((missing, present)) = lonely {
        faults.push(SettingFault {
            setting: missing.to_owned(),
            origin: origin(layers, present),
            found: format!("no value, while {present} is set"),
            allowed: "both of them for TLS, or neither".to_owned(),
        });
    }
    if has_tls && config.listen.tcp().is_none() {
        faults.push(SettingFault {
            setting: "tls.certificate".to_owned(),
            origin: origin(layers, "tls.certificate"),
            found: format!("TLS on \"{}\"", config.listen),
            allowed: "TLS on an address; a Unix socket does not leave the machine and goes without"
                .to_owned(),
        });
    }
    if config.is_open_to_all() {
        faults.push(SettingFault {
            setting: "listen".to_owned(),
            origin: origin(layers, "listen"),
            found: format!("\"{}\", which other machines can reach, and no tokens", config.listen),
            allowed: "a loopback address such as \"127.0.0.1:8080\"; or any address with tokens: [[tokens]] in the file or PROVOST_TOKENS=\"name:role:token\"; or with insecure = true, if something else restricts access to it"
                .to_owned(),
        });
    }
    faults
}

fn origin(layers: &Layers, path: &str) -> String {
    layers.nearest_origin(path).to_owned()
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
