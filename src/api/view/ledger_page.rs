//! Pages of the ledger as a caller sees them: which events there are, and which a filter leaves out.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::{
        App, Problem,
        extract::Caller,
        problem::ProblemKind,
        task::{
            events::HistoryEntry,
            hidden_bodies::{hides_bodies_of, hides_bodies_of_task},
        },
    },
    clock::{self, timeout_at},
    domain::{
        values::{TaskId, Timestamp},
        view::{LedgerEntryIndex, LedgerFilter, LedgerPosition, LedgerRecord, PositionFault},
    },
    store::{LedgerContent, LedgerEntries, LedgerEntry, UnreadablePosition},
};

/// The most reads for one page: a filter that matches little costs no more than that.
const READS: usize = 4;
/// The most bytes of the events of a page, before one more is added.
const PAGE_BYTES: usize = 1 << 20;

/// One event of the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerEvent)]
pub(super) struct EventView {
    /// The position after this event. Pass it as `after` to read on from there. Positions are opaque: later versions may write
    /// them in another way.
    #[schema(example = "1-kj2-8x1-me8dc8ww")]
    pub position: String,
    /// The type of the event or of the record; `task.deleted`: the task has been deleted, and its history with it;
    /// `task.unreadable`: the record of the change is damaged. An open set.
    #[serde(rename = "type")]
    #[schema(example = "step.processed")]
    pub kind: String,
    at: Timestamp,
    /// The task of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<EventTaskView>,
    /// The event of the task, as its history shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HistoryEntry>)]
    event: Option<HistoryEntry>,
    /// What else was changed, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<LedgerRecord>,
}

/// The task of an event.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerTask)]
pub(super) struct EventTaskView {
    #[schema(value_type = String, format = "uuid")]
    id: TaskId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-1042")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order")]
    workflow: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_version: Option<u32>,
}

/// Returns the response to a position from which nothing can be read.
fn gone(position: UnreadablePosition) -> Problem {
    let UnreadablePosition {
        fault,
        oldest,
        newest,
    } = position;
    let detail = match fault {
        PositionFault::Expired => {
            "events after this position were deleted, because they are older than ledger.keep: read on from `oldest`, and compare the tasks in between with GET /v1/tasks; raise ledger.keep if readers stay away for longer"
        }
        PositionFault::Rewound => {
            "this position is not in the ledger, because the database was restored from a backup or has failed over: read on from an older position that you have stored, or from `oldest`"
        }
    };
    Problem::new(ProblemKind::PositionGone, detail)
        .with("reason", fault.as_str())
        .with("oldest", oldest.to_string())
        .with("newest", newest.to_string())
}

/// Reads events for one caller.
pub(super) struct EventReader {
    pub app: Arc<App>,
    pub filter: LedgerFilter,
    /// True if the caller may read events of tasks only.
    pub of_tasks: bool,
    pub caller: Caller,
}

/// Events that were read.
pub(super) struct ReadEvents {
    pub items: Vec<EventView>,
    pub bytes: usize,
    pub end: LedgerPosition,
    pub has_more: bool,
    pub complete_since: Option<Timestamp>,
}

impl EventReader {
    pub async fn page(&self, after: LedgerPosition, limit: usize) -> Result<ReadEvents, Problem> {
        let mut page = ReadEvents {
            items: Vec::new(),
            bytes: 0,
            end: after,
            has_more: true,
            complete_since: None,
        };
        for _ in 0..READS {
            let read = self.app.store.reader.ledger(page.end).await?;
            let LedgerEntries {
                entries,
                has_more,
                state,
            } = read.map_err(gone)?;
            page.complete_since = state.complete_since;
            page.has_more = has_more;
            for entry in entries {
                let hides_bodies = self.hides_bodies(&entry).await?;
                if !self.add(&mut page, &entry, limit, hides_bodies) {
                    page.has_more = true;
                    return Ok(page);
                }
            }
            if !page.has_more || page.items.len() == limit || page.bytes > PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }

    /// Reads a page, and waits for an event if there is none.
    pub async fn page_in_time(
        &self,
        after: LedgerPosition,
        limit: usize,
        wait: Duration,
    ) -> Result<ReadEvents, Problem> {
        let end = clock::instant() + wait;
        // The subscription comes before the read: a commit between the two must not be missed.
        let mut follow = self.app.store.ledger.follow();
        let mut page = self.page(after, limit).await?;
        if !page.items.is_empty() || page.has_more {
            return Ok(page);
        }
        // Without a permit the caller gets the empty page at once, as if the time were over.
        let Ok(_permit) = self.app.waits.clone().try_acquire_owned() else {
            return Ok(page);
        };
        while page.items.is_empty() && !page.has_more {
            let changed = timeout_at(end, follow.changed());
            let stop = self.app.stop.run_until_cancelled(changed);
            match stop.await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => break,
            }
            page = self.page(page.end, limit).await?;
        }
        Ok(page)
    }

    /// Adds the events of an entry that the filter accepts. Returns false if there is no room for all of them.
    /// Returns whether the caller sees no payloads of the task of an entry.
    async fn hides_bodies(&self, entry: &LedgerEntry) -> Result<bool, Problem> {
        match &entry.content {
            LedgerContent::Change { task, events, .. } => match &task.workflow {
                Some(workflow) => hides_bodies_of(&self.app, &self.caller, &workflow.name).await,
                // Most events have none, and then the task need not be read.
                None if events.contains("\"body\"") => {
                    hides_bodies_of_task(&self.app, &self.caller, task.id).await
                }
                None => Ok(false),
            },
            LedgerContent::Record(_) | LedgerContent::Deleted(_) => Ok(false),
        }
    }

    fn add(
        &self,
        page: &mut ReadEvents,
        entry: &LedgerEntry,
        limit: usize,
        hides_bodies: bool,
    ) -> bool {
        let events = self.events(entry);
        let count = events.len();
        for (index, event) in events.into_iter().enumerate() {
            let position = entry.after(index, count);
            let within = LedgerEntryIndex {
                entry: entry.index,
                event: index,
            };
            if page.end.has_passed(entry.row, within) {
                continue;
            }
            if let Some((bytes, mut event)) = event {
                let is_full = page.bytes + bytes > PAGE_BYTES && !page.items.is_empty();
                if page.items.len() == limit || is_full {
                    return false;
                }
                page.bytes += bytes;
                if hides_bodies {
                    event.event.iter_mut().for_each(HistoryEntry::hide_bodies);
                }
                event.position = position.to_string();
                page.items.push(event);
            }
            page.end = position;
        }
        if count == 0 {
            page.end = entry.after(0, 0);
        }
        true
    }

    /// Returns all events of an entry, each with the bytes that it takes; `None` if the filter leaves it out.
    fn events(&self, entry: &LedgerEntry) -> Vec<Option<(usize, EventView)>> {
        let filter = &self.filter;
        let view = |kind: &str, at, task, event, record| EventView {
            position: String::new(),
            kind: kind.to_owned(),
            at,
            task,
            event,
            record,
        };
        match &entry.content {
            LedgerContent::Record(record) => {
                let is_hidden = self.of_tasks || filter.is_of_tasks();
                let is_wanted = !is_hidden && filter.accepts_type(&record.kind);
                let event = is_wanted.then(|| {
                    let bytes = record.differences.iter().fold(512, |bytes, one| {
                        let values = [&one.before, &one.after].into_iter().flatten();
                        bytes + one.pointer.len() + values.map(String::len).sum::<usize>()
                    });
                    let record = LedgerRecord::clone(record);
                    (
                        bytes,
                        view(&record.kind.clone(), entry.at, None, None, Some(record)),
                    )
                });
                vec![event]
            }
            LedgerContent::Deleted(change) => {
                vec![self.without_events("task.deleted", entry, change.task)]
            }
            LedgerContent::Change {
                task,
                version,
                at,
                events,
            } => {
                let workflow = task.workflow.as_ref();
                let label = |name: &str| task.labels.get(name).map(String::as_str);
                let is_of =
                    filter.accepts_task(workflow.map(|workflow| workflow.name.as_str()), label);
                // A damaged record costs its task, and no reader.
                let Ok(events) = HistoryEntry::of_change(*version, *at, events) else {
                    return vec![self.without_events("task.unreadable", entry, task.id)];
                };
                let events = events.into_iter().map(|(bytes, event)| {
                    let is_wanted = is_of && filter.accepts_type(event.kind());
                    is_wanted.then(|| {
                        let task = EventTaskView {
                            id: task.id,
                            key: task.key.clone(),
                            workflow: workflow.map(|workflow| workflow.name.to_string()),
                            workflow_version: workflow.map(|workflow| workflow.version),
                        };
                        let kind = event.kind().to_owned();
                        (bytes + 256, view(&kind, *at, Some(task), Some(event), None))
                    })
                });
                events.collect()
            }
        }
    }

    /// Returns what is shown of a change whose events cannot be shown.
    fn without_events(
        &self,
        kind: &str,
        entry: &LedgerEntry,
        task: TaskId,
    ) -> Option<(usize, EventView)> {
        let is_wanted = !self.filter.is_of_tasks() && self.filter.accepts_type(kind);
        is_wanted.then(|| {
            let task = EventTaskView {
                id: task,
                key: None,
                workflow: None,
                workflow_version: None,
            };
            let event = EventView {
                position: String::new(),
                kind: kind.to_owned(),
                at: entry.at,
                task: Some(task),
                event: None,
                record: None,
            };
            (256, event)
        })
    }
}
