//! The dead letter of a refused message: the unchanged message, with the problem in its headers.

use crate::{
    api::Problem, broker::OutgoingMessage, config::IntakeConfig, domain::values::shortened,
};

/// The longest problem document, in bytes. All headers must fit into one frame of the protocol.
const LONGEST_PROBLEM: usize = 16 << 10;
/// The longest detail of a problem, in bytes.
const LONGEST_DETAIL: usize = 2 << 10;

/// A message to publish, and the texts for the log.
pub struct DeadLetter {
    pub to: OutgoingMessage,
    pub slug: &'static str,
    pub detail: String,
}

pub fn dead_letter(intake: &IntakeConfig, problem: &Problem) -> DeadLetter {
    let kind = problem.kind();
    let detail = shortened(problem.detail(), LONGEST_DETAIL);
    let mut document = problem.clone().document();
    if document.len() > LONGEST_PROBLEM {
        // The document without its members: thousands of faults are no more useful than the first.
        document = Problem::new(kind, detail.clone()).document();
    }
    let headers = vec![
        ("provost-problem".into(), document),
        ("provost-problem-type".into(), kind.slug().to_owned()),
        ("provost-problem-detail".into(), detail.clone()),
        ("provost-intake".into(), intake.name.clone()),
        ("provost-queue".into(), intake.queue.clone()),
    ];
    DeadLetter {
        to: OutgoingMessage {
            exchange: intake.dead_letter_exchange.clone(),
            routing_key: intake.dead_letter_routing_key(),
            declare: true,
            headers,
            ..OutgoingMessage::default()
        },
        slug: kind.slug(),
        detail,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::domain::values::FieldFault;

    #[test]
    fn the_headers_have_the_problem_however_many_faults_there_are() {
        let intake = IntakeConfig {
            name: "shop".to_owned(),
            url: None,
            queue: "orders".to_owned(),
            prefetch: 1,
            workflow: None,
            dead_letter_exchange: String::new(),
            dead_letter_routing_key: None,
        };
        for (count, members) in [(2, true), (5000, false)] {
            let fault = |at| FieldFault::new(format!("/steps/{at}"), "is wrong".to_owned());
            let faults = (0..count).map(fault).collect();
            let letter = dead_letter(&intake, &Problem::invalid(faults));
            assert_eq!(letter.to.routing_key, "orders.dead");
            let (name, document) = &letter.to.headers[0];
            assert!(document.len() <= LONGEST_PROBLEM);
            let document: Value = serde_json::from_str(document).unwrap();
            assert_eq!(
                (&**name, document["type"].as_str()),
                ("provost-problem", Some("/problems/invalid"))
            );
            assert_eq!(document.get("errors").is_some(), members);
        }
    }
}
