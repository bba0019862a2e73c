//! Timestamps, dates and times of day as text, in both directions, in the proleptic Gregorian
//! calendar.
//!
//! A text without a zone is UTC: the zone of a node must never change the meaning of a statement.

use std::fmt::Write as _;

use super::ValueError;

/// Nanoseconds in a day: times of day are below it.
pub const NANOS_PER_DAY: i64 = 86_400_000_000_000;
/// The serialised date of 1970-01-01.
pub const DATE_EPOCH: u32 = 1 << 31;

const MILLIS_PER_DAY: i64 = 86_400_000;

/// Days since 1970-01-01 of a day of the calendar. Only for months 1 to 12 and years that keep it
/// within 64 bits.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // In years that begin in March, the leap day is the last day.
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`]: year, month, day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A cursor over ASCII text.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn eat(&mut self, wanted: u8) -> bool {
        let found = self.rest.first() == Some(&wanted);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    /// A number of `min` to `max` digits, and how many it had.
    fn digits(&mut self, min: usize, max: usize) -> Option<(i64, usize)> {
        let len = self.rest.iter().take(max + 1).take_while(|byte| byte.is_ascii_digit()).count();
        if !(min..=max).contains(&len) {
            return None;
        }
        let value = self.rest[..len].iter().fold(0, |value, byte| value * 10 + i64::from(byte - b'0'));
        self.rest = &self.rest[len..];
        Some((value, len))
    }

    /// `[-]Y-M-D` as days since 1970-01-01.
    fn date(&mut self) -> Option<i64> {
        let negative = self.eat(b'-');
        let (year, _) = self.digits(1, 9)?;
        let year = if negative { -year } else { year };
        if !self.eat(b'-') {
            return None;
        }
        let (month, _) = self.digits(1, 2)?;
        if !self.eat(b'-') {
            return None;
        }
        let (day, _) = self.digits(1, 2)?;
        let sound = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        sound.then(|| days_from_civil(year, month, day))
    }

    /// Nothing, `Z`, `UTC`, `GMT`, or an offset `+hh`, `+hhmm`, `+hh:mm`, as minutes east, and then
    /// the end.
    fn zone(&mut self) -> Option<i64> {
        while self.eat(b' ') {}
        if matches!(self.rest.to_ascii_lowercase().as_slice(), b"" | b"z" | b"utc" | b"gmt") {
            return Some(0);
        }
        let sign = if self.eat(b'+') {
            1
        } else if self.eat(b'-') {
            -1
        } else {
            return None;
        };
        let (hours, _) = self.digits_of_zone()?;
        let minutes = if self.rest.is_empty() {
            0
        } else {
            self.eat(b':');
            self.digits_of_zone()?.0
        };
        let sound = self.rest.is_empty() && hours <= 18 && minutes < 60;
        sound.then_some(sign * (hours * 60 + minutes))
    }

    fn digits_of_zone(&mut self) -> Option<(i64, usize)> {
        let (pair, rest) = self.rest.split_at_checked(2)?;
        if !pair.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.rest = rest;
        Some((i64::from(pair[0] - b'0') * 10 + i64::from(pair[1] - b'0'), 2))
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A timestamp in milliseconds since 1970, from an integer or from `Y-M-D[(
/// |T)h:m[:s[.fff]]][zone]`.
pub fn parse_timestamp(text: &str) -> Result<i64, ValueError> {
    let failed = |why: &str| ValueError::new(format!("unable to parse date '{text}': {why}"));
    let trimmed = text.trim();
    if is_integer(trimmed) {
        return trimmed.parse().map_err(|_| failed("out of range"));
    }
    let mut scanner = Scanner { rest: trimmed.as_bytes() };
    let days = scanner.date().ok_or_else(|| failed("expected a date like 2024-02-29"))?;
    let mut millis = 0;
    let time_follows = match scanner.rest {
        [b'T' | b't', ..] => true,
        [b' ', rest @ ..] => rest.first().is_some_and(u8::is_ascii_digit),
        _ => false,
    };
    if time_follows {
        scanner.rest = &scanner.rest[1..];
        millis = time_in_millis(&mut scanner).map_err(failed)?;
    }
    let offset = scanner.zone().ok_or_else(|| failed("unable to parse the time zone"))?;
    // In 128 bits, because the first and the last day of the range are not complete.
    let total = i128::from(days) * i128::from(MILLIS_PER_DAY) + i128::from(millis - offset * 60_000);
    i64::try_from(total).map_err(|_| failed("out of range"))
}

fn time_in_millis(scanner: &mut Scanner<'_>) -> Result<i64, &'static str> {
    const SHAPE: &str = "expected a time like 12:30:45.123";
    let (hour, _) = scanner.digits(1, 2).ok_or(SHAPE)?;
    if !scanner.eat(b':') {
        return Err(SHAPE);
    }
    let (minute, _) = scanner.digits(1, 2).ok_or(SHAPE)?;
    let (mut second, mut fraction) = (0, 0);
    if scanner.eat(b':') {
        (second, _) = scanner.digits(1, 2).ok_or(SHAPE)?;
        if scanner.eat(b'.') {
            let (digits, len) = scanner.digits(1, 3).ok_or("milliseconds length exceeds expected")?;
            fraction = digits * [0, 100, 10, 1][len];
        }
    }
    if hour > 23 || minute > 59 || second > 59 {
        return Err("time of day out of range");
    }
    Ok(((hour * 60 + minute) * 60 + second) * 1_000 + fraction)
}

/// A serialised date (days, 2^31 is 1970-01-01), from such a number or from `[-]Y-M-D`.
pub fn parse_date(text: &str) -> Result<u32, ValueError> {
    let failed = |why: &str| ValueError::new(format!("Unable to coerce '{text}' to a formatted date (long): {why}"));
    if is_integer(text) {
        let made = text.parse();
        return made.map_err(|_| ValueError::new(format!("Unable to make unsigned int (for date) from: '{text}'")));
    }
    let mut scanner = Scanner { rest: text.as_bytes() };
    let days = scanner.date().filter(|_| scanner.rest.is_empty());
    let days = days.ok_or_else(|| failed("expected a date like 2024-02-29"))?;
    u32::try_from(days + i64::from(DATE_EPOCH)).map_err(|_| failed("out of range"))
}

/// A time of day in nanoseconds, from such a number or from `h:m:s[.fffffffff]`.
pub fn parse_time(text: &str) -> Result<i64, ValueError> {
    let failed = |why: &str| ValueError::new(format!("unable to parse time '{text}': {why}"));
    let nanos = if is_integer(text) {
        text.parse::<i64>().map_err(|_| failed("out of range"))?
    } else {
        let mut scanner = Scanner { rest: text.as_bytes() };
        time_in_nanos(&mut scanner).ok_or_else(|| failed("expected hh:mm:ss[.fffffffff]"))?
    };
    if (0..NANOS_PER_DAY).contains(&nanos) { Ok(nanos) } else { Err(failed("out of range")) }
}

fn time_in_nanos(scanner: &mut Scanner<'_>) -> Option<i64> {
    let (hour, _) = scanner.digits(1, 2)?;
    let (minute, _) = scanner.eat(b':').then(|| scanner.digits(1, 2))??;
    let (second, _) = scanner.eat(b':').then(|| scanner.digits(1, 2))??;
    let mut nanos = 0;
    if scanner.eat(b'.') {
        let (digits, len) = scanner.digits(1, 9)?;
        nanos = digits * 10i64.pow(9 - len as u32);
    }
    let sound = scanner.rest.is_empty() && minute < 60 && second < 60;
    sound.then_some(((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos)
}

fn push_date(days: i64, out: &mut String) {
    let (year, month, day) = civil_from_days(days);
    let sign = if year < 0 { "-" } else { "" };
    let _ = write!(out, "{sign}{:04}-{month:02}-{day:02}", year.abs());
}

/// `2024-02-29`, of a serialised date.
pub fn format_date(date: u32) -> String {
    let mut out = String::with_capacity(10);
    push_date(i64::from(date) - i64::from(DATE_EPOCH), &mut out);
    out
}

/// `2024-02-29T12:00:00.123Z`, with `separator` between date and time (`T`, or a blank as in JSON).
pub fn format_timestamp(millis: i64, separator: char) -> String {
    let mut out = String::with_capacity(24);
    push_date(millis.div_euclid(MILLIS_PER_DAY), &mut out);
    let of_day = millis.rem_euclid(MILLIS_PER_DAY);
    let (seconds, fraction) = (of_day / 1_000, of_day % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let _ = write!(out, "{separator}{hour:02}:{minute:02}:{second:02}.{fraction:03}Z");
    out
}

/// `13:14:15.123456789`, of nanoseconds in a day.
pub fn format_time(nanos: i64) -> String {
    let (seconds, fraction) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    format!("{:02}:{:02}:{:02}.{fraction:09}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}
