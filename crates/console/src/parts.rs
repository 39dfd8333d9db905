//! The small components of pages. Each is a template of its own, with its arguments as fields: a page writes
//! `{{ page.time(task.created_at) }}`, a test renders it alone, and nothing in it can escape the escaping.

use std::fmt;

use askama::{FastWritable, Template, Values, filters::HtmlSafe};
use jiff::{Timestamp, Zoned, tz::TimeZone};

/// A rendered component, which a template inserts as it is. Only templates make one.
pub struct Html(String);

impl Html {
    pub fn of(template: &impl Template) -> Self {
        // A template writes to a String, which cannot fail, and its expressions do not fail either.
        Self(template.render().unwrap_or_default())
    }
}

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FastWritable for Html {
    fn write_into(&self, dest: &mut dyn fmt::Write, _: &dyn Values) -> askama::Result<()> {
        Ok(dest.write_str(&self.0)?)
    }
}

impl HtmlSafe for Html {}

/// A time: as 03:12:40 if it is today, otherwise as 25 Nov 18:20. The title has the whole.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<time datetime="{{ at }}" title="{{ whole }}">{{ short }}</time>"#
)]
pub struct Time {
    at: String,
    whole: String,
    short: String,
}

impl Time {
    /// A text that is no time is shown as it is.
    #[expect(clippy::new_ret_no_self, reason = "a component is used as HTML only")]
    pub fn new(at: &str, now: Timestamp) -> Html {
        let zoned = |time: Timestamp| time.to_zoned(TimeZone::UTC);
        let (whole, short) = match at.parse::<Timestamp>() {
            Ok(time) => (
                zoned(time)
                    .strftime("%Y-%m-%d %H:%M:%S%.3f UTC")
                    .to_string(),
                short(&zoned(time), &zoned(now)),
            ),
            Err(_) => (at.to_owned(), at.to_owned()),
        };
        Html::of(&Self {
            at: at.to_owned(),
            whole,
            short,
        })
    }
}

/// A sentence of the API. The times in it are shown as other times are: in the zone of the reader, with the whole in UTC in
/// their titles.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"{% for (text, time) in parts %}{{ text }}{% if let Some(time) = time %}{{ time }}{% endif %}{% endfor %}"#
)]
pub struct Sentence<'t> {
    /// The parts of the text, each with the time that follows it.
    parts: Vec<(&'t str, Option<Html>)>,
}

impl<'t> Sentence<'t> {
    #[expect(clippy::new_ret_no_self, reason = "a component is used as HTML only")]
    pub fn new(text: &'t str, now: Timestamp) -> Html {
        let mut parts = Vec::new();
        let (mut begin, mut at) = (0, 0);
        while at < text.len() {
            // A time in quotes is an example of what to type.
            let before = text.get(..at).unwrap_or_default();
            let is_quoted = before.ends_with(['"', '`']);
            let time = text.get(at..).and_then(time_at_start);
            match time.filter(|_| !is_quoted) {
                Some(time) => {
                    parts.push((&text[begin..at], Some(Time::new(time, now))));
                    at += time.len();
                    begin = at;
                }
                None => at += 1,
            }
        }
        parts.push((&text[begin..], None));
        Html::of(&Self { parts })
    }
}

/// Returns the time in UTC with which a text begins, such as `2026-11-26T03:12:31.5Z`.
fn time_at_start(text: &str) -> Option<&str> {
    const FORM: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let bytes = text.as_bytes();
    let is_of_form = FORM.iter().enumerate().all(|(at, form)| {
        bytes.get(at).is_some_and(|byte| match form {
            b'd' => byte.is_ascii_digit(),
            form => byte == form,
        })
    });
    let rest = text.get(FORM.len()..).filter(|_| is_of_form)?;
    let fraction = rest.strip_prefix('.').unwrap_or(rest);
    let fraction = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    let end = text.len() - fraction.strip_prefix('Z')?.len();
    text.get(..end)
}

fn short(time: &Zoned, now: &Zoned) -> String {
    let format = match (time.date() == now.date(), time.year() == now.year()) {
        (true, _) => "%H:%M:%S",
        (false, true) => "%-d %b %H:%M",
        (false, false) => "%-d %b %Y",
    };
    time.strftime(format).to_string()
}

/// Returns a duration in the two largest units that it has, such as `2 h 5 min`.
pub fn duration_in_words(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    let two = |a: i64, unit: &str, b: i64, smaller: &str| match b {
        0 => format!("{a} {unit}"),
        _ => format!("{a} {unit} {b} {smaller}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => two(minutes, "min", rest, "s"),
        (0, _, _) => two(hours, "h", minutes, "min"),
        _ => two(days, "d", hours, "h"),
    }
}

/// A symbol of the sprite in the layout.
#[derive(Template)]
#[template(
    ext = "html",
    source = r##"<svg class="i" aria-hidden="true"><use href="#{{ shape }}"/></svg>"##
)]
pub struct Icon<'a> {
    pub shape: &'a str,
}

/// A state as a word, a shape and a colour.
#[derive(Template)]
#[template(
    ext = "html",
    source = r##"<span class="s {{ class }}{% if pill %} pill{% endif %}"><svg aria-hidden="true"><use href="#{{ shape }}"/></svg>{{ word }}</span>"##
)]
pub struct Badge<'a> {
    /// The class that gives the colour: `error`, `processed`, `processing`, `paused`, `undoing`, `ok` or `pending`.
    pub class: &'a str,
    pub shape: &'a str,
    pub word: &'a str,
    /// True beside the title of a page.
    pub pill: bool,
}

/// The states of tasks and steps, with their shapes. A state of a later version has a ring and its word.
const STATES: [(&str, &str); 12] = [
    ("error", "error"),
    ("processed", "processed"),
    ("processing", "processing"),
    ("pending", "pending"),
    ("waiting", "waiting"),
    ("scheduled", "clock"),
    ("paused", "paused"),
    ("skipped", "skipped"),
    ("cancelled", "cancelled"),
    ("undoing", "undone"),
    ("undone", "undone"),
    ("cancelling", "cancelled"),
];

impl<'a> Badge<'a> {
    /// The state of a task or a step.
    pub fn state(word: &'a str) -> Html {
        Html::of(&Self::of_state(word, false))
    }

    /// The same, beside the title of a page.
    pub fn pill(word: &'a str) -> Html {
        Html::of(&Self::of_state(word, true))
    }

    fn of_state(word: &'a str, pill: bool) -> Self {
        let known = STATES.iter().find(|(state, _)| *state == word);
        let (class, shape) = known.copied().unwrap_or(("pending", "pending"));
        Self {
            class,
            shape,
            word,
            pill,
        }
    }

    /// Any other state, such as `breaker open`.
    pub fn other(class: &'a str, shape: &'a str, word: &'a str) -> Html {
        Html::of(&Self {
            class,
            shape,
            word,
            pill: false,
        })
    }
}

/// A small chart of counts, the latest one at the right. The title says the content in words.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<svg class="spark" viewBox="0 0 130 28" role="img" aria-label="{{ title }}"><title>{{ title }}</title><line x1="0" x2="130" y1="27.5" y2="27.5"/>{% for bar in bars %}<rect{% if bad %} class="x"{% endif %} x="{{ bar.0 }}" y="{{ bar.1 }}" width="{{ width }}" height="{{ bar.2 }}"/>{% endfor %}</svg>"#
)]
pub struct Spark<'a> {
    title: &'a str,
    /// True: what is counted are failures.
    bad: bool,
    width: String,
    bars: Vec<(String, String, String)>,
}

impl<'a> Spark<'a> {
    #[expect(clippy::new_ret_no_self, reason = "a component is used as HTML only")]
    pub fn new(title: &'a str, counts: &[u64]) -> Html {
        Self::of(title, counts, true)
    }

    /// A chart of what is not bad.
    pub fn quiet(title: &'a str, counts: &[u64]) -> Html {
        Self::of(title, counts, false)
    }

    fn of(title: &'a str, counts: &[u64], bad: bool) -> Html {
        let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
        let place = 130.0 / counts.len().max(1) as f64;
        let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let bars = bars.map(|(at, count)| {
            let height = (26.0 * *count as f64 / most).max(1.5);
            let x = place * at as f64;
            (decimal(x), decimal(27.0 - height), decimal(height))
        });
        Html::of(&Self {
            title,
            bad,
            width: decimal(place - 1.0),
            bars: bars.collect(),
        })
    }
}

fn decimal(number: f64) -> String {
    format!("{number:.1}")
}

/// A bar whose parts show shares of a whole. Each part has a class such as `f-processed`, and a count.
#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<svg class="bar {{ size }}" role="img" aria-label="{{ title }}"><title>{{ title }}</title>{% for part in parts %}<rect class="{{ part.0 }}" x="{{ part.1 }}%" width="{{ part.2 }}%" height="100%"/>{% endfor %}</svg>"#
)]
pub struct Bar<'a> {
    title: &'a str,
    size: &'a str,
    parts: Vec<(&'a str, String, String)>,
}

impl<'a> Bar<'a> {
    /// `size` is empty, `thin` or `fat`. If the counts are less than `whole`, the bar is not full.
    #[expect(clippy::new_ret_no_self, reason = "a component is used as HTML only")]
    pub fn new(title: &'a str, size: &'a str, whole: u64, counts: &[(&'a str, u64)]) -> Html {
        let sum: u64 = counts.iter().map(|(_, count)| count).sum();
        let whole = whole.max(sum).max(1) as f64;
        let mut x = 0.0;
        let parts = counts.iter().filter(|(_, count)| *count > 0);
        let parts = parts.map(|(class, count)| {
            let width = 100.0 * *count as f64 / whole;
            let part = (*class, format!("{x:.2}"), format!("{width:.2}"));
            x += width;
            part
        });
        Html::of(&Self {
            title,
            size,
            parts: parts.collect(),
        })
    }
}

/// A count, or a reference to one, as templates have them.
pub trait Count {
    fn value(&self) -> u64;
}

impl Count for u64 {
    fn value(&self) -> u64 {
        *self
    }
}

impl<T: Count> Count for &T {
    fn value(&self) -> u64 {
        (*self).value()
    }
}

/// Returns a count with its noun, such as `1 task` and `1,001 tasks`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{} {many}", number(count)),
    }
}

/// Returns the name of a person or an instance, as people say it: `operator:ada` is `ada`.
pub fn actor(by: &str) -> &str {
    by.strip_prefix("operator:").unwrap_or(by)
}

/// Returns the parts that are there, separated by commas.
pub fn sentence_end(parts: &[Option<&str>]) -> String {
    let parts: Vec<_> = parts.iter().copied().flatten().collect();
    parts.join(", ")
}

/// Returns a number with a comma between thousands.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-26T03:12:40Z".parse().unwrap()
    }

    #[test]
    fn a_time_in_a_sentence_is_shown_as_other_times_are() {
        let shown = |text: &str| Sentence::new(text, now()).to_string();
        assert_eq!(
            shown("<b>paused</b> until 2026-11-26T04:00:00Z, at the latest"),
            format!(
                "&#60;b&#62;paused&#60;/b&#62; until {}, at the latest",
                Time::new("2026-11-26T04:00:00Z", now())
            )
        );
        let two = shown("2026-11-25T18:20:00.5Z–2026-11-26T03:00:00Z");
        assert_eq!(two.matches("<time").count(), 2, "{two}");
        for plain in [
            "order 2026-11-26 of Köln",
            "2026-11-26T04:00:00+01:00",
            "2026-11-26T04:00:00",
            "",
        ] {
            assert_eq!(shown(plain), plain);
        }
    }

    #[test]
    fn a_time_of_today_is_short_and_others_have_their_day() {
        for (at, short) in [
            ("2026-11-26T02:41:07.250Z", ">02:41:07<"),
            ("2026-11-25T18:20:00Z", ">25 Nov 18:20<"),
            ("2025-01-03T00:00:00Z", ">3 Jan 2025<"),
            ("<b>", ">&#60;b&#62;<"),
        ] {
            let html = Time::new(at, now()).to_string();
            assert!(html.contains(short), "{html}");
        }
        let whole = Time::new("2026-11-26T02:41:07.250Z", now()).to_string();
        assert!(
            whole.contains(r#"title="2026-11-26 02:41:07.250 UTC""#),
            "{whole}"
        );
    }

    #[test]
    fn a_state_of_a_later_version_has_a_ring_and_its_word() {
        let html = Badge::state("hibernating<").to_string();
        assert!(
            html.contains("#pending") && html.contains("hibernating&#60;"),
            "{html}"
        );
        assert!(Badge::state("undoing").to_string().contains("#undone"));
    }

    #[test]
    fn numbers_and_durations_are_readable() {
        assert_eq!(number(0), "0");
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(counted(1, "task", "tasks"), "1 task");
        for (seconds, words) in [
            (7, "7 s"),
            (60, "1 min"),
            (7_500, "2 h 5 min"),
            (200_000, "2 d 7 h"),
        ] {
            assert_eq!(duration_in_words(seconds), words);
        }
    }

    #[test]
    fn a_bar_shows_shares_and_a_spark_the_largest_count_as_highest() {
        let bar = Bar::new(
            "half",
            "",
            4,
            &[("f-error", 1), ("f-idle", 0), ("f-processed", 1)],
        )
        .to_string();
        assert!(bar.contains(r#"x="25.00%" width="25.00%""#), "{bar}");
        assert_eq!(bar.matches("<rect").count(), 2, "{bar}");
        let spark = Spark::new("s", &[0, 5, 10]).to_string();
        assert!(spark.contains(r#"y="1.0""#), "{spark}");
        assert_eq!(spark.matches("<rect").count(), 2, "{spark}");
    }
}
