//! The harness of the chaos tests (`tests/process/harness`) for the simulation: the same client and the same remote
//! services, with connections in memory and the clock of the world. So the simulation and the chaos tests of real
//! processes share their orders, services, workers, people and operators.

#[allow(dead_code, reason = "the tests of the binary use the rest of it")]
#[path = "../../tests/process/harness/act.rs"]
mod act;
#[allow(dead_code, reason = "the tests of the binary use the rest of it")]
#[path = "../../tests/process/harness/wire.rs"]
mod wire;

use std::{
    fmt::{self, Debug, Display, Formatter},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

pub use act::{Act, Hook, Seen};
use tokio::time::sleep;

pub use self::SimulatedRemote as Remote;
pub use super::client::{SimulatedAnswer as Answer, SimulatedApi as Api};
use super::{event_log::shown_path, world::SimulatedWorld};

/// Returns the time since 1970 by the clock of the world.
pub fn since_epoch() -> Duration {
    SimulatedWorld::of_this_thread().since_epoch()
}

/// Repeats the request until it returns this value.
pub async fn until<T: PartialEq + Debug, F: Future<Output = T>>(
    wanted: T,
    mut ask: impl FnMut() -> F,
) {
    while ask().await != wanted {
        sleep(Duration::from_millis(50)).await;
    }
}

/// A remote service in the runtime of the world.
#[derive(Clone)]
pub struct SimulatedRemote {
    address: SocketAddr,
}

impl SimulatedRemote {
    /// Starts a service that decides on each request by itself.
    pub async fn with(behaviour: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let world = SimulatedWorld::of_this_thread();
        let address = world.new_address();
        let behaviour = Arc::new(behaviour);
        let mut accepted = world.surroundings.listen(address);
        tokio::spawn(async move {
            while let Some(stream) = accepted.recv().await {
                let (world, behaviour) = (world.clone(), behaviour.clone());
                tokio::spawn(act::serve(stream, move |seen| {
                    let act = behaviour(&seen);
                    world.note(format_args!("{}: {}", ShownRequest(&seen), ShownAct(&act)));
                    act
                }));
            }
        });
        Self { address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Shows a request to a service, or a message, in one line.
struct ShownRequest<'a>(&'a Seen);

impl Display for ShownRequest<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(seen) = self;
        write!(f, "{} {}", seen.method, shown_path(&seen.path))?;
        let names = [
            "provost-task",
            "provost-step",
            "provost-attempt",
            "webhook-id",
        ];
        for value in names.iter().filter_map(|name| seen.headers.get(*name)) {
            write!(f, " {value}")?;
        }
        if let Some(kind) = seen.body["type"].as_str() {
            write!(f, " {kind} of {}", seen.body["subject"])?;
        }
        Ok(())
    }
}

struct ShownAct<'a>(&'a Act);

impl Display for ShownAct<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Act::Answer { status, .. } => write!(f, "{status}"),
            Act::Hang => f.write_str("no response"),
            Act::Close => f.write_str("the connection is closed"),
            Act::Then(time, _, act) => write!(f, "{} after {time:?}", ShownAct(act)),
            Act::Slowly(pause, act) => write!(f, "{}, a byte each {pause:?}", ShownAct(act)),
            _ => f.write_str("another response"),
        }
    }
}
