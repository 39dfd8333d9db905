//! Reports the secrets that this instance cannot use, so that an alert is open for each, and counts them for the metrics.
//! The instance that supervises forgets what others said that are gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use metrics::{Gauge, describe_gauge, gauge};
use tokio::time::Instant;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    domain::{
        CONFIRM_SECRETS_EVERY, InstanceId, SECRET_ALERT_AFTER, SecretSubject, UnusableSecrets,
    },
    instance::LocalLease,
    store::{Store, StoreError},
};

const LOOK: Duration = Duration::from_secs(1);
/// How often the instance that supervises looks at the record.
const LOOK_AT_RECORD: Duration = Duration::from_secs(5);
/// Where the store could not be used, or this instance was suspended, the others get so long to say again what they
/// cannot use.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct SecretAlerts {
    agents: Arc<Agents>,
    store: Store,
    instance: InstanceId,
    local_lease: Arc<LocalLease>,
    gauge: Gauge,
    steady: SteadySecrets,
    /// What the record has of this instance, and since when; unknown after the start.
    reported: Option<(UnusableSecrets, Instant)>,
    looked_at_record: Instant,
}

impl SecretAlerts {
    pub fn new(
        agents: Arc<Agents>,
        store: Store,
        instance: InstanceId,
        local_lease: Arc<LocalLease>,
    ) -> Self {
        describe_gauge!(
            "provost_secrets_unusable",
            "Secrets that this instance cannot use, and agents that cannot use theirs"
        );
        Self {
            agents,
            store,
            instance,
            local_lease,
            gauge: gauge!("provost_secrets_unusable"),
            steady: SteadySecrets::default(),
            reported: None,
            looked_at_record: Instant::now(),
        }
    }

    async fn report(&mut self, found: UnusableSecrets, now: Instant) -> Result<(), StoreError> {
        let is_known = match &self.reported {
            // A process that had the same id may have left something.
            None => false,
            Some((known, at)) => {
                let is_recent = now.duration_since(*at) < CONFIRM_SECRETS_EVERY;
                *known == found && (found.is_empty() || is_recent)
            }
        };
        if !is_known {
            let report = self
                .store
                .report_secrets(self.instance.clone(), found.clone());
            report.await?;
            self.reported = Some((found, now));
        }
        Ok(())
    }

    async fn forget_stale(&mut self, now: Instant) -> Result<(), StoreError> {
        let then = now.checked_sub(PATIENCE).unwrap_or(now);
        let is_due = now.duration_since(self.looked_at_record) >= LOOK_AT_RECORD;
        let supervises = self.local_lease.term(now).is_some();
        if is_due && supervises && self.local_lease.was_alive_since(then, now) {
            self.looked_at_record = now;
            if self.store.housekeeping.has_stale_secret_reports().await? {
                self.store.forget_stale_secret_reports().await?;
            }
        }
        Ok(())
    }
}

impl PeriodicLoop for SecretAlerts {
    const NAME: &'static str = "secret alerts";

    fn interval(&self) -> Duration {
        LOOK
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let now = Instant::now();
        let found = self.agents.unusable_secrets();
        self.gauge
            .set(f64::from(u32::try_from(found.len()).unwrap_or(u32::MAX)));
        let is_started = self.steady.look(found, now);
        // One that is held makes no calls, with secrets or without.
        if is_started && self.local_lease.may_claim(now) {
            self.report(self.steady.lasting.clone(), now).await?;
        }
        self.forget_stale(now).await?;
        Ok(NextRound::AfterInterval)
    }
}

/// What has been so for a while: a file that is replaced may be missing for a moment.
#[derive(Default)]
struct SteadySecrets {
    since_start: Option<Instant>,
    lasting: UnusableSecrets,
    /// Since when the state of a subject has been another.
    changing: BTreeMap<SecretSubject, Instant>,
}

impl SteadySecrets {
    /// False until so much time has passed since the start that something is known.
    fn look(&mut self, mut found: UnusableSecrets, now: Instant) -> bool {
        let start = *self.since_start.get_or_insert(now);
        let lasting = std::mem::take(&mut self.lasting);
        let is_other =
            |subject: &SecretSubject| found.contains_key(subject) != lasting.contains_key(subject);
        self.changing.retain(|subject, _| is_other(subject));
        let subjects: Vec<_> = found.keys().chain(lasting.keys()).cloned().collect();
        for subject in subjects {
            if found.contains_key(&subject) == lasting.contains_key(&subject) {
                continue;
            }
            let since = *self.changing.entry(subject.clone()).or_insert(now);
            if now.duration_since(since) >= SECRET_ALERT_AFTER {
                self.changing.remove(&subject);
            } else if let Some(fault) = lasting.get(&subject) {
                found.insert(subject, fault.clone());
            } else {
                found.remove(&subject);
            }
        }
        self.lasting = found;
        now.duration_since(start) >= SECRET_ALERT_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{SecretName, UnusableSecret};

    fn unusable(reasons: &[(&str, &str)]) -> UnusableSecrets {
        let found = reasons.iter().map(|(name, reason)| {
            let fault = UnusableSecret {
                reason: (*reason).to_owned(),
                ..UnusableSecret::default()
            };
            (SecretSubject::Secret(SecretName::new(*name)), fault)
        });
        found.collect()
    }

    #[test]
    fn what_lasts_counts_and_what_flaps_does_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steady = SteadySecrets::default();
        let gone = unusable(&[("token", "gone")]);
        // It comes and goes, and never stays away for long.
        for second in 0..60 {
            let found = if second % 9 == 0 {
                UnusableSecrets::new()
            } else {
                gone.clone()
            };
            let is_started = steady.look(found, at(second));
            assert_eq!(is_started, second >= 10);
            assert!(steady.lasting.is_empty(), "{second}");
        }
        for second in 60..64 {
            steady.look(gone.clone(), at(second));
        }
        assert!(steady.lasting.is_empty());
        steady.look(gone.clone(), at(66));
        assert_eq!(steady.lasting, gone);
        // Another reason, or another secret, is not waited for, or is.
        let open = unusable(&[("token", "open to all"), ("other", "gone")]);
        steady.look(open.clone(), at(67));
        assert_eq!(steady.lasting, unusable(&[("token", "open to all")]));
        steady.look(open.clone(), at(77));
        assert_eq!(steady.lasting, open);
        // It works again, but not for long.
        steady.look(UnusableSecrets::new(), at(78));
        steady.look(open.clone(), at(82));
        steady.look(UnusableSecrets::new(), at(89));
        assert_eq!(steady.lasting, open);
        steady.look(UnusableSecrets::new(), at(99));
        assert!(steady.lasting.is_empty() && steady.changing.is_empty());
    }
}
