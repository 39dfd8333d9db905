//! Settings that are more than a number or a word: sizes, switches with an automatic value, retention times, and the
//! database URL. The text of each one parses to the same value.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::store::postgres;

/// A number of bytes: `65536`, `64KiB`, `1MiB`, `2GiB`. Units are binary and named accordingly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(u64);

/// The units, the largest first, so that the first one that divides a size gives its shortest form.
const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns a limit of memory: a size that does not fit in `usize` is no limit.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, scale) = UNITS
            .iter()
            .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))
            .unwrap_or((text, 1));
        // The parser of `u64` would accept a sign.
        if !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(());
        }
        let count: u64 = number.parse().map_err(|_| ())?;
        count.checked_mul(scale).map(Self).ok_or(())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS
            .iter()
            .find(|(_, scale)| self.0 != 0 && self.0.is_multiple_of(*scale))
        {
            Some((unit, scale)) => write!(f, "{}{unit}", self.0 / scale),
            None => self.0.fmt(f),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ByteSizeVisitor;

        impl de::Visitor<'_> for ByteSizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes such as 65536, \"64KiB\" or \"1MiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse()
                    .map_err(|()| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

/// `true`, `false`, or `"auto"`: the value then depends on another setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Auto {
    Auto,
    Fixed(bool),
}

impl Auto {
    pub fn or(self, automatic: bool) -> bool {
        match self {
            Auto::Auto => automatic,
            Auto::Fixed(choice) => choice,
        }
    }
}

impl Serialize for Auto {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Fixed(choice) => serializer.serialize_bool(*choice),
        }
    }
}

impl<'de> Deserialize<'de> for Auto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoVisitor;

        impl de::Visitor<'_> for AutoVisitor {
            type Value = Auto;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"auto\"")
            }

            fn visit_bool<E: de::Error>(self, choice: bool) -> Result<Auto, E> {
                Ok(Auto::Fixed(choice))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Auto, E> {
                match text {
                    "auto" => Ok(Auto::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(AutoVisitor)
    }
}

/// The location of the state store: `sqlite://provost.db` is in the working directory, `sqlite:///data/provost.db`
/// an absolute path, `postgres://user@host/name` a PostgreSQL database that several instances share.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    Sqlite(PathBuf),
    /// The URL may contain a password, so it is never shown.
    Postgres(String),
}

impl DatabaseUrl {
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::Sqlite(path.into())
    }
}

impl Default for DatabaseUrl {
    fn default() -> Self {
        Self::sqlite("provost.db")
    }
}

impl FromStr for DatabaseUrl {
    type Err = ();

    /// Refuses `:memory:`, because accepted tasks would not survive the process, and parameters of SQLite, because
    /// they would change the durability of a commit.
    fn from_str(text: &str) -> Result<Self, ()> {
        if postgres::is_url(text) {
            let url = || Self::Postgres(text.to_owned());
            return postgres::fault_of_url(text).map_or_else(|| Ok(url()), |_| Err(()));
        }
        let path = text.strip_prefix("sqlite://").ok_or(())?;
        let usable = !path.is_empty()
            && !path.ends_with('/')
            && path != ":memory:"
            && !path.contains(['?', '#', '\0']);
        usable.then(|| Self::sqlite(path)).ok_or(())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite://{}", path.display()),
            Self::Postgres(url) => f.write_str(&postgres::without_secrets(url)),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DatabaseUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is not repeated: it may contain a password.
        String::deserialize(deserializer)?
            .parse()
            .map_err(|()| de::Error::custom("not a URL such as \"sqlite://provost.db\""))
    }
}

/// The log filter: `info`, or `warn,provost::scheduler=debug`.
#[derive(Clone, PartialEq, Debug)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl LogFilter {
    pub fn targets(&self) -> &Targets {
        &self.targets
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self {
            text: "info".to_owned(),
            targets: Targets::new().with_default(LevelFilter::INFO),
        }
    }
}

impl FromStr for LogFilter {
    type Err = ();

    /// A single word must be a level: tracing would treat `inof` as a module and silence everything else.
    fn from_str(text: &str) -> Result<Self, ()> {
        let is_clear = text.split(',').all(|part| {
            let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
            !level.is_empty() && level.parse::<LevelFilter>().is_ok()
        });
        let targets = text.parse().map_err(|_| ())?;
        let text = text.to_owned();
        is_clear.then_some(Self { text, targets }).ok_or(())
    }
}

impl Serialize for LogFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(|()| de::Error::custom("not a level such as \"info\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reads_back_as_it_was_written() {
        for text in ["0", "1", "1000", "1KiB", "256KiB", "1MiB", "3GiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        assert_eq!("1024KiB".parse(), Ok(ByteSize::mib(1)));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "KiB",
            "1KB",
            "1 KiB",
            "+1",
            "-1",
            "1.5MiB",
            "99999999999GiB",
        ] {
            assert_eq!(text.parse::<ByteSize>(), Err(()), "{text}");
        }
    }

    #[test]
    fn an_sqlite_file_is_relative_or_absolute_and_nothing_else() {
        let parse = |text: &str| text.parse::<DatabaseUrl>();
        let file = |path: &str| Ok(DatabaseUrl::sqlite(path));
        assert_eq!(parse("sqlite://provost.db"), file("provost.db"));
        assert_eq!(parse("sqlite:///data/p.db"), file("/data/p.db"));
        for text in [
            "provost.db",
            "sqlite:provost.db",
            "sqlite://",
            "sqlite:///data/",
            "sqlite://:memory:",
            "sqlite://p.db?mode=ro",
            "mysql://u:p@h/d",
            "postgres://h:many/d",
            "postgres:d",
            "postgres://h/d?sslmod=require",
        ] {
            assert_eq!(parse(text), Err(()), "{text}");
        }
    }

    #[test]
    fn the_password_of_a_database_is_shown_nowhere() {
        for text in [
            "postgres://ann:s3cret@db.example:6432/tasks?sslmode=verify-full&sslrootcert=/etc/ca.pem",
            "postgresql://ann@db.example:6432/tasks?sslmode=verify-full&password=s3cret&sslrootcert=/etc/ca.pem",
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            let shown =
                "postgres://ann@db.example:6432/tasks?sslmode=verify-full&sslrootcert=/etc/ca.pem";
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
        }
    }

    #[test]
    fn an_automatic_switch_follows_only_when_nobody_set_it() {
        assert!(Auto::Auto.or(true));
        assert!(!Auto::Auto.or(false));
        assert!(Auto::Fixed(true).or(false));
        assert!(!Auto::Fixed(false).or(true));
    }

    #[test]
    fn a_log_filter_is_levels_and_nothing_that_would_silence_by_mistake() {
        for text in [
            "info",
            "off",
            "warn,provost::scheduler=debug",
            "WARN, provost=trace",
        ] {
            assert!(text.parse::<LogFilter>().is_ok(), "{text}");
        }
        for text in ["", "inof", "provost", "provost=", "info,", "provost=loud"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
    }
}
