//! The stats part of Statistics.db.

use super::drop_times::DropTimes;
use super::histogram::{CELL_BOUNDS, Histogram, SIZE_BOUNDS};
use crate::generation::Version;
use crate::input::{Fault, Input, Parsed};
use model::HostId;
use model::key::Clustering;
use model::time::{NO_DELETION_TIME, Seconds, Timestamp};

/// A range of the commitlog, from one (segment, position) to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogInterval {
    /// The start.
    pub start: (i64, i32),
    /// The end.
    pub end: (i64, i32),
}

/// "No position" in the commitlog.
const NO_POSITION: (i64, i32) = (-1, 0);
/// The most intervals or clustering values that a file may have.
const MAX_LIST: u32 = 1 << 20;

/// Statistics of an sstable's contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The content bytes of partitions.
    pub partition_sizes: Histogram,
    /// The cells of partitions.
    pub partition_cells: Histogram,
    /// The least timestamp of the contents.
    pub min_timestamp: Timestamp,
    /// The greatest timestamp of the contents.
    pub max_timestamp: Timestamp,
    /// The least deletion time or expiry; `i32::MAX` if there is none.
    pub min_deletion_time: Seconds,
    /// The greatest deletion time or expiry; `i32::MAX` if any cell lives without TTL.
    pub max_deletion_time: Seconds,
    /// The least TTL; 0 if any cell has none.
    pub min_ttl: i32,
    /// The greatest TTL.
    pub max_ttl: i32,
    /// Compressed bytes divided by content bytes; -1 without compression.
    pub compression_ratio: f64,
    /// The times of tombstones and expiries.
    pub drop_times: DropTimes,
    /// The level in leveled compaction.
    pub level: u32,
    /// The time of the last repair, in milliseconds since 1970; 0 for never.
    pub repaired_at: i64,
    /// The values of the least position, or a prefix of them; empty if it is unbounded.
    pub min_clustering: Clustering,
    /// The values of the greatest position.
    pub max_clustering: Clustering,
    /// The number of columns that rows have, summed over all rows.
    pub columns_set: u64,
    /// The number of rows, including static ones.
    pub rows: u64,
    /// The ranges of the commitlog of `host_id` whose writes it contains.
    pub log_intervals: Vec<LogInterval>,
    /// The node that wrote it.
    pub host_id: Option<HostId>,
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            partition_sizes: Histogram::new(SIZE_BOUNDS),
            partition_cells: Histogram::new(CELL_BOUNDS),
            min_timestamp: Timestamp::MAX,
            max_timestamp: Timestamp::MIN,
            min_deletion_time: NO_DELETION_TIME,
            max_deletion_time: Seconds::MIN,
            min_ttl: i32::MAX,
            max_ttl: 0,
            compression_ratio: -1.0,
            drop_times: DropTimes::default(),
            level: 0,
            repaired_at: 0,
            min_clustering: Clustering::EMPTY,
            max_clustering: Clustering::EMPTY,
            columns_set: 0,
            rows: 0,
            log_intervals: Vec::new(),
            host_id: None,
        }
    }
}

impl Stats {
    /// The number of partitions.
    pub fn partitions(&self) -> u64 {
        self.partition_sizes.count()
    }

    /// The approximate number of cells.
    pub fn cells(&self) -> f64 {
        self.partition_cells.sum()
    }

    pub(crate) fn read(input: &mut Input<'_>, version: Version) -> Parsed<Self> {
        let partition_sizes = Histogram::read(input)?;
        let partition_cells = Histogram::read(input)?;
        read_position(input)?;
        let min_timestamp = input.be64()? as i64;
        let max_timestamp = input.be64()? as i64;
        let min_deletion_time = input.be32()? as i32;
        let max_deletion_time = input.be32()? as i32;
        let min_ttl = input.be32()? as i32;
        let max_ttl = input.be32()? as i32;
        let compression_ratio = input.f64()?;
        let drop_times = DropTimes::read(input)?;
        let level = input.be32()?;
        let repaired_at = input.be64()? as i64;
        let mut min_clustering = read_clustering(input)?;
        let mut max_clustering = read_clustering(input)?;
        if version == Version::Mc {
            (min_clustering, max_clustering) = (Clustering::EMPTY, Clustering::EMPTY);
        }
        input.u8()?;
        let columns_set = input.be64()?;
        let rows = input.be64()?;
        read_position(input)?;
        let count = input.be32()?;
        if count > MAX_LIST {
            return Err(Fault::Bad("there are too many commitlog intervals"));
        }
        let mut log_intervals = Vec::new();
        for _ in 0..count {
            log_intervals.push(LogInterval { start: read_position(input)?, end: read_position(input)? });
        }
        if version.is_n() {
            if input.u8()? != 0 {
                input.take(16)?;
            }
            input.u8()?;
        }
        let mut host_id = None;
        if version.has_host_id() && input.u8()? != 0 {
            let bytes: [u8; 16] = input.take(16)?.try_into().map_err(|_| Fault::Short)?;
            host_id = Some(HostId::from_bytes(bytes));
        }
        Ok(Stats {
            partition_sizes,
            partition_cells,
            min_timestamp,
            max_timestamp,
            min_deletion_time,
            max_deletion_time,
            min_ttl,
            max_ttl,
            compression_ratio,
            drop_times,
            level,
            repaired_at,
            min_clustering,
            max_clustering,
            columns_set,
            rows,
            log_intervals,
            host_id,
        })
    }

    /// The offset of the level in the bytes of the part.
    pub(crate) fn level_at(part: &[u8]) -> Parsed<usize> {
        let mut input = Input(part);
        Histogram::read(&mut input)?;
        Histogram::read(&mut input)?;
        read_position(&mut input)?;
        // Skips two timestamps, four times and TTLs, and the compression ratio.
        input.take(2 * 8 + 4 * 4 + 8)?;
        DropTimes::read(&mut input)?;
        Ok(part.len() - input.0.len())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.partition_sizes.write(out);
        self.partition_cells.write(out);
        let upper = self.log_intervals.iter().map(|i| i.end).max().unwrap_or(NO_POSITION);
        let lower = self.log_intervals.iter().map(|i| i.start).min().unwrap_or(NO_POSITION);
        write_position(upper, out);
        out.extend_from_slice(&self.min_timestamp.to_be_bytes());
        out.extend_from_slice(&self.max_timestamp.to_be_bytes());
        for value in [self.min_deletion_time, self.max_deletion_time, self.min_ttl, self.max_ttl] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        out.extend_from_slice(&self.compression_ratio.to_be_bytes());
        self.drop_times.write(out);
        out.extend_from_slice(&self.level.to_be_bytes());
        out.extend_from_slice(&self.repaired_at.to_be_bytes());
        for clustering in [&self.min_clustering, &self.max_clustering] {
            out.extend_from_slice(&(clustering.len() as u32).to_be_bytes());
            // The form of a clustering in memory is the form that is stored here.
            out.extend_from_slice(&clustering.0);
        }
        out.push(0);
        out.extend_from_slice(&self.columns_set.to_be_bytes());
        out.extend_from_slice(&self.rows.to_be_bytes());
        write_position(lower, out);
        out.extend_from_slice(&(self.log_intervals.len() as u32).to_be_bytes());
        for interval in &self.log_intervals {
            write_position(interval.start, out);
            write_position(interval.end, out);
        }
        match &self.host_id {
            None => out.push(0),
            Some(id) => {
                out.push(1);
                out.extend_from_slice(id.as_bytes());
            }
        }
    }
}

fn read_position(input: &mut Input<'_>) -> Parsed<(i64, i32)> {
    Ok((input.be64()? as i64, input.be32()? as i32))
}

fn write_position(position: (i64, i32), out: &mut Vec<u8>) {
    out.extend_from_slice(&position.0.to_be_bytes());
    out.extend_from_slice(&position.1.to_be_bytes());
}

fn read_clustering(input: &mut Input<'_>) -> Parsed<Clustering> {
    let count = input.be32()?;
    if count > MAX_LIST {
        return Err(Fault::Bad("there are too many clustering values"));
    }
    let mut out = Vec::new();
    for _ in 0..count {
        model::key::push_component(&mut out, input.bytes16()?);
    }
    Ok(Clustering(out.into()))
}
