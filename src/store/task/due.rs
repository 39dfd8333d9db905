//! Finds all due work in the store by one statement, which the supervising instance runs in every round. So work is
//! found even if its hint or notification was lost.

use crate::domain::values::{AgentName, InstanceId, Timestamp};
use crate::store::{
    Reader, StoreError,
    queries::{IS_STEP, QUEUED_AGENTS},
    rows::{Columns, Row},
    statement::Statement,
};

/// Relies on steps_line, steps_delayed, tasks_overdue, steps_awaited, steps_waits, child_marks_due, queues_due,
/// destinations_failing, destinations_behind and schedules_due, each read to its first entry; and on steps_processing
/// and tasks_claimed, which cover the search for lost instances and are read completely. The claims of tasks that end
/// within ten seconds are read, too. The statement has ORDER BY instead of EXISTS or `min`, so that PostgreSQL never
/// reads a table for it because of outdated statistics.
const DUE_SUMMARY: &str = r#"
SELECT 'queued' AS kind, agent, CAST(NULL AS bigint) AS due_at FROM line WHERE agent IS NOT NULL
UNION ALL
SELECT 'delayed', NULL, (SELECT due_at FROM steps WHERE due_at IS NOT NULL AND queued = 0 ORDER BY due_at LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT complete_by FROM {steps} WHERE state = 'processing' AND locked_by IS NOT NULL
                          ORDER BY complete_by LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT complete_by FROM {awaited}
                          WHERE state = 'processing' AND locked_by IS NULL AND agent <> ''
                          ORDER BY complete_by LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT complete_by FROM {waits} WHERE state = 'processing' AND agent = ''
                          ORDER BY complete_by LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT CAST(0 AS bigint) FROM {steps}
                          WHERE state = 'processing' AND locked_by IS NOT NULL AND locked_by <> $2
                            AND locked_by NOT IN (SELECT id FROM instances WHERE until > $1)
                          ORDER BY complete_by LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT claim_until FROM {claimed}
                          WHERE claimed_by IS NOT NULL AND claim_after <= $1 AND claim_until <= $1 AND {is_step}
                          ORDER BY claim_after LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT CAST(0 AS bigint) FROM {claimed}
                          WHERE claimed_by IS NOT NULL AND claimed_by <> $2
                            AND claimed_by NOT IN (SELECT id FROM instances WHERE until > $1)
                          ORDER BY claim_after LIMIT 1)
UNION ALL
SELECT 'recovery', NULL, (SELECT overdue_at FROM tasks WHERE overdue_at IS NOT NULL ORDER BY overdue_at LIMIT 1)
UNION ALL
SELECT 'children', NULL, (SELECT due_at FROM child_marks ORDER BY due_at LIMIT 1)
UNION ALL
SELECT 'message', NULL, (SELECT due_at FROM queues WHERE waiting = 0 ORDER BY due_at LIMIT 1)
UNION ALL
SELECT 'message', NULL, (SELECT next_at FROM destinations WHERE failures > 0 AND next_at IS NOT NULL
                         ORDER BY next_at LIMIT 1)
UNION ALL
SELECT 'message', NULL, (SELECT next_at FROM destinations WHERE failures = 0 AND next_at IS NOT NULL
                         ORDER BY next_at LIMIT 1)
UNION ALL
SELECT 'schedule', NULL, (SELECT next_at FROM schedules WHERE next_at IS NOT NULL ORDER BY next_at LIMIT 1)"#;

/// The kinds of work that are due at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DueSummary {
    /// The agents with queued steps.
    pub queued: Vec<AgentName>,
    /// True if a delayed step must be enqueued.
    pub is_delayed_due: bool,
    /// True if a step must be recovered, or a task is overdue.
    pub is_recovery_due: bool,
    /// True if a step must be compared with its children.
    pub are_children_due: bool,
    /// True if a message or the backlog of a destination is due.
    pub is_message_due: bool,
    /// True if a schedule is due.
    pub is_schedule_due: bool,
}

impl Reader {
    /// Returns the due work. The instance `asker` counts as alive, because it asks.
    pub async fn due_summary(&self, asker: &InstanceId) -> Result<DueSummary, StoreError> {
        let now = self.now().await?;
        let steps = self.source.by_index("steps", "steps_processing");
        let awaited = self.source.by_index("steps", "steps_awaited");
        let sql = format!("{QUEUED_AGENTS}{DUE_SUMMARY}")
            .replace("{steps}", &steps)
            .replace("{claimed}", &self.source.by_index("tasks", "tasks_claimed"))
            .replace("{is_step}", IS_STEP)
            .replace("{awaited}", &awaited)
            .replace("{waits}", &self.source.by_index("steps", "steps_waits"));
        let statement = Statement::new(sql).bind(now).bind(asker);
        summary(&self.fetch(statement).await?, now, self.by_wall_clock(now))
    }
}

/// Schedules use the `wall` clock.
fn summary(found: &[Row], now: Timestamp, wall: Timestamp) -> Result<DueSummary, StoreError> {
    let mut summary = DueSummary::default();
    for row in found {
        if let Some(agent) = row.text("agent")? {
            summary.queued.push(AgentName::new(agent));
            continue;
        }
        let due_at: Option<Timestamp> = row.get("due_at")?;
        let kind: String = row.get("kind")?;
        let now = match kind.as_str() {
            "schedule" => wall,
            _ => now,
        };
        if due_at.is_none_or(|due_at| due_at > now) {
            continue;
        }
        match kind.as_str() {
            "delayed" => summary.is_delayed_due = true,
            "recovery" => summary.is_recovery_due = true,
            "children" => summary.are_children_due = true,
            "schedule" => summary.is_schedule_due = true,
            _ => summary.is_message_due = true,
        }
    }
    Ok(summary)
}
