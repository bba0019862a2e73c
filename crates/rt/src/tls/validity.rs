//! When certificates are valid: their dates, and warnings for the operator.
//!
//! Only the dates are parsed here. rustls verifies certificates of others, and not the node's own.

use std::fmt::{Display, Formatter, Result};

/// An expiry within this time is reported, in seconds: 30 days.
const SOON: i64 = 30 * DAY;
const DAY: i64 = 86_400;

/// DER's tags of the fields before the dates, and of the dates.
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The dates between which a certificate is valid, in seconds since the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// The first second.
    pub from: i64,
    /// The last second.
    pub until: i64,
}

impl Validity {
    /// The dates of a certificate in DER. `None` if they cannot be found.
    pub fn of(certificate: &[u8]) -> Option<Validity> {
        let (mut contents, _) = with_tag(SEQUENCE, with_tag(SEQUENCE, certificate)?.0)?;
        // The version is optional. Then: serial number, signature algorithm, issuer.
        if let Some((_, rest)) = with_tag(VERSION, contents) {
            contents = rest;
        }
        for _ in 0..3 {
            contents = element(contents)?.2;
        }
        let (tag, from, rest) = element(with_tag(SEQUENCE, contents)?.0)?;
        let from = time(tag, from)?;
        let (tag, until, _) = element(rest)?;
        Some(Validity { from, until: time(tag, until)? })
    }

    /// The warning about the dates at `now`, as the end of a sentence.
    pub fn warning(self, now: i64) -> Option<String> {
        let (from, until) = (Date(self.from), Date(self.until));
        if now > self.until {
            Some(format!("has expired: it was valid from {from} until {until}"))
        } else if now < self.from {
            Some(format!("is not valid yet: it is valid from {from} until {until}"))
        } else if self.until - now < SOON {
            Some(format!("expires in {} days: it is valid from {from} until {until}", (self.until - now) / DAY))
        } else {
            None
        }
    }
}

/// The first element of DER: its tag, its contents, and what follows.
pub(super) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first > 0x7f {
        let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if bytes.len() > 4 {
            return None;
        }
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

pub(super) fn with_tag(wanted: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, contents, rest) = element(der)?;
    (tag == wanted).then_some((contents, rest))
}

/// `YYMMDDhhmmssZ` of 1950 to 2049, or `YYYYMMDDhhmmssZ`.
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => match number(&digits[..2]) {
            year @ 50.. => (1900 + year, &digits[2..]),
            year => (2000 + year, &digits[2..]),
        },
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&rest[2 * at..][..2]);
    let (month, day) = (part(0), part(1));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days(year, month, day) * DAY + part(2) * 3600 + part(3) * 60 + part(4))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, of the year 0 or later.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that a leap day is the last day of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    of_years + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A second since the epoch, shown as a date and time in UTC.
pub struct Date(pub i64);

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (day, second) = (self.0.div_euclid(DAY), self.0.rem_euclid(DAY));
        // The estimate is at most one year too late.
        let mut year = 1970 + day.div_euclid(365);
        while days(year, 1, 1) > day {
            year -= 1;
        }
        let month = (1..=12).rev().find(|month| days(year, *month, 1) <= day).unwrap_or(1);
        let day = day - days(year, month, 1) + 1;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBNDCB56ADAgECAhQcLOpten2aJMtgwMR0nwUbHPBAZjAFBgMrZXAwDzENMAsG\n\
        A1UEAwwEbm9kZTAgFw00OTEyMTUwMDAwMDBaGA8yMDUwMDIxMzAwMDAwMFowDzEN\n\
        MAsGA1UEAwwEbm9kZTAqMAUGAytlcAMhACMjD0a75JwrFcu/6KZmMeWLD/0NAIAU\n\
        3nsiD8pJyMHso1MwUTAdBgNVHQ4EFgQU9x53jnQzA66A6jHUozdHBveHX2swHwYD\n\
        VR0jBBgwFoAU9x53jnQzA66A6jHUozdHBveHX2swDwYDVR0TAQH/BAUwAwEB/zAF\n\
        BgMrZXADQQBhi9GTnoq0wIz1yoEk6Lntgm4xDXXumgGjxBmJgq8l345ilq7XNL5W\n\
        M8pYwqpOVCKD5GD44kI+gaBBPFaI/EoH\n\
        -----END CERTIFICATE-----\n";

    #[test]
    fn the_dates_of_a_certificate_are_found() {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).expect("a certificate");
        let validity = Validity::of(&certificate).expect("dates");
        // The first is a UTCTime, the second a GeneralizedTime.
        assert_eq!(Date(validity.from).to_string(), "2049-12-15T00:00:00Z");
        assert_eq!(Date(validity.until).to_string(), "2050-02-13T00:00:00Z");
        for end in 0..certificate.len() {
            // Damage is no panic.
            let _ = Validity::of(&certificate[..end]);
            let mut damaged = certificate.to_vec();
            damaged[end] ^= 0xff;
            let _ = Validity::of(&damaged);
        }
        assert_eq!(Validity::of(b""), None);
    }

    #[test]
    fn warnings_about_dates_have_the_dates() {
        let validity = Validity { from: 100 * DAY, until: 200 * DAY };
        for (now, expected) in [
            (99 * DAY, Some("is not valid yet: it is valid from 1970-04-11T00:00:00Z until 1970-07-20T00:00:00Z")),
            (100 * DAY, None),
            (170 * DAY, None),
            (171 * DAY, Some("expires in 29 days: it is valid from 1970-04-11T00:00:00Z until 1970-07-20T00:00:00Z")),
            (200 * DAY, Some("expires in 0 days: it is valid from 1970-04-11T00:00:00Z until 1970-07-20T00:00:00Z")),
            (200 * DAY + 1, Some("has expired: it was valid from 1970-04-11T00:00:00Z until 1970-07-20T00:00:00Z")),
        ] {
            assert_eq!(validity.warning(now).as_deref(), expected, "{now}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Date(seconds).to_string(), date);
            let digits: String = date.chars().filter(char::is_ascii_digit).collect();
            assert_eq!(time(GENERALIZED_TIME, format!("{digits}Z").as_bytes()), Some(seconds));
        }
        assert_eq!(time(UTC_TIME, b"500101000000Z"), time(GENERALIZED_TIME, b"19500101000000Z"));
        for bad in
            ["", "Z", "2000010100000Z", "200001010000000Z", "200013010000Z", "20001301000000Z", "2000010100000xZ"]
        {
            assert_eq!(time(GENERALIZED_TIME, bad.as_bytes()), None, "{bad}");
        }
    }
}
