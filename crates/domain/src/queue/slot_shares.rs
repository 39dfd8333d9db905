//! The rule by which instances share the slots of an agent: each instance holds some, and begins no call beyond them.
//! Only the instance itself changes the number that it holds, so that all together never hold more slots than there
//! are. An instance that needs more records that, and the others give back what exceeds their share as their calls end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::values::{ids::InstanceId, lease::Holder};

/// The slots of one agent, as they are recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotShares(BTreeMap<InstanceId, SlotShare>);

/// The slots that one instance holds, and the number that it could use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct SlotShare {
    /// The process that holds the slots. A later process with the same instance id holds none of them.
    process: String,
    slots: u32,
    wants: u32,
}

/// The slots that an instance needs of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotNeed {
    /// The slots that are in use, or are about to be. The instance cannot give them back.
    pub in_use: u32,
    /// The slots that it could use.
    pub wants: u32,
    /// The most calls that all instances may have in flight.
    pub max: u32,
}

impl SlotNeed {
    /// The instance gives back all slots that it holds.
    pub const NONE: Self = Self {
        in_use: 0,
        wants: 0,
        max: 0,
    };
}

/// The slots that an instance may use of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotGrant {
    /// The instance begins no call while this many are in flight.
    pub slots: u32,
    /// The instance has fewer slots than its share: other instances are about to give back some.
    pub is_short: bool,
    /// Other instances have a share as well.
    pub is_contested: bool,
}

impl SlotShares {
    /// Gives an instance the free slots up to its share, and takes back slots that it does not use and others wait for.
    /// `live` are the processes whose leases have not expired.
    pub fn grant(&mut self, by: &Holder, need: SlotNeed, live: &[Holder]) -> SlotGrant {
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
        // The instance keeps slots that no other instance wants.
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

    /// Returns the share of each instance, in order: none gets more than it wants, and all that get less than they want
    /// get the same number. The remainder of the division stays with the instances that have it.
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

    /// Returns the slots that each instance holds.
    pub fn held(&self) -> impl Iterator<Item = (&InstanceId, u32)> {
        self.0
            .iter()
            .map(|(instance, share)| (instance, share.slots))
    }

    /// Returns the number of slots that the instance holds.
    pub fn slots_of(&self, instance: &InstanceId) -> u32 {
        self.0.get(instance).map_or(0, |share| share.slots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::values::lease::Incarnation;

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

    /// Returns the slots that these instances hold in the end, if each has this need all the time.
    fn settled(shares: &mut SlotShares, live: &[Holder], needs: &[SlotNeed]) -> Vec<u32> {
        for _ in 0..3 {
            for (by, need) in live.iter().zip(needs) {
                shares.grant(by, *need, live);
            }
        }
        live.iter()
            .map(|by| shares.slots_of(&by.instance))
            .collect()
    }

    #[test]
    fn one_alone_gets_what_it_wants_and_keeps_it() {
        let live = [holder(1)];
        let mut shares = SlotShares::default();
        assert_eq!(settled(&mut shares, &live, &[need(0, 4)]), [4]);
        assert_eq!(settled(&mut shares, &live, &[need(4, 10)]), [10]);
        assert_eq!(settled(&mut shares, &live, &[need(1, 1)]), [10]);
        let grant = shares.grant(&live[0], need(1, 1), &live);
        assert_eq!(grant.slots, 10);
        assert!(!grant.is_short && !grant.is_contested);
    }

    #[test]
    fn another_gets_its_share_as_calls_end() {
        let live = [holder(1), holder(2)];
        let [one, two] = &live;
        let mut shares = SlotShares::default();
        shares.grant(one, need(0, 10), &live);
        let waits = shares.grant(two, need(0, 10), &live);
        assert_eq!((waits.slots, waits.is_short), (0, true));
        // The instance begins no new calls beyond its share, but its calls in flight still hold slots.
        let gives = shares.grant(one, need(8, 10), &live);
        assert_eq!((gives.slots, gives.is_contested), (5, true));
        assert_eq!(shares.slots_of(&one.instance), 8);
        let grant = shares.grant(two, need(0, 10), &live);
        assert_eq!((grant.slots, grant.is_short), (2, true));
        shares.grant(one, need(5, 10), &live);
        let grant = shares.grant(two, need(2, 10), &live);
        assert_eq!((grant.slots, grant.is_short), (5, false));
        // The other instance gets the slots that this one does not want any more.
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
        // A later process with the same instance id holds none of the slots.
        let mut next = holder(1);
        next.incarnation = Incarnation(Uuid::from_u128(7));
        let live = [next];
        let grant = shares.grant(&live[0], need(0, 3), &live);
        assert_eq!(grant.slots, 3);
        assert_eq!(shares.slots_of(&live[0].instance), 3);
        // A process whose lease has expired holds no slots either.
        let late = shares.grant(&live[0], need(3, 3), &[]);
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
        shares.grant(&live[0], need(0, 10), &live);
        let lower = SlotNeed {
            max: 3,
            ..need(7, 10)
        };
        assert_eq!(shares.grant(&live[0], lower, &live).slots, 3);
        assert_eq!(shares.slots_of(&live[0].instance), 7);
        let ended = SlotNeed { in_use: 2, ..lower };
        assert_eq!(shares.grant(&live[0], ended, &live).slots, 3);
        assert_eq!(shares.slots_of(&live[0].instance), 3);
    }

    proptest! {
        /// All instances together never have more calls in flight than there are slots, also if some of them are
        /// killed.
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
                // Calls end, and others begin, up to the number that was granted.
                in_use[at] = if begun <= in_use[at] { begun } else { begun.min(granted[at]).max(in_use[at]) };
                let mut need = SlotNeed { in_use: in_use[at], wants, max };
                // Slots that are to be given back are not used from now on; until then calls begin up to the grant,
                // until the record is saved.
                let capped = granted[at].min(shares.clone().grant(&live[at], need, &live).slots);
                need.in_use = capped.max(in_use[at]);
                in_use[at] = need.in_use;
                granted[at] = shares.grant(&live[at], need, &live).slots;
                let most: u32 = (0..4).map(|at| granted[at].max(in_use[at])).sum();
                prop_assert!(most <= max, "{granted:?} and {in_use:?} of {max}");
                let held: u32 = shares.held().map(|(_, slots)| slots).sum();
                prop_assert!(held <= max && held >= in_use.iter().sum());
            }
            // Every instance wants all slots: each gets its share.
            for _ in 0..4 {
                for at in 0..4 {
                    let need = SlotNeed { in_use: 0, wants: max, max };
                    granted[at] = shares.grant(&live[at], need, &live).slots;
                }
            }
            prop_assert!(granted.iter().all(|slots| *slots >= max / 4), "{granted:?} of {max}");
        }
    }
}
