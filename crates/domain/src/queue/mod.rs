//! Queues of agents: which step is claimed next, and what limits it.
//!
//! A step that is ready is in the queue of its agent, or in a lane of it (`lanes`, `lane_ring`); `claim_order` and
//! `known_queue` say which step is next, `claim_ahead` how many more than there are free slots. The limits: `rate` and
//! `slot_shares` of an agent, `step_limits` and `task_limits` of a workflow.

pub(crate) mod claim_ahead;
pub(crate) mod claim_order;
pub(crate) mod key;
pub(crate) mod known_queue;
pub(crate) mod lane_ring;
pub(crate) mod lanes;
pub(crate) mod rate;
pub(crate) mod slot_shares;
pub(crate) mod step_limits;
pub(crate) mod task_limits;

pub use claim_ahead::{CallPace, claims_ahead};
pub use claim_order::{ClaimPlan, ClaimSteps, QueueRank, StepClaimResult};
pub use known_queue::{KnownQueue, LEFT_TO_OTHERS, QueuedStep, left_to_others};
pub use lane_ring::LaneRing;
pub use lanes::{Fairness, LaneRule, LaneTurn, LimitedKey, polls_of};
pub use rate::RateBucket;
pub use slot_shares::{SlotGrant, SlotNeed, SlotShares};
pub use step_limits::{StepKey, StepLane, StepRoom, is_limited_lane};
pub use task_limits::{AwaitedKey, TaskKey};
