//! What an expression looks at, and what no evaluation could find.

use super::{
    Reads,
    ast::{Expr, Linked, Operator},
    number::Arithmetic,
};

pub(super) fn of(expr: &Expr) -> Result<Reads, String> {
    let mut reads = Reads::default();
    let (mut steps, mut named) = (0, 0);
    let mut fault = None;
    expr.walk(&mut |expr| match expr {
        Expr::Name(name) => {
            reads.names.insert(name.to_string());
            steps += usize::from(**name == *"steps");
        }
        Expr::Binary(first, rest) => hyphens(first, rest, &mut reads),
        Expr::Chain(chain) => {
            let Expr::Name(root) = &chain.base else {
                return;
            };
            let mut members = chain.links.iter().map(|link| match &link.what {
                Linked::Member(name) => Some(&**name),
                _ => None,
            });
            let (first, second) = (members.next().flatten(), members.next().flatten());
            let found = match (&**root, first, second) {
                ("steps", Some(step), second) => {
                    named += 1;
                    reads.steps.insert(step.to_owned());
                    second.filter(|what| *what != "output").map(|what| {
                        format!(
                            "a step has no `{what}` here: read its `output`, as in `steps.{step}.output`"
                        )
                    })
                }
                ("task", Some(what), _) if !["id", "key", "labels"].contains(&what) => {
                    Some(format!(
                        "a task has no `{what}` here: there are `task.id`, `task.key` and `task.labels`"
                    ))
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
            "`steps` stands alone: name the step, as in `steps.reserve.output` or `steps['a-b'].output`"
                .to_owned(),
        );
    }
    fault.map_or(Ok(reads), Err)
}

/// `steps.my-step.output` subtracts `step.output` from `steps.my`, which nobody means.
fn hyphens(first: &Expr, rest: &[(Operator, Expr)], reads: &mut Reads) {
    let Expr::Chain(chain) = first else {
        return;
    };
    let (Expr::Name(root), [.., last]) = (&chain.base, &*chain.links) else {
        return;
    };
    let Linked::Member(member) = &last.what else {
        return;
    };
    let before = match &*chain.links {
        [.., before, _] => &*before.source,
        _ => root,
    };
    let mut name = member.to_string();
    for (operator, operand) in rest {
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
