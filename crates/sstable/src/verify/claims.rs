//! What the statistics say of all that a file holds, held against each thing in it.
//!
//! Reads and compactions leave out whole files by these bounds, so a file that holds something outside of them loses or resurrects data. In
//! `mc`, `md` and `me` no checksum protects them, nor the minima of the header on which every time in the file builds: a bit that flips
//! there moves what is read out of the bounds, or the bounds away from it.

use crate::statistics::stats::Stats;
use model::row::{Row, State};
use model::time::{NO_DELETION_TIME, Seconds, Timestamp, Tombstone};
use std::ops::RangeInclusive;

/// The bounds of everything in a file.
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

    /// The error says what lies outside of the bounds.
    pub fn tombstone(&self, tombstone: Tombstone) -> Result<(), &'static str> {
        if tombstone.is_live() {
            return Ok(());
        }
        self.timestamp(tombstone.timestamp)?;
        self.deletion_time(tombstone.deletion_time)
    }

    /// As [`Claims::tombstone`], for all of a row.
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
            false => Err("a timestamp outside of what the statistics say"),
        }
    }

    fn deletion_time(&self, at: Seconds) -> Result<(), &'static str> {
        // Beyond January 2038 a time does not fit, and a writer that lets it wrap around counts it as it was.
        match at < 0 || self.deletion_times.contains(&at) {
            true => Ok(()),
            false => Err("a deletion or expiry outside of what the statistics say"),
        }
    }

    fn ttl(&self, ttl: i32) -> Result<(), &'static str> {
        if ttl <= self.max_ttl { Ok(()) } else { Err("a time to live beyond what the statistics say") }
    }
}
