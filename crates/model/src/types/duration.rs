//! Durations: months, days and nanoseconds, which do not convert into each other. They have no
//! order.

use std::fmt;
use std::str::FromStr;

use super::{ValueError, vint};

/// A span of time. The three parts are all at least zero or all at most zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Duration {
    /// Whole months.
    pub months: i32,
    /// Whole days, which may differ in length.
    pub days: i32,
    /// Nanoseconds.
    pub nanos: i64,
}

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000 * MICRO;
const SECOND: u64 = 1_000 * MILLI;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

impl Duration {
    /// A duration of these parts, unless their signs differ.
    pub fn new(months: i32, days: i32, nanos: i64) -> Result<Self, ValueError> {
        let any_negative = months < 0 || days < 0 || nanos < 0;
        let any_positive = months > 0 || days > 0 || nanos > 0;
        if any_negative && any_positive {
            return Err(ValueError::new(format!(
                "The duration months, days and nanoseconds must be all of the same sign ({months}, {days}, {nanos})"
            )));
        }
        Ok(Duration { months, days, nanos })
    }

    /// The duration with this encoding.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut rest = bytes;
        let short = || ValueError::new(format!("Expected at least 3 bytes for a duration, got {}", bytes.len()));
        let months = vint::read_signed(&mut rest).ok_or_else(short)?;
        let days = vint::read_signed(&mut rest).ok_or_else(short)?;
        let nanos = vint::read_signed(&mut rest).ok_or_else(short)?;
        if !rest.is_empty() {
            return Err(ValueError::new(format!("Unexpected {} bytes after the end of a duration", rest.len())));
        }
        let narrow = |value: i64, what: &str| {
            i32::try_from(value).map_err(|_| ValueError::new(format!("The duration {what} must be a 32 bits integer")))
        };
        Duration::new(narrow(months, "months")?, narrow(days, "days")?, nanos)
    }

    /// Appends the serialised form.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        vint::write_signed(self.months.into(), out);
        vint::write_signed(self.days.into(), out);
        vint::write_signed(self.nanos, out);
    }
}

/// As in CQL: `1y2mo3d4h5m6s7ms8us9ns`, with a leading minus if negative; zero is `0s`.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.months < 0 || self.days < 0 || self.nanos < 0 {
            f.write_str("-")?;
        }
        let months = self.months.unsigned_abs();
        let nanos = self.nanos.unsigned_abs();
        let parts = [
            (u64::from(months / 12), "y"),
            (u64::from(months % 12), "mo"),
            (self.days.unsigned_abs().into(), "d"),
            (nanos / HOUR, "h"),
            (nanos % HOUR / MINUTE, "m"),
            (nanos % MINUTE / SECOND, "s"),
            (nanos % SECOND / MILLI, "ms"),
            (nanos % MILLI / MICRO, "us"),
            (nanos % MICRO, "ns"),
        ];
        for (amount, unit) in parts.iter().filter(|(amount, _)| *amount > 0) {
            write!(f, "{amount}{unit}")?;
        }
        if *self == Duration::default() { f.write_str("0s") } else { Ok(()) }
    }
}

/// A sum of parts without a sign. Sums beyond the limits are an error.
#[derive(Default)]
struct Sum {
    months: u64,
    days: u64,
    nanos: u64,
}

/// Why a text is not a duration.
enum Fault {
    /// It does not have the form of a duration.
    Form,
    /// It has the form but no meaning: a unit twice, in the wrong place, or beyond its limit.
    Meaning(String),
}

impl Fault {
    fn too_many(what: &str, limit: u64) -> Fault {
        Fault::Meaning(format!("The total number of {what} must be less or equal to {limit}"))
    }
}

const MOST_MONTHS: u64 = i32::MAX as u64;
const MOST_DAYS: u64 = i32::MAX as u64;
const MOST_NANOS: u64 = i64::MAX as u64;

impl Sum {
    /// Adds an amount of a unit. An error if `amount` is `None`, because it was not a number.
    fn add(&mut self, amount: Option<u64>, part: Part) -> Result<(), Fault> {
        let (total, unit, what, limit) = match part {
            Part::Months(unit) => (&mut self.months, unit, "months", MOST_MONTHS),
            Part::Days(unit) => (&mut self.days, unit, "days", MOST_DAYS),
            Part::Nanos(unit) => (&mut self.nanos, unit, "nanoseconds", MOST_NANOS),
        };
        let sum = amount.and_then(|amount| amount.checked_mul(unit)).and_then(|amount| total.checked_add(amount));
        *total = sum.ok_or_else(|| Fault::too_many(what, limit))?;
        Ok(())
    }

    fn finish(self, negative: bool) -> Result<Duration, Fault> {
        let signed = |part: u64, what: &str, limit: u64| -> Result<i64, Fault> {
            if part > limit + u64::from(negative) {
                return Err(Fault::too_many(what, limit));
            }
            Ok(if negative { (part as i64).wrapping_neg() } else { part as i64 })
        };
        Ok(Duration {
            months: signed(self.months, "months", MOST_MONTHS)? as i32,
            days: signed(self.days, "days", MOST_DAYS)? as i32,
            nanos: signed(self.nanos, "nanoseconds", MOST_NANOS)?,
        })
    }
}

/// Accepts `1y2mo3w4d5h6m7s8ms9us10ns` (any case, units in this order, each at most once), ISO 8601
/// `P1Y2M3DT4H5M6S` and `P5W`, and `P0001-02-03T04:05:06`, each after an optional minus.
impl FromStr for Duration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (negative, body) = match text.strip_prefix('-') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let sum = match body.strip_prefix('P') {
            None => units(body, &STANDARD, true),
            Some(iso) if iso.as_bytes().get(4) == Some(&b'-') => calendar(iso).ok_or(Fault::Form),
            Some(iso) => match iso.split_once('T') {
                Some((_, "")) => Err(Fault::Form),
                Some(("", time)) => units(time, &ISO_TIME, false),
                Some((date, time)) => units(date, &ISO_DATE, false).and_then(|date| {
                    let time = units(time, &ISO_TIME, false)?;
                    Ok(Sum { nanos: time.nanos, ..date })
                }),
                None if iso.ends_with('W') => units(iso, &ISO_WEEK, false),
                None => units(iso, &ISO_DATE, false),
            },
        };
        sum.and_then(|sum| sum.finish(negative)).map_err(|fault| {
            ValueError::new(match fault {
                Fault::Form => format!("Unable to convert '{text}' to a duration"),
                Fault::Meaning(why) => format!("Invalid duration. {why}"),
            })
        })
    }
}

#[derive(Clone, Copy)]
enum Part {
    Months(u64),
    Days(u64),
    Nanos(u64),
}

const STANDARD: [(&str, Part); 11] = [
    ("y", Part::Months(12)),
    ("mo", Part::Months(1)),
    ("w", Part::Days(7)),
    ("d", Part::Days(1)),
    ("h", Part::Nanos(HOUR)),
    ("m", Part::Nanos(MINUTE)),
    ("s", Part::Nanos(SECOND)),
    ("ms", Part::Nanos(MILLI)),
    ("us", Part::Nanos(MICRO)),
    ("µs", Part::Nanos(MICRO)),
    ("ns", Part::Nanos(1)),
];
const ISO_DATE: [(&str, Part); 3] = [("Y", Part::Months(12)), ("M", Part::Months(1)), ("D", Part::Days(1))];
const ISO_TIME: [(&str, Part); 3] = [("H", Part::Nanos(HOUR)), ("M", Part::Nanos(MINUTE)), ("S", Part::Nanos(SECOND))];
const ISO_WEEK: [(&str, Part); 1] = [("W", Part::Days(7))];

/// The names of the units of [`STANDARD`].
const NAMES: [&str; 11] = [
    "years",
    "months",
    "weeks",
    "days",
    "hours",
    "minutes",
    "seconds",
    "milliseconds",
    "microseconds",
    "microseconds",
    "nanoseconds",
];

/// Parses one or more numbers, each followed by a unit of `allowed`. Units must be in that order,
/// and none may occur twice.
fn units(text: &str, allowed: &[(&str, Part)], any_case: bool) -> Result<Sum, Fault> {
    let mut sum = Sum::default();
    let mut rest = text;
    let mut next = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(Fault::Form);
        }
        let amount: Option<u64> = rest[..digits].parse().ok();
        rest = &rest[digits..];
        let unit = &rest[..rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len())];
        rest = &rest[unit.len()..];
        let same = |name: &str| if any_case { name.eq_ignore_ascii_case(unit) } else { name == unit };
        let at = allowed.iter().position(|(name, _)| same(name)).ok_or(Fault::Form)?;
        if at < next {
            return Err(misplaced(at, next - 1, any_case));
        }
        sum.add(amount, allowed[at].1)?;
        // Both spellings of microseconds are one unit.
        next = at + if allowed[at].0 == "us" { 2 } else { 1 };
    }
    if next > 0 { Ok(sum) } else { Err(Fault::Form) }
}

/// The error for a unit in the wrong order. Only the standard form has a message for that.
fn misplaced(unit: usize, last: usize, standard: bool) -> Fault {
    if !standard {
        return Fault::Form;
    }
    let (unit, last) = (NAMES[unit], NAMES[last]);
    Fault::Meaning(match unit == last {
        true => format!("The {unit} are specified multiple times"),
        false => format!("The {last} should be after {unit}"),
    })
}

/// `YYYY-MM-DDThh:mm:ss`, every part with all its digits.
fn calendar(text: &str) -> Option<Sum> {
    let bytes = text.as_bytes();
    let shape = b"0000-00-00T00:00:00";
    let fits = bytes.len() == shape.len()
        && bytes.iter().zip(shape).all(|(b, s)| if *s == b'0' { b.is_ascii_digit() } else { b == s });
    if !fits {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<u64>().ok();
    Some(Sum {
        months: number(0, 4)? * 12 + number(5, 7)?,
        days: number(8, 10)?,
        nanos: number(11, 13)? * HOUR + number(14, 16)? * MINUTE + number(17, 19)? * SECOND,
    })
}
