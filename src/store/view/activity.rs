//! The activity of each hour, by workflow and by agent. The writer only counts, in memory; each process adds its counts to
//! rows of its own every few seconds, and the instance that supervises merges the rows of past hours, and deletes old ones.
//! A process that is killed loses what it counted since: the record of tasks is the truth, and these are statistics.

use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt;
use parking_lot::Mutex;

use crate::domain::{
    task::{Event, StepState},
    values::{AgentName, HOUR_MILLIS, Timestamp},
    view::{AgentActivity, INLINE_TASKS, OTHER_NAMES, WorkflowActivity, counted_name},
};
use crate::{
    chance,
    store::{
        Reader, Store, StoreError, Transaction,
        batch::TaskChange,
        error::corrupt,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// The hours whose activity is on record, apart from the current one.
const KEPT_HOURS: i64 = 8 * 24;
/// The most workflows, and the most agents, that a process counts apart in one hour: those that were counted first.
const MOST_NAMES: usize = 100;
const WORKFLOW: &str = "workflow";
const AGENT: &str = "agent";
/// The rows with the counts of all processes.
const MERGED: &str = "";

/// Relies on the primary key.
const OWN: &str = "SELECT kind, name, counts FROM activity WHERE hour = $1 AND shard = $2";

const PUT: &str = r#"
INSERT INTO activity (hour, shard, kind, name, counts) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (hour, shard, kind, name) DO UPDATE SET counts = excluded.counts"#;

/// Relies on the primary key.
const SINCE: &str = "SELECT hour, kind, name, counts FROM activity WHERE hour >= $1";

/// Relies on activity_by_process.
const UNMERGED: &str =
    "SELECT hour, shard FROM activity WHERE shard <> '' AND hour < $1 ORDER BY hour, shard LIMIT 1";

const FORGET_SHARD: &str = "DELETE FROM activity WHERE hour = $1 AND shard = $2";

/// Relies on the primary key.
const OLD: &str = "SELECT hour, shard FROM activity WHERE hour < $1 ORDER BY hour, shard LIMIT 1";

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 4] = [OWN, SINCE, UNMERGED, OLD];

/// The activity of one hour.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HourActivity {
    pub workflows: BTreeMap<String, WorkflowActivity>,
    pub agents: BTreeMap<String, AgentActivity>,
}

/// Counts what this process does, until it is saved.
pub struct ActivityMeter {
    /// Names the rows of this process.
    shard: String,
    counted: Mutex<BTreeMap<i64, HourActivity>>,
}

impl Default for ActivityMeter {
    fn default() -> Self {
        Self {
            shard: chance::id().simple().to_string(),
            counted: Mutex::default(),
        }
    }
}

impl ActivityMeter {
    /// Counts a change that was saved.
    pub(in crate::store) fn observe(&self, change: &TaskChange) {
        let hour = hour_of(change.at);
        let mut counted = None;
        let mut add = |add: &dyn Fn(&mut HourActivity)| {
            let counted = counted.get_or_insert_with(|| self.counted.lock());
            add(counted.entry(hour).or_default());
        };
        let workflow = change.task.details.workflow.as_ref();
        let workflow = workflow.map_or(INLINE_TASKS, |workflow| workflow.name.as_str());
        let took = change.task.ended_at();
        let took = took.map(|ended| ended.since(change.task.created_at));
        let mut is_resolved = false;
        for event in &change.events {
            let kind = &*event.kind;
            if kind.starts_with("task.") {
                add(&|counts| {
                    named(&mut counts.workflows, workflow, |activity| {
                        if activity.count(kind)
                            && kind == "task.processed"
                            && let Some(took) = took
                        {
                            activity.durations.add(took);
                        }
                    });
                });
            } else if AgentActivity::counts_failure(kind)
                && let Some(agent) = agent_of(change, event)
            {
                add(&|counts| {
                    named(
                        &mut counts.agents,
                        counted_name(agent.as_str()),
                        |activity| {
                            activity.count_failure(kind);
                        },
                    );
                });
            }
            is_resolved |= kind == "step.resolved";
        }
        // A step that an operator has resolved says nothing about its agent.
        if is_resolved {
            return;
        }
        for index in &change.steps {
            let step = change.task.step(*index);
            if let StepState::Processed { at, .. } = &step.state
                && *at == change.at
                && let Some(agent) = change.task.definition(*index).agent()
            {
                let took = step.started_at.map(|started| at.since(started));
                add(&|counts| {
                    named(
                        &mut counts.agents,
                        counted_name(agent.as_str()),
                        |activity| {
                            activity.add_processed(took);
                        },
                    );
                });
            }
        }
    }

    fn take(&self) -> BTreeMap<i64, HourActivity> {
        std::mem::take(&mut *self.counted.lock())
    }

    /// Adds what could not be saved.
    fn put_back(&self, hours: &BTreeMap<i64, HourActivity>) {
        let mut counted = self.counted.lock();
        for (hour, counts) in hours {
            counted.entry(*hour).or_default().merge(counts);
        }
    }
}

/// Returns the agent of the step that an event is about.
fn agent_of<'c>(change: &'c TaskChange, event: &Event) -> Option<&'c AgentName> {
    let mut steps = change
        .steps
        .iter()
        .map(|step| change.task.definition(*step));
    let step = steps.find(|step| event.step.as_ref() == Some(&step.name))?;
    step.agent()
}

/// Changes the counts of a name, or those of all further names once there are many.
fn named<C: Default>(counts: &mut BTreeMap<String, C>, name: &str, change: impl FnOnce(&mut C)) {
    if let Some(counts) = counts.get_mut(name) {
        change(counts);
        return;
    }
    let name = if counts.len() < MOST_NAMES {
        name
    } else {
        OTHER_NAMES
    };
    change(counts.entry(name.to_owned()).or_default());
}

/// The rows of a save or a merge, by kind and name.
type ActivityRows = BTreeMap<(&'static str, String), String>;

impl HourActivity {
    fn merge(&mut self, other: &Self) {
        for (name, counts) in &other.workflows {
            named(&mut self.workflows, name, |known| known.merge(counts));
        }
        for (name, counts) in &other.agents {
            named(&mut self.agents, name, |known| known.merge(counts));
        }
    }

    /// Adds a row. Counts that cannot be read count as empty.
    fn add(&mut self, row: &Row) -> Result<(), StoreError> {
        let (kind, name): (String, String) = (row.get("kind")?, row.get("name")?);
        let counts: String = row.get("counts")?;
        match &*kind {
            WORKFLOW => {
                let counts: WorkflowActivity = serde_json::from_str(&counts).unwrap_or_default();
                named(&mut self.workflows, &name, |known| known.merge(&counts));
            }
            AGENT => {
                let counts: AgentActivity = serde_json::from_str(&counts).unwrap_or_default();
                named(&mut self.agents, &name, |known| known.merge(&counts));
            }
            // A later release counts more.
            _ => {}
        }
        Ok(())
    }

    fn rows(&self) -> Result<ActivityRows, StoreError> {
        let mut rows = ActivityRows::new();
        for (name, counts) in &self.workflows {
            let json = serde_json::to_string(counts).map_err(corrupt)?;
            rows.insert((WORKFLOW, name.clone()), json);
        }
        for (name, counts) in &self.agents {
            let json = serde_json::to_string(counts).map_err(corrupt)?;
            rows.insert((AGENT, name.clone()), json);
        }
        Ok(rows)
    }
}

impl Reader {
    /// Returns the activity of each hour from this one on that has any, by the number of the hour.
    pub async fn activity(&self, from: i64) -> Result<BTreeMap<i64, HourActivity>, StoreError> {
        let mut hours = BTreeMap::<i64, HourActivity>::new();
        for row in self.fetch(Statement::new(SINCE).bind(from)).await? {
            hours.entry(row.get("hour")?).or_default().add(&row)?;
        }
        Ok(hours)
    }

    /// Returns whether activity must be merged or deleted.
    async fn has_old_activity(&self) -> Result<bool, StoreError> {
        let hour = hour_of(self.now().await?);
        for (statement, before) in [(UNMERGED, hour - 1), (OLD, hour - KEPT_HOURS)] {
            let statement = Statement::new(statement).bind(before);
            if self.first(statement, |_: &Row| Ok(())).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Store {
    /// Adds to the record what this process has counted since the last time.
    pub async fn save_activity(&self) -> Result<(), StoreError> {
        let counted = self.activity.take();
        if counted.is_empty() {
            return Ok(());
        }
        let (shard, hours) = (self.activity.shard.clone(), Arc::new(counted));
        let saved = self.send_write(true, None, {
            let hours = hours.clone();
            move |tx| {
                let (shard, hours) = (shard.clone(), hours.clone());
                async move {
                    tx.lock_out_of_order();
                    for (hour, counted) in &*hours {
                        tx.add_activity(*hour, &shard, counted).await?;
                    }
                    Ok(())
                }
                .boxed()
            }
        });
        let saved = saved.await;
        if saved.is_err() {
            self.activity.put_back(&hours);
        }
        saved
    }

    /// Merges the rows of one process in a past hour into those of all processes, or deletes the rows of one old hour.
    /// Returns false if nothing is left to do.
    pub async fn tidy_activity(&self) -> Result<bool, StoreError> {
        if !self.housekeeping.has_old_activity().await? {
            return Ok(false);
        }
        self.send_write(true, None, |tx| {
            async move { tx.tidy_activity().await }.boxed()
        })
        .await
    }
}

impl Transaction<'_> {
    async fn add_activity(
        &mut self,
        hour: i64,
        shard: &str,
        counted: &HourActivity,
    ) -> Result<(), StoreError> {
        let mut sum = HourActivity::default();
        let own = Statement::new(OWN).bind(hour).bind(shard);
        for row in self.fetch(own).await? {
            sum.add(&row)?;
        }
        sum.merge(counted);
        for ((kind, name), counts) in sum.rows()? {
            let put = Statement::new(PUT).bind(hour).bind(shard);
            self.run(put.bind(kind).bind(name).bind(counts)).await?;
        }
        Ok(())
    }

    async fn tidy_activity(&mut self) -> Result<bool, StoreError> {
        self.lock_out_of_order();
        let hour = hour_of(self.now());
        let old = Statement::new(OLD).bind(hour - KEPT_HOURS);
        if let Some(row) = self.fetch_first(old).await? {
            self.forget_activity(&row).await?;
            return Ok(true);
        }
        let unmerged = Statement::new(UNMERGED).bind(hour - 1);
        let Some(row) = self.fetch_first(unmerged).await? else {
            return Ok(false);
        };
        let (hour, shard): (i64, String) = (row.get("hour")?, row.get("shard")?);
        let mut counted = HourActivity::default();
        let own = Statement::new(OWN).bind(hour).bind(&*shard);
        for row in self.fetch(own).await? {
            counted.add(&row)?;
        }
        self.add_activity(hour, MERGED, &counted).await?;
        self.forget_activity(&row).await?;
        Ok(true)
    }

    /// Deletes the rows of a process in an hour.
    async fn forget_activity(&mut self, of: &Row) -> Result<(), StoreError> {
        let (hour, shard): (i64, String) = (of.get("hour")?, of.get("shard")?);
        let forget = Statement::new(FORGET_SHARD).bind(hour).bind(shard);
        self.run(forget).await
    }
}

pub fn hour_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(HOUR_MILLIS)
}
