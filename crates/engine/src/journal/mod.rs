//! The journal of metadata commands that releases before the Raft group wrote. It is only read: a
//! start with such a journal makes a Raft log of it and removes it.
//!
//! ```text
//! journal/log-<n>        a header, then the entries after snapshot n (n = 0: after nothing)
//! journal/snapshot-<n>   the state after all entries up to some id
//! ```
//!
//! All integers are little-endian.
//!
//! ```text
//! log header (48)       "MESSINAJ", u32 format, u32 zero, u64 number, 16 base id, u32 zero,
//!                       u32 CRC32 of what precedes
//! entry (56 + body)     u32 CRC32 of log number, offset, and the 52 bytes that follow
//!                       u32 CRC32 of the body, u32 body length, u8 version, u8 kind (0),
//!                       10 zero, 16 previous, 16 id
//!                       body, zeros up to a multiple of 8
//! end mark (56)         as an entry of kind 1 without body and id, behind the last entry: that
//!                       one is durable, so damage to it is no torn tail. The next entry is
//!                       written over it.
//! snapshot (64 + body)  "MESSINAS", u32 format, u32 zero, u64 number, 16 id, u64 body length,
//!                       u32 zero, u32 CRC32 of the body, 4 zero, u32 CRC32 of what precedes
//! ```
//!
//! An entry names the id it follows and its own id. A snapshot began a new log with the entries
//! after it; the rename of its file made it count.
//!
//! Invariants: a torn tail is left out. Damage before a complete entry or an end mark is an error,
//! because every entry was durable before those were written. Nothing in the directory is changed,
//! and nothing here may panic on foreign bytes.

use crate::files::bytes::{u32_at, u64_at};
use crate::raft_log::record::{ALIGN, Bad, body_at, check_version, file_header, has_header, header_at};
use crate::raft_log::{RaftLogError, io_error, log_path};
use bytes::Bytes;
use rt::fs;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const LOG_HEADER: usize = 48;
const ENTRY_HEADER: usize = 56;
const SNAPSHOT_HEADER: usize = 64;
const LOG_MAGIC: [u8; 8] = *b"MESSINAJ";
const SNAPSHOT_MAGIC: [u8; 8] = *b"MESSINAS";
const NOT_OURS: &str = "not a file of the journal";
const KIND_AT: usize = 13;
const END_MARK: u8 = 1;

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id of the entry (or snapshot) it follows; nil for the very first.
    pub previous: Uuid,
    /// Its own id.
    pub id: Uuid,
    /// The command.
    pub body: Bytes,
}

/// The state after all entries up to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of the last entry it contains.
    pub id: Uuid,
    /// The state.
    pub body: Bytes,
}

/// Reads the journal in `dir`: the entries after the latest snapshot, and that snapshot. Without a
/// journal both are empty.
pub async fn read_journal(dir: &Path) -> Result<(Vec<Entry>, Option<Snapshot>), RaftLogError> {
    let names = match fs::read_dir(dir).await {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), None)),
        Err(error) => return Err(io_error(dir)(error)),
    };
    let numbers = |prefix: &'static str| {
        names.iter().filter_map(move |entry| entry.name.strip_prefix(prefix)?.parse::<u64>().ok())
    };
    // A later log without its snapshot is the rest of an interrupted snapshot.
    let number = numbers("snapshot-").max().unwrap_or(0);
    let snapshot = match number {
        0 => None,
        _ => Some(read_snapshot(&snapshot_path(dir, number), number).await?),
    };
    let base = snapshot.as_ref().map_or(Uuid::nil(), |snapshot| snapshot.id);
    let path = log_path(dir, number);
    if !numbers("log-").any(|log| log == number) {
        if number == 0 && numbers("log-").next().is_none() {
            return Ok((Vec::new(), None));
        }
        return Err(RaftLogError::Corrupt { file: path, offset: 0, why: "it is missing".to_string() });
    }
    Ok((read_log(&path, number, base).await?, snapshot))
}

fn snapshot_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("snapshot-{number}"))
}

async fn read_snapshot(path: &Path, number: u64) -> Result<Snapshot, RaftLogError> {
    let bytes = Bytes::from(fs::read(path).await.map_err(io_error(path))?);
    decode_snapshot(&bytes, number).map_err(|bad| bad.at(path, 0))
}

fn decode_snapshot(bytes: &Bytes, number: u64) -> Result<Snapshot, Bad> {
    let header = file_header(bytes, SNAPSHOT_HEADER, SNAPSHOT_MAGIC, NOT_OURS)?;
    let body = bytes.slice(SNAPSHOT_HEADER..);
    if body.len() as u64 != u64_at(header, 40) {
        return Err(Bad::Damaged("the body does not have its length"));
    }
    if crc32fast::hash(&body) != u32_at(header, 52) {
        return Err(Bad::Damaged("the checksum of the body does not match"));
    }
    if u64_at(header, 16) != number {
        return Err(Bad::Damaged("it has the number of another snapshot"));
    }
    Ok(Snapshot { id: uuid_at(header, 24), body })
}

async fn read_log(path: &Path, number: u64, base: Uuid) -> Result<Vec<Entry>, RaftLogError> {
    let bytes = Bytes::from(fs::read(path).await.map_err(io_error(path))?);
    let header = file_header(&bytes, LOG_HEADER, LOG_MAGIC, NOT_OURS).map_err(|bad| bad.at(path, 0))?;
    if u64_at(header, 16) != number || uuid_at(header, 24) != base {
        return Err(Bad::Damaged("it does not follow the snapshot").at(path, 0));
    }
    let Scan { entries, end, bad } = scan(&bytes, number, base);
    if let Some(bad) = bad {
        let mut behind = (end + ALIGN..bytes.len()).step_by(ALIGN);
        if bad.is_certain() || behind.any(|at| has_header(&bytes, number, at, ENTRY_HEADER)) {
            return Err(bad.at(path, end as u64));
        }
        let torn = bytes.len() - end;
        tracing::warn!(file = %path.display(), at = end, bytes = torn, "the torn tail of the journal is left out");
    }
    Ok(entries)
}

/// The entries of a log.
struct Scan {
    entries: Vec<Entry>,
    /// Where the undamaged part ends.
    end: usize,
    /// Why it ends there, if not at the end of the file or at an end mark.
    bad: Option<Bad>,
}

/// Reads the entries of log `number`, which follow `previous`. `bytes` are the entire file.
fn scan(bytes: &Bytes, number: u64, mut previous: Uuid) -> Scan {
    let (mut entries, mut at) = (Vec::new(), LOG_HEADER);
    let bad = loop {
        if at >= bytes.len() {
            break None;
        }
        if has_header(bytes, number, at, ENTRY_HEADER) && bytes[at + KIND_AT] == END_MARK {
            break None;
        }
        match entry_at(bytes, number, at, previous) {
            Ok((entry, next)) => {
                (previous, at) = (entry.id, next);
                entries.push(entry);
            }
            Err(bad) => break Some(bad),
        }
    };
    Scan { entries, end: at, bad }
}

fn entry_at(bytes: &Bytes, number: u64, at: usize, previous: Uuid) -> Result<(Entry, usize), Bad> {
    let header = header_at(bytes, number, at, ENTRY_HEADER)?;
    check_version(header)?;
    let (body, next) = body_at(bytes, header, at + ENTRY_HEADER)?;
    let entry = Entry { previous: uuid_at(header, 24), id: uuid_at(header, 40), body };
    match entry.previous == previous {
        true => Ok((entry, next)),
        false => Err(Bad::Wrong("an entry does not follow the one before it")),
    }
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes(id)
}

#[cfg(test)]
mod tests;
