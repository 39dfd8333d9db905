//! The twenty orders of the demo: their contents, their faults, and their expected end. Everything is fixed, so that
//! the demo is the same each time.

use serde_json::{Value, json};

/// One of the three remote services, each with its step of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remote {
    Inventory,
    Payments,
    Shipping,
}

impl Remote {
    pub const ALL: [Remote; 3] = [Remote::Inventory, Remote::Payments, Remote::Shipping];

    /// Returns the name of its agent.
    pub fn agent(self) -> &'static str {
        match self {
            Remote::Inventory => "inventory",
            Remote::Payments => "payments",
            Remote::Shipping => "shipping",
        }
    }

    pub fn step(self) -> &'static str {
        match self {
            Remote::Inventory => "reserve",
            Remote::Payments => "charge",
            Remote::Shipping => "ship",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Remote::Inventory => "/reservations",
            Remote::Payments => "/charges",
            Remote::Shipping => "/shipments",
        }
    }

    /// Returns the unit of its work, for counting.
    pub fn effects(self) -> &'static str {
        self.path().trim_start_matches('/')
    }
}

/// A fault that a remote service injects once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// Responds with 503 and does nothing.
    Busy,
    /// Closes the socket without a response, and does nothing.
    HangsUp,
    /// Does the work, then closes the socket without a response.
    HangsUpAfterwards,
    /// Does the work, then never responds.
    NeverAnswers,
}

/// A card that the bank declines until an operator changes that.
pub const DECLINED_CARD: &str = "tok_declined";
/// Another card, which no order of the demo uses: docs/examples.md relies on it being declined, whether the first
/// one was accepted in the meantime or not.
pub const STOLEN_CARD: &str = "tok_stolen";
const GOOD_CARD: &str = "tok_visa";
/// The number of the order that is paid with [`DECLINED_CARD`].
const DECLINED: u32 = 1007;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderEnd {
    Processed,
    /// Its charge is declined permanently: it waits for an operator, and is never shipped.
    Declined,
}

impl OrderEnd {
    /// Returns the state of the task in the API.
    pub fn state(self) -> &'static str {
        match self {
            OrderEnd::Processed => "processed",
            OrderEnd::Declined => "error",
        }
    }

    /// Returns how often each service must have done its work: once, or never, but not twice.
    pub fn effects(self, remote: Remote) -> usize {
        match (self, remote) {
            (OrderEnd::Processed, _) | (OrderEnd::Declined, Remote::Inventory) => 1,
            (OrderEnd::Declined, Remote::Payments | Remote::Shipping) => 0,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Order {
    number: u32,
    /// The faults that the services inject into this order, in sequence.
    pub troubles: Vec<(Remote, InjectedFault)>,
}

/// Returns all orders, in the order of submission.
pub fn all() -> Vec<Order> {
    (1001..=1020)
        .map(|number| Order {
            number,
            troubles: troubles(number),
        })
        .collect()
}

fn troubles(number: u32) -> Vec<(Remote, InjectedFault)> {
    use InjectedFault::{Busy, HangsUp, HangsUpAfterwards, NeverAnswers};
    use Remote::{Inventory, Payments, Shipping};
    match number {
        1003 => vec![(Payments, Busy), (Payments, Busy)],
        1005 => vec![(Inventory, HangsUp)],
        1009 => vec![(Shipping, NeverAnswers)],
        1011 => vec![(Payments, HangsUpAfterwards)],
        1014 => vec![(Inventory, Busy)],
        1016 => vec![(Payments, Busy), (Shipping, HangsUp)],
        1018 => vec![(Shipping, HangsUpAfterwards)],
        _ => vec![],
    }
}

const GOODS: [(&str, u32); 4] = [
    ("book-7", 1800),
    ("mug-2", 950),
    ("lamp-4", 4200),
    ("chair-1", 11_900),
];

impl Order {
    pub fn key(&self) -> String {
        format!("order-{}", self.number)
    }

    pub fn ending(&self) -> OrderEnd {
        if self.number == DECLINED {
            OrderEnd::Declined
        } else {
            OrderEnd::Processed
        }
    }

    /// Returns whether the supervisor should recover one of its steps.
    pub fn is_recovered(&self) -> bool {
        self.troubles
            .iter()
            .any(|(_, trouble)| *trouble == InjectedFault::NeverAnswers)
    }

    pub fn submission(&self) -> Value {
        json!({ "workflow": "order", "key": self.key(), "input": self.input() })
    }

    fn input(&self) -> Value {
        let (sku, price) = GOODS[self.number as usize % GOODS.len()];
        let card = match self.ending() {
            OrderEnd::Processed => GOOD_CARD,
            OrderEnd::Declined => DECLINED_CARD,
        };
        json!({
            "sku": sku,
            "quantity": 1 + self.number % 3,
            "price": price,
            "card": card,
            "address": format!("{} Station Road", self.number % 100),
        })
    }

    /// Returns the charge's request body with a valid card.
    pub fn good_charge(&self, reservation: &Value) -> Value {
        let (_, price) = GOODS[self.number as usize % GOODS.len()];
        json!({
            "amount": price * (1 + self.number % 3),
            "card": GOOD_CARD,
            "reservation": reservation,
        })
    }
}

/// Short enough that a viewer sees the timeout of the service which never responds.
const COMPLETE_WITHIN: &str = "2s";

/// Returns the workflow `order`: reserve, charge, ship; each step reads the outputs of earlier ones.
pub fn workflow() -> Value {
    let step = |remote: Remote, body: Value| {
        json!({
            "name": remote.step(),
            "agent": remote.agent(),
            "complete_within": COMPLETE_WITHIN,
            "max_failures": 3,
            "request": { "method": "POST", "path": remote.path(), "body": body },
        })
    };
    json!({ "steps": [
        step(Remote::Inventory, json!({
            "sku": "{{ input.sku }}",
            "quantity": "{{ input.quantity }}",
        })),
        step(Remote::Payments, json!({
            "amount": "{{ input.price * input.quantity }}",
            "card": "{{ input.card }}",
            "reservation": "{{ steps.reserve.output.id }}",
        })),
        step(Remote::Shipping, json!({
            "order": "{{ task.key }}",
            "to": "{{ input.address }}",
            "paid_with": "{{ steps.charge.output.id }}",
        })),
    ] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_orders_meet_nothing_and_every_trouble_is_met() {
        let orders = all();
        assert_eq!(orders.len(), 20);
        assert_eq!(orders[0].key(), "order-1001");
        assert_eq!(orders[19].key(), "order-1020");
        let smooth = |order: &&Order| order.troubles.is_empty();
        assert!(orders.iter().filter(smooth).count() > 10);
        for trouble in [
            InjectedFault::Busy,
            InjectedFault::HangsUp,
            InjectedFault::HangsUpAfterwards,
            InjectedFault::NeverAnswers,
        ] {
            let met = |order: &Order| order.troubles.iter().any(|(_, met)| *met == trouble);
            assert!(orders.iter().any(met), "{trouble:?}");
        }
    }

    #[test]
    fn one_order_is_declined_and_one_is_recovered() {
        let orders = all();
        let declined: Vec<_> = orders
            .iter()
            .filter(|order| order.ending() == OrderEnd::Declined)
            .collect();
        assert_eq!(declined.len(), 1);
        assert_eq!(declined[0].submission()["input"]["card"], DECLINED_CARD);
        assert_eq!(
            orders.iter().filter(|order| order.is_recovered()).count(),
            1
        );
    }

    #[test]
    fn a_declined_order_is_reserved_but_never_charged_or_shipped() {
        let of = |ending: OrderEnd| Remote::ALL.map(|remote| ending.effects(remote));
        assert_eq!(of(OrderEnd::Processed), [1, 1, 1]);
        assert_eq!(of(OrderEnd::Declined), [1, 0, 0]);
    }

    #[test]
    fn a_charge_with_another_card_is_for_what_the_workflow_would_have_charged() {
        let order = &all()[6];
        let input = order.input();
        let amount = input["price"].as_u64().unwrap() * input["quantity"].as_u64().unwrap();
        assert_eq!(order.good_charge(&json!("res-1007"))["amount"], amount);
    }
}
