//! Steps that ask people: what is asked, and what becomes of their decisions.

use super::{CommandOutput, Draft};
use crate::{
    definition::ask_text::AskText,
    task::{
        ask::{AskAnswer, AskChange, Decision, OpenAsk},
        command::Refusal,
        history::Actor,
        step::StepState,
    },
    values::ids::{Attempt, StepIndex},
};

impl Draft {
    /// Returns the text that the step asks, if it asks. The error is a fault of the definition or of the data, in words
    /// for an operator.
    pub(super) fn asked(&self, index: StepIndex) -> Result<Option<AskText>, String> {
        let rule = self.task.definition(index).work.ask();
        let asked = rule.map(|rule| rule.text(&self.task.scope(index, &self.budget)));
        asked.transpose()
    }

    /// The question is open from now on. That of an attempt before is closed.
    pub(super) fn ask(&mut self, index: StepIndex, text: AskText) {
        let reason = format!("asks {}: {}", text.of.join(", "), text.title);
        let step = self.task.step_mut(index);
        step.ask = Some(Box::new(OpenAsk {
            attempt: step.attempt,
            text,
            decisions: Vec::new(),
        }));
        self.asks.push(AskChange::Open(index));
        self.note_signal(index, "step.asked", reason);
    }

    /// A person decides, by a link of the attempt. The first decision of each person counts; the same one again changes
    /// nothing.
    pub(super) fn decide(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
        person: u16,
        answer: AskAnswer,
    ) -> Result<CommandOutput, Refusal> {
        let step = self.task.step(index);
        let rule = self.task.definition(index).work.ask().cloned();
        let (Some(rule), Some(ask)) = (rule, &step.ask) else {
            return Err(self.refuse_step(index, "it asks nobody"));
        };
        let Some(name) = ask.person(person).filter(|_| ask.attempt == attempt) else {
            return Err(self.refuse_step(
                index,
                "it has asked again since: only the newest link of each person decides",
            ));
        };
        let name = name.to_owned();
        if let Some(known) = ask.decision_of(person) {
            return match known.answer.choice == answer.choice {
                true => Ok(CommandOutput::Unchanged),
                false => Err(Refusal::Decided {
                    step: self.task.definition(index).name.clone(),
                    person: name,
                    choice: known.answer.choice.clone(),
                }),
            };
        }
        if self.task.is_ended() {
            return Err(Refusal::Ended(self.task.status().as_str()));
        }
        match step.state {
            StepState::Processing { complete_by, .. } if complete_by > self.now => {}
            StepState::Processing { .. } => {
                return Err(self.refuse_step(index, "the time to decide is over"));
            }
            _ => return Err(self.refuse_step(index, "it asks no longer")),
        }
        if !rule.choices.contains(&answer.choice) {
            return Err(self.refuse_step(index, "it has no such choice"));
        }
        self.check_room_for_answer(index, &answer)?;
        // The link names its person, so the person decides, and not the caller that sent the command.
        self.by = Actor::person(&name);
        let is_approval = answer.choice == rule.approval();
        let mut reason = format!("{name} chose {}", answer.choice);
        let comment = answer.comment.clone();
        let ask = self.task.step_mut(index).ask.as_mut();
        let mut is_decided = true;
        let mut output = None;
        if let Some(ask) = ask {
            ask.decisions.push(Decision {
                person,
                answer,
                at: self.now,
            });
            let approvals = ask.approvals(&rule);
            is_decided = !is_approval || approvals >= rule.approvals as usize;
            if is_approval && rule.approvals > 1 {
                reason.push_str(&format!(" ({approvals} of {})", rule.approvals));
            }
            output = Some(ask.output());
        }
        if let Some(comment) = comment {
            reason.push_str(&format!(": {comment}"));
        }
        self.note_signal(index, "step.decided", reason);
        if let Some(output) = output.filter(|_| is_decided) {
            self.event_came(index, output);
            self.after_success(index);
        }
        self.settle(None);
        Ok(CommandOutput::Done)
    }
}
