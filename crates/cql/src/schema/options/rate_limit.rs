//! `per_partition_rate_limit`: operations and KiB per second of each partition. Also its form in
//! `system_schema.tables.extensions`, which is ScyllaDB's.
//!
//! ScyllaDB knows `max_reads_per_second` and `max_writes_per_second`. The limits in KiB and the
//! mode are Messina's. Keys are stored and described in alphabetical order, as ScyllaDB does.

use crate::error::Error;
use model::options::{ENFORCE, LIMIT_MODE, MAX_READ_KB, MAX_READS, MAX_WRITE_KB, MAX_WRITES, OBSERVE, OptionMap};

/// The name of the option, and of the extension.
pub const OPTION: &str = "per_partition_rate_limit";

fn refused(message: String) -> Error {
    Error::Configuration(message)
}

/// The keys of the option.
const KEYS: [&str; 5] = [MAX_READS, MAX_WRITES, MAX_READ_KB, MAX_WRITE_KB, LIMIT_MODE];

/// The stored form of the option. The default mode is left out, so that ScyllaDB's keys alone have
/// ScyllaDB's form.
pub fn stored(written: OptionMap) -> Result<OptionMap, Error> {
    let unknown: Vec<&str> = written.keys().map(String::as_str).filter(|name| !KEYS.contains(name)).collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        return Err(refused(format!("Unknown keys in map for per_partition_rate_limit extension: {unknown}")));
    }
    let mut stored = OptionMap::new();
    for (name, value) in written {
        let value = if name == LIMIT_MODE { mode(&value)? } else { Some(number(&name, &value)?) };
        stored.extend(value.map(|value| (name, value)));
    }
    Ok(stored)
}

/// The stored form of a limit.
fn number(name: &str, value: &str) -> Result<String, Error> {
    let wrong = |why: &str| refused(format!("Invalid value for {name} option: {why}"));
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("expected a non-negative number"));
    }
    let limit: u32 = value.parse().map_err(|_| wrong("out of range accepted by 32-bit numbers"))?;
    Ok(limit.to_string())
}

/// The stored form of the mode. None for the default.
fn mode(value: &str) -> Result<Option<String>, Error> {
    match value.to_ascii_lowercase().as_str() {
        ENFORCE => Ok(None),
        OBSERVE => Ok(Some(OBSERVE.to_owned())),
        _ => Err(refused(format!("Invalid value for {LIMIT_MODE} option: expected '{ENFORCE}' or '{OBSERVE}'"))),
    }
}

/// The option as the value of an extension: `u32` number of entries, then the texts of each entry,
/// each after its length as `u32`; all little-endian.
pub fn extension(stored: &OptionMap) -> Vec<u8> {
    let mut out = (stored.len() as u32).to_le_bytes().to_vec();
    for text in stored.iter().flat_map(|(name, value)| [name, value]) {
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    out
}

/// The option in a map of extensions whose values are blob literals, as drivers write it. None: the
/// map does not have it.
pub fn of_extensions(written: &OptionMap) -> Result<Option<OptionMap>, Error> {
    if let Some(other) = written.keys().find(|name| *name != OPTION) {
        return Err(refused(format!("The extension {other} of tables is not supported")));
    }
    let Some(literal) = written.get(OPTION) else { return Ok(None) };
    let option = bytes_of(literal).and_then(|bytes| entries_of(&bytes));
    let option = option.ok_or_else(|| refused(format!("Invalid value for the extension {OPTION}: {literal}")))?;
    stored(option).map(Some)
}

fn bytes_of(literal: &str) -> Option<Vec<u8>> {
    let digits = literal.strip_prefix("0x").or_else(|| literal.strip_prefix("0X"))?.as_bytes();
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
}

fn entries_of(mut bytes: &[u8]) -> Option<OptionMap> {
    fn number(bytes: &mut &[u8]) -> Option<usize> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*number) as usize)
    }
    fn text(bytes: &mut &[u8]) -> Option<String> {
        let len = number(bytes)?;
        let (text, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }
    let count = number(&mut bytes)?;
    let mut entries = OptionMap::new();
    for _ in 0..count {
        entries.insert(text(&mut bytes)?, text(&mut bytes)?);
    }
    bytes.is_empty().then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_extensions_match_scylladb_and_round_trip() {
        let option = OptionMap::from([(MAX_WRITES.to_owned(), "7".to_owned())]);
        let bytes = extension(&option);
        assert_eq!(bytes, b"\x01\0\0\0\x15\0\0\0max_writes_per_second\x01\0\0\x007");
        let hex = model::hex(&bytes);
        let written = |hex: &str| OptionMap::from([(OPTION.to_owned(), format!("0x{hex}"))]);
        assert_eq!(of_extensions(&written(&hex)), Ok(Some(option)));
        for len in 0..hex.len() {
            assert!(of_extensions(&written(&hex[..len])).is_err(), "cut at {len}");
        }
        assert!(of_extensions(&written(&format!("{hex}00"))).is_err());
        assert!(of_extensions(&written("ffffffff")).is_err());
        assert_eq!(of_extensions(&OptionMap::new()), Ok(None));
        let own =
            OptionMap::from([(MAX_READ_KB, "5"), (LIMIT_MODE, OBSERVE)].map(|(a, b)| (a.to_owned(), b.to_owned())));
        let hex = model::hex(&extension(&own));
        assert_eq!(of_extensions(&written(&hex)), Ok(Some(own)));
        assert!(of_extensions(&OptionMap::from([("paxos".to_owned(), "0x".to_owned())])).is_err());
    }
}
