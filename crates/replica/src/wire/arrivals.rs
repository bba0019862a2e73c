//! The wire form of reports about arrivals, and of their answers: `u8 version, u32 length`, then
//! `u32 count` and so many entries.

use super::VERSION;
use super::codec::{Reader, Writer};
use crate::arrivals::{Arrival, MAX_REPORTED};
use crate::limiter::{LimitKey, LimitKind};
use bytes::Bytes;
use model::row::Malformed;
use std::slice::from_ref;

/// Encodes a report: for each partition its table, token, kind of operation and rate, or bytes.
pub fn encode_arrivals<'a>(arrivals: impl ExactSizeIterator<Item = &'a Arrival>) -> Bytes {
    let mut out = Writer::framed(VERSION);
    out.u32(arrivals.len() as u32);
    for Arrival { key, rate } in arrivals {
        out.raw(&key.table.to_be_bytes());
        out.u64(key.token as u64);
        out.u8(key.kind as u8);
        out.u64(*rate);
    }
    out.finish().join()
}

/// Decodes a report.
///
/// # Errors
///
/// If it is malformed, or has more than [`MAX_REPORTED`] partitions.
pub fn decode_arrivals(bytes: &Bytes) -> Result<Vec<Arrival>, Malformed> {
    let entry = |reader: &mut Reader<'_>| {
        let table = u128::from_be_bytes(reader.array()?);
        let token = reader.u64()? as i64;
        let kind = LimitKind::from_code(reader.u8()?).filter(|kind| *kind != LimitKind::WriteBytes)?;
        Some(Arrival { key: LimitKey { token, table, kind }, rate: reader.u64()? })
    };
    entries(bytes, entry).ok_or(Malformed("report of arrivals"))
}

/// Encodes an answer: for each partition of the report the rate at all other coordinators.
pub fn encode_others(rates: &[u64]) -> Bytes {
    let mut out = Writer::framed(VERSION);
    out.list(rates, |out, rate| out.u64(*rate));
    out.finish().join()
}

/// Decodes an answer.
///
/// # Errors
///
/// If it is malformed, or has more than [`MAX_REPORTED`] rates.
pub fn decode_others(bytes: &Bytes) -> Result<Vec<u64>, Malformed> {
    entries(bytes, |reader| reader.u64()).ok_or(Malformed("response to a report of arrivals"))
}

/// The entries of a message. Bytes after them are of a later release.
fn entries<T>(bytes: &Bytes, mut entry: impl FnMut(&mut Reader<'_>) -> Option<T>) -> Option<Vec<T>> {
    let mut reader = Reader::framed(from_ref(bytes), VERSION)?;
    let count = reader.u32().filter(|count| *count as usize <= MAX_REPORTED)?;
    (0..count).map(|_| entry(&mut reader)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrival(n: u64) -> Arrival {
        let kind = [LimitKind::Read, LimitKind::Write, LimitKind::ReadBytes][n as usize % 3];
        Arrival { key: LimitKey { token: -(n as i64), table: u128::from(n) << 64 | 7, kind }, rate: n << 40 }
    }

    #[test]
    fn messages_round_trip_unless_they_are_truncated_or_too_long() {
        let arrivals: Vec<Arrival> = (0..MAX_REPORTED as u64).map(arrival).collect();
        let bytes = encode_arrivals(arrivals.iter());
        assert_eq!(decode_arrivals(&bytes), Ok(arrivals.clone()));
        assert!((0..bytes.len()).all(|len| decode_arrivals(&bytes.slice(..len)).is_err()));
        let too_many: Vec<Arrival> = arrivals.iter().copied().chain([arrival(1)]).collect();
        assert!(decode_arrivals(&encode_arrivals(too_many.iter())).is_err());
        let rates: Vec<u64> = (0..MAX_REPORTED as u64).collect();
        let bytes = encode_others(&rates);
        assert_eq!(decode_others(&bytes), Ok(rates.clone()));
        assert!((0..bytes.len()).all(|len| decode_others(&bytes.slice(..len)).is_err()));
        assert!(decode_others(&encode_others(&[rates, vec![0]].concat())).is_err());
        assert_eq!(decode_arrivals(&encode_arrivals([].iter())), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            let (_, _) = (decode_arrivals(&bytes), decode_others(&bytes));
            let framed = [&[VERSION][..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat().into();
            if let Ok(arrivals) = decode_arrivals(&framed) {
                prop_assert!(arrivals.len() <= MAX_REPORTED);
            }
            let _ = decode_others(&framed);
        }
    }
}
