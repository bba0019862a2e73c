//! The format of a hint file. Pure.
//!
//! ```text
//! "MSNHINTS", u8 version (1), u32 length of the rest of the header (16), 16 bytes target
//! record*     u32 length of the body, u32 CRC32 of the body
//!             body: u8 version (2), i64 microseconds when the hint was stored,
//!                   u64 number of the metadata that routed the write, mutation
//! ```
//!
//! Numbers are little-endian. A record that ends beyond the end of the file was cut off by a crash:
//! the file ends before that record. If a record's checksum is wrong, its length cannot be trusted,
//! so the rest of the file is unreadable.

use bytes::Bytes;
use model::id::HostId;
use model::mutation::Mutation;

const MAGIC: &[u8; 8] = b"MSNHINTS";
const VERSION: u8 = 1;
/// The length of a file that has no hints left and could not be removed: the magic alone.
pub const EMPTIED: u64 = MAGIC.len() as u64;
/// The version of records. Version 1 was never released.
const RECORD_VERSION: u8 = 2;
const HEAD: usize = 8 + 1 + 4;
const RECORD_HEAD: usize = 4 + 4;

/// A write that a replica missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// When the hint was stored: microseconds since the epoch.
    pub written: i64,
    /// The number of the metadata that routed the write.
    pub number: u64,
    /// The write.
    pub mutation: Mutation,
}

/// The header of a file.
pub fn header(target: HostId) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.push(VERSION);
    out.extend_from_slice(&16u32.to_le_bytes());
    out.extend_from_slice(target.as_bytes());
    out
}

/// A record.
pub fn encode(hint: &Hint) -> Vec<u8> {
    let mutation = hint.mutation.as_bytes();
    let len = 1 + 8 + 8 + mutation.len();
    let mut out = Vec::with_capacity(RECORD_HEAD + len);
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.push(RECORD_VERSION);
    out.extend_from_slice(&hint.written.to_le_bytes());
    out.extend_from_slice(&hint.number.to_le_bytes());
    out.extend_from_slice(mutation);
    let crc = crc32fast::hash(&out[RECORD_HEAD..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    debug_assert!(
        parse(&Bytes::copy_from_slice(&out[RECORD_HEAD..])).as_ref() == Some(hint),
        "a hint that is written can be read again"
    );
    out
}

/// The hint of one record. `None` if the record is damaged.
pub fn decode(record: &Bytes) -> Option<Hint> {
    let (head, body) = (record.get(..RECORD_HEAD)?, record.slice(RECORD_HEAD..));
    let crc = u32::from_le_bytes(head[4..].try_into().ok()?);
    (crc == crc32fast::hash(&body)).then(|| parse(&body)).flatten()
}

/// Opens a file; returns its records, or why the header cannot be read.
pub fn open(file: &Bytes) -> Result<Records, &'static str> {
    if &file[..] == MAGIC {
        return Ok(Records { file: file.clone(), at: file.len(), damage: None });
    }
    let head = file.get(..HEAD).ok_or("its header is cut off")?;
    if &head[..8] != MAGIC {
        return Err("it is not a hint file");
    }
    if head[8] != VERSION {
        return Err("its version is unknown");
    }
    let more = u32::from_le_bytes([head[9], head[10], head[11], head[12]]) as usize;
    let at = HEAD.checked_add(more).filter(|at| *at <= file.len()).ok_or("its header is cut off")?;
    Ok(Records { file: file.clone(), at, damage: None })
}

/// Reads the records of a file in order.
#[derive(Clone, Debug)]
pub struct Records {
    file: Bytes,
    at: usize,
    damage: Option<&'static str>,
}

impl Records {
    /// Where the next record begins.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Continues at `position`, where a record begins. Never moves back.
    pub fn skip_to(mut self, position: usize) -> Self {
        self.at = self.at.max(position);
        self
    }

    /// Why the rest of the file cannot be read, if it is damaged.
    pub fn damage(&self) -> Option<&'static str> {
        self.damage
    }

    fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.file.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl Iterator for Records {
    type Item = Hint;

    fn next(&mut self) -> Option<Hint> {
        if self.damage.is_some() {
            return None;
        }
        let len = self.number(self.at)? as usize;
        let crc = self.number(self.at + 4)?;
        let begin = self.at + RECORD_HEAD;
        let end = begin.checked_add(len).filter(|end| *end <= self.file.len())?;
        let body = self.file.slice(begin..end);
        if crc32fast::hash(&body) != crc {
            self.damage = Some("a checksum is wrong");
            return None;
        }
        let Some(hint) = parse(&body) else {
            self.damage = Some("a record cannot be decoded");
            return None;
        };
        self.at = end;
        Some(hint)
    }
}

/// Parses the body of a record.
fn parse(body: &Bytes) -> Option<Hint> {
    let (version, rest) = body.split_first()?;
    let (written, rest) = rest.split_first_chunk()?;
    let number = rest.first_chunk()?;
    if *version != RECORD_VERSION {
        return None;
    }
    let mutation = Mutation::parse(body.slice(1 + 8 + 8..)).ok()?;
    Some(Hint { written: i64::from_le_bytes(*written), number: u64::from_le_bytes(*number), mutation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::tests::mutation;
    use uuid::Uuid;

    fn file(hints: &[Hint]) -> Vec<u8> {
        let mut out = header(HostId(Uuid::from_u128(5)));
        hints.iter().for_each(|hint| out.extend(encode(hint)));
        out
    }

    fn hints() -> Vec<Hint> {
        (0..3).map(|n| Hint { written: 1_000 + i64::from(n), number: 7, mutation: mutation(n) }).collect()
    }

    #[test]
    fn hint_records_round_trip() {
        let mut records = open(&file(&hints()).into()).expect("a file of hints");
        assert_eq!(records.by_ref().collect::<Vec<_>>(), hints());
        assert_eq!(records.damage(), None);
        let mut again = open(&file(&hints()).into()).expect("a file of hints");
        again.next();
        let second = again.position();
        let rest: Vec<Hint> = open(&file(&hints()).into()).expect("a file of hints").skip_to(second).collect();
        assert_eq!(rest, hints()[1..]);
    }

    #[test]
    fn a_torn_end_is_no_damage() {
        let whole = file(&hints());
        let last = encode(&hints()[2]).len();
        for cut in 1..last {
            let mut records = open(&Bytes::from(whole[..whole.len() - cut].to_vec())).expect("a file of hints");
            assert_eq!(records.by_ref().count(), 2, "{cut} bytes are missing");
            assert_eq!(records.damage(), None);
        }
        assert!(open(&Bytes::from_static(b"MSN")).is_err());
    }

    #[test]
    fn flipped_bits_are_found() {
        let whole = file(&hints());
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 4;
            let Ok(mut records) = open(&bad.into()) else { continue };
            let found: Vec<Hint> = records.by_ref().collect();
            assert!(found.len() <= 3 && found.iter().all(|hint| hints().contains(hint)), "byte {at}");
            // All of the header is checked here except the target.
            let in_target = (HEAD..HEAD + 16).contains(&at);
            assert!(found.len() < 3 || in_target, "byte {at} is in no record");
        }
    }

    #[test]
    fn its_bytes_stay() {
        let expected = [&b"MSNHINTS\x01\x10\0\0\0"[..], &[0; 15], &[5]].concat();
        assert_eq!(header(HostId(Uuid::from_u128(5))), expected);
        let hint = &hints()[0];
        let record = encode(hint);
        assert_eq!(record[..4], (17 + hint.mutation.as_bytes().len() as u32).to_le_bytes());
        assert_eq!(record[8..25], [2, 0xe8, 3, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record[25..], hint.mutation.as_bytes()[..]);
    }

    #[test]
    fn a_record_of_another_version_is_damage() {
        for version in [1, 3] {
            let mut record = encode(&hints()[0]);
            record[RECORD_HEAD] = version;
            let crc = crc32fast::hash(&record[RECORD_HEAD..]);
            record[4..8].copy_from_slice(&crc.to_le_bytes());
            let bytes = [header(HostId(Uuid::from_u128(5))), record].concat();
            let mut records = open(&bytes.into()).expect("a file of hints");
            assert_eq!((records.next(), records.damage()), (None, Some("a record cannot be decoded")));
        }
    }
}
