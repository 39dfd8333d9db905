//! Notifications between instances: there may be something to do. They are hints; every instance polls as well.
//!
//! The commit of a notification takes a lock that all databases of the server share. So the writer never sends one, and
//! at most one of each kind is sent within [`REST`]. Drops are the exception: a call that continues after its attempt
//! was given up may do harm all the time.

use std::{
    ops::BitOrAssign,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use sqlx::{
    Executor, PgPool,
    postgres::{PgListener, PgPoolOptions},
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{ACQUIRE_WITHIN, answered, servers::Servers};
use crate::{
    chance,
    clock::{self, sleep},
    domain::values::jittered,
};

const REST: Duration = Duration::from_millis(100);
/// The shortest pause before any notification, also an urgent one.
const LEAST_REST: Duration = Duration::from_millis(5);
/// After this time without a notification the listener tests its connection.
const SILENCE: Duration = Duration::from_secs(20);
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

/// The kinds of things that may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notification {
    /// Steps that are not claimed.
    pub work: bool,
    /// Tasks that ended or are in error.
    pub tasks: bool,
    /// Agents or workflows.
    pub registrations: bool,
    /// Calls of other instances that must be dropped.
    pub drops: bool,
    /// The slots of agents that instances hold.
    pub slots: bool,
}

impl Notification {
    pub const WORK: Notification = Notification {
        work: true,
        tasks: false,
        registrations: false,
        drops: false,
        slots: false,
    };
    pub const REGISTRATIONS: Notification = Notification {
        work: false,
        tasks: false,
        registrations: true,
        drops: false,
        slots: false,
    };
    pub const SLOTS: Notification = Notification {
        work: false,
        tasks: false,
        registrations: false,
        drops: false,
        slots: true,
    };
    pub const EVERYTHING: Notification = Notification {
        work: true,
        tasks: true,
        registrations: true,
        drops: true,
        slots: true,
    };

    const CHANNELS: [(&'static str, u8); 5] = [
        ("provost_work", 1),
        ("provost_tasks", 2),
        ("provost_registrations", 4),
        ("provost_drops", 8),
        ("provost_slots", 16),
    ];

    fn bits(self) -> u8 {
        u8::from(self.work)
            | u8::from(self.tasks) << 1
            | u8::from(self.registrations) << 2
            | u8::from(self.drops) << 3
            | u8::from(self.slots) << 4
    }

    fn of_channel(channel: &str) -> Self {
        let known = Self::CHANNELS.iter().find(|(name, _)| *name == channel);
        let bits = known.map_or(0, |(_, bit)| *bit);
        Notification {
            work: bits & 1 > 0,
            tasks: bits & 2 > 0,
            registrations: bits & 4 > 0,
            drops: bits & 8 > 0,
            slots: bits & 16 > 0,
        }
    }
}

impl BitOrAssign for Notification {
    fn bitor_assign(&mut self, other: Self) {
        self.work |= other.work;
        self.tasks |= other.tasks;
        self.registrations |= other.registrations;
        self.drops |= other.drops;
        self.slots |= other.slots;
    }
}

/// Notifies the other instances soon, and once for many changes that occur together.
#[derive(Clone)]
pub(super) struct Notifier {
    due: Arc<AtomicU8>,
    wake: mpsc::Sender<()>,
    /// Notified for a change that must not wait for others to be sent with it.
    urgent: Arc<Notify>,
}

impl Notifier {
    pub fn notify(&self, notification: Notification) {
        if notification != Notification::default() {
            self.due.fetch_or(notification.bits(), Ordering::AcqRel);
            if notification.drops {
                self.urgent.notify_one();
            }
            // If the channel is full, the task is about to read `due` anyway.
            let _ = self.wake.try_send(());
        }
    }
}

/// Receives the notifications of other instances.
pub struct NotificationListener {
    servers: Arc<Servers>,
    /// The payload of this instance's own notifications, so that it does not wake itself.
    own: String,
}

/// Creates the notifier and the listener. The notifier's task ends when the notifier is dropped.
pub(super) fn start(pool: PgPool, servers: Arc<Servers>) -> (Notifier, NotificationListener) {
    let own = format!("{:032x}", chance::random::<u128>());
    let due = Arc::new(AtomicU8::new(0));
    let (wake, woken) = mpsc::channel(1);
    let urgent = Arc::new(Notify::new());
    let sending = send(pool, due.clone(), woken, urgent.clone(), own.clone());
    tokio::spawn(sending);
    (
        Notifier { due, wake, urgent },
        NotificationListener { servers, own },
    )
}

async fn send(
    pool: PgPool,
    due: Arc<AtomicU8>,
    mut woken: mpsc::Receiver<()>,
    urgent: Arc<Notify>,
    own: String,
) {
    while woken.recv().await.is_some() {
        let bits = due.swap(0, Ordering::AcqRel);
        let channels: Vec<_> = Notification::CHANNELS
            .iter()
            .filter(|(_, bit)| bits & bit > 0)
            .map(|(name, _)| *name)
            .collect();
        let notified =
            sqlx::query("SELECT pg_notify(channel, $2) FROM unnest($1::text[]) AS channel")
                .bind(channels)
                .bind(&own)
                .execute(&pool);
        if let Err(error) = answered(notified).await {
            debug!(%error, "could not notify other instances; they will find the changes by polling");
        }
        sleep(LEAST_REST).await;
        tokio::select! {
            () = sleep(REST) => {}
            () = urgent.notified() => {}
        }
    }
}

impl NotificationListener {
    /// Calls `hear` with the kinds that may have changed, until `stop`. After a lost connection these are all kinds.
    pub async fn run(self, hear: impl Fn(Notification) + Send, stop: CancellationToken) {
        let listening = async {
            let mut lost = false;
            loop {
                match self.listen(&hear, lost).await {
                    Ok(()) => warn!("notifications stopped arriving; listening again"),
                    Err(error) => {
                        warn!(%error, "cannot listen for notifications; polling continues")
                    }
                }
                lost = true;
                sleep(jittered(CONNECT_AGAIN, chance::random())).await;
            }
        };
        stop.run_until_cancelled(listening).await;
    }

    /// Returns when the connection is lost permanently.
    async fn listen(&self, hear: &impl Fn(Notification), again: bool) -> Result<(), sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(ACQUIRE_WITHIN)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(self.servers.current());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener
            .listen_all(Notification::CHANNELS.map(|(name, _)| name))
            .await?;
        if again {
            info!("listening for notifications again");
        }
        // This comes after LISTEN has begun, so that no change in between is missed.
        hear(Notification::EVERYTHING);
        loop {
            match clock::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(note))) if note.payload() == self.own => {}
                Ok(Ok(Some(note))) => hear(Notification::of_channel(note.channel())),
                // The connection was lost, and has been made again.
                Ok(Ok(None)) => hear(Notification::EVERYTHING),
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    if answered(listener.execute("SELECT 1")).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}
