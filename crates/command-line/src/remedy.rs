//! The cures of problems: they are those of `docs/problems.md`, which the server serves too.

const PROBLEMS: &str = include_str!("../../../docs/problems.md");

/// Returns the cure of a kind of problem, in one line.
pub fn of(kind: &str) -> Option<String> {
    let mut sections = PROBLEMS.split("\n## ").skip(1);
    let section = sections.find_map(|section| {
        let (name, text) = section.split_once('\n')?;
        (name == kind).then_some(text)
    })?;
    let cure = section.split_once("**Cure**: ")?.1;
    let cure = cure.split("\n\n").next()?;
    Some(without_links(
        &cure.split_whitespace().collect::<Vec<_>>().join(" "),
    ))
}

/// Returns the text with the words of its links alone: a terminal cannot follow them.
fn without_links(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, (words, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (words, target) = link.split_once("](")?;
        Some((before, (words, target.split_once(')')?.1)))
    }) {
        shown.push_str(before);
        shown.push_str(words);
        rest = after;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_problem_has_a_cure_in_one_line_without_links() {
        let kinds = PROBLEMS.split("\n## ").skip(1);
        let kinds: Vec<_> = kinds.filter_map(|section| section.lines().next()).collect();
        assert!(kinds.len() > 50, "{kinds:?}");
        for kind in kinds {
            let cure = of(kind).unwrap_or_else(|| panic!("{kind} has no cure"));
            assert!(
                !cure.contains('\n') && !cure.contains("]("),
                "{kind}: {cure}"
            );
        }
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn of_a_link_the_words_stay() {
        assert_eq!(
            without_links("see [agents](agents.md#a), or [b](c)."),
            "see agents, or b."
        );
        assert_eq!(without_links("items[0] is"), "items[0] is");
    }
}
