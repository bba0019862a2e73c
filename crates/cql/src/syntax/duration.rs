//! Parses durations: months, days and nanoseconds, which are separate because their lengths vary.

/// A CQL duration. Non-zero parts have the same sign.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Duration {
    /// Number of months.
    pub months: i32,
    /// Number of days.
    pub days: i32,
    /// Nanoseconds.
    pub nanoseconds: i64,
}

/// The reason why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DurationError {
    /// Not in the form of a duration.
    #[error("Unable to convert '{0}' to a duration")]
    Form(String),
    /// Units are repeated or not in descending order.
    #[error("Invalid duration. The {0} should be before {1} and appear once")]
    Order(&'static str, &'static str),
    /// A part exceeds its limit.
    #[error("Invalid duration. The total number of {0} must be less or equal to {1}")]
    Range(&'static str, i64),
}

/// The units from the largest to the smallest: name, index of the part (months, days, nanoseconds),
/// and factor.
const UNITS: [(&str, usize, i64); 10] = [
    ("years", 0, 12),
    ("months", 0, 1),
    ("weeks", 1, 7),
    ("days", 1, 1),
    ("hours", 2, 3_600_000_000_000),
    ("minutes", 2, 60_000_000_000),
    ("seconds", 2, 1_000_000_000),
    ("milliseconds", 2, 1_000_000),
    ("microseconds", 2, 1_000),
    ("nanoseconds", 2, 1),
];
const MONTH: usize = 1;
const WEEK: usize = 2;
const MINUTE: usize = 5;

impl Duration {
    /// Parses all forms of duration literals: `1h30m`, `P1Y2M3DT4H`, `P3W`, `P0001-02-03T04:05:06`,
    /// each with an optional minus sign. Takes linear time.
    pub fn parse(text: &str) -> Result<Duration, DurationError> {
        let form = || DurationError::Form(text.to_owned());
        let (negative, body) = match text.strip_prefix('-') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let mut sum = Sum::default();
        match body.strip_prefix('P') {
            Some(iso) if iso.contains('-') => alternative(iso, &mut sum).ok_or_else(form)??,
            Some(iso) => designators(iso, &mut sum).ok_or_else(form)??,
            None => units(body, &mut sum).ok_or_else(form)??,
        }
        sum.finish(negative)
    }
}

/// Sums the parts. Units must be added in descending order.
#[derive(Default)]
struct Sum {
    parts: [i64; 3],
    last: Option<usize>,
}

impl Sum {
    fn add(&mut self, unit: usize, digits: &str) -> Result<(), DurationError> {
        if let Some(last) = self.last
            && last >= unit
        {
            return Err(DurationError::Order(UNITS[unit].0, UNITS[last].0));
        }
        self.last = Some(unit);
        let (_, part, factor) = UNITS[unit];
        let (what, limit) = LIMITS[part];
        let number = digits.parse::<i64>().ok();
        let total = number.and_then(|n| n.checked_mul(factor)).and_then(|n| n.checked_add(self.parts[part]));
        self.parts[part] = total.filter(|n| *n <= limit).ok_or(DurationError::Range(what, limit))?;
        Ok(())
    }

    fn finish(self, negative: bool) -> Result<Duration, DurationError> {
        let [months, days, nanoseconds] = if negative { self.parts.map(|part| -part) } else { self.parts };
        Ok(Duration { months: months as i32, days: days as i32, nanoseconds })
    }
}

/// The name and the limit of each part.
const LIMITS: [(&str, i64); 3] = [("months", i32::MAX as i64), ("days", i32::MAX as i64), ("nanoseconds", i64::MAX)];

/// Splits a text after its leading digits, of which there must be at least one.
fn number(text: &str) -> Option<(&str, &str)> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    (length > 0).then(|| text.split_at(length))
}

/// Parses `1y2mo`: at least one number with a unit. `None` if the form is wrong.
fn units(mut text: &str, sum: &mut Sum) -> Option<Result<(), DurationError>> {
    loop {
        let (digits, rest) = number(text)?;
        let length = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match rest[..length].to_lowercase().as_str() {
            "y" => 0,
            "mo" => 1,
            "w" => 2,
            "d" => 3,
            "h" => 4,
            "m" => 5,
            "s" => 6,
            "ms" => 7,
            "us" | "\u{b5}s" | "\u{3bc}s" => 8,
            "ns" => 9,
            _ => return None,
        };
        if let Err(error) = sum.add(unit, digits) {
            return Some(Err(error));
        }
        text = &rest[length..];
        if text.is_empty() {
            return Some(Ok(()));
        }
    }
}

/// Parses `1Y2M3DT4H5M6S` or `3W`, the text after `P`.
fn designators(mut text: &str, sum: &mut Sum) -> Option<Result<(), DurationError>> {
    let mut time = false;
    let mut parts = 0;
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix('T')
            && !time
        {
            time = true;
            text = rest;
            continue;
        }
        let (digits, rest) = number(text)?;
        let unit = match (rest.bytes().next()?, time) {
            (b'Y', false) => 0,
            (b'M', false) => MONTH,
            (b'W', false) => WEEK,
            (b'D', false) => 3,
            (b'H', true) => 4,
            (b'M', true) => MINUTE,
            (b'S', true) => 6,
            _ => return None,
        };
        if let Err(error) = sum.add(unit, digits) {
            return Some(Err(error));
        }
        parts += 1;
        text = &rest[1..];
    }
    (parts > 0).then_some(Ok(()))
}

/// Parses `0001-02-03T04:05:06`, the text after `P`.
fn alternative(text: &str, sum: &mut Sum) -> Option<Result<(), DurationError>> {
    let mut rest = text;
    for (unit, after) in [(0, "-"), (MONTH, "-"), (3, "T"), (4, ":"), (MINUTE, ":"), (6, "")] {
        let (digits, tail) = number(rest)?;
        if let Err(error) = sum.add(unit, digits) {
            return Some(Err(error));
        }
        rest = tail.strip_prefix(after)?;
    }
    rest.is_empty().then_some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (i32, i32, i64) {
        let duration = Duration::parse(text).unwrap();
        (duration.months, duration.days, duration.nanoseconds)
    }

    #[test]
    fn every_form() {
        assert_eq!(parts("2000ms"), (0, 0, 2_000_000_000));
        assert_eq!(parts("1y2mo3w4d5h6m7s8ms9us10ns"), (14, 25, 18_367_008_009_010));
        assert_eq!(parts("-1h30m"), (0, 0, -5_400_000_000_000));
        assert_eq!(parts("5\u{b5}s"), (0, 0, 5_000));
        assert_eq!(parts("1MO"), (1, 0, 0));
        assert_eq!(parts("P1Y2M3DT4H5M6S"), (14, 3, 14_706_000_000_000));
        assert_eq!(parts("PT1M"), (0, 0, 60_000_000_000));
        assert_eq!(parts("P3W"), (0, 21, 0));
        assert_eq!(parts("-P0001-02-03T04:05:06"), (-14, -3, -14_706_000_000_000));
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in ["", "-", "P", "PT", "1", "1x", "h", "1hP", "P1H", "P1-2", "1h-2m", "P1Y2", "PT1HT1M", "1é"] {
            assert_eq!(Duration::parse(text), Err(DurationError::Form(text.to_owned())), "{text}");
        }
        assert_eq!(Duration::parse("1m1h"), Err(DurationError::Order("hours", "minutes")));
        assert_eq!(Duration::parse("1h1h"), Err(DurationError::Order("hours", "hours")));
        assert_eq!(Duration::parse("178956971y"), Err(DurationError::Range("months", 2147483647)));
        assert_eq!(Duration::parse("99999999999999999999ns"), Err(DurationError::Range("nanoseconds", i64::MAX)));
    }
}
