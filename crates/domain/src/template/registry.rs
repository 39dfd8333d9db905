//! The filters, tests and functions of the language. An unknown one is refused by name, with a hint what to use
//! instead; each known one charges for all that it does. `docs/expressions.md` shows each, and a test reads that page.

use super::{
    Budget, arguments::ArgumentValues, convert, encodings, eval_error::EvalResult, indexing,
    judging as judge, lists, texts, times, value::Value,
};
use crate::values::nearest::nearest;

type FilterFn = for<'v> fn(Value<'v>, ArgumentValues<'_, 'v>, &Budget) -> EvalResult<Value<'v>>;
type TestFn = for<'v> fn(&Value<'v>, ArgumentValues<'_, 'v>, &Budget) -> EvalResult<bool>;
type MakeFn = for<'v> fn(ArgumentValues<'_, 'v>, &Budget) -> EvalResult<Value<'v>>;

/// `value | name(…)`.
pub(super) struct Filter {
    pub name: &'static str,
    pub params: &'static [&'static str],
    /// The number of parameters that must be given.
    pub required: usize,
    pub call: FilterFn,
}

/// `value is name …`.
pub(super) struct Test {
    pub name: &'static str,
    pub params: &'static [&'static str],
    pub required: usize,
    pub judge: TestFn,
}

/// `name(…)`.
pub(super) struct Function {
    pub name: &'static str,
    pub params: &'static [&'static str],
    pub required: usize,
    pub make: MakeFn,
}

impl Function {
    /// Returns whether this is `dict`, which makes an object of named arguments and has no parameters of its own.
    pub fn is_dict(&self) -> bool {
        self.name == "dict"
    }
}

macro_rules! called_by_name {
    ($($kind:ident),*) => {$(
        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name)
            }
        }
    )*};
}

called_by_name!(Filter, Test, Function);

const fn filter(
    name: &'static str,
    params: &'static [&'static str],
    required: usize,
    call: FilterFn,
) -> Filter {
    Filter {
        name,
        params,
        required,
        call,
    }
}

const fn test(
    name: &'static str,
    params: &'static [&'static str],
    required: usize,
    judge: TestFn,
) -> Test {
    Test {
        name,
        params,
        required,
        judge,
    }
}

const SORTED: &[&str] = &["reverse", "case_sensitive", "attribute"];
const CHOSEN: &[&str] = &["case_sensitive", "attribute"];

pub(super) static FILTERS: &[Filter] = &[
    filter("abs", &[], 0, convert::abs),
    filter("attr", &["name"], 1, lists::attr),
    filter("b64decode", &[], 0, encodings::b64decode),
    filter("b64encode", &["urlsafe"], 0, encodings::b64encode),
    filter("bool", &[], 0, convert::boolean),
    filter("capitalize", &[], 0, texts::capitalize),
    filter("count", &[], 0, lists::length),
    filter("d", &["default_value", "boolean"], 0, convert::default),
    filter("date", &["add", "format"], 0, times::date),
    filter(
        "default",
        &["default_value", "boolean"],
        0,
        convert::default,
    ),
    filter(
        "dictsort",
        &["case_sensitive", "by", "reverse"],
        0,
        lists::dictsort,
    ),
    filter("duration", &[], 0, times::duration),
    filter("first", &[], 0, lists::first),
    filter("float", &["default"], 0, convert::float),
    filter("int", &["default", "base"], 0, convert::int),
    filter("items", &[], 0, lists::items),
    filter("join", &["d", "attribute"], 0, texts::join),
    filter("last", &[], 0, lists::last),
    filter("length", &[], 0, lists::length),
    filter("lines", &[], 0, texts::lines),
    filter("list", &[], 0, lists::list),
    filter("lower", &[], 0, texts::lower),
    filter("max", CHOSEN, 0, lists::max),
    filter("merge", &["other"], 1, lists::merge),
    filter("min", CHOSEN, 0, lists::min),
    filter("omit", &["names"], 1, lists::omit),
    filter("pick", &["names"], 1, lists::pick),
    filter("replace", &["old", "new"], 2, texts::replace),
    filter("reverse", &[], 0, lists::reverse),
    filter("round", &["precision", "method"], 0, convert::round),
    filter("sha256", &[], 0, encodings::sha256),
    filter("sort", SORTED, 0, lists::sort),
    filter("split", &["separator", "most"], 0, texts::split),
    filter("string", &[], 0, convert::string),
    filter("sum", &["attribute", "start"], 0, lists::sum),
    filter("timestamp", &[], 0, times::timestamp),
    filter("title", &[], 0, texts::title),
    filter("tojson", &[], 0, convert::to_json),
    filter("trim", &["characters"], 0, texts::trim),
    filter("unique", CHOSEN, 0, lists::unique),
    filter("upper", &[], 0, texts::upper),
    filter("urlencode", &[], 0, texts::urlencode),
    filter("zip", &["other"], 1, lists::zip),
];

/// The filters that have variants of their own in [`super::ast::FilterCall`].
pub(super) const OF_EACH: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];

const OTHER: &[&str] = &["other"];

pub(super) static TESTS: &[Test] = &[
    test("boolean", &[], 0, judge::boolean),
    test("defined", &[], 0, judge::defined),
    test("divisibleby", &["number"], 1, judge::divisible_by),
    test("endingwith", &["end"], 1, judge::ending_with),
    test("eq", OTHER, 1, judge::eq),
    test("equalto", OTHER, 1, judge::eq),
    test("even", &[], 0, judge::even),
    test("false", &[], 0, judge::is_false),
    test("failed", &[], 0, judge::failed),
    test("float", &[], 0, judge::float),
    test("ge", OTHER, 1, judge::ge),
    test("greaterthan", OTHER, 1, judge::gt),
    test("gt", OTHER, 1, judge::gt),
    test("in", &["container"], 1, judge::contained),
    test("int", &[], 0, judge::integer),
    test("integer", &[], 0, judge::integer),
    test("iterable", &[], 0, judge::iterable),
    test("le", OTHER, 1, judge::le),
    test("lessthan", OTHER, 1, judge::lt),
    test("lower", &[], 0, judge::lower),
    test("lt", OTHER, 1, judge::lt),
    test("mapping", &[], 0, judge::mapping),
    test("ne", OTHER, 1, judge::ne),
    test("none", &[], 0, judge::none),
    test("number", &[], 0, judge::number),
    test("odd", &[], 0, judge::odd),
    test("sequence", &[], 0, judge::sequence),
    test("skipped", &[], 0, judge::skipped),
    test("startingwith", &["start"], 1, judge::starting_with),
    test("string", &[], 0, judge::string),
    test("true", &[], 0, judge::is_true),
    test("undefined", &[], 0, judge::undefined),
    test("upper", &[], 0, judge::upper),
];

pub(super) static FUNCTIONS: &[Function] = &[
    Function {
        name: "dict",
        params: &[],
        required: 0,
        make: |_, _| Ok(Value::list(Vec::new())),
    },
    Function {
        name: "range",
        params: &["start", "stop", "step"],
        required: 1,
        make: indexing::range,
    },
];

/// Remedies for names of other template languages, and for names of Jinja that Provost does not have.
const INSTEAD: &[(&str, &str)] = &[
    ("batch", "let the service split its list"),
    ("chain", "join lists with `+`"),
    ("concat", "join texts with `~` and lists with `+`"),
    ("contains", "write `x in y`"),
    ("strftime", "write `x | date(format='%Y-%m-%d')`"),
    ("md5", "write `sha256`"),
    ("sha1", "write `sha256`"),
    ("base64", "write `b64encode` or `b64decode`"),
    ("combine", "write `merge`"),
    ("debug", "use a dry run to see the value of an expression"),
    ("e", "remove it: Provost escapes values for JSON and paths"),
    (
        "escape",
        "remove it: Provost escapes values for JSON and paths",
    ),
    ("filesizeformat", "let the service format numbers"),
    ("fromjson", "outputs and inputs are parsed as JSON already"),
    (
        "format",
        "join the parts with `~`, and round numbers with `round`",
    ),
    ("groupby", "let the service group its list"),
    ("indent", "line-based filters are not available"),
    ("json", "write `tojson`"),
    ("json_encode", "write `tojson`"),
    (
        "keys",
        "write `x | list`, which returns the names of an object's members",
    ),
    ("len", "write `x | length`"),
    ("downcase", "write `lower`"),
    ("lowercase", "write `lower`"),
    ("lstrip", "write `trim`"),
    ("namespace", "an expression has no state"),
    (
        "now",
        "every attempt sends the same request: read `task.created_at` or `task.started_at`, or pass the time in the input",
    ),
    ("pprint", "write `tojson`"),
    (
        "random",
        "pass it in the input: every attempt sends the same request",
    ),
    ("rstrip", "write `trim`"),
    (
        "safe",
        "remove it: Provost escapes values for JSON and paths",
    ),
    ("size", "write `length`"),
    ("slice", "write `x[2:5]`"),
    ("str", "write `string`"),
    ("strip", "write `trim`"),
    ("substring", "write `x[2:5]`"),
    ("to_json", "write `tojson`"),
    ("upcase", "write `upper`"),
    ("uppercase", "write `upper`"),
    ("values", "write `x | items | map('last')`"),
    ("wordcount", "write `x | split | length`"),
    ("empty", "write `x | length == 0`"),
    ("null", "write `is none`"),
    (
        "matching",
        "regular expressions are not available: use `in`, `startingwith` or `endingwith`",
    ),
    (
        "match",
        "regular expressions are not available: use `in`, `startingwith` or `endingwith`",
    ),
    (
        "regex_replace",
        "regular expressions are not available: use `replace`",
    ),
    ("object", "write `is mapping`"),
    ("array", "write `is sequence`"),
    ("sameas", "write `==`"),
];

pub(super) fn filter_named(name: &str) -> Option<&'static Filter> {
    FILTERS.iter().find(|filter| filter.name == name)
}

pub(super) fn filter_or_fault(name: &str) -> Result<&'static Filter, String> {
    let names = FILTERS.iter().map(|filter| filter.name).chain(OF_EACH);
    filter_named(name).ok_or_else(|| unknown("filter", name, names))
}

pub(super) fn test_or_fault(name: &str) -> Result<&'static Test, String> {
    let found = TESTS.iter().find(|test| test.name == name);
    found.ok_or_else(|| unknown("test", name, TESTS.iter().map(|test| test.name)))
}

pub(super) fn function_or_fault(name: &str) -> Result<&'static Function, String> {
    let found = FUNCTIONS.iter().find(|function| function.name == name);
    found.ok_or_else(|| {
        if filter_named(name).is_some() || OF_EACH.contains(&name) {
            return format!("`{name}` is a filter: write `x | {name}`");
        }
        unknown(
            "function",
            name,
            FUNCTIONS.iter().map(|function| function.name),
        )
    })
}

fn unknown<'n>(kind: &str, name: &str, names: impl Iterator<Item = &'n str>) -> String {
    let instead = INSTEAD.iter().find(|(unknown, _)| *unknown == name);
    match (instead, nearest(name, names)) {
        (Some((_, instead)), _) => format!("there is no {kind} `{name}`: {instead}"),
        (None, Some(meant)) => format!("there is no {kind} `{name}`; did you mean `{meant}`?"),
        (None, None) => format!("there is no {kind} `{name}`"),
    }
}
