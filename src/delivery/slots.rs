//! Limits the messages in flight: to each destination, to each receiver, and in total. A slot belongs to one of
//! several pools, depending on the state of the destination, and no pool borrows from another. So destinations that
//! never respond use up slots of their own kind only: a destination that has responded before always gets a slot, and
//! so does a new one, no matter how many are known to fail.

use std::{collections::HashMap, num::NonZeroUsize};

use lru::LruCache;
use rustix::process::{Resource, getrlimit};

use crate::domain::{
    message::DestinationResponse,
    values::{Destination, ReceiverName},
};

/// The number of destinations that the loop remembers because they accepted the last message.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Messages in flight may use one part in this many of the files that the process may open.
const SHARE_OF_FILES: u64 = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pool {
    /// Receivers whose URL is configured. They are few, and only the limit of one destination applies.
    Configured,
    /// Destinations that accepted the last message.
    Proven,
    /// The only message in flight to an unknown destination.
    First,
    /// Further messages to an unknown destination.
    Further,
    /// The probe of a failing destination.
    Probes,
}

/// The number of slots of a pool, and the most of them for one receiver.
struct Size {
    slots: usize,
    of_receiver: usize,
}

/// The sizes of the pools. A thousand hanging destinations of one receiver leave slots for other receivers.
const SIZES: [(Pool, Size); 4] = [
    (
        Pool::Proven,
        Size {
            slots: 1024,
            of_receiver: 512,
        },
    ),
    (
        Pool::First,
        Size {
            slots: 1536,
            of_receiver: 1024,
        },
    ),
    (
        Pool::Further,
        Size {
            slots: 256,
            of_receiver: 64,
        },
    ),
    (
        Pool::Probes,
        Size {
            slots: 512,
            of_receiver: 256,
        },
    ),
];

/// The most bytes of messages in flight, in total and to one receiver. A message that is alone is sent regardless of
/// its length.
const MOST_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_RECEIVER: usize = MOST_BYTES / 4;
/// A message of this length or less is not counted. The number of slots bounds these messages, and large messages that
/// no receiver accepts delay none of them.
const SMALL: usize = 16 << 10;

/// The right to have one message in flight, until it is released.
#[derive(Debug)]
pub struct DeliverySlot {
    pool: Pool,
    destination: Destination,
    receiver: ReceiverName,
    /// The bytes of the message, if it is counted.
    bytes: usize,
}

pub struct Slots {
    /// The most messages in flight to one destination.
    most: usize,
    /// The number of slots is divided by this value, because the process may be allowed fewer open files.
    divisor: usize,
    pools: HashMap<(u8, Option<ReceiverName>), usize>,
    in_flight: HashMap<Destination, usize>,
    /// The bytes in flight, by receiver and in total.
    bytes: HashMap<ReceiverName, usize>,
    all_bytes: usize,
    proven: LruCache<Destination, ()>,
}

impl Slots {
    /// `most` limits the messages in flight to one destination.
    pub fn new(most: usize) -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(files / SHARE_OF_FILES).unwrap_or(usize::MAX);
        let all: usize = SIZES.iter().map(|(_, size)| size.slots).sum();
        Self::within(most, share.max(1), all)
    }

    fn within(most: usize, share: usize, all: usize) -> Self {
        Self {
            most,
            divisor: all.div_ceil(share).max(1),
            pools: HashMap::new(),
            in_flight: HashMap::new(),
            bytes: HashMap::new(),
            all_bytes: 0,
            proven: LruCache::new(REMEMBERED),
        }
    }

    /// Returns a slot for a message, if one is free.
    pub fn acquire(
        &mut self,
        destination: &Destination,
        receiver: &ReceiverName,
        is_probe: bool,
    ) -> Option<DeliverySlot> {
        let pool = self.pool(destination, receiver, is_probe);
        let in_flight = self.in_flight_to(destination);
        if in_flight >= self.most || self.room(pool, receiver) == 0 {
            return None;
        }
        self.in_flight.insert(destination.clone(), in_flight + 1);
        for receiver in [None, Some(receiver.clone())] {
            *self.pools.entry((pool as u8, receiver)).or_default() += 1;
        }
        Some(DeliverySlot {
            pool,
            destination: destination.clone(),
            receiver: receiver.clone(),
            bytes: 0,
        })
    }

    /// Returns whether a message of this length may be sent now, in this slot, and counts its bytes if so.
    pub fn hold(&mut self, slot: &mut DeliverySlot, length: usize) -> bool {
        if length <= SMALL {
            return true;
        }
        let of_receiver = self.bytes.get(&slot.receiver).copied().unwrap_or_default();
        let fits = |used: usize, most: usize| used == 0 || used + length <= most;
        if !fits(self.all_bytes, MOST_BYTES) || !fits(of_receiver, MOST_BYTES_OF_RECEIVER) {
            return false;
        }
        slot.bytes = length;
        self.all_bytes += length;
        *self.bytes.entry(slot.receiver.clone()).or_default() += length;
        true
    }

    /// Returns how many further messages of its backlog a destination that is not failing may have in flight now.
    pub fn available(&self, destination: &Destination, receiver: &ReceiverName) -> usize {
        let pool = self.pool(destination, receiver, false);
        let left = self.most.saturating_sub(self.in_flight_to(destination));
        let room = self.room(pool, receiver);
        match pool {
            Pool::First => match left.min(room) {
                0 => 0,
                _ => 1 + (left - 1).min(self.room(Pool::Further, receiver)),
            },
            _ => left.min(room),
        }
    }

    pub fn release(&mut self, slot: DeliverySlot, response: DestinationResponse) {
        match response {
            DestinationResponse::Accepted => drop(self.proven.put(slot.destination.clone(), ())),
            DestinationResponse::Failed => drop(self.proven.pop(&slot.destination)),
            DestinationResponse::Rejected | DestinationResponse::Unknown => {}
        }
        if slot.bytes > 0 {
            self.all_bytes = self.all_bytes.saturating_sub(slot.bytes);
            if let Some(bytes) = self.bytes.get_mut(&slot.receiver) {
                *bytes = bytes.saturating_sub(slot.bytes);
                if *bytes == 0 {
                    self.bytes.remove(&slot.receiver);
                }
            }
        }
        for receiver in [None, Some(slot.receiver)] {
            let key = (slot.pool as u8, receiver);
            lower(&mut self.pools, key);
        }
        lower(&mut self.in_flight, slot.destination);
    }

    pub fn in_flight_to(&self, destination: &Destination) -> usize {
        self.in_flight.get(destination).copied().unwrap_or_default()
    }

    fn pool(&self, destination: &Destination, receiver: &ReceiverName, is_probe: bool) -> Pool {
        match () {
            () if destination.as_str() == receiver.as_str() => Pool::Configured,
            () if is_probe => Pool::Probes,
            () if self.proven.contains(destination) => Pool::Proven,
            () if self.in_flight_to(destination) == 0 => Pool::First,
            () => Pool::Further,
        }
    }

    fn room(&self, pool: Pool, receiver: &ReceiverName) -> usize {
        let Some((_, size)) = SIZES.iter().find(|(known, _)| *known == pool) else {
            return usize::MAX;
        };
        let used = |receiver: Option<ReceiverName>| {
            let used = self.pools.get(&(pool as u8, receiver));
            used.copied().unwrap_or_default()
        };
        let slots = |slots: usize| (slots / self.divisor).max(1);
        let all = slots(size.slots).saturating_sub(used(None));
        all.min(slots(size.of_receiver).saturating_sub(used(Some(receiver.clone()))))
    }
}

/// Subtracts one, and removes a count of zero.
fn lower<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(most: usize) -> Slots {
        Slots::within(most, 10_000, 10_000)
    }

    /// A destination below the URL of a receiver; the flag is true for a probe.
    struct To(Destination, ReceiverName, bool);

    fn to(receiver: &str, path: &str, is_probe: bool) -> To {
        let destination = Destination::new(format!("{receiver}{path}"));
        To(destination, ReceiverName::new(receiver), is_probe)
    }

    fn start(slots: &mut Slots, to: &To) -> Option<DeliverySlot> {
        slots.acquire(&to.0, &to.1, to.2)
    }

    #[test]
    fn a_destination_has_its_share_and_no_more() {
        let mut slots = slots(2);
        let (a, b) = (to("http://a:1", "/a", false), to("http://a:1", "/b", false));
        let first = start(&mut slots, &a).unwrap();
        start(&mut slots, &a).unwrap();
        assert!(start(&mut slots, &a).is_none());
        assert!(start(&mut slots, &b).is_some());
        slots.release(first, DestinationResponse::Accepted);
        assert_eq!(slots.available(&a.0, &a.1), 1);
        assert!(start(&mut slots, &a).is_some());
    }

    #[test]
    fn destinations_that_hang_leave_slots_to_every_other_kind_and_to_other_receivers() {
        let mut slots = slots(16);
        let proven = to("http://a:1", "/proven", false);
        let slot = start(&mut slots, &proven).unwrap();
        slots.release(slot, DestinationResponse::Accepted);
        // These are far more than there are slots, each with several messages.
        let mut hanging = 0;
        for number in 0..5000 {
            for probe in [true, false, false, false] {
                let path = format!("/{probe}/{number}");
                hanging +=
                    usize::from(start(&mut slots, &to("http://a:1", &path, probe)).is_some());
            }
        }
        assert_eq!(hanging, 1024 + 64 + 256);
        for _ in 0..16 {
            assert!(start(&mut slots, &proven).is_some());
        }
        assert!(start(&mut slots, &to("http://b:1", "/new", false)).is_some());
        assert!(start(&mut slots, &to("http://b:1", "/fails", true)).is_some());
        for number in 0..5000 {
            let origin = format!("http://c{number}:1");
            start(&mut slots, &to(&origin, "/new", false));
            start(&mut slots, &to(&origin, "/fails", true));
        }
        let other = to("http://b:1", "/proven", false);
        slots.proven.put(other.0.clone(), ());
        assert!(start(&mut slots, &other).is_some());
        assert!(start(&mut slots, &to("shop", "", true)).is_some());
        assert!(start(&mut slots, &to("alerts:ops", "", false)).is_some());
    }

    #[test]
    fn large_messages_in_flight_are_bounded_in_bytes_and_small_ones_are_not_held_up() {
        let mut slots = slots(1000);
        let mut hold = |receiver: &str, length: usize| {
            let mut slot = start(&mut slots, &to(receiver, "/a", false)).unwrap();
            let held = slots.hold(&mut slot, length);
            (held, slot)
        };
        let megabytes = |count: usize| count << 20;
        let (alone, whole) = hold("http://a:1", megabytes(17));
        assert!(alone, "one that is alone is sent");
        assert!(!hold("http://a:1", megabytes(1)).0);
        assert!(hold("http://a:1", SMALL).0);
        for receiver in ["http://b:1", "http://c:1"] {
            assert!(hold(receiver, megabytes(16)).0);
        }
        assert!(!hold("http://d:1", megabytes(16)).0);
        assert!(hold("http://d:1", megabytes(15)).0);
        slots.release(whole, DestinationResponse::Failed);
        let mut slot = start(&mut slots, &to("http://a:1", "/a", false)).unwrap();
        assert!(slots.hold(&mut slot, megabytes(16)));
    }

    #[test]
    fn only_a_bounded_number_of_destinations_is_remembered() {
        let mut slots = slots(16);
        for number in 0..10_000 {
            let slot = start(&mut slots, &to("http://a:1", &format!("/{number}"), false));
            slots.release(slot.unwrap(), DestinationResponse::Accepted);
        }
        assert!(slots.pools.is_empty() && slots.in_flight.is_empty());
        assert_eq!(slots.proven.len(), REMEMBERED.get());
        let failed = to("http://a:1", "/9999", false);
        let slot = start(&mut slots, &failed).unwrap();
        assert_eq!(slot.pool, Pool::Proven);
        slots.release(slot, DestinationResponse::Failed);
        assert_eq!(start(&mut slots, &failed).unwrap().pool, Pool::First);
    }

    #[test]
    fn with_few_files_there_are_few_slots_and_never_none() {
        let mut slots = Slots::within(16, 10, 3328);
        assert!(start(&mut slots, &to("http://a:1", "/new", false)).is_some());
        assert!(start(&mut slots, &to("http://a:1", "/fails", true)).is_some());
        let before = slots.in_flight.len();
        for number in 0..100 {
            start(&mut slots, &to("http://a:1", &format!("/{number}"), false));
        }
        assert!(slots.in_flight.len() <= before + 4);
    }
}
