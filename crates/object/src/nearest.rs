//! "Did you mean": the known name that is most similar to an unknown one.

/// Names are shorter. A longer text is not a typing error, and comparing it would take long.
const LONGEST: usize = 100;

/// Returns the known name with the fewest edits to `name`, if the edits are few for its length: at most one, and one
/// more for every five characters. A short word with half of its letters changed is another word (`home`, `hold`). A
/// swap of two neighbours is one edit.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > LONGEST {
        return None;
    }
    let most = 1 + name.len() / 5;
    known
        // Every edit changes the length by one character at most, and a character is four bytes at most.
        .filter(|known| known.len() <= 4 * (name.len() + most))
        .map(|known| (strsim::osa_distance(known, name), known))
        .filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<&'static str> {
        nearest(name, ["reserve", "charge", "ship"].into_iter())
    }

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        for slip in ["reserv", "rserve", "reserves", "erserve", "Reserve"] {
            assert_eq!(of(slip), Some("reserve"), "{slip}");
        }
        assert_eq!(of("shpi"), Some("ship"));
    }

    #[test]
    fn another_word_is_none() {
        for other in ["", "notify", "reservation-service", &"ship".repeat(100)] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
