//! The stats part of Statistics.db.

use super::drop_times::DropTimes;
use super::histogram::{CELL_BOUNDS, Histogram, SIZE_BOUNDS};
use crate::generation::Version;
use crate::input::{Fault, Input, Parsed};
use model::HostId;
use model::key::Clustering;
use model::time::{NO_DELETION_TIME, Seconds, Timestamp};

/// A stretch of the commitlog, from one (segment, position) to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogInterval {
    /// Where it begins.
    pub start: (i64, i32),
    /// Where it ends.
    pub end: (i64, i32),
}

/// "No position" of the commitlog.
const NO_POSITION: (i64, i32) = (-1, 0);
/// The most intervals or clustering values a file may claim.
const MAX_LIST: u32 = 1 << 20;

/// What is known of the contents as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Content bytes of partitions.
    pub partition_sizes: Histogram,
    /// Cells of partitions.
    pub partition_cells: Histogram,
    /// The least timestamp of anything.
    pub min_timestamp: Timestamp,
    /// The greatest timestamp of anything.
    pub max_timestamp: Timestamp,
    /// The least deletion time or expiry; `i32::MAX` if nothing has one.
    pub min_deletion_time: Seconds,
    /// The greatest; `i32::MAX` as soon as anything lives without TTL.
    pub max_deletion_time: Seconds,
    /// The least TTL; 0 = something has none.
    pub min_ttl: i32,
    /// The greatest TTL.
    pub max_ttl: i32,
    /// Compressed by content bytes; -1 when not compressed.
    pub compression_ratio: f64,
    /// When tombstones were made.
    pub drop_times: DropTimes,
    /// The level in leveled compaction.
    pub level: u32,
    /// Milliseconds; 0 = never.
    pub repaired_at: i64,
    /// The values of the least position, a prefix; empty = unbounded.
    pub min_clustering: Clustering,
    /// The values of the greatest position.
    pub max_clustering: Clustering,
    /// Columns present, summed over rows.
    pub columns_set: u64,
    /// Rows, static ones included.
    pub rows: u64,
    /// What of the commitlog of `host_id` it covers.
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
    /// How many partitions there are.
    pub fn partitions(&self) -> u64 {
        self.partition_sizes.count()
    }

    /// About how many cells there are.
    pub fn cells(&self) -> f64 {
        self.partition_cells.sum()
    }

    /// About which part of the cells are tombstones, or expired, from before this second: 0 to 1.
    pub fn droppable_ratio(&self, gc_before: Seconds) -> f64 {
        let droppable = self.drop_times.before(gc_before);
        if droppable == 0.0 { 0.0 } else { (droppable / self.cells().max(droppable)).min(1.0) }
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
            return Err(Fault::Bad("number of commit log intervals"));
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

    /// Where in the bytes of the part the level stands.
    pub(crate) fn level_at(part: &[u8]) -> Parsed<usize> {
        let mut input = Input(part);
        Histogram::read(&mut input)?;
        Histogram::read(&mut input)?;
        read_position(&mut input)?;
        // Two timestamps, four times and TTLs, the compression ratio.
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
            // A clustering in memory has the very form that is wanted here.
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
        return Err(Fault::Bad("number of clustering values"));
    }
    let mut out = Vec::new();
    for _ in 0..count {
        model::key::push_component(&mut out, input.bytes16()?);
    }
    Ok(Clustering(out.into()))
}
