//! The content of Data.db: the encoding of partitions, rows and markers.
//!
//! Pure: no I/O. Readers decode from a contiguous window; missing bytes at its end are reported as
//! too short.

pub(crate) mod layout;
pub(crate) mod marker;
pub(crate) mod partition;
pub(crate) mod prefix;
pub(crate) mod row;

use crate::input::{Fault, Input, Parsed, tombstone};
use layout::Layout;
use model::time::{Seconds, Timestamp, Tombstone};
use model::types::vint::write_unsigned;

/// The first byte of every row and marker.
pub(crate) mod flags {
    pub const END_OF_PARTITION: u8 = 0x01;
    pub const IS_MARKER: u8 = 0x02;
    pub const HAS_TIMESTAMP: u8 = 0x04;
    pub const HAS_TTL: u8 = 0x08;
    pub const HAS_DELETION: u8 = 0x10;
    pub const HAS_ALL_COLUMNS: u8 = 0x20;
    pub const HAS_COMPLEX_DELETION: u8 = 0x40;
    pub const EXTENSION: u8 = 0x80;
    /// In the second byte.
    pub const EXTENDED_STATIC: u8 = 0x01;
    /// In the second byte: the row deletion holds only until the row is written again (Cassandra's
    /// old views).
    pub const EXTENDED_DELETION_SHADOWABLE: u8 = 0x02;
    /// In the second byte: ScyllaDB's shadowable deletion.
    pub const EXTENDED_SHADOWABLE: u8 = 0x80;
}

impl Layout {
    #[inline]
    pub fn read_timestamp(&self, input: &mut Input<'_>) -> Parsed<Timestamp> {
        Ok(self.min_timestamp.wrapping_add(input.uvint()? as i64))
    }

    #[inline]
    pub fn read_deletion_time(&self, input: &mut Input<'_>) -> Parsed<Seconds> {
        Ok(self.min_deletion_time.wrapping_add(input.uvint()? as i32))
    }

    #[inline]
    pub fn read_ttl(&self, input: &mut Input<'_>) -> Parsed<i32> {
        Ok(self.min_ttl.wrapping_add(input.uvint()? as i32))
    }

    pub fn read_deletion(&self, input: &mut Input<'_>) -> Parsed<Tombstone> {
        let timestamp = self.read_timestamp(input)?;
        Ok(tombstone(timestamp, self.read_deletion_time(input)?))
    }

    #[inline]
    pub fn write_timestamp(&self, timestamp: Timestamp, out: &mut Vec<u8>) {
        write_unsigned(timestamp.wrapping_sub(self.min_timestamp) as u64, out);
    }

    #[inline]
    pub fn write_deletion_time(&self, at: Seconds, out: &mut Vec<u8>) {
        write_unsigned(at.wrapping_sub(self.min_deletion_time) as i64 as u64, out);
    }

    #[inline]
    pub fn write_ttl(&self, ttl: i32, out: &mut Vec<u8>) {
        write_unsigned(ttl.wrapping_sub(self.min_ttl) as i64 as u64, out);
    }

    pub fn write_deletion(&self, tombstone: Tombstone, out: &mut Vec<u8>) {
        self.write_timestamp(tombstone.timestamp, out);
        self.write_deletion_time(tombstone.deletion_time, out);
    }
}

/// The item that follows at a position in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// The end of the partition: one byte.
    End,
    /// A row.
    Row {
        /// The first byte.
        flags: u8,
        /// The second byte, or 0.
        extended: u8,
        /// Bytes before the body.
        head: usize,
        /// Bytes of the body.
        body: usize,
    },
    /// A range tombstone marker.
    Marker {
        /// Its kind.
        kind: u8,
        /// Bytes before the body.
        head: usize,
        /// Bytes of the body.
        body: usize,
    },
}

/// Decodes up to the body. The clustering prefix is appended to `prefix` in its form in memory. On
/// an error `prefix` may have grown.
#[inline]
pub(crate) fn read_head(bytes: &[u8], layout: &Layout, prefix: &mut Vec<u8>) -> Parsed<Head> {
    let mut input = Input(bytes);
    let flags = input.u8()?;
    if flags == flags::END_OF_PARTITION {
        return Ok(Head::End);
    }
    if flags & (flags::IS_MARKER | flags::END_OF_PARTITION) != 0 {
        if flags != flags::IS_MARKER {
            return Err(Fault::Bad("the flags of a row or marker are not valid"));
        }
        let kind = input.u8()?;
        let count = input.be16()? as usize;
        if count > layout.clustering.len() {
            return Err(Fault::Bad("a marker has too many clustering values"));
        }
        prefix::read(&mut input, &layout.clustering[..count], prefix)?;
        let body = input.size()?;
        return Ok(Head::Marker { kind, head: bytes.len() - input.0.len(), body });
    }
    let extended = if flags & flags::EXTENSION != 0 { input.u8()? } else { 0 };
    if extended & flags::EXTENDED_STATIC == 0 {
        prefix::read(&mut input, &layout.clustering, prefix)?;
    }
    let body = input.size()?;
    Ok(Head::Row { flags, extended, head: bytes.len() - input.0.len(), body })
}
