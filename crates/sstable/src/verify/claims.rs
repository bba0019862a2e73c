//! Checks the contents of an sstable against the bounds in its statistics.
//!
//! Reads and compactions skip sstables by these bounds. So data outside of them would be lost or
//! resurrected. In `mc`, `md` and `me` no checksum protects the bounds, nor the minima of the
//! header, on which every time in the file is based. A flipped bit there moves the data out of the
//! bounds, or the bounds away from the data.

use crate::statistics::stats::Stats;
use model::row::{Row, State};
use model::time::{NO_DELETION_TIME, Seconds, Timestamp, Tombstone};
use std::ops::RangeInclusive;

/// The bounds of a file's contents.
pub(super) struct Claims {
    timestamps: RangeInclusive<Timestamp>,
    deletion_times: RangeInclusive<Seconds>,
    max_ttl: i32,
}

impl Claims {
    pub fn of(stats: &Stats) -> Self {
        Claims {
            timestamps: stats.min_timestamp..=stats.max_timestamp,
            deletion_times: stats.min_deletion_time..=stats.max_deletion_time,
            max_ttl: stats.max_ttl,
        }
    }

    /// Checks a tombstone. The error names the value that is outside of the bounds.
    pub fn tombstone(&self, tombstone: Tombstone) -> Result<(), &'static str> {
        if tombstone.is_live() {
            return Ok(());
        }
        self.timestamp(tombstone.timestamp)?;
        self.deletion_time(tombstone.deletion_time)
    }

    /// Like [`Claims::tombstone`], for all parts of a row.
    pub fn row(&self, row: &Row) -> Result<(), &'static str> {
        let (marker, deletion, cells) = row.parts();
        if let Some(marker) = marker {
            self.timestamp(marker.timestamp)?;
            self.ttl(marker.ttl)?;
            self.deletion_time(if marker.ttl == 0 { NO_DELETION_TIME } else { marker.expiry })?;
        }
        self.tombstone(deletion)?;
        for cell in cells {
            self.timestamp(cell.timestamp)?;
            self.deletion_time(match cell.state {
                State::Live => NO_DELETION_TIME,
                State::Expiring { ttl, expiry } => {
                    self.ttl(ttl)?;
                    expiry
                }
                State::Dead { deletion_time } | State::ComplexDeletion { deletion_time } => deletion_time,
            })?;
        }
        Ok(())
    }

    fn timestamp(&self, timestamp: Timestamp) -> Result<(), &'static str> {
        match self.timestamps.contains(&timestamp) {
            true => Ok(()),
            false => Err("a timestamp outside of the range in the statistics"),
        }
    }

    fn deletion_time(&self, at: Seconds) -> Result<(), &'static str> {
        // A time after January 2038 does not fit into the field and overflows. The statistics have
        // the time before the overflow.
        match at < 0 || self.deletion_times.contains(&at) {
            true => Ok(()),
            false => Err("a deletion or expiry outside of the range in the statistics"),
        }
    }

    fn ttl(&self, ttl: i32) -> Result<(), &'static str> {
        if ttl <= self.max_ttl { Ok(()) } else { Err("a time to live beyond the maximum in the statistics") }
    }
}
