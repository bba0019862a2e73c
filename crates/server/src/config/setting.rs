//! Values of settings: parses YAML and the command line, and formats values.

use model::HostId;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// A value as it is in the file or on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Raw {
    /// Empty, or YAML's null: the default.
    Null,
    /// One word or number.
    Scalar(String),
    /// A list of words.
    List(Vec<String>),
    /// A map of words.
    Map(Vec<(String, String)>),
    /// Nested values.
    Other,
}

impl Raw {
    /// Parses a text: as in the file, or as `system.config` shows it, which is JSON.
    pub fn of_text(text: &str) -> Raw {
        use serde_json::Value;
        let scalar = |value: &Value| match value {
            Value::String(word) => Some(word.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        let written = || Raw::Scalar(text.to_owned());
        match serde_json::from_str(text) {
            Ok(Value::Null) => Raw::Null,
            Ok(Value::String(word)) => Raw::Scalar(word),
            Ok(Value::Array(list)) => list.iter().map(scalar).collect::<Option<_>>().map_or_else(written, Raw::List),
            Ok(Value::Object(map)) => {
                let pairs = map.iter().map(|(name, value)| Some((name.clone(), scalar(value)?)));
                pairs.collect::<Option<_>>().map_or_else(written, Raw::Map)
            }
            // Numbers stay as they are written.
            Ok(Value::Bool(_) | Value::Number(_)) | Err(_) => written(),
        }
    }
}

/// Why a value is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadValue {
    found: String,
    wanted: Wanted,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Wanted {
    /// Another kind of value.
    Kind(&'static str),
    /// A value within this range.
    Range(String),
    /// One of these options of a map, and the closest one.
    Option(&'static [&'static str], Option<&'static str>),
}

impl BadValue {
    /// An option that the map does not have. `nearest`: the option that may be meant.
    pub fn unknown_option(name: &str, nearest: Option<&'static str>, known: &'static [&'static str]) -> BadValue {
        BadValue { found: name.to_owned(), wanted: Wanted::Option(known, nearest) }
    }

    /// An error for an invalid value.
    pub fn new(found: String, wanted: &'static str) -> BadValue {
        BadValue { found, wanted: Wanted::Kind(wanted) }
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Wanted::Kind(wanted) => write!(f, "{} is not {wanted}", self.found),
            Wanted::Range(range) => write!(f, "{} is out of range: {range}", self.found),
            Wanted::Option(known, nearest) => {
                let meant = nearest.map_or_else(|| ".".to_owned(), |name| format!("; did you mean {name}?"));
                write!(f, "unknown option {}{meant} Possible options: {}", self.found, known.join(", "))
            }
        }
    }
}

/// The minimum and the maximum of a setting, as they are written in the file. An empty word means
/// no limit.
pub type Range = (&'static str, &'static str);

/// Returns the value, or an error if it is out of range.
pub fn within<T: Setting>(value: Option<T>, range: Option<Range>) -> Result<Option<T>, BadValue> {
    if let (Some(value), Some((least, most))) = (&value, range)
        && let Some(amount) = value.amount()
    {
        let bound = |word: &str| T::from_word(word).and_then(|bound| bound.amount());
        if bound(least).is_some_and(|least| amount < least) || bound(most).is_some_and(|most| amount > most) {
            return Err(BadValue { found: value.show(), wanted: Wanted::Range(range_text((least, most))) });
        }
    }
    Ok(value)
}

/// A range as text.
pub fn range_text(range: Range) -> String {
    match range {
        ("", most) => format!("at most {most}"),
        (least, "") => format!("at least {least}"),
        (least, most) => format!("from {least} to {most}"),
    }
}

/// A type of settings.
pub trait Setting: Sized {
    /// Describes a valid value, for errors and the reference: "a port number".
    const WANTED: &'static str;
    /// The type in `system.config`.
    const KIND: &'static str;

    /// Parses one word.
    fn from_word(word: &str) -> Option<Self>;

    /// The value as it is written in the file.
    fn show(&self) -> String;

    /// The value in `system.config`: JSON.
    fn json(&self) -> String {
        serde_json::Value::String(self.show()).to_string()
    }

    /// The value as a number, if it is one, to compare it with a range.
    fn amount(&self) -> Option<u128> {
        None
    }

    /// The error for an invalid value.
    fn bad(found: String) -> BadValue {
        BadValue::new(found, Self::WANTED)
    }

    /// Parses a value. `Ok(None)` means the default.
    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Null => Ok(None),
            Raw::Scalar(word) => Self::from_word(word.trim()).map(Some).ok_or_else(|| Self::bad(format!("'{word}'"))),
            // cassandra.yaml has lists where only one value is possible here.
            Raw::List(words) if words.len() == 1 => Self::read(&Raw::Scalar(words[0].clone())),
            Raw::List(words) => Err(Self::bad(format!("a list of {} values", words.len()))),
            Raw::Map(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }
}

impl Setting for String {
    const WANTED: &'static str = "text";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        Some(word.to_owned())
    }

    /// Keeps line breaks, so that they are refused in names.
    fn read(raw: &Raw) -> Result<Option<Self>, BadValue> {
        match raw {
            Raw::Scalar(word) => Ok(Some(word.trim_matches(' ').to_owned())),
            Raw::List(words) if words.len() == 1 => Ok(Some(words[0].trim_matches(' ').to_owned())),
            Raw::List(words) => Err(Self::bad(format!("a list of {} values", words.len()))),
            Raw::Null => Ok(None),
            Raw::Map(_) | Raw::Other => Err(Self::bad("a nested value".to_owned())),
        }
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    const WANTED: &'static str = "a path";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        (!word.is_empty()).then(|| word.into())
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for HostId {
    const WANTED: &'static str = "a host id";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        Uuid::parse_str(word).ok().map(HostId)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    const WANTED: &'static str = "true or false";
    const KIND: &'static str = "bool";

    fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    fn json(&self) -> String {
        self.show()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u16 {
    const WANTED: &'static str = "a number from 0 to 65535";
    const KIND: &'static str = "integer";

    fn amount(&self) -> Option<u128> {
        Some(u128::from(*self))
    }

    fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    fn json(&self) -> String {
        self.show()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u64 {
    const WANTED: &'static str = "a number from 0";
    const KIND: &'static str = "integer";

    fn amount(&self) -> Option<u128> {
        Some(u128::from(*self))
    }

    fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }

    fn json(&self) -> String {
        self.show()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for IpAddr {
    const WANTED: &'static str = "an IP address";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        if word.eq_ignore_ascii_case("localhost") {
            return Some(IpAddr::from([127, 0, 0, 1]));
        }
        word.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T: Setting> Setting for Option<T> {
    const WANTED: &'static str = T::WANTED;
    const KIND: &'static str = T::KIND;

    fn amount(&self) -> Option<u128> {
        self.as_ref().and_then(T::amount)
    }

    fn from_word(word: &str) -> Option<Self> {
        if word.is_empty() { Some(None) } else { T::from_word(word).map(Some) }
    }

    fn json(&self) -> String {
        self.as_ref().map_or_else(|| "null".to_owned(), T::json)
    }

    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
}

/// A duration. A bare number counts units of `NANOS` nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Time<const NANOS: u64>(pub Duration);

/// A duration whose bare numbers are milliseconds.
pub type Millis = Time<1_000_000>;
/// A duration whose bare numbers are seconds.
pub type Seconds = Time<1_000_000_000>;
/// A duration whose bare numbers are microseconds.
pub type Micros = Time<1_000>;

impl<const NANOS: u64> Setting for Time<NANOS> {
    const WANTED: &'static str = "a duration such as 500ms, 10s, 2m or 1h";
    const KIND: &'static str = "integer";

    fn amount(&self) -> Option<u128> {
        Some(self.0.as_nanos())
    }

    fn from_word(word: &str) -> Option<Self> {
        let (number, unit) = split(word)?;
        let nanos = match unit {
            "" => NANOS,
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return None,
        };
        number.checked_mul(nanos).map(|nanos| Time(Duration::from_nanos(nanos)))
    }

    fn json(&self) -> String {
        // Rounded up: 0 often has a meaning of its own, so a smaller value is not shown as 0.
        self.0.as_nanos().div_ceil(u128::from(NANOS)).to_string()
    }

    fn show(&self) -> String {
        let nanos = self.0.as_nanos();
        for (unit, size) in [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)] {
            if nanos > 0 && nanos.is_multiple_of(size) {
                return format!("{}{unit}", nanos / size);
            }
        }
        format!("{}us", nanos / 1_000)
    }
}

/// A number of bytes. A bare number counts units of `UNIT` bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size<const UNIT: u64>(pub u64);

/// A size whose bare numbers are bytes.
pub type Bytes = Size<1>;
/// A size whose bare numbers are KiB.
pub type KiB = Size<1024>;
/// A size whose bare numbers are MiB.
pub type MiB = Size<1_048_576>;

impl<const UNIT: u64> Setting for Size<UNIT> {
    const WANTED: &'static str = "a size such as 64KiB, 512M or 4GiB";
    const KIND: &'static str = "integer";

    fn amount(&self) -> Option<u128> {
        Some(u128::from(self.0))
    }

    fn from_word(word: &str) -> Option<Self> {
        let (number, unit) = split(word)?;
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" => return number.checked_mul(UNIT).map(Size),
            "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return None,
        };
        number.checked_mul(1 << shift).map(Size)
    }

    fn json(&self) -> String {
        (self.0 / UNIT).to_string()
    }

    fn show(&self) -> String {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 > 0 && self.0.is_multiple_of(1 << shift) {
                return format!("{}{unit}", self.0 >> shift);
            }
        }
        format!("{}B", self.0)
    }
}

fn split(word: &str) -> Option<(u64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $wanted:literal, { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl Setting for $name {
            const WANTED: &'static str = $wanted;
            const KIND: &'static str = "string";

            fn from_word(word: &str) -> Option<Self> {
                // A class name may have its package.
                let word = word.rsplit_once('.').map_or(word, |(_, last)| last);
                $(if word.eq_ignore_ascii_case($word) {
                    return Some($name::$variant);
                })+
                None
            }

            fn show(&self) -> String {
                match self {
                    $($name::$variant => $word.to_owned()),+
                }
            }
        }
    };
}

choice!(
    /// When a write is acknowledged.
    CommitlogSync,
    "periodic, batch or group",
    {
        /// Once the kernel has it.
        Periodic = "periodic",
        /// Once the disk has it.
        Batch = "batch",
        /// Like batch, after collecting writes for a short time.
        Group = "group",
    }
);

choice!(
    /// The authenticator: which clients may connect.
    Authenticator,
    "AllowAllAuthenticator (PasswordAuthenticator is not supported yet)",
    {
        /// All clients.
        AllowAll = "AllowAllAuthenticator",
    }
);

choice!(
    /// The authorizer: what clients may do.
    Authorizer,
    "AllowAllAuthorizer (CassandraAuthorizer is not supported yet)",
    {
        /// All clients may do everything.
        AllowAll = "AllowAllAuthorizer",
    }
);

choice!(
    /// Whether hot partitions of overloaded shards are refused.
    HotPartitionProtection,
    "off, observe or on",
    {
        /// Nothing is decided.
        Off = "off",
        /// What would be refused is counted.
        Observe = "observe",
        /// They are refused.
        On = "on",
    }
);

choice!(
    /// The format of log lines.
    LogFormat,
    "auto, text or json",
    {
        /// Text, with colours if the output is a terminal.
        Auto = "auto",
        /// Text.
        Text = "text",
        /// One JSON object for each line.
        Json = "json",
    }
);

/// A set of CPUs such as `0-3,6`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuSet(pub Vec<usize>);

impl CpuSet {
    /// The CPUs in short form: `0-3,6`. They must be sorted.
    pub fn ranges(&self) -> String {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => runs.push((cpu, cpu)),
            }
        }
        let run = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
        runs.into_iter().map(run).collect::<Vec<_>>().join(",")
    }
}

impl Setting for CpuSet {
    const WANTED: &'static str = "a list of CPUs such as 0-3,6";
    const KIND: &'static str = "string";

    fn from_word(word: &str) -> Option<Self> {
        let mut cpus = Vec::new();
        for part in word.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
            if first > last || last > 4095 {
                return None;
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Some(CpuSet(cpus))
    }

    fn show(&self) -> String {
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read<T: Setting>(word: &str) -> Option<T> {
        T::read(&Raw::Scalar(word.to_owned())).ok().flatten()
    }

    #[test]
    fn durations_and_sizes_take_units_and_bare_numbers() {
        assert_eq!(read::<Millis>("1500"), Some(Time(Duration::from_millis(1500))));
        assert_eq!(read::<Millis>("10s"), Some(Time(Duration::from_secs(10))));
        assert_eq!(read::<Micros>("7"), Some(Time(Duration::from_micros(7))));
        assert_eq!(read::<Millis>("2 h"), Some(Time(Duration::from_secs(7200))));
        assert_eq!(read::<Millis>("-1"), None);
        assert_eq!(read::<Millis>("3 weeks"), None);
        assert_eq!(read::<MiB>("3"), Some(Size(3 << 20)));
        assert_eq!(read::<MiB>("3KiB"), Some(Size(3 << 10)));
        assert_eq!(read::<Bytes>("2G"), Some(Size(2 << 30)));
        assert_eq!(read::<Bytes>("99999999999T"), None);
        assert_eq!(read::<CpuSet>("0-2,5,1"), Some(CpuSet(vec![0, 1, 2, 5])));
        assert_eq!(read::<CpuSet>("2-1"), None);
        assert_eq!(
            read::<Authenticator>("org.apache.cassandra.auth.AllowAllAuthenticator"),
            Some(Authenticator::AllowAll)
        );
        let why = Authenticator::read(&Raw::Scalar("PasswordAuthenticator".into())).map_err(|why| why.to_string());
        assert!(why.is_err_and(|why| why.contains("not supported yet")));
    }

    #[test]
    fn a_duration_below_one_unit_is_not_shown_as_zero() {
        let shown = |word| read::<Millis>(word).expect("a duration").json();
        assert_eq!(
            [shown("0"), shown("1ns"), shown("500us"), shown("1500us"), shown("2s")],
            ["0", "1", "1", "2", "2000"]
        );
    }

    proptest! {
        #[test]
        fn shown_sizes_and_times_can_be_read(bytes in 0u64..1 << 50, micros in 0u64..1 << 45) {
            let size = Size::<1>(bytes);
            prop_assert_eq!(read::<Bytes>(&size.show()), Some(size));
            let time = Time::<1000>(Duration::from_micros(micros));
            prop_assert_eq!(read::<Micros>(&time.show()), Some(time));
        }
    }
}
