//! How instances share the slots of an agent: each holds some, and begins no call beyond them. What an instance holds
//! is only ever changed by itself, so that all together never hold more than there are; one that needs more says so,
//! and the others give back what is more than their share as their calls end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ids::InstanceId, lease::Holder};

/// The slots of one agent, as the record has them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotShares(BTreeMap<InstanceId, SlotShare>);

/// What one instance holds, and how many it could use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct SlotShare {
    /// The process that holds them: one that follows it under its name holds none of them.
    process: String,
    slots: u32,
    wants: u32,
}

/// What an instance needs of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotNeed {
    /// Slots in use, or about to be, which it cannot give back.
    pub in_use: u32,
    /// The slots that it could use.
    pub wants: u32,
    /// The most calls that all instances may have in flight.
    pub max: u32,
}

impl SlotNeed {
    /// It gives back whatever it holds.
    pub const NONE: Self = Self {
        in_use: 0,
        wants: 0,
        max: 0,
    };
}

/// What an instance may do with an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotGrant {
    /// It begins no call while so many are in flight.
    pub slots: u32,
    /// It has fewer than its share: others are about to give back some.
    pub is_short: bool,
    /// Other instances have a share as well.
    pub is_contested: bool,
}

impl SlotShares {
    /// Gives an instance what is its due and free, and takes back what others wait for and it does not use.
    /// `live`: the processes whose leases have not run out.
    pub fn settle(&mut self, by: &Holder, need: SlotNeed, live: &[Holder]) -> SlotGrant {
        let SlotNeed { in_use, max, .. } = need;
        let is_live = |instance: &InstanceId, share: &SlotShare| {
            let process = |holder: &Holder| holder.incarnation.0.to_string() == share.process;
            live.iter()
                .any(|holder| holder.instance == *instance && process(holder))
        };
        self.0.retain(|instance, share| is_live(instance, share));
        let held = self.0.remove(&by.instance).map_or(0, |share| share.slots);
        if !live.contains(by) {
            return SlotGrant::default();
        }
        let wants = need.wants.max(in_use).min(max);
        let process = by.incarnation.0.to_string();
        let mine = SlotShare {
            process,
            slots: held,
            wants,
        };
        self.0.insert(by.instance.clone(), mine);
        let (mut due, mut taken, mut reserved) = (0, 0u32, 0u32);
        for ((instance, share), fair) in self.0.iter().zip(self.fair(max)) {
            if *instance == by.instance {
                due = fair;
                continue;
            }
            taken = taken.saturating_add(share.slots);
            reserved = reserved.saturating_add(share.slots.max(fair));
        }
        // What nobody else wants stays where it is.
        let kept = held.min(max.saturating_sub(reserved));
        let slots = due.max(kept).min(max.saturating_sub(taken));
        let grant = SlotGrant {
            slots,
            is_short: slots < due,
            is_contested: self.0.len() > 1,
        };
        let slots = slots.max(in_use.min(held));
        match self.0.get_mut(&by.instance) {
            Some(share) if slots > 0 || wants > 0 => share.slots = slots,
            _ => drop(self.0.remove(&by.instance)),
        }
        grant
    }

    /// What is due to each instance, in order: none gets more than it wants, and those that get less all get as much.
    /// What cannot be divided stays with those that have it.
    fn fair(&self, max: u32) -> Vec<u32> {
        let all: Vec<&SlotShare> = self.0.values().collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|at| (all[*at].wants, all[*at].slots));
        let mut fair = vec![0; all.len()];
        let mut left = max;
        for (done, at) in order.into_iter().enumerate() {
            let waiting = u32::try_from(all.len() - done).unwrap_or(u32::MAX);
            fair[at] = all[at].wants.min(left / waiting);
            left -= fair[at];
        }
        fair
    }

    /// What each instance holds.
    pub fn held(&self) -> impl Iterator<Item = (&InstanceId, u32)> {
        self.0
            .iter()
            .map(|(instance, share)| (instance, share.slots))
    }

    /// How many the instance holds.
    pub fn of(&self, instance: &InstanceId) -> u32 {
        self.0.get(instance).map_or(0, |share| share.slots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::Incarnation;

    fn holder(number: u128) -> Holder {
        Holder {
            instance: InstanceId::new(format!("node-{number}")),
            incarnation: Incarnation(Uuid::from_u128(number)),
        }
    }

    fn need(in_use: u32, wants: u32) -> SlotNeed {
        let max = 10;
        SlotNeed { in_use, wants, max }
    }

    /// Everything that the shares of these instances come to, if each has so many in use and wants so many.
    fn settled(shares: &mut SlotShares, live: &[Holder], needs: &[SlotNeed]) -> Vec<u32> {
        for _ in 0..3 {
            for (by, need) in live.iter().zip(needs) {
                shares.settle(by, *need, live);
            }
        }
        live.iter().map(|by| shares.of(&by.instance)).collect()
    }

    #[test]
    fn one_alone_gets_what_it_wants_and_keeps_it() {
        let live = [holder(1)];
        let mut shares = SlotShares::default();
        assert_eq!(settled(&mut shares, &live, &[need(0, 4)]), [4]);
        assert_eq!(settled(&mut shares, &live, &[need(4, 10)]), [10]);
        assert_eq!(settled(&mut shares, &live, &[need(1, 1)]), [10]);
        let grant = shares.settle(&live[0], need(1, 1), &live);
        assert_eq!(grant.slots, 10);
        assert!(!grant.is_short && !grant.is_contested);
    }

    #[test]
    fn another_gets_its_share_as_calls_end() {
        let live = [holder(1), holder(2)];
        let [one, two] = &live;
        let mut shares = SlotShares::default();
        shares.settle(one, need(0, 10), &live);
        let waits = shares.settle(two, need(0, 10), &live);
        assert_eq!((waits.slots, waits.is_short), (0, true));
        // No new calls beyond its share, but those in flight count.
        let gives = shares.settle(one, need(8, 10), &live);
        assert_eq!((gives.slots, gives.is_contested), (5, true));
        assert_eq!(shares.of(&one.instance), 8);
        let grant = shares.settle(two, need(0, 10), &live);
        assert_eq!((grant.slots, grant.is_short), (2, true));
        shares.settle(one, need(5, 10), &live);
        let grant = shares.settle(two, need(2, 10), &live);
        assert_eq!((grant.slots, grant.is_short), (5, false));
        // What it does not want any more is left to the other.
        assert_eq!(
            settled(&mut shares, &live, &[need(5, 10), need(0, 1)]),
            [9, 1]
        );
        assert_eq!(
            settled(&mut shares, &live, &[need(5, 10), need(0, 0)]),
            [10, 0]
        );
    }

    #[test]
    fn the_slots_of_a_process_that_is_gone_are_free() {
        let mut shares = SlotShares::default();
        let live = [holder(1), holder(2)];
        assert_eq!(
            settled(&mut shares, &live, &[need(0, 10), need(0, 10)]),
            [5, 5]
        );
        let survivor = &live[..1];
        assert_eq!(settled(&mut shares, survivor, &[need(5, 10)]), [10]);
        // A process that follows it under its name holds none of its slots.
        let mut next = holder(1);
        next.incarnation = Incarnation(Uuid::from_u128(7));
        let live = [next];
        let grant = shares.settle(&live[0], need(0, 3), &live);
        assert_eq!(grant.slots, 3);
        assert_eq!(shares.of(&live[0].instance), 3);
        // Nor does one whose lease has run out.
        let late = shares.settle(&live[0], need(3, 3), &[]);
        assert_eq!(late, SlotGrant::default());
        assert_eq!(shares, SlotShares::default());
    }

    #[test]
    fn with_fewer_slots_than_instances_one_keeps_them_while_it_wants_them() {
        let live = [holder(1), holder(2)];
        let mut shares = SlotShares::default();
        let one_slot = |in_use, wants| SlotNeed {
            in_use,
            wants,
            max: 1,
        };
        let both = [one_slot(1, 1), one_slot(0, 1)];
        assert_eq!(settled(&mut shares, &live, &both), [1, 0]);
        let idle = [one_slot(0, 0), one_slot(0, 1)];
        assert_eq!(settled(&mut shares, &live, &idle), [0, 1]);
    }

    #[test]
    fn a_lower_maximum_takes_effect_as_calls_end() {
        let live = [holder(1)];
        let mut shares = SlotShares::default();
        shares.settle(&live[0], need(0, 10), &live);
        let lower = SlotNeed {
            max: 3,
            ..need(7, 10)
        };
        assert_eq!(shares.settle(&live[0], lower, &live).slots, 3);
        assert_eq!(shares.of(&live[0].instance), 7);
        let ended = SlotNeed { in_use: 2, ..lower };
        assert_eq!(shares.settle(&live[0], ended, &live).slots, 3);
        assert_eq!(shares.of(&live[0].instance), 3);
    }

    proptest! {
        /// Whatever instances do, and whichever is killed: all together never have more calls in flight than there are slots.
        #[test]
        fn never_more_than_there_are(
            max in 1u32..20,
            steps in prop::collection::vec((0usize..4, 0u32..30, 0u32..30, prop::bool::weighted(0.05)), 1..80),
        ) {
            let mut live: Vec<Holder> = (0..4).map(holder).collect();
            let (mut granted, mut in_use) = ([0u32; 4], [0u32; 4]);
            let mut shares = SlotShares::default();
            let mut next = 4;
            for (at, begun, wants, dies) in steps {
                if dies {
                    live[at] = Holder { instance: live[at].instance.clone(), ..holder(next) };
                    next += 1;
                    (granted[at], in_use[at]) = (0, 0);
                }
                // Calls end, and others begin, up to what was granted.
                in_use[at] = if begun <= in_use[at] { begun } else { begun.min(granted[at]).max(in_use[at]) };
                let mut need = SlotNeed { in_use: in_use[at], wants, max };
                // What is to be given back is not used from now on; up to that calls begin until the record has it.
                let capped = granted[at].min(shares.clone().settle(&live[at], need, &live).slots);
                need.in_use = capped.max(in_use[at]);
                in_use[at] = need.in_use;
                granted[at] = shares.settle(&live[at], need, &live).slots;
                let most: u32 = (0..4).map(|at| granted[at].max(in_use[at])).sum();
                prop_assert!(most <= max, "{granted:?} and {in_use:?} of {max}");
                let held: u32 = shares.held().map(|(_, slots)| slots).sum();
                prop_assert!(held <= max && held >= in_use.iter().sum());
            }
            // All want all of it: each gets its share.
            for _ in 0..4 {
                for at in 0..4 {
                    let need = SlotNeed { in_use: 0, wants: max, max };
                    granted[at] = shares.settle(&live[at], need, &live).slots;
                }
            }
            prop_assert!(granted.iter().all(|slots| *slots >= max / 4), "{granted:?} of {max}");
        }
    }
}
