//! Positions in a log, and the shard that a segment belongs to.

use rt::ShardId;
use std::fmt;

/// Bits of a segment id below the shard's number.
const SEQUENCE_BITS: u32 = 44;

/// The position of a record. Positions of one shard's log are ordered as their records were
/// appended, over all its runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// The segment's id. Never reused within a node; positive as a signed number, too.
    pub segment: u64,
    /// Bytes from the segment's start.
    pub offset: u32,
}

impl Position {
    /// Before every record.
    pub const MIN: Position = Position { segment: 0, offset: 0 };
    /// The last position before this one.
    pub(crate) fn before(self) -> Position {
        match self.offset.checked_sub(1) {
            Some(offset) => Position { offset, ..self },
            None => Position { segment: self.segment.saturating_sub(1), offset: u32::MAX },
        }
    }

    /// Behind every record.
    pub const MAX: Position = Position { segment: u64::MAX, offset: u32::MAX };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

/// A small number that names one memtable (of a table's tablet) of this shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

/// The segment id of a shard's `sequence`-th segment.
pub(super) fn segment_id(shard: ShardId, sequence: u64) -> u64 {
    assert!(sequence < 1 << SEQUENCE_BITS, "segment numbers are used up");
    (u64::from(shard.0) << SEQUENCE_BITS) | sequence
}

/// The sequence number within a segment id.
pub(super) fn sequence_of(segment: u64) -> u64 {
    segment & ((1 << SEQUENCE_BITS) - 1)
}

/// The shard whose log a segment belongs to.
pub fn shard_of_segment(segment: u64) -> ShardId {
    ShardId((segment >> SEQUENCE_BITS) as u16)
}

/// Whether two positions are in the log of the same shard. Only such positions can be compared.
pub(crate) fn same_log(a: Position, b: Position) -> bool {
    shard_of_segment(a.segment) == shard_of_segment(b.segment)
}
