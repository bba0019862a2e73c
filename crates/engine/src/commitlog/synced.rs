//! How far a run is durable: the file `synced` next to its segments, 32 bytes that are overwritten.
//!
//! ```text
//!   0  4  CRC32 of the 28 bytes that follow
//!   4  4  version (1)
//!   8  8  run
//!  16  8  segment
//!  24  4  offset
//!  28  4  short digest of the node's host id
//! ```
//!
//! A record names the synced position at the time when it was appended, so the segments do not show
//! whether the last records are durable. This file does. It is written after each fsync, before the
//! records of that fsync are acknowledged. So after a kill, damage to an acknowledged record is
//! never taken for a torn tail.
//!
//! The file itself is not synced. After a power loss it may name an earlier position (the kernel
//! writes back all but the last seconds), never a later one. An unreadable file gives no
//! information; a start that knows the run from the inventory of the data directory is refused
//! then ([`super::missing`]).

use super::error::LogError;
use super::position::Position;
use crate::files::NodeDigest;
use crate::files::bytes::{u32_at, u64_at};
use bytes::Bytes;
use model::HostId;
use rt::fs::{self, File, IoClass, OpenOptions};
use std::io;
use std::path::Path;

/// The name of the file in the run's directory.
pub(super) const NAME: &str = "synced";
const LEN: usize = 32;
const VERSION: u32 = 1;

/// The open file of the running log.
pub(super) struct SyncedFile {
    file: File,
    run: u64,
    host: Option<HostId>,
}

impl SyncedFile {
    /// Creates the file durably and at full length: later writes need no space.
    pub async fn create(run_dir: &Path, run: u64, host: Option<HostId>, synced: Position) -> io::Result<SyncedFile> {
        let path = run_dir.join(NAME);
        fs::write_durably(&path, &encode(run, host, synced)).await?;
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        Ok(SyncedFile { file: fs::open(&path, &options).await?, run, host })
    }

    /// Records that all below `synced` is on the device.
    pub async fn write(&self, synced: Position) -> io::Result<()> {
        self.file.write_at(0, Bytes::copy_from_slice(&encode(self.run, self.host, synced)), IoClass::Log).await
    }

    /// Whether the file still exists under its name.
    pub async fn is_in_place(&self) -> io::Result<bool> {
        self.file.is_in_place().await
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// The position in the file of `run_dir`. `None` if there is none, it cannot be read, or it belongs
/// to another node.
pub(super) async fn read(run_dir: &Path, run: u64, host: Option<HostId>) -> Result<Option<Position>, LogError> {
    let path = run_dir.join(NAME);
    let bytes = match fs::read(&path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::io(&path)(error)),
    };
    let synced = decode(&bytes, run, host);
    if synced.is_none() {
        tracing::warn!(file = %path.display(), "the file cannot be read: damage to the last records of this commitlog may not be detected");
    }
    Ok(synced)
}

fn encode(run: u64, host: Option<HostId>, synced: Position) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    out[8..16].copy_from_slice(&run.to_le_bytes());
    out[16..24].copy_from_slice(&synced.segment.to_le_bytes());
    out[24..28].copy_from_slice(&synced.offset.to_le_bytes());
    let node = host.map_or(0, |host| NodeDigest::of(host).short());
    out[28..32].copy_from_slice(&node.to_le_bytes());
    let crc = crc32fast::hash(&out[4..]);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// A later version would only append fields, so the beginning means the same.
fn decode(bytes: &[u8], run: u64, host: Option<HostId>) -> Option<Position> {
    let (known, _) = bytes.split_first_chunk::<LEN>()?;
    let [crc, version, offset, node] = [0, 4, 24, 28].map(|at| u32_at(known, at));
    let [of, segment] = [8, 16].map(|at| u64_at(known, at));
    let whole = crc == crc32fast::hash(&known[4..]) && version >= VERSION && of == run;
    let is_own = host.is_none_or(|host| NodeDigest::of(host).accepts_short(node));
    (whole && is_own).then_some(Position { segment, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_another_run_or_another_node_says_nothing() {
        let synced = Position { segment: 7 << 44 | 9, offset: 4096 };
        let [host, other] = [1, 2].map(|n| Some(HostId(uuid::Uuid::from_u128(n))));
        let good = encode(5, host, synced);
        assert_eq!(decode(&good, 5, host), Some(synced));
        assert_eq!(decode(&good, 5, other), None);
        assert_eq!(decode(&encode(5, None, synced), 5, host), None, "it names no node");
        assert_eq!(decode(&good, 6, host), None);
        assert_eq!(decode(&good[..31], 5, host), None);
        for bit in 0..LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad, 5, host), None, "bit {bit}");
        }
    }
}
