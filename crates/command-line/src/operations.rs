//! The operations of the API that the command line uses, with the names that it sends. A test compares all of them with
//! the document of the API, `openapi/openapi.json`.

use reqwest::Method;

/// An operation of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    pub id: &'static str,
    pub method: Method,
    pub path: &'static str,
    /// The parameters in the query that are sent.
    pub query: &'static [&'static str],
    /// The members of the body that are sent.
    pub body: &'static [&'static str],
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $id:literal $method:ident $path:literal [$($query:literal),*] {$($body:literal),*};)*) => {
        $($(#[$doc])* pub const $name: Operation = Operation {
            id: $id, method: Method::$method, path: $path, query: &[$($query),*], body: &[$($body),*],
        };)*
        /// All operations, for the comparison with the document.
        #[cfg(test)]
        pub const ALL: &[Operation] = &[$($name),*];
    };
}

operations! {
    GET_OVERVIEW = "get_overview" GET "/v1/overview" [] {};
    LIST_ALERTS = "list_alerts" GET "/v1/alerts" ["state", "limit", "cursor"] {};

    LIST_TASKS = "list_tasks" GET "/v1/tasks" ["state", "workflow", "key", "agent", "alert", "cause", "text", "label", "created_after",
        "created_before", "at_risk", "bulk", "bulk_result", "parent", "limit", "cursor"] {};
    GET_TASK = "get_task" GET "/v1/tasks/{id}" ["wait"] {};
    GET_HISTORY = "task_history" GET "/v1/tasks/{id}/history" ["limit", "cursor"] {};
    FOLLOW_TASK = "task_events" GET "/v1/tasks/{id}/events" [] {};
    LIST_ATTEMPTS = "list_attempts" GET "/v1/tasks/{id}/steps/{name}/attempts" ["limit", "cursor"] {};
    GET_UNDO_PLAN = "undo_plan" GET "/v1/tasks/{id}/undo-plan" [] {};
    COMPARE_TASKS = "compare_tasks" GET "/v1/tasks/{id}/diff/{other}" [] {};
    SUBMIT_TASK = "submit_task" POST "/v1/tasks" ["dry_run"] {};

    RETRY_TASK = "retry_task" POST "/v1/tasks/{id}/retry" [] {"from", "reason"};
    RETRY_STEP = "retry_step" POST "/v1/tasks/{id}/steps/{name}/retry" [] {"input", "reason"};
    SKIP_STEP = "skip_step" POST "/v1/tasks/{id}/steps/{name}/skip" [] {"output", "reason"};
    RESOLVE_STEP = "resolve_step" POST "/v1/tasks/{id}/steps/{name}/resolve" [] {"output", "reason"};
    CANCEL_STEP = "cancel_step" POST "/v1/tasks/{id}/steps/{name}/cancel" [] {"reason"};
    UNDO_TASK = "undo_task" POST "/v1/tasks/{id}/undo" [] {"reason"};
    CANCEL_TASK = "cancel_task" POST "/v1/tasks/{id}/cancel" [] {"reason"};
    PAUSE_TASK = "pause_task" POST "/v1/tasks/{id}/pause" [] {"reason"};
    RESUME_TASK = "resume_task" POST "/v1/tasks/{id}/resume" [] {"reason"};
    START_TASK = "start_task" POST "/v1/tasks/{id}/start" [] {"reason"};
    CLONE_TASK = "clone_task" POST "/v1/tasks/{id}/clone" ["dry_run"] {"input", "input_patch", "key", "labels",
        "workflow_version", "reason"};
    MIGRATE_TASK = "migrate_task" POST "/v1/tasks/{id}/migrate" [] {"to_version", "dry_run", "reason"};
    SIGNAL_STEP = "signal_step" POST "/v1/tasks/{id}/signals/{name}" [] {};

    RETRY_TASKS = "retry_tasks" POST "/v1/tasks/retry" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor",
        "patch", "step"};
    SKIP_TASKS = "skip_tasks" POST "/v1/tasks/skip" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor",
        "step", "output"};
    RERUN_TASKS = "rerun_tasks" POST "/v1/tasks/rerun" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor",
        "from"};
    UNDO_TASKS = "undo_tasks" POST "/v1/tasks/undo" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor"};
    CANCEL_TASKS = "cancel_tasks" POST "/v1/tasks/cancel" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor"};
    PAUSE_TASKS = "pause_tasks" POST "/v1/tasks/pause" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor"};
    RESUME_TASKS = "resume_tasks" POST "/v1/tasks/resume" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor"};
    RESOLVE_TASKS = "resolve_tasks" POST "/v1/tasks/resolve" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor",
        "step", "output"};
    CLONE_TASKS = "clone_tasks" POST "/v1/tasks/clone" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text", "bulk",
        "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first", "cursor",
        "changes"};
    MIGRATE_TASKS = "migrate_tasks" POST "/v1/tasks/migrate" [] {"ids", "state", "workflow", "key", "agent", "alert", "cause", "text",
        "bulk", "bulk_result", "parent", "labels", "created_after", "created_before", "at_risk", "as_of", "all", "dry_run", "reason", "rate", "first",
        "cursor", "to_version", "from_version"};
    LIST_BULK_JOBS = "list_bulk_jobs" GET "/v1/bulk" ["limit", "cursor"] {};
    GET_BULK_JOB = "get_bulk_job" GET "/v1/bulk/{id}" [] {};
    LIST_BULK_JOB_TASKS = "list_bulk_job_tasks" GET "/v1/bulk/{id}/tasks" ["result", "limit", "cursor"] {};
    STOP_BULK_JOB = "stop_bulk_job" POST "/v1/bulk/{id}/stop" [] {};
    RESUME_BULK_JOB = "resume_bulk_job" POST "/v1/bulk/{id}/resume" [] {"first", "rate"};

    LIST_FAILURES = "list_failures" GET "/v1/failures" ["workflow", "step", "agent", "kind", "status", "text", "limit", "cursor"] {};
    GET_FAILURE = "get_failure" GET "/v1/failures/{fingerprint}" [] {};

    LIST_ASKS = "list_asks" GET "/v1/asks" ["of", "workflow", "text", "limit", "cursor"] {};
    DECIDE_ASK = "decide_ask" POST "/v1/asks/{token}" [] {"choice", "comment"};

    LIST_AGENTS = "list_agents" GET "/v1/agents" ["limit", "cursor"] {};
    GET_AGENT = "get_agent" GET "/v1/agents/{name}" [] {};
    PUT_AGENT = "put_agent" PUT "/v1/agents/{name}" [] {};
    DELETE_AGENT = "delete_agent" DELETE "/v1/agents/{name}" [] {};
    CHECK_AGENT = "check_agent" POST "/v1/agents/{name}/check" [] {};
    PAUSE_AGENT = "pause_agent" POST "/v1/agents/{name}/pause" [] {"for", "until", "reason"};
    RESUME_AGENT = "resume_agent" POST "/v1/agents/{name}/resume" [] {};

    LIST_SCHEDULES = "list_schedules" GET "/v1/schedules" ["limit", "cursor"] {};
    GET_SCHEDULE = "get_schedule" GET "/v1/schedules/{name}" [] {};
    PUT_SCHEDULE = "put_schedule" PUT "/v1/schedules/{name}" ["dry_run"] {};
    DELETE_SCHEDULE = "delete_schedule" DELETE "/v1/schedules/{name}" [] {};
    TRIGGER_SCHEDULE = "trigger_schedule" POST "/v1/schedules/{name}/trigger" [] {"overlap", "reason"};
    PAUSE_SCHEDULE = "pause_schedule" POST "/v1/schedules/{name}/pause" [] {"reason", "discard_queued"};
    RESUME_SCHEDULE = "resume_schedule" POST "/v1/schedules/{name}/resume" [] {};

    LIST_MESSAGES = "list_messages" GET "/v1/messages" ["state", "receiver", "task", "text", "limit", "cursor"] {};
    REDELIVER_MESSAGE = "redeliver_message" POST "/v1/messages/{id}/redeliver" [] {};
    REDELIVER_MESSAGES = "redeliver_messages" POST "/v1/messages/redeliver" [] {"receiver", "task", "all", "dry_run"};

    LIST_WORKFLOWS = "list_workflows" GET "/v1/workflows" ["limit", "cursor"] {};
    GET_WORKFLOW = "get_workflow" GET "/v1/workflows/{name}" [] {};
    PUT_WORKFLOW = "put_workflow" PUT "/v1/workflows/{name}" ["activate"] {};
    VALIDATE_WORKFLOW = "validate_workflow" POST "/v1/workflows/{name}/validate" [] {};
    LIST_WORKFLOW_VERSIONS = "list_workflow_versions" GET "/v1/workflows/{name}/versions" ["limit", "cursor"] {};
    GET_WORKFLOW_VERSION = "get_workflow_version" GET "/v1/workflows/{name}/versions/{version}" [] {};
    GET_WORKFLOW_USAGE = "get_workflow_usage" GET "/v1/workflows/{name}/usage" [] {};
    WORKFLOW_GRAPH = "workflow_graph" GET "/v1/workflows/{name}/graph" ["version", "format"] {};
    ACTIVATE_WORKFLOW = "activate_workflow" POST "/v1/workflows/{name}/activate" [] {"version", "reason"};

    LIST_EVENTS = "list_events" GET "/v1/events" ["after", "since", "types", "workflow", "label", "limit"] {};
    LIST_CHANGES = "list_changes" GET "/v1/changes" ["types", "limit", "cursor"] {};
}
