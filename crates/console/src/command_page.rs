//! The page of a command for one thing: the sentence that says what will happen, what follows from it, and the form that
//! confirms it.

use askama::Template;

use crate::{
    service::{Refusal, Role},
    shell::Shell,
};

#[derive(Template)]
#[template(path = "command.html")]
pub struct CommandPage {
    pub page: Shell,
    /// One sentence that says what will happen.
    pub title: String,
    pub consequences: Vec<String>,
    pub fields: Vec<Field>,
    /// The address to which the form is sent.
    pub action: String,
    pub back: String,
    /// The verb and the name of the thing.
    pub button: String,
    pub asks_reason: bool,
    /// The reason that the person has typed already.
    pub reason: String,
    /// True: the button has the colour of danger.
    pub is_final: bool,
    /// True: the role operate is not sufficient.
    pub needs_admin: bool,
    /// The reason why the form that was sent was refused.
    pub fault: Option<String>,
}

impl CommandPage {
    /// Says why the form was refused. It still has what the person typed.
    #[must_use]
    pub fn refused(mut self, refusal: &Refusal) -> Self {
        // The detail says a single fault itself.
        let faults = refusal.errors.iter().filter(|_| refusal.errors.len() > 1);
        let faults = faults.map(|fault| format!(" {}: {}.", fault.pointer, fault.message));
        self.fault = Some(refusal.detail.clone() + &faults.collect::<String>());
        self
    }

    /// Returns the role that the command needs, if the person does not have it.
    pub fn missing_role(&self) -> Option<&'static str> {
        let role = self.page.person.role;
        match self.needs_admin {
            true => (role != Role::Admin).then_some(Role::Admin.word()),
            false => (!role.operates()).then_some(Role::Operate.word()),
        }
    }
}

/// A field of the form.
pub struct Field {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    pub kind: FieldKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldKind {
    Line,
    /// A text of several lines.
    Text,
    Hidden,
}

impl Field {
    pub fn new(name: &'static str, label: &'static str, value: &str) -> Self {
        Self {
            name,
            label,
            value: value.to_owned(),
            kind: FieldKind::Line,
        }
    }

    pub fn text(name: &'static str, label: &'static str, value: &str) -> Self {
        Self {
            kind: FieldKind::Text,
            ..Self::new(name, label, value)
        }
    }

    pub fn hidden(name: &'static str, value: &str) -> Self {
        Self {
            kind: FieldKind::Hidden,
            ..Self::new(name, "", value)
        }
    }
}
