//! Finds the names that an expression reads, and refuses names that no evaluation could find.

use super::{
    Reads, Unguarded,
    ast::{Expr, FilterCall, LinkKind, Operator},
    number::Arithmetic,
    scope::{STEP_MEMBERS, TASK_MEMBERS, TASK_TIMES, UNDO_TASK_MEMBERS},
};

pub(super) fn of(expr: &Expr, source: &str) -> Result<Reads, String> {
    let mut reads = Reads::default();
    let (mut steps, mut named) = (0, 0);
    let mut fault = None;
    expr.walk(&mut |expr| match expr {
        Expr::Name(name) => {
            reads.names.insert(name.to_string());
            steps += usize::from(**name == *"steps");
        }
        Expr::Binary(first, rest) => hyphens(first, rest, source, &mut reads),
        Expr::Chain(chain) => {
            let Expr::Name(root) = &chain.base else {
                return;
            };
            let mut members = chain.links.iter().map(|link| match &link.what {
                LinkKind::Member(name) => Some(&**name),
                _ => None,
            });
            let is_guarded = chain.links.iter().any(|link| is_guard(&link.what));
            let (first, second) = (members.next().flatten(), members.next().flatten());
            let found = match (&**root, first, second) {
                ("input", Some(member), _) => {
                    note(&mut reads.unguarded, is_guarded, "input", member);
                    None
                }
                ("steps", Some(step), second) => {
                    named += 1;
                    // The output alone is null if the step was skipped.
                    if second.is_none_or(|what| what == "output") {
                        note(&mut reads.unguarded, is_guarded, "steps", step);
                    }
                    reads.steps.insert(step.to_owned());
                    if !matches!(second, Some("winner" | "winners")) {
                        reads.records.insert(step.to_owned());
                    }
                    if matches!(second, Some("status" | "headers")) {
                        reads.responses.insert(step.to_owned());
                    }
                    second
                        .filter(|what| !STEP_MEMBERS.contains(what))
                        .map(|what| no_member("step", &format!("steps.{step}"), what))
                }
                ("task", Some(what), _)
                    if TASK_TIMES.contains(&what) || UNDO_TASK_MEMBERS.contains(&what) =>
                {
                    // Such a member is a name of its own, because not every expression sees it.
                    reads.names.insert(format!("task.{what}"));
                    None
                }
                ("reply", Some(what), _) if what != "url" => {
                    Some(format!("`reply` has no `{what}`: use `reply.url`"))
                }
                ("task", Some(what), _) if !TASK_MEMBERS.contains(&what) => {
                    Some(no_member("task", "task", what))
                }
                _ => None,
            };
            if fault.is_none() {
                fault = found;
            }
        }
        _ => {}
    });
    if steps > named {
        return Err(
            "`steps` needs a step's name, as in `steps.reserve.output` or `steps['a-b'].output`"
                .to_owned(),
        );
    }
    fault.map_or(Ok(reads), Err)
}

fn no_member(kind: &str, path: &str, what: &str) -> String {
    let members: &[&str] = match kind {
        "step" => &STEP_MEMBERS,
        _ => &TASK_MEMBERS,
    };
    let known: Vec<_> = members
        .iter()
        .map(|name| format!("`{path}.{name}`"))
        .collect();
    format!("a {kind} has no `{what}` here: use {}", known.join(", "))
}

/// Returns whether the value before this link may be missing.
fn is_guard(link: &LinkKind) -> bool {
    match link {
        LinkKind::Filter(FilterCall::Plain(filter, _)) => matches!(filter.name, "d" | "default"),
        LinkKind::Is(call, _) => matches!(
            call.test.name,
            "defined" | "undefined" | "none" | "skipped" | "failed"
        ),
        _ => false,
    }
}

fn note(unguarded: &mut Unguarded, is_guarded: bool, root: &str, member: &str) {
    match (is_guarded, root) {
        (true, _) => unguarded.guarded.insert(format!("{root}.{member}")),
        (false, "steps") => unguarded.steps.insert(member.to_owned()),
        (false, _) => unguarded.inputs.insert(member.to_owned()),
    };
}

/// Records names that may be parts of a name with a hyphen: `steps.my-step.output` subtracts `step.output` from
/// `steps.my`, which is never meant.
fn hyphens(first: &Expr, rest: &[(Operator, Expr)], source: &str, reads: &mut Reads) {
    /// The most hyphens of a name that are looked at.
    const MOST: usize = 6;
    let Expr::Chain(chain) = first else {
        return;
    };
    let (Expr::Name(root), [.., last]) = (&chain.base, &*chain.links) else {
        return;
    };
    let LinkKind::Member(member) = &last.what else {
        return;
    };
    let before = match &*chain.links {
        [.., before, _] => before.named(source),
        _ => root,
    };
    let mut name = member.to_string();
    for (operator, operand) in rest.iter().take(MOST) {
        let part = match operand {
            Expr::Name(part) => part,
            Expr::Chain(chain) => match &chain.base {
                Expr::Name(part) => part,
                _ => return,
            },
            _ => return,
        };
        if *operator != Operator::Arithmetic(Arithmetic::Subtract) {
            return;
        }
        name = format!("{name}-{part}");
        let meant = (name.clone(), format!("{before}['{name}']"));
        reads.hyphens.insert(part.to_string(), meant);
    }
}
