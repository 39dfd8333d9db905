//! The secrets of this instance, by name. They come from its environment and from files, which are read again after
//! they have changed. No record, message, log or metric contains a secret.

use std::{collections::HashMap, fmt, time::Duration};

use arc_swap::ArcSwap;
use tokio::{sync::Notify, task::JoinHandle};
use tracing::{error, info, warn};

use super::{
    file::{SecretFault, SecretFileState, SecretText, from_environment, from_file},
    used::UsedSecrets,
};
use crate::{
    blocking, clock,
    config::SecretConfig,
    domain::{
        agent::{AgentSpec, SecretScope},
        values::{SecretName, WebAddress},
    },
};

/// The longest time for the check of the files. A disk or a network file system may hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// A secret that agents may name.
#[derive(Clone)]
struct KnownSecret {
    config: SecretConfig,
    urls: Vec<WebAddress>,
    value: Result<SecretText, SecretFault>,
    /// The state of the file when it was read.
    state: Option<SecretFileState>,
}

impl KnownSecret {
    fn has_same_source(&self, other: &SecretConfig) -> bool {
        self.config.file == other.file && self.config.env == other.env
    }

    fn scope(&self) -> SecretScope<'_> {
        match self.config.urls.is_empty() {
            true => SecretScope::ConfiguredAgents,
            false => SecretScope::Urls(&self.urls),
        }
    }
}

#[derive(Default)]
pub struct SecretStore {
    known: ArcSwap<HashMap<SecretName, KnownSecret>>,
    configured: Notify,
    /// The secrets that agents have sent.
    pub(in crate::agent) used: UsedSecrets,
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretStore")
    }
}

impl SecretStore {
    /// Replaces the list of secrets by that of the configuration. A secret whose file or variable is the same keeps
    /// its value; others are read by the next [`SecretReader::check_all`].
    pub fn configure(&self, configs: &[SecretConfig]) {
        self.known.rcu(|before| {
            let known = configs.iter().map(|config| {
                let same = before.get(&config.name);
                let same = same.filter(|known| known.has_same_source(config));
                let secret = KnownSecret {
                    config: config.clone(),
                    urls: config.addresses(),
                    value: same.map_or(Err(SecretFault::Unread), |known| known.value.clone()),
                    state: same.and_then(|known| known.state),
                };
                (config.name.clone(), secret)
            });
            known.collect::<HashMap<_, _>>()
        });
        self.configured.notify_one();
    }

    /// Returns after the list has changed.
    pub async fn reconfigured(&self) {
        self.configured.notified().await;
    }

    /// True if a secret comes from a file, which may change.
    pub fn has_files(&self) -> bool {
        let known = self.known.load();
        known.values().any(|known| known.config.file.is_some())
    }

    /// Returns the secrets that an agent may not use at this instance, or that are not configured: the JSON pointer of
    /// each, and the reason.
    pub fn faults(&self, spec: &AgentSpec, is_configured: bool) -> Vec<(String, String)> {
        let known = self.known.load();
        spec.secret_faults(is_configured, |name| {
            known.get(name).map(KnownSecret::scope)
        })
    }

    /// Returns the reason why a configured secret has no usable value.
    pub fn fault(&self, name: &SecretName) -> Option<String> {
        let known = self.known.load();
        Some(known.get(name)?.value.as_ref().err()?.to_string())
    }

    pub(in crate::agent) fn is_unread(&self, name: &SecretName) -> bool {
        let known = self.known.load();
        let known = known.get(name);
        known.is_some_and(|known| known.value == Err(SecretFault::Unread))
    }

    /// Returns the configured secrets that have no value, with the reason.
    pub(in crate::agent) fn without_value(&self) -> Vec<(SecretName, String)> {
        let known = self.known.load();
        let faults = known.values().filter_map(|known| {
            let fault = known.value.as_ref().err()?;
            Some((known.config.name.clone(), fault.to_string()))
        });
        faults.collect()
    }

    pub(in crate::agent) fn get(&self, name: &SecretName) -> Result<SecretText, String> {
        let known = self.known.load();
        let known = known.get(name);
        let known = known.ok_or_else(|| "it is not configured at this instance".to_owned());
        let value = known.and_then(|known| known.value.clone().map_err(|fault| fault.to_string()));
        value.map_err(|why| format!("the secret `{name}` cannot be used: {why}"))
    }

    /// True if an address may get a secret: it is below an address that the secret is bound to, or the secret is bound
    /// to none.
    pub(in crate::agent) fn may_go_to(&self, name: &SecretName, address: &WebAddress) -> bool {
        let known = self.known.load();
        known.get(name).is_some_and(|known| match known.scope() {
            SecretScope::ConfiguredAgents => true,
            SecretScope::Urls(urls) => urls.iter().any(|base| address.is_below(base)),
        })
    }

    /// Sets the value of a secret. Returns true if it differs from the previous one.
    fn set(
        &self,
        config: &SecretConfig,
        state: Option<SecretFileState>,
        value: &ReadResult,
    ) -> bool {
        let before = self.known.rcu(|before| {
            let mut known = HashMap::clone(before);
            if let Some(known) = known.get_mut(&config.name)
                && known.has_same_source(config)
            {
                known.value = value.clone();
                known.state = state;
            }
            known
        });
        let before = before.get(&config.name);
        before.is_some_and(|known| known.has_same_source(config) && known.value != *value)
    }
}

type ReadResult = Result<SecretText, SecretFault>;

/// The result of the check of one secret.
enum SecretCheckResult {
    /// The file has changed since it was read. It may be incomplete, so it is read when two checks in a row see the
    /// same state.
    Changed(SecretFileState),
    Read(Option<SecretFileState>, ReadResult),
}

type SecretCheckResults = Vec<(SecretConfig, SecretCheckResult)>;

/// Checks the files of the secrets for changes.
#[derive(Default)]
pub struct SecretReader {
    /// The states of changed files at the last check.
    changed: HashMap<SecretName, SecretFileState>,
    /// A check that has not ended. There is never more than one, because a hanging disk would block a thread for each.
    running: Option<JoinHandle<SecretCheckResults>>,
}

impl SecretReader {
    /// Checks all secrets once. Returns true if the value of a secret has changed. While the disk hangs, the known
    /// values stay in use.
    pub async fn check_all(&mut self, secrets: &SecretStore) -> bool {
        let is_new = self.running.is_none();
        let mut looking = self.running.take().unwrap_or_else(|| {
            let known: Vec<_> = secrets.known.load().values().cloned().collect();
            let changed = std::mem::take(&mut self.changed);
            blocking::spawn(move || check_secrets(&known, &changed))
        });
        let Ok(ended) = clock::timeout(PATIENCE, &mut looking).await else {
            if is_new {
                warn!(
                    after_seconds = PATIENCE.as_secs_f64(),
                    "the files of secrets cannot be read, or take long; what was read of them before stays in use"
                );
            }
            self.running = Some(looking);
            return false;
        };
        let mut has_changed = false;
        for (config, look) in ended.unwrap_or_default() {
            match look {
                SecretCheckResult::Changed(state) => {
                    self.changed.insert(config.name, state);
                }
                SecretCheckResult::Read(state, value) => {
                    if secrets.set(&config, state, &value) {
                        has_changed = true;
                        report(&config, &value);
                    }
                }
            }
        }
        has_changed
    }
}

fn check_secrets(
    known: &[KnownSecret],
    changed: &HashMap<SecretName, SecretFileState>,
) -> SecretCheckResults {
    let looks = known.iter().filter_map(|known| {
        let look = check_secret(known, changed.get(&known.config.name))?;
        Some((known.config.clone(), look))
    });
    looks.collect()
}

/// Returns `None` if the secret has not changed.
fn check_secret(
    known: &KnownSecret,
    changed: Option<&SecretFileState>,
) -> Option<SecretCheckResult> {
    let is_unread = known.value == Err(SecretFault::Unread);
    let Some(path) = &known.config.file else {
        // The environment of a process does not change.
        let name = known.config.env.as_deref().filter(|_| is_unread)?;
        return Some(SecretCheckResult::Read(None, from_environment(name)));
    };
    let found = SecretFileState::at(path);
    if !is_unread && known.state == Some(found) {
        return None;
    }
    if !is_unread && changed != Some(&found) {
        return Some(SecretCheckResult::Changed(found));
    }
    Some(SecretCheckResult::Read(Some(found), from_file(path)))
}

fn report(config: &SecretConfig, value: &ReadResult) {
    let secret = &config.name;
    let source = match (&config.file, &config.env) {
        (Some(file), _) => format!("file {}", file.display()),
        (None, variable) => format!("variable {}", variable.as_deref().unwrap_or_default()),
    };
    match value {
        Ok(_) => info!(%secret, source, "read a secret; calls use it from now on"),
        Err(fault) => error!(
            %secret, source, %fault,
            "a secret cannot be used: calls of agents that name it wait until it is corrected"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use tempfile::TempDir;

    use super::*;

    fn config(name: &str, file: &Path) -> SecretConfig {
        SecretConfig {
            name: SecretName::new(name),
            file: Some(file.to_owned()),
            env: None,
            urls: vec!["https://payments.example".to_owned()],
        }
    }

    fn put(file: &Path, text: &str) {
        fs::write(file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn value(secrets: &SecretStore) -> Result<String, String> {
        let value = secrets.get(&SecretName::new("token"));
        value.map(|text| text.expose().to_owned())
    }

    #[tokio::test]
    async fn a_changed_file_counts_once_it_is_the_same_twice() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("token");
        put(&file, "the-first-one");
        let (secrets, mut reader) = (SecretStore::default(), SecretReader::default());
        secrets.configure(&[config("token", &file)]);
        assert!(value(&secrets).unwrap_err().contains("not been read yet"));
        assert!(reader.check_all(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-first-one".to_owned()));
        assert!(!reader.check_all(&secrets).await);

        // An editor may write the file in this way: empty, partial, complete.
        for text in ["", "the-sec", "the-second-one"] {
            put(&file, text);
            assert!(!reader.check_all(&secrets).await);
            assert_eq!(value(&secrets), Ok("the-first-one".to_owned()), "{text}");
        }
        assert!(reader.check_all(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-second-one".to_owned()));

        fs::remove_file(&file).unwrap();
        assert!(!reader.check_all(&secrets).await);
        assert!(reader.check_all(&secrets).await);
        let gone = value(&secrets).unwrap_err();
        assert!(gone.contains("does not exist"), "{gone}");
        assert!(!gone.contains(folder.path().to_str().unwrap()), "{gone}");

        put(&file, "the-second-one");
        assert!(!reader.check_all(&secrets).await);
        assert!(reader.check_all(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-second-one".to_owned()));
    }

    #[tokio::test]
    async fn a_secret_keeps_its_value_where_only_the_list_changes() {
        let folder = TempDir::new().unwrap();
        let (file, other) = (folder.path().join("token"), folder.path().join("other"));
        put(&file, "the-first-one");
        put(&other, "the-other-one");
        let (secrets, mut reader) = (SecretStore::default(), SecretReader::default());
        secrets.configure(&[config("token", &file)]);
        assert!(reader.check_all(&secrets).await);
        let moved = SecretConfig {
            urls: Vec::new(),
            ..config("token", &file)
        };
        secrets.configure(&[moved]);
        assert_eq!(value(&secrets), Ok("the-first-one".to_owned()));
        secrets.configure(&[config("token", &other)]);
        assert!(value(&secrets).is_err(), "it is elsewhere now");
        assert!(reader.check_all(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-other-one".to_owned()));
        secrets.configure(&[]);
        assert!(value(&secrets).unwrap_err().contains("not configured"));
    }
}
