//! Reports to systemd (sd_notify(3)) that the service is ready, reloads its settings, stops, and is alive. Does
//! nothing without systemd.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

use crate::clock::{MissedTickBehavior, interval};

/// The socket for the messages. It is read from the environment once, because it does not change.
pub struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Systemd {
    /// Opens the socket that `NOTIFY_SOCKET` names: a path, or an abstract name after an `@`.
    pub fn from_env() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else {
            return Self { socket: None };
        };
        let opened = open(name.as_encoded_bytes());
        if let Err(error) = &opened {
            warn!(%error, "NOTIFY_SOCKET cannot be used: systemd gets no notifications");
        }
        Self {
            socket: opened.ok(),
        }
    }

    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=ready");
    }

    /// Reports a reload, which lasts until [`Systemd::ready`].
    #[expect(
        clippy::disallowed_methods,
        reason = "systemd compares it with its own clock"
    )]
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=stopping: running calls may finish");
    }

    /// Reports twice per watchdog interval that the service is alive, if there is a watchdog. Never ends.
    pub async fn keep_alive(&self) {
        let Some(longest) = watchdog() else {
            return std::future::pending().await;
        };
        let mut ticks = interval((longest / 2).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.say("WATCHDOG=1");
        }
    }

    fn say(&self, message: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            warn!(%error, message, "could not notify systemd");
        }
    }
}

fn open(name: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => {
            let path = std::str::from_utf8(name).map_err(io::Error::other)?;
            SocketAddr::from_pathname(path)?
        }
    };
    let socket = UnixDatagram::unbound()?;
    // If the buffer of the socket is full, the message is dropped, because this code must not block.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// The watchdog interval, if systemd watches this process.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let of_another = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 0)?;
    (!of_another).then(|| Duration::from_micros(micros))
}
