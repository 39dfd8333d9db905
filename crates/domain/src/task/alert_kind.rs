//! The kinds of alerts: the conditions that need an operator.

/// The subject of an alert.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(const_into_str)]
pub enum AlertKind {
    /// A step is in error.
    #[strum(serialize = "task.error")]
    TaskError,
    /// An undo step is in error.
    #[strum(serialize = "task.undo_failed")]
    UndoFailed,
    /// The service failed while it decided on the task.
    #[strum(serialize = "task.fault")]
    ServiceFault,
    /// The record of the task is damaged.
    #[strum(serialize = "task.unreadable")]
    TaskUnreadable,
    /// A receiver has dead letters.
    #[strum(serialize = "message.undeliverable")]
    MessageUndeliverable,
    /// Too many bytes of messages wait for a receiver.
    #[strum(serialize = "messages.waiting")]
    MessagesWaiting,
    /// A message broker cannot be used.
    #[strum(serialize = "broker.unreachable")]
    BrokerUnreachable,
    /// The breaker of an agent is open.
    #[strum(serialize = "breaker.open")]
    BreakerOpen,
    /// An endpoint of an agent fails its checks.
    #[strum(serialize = "endpoint.unhealthy")]
    EndpointUnhealthy,
    /// An instance cannot use a secret that agents need.
    #[strum(serialize = "secret.unusable")]
    SecretUnusable,
    /// Steps are queued for an agent that does not exist.
    #[strum(serialize = "agent.missing")]
    AgentMissing,
    /// Tasks will be late because of an agent.
    #[strum(serialize = "tasks.at_risk")]
    TasksAtRisk,
    /// A schedule cannot submit its task.
    #[strum(serialize = "schedule.failing")]
    ScheduleFailing,
    /// The clock of the machine was set, and the store's clock follows it gradually.
    #[strum(serialize = "clock.set")]
    ClockSet,
}

impl AlertKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns whether the alert is about a step in error: such a step has exactly one alert that is not closed.
    pub const fn is_of_step(self) -> bool {
        matches!(self, AlertKind::TaskError | AlertKind::UndoFailed)
    }

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}
