//! The secrets of this instance, by name. They come from its environment and from files, which are read again when they
//! have changed, and are nowhere else: no record, message, log or metric contains one.

use std::{collections::HashMap, fmt, time::Duration};

use arc_swap::ArcSwap;
use tokio::{sync::Notify, task::JoinHandle};
use tracing::{error, info, warn};

use super::{
    secret_file::{SecretFault, SecretFileState, SecretText, from_environment, from_file},
    used_secrets::UsedSecrets,
};
use crate::{
    config::SecretConfig,
    domain::{AgentSpec, SecretName, SecretScope, WebAddress},
};

/// How long the files may take to be looked at: a disk or a network may hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// A secret that agents may name.
#[derive(Clone)]
struct KnownSecret {
    config: SecretConfig,
    urls: Vec<WebAddress>,
    value: Result<SecretText, SecretFault>,
    /// The state of its file when it was read.
    state: Option<SecretFileState>,
}

impl KnownSecret {
    fn is_at_the_same_place(&self, other: &SecretConfig) -> bool {
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
    pub(super) used: UsedSecrets,
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretStore")
    }
}

impl SecretStore {
    /// Takes over the list of the configuration. A secret that stays where it is keeps its value; others are read when
    /// they are looked at next.
    pub fn configure(&self, configs: &[SecretConfig]) {
        self.known.rcu(|before| {
            let known = configs.iter().map(|config| {
                let same = before.get(&config.name);
                let same = same.filter(|known| known.is_at_the_same_place(config));
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

    /// Comes back when the list has changed.
    pub async fn reconfigured(&self) {
        self.configured.notified().await;
    }

    /// Whether there is a file, which may change.
    pub fn has_files(&self) -> bool {
        let known = self.known.load();
        known.values().any(|known| known.config.file.is_some())
    }

    /// The secrets that an agent may not use at this instance, or that are not there: the pointer of each, and why.
    pub fn faults(&self, spec: &AgentSpec, is_configured: bool) -> Vec<(String, String)> {
        let known = self.known.load();
        spec.secret_faults(is_configured, |name| {
            known.get(name).map(KnownSecret::scope)
        })
    }

    /// What is wrong with the value of a secret that is configured.
    pub fn fault(&self, name: &SecretName) -> Option<String> {
        let known = self.known.load();
        Some(known.get(name)?.value.as_ref().err()?.to_string())
    }

    pub(super) fn is_unread(&self, name: &SecretName) -> bool {
        let known = self.known.load();
        let known = known.get(name);
        known.is_some_and(|known| known.value == Err(SecretFault::Unread))
    }

    /// The secrets that are configured and have no value, with the reason.
    pub(super) fn without_value(&self) -> Vec<(SecretName, String)> {
        let known = self.known.load();
        let faults = known.values().filter_map(|known| {
            let fault = known.value.as_ref().err()?;
            Some((known.config.name.clone(), fault.to_string()))
        });
        faults.collect()
    }

    pub(super) fn get(&self, name: &SecretName) -> Result<SecretText, String> {
        let known = self.known.load();
        let known = known.get(name);
        let known = known.ok_or_else(|| "it is not configured at this instance".to_owned());
        let value = known.and_then(|known| known.value.clone().map_err(|fault| fault.to_string()));
        value.map_err(|why| format!("the secret `{name}` cannot be used: {why}"))
    }

    /// Whether an address may get a secret, if it is bound to addresses at all.
    pub(super) fn may_go_to(&self, name: &SecretName, address: &WebAddress) -> bool {
        let known = self.known.load();
        known.get(name).is_some_and(|known| match known.scope() {
            SecretScope::ConfiguredAgents => true,
            SecretScope::Urls(urls) => urls.iter().any(|base| address.is_below(base)),
        })
    }

    /// True if the value is another one.
    fn set(
        &self,
        config: &SecretConfig,
        state: Option<SecretFileState>,
        value: &ReadResult,
    ) -> bool {
        let before = self.known.rcu(|before| {
            let mut known = HashMap::clone(before);
            if let Some(known) = known.get_mut(&config.name)
                && known.is_at_the_same_place(config)
            {
                known.value = value.clone();
                known.state = state;
            }
            known
        });
        let before = before.get(&config.name);
        before.is_some_and(|known| known.is_at_the_same_place(config) && known.value != *value)
    }
}

type ReadResult = Result<SecretText, SecretFault>;

/// What a look at one secret has shown.
enum SecretLook {
    /// The file has changed since it was read: it may be half written, so it is read once it is the same twice.
    Changed(SecretFileState),
    Read(Option<SecretFileState>, ReadResult),
}

type Looks = Vec<(SecretConfig, SecretLook)>;

/// Looks at the files again and again.
#[derive(Default)]
pub struct SecretReader {
    /// The states of files that have changed, as they were seen the last time.
    changed: HashMap<SecretName, SecretFileState>,
    /// A look that takes long: there is never more than one, because a hanging disk holds a thread for each.
    under_way: Option<JoinHandle<Looks>>,
}

impl SecretReader {
    /// True if some secret has another value than before. What is known stays in use while the disk hangs.
    pub async fn look(&mut self, secrets: &SecretStore) -> bool {
        let is_new = self.under_way.is_none();
        let mut looking = self.under_way.take().unwrap_or_else(|| {
            let known: Vec<_> = secrets.known.load().values().cloned().collect();
            let changed = std::mem::take(&mut self.changed);
            tokio::task::spawn_blocking(move || look_at_all(&known, &changed))
        });
        let Ok(ended) = tokio::time::timeout(PATIENCE, &mut looking).await else {
            if is_new {
                warn!(
                    after_seconds = PATIENCE.as_secs_f64(),
                    "the files of secrets cannot be read, or take long; what was read of them before stays in use"
                );
            }
            self.under_way = Some(looking);
            return false;
        };
        let mut has_changed = false;
        for (config, look) in ended.unwrap_or_default() {
            match look {
                SecretLook::Changed(state) => {
                    self.changed.insert(config.name, state);
                }
                SecretLook::Read(state, value) => {
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

fn look_at_all(known: &[KnownSecret], changed: &HashMap<SecretName, SecretFileState>) -> Looks {
    let looks = known.iter().filter_map(|known| {
        let look = look_at(known, changed.get(&known.config.name))?;
        Some((known.config.clone(), look))
    });
    looks.collect()
}

/// `None` where nothing is new.
fn look_at(known: &KnownSecret, changed: Option<&SecretFileState>) -> Option<SecretLook> {
    let is_unread = known.value == Err(SecretFault::Unread);
    let Some(path) = &known.config.file else {
        // The environment of a process does not change.
        let name = known.config.env.as_deref().filter(|_| is_unread)?;
        return Some(SecretLook::Read(None, from_environment(name)));
    };
    let found = SecretFileState::at(path);
    if !is_unread && known.state == Some(found) {
        return None;
    }
    if !is_unread && changed != Some(&found) {
        return Some(SecretLook::Changed(found));
    }
    Some(SecretLook::Read(Some(found), from_file(path)))
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
        assert!(reader.look(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-first-one".to_owned()));
        assert!(!reader.look(&secrets).await);

        // As an editor writes it: empty, then half, then whole.
        for text in ["", "the-sec", "the-second-one"] {
            put(&file, text);
            assert!(!reader.look(&secrets).await);
            assert_eq!(value(&secrets), Ok("the-first-one".to_owned()), "{text}");
        }
        assert!(reader.look(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-second-one".to_owned()));

        fs::remove_file(&file).unwrap();
        assert!(!reader.look(&secrets).await);
        assert!(reader.look(&secrets).await);
        let gone = value(&secrets).unwrap_err();
        assert!(gone.contains("does not exist"), "{gone}");
        assert!(!gone.contains(folder.path().to_str().unwrap()), "{gone}");

        put(&file, "the-second-one");
        assert!(!reader.look(&secrets).await);
        assert!(reader.look(&secrets).await);
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
        assert!(reader.look(&secrets).await);
        let moved = SecretConfig {
            urls: Vec::new(),
            ..config("token", &file)
        };
        secrets.configure(&[moved]);
        assert_eq!(value(&secrets), Ok("the-first-one".to_owned()));
        secrets.configure(&[config("token", &other)]);
        assert!(value(&secrets).is_err(), "it is elsewhere now");
        assert!(reader.look(&secrets).await);
        assert_eq!(value(&secrets), Ok("the-other-one".to_owned()));
        secrets.configure(&[]);
        assert!(value(&secrets).unwrap_err().contains("not configured"));
    }
}
