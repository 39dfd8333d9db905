//! The filter `text` of lists that no index serves: pages are read in their order, and items without the text are left out. A
//! request examines a bounded number of items, so that it costs the same whatever the list holds.

use super::{Problem, cursor::Cursors, extract::Query, response::Page};

/// The longest text that is searched, in characters.
const LONGEST: usize = 200;
/// The most items that one request examines. Its page may then be short, and have a cursor to continue.
const MOST_EXAMINED: usize = 1_000;
/// The items that are read at once.
const READ_AT_ONCE: usize = 200;

/// A text that listed items contain; case does not matter.
pub struct TextFilter {
    pub typed: String,
    lower: String,
}

impl TextFilter {
    fn new(typed: &str) -> Self {
        Self {
            typed: typed.to_owned(),
            lower: typed.to_lowercase(),
        }
    }

    pub fn matches<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        let mut texts = texts.into_iter();
        texts.any(|text| text.to_lowercase().contains(&self.lower))
    }
}

/// Reads `text`.
pub fn text(query: &mut Query) -> Result<Option<TextFilter>, Problem> {
    let allowed = format!("a text of 1 to {LONGEST} characters");
    query.value("text", allowed, |text| {
        let is_usable = !text.is_empty() && text.chars().count() <= LONGEST;
        (is_usable && !text.contains('\0')).then(|| TextFilter::new(text))
    })
}

/// The making of a page: as long as it asks for items, the handler reads them.
pub struct PageSearch<T, P> {
    filter: Option<TextFilter>,
    cursors: Cursors,
    limit: usize,
    found: Vec<T>,
    /// The position after which the search continues; `None` at the beginning.
    before: Option<P>,
    /// The number of items that may still be examined.
    left: usize,
    /// The position after which the next page begins, once it is known.
    next: Option<P>,
    is_over: bool,
}

impl<T, P: Clone + ToString> PageSearch<T, P> {
    pub fn new(filter: Option<TextFilter>, place: (Option<P>, Cursors), limit: usize) -> Self {
        let (before, cursors) = place;
        Self {
            left: match filter {
                Some(_) => MOST_EXAMINED,
                None => limit + 1,
            },
            filter,
            cursors,
            limit,
            found: Vec::new(),
            before,
            next: None,
            is_over: false,
        }
    }

    /// Returns the position after which items are to be read, and how many; `None` if the page is complete.
    pub fn wants(&self) -> Option<(Option<P>, usize)> {
        let wanted = match self.filter {
            Some(_) => READ_AT_ONCE.min(self.left),
            None => self.left,
        };
        (!self.is_over).then(|| (self.before.clone(), wanted))
    }

    /// Takes the items that were read. `position_of` is the position of an item, and `texts` are those of its texts that are
    /// searched.
    pub fn add(
        &mut self,
        items: Vec<T>,
        position_of: impl Fn(&T) -> P,
        texts: impl Fn(&T) -> Vec<&str>,
    ) {
        let wanted = self.wants().map_or(0, |(_, wanted)| wanted);
        let is_last = items.len() < wanted;
        self.left = self.left.saturating_sub(items.len());
        for item in items {
            let filter = self.filter.as_ref();
            if filter.is_some_and(|filter| !filter.matches(texts(&item))) {
                self.before = Some(position_of(&item));
                continue;
            }
            if self.found.len() == self.limit {
                // This one begins the next page.
                self.next = self.found.last().map(&position_of);
                self.is_over = true;
                return;
            }
            self.before = Some(position_of(&item));
            self.found.push(item);
        }
        if !is_last && self.left == 0 {
            self.next = self.before.clone();
        }
        self.is_over = is_last || self.left == 0;
    }

    pub fn page(self) -> Page<T> {
        Page {
            next_cursor: self.next.map(|next| self.cursors.after(next.to_string())),
            items: self.found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all items of a list of numbers, newest first, that contain a text, page by page, with the number of pages.
    fn pages(count: u32, text: Option<&str>, limit: usize) -> (Vec<String>, usize) {
        let cursors = Cursors::of_parts(["numbers"]);
        let position = |item: &String| item[3..].parse::<u32>().unwrap();
        let (mut all, mut before, mut pages) = (Vec::new(), None, 0);
        loop {
            let mut search = PageSearch::new(text.map(TextFilter::new), (before, cursors), limit);
            let mut examined = 0;
            while let Some((before, wanted)) = search.wants() {
                let from = before.unwrap_or(count);
                let items = (0..from).rev().take(wanted).map(|n| format!("No {n}"));
                let items: Vec<_> = items.collect();
                examined += items.len();
                search.add(items, position, |item| vec![item.as_str()]);
            }
            assert!(examined <= MOST_EXAMINED);
            let page = search.page();
            assert!(page.items.len() <= limit);
            all.extend(page.items);
            pages += 1;
            let Some(cursor) = page.next_cursor else {
                return (all, pages);
            };
            before = Some(cursors.read(&cursor).unwrap().parse().unwrap());
        }
    }

    #[test]
    fn pages_of_what_matches_join_into_all_of_it_and_each_examines_so_many() {
        let numbers = || (0..5_000).rev().map(|n| format!("No {n}"));
        let expected: Vec<_> = numbers().filter(|item| item.starts_with("No 4")).collect();
        let (all, count) = pages(5_000, Some("no 4"), 7);
        assert_eq!(all, expected);
        assert!(count > expected.len() / 7);
        assert_eq!(pages(5_000, Some("nothing"), 50), (Vec::new(), 6));
        assert_eq!(pages(10, Some("no"), 10).1, 1);
        assert_eq!(pages(0, Some("no"), 10), (Vec::new(), 1));
    }

    #[test]
    fn without_a_text_a_page_reads_one_item_more_than_it_has() {
        for limit in 1..=6 {
            let (all, count) = pages(5, None, limit);
            assert_eq!(all.len(), 5, "pages of {limit}");
            assert_eq!(count, 5_usize.div_ceil(limit));
        }
    }
}
