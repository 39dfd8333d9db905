//! Reads the values that several fields of a file of cases have.

use provost_domain::values::{Fields, Timestamp};

/// Takes a time. A text that is no time is a fault.
pub(crate) fn time(fields: &mut Fields<'_>, name: &str) -> Option<Timestamp> {
    let text = fields.string(name, 40)?;
    let time = Timestamp::parse(&text);
    if time.is_none() {
        let message = "must be a time such as \"2026-02-03T04:05:06Z\"";
        fields.fault(name, message);
    }
    time
}

/// Reads the items of a list, each with fields of its own.
pub(crate) fn list<T>(
    fields: &mut Fields<'_>,
    name: &str,
    read: impl Fn(&mut Fields<'_>, String) -> Option<T>,
) -> Vec<T> {
    let parent = fields.pointer(name);
    let mut found = Vec::new();
    for (index, item) in fields.array(name).into_iter().flatten().enumerate() {
        let pointer = format!("{parent}/{index}");
        let inner = Fields::of(item, &pointer).and_then(|mut inner| {
            let item = read(&mut inner, pointer);
            inner.finish()?;
            Ok(item)
        });
        match inner {
            Ok(item) => found.extend(item),
            Err(faults) => fields.extend(faults),
        }
    }
    found
}
