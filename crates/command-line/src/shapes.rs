//! The parts of the API's responses that are shown. A field that an older server does not send is empty. A test compares
//! every field with the document of the API, `openapi/openapi.json`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Declares readers of responses: each with the name that its schema has in the document. A field whose name is a word of
/// Rust has another one here.
macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident = $schema:literal { $($field:ident $(as $word:literal)?: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name { $($(#[serde(rename = $word)])? pub $field: $kind,)* })*
        /// Each schema with the fields that are read.
        #[cfg(test)]
        pub const ALL: &[(&str, &[&str])] = &[$(($schema, &[$(name!($field $($word)?)),*])),*];
    };
}

/// The name of a field in the document.
#[cfg(test)]
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $word:literal) => {
        $word
    };
}

shapes! {
    CountJson = "CappedCount" { count: u64, more: bool, }
    OverviewJson = "Overview" {
        as_of: String, held: bool, failures: FailureOverviewJson, tasks: Vec<TasksInStateJson>, at_risk: CountJson,
        asks: CountJson, messages: MessageCountsJson, agents: Vec<AgentOverviewJson>, instances: Vec<InstanceJson>,
    }
    FailureOverviewJson = "FailureOverview" { causes: u64, more_causes: bool, growing: u64, first: Vec<FailureJson>, }
    TasksInStateJson = "TasksInState" { state: String, count: u64, more: bool, }
    MessageCountsJson = "MessageCounts" { pending: CountJson, dead: CountJson, }
    AgentOverviewJson = "AgentOverview" {
        name: String, trouble: bool, pause: Option<AgentPauseJson>, throttle: Option<AgentThrottleJson>,
        breakers: Vec<BreakerStatusJson>, endpoints: Vec<EndpointStatusJson>, queued: CountJson, in_flight: u64,
        day: AgentActivityJson,
    }
    AgentActivityJson = "AgentActivity" { processed: u64, retried: u64, failed: u64, p50: Option<u64>, p99: Option<u64>, }
    AgentPauseJson = "AgentPause" { until: Option<String>, reason: Option<String>, by: String, since: String, }
    AgentThrottleJson = "AgentThrottle" { until: String, reason: String, }
    BreakerStatusJson = "BreakerStatus" { endpoint: String, state: String, reason: Option<String>, until: Option<String>, }
    EndpointStatusJson = "EndpointStatus" { url: String, state: String, reason: Option<String>, in_flight: u64, }
    InstanceJson = "Instance" {
        id: String, started_at: String, version: String, alive: bool, supervising: bool, in_flight: u64,
    }
    AlertJson = "Alert" {
        id: String, kind: String, message: String, state: String, raised_at: String, count: u64, agent: Option<String>,
        cause: Option<String>,
    }

    FailureJson = "Failure" {
        fingerprint: String, sentence: String, open: bool, workflow: Option<String>, step: String, agent: Option<String>,
        tasks: u64, steps: u64, more: bool, growing: bool, failures: u64, first_at: String, last_at: String,
        trend: FailureTrendJson, example: Option<FailureExampleJson>, remedies: Vec<RemedyJson>,
    }
    FailureTrendJson = "FailureTrend" { by_hour: Vec<u64>, by_quarter: Vec<u64>, }
    FailureExampleJson = "FailureExample" { task: String, key: Option<String>, step: String, message: String, at: String, }
    RemedyJson = "Remedy" { command as "do": String, when: String, }

    TaskSummaryJson = "TaskSummary" {
        id: String, key: Option<String>, workflow: Option<String>, workflow_version: Option<u64>, state: String,
        created_at: String, ended_at: Option<String>, complete_by: Option<String>, error: Option<FaultJson>,
    }
    TaskJson = "Task" {
        id: String, key: Option<String>, workflow: Option<String>, workflow_version: Option<u64>, state: String, version: u64,
        created_at: String, start_at: Option<String>, complete_by: Option<String>, ended_at: Option<String>,
        labels: BTreeMap<String, String>, error: Option<FaultJson>, undo: Option<TaskUndoJson>, steps: Vec<StepJson>,
        at_risk: Option<AtRiskJson>, paused: Option<bool>,
    }
    AtRiskJson = "AtRisk" { predicted_end: Option<String>, agent: String, }
    TaskUndoJson = "TaskUndo" { at: String, by: String, reason: Option<String>, error: Option<FaultJson>, }
    FaultJson = "Fault" { kind: String, message: String, status: Option<u16>, body: Option<String>, at: String, step: Option<String>, }
    StepJson = "Step" {
        name: String, kind: String, agent: Option<String>, state: String, attempt: u64, failure_count: u64, max_failures: u64,
        error: Option<FaultJson>, last_fault: Option<FaultJson>, started_at: Option<String>, ended_at: Option<String>,
        ready_at: Option<String>, blocked_by: Option<Value>, child: Option<ChildTaskJson>, undoes: Option<String>,
        ask: Option<StepAskJson>, items: Option<Value>, lost: Option<String>,
    }
    StepAskJson = "StepAsk" { title: String, people: Vec<StepPersonJson>, }
    StepPersonJson = "StepPerson" { person: String, choice: Option<String>, }
    ChildTaskJson = "ChildTask" { id: String, state: Option<String>, }
    HistoryEntryJson = "HistoryEntry" {
        seq: String, kind as "type": String, at: String, step: Option<String>, attempt: Option<u64>, from: Option<String>, to: String, by: String,
        reason: Option<String>, error: Option<FaultJson>,
    }
    AttemptJson = "Attempt" {
        attempt: u64, purpose: String, result: Option<String>, claimed_at: Option<String>, ended_at: Option<String>,
        endpoint: Option<String>, request: Option<AttemptRequestJson>, response: Option<AttemptResponseJson>,
        reason: Option<String>, error: Option<FaultJson>,
    }
    AttemptRequestJson = "AttemptRequest" { method: String, url: String, }
    AttemptResponseJson = "AttemptResponse" { status: u16, }
    UndoPlanJson = "UndoPlan" { possible: bool, reason: Option<String>, calls: Vec<PlannedUndoJson>, passed_over: Vec<PassedOverJson>, }
    PlannedUndoJson = "PlannedUndo" { step: String, undoes: String, request: Option<PlannedRequestJson>, }
    PlannedRequestJson = "PlannedRequest" { agent: String, method: String, path: String, }
    PassedOverJson = "PassedOver" { step: String, message: String, }
    MigrationReportJson = "MigrationReport" { can_migrate: bool, refusal: Option<String>, steps: Vec<MigratedStepJson>, }
    MigratedStepJson = "MigratedStep" { name: String, change: Option<String>, reason: Option<String>, }
    DryRunReportJson = "DryRunReport" { steps: Vec<PlannedStepJson>, worst_case: String, fits: bool, warnings: Vec<WarningJson>, }
    PlannedStepJson = "PlannedStep" {
        name: String, kind: String, agent: Option<String>, stage: u64, runs: String, worst_case: Option<String>,
    }
    WarningJson = "Warning" { code: String, pointer: String, message: String, }

    BulkResultJson = "BulkResult" {
        matched: u64, accepted: u64, refused: u64, refusals: BTreeMap<String, u64>, total: Option<u64>, total_is_at_least: Option<bool>,
        as_of: Option<String>, sentence: String, examples: Vec<BulkExampleJson>, next_cursor: Option<String>,
    }
    BulkExampleJson = "BulkExample" { task: String, key: Option<String>, before: BulkExampleSideJson, after: BulkExampleSideJson, }
    BulkExampleSideJson = "BulkExampleSide" { state: String, steps: Vec<BulkExampleStepJson>, request_body: Option<String>, }
    BulkExampleStepJson = "BulkExampleStep" { name: String, state: String, }
    BulkJobJson = "BulkJob" {
        id: String, command: String, sentence: String, state: String, stop_cause: Option<String>, failure: Option<String>,
        by: String, reason: Option<String>, created_at: String, ended_at: Option<String>, total: u64, total_is_at_least: bool,
        matched: u64, accepted: u64, refused: u64, refusals: BTreeMap<String, u64>, failed_again: Option<u64>,
    }
    BulkTaskJson = "BulkTask" {
        task: String, key: Option<String>, state: Option<String>, at: String, problem: Option<String>, reason: Option<String>,
        failed_step: Option<String>,
    }

    AskJson = "Ask" {
        task: String, key: Option<String>, workflow: Option<String>, step: String, title: Option<String>, until: Option<String>,
        people: Vec<AskedPersonJson>,
    }
    AskedPersonJson = "AskedPerson" { person: String, choice: Option<String>, at: Option<String>, link: Option<String>, }

    AgentJson = "Agent" {
        name: String, source: String, in_flight: u64, capacity: u64, pause: Option<AgentPauseJson>,
        throttle: Option<AgentThrottleJson>, breakers: Option<Vec<BreakerStatusJson>>, endpoints: Option<Vec<EndpointStatusJson>>,
        spec: Value, incomplete: Option<String>,
    }
    ScheduleHeadJson = "ScheduleHead" {
        name: String, cron: Option<String>, every: Option<String>, timezone: Option<String>, state: String,
        next_fire_time: Option<String>, queued: u64, failing: Option<String>,
    }
    ScheduleJson = "Schedule" {
        name: String, cron: Option<String>, every: Option<String>, timezone: Option<String>, state: String, workflow: String,
        next_fire_time: Option<String>, queued: u64, failing: Option<String>, runs: Vec<ScheduleRunJson>,
    }
    ScheduleRunJson = "ScheduleRun" {
        number: u64, fire_time: String, source: String, state: String, task: Option<String>, reason: Option<String>,
    }
    MessageJson = "Message" {
        kind as "type": String, id: String, receiver: String, task: Option<String>, state: String, created_at: String, tries: u64,
        next_try_at: Option<String>, error: Option<String>,
    }
    BulkLettersResultJson = "BulkLettersResult" { matched: u64, done: u64, }
    WorkflowSummaryJson = "WorkflowSummary" {
        name: String, version: u64, active_version: u64, description: Option<String>, created_at: String,
    }
    WorkflowJson = "Workflow" {
        name: String, version: u64, active_version: u64, description: Option<String>, created_at: String,
        activations: Vec<ActivationJson>,
    }
    WorkflowUsageJson = "WorkflowUsage" { versions: Vec<VersionUsageJson>, more: bool, more_in_error: bool, }
    VersionUsageJson = "VersionUsage" { version: u64, tasks: u64, in_error: u64, }
    ActivationJson = "Activation" { version: u64, from_version: u64, at: String, by: String, reason: Option<String>, }

    TaskDifferenceJson = "TaskDifference" {
        sentence: String, definition: DefinitionDifferenceJson, submission: DifferenceListJson, input: DifferenceListJson,
        steps: Vec<ComparedStepJson>, more_steps: bool,
    }
    DefinitionDifferenceJson = "DefinitionDifference" { same: bool, differences: DifferenceListJson, }
    DifferenceListJson = "DifferenceList" { items: Vec<ValueDifferenceJson>, more: bool, }
    ValueDifferenceJson = "ValueDifference" {
        pointer: String, change: String, a: Option<ComparedValueJson>, b: Option<ComparedValueJson>, follows_from: Option<String>,
    }
    ComparedValueJson = "ComparedValue" { value: Option<Value>, excerpt: Option<String>, bytes: u64, }
    ComparedStepJson = "ComparedStep" {
        name: String, differs: Vec<String>, a: Option<ComparedSideJson>, b: Option<ComparedSideJson>,
        request: Option<DifferenceListJson>, response: Option<DifferenceListJson>,
    }
    ComparedSideJson = "ComparedSide" { state: String, attempts: u64, duration: Option<String>, reason: Option<String>, }

    LedgerEventJson = "LedgerEvent" {
        position: String, kind as "type": String, at: String, task: Option<LedgerTaskJson>, event: Option<HistoryEntryJson>, record: Option<LedgerRecordJson>,
    }
    LedgerTaskJson = "LedgerTask" { id: String, key: Option<String>, workflow: Option<String>, }
    LedgerRecordJson = "LedgerRecord" { kind as "type": String, name: String, step: Option<String>, command: Option<String>, by: String, reason: Option<String>, }
    LedgerPageJson = "LedgerPage" { position: String, has_more: bool, }
    LedgerChangeJson = "LedgerChange" {
        kind as "type": String, at: String, name: String, step: Option<String>, command: Option<String>, by: String, reason: Option<String>,
    }
}
