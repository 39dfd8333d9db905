//! Watches the sick endpoint of a service: Provost must eject it, and must not call it while it is ejected.

use super::{api::EndpointJson, remote::DoorCounts};

#[derive(Default)]
pub struct EjectionWatch {
    /// True if the endpoint was seen in the state `ejected`.
    pub was_ejected: bool,
    /// The calls that arrived while it was ejected.
    pub called_while_ejected: usize,
    /// The calls that had arrived at the last observation of the current ejection; `None` while a call from before it
    /// is in flight.
    at_rest: Option<usize>,
}

impl EjectionWatch {
    /// Records one observation. `counts` must be read before `endpoint`: if the endpoint is still ejected at the second
    /// read, the new calls in `counts` arrived while it was ejected.
    pub fn record(&mut self, endpoint: &EndpointJson, counts: DoorCounts) {
        if endpoint.state != "ejected" {
            self.at_rest = None;
            return;
        }
        self.was_ejected = true;
        // Calls that were in flight when it was ejected may still arrive.
        self.at_rest = match self.at_rest {
            None => (endpoint.in_flight == 0).then_some(counts.calls),
            Some(known) => {
                self.called_while_ejected += counts.calls.saturating_sub(known);
                Some(counts.calls)
            }
        };
    }

    /// Returns every deviation from the expected behaviour. An endpoint that refused `ejected_after` calls or more must
    /// have been ejected.
    pub fn faults(&self, counts: DoorCounts, ejected_after: usize) -> Vec<String> {
        let mut faults = Vec::new();
        if self.called_while_ejected > 0 {
            let calls = self.called_while_ejected;
            faults.push(format!("was called {calls} times while it was ejected"));
        }
        if counts.refused >= ejected_after && !self.was_ejected {
            let refused = counts.refused;
            faults.push(format!("refused {refused} calls and was never ejected"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(looks: &[(&str, u32, usize)]) -> EjectionWatch {
        let mut watch = EjectionWatch::default();
        for (state, in_flight, calls) in looks {
            let endpoint = EndpointJson {
                url: "http://sick".to_owned(),
                state: (*state).to_owned(),
                in_flight: *in_flight,
            };
            let calls = *calls;
            watch.record(&endpoint, DoorCounts { calls, refused: 3 });
        }
        watch
    }

    const REFUSED: DoorCounts = DoorCounts {
        calls: 3,
        refused: 3,
    };

    #[test]
    fn an_endpoint_that_is_ejected_and_left_alone_is_as_it_should_be() {
        let left_alone = [
            ("healthy", 1, 1),
            ("ejected", 1, 3),
            ("ejected", 0, 4),
            ("ejected", 0, 4),
            ("healthy", 2, 6),
        ];
        let watch = watched(&left_alone);
        assert!(watch.was_ejected);
        assert_eq!(watch.faults(REFUSED, 3), [""; 0]);
    }

    #[test]
    fn a_call_while_it_is_ejected_is_found() {
        let watch = watched(&[("ejected", 0, 3), ("ejected", 1, 4), ("ejected", 0, 5)]);
        let faults = watch.faults(REFUSED, 3);
        assert_eq!(faults, ["was called 2 times while it was ejected"]);
        // Another ejection begins a new count.
        let again = watched(&[("ejected", 0, 3), ("healthy", 0, 9), ("ejected", 0, 9)]);
        assert_eq!(again.faults(REFUSED, 3), [""; 0]);
    }

    #[test]
    fn an_endpoint_that_refuses_calls_and_is_never_ejected_is_found() {
        let watch = watched(&[("healthy", 0, 3)]);
        let faults = watch.faults(REFUSED, 3);
        assert_eq!(faults, ["refused 3 calls and was never ejected"]);
        assert_eq!(watch.faults(REFUSED, 4), [""; 0]);
    }
}
