//! How far the metadata log is durable, in a file outside of the log's directory: 32 bytes that are
//! overwritten.
//!
//! ```text
//!   0  4  CRC32 of the 28 bytes that follow
//!   4  4  version (1)
//!   8  8  number of the log
//!  16  8  offset of the log's end in bytes
//!  24  8  digest of the node's host id
//! ```
//!
//! A log that was removed, or cut off at a record, looks like a log that was never longer. This
//! file shows the difference at the next start. The file is written after each fsync of the log,
//! and not synced itself. After a power loss it may name an earlier end, never a later one. After a
//! kill it is exact. Losing the file loses only this check, so its errors do not end the log.

use super::error::{RaftLogError, io_error};
use super::{RaftLog, format, log_path, number_of, read_snapshot, snapshot_path};
use crate::files::NodeDigest;
use crate::files::bytes::{u32_at, u64_at};
use bytes::Bytes;
use model::HostId;
use rt::fs::{self, File, IoClass, OpenOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

const LEN: usize = 32;
const VERSION: u32 = 1;

/// A position in the logs of a directory: nothing behind it is known to be durable. Later logs
/// have higher numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogEnd {
    /// The number of the log; 0 for none.
    pub number: u64,
    /// The offset in it, in bytes.
    pub at: u64,
}

/// The log in a directory, as it is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundLog {
    /// The end of its undamaged part.
    pub end: LogEnd,
    /// Whether an end mark follows: then the log was not cut off.
    pub marked: bool,
}

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotedEnd {
    /// No position: there is no file, or it cannot be read.
    Nothing,
    /// This position.
    At(LogEnd),
    /// It is of another node.
    Foreign,
}

/// Examines the log of the node `host` in `dir` and changes nothing. `None` if there is none. An
/// error if the log or its snapshot belongs to another node.
pub async fn inspect(dir: &Path, host: HostId) -> Result<Option<FoundLog>, RaftLogError> {
    let node = NodeDigest::of(host);
    let names = match fs::read_dir(dir).await {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(dir)(error)),
    };
    let Some(number) = names.iter().filter_map(|entry| number_of(&entry.name)).max() else { return Ok(None) };
    let path = log_path(dir, number);
    let bytes = Bytes::from(fs::read(&path).await.map_err(io_error(&path))?);
    format::check_log_header(&bytes, node, number).map_err(|bad| bad.at(&path, 0))?;
    if let Err(error @ RaftLogError::Foreign(_)) = read_snapshot(&snapshot_path(dir), node).await {
        return Err(error);
    }
    let scan = format::scan(&bytes, number);
    Ok(Some(FoundLog { end: LogEnd { number, at: scan.tail.at }, marked: scan.marked }))
}

/// The record in the file at `path` about the log of the node `host`.
pub async fn read_end(path: &Path, host: HostId) -> io::Result<NotedEnd> {
    read_end_of(path, NodeDigest::of(host)).await
}

async fn read_end_of(path: &Path, node: NodeDigest) -> io::Result<NotedEnd> {
    match fs::read(path).await {
        Ok(bytes) => Ok(decode(&bytes, node)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NotedEnd::Nothing),
        Err(error) => Err(error),
    }
}

impl RaftLog {
    /// From now on the file at `path` records the end of the log. It is created durably if it
    /// does not exist, is damaged, or belongs to another node.
    pub async fn keep_end(&self, path: &Path) -> io::Result<()> {
        let _turn = self.turn.acquire().await.map_err(|_| io::Error::other("the log was closed"))?;
        let end = self.end();
        if !matches!(read_end_of(path, self.node).await?, NotedEnd::At(_)) {
            fs::write_durably(path, &encode(end, self.node)).await?;
        }
        let file = fs::open(path, &OpenOptions { write: true, ..OpenOptions::default() }).await?;
        note(&file, end, self.node).await;
        self.state.borrow_mut().end_file = Some(file);
        Ok(())
    }

    /// The end of the log. All before it is durable.
    pub fn end(&self) -> LogEnd {
        let state = self.state.borrow();
        LogEnd { number: state.tail.number, at: state.tail.at }
    }

    /// Records the current end of the log, if there is a file for it.
    pub(super) async fn note_end(&self) {
        let file = self.state.borrow().end_file.clone();
        if let Some(file) = file {
            note(&file, self.end(), self.node).await;
        }
    }
}

async fn note(file: &File, end: LogEnd, node: NodeDigest) {
    if let Err(error) = file.write_at(0, Bytes::copy_from_slice(&encode(end, node)), IoClass::Log).await {
        tracing::warn!(file = %file.path().display(), %error,
            "the end of the metadata log could not be recorded: the next start may not detect that the log was cut off");
    }
}

fn encode(end: LogEnd, node: NodeDigest) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    out[8..16].copy_from_slice(&end.number.to_le_bytes());
    out[16..24].copy_from_slice(&end.at.to_le_bytes());
    out[24..32].copy_from_slice(&node.long().to_le_bytes());
    let crc = crc32fast::hash(&out[4..]);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// A later version would only append fields, so the beginning means the same.
fn decode(bytes: &[u8], node: NodeDigest) -> NotedEnd {
    let Some((known, _)) = bytes.split_first_chunk::<LEN>() else { return NotedEnd::Nothing };
    let [crc, version] = [0, 4].map(|at| u32_at(known, at));
    let [number, at, written] = [8, 16, 24].map(|at| u64_at(known, at));
    match crc == crc32fast::hash(&known[4..]) && version >= VERSION {
        false => NotedEnd::Nothing,
        true if !node.accepts(written) => NotedEnd::Foreign,
        true => NotedEnd::At(LogEnd { number, at }),
    }
}
