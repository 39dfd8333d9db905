//! The rules of the pattern, each in one place. Pure: nothing here does I/O, reads a clock, draws a
//! random number or awaits. Time and chance come in as arguments; what should happen comes out.

mod adaptive;
mod agent_access;
mod agent_check;
mod agent_control;
mod agent_spec;
mod alert;
mod alert_cause;
mod alert_message;
mod allowed_address;
pub mod answer;
mod ask;
mod ask_message;
mod backoff;
mod blocked;
mod breaker;
mod broker_alert;
mod bulk;
mod call;
mod child;
mod circuit;
mod claim_ahead;
mod claim_order;
mod command;
mod cron;
mod decide;
mod definition;
mod delivery;
mod depth;
mod downtime;
mod drawing;
mod dry_run;
mod ejection;
mod endpoint_state;
mod etag;
mod expansion;
mod fault;
mod fields;
mod health_check;
mod hidden;
mod history;
mod http2_frames;
mod ids;
mod instance;
mod keep_alive;
mod key_prefix;
mod known_queue;
mod lane_ring;
mod lanes;
mod latency;
mod lease;
mod media_type;
mod memory;
mod message;
mod missing_agents;
mod missing_result;
mod nearest;
mod open_reply;
mod past_stop;
mod payload;
mod payload_schema;
mod policy;
mod positions;
mod prediction;
#[cfg(test)]
mod properties;
mod purge_pace;
mod queue_address;
mod rate_limit;
mod redact;
pub mod render;
mod reply_to;
mod reply_token;
mod retention;
mod retry_budget;
mod retry_wait;
mod schedule;
mod service_words;
mod shortened;
mod signature;
mod slot_shares;
mod special_address;
mod steady_clock;
mod step;
mod step_limits;
mod step_list;
mod task;
mod task_limits;
mod task_output;
pub mod template;
mod time;
mod trace;
mod transitions;
mod turn;
mod undo_plan;
mod unusable_secrets;
mod vacuum;
mod version_move;
mod view;
mod waiting_bytes;
mod web_address;

pub use adaptive::{AdaptedLimit, AdaptiveLimit, AdaptiveSpec, LoadSample};
pub use agent_access::{
    AgentTlsSpec, AuthSpec, BasicSpec, ClientAuthMethod, ExtraFields, HttpVersion, LONGEST_EXTRA,
    LONGEST_PEM, OAuthSpec, SecretRef, SecretScope, SecretTarget, SecretUse, TextOrSecret,
    TlsVersion, is_secret_name,
};
pub use agent_check::{
    AgentCheck, AskedWait, CheckAnswer, CheckFinding, CheckObservations, CheckPoint, CheckStatus,
    CheckVerdict, CheckedCall, CheckedStep, DroppedAnswer, EffectCount, KeptFinding, LateArrival,
    effect_count, judge,
};
pub use agent_control::{
    AgentControl, Breaker, BreakerAction, BreakerState, ControlAlertChange, ControlChange,
    ControlledBy, LONGEST_THROTTLE, Observation, Pause, Throttle, control_alert,
    control_alert_subject,
};
pub use agent_spec::{AgentMode, AgentSpec, Endpoint, RetrySpec, ZONE_FORM, is_zone};
pub use alert::{AlertChange, AlertKind};
pub use alert_cause::{
    AlertCause, BEFORE_WORDS, FirstFailure, MOST_WORDED, announcement, recount_after,
};
pub use alert_message::{
    ALERT_EVENTS, AlertData, AlertFormat, AlertNotice, AlertWebhook, CauseVersion,
};
pub use allowed_address::{ALLOWED_ADDRESSES, AllowedAddress};
pub use ask::{
    AnswerFault, AskAnswer, AskChange, AskText, Decision, LONGEST_COMMENT, MOST_ASKED, OpenAsk,
};
pub use ask_message::{ASK_EVENT, AskNotice, LinkForm, ask_queue_of, with_complete_links};
pub use backoff::{Backoff, idle, jittered};
pub use blocked::Blocked;
pub use breaker::{
    BreakerSpec, CallSample, CallWindow, SlowStart, SlowStartLimit, reason_to_open_all,
};
pub use broker_alert::{BROKER_ALERT_AFTER, alert_subject, broker_unreachable};
pub use bulk::BulkAction;
pub use call::{Call, CallBody, CallOutcome, Purpose};
pub use child::{
    Child, ChildAction, ChildEnd, ChildRecord, ChildReport, ChildWorkflow, MOST_DEPTH,
    MOST_DESCENDANTS, News, ParentStep, child_actions,
};
pub use circuit::{BacklogClaim, BacklogState, Circuit, DestinationFailure, ExpiredMessages};
pub use claim_ahead::{CallPace, claims_ahead};
pub use claim_order::{ClaimAttempt, ClaimPlan, ClaimSteps, QueueRank};
pub use command::{Claimant, Command, Expiry, Refusal, Release};
pub use decide::{CommandOutput, Draft, Dropped, MOST_OF_TASK};
pub use definition::{
    Accepted, AskField, AskFieldKind, AskRule, Body, CancelRule, ChildFields, ChildRule,
    Definition, Extend, ForEachRule, GroupItems, GroupRule, ItemRef, KnownAgents, Limits,
    LinkReceivers, MOST_STEPS, Method, OnChildError, OnExhausted, OnUndo, Policies, Policy,
    PollRule, Probe, REPLY_TO, RepeatOutput, RepeatRule, ReplyMode, ReplyRule, RequestTemplate,
    SignalRule, StepDefinition, StepKind, StepLayout, StepRule, StepWork, Target, WHOLE_DEFINITION,
    WaitRule, parse_steps, parse_steps_within,
};
pub use delivery::{
    DeliveryDecision, DeliveryPolicy, DeliveryResult, DestinationResponse, LONGEST_ASKED,
    MESSAGE_TRANSITIONS, MessageAction, MessageAttempt, MessageChange, MessageEnd, MessageEvent,
    MessageStatus, QueueDecision, QueueWait, ReceiverAlert, ReleaseReason, StoredMessage,
    allows_message, undeliverable,
};
pub use depth::{DEEPEST, too_deep};
pub use downtime::{DowntimeSpec, DowntimeWindow, Downtimes, MOST_DOWNTIMES};
pub use drawing::{DiagramFormat, draw};
pub use dry_run::{
    DryRunReport, PlannedAgent, PlannedStep, Runs, TaskFields, UndoStep, Warning, WarningCode,
    dry_run,
};
pub use ejection::{Ejection, EjectionSpec, may_eject};
pub use endpoint_state::EndpointState;
pub use etag::{ETag, ETags, MOST_ETAGS, Precondition, Unmet};
pub use expansion::{Expansion, ItemGroup, KnownItems, MOST_ITEMS};
pub use fault::{BODY_EXCERPT, Effect, Fault, FaultKind};
pub use fields::{FieldFault, Fields, entries, text};
pub use health_check::{CheckTally, HealthChange, HealthSpec, Unhealthy};
pub use hidden::{HIDDEN, without_links, without_query, without_secrets};
pub use history::{Actor, Event, VersionChange};
pub use http2_frames::{Http2Flood, Http2Frames};
pub use ids::{
    AgentName, Attempt, Destination, InstanceId, Priority, ReceiverName, SecretName, StepIndex,
    StepName, StepRef, TaskId, WorkerName, WorkflowName,
};
pub use instance::{IdInUse, InstanceRecord, Leases, Renewal};
pub use keep_alive::usable_idle_time;
pub use key_prefix::KeyPrefixes;
pub use known_queue::{KnownQueue, LEFT_TO_OTHERS, QueuedStep, left_to_others};
pub use lane_ring::LaneRing;
pub use lanes::{Fairness, KeyLimit, LaneRule, LaneTurn, LimitedKey, polls_of};
pub use latency::{Candidate, Latency};
pub use lease::{Holder, Incarnation, KnownDead, Lease, Term, renew_after, trust};
pub use media_type::is_json;
pub use memory::memory_of;
pub use message::{Message, ReplyData, Sender, destination_of};
pub use missing_agents::{
    MissingAgentChanges, MissingAgents, missing_agent_alert, missing_agent_subject,
};
pub use nearest::nearest;
pub use open_reply::{
    AcceptedReply, OpenReply, PollState, Progress, ReplyDigest, ReplyLog, SavedReplies, Signal,
    StepHolder,
};
pub use past_stop::PastStop;
pub use payload::Payload;
pub use payload_schema::{LONGEST_SCHEMA, PayloadSchema, SchemaOwner};
pub use positions::Positions;
pub use prediction::{
    AgentOutlook, AtRisk, CalledFrom, CompleteSteps, Pace, Prediction, QueueOutline, QueueRange,
    at_risk_subject, predict,
};
pub use purge_pace::PurgePace;
pub use queue_address::{
    DIRECT_REPLY, LONGEST_QUEUE, MAIN_BROKER, QUEUE_SCHEME, QueueAddress, queue_fault,
};
pub use rate_limit::{RATE_FORMS, Rate, RateBucket, RateLimitSpec, read_rate};
pub use redact::{Redactor, SHORTEST_SECRET};
pub use render::path_fault;
pub use reply_to::{KnownReceivers, QueueNamedBy, REPLIES, ReplyQueue, ReplyTo};
pub use reply_token::ReplyKey;
pub use retention::{Keep, KeepRule, Retention};
pub use retry_budget::{RetryBudget, RetryBudgetUse, RetryWait};
pub use retry_wait::{retry_after, retry_wait};
pub use schedule::{
    Begun, CatchUp, Dst, FIRE_TIME_LABEL, FireTime, KEPT_RUNS, MISSED_AFTER, MOST_BACKFILLED,
    MOST_CAUGHT_UP, MOST_QUEUED, Overlap, RunRefusal, RunRequest, RunSource, RunState,
    SCHEDULE_LABEL, STEPPED_BACK, ScheduleAction, ScheduleChange, ScheduleLook, SchedulePause,
    ScheduleRule, ScheduleRun, ScheduleSpec, ScheduleState, SkipReason, Timing, TriggerRequest,
    schedule_alert_subject, schedule_failing,
};
pub use shortened::shortened;
pub use signature::{SECRET_FORM, Secret, signatures};
pub use slot_shares::{SlotGrant, SlotNeed, SlotShares};
pub use special_address::special_address;
pub use steady_clock::{
    ClockJump, ClockReading, ClockRecord, SteadyClock, clock_alert, clock_alert_subject,
    clocks_differ, is_clock_alerted, is_clock_set_again, is_of_earlier_setting,
};
pub use step::{Step, StepState, StepStatus};
pub use step_limits::{StepKey, StepLane, StepLimit, StepRoom, is_limited_lane};
pub use step_list::{StepCounts, StepList};
pub use task::{
    Details, LONGEST_NAME, MOST_LABELS, Task, TaskState, TaskStatus, Undo, WorkflowRef,
};
pub use task_limits::{AwaitedKey, MOST_RUNNING, OnConflict, TaskKey, TaskLimit};
pub use task_output::task_output;
pub use time::{DURATION, SPAN_FORMS, Span, Timestamp};
pub use trace::{CallTrace, Trace};
pub use turn::{AGEING, Turn};
pub use undo_plan::{
    AvailableAfter, CannotRender, NotUndoneReason, PassedOver, PlannedProbe, PlannedRequest,
    PlannedUndo, RunningCall, UndoPlan, UndoReason, undo_plan,
};
pub use unusable_secrets::{
    CONFIRM_SECRETS_EVERY, SECRET_ALERT_AFTER, SecretAlertChange, SecretReports, SecretSubject,
    UnusableSecret, UnusableSecrets, secret_unusable,
};
pub use vacuum::{FileSpace, Vacuum, Vacuuming};
pub use version_move::{MoveReport, MovedStep, StepChange, UnmappedStep, VersionMove, check_move};
pub use view::{Extent, LabelsView, StepView, TaskHead, TaskView};
pub use waiting_bytes::{full_receivers, too_many_waiting, waiting_subject};
pub use web_address::{LONGEST_URL, WebAddress};
