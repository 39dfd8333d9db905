//! Reports the secrets that this instance cannot use, so that an alert is open for each, and counts them for the
//! metrics. The instance that supervises deletes the reports of instances that are gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use metrics::{Gauge, describe_gauge, gauge};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    clock::{self, Instant},
    domain::{
        agent::{CONFIRM_SECRETS_EVERY, SECRET_ALERT_AFTER, SecretSubject, UnusableSecrets},
        values::InstanceId,
    },
    instance::LocalLease,
    store::{Store, StoreError},
};

const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The interval at which the supervising instance looks for outdated reports.
const CHECK_RECORD_EVERY: Duration = Duration::from_secs(5);
/// The time without an interruption after which reports count as outdated. After an outage of the store or a
/// suspension of this instance, the others need this time to repeat their reports.
const PATIENCE: Duration = Duration::from_secs(20);

pub(in crate::service) struct SecretAlerts {
    agents: Arc<Agents>,
    store: Store,
    instance: InstanceId,
    local_lease: Arc<LocalLease>,
    gauge: Gauge,
    steady: SteadySecrets,
    /// The last report of this instance and its time; unknown after the start.
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
            looked_at_record: clock::instant(),
        }
    }

    async fn report(&mut self, found: UnusableSecrets, now: Instant) -> Result<(), StoreError> {
        let is_known = match &self.reported {
            // An earlier process with the same id may have left a report.
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
        let is_due = now.duration_since(self.looked_at_record) >= CHECK_RECORD_EVERY;
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
        CHECK_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let now = clock::instant();
        let found = self.agents.unusable_secrets();
        self.gauge
            .set(f64::from(u32::try_from(found.len()).unwrap_or(u32::MAX)));
        let is_started = self.steady.update(found, now);
        // An instance that is held makes no calls, so it does not report.
        if is_started && self.local_lease.may_claim(now) {
            self.report(self.steady.lasting.clone(), now).await?;
        }
        self.forget_stale(now).await?;
        Ok(NextRound::AfterInterval)
    }
}

/// The faults that have lasted for a while. A file that is being replaced may be missing for a moment.
#[derive(Default)]
struct SteadySecrets {
    since_start: Option<Instant>,
    lasting: UnusableSecrets,
    /// The time since which the state of a subject has differed from `lasting`.
    changing: BTreeMap<SecretSubject, Instant>,
}

impl SteadySecrets {
    /// Updates the faults. Returns false while the time since the start is too short to know them.
    fn update(&mut self, mut found: UnusableSecrets, now: Instant) -> bool {
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
    use crate::domain::{agent::UnusableSecret, values::SecretName};

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
        let start = clock::instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut steady = SteadySecrets::default();
        let gone = unusable(&[("token", "gone")]);
        // The fault comes and goes, and never lasts long.
        for second in 0..60 {
            let found = if second % 9 == 0 {
                UnusableSecrets::new()
            } else {
                gone.clone()
            };
            let is_started = steady.update(found, at(second));
            assert_eq!(is_started, second >= 10);
            assert!(steady.lasting.is_empty(), "{second}");
        }
        for second in 60..64 {
            steady.update(gone.clone(), at(second));
        }
        assert!(steady.lasting.is_empty());
        steady.update(gone.clone(), at(66));
        assert_eq!(steady.lasting, gone);
        // A new reason counts at once; a new secret only after a while.
        let open = unusable(&[("token", "open to all"), ("other", "gone")]);
        steady.update(open.clone(), at(67));
        assert_eq!(steady.lasting, unusable(&[("token", "open to all")]));
        steady.update(open.clone(), at(77));
        assert_eq!(steady.lasting, open);
        // The secret can be used again, but not for long.
        steady.update(UnusableSecrets::new(), at(78));
        steady.update(open.clone(), at(82));
        steady.update(UnusableSecrets::new(), at(89));
        assert_eq!(steady.lasting, open);
        steady.update(UnusableSecrets::new(), at(99));
        assert!(steady.lasting.is_empty() && steady.changing.is_empty());
    }
}
