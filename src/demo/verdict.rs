//! Checks whether an order ended as it should, according to Provost and to the records of the remote services.

use super::{
    api::TaskJson,
    orders::{Order, Remote},
};

/// Returns every deviation from the expected result. `effects` returns how often a service did its work for the order.
pub fn faults(
    order: &Order,
    task: Option<&TaskJson>,
    effects: impl Fn(Remote) -> usize,
) -> Vec<String> {
    let mut faults = Vec::new();
    let ending = order.ending();
    match task {
        None => faults.push("was never accepted".to_owned()),
        Some(task) => {
            if task.state != ending.state() {
                let expected = ending.state();
                faults.push(format!("is {}, should be {expected}", task.state));
            }
            let failures: u32 = task.steps.iter().map(|step| step.failure_count).sum();
            if order.is_recovered() && failures == 0 {
                faults.push("was not recovered by the supervisor".to_owned());
            }
        }
    }
    for remote in Remote::ALL {
        let (done, expected) = (effects(remote), ending.effects(remote));
        if done != expected {
            let (agent, what) = (remote.agent(), remote.effects());
            faults.push(format!(
                "{agent} made {done} {what} for it, should be {expected}"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::demo::orders::{self, OrderEnd};

    fn order(key: &str) -> Order {
        let mut orders = orders::all().into_iter();
        orders.find(|order| order.key() == key).unwrap()
    }

    fn task(state: &str, failure_count: u32) -> TaskJson {
        let task = json!({ "id": "1", "state": state, "created_at": "", "steps": [
            { "name": "ship", "state": state, "attempt": 1, "failure_count": failure_count } ] });
        serde_json::from_value(task).unwrap()
    }

    fn judged(key: &str, task: &TaskJson, effects: [usize; 3]) -> Vec<String> {
        faults(&order(key), Some(task), |remote| effects[remote as usize])
    }

    #[test]
    fn an_order_that_did_everything_once_is_as_it_should_be() {
        assert_eq!(
            judged("order-1001", &task("processed", 0), [1, 1, 1]),
            [""; 0]
        );
        assert_eq!(judged("order-1007", &task("error", 0), [1, 0, 0]), [""; 0]);
    }

    #[test]
    fn a_card_charged_twice_is_found() {
        let faults = judged("order-1001", &task("processed", 0), [1, 2, 1]);
        assert_eq!(faults, ["payments made 2 charges for it, should be 1"]);
    }

    #[test]
    fn a_declined_order_that_was_shipped_is_found() {
        let faults = judged("order-1007", &task("processed", 0), [1, 0, 1]);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn an_order_that_never_ended_or_began_is_found() {
        assert_eq!(
            judged("order-1001", &task("processing", 0), [1, 1, 1]),
            ["is processing, should be processed"]
        );
        let never = faults(&order("order-1001"), None, |remote| {
            OrderEnd::Processed.effects(remote)
        });
        assert_eq!(never, ["was never accepted"]);
    }

    #[test]
    fn a_service_that_never_answered_must_have_been_noticed() {
        let key = "order-1009";
        assert_eq!(judged(key, &task("processed", 1), [1, 1, 1]), [""; 0]);
        let unnoticed = judged(key, &task("processed", 0), [1, 1, 1]);
        assert_eq!(unnoticed, ["was not recovered by the supervisor"]);
    }
}
