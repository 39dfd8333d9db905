//! Agents: the services that steps call, and what is known of their endpoints.
//!
//! `spec` is the specification of an agent, `access` its credentials, `secret_use` where its secrets go. `secret_fault`
//! finds the secrets that stop calls, `unusable_secrets` keeps their record. `endpoint` is the state machine of an
//! endpoint: `breaker`, `ejection`, `health` and `adaptive` are its parts, `control` is what operators and the shared
//! record say. `call_evidence` is what a call shows of its endpoint. `answer` classifies a response, `retry_wait` says
//! when the next attempt may begin, `check` judges `agent check`.

pub(crate) mod access;
pub(crate) mod adaptive;
pub mod answer;
pub(crate) mod breaker;
pub(crate) mod call_evidence;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod downtime;
pub(crate) mod ejection;
pub(crate) mod endpoint;
pub(crate) mod endpoint_state;
mod etag;
pub(crate) mod health;
pub(crate) mod http2_frames;
pub(crate) mod keep_alive;
pub(crate) mod latency;
pub(crate) mod missing;
pub(crate) mod past_stop;
pub(crate) mod retry_wait;
pub(crate) mod secret_fault;
pub(crate) mod secret_use;
pub(crate) mod signature;
pub(crate) mod spec;
pub(crate) mod unusable_secrets;

pub use access::{
    AgentTlsSpec, AuthSpec, BasicSpec, ClientAuthMethod, ExtraFields, HttpVersion, OAuthSpec,
    SecretRef, TextOrSecret, TlsVersion,
};
pub use adaptive::{AdaptedLimit, AdaptiveLimit, AdaptiveSpec, LoadSample};
pub use breaker::{
    BreakerSpec, CallSample, CallWindow, SlowStart, SlowStartLimit, reason_to_open_all,
};
pub use call_evidence::is_ill_health;
pub use check::{
    AgentCheck, AskedWait, CheckAnswer, CheckFinding, CheckObservations, CheckPoint, CheckStatus,
    CheckSubject, CheckVerdict, CheckedCall, CheckedStep, DroppedAnswer, EffectCount, KeptFinding,
    LateArrival, StepRequests, judge,
};
pub use control::{
    AgentControl, Breaker, BreakerAction, BreakerState, ControlAlertChange, ControlChange,
    ControlledBy, LONGEST_THROTTLE, Observation, Pause, Throttle, control_alert,
    control_alert_subject,
};
pub use downtime::{DowntimeSpec, DowntimeWindow, Downtimes};
pub use ejection::{Ejection, EjectionSpec, may_eject};
pub use endpoint::{
    AgentCapacity, AgentGuard, AgentStop, BreakerReport, CallPermit, EndpointGuard, GuardChanges,
    HealthSample, RecordSource,
};
pub use endpoint_state::EndpointState;
pub use health::{CheckTally, HealthChange, HealthSpec, Unhealthy};
pub use http2_frames::{Http2Flood, Http2Frames};
pub use keep_alive::usable_idle_time;
pub use latency::{Candidate, Latency};
pub use missing::{MissingAgentChanges, MissingAgents, missing_agent_alert, missing_agent_subject};
pub use past_stop::PastStop;
pub use retry_wait::{call_wait, retry_after, retry_wait};
pub use secret_fault::{AgentSecretFault, unusable_secrets};
pub use secret_use::{SecretScope, SecretTarget, SecretUse};
pub use signature::{RequestSignature, SignSpec, SignatureEncoding, SignatureHash, SignedRequest};
pub use spec::{AgentMode, AgentSpec, Endpoint, RetrySpec, ZONE_FORM, is_zone};
pub use unusable_secrets::{
    CONFIRM_SECRETS_EVERY, SECRET_ALERT_AFTER, SecretAlertChange, SecretReports, SecretSubject,
    UnusableSecret, UnusableSecrets, secret_unusable,
};
