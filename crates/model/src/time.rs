//! Timestamps, deletion times and time-to-live: units and limits.

/// A write's timestamp: microseconds since the epoch by convention, any 64-bit number by a client's
/// choice.
pub type Timestamp = i64;

/// "No timestamp": lower than every real one.
pub const MISSING_TIMESTAMP: Timestamp = i64::MIN;

/// Wall-clock seconds since the epoch, as sstables store them.
pub type Seconds = i32;

/// "No deletion time": the cell is live.
pub const NO_DELETION_TIME: Seconds = i32::MAX;

/// The last second that the sstable format can store as an expiry: 2038-01-19T03:14:06Z. Later
/// expiries are capped to it.
pub const MAX_DELETION_TIME: Seconds = i32::MAX - 1;

/// The longest TTL that CQL accepts: twenty years, in seconds.
pub const MAX_TTL: i32 = 20 * 365 * 24 * 60 * 60;

/// The TTL that marks a dead row marker in sstables (views use it).
pub const DEAD_MARKER_TTL: i32 = i32::MAX;

/// A time of the wall clock as sstables store it. From 2038-01-19T03:14:06Z on it is that second,
/// so everything with a TTL has expired.
pub fn stored_seconds(at: i64) -> Seconds {
    at.clamp(Seconds::MIN.into(), MAX_DELETION_TIME.into()) as Seconds
}

/// The expiry of a value with this TTL that is written at `now` (seconds), and whether it was
/// capped.
pub fn expiry(now: i64, ttl: i32) -> (Seconds, bool) {
    let at = now + ttl as i64;
    if at > MAX_DELETION_TIME as i64 { (MAX_DELETION_TIME, true) } else { (at as Seconds, false) }
}

/// A tombstone: it deletes everything in its scope that was written at or before `timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    /// Deletes data with this timestamp or a lower one.
    pub timestamp: Timestamp,
    /// When it was made, in seconds. It decides when the tombstone may be purged.
    pub deletion_time: Seconds,
}

impl Tombstone {
    /// No deletion.
    pub const LIVE: Tombstone = Tombstone { timestamp: MISSING_TIMESTAMP, deletion_time: NO_DELETION_TIME };

    /// A deletion with this timestamp, made at this second.
    pub fn new(timestamp: Timestamp, deletion_time: Seconds) -> Self {
        Tombstone { timestamp, deletion_time }
    }

    /// Whether there is no deletion.
    pub fn is_live(&self) -> bool {
        self.timestamp == MISSING_TIMESTAMP
    }

    /// Whether it covers something written at `timestamp`.
    pub fn deletes(&self, timestamp: Timestamp) -> bool {
        timestamp <= self.timestamp && !self.is_live()
    }

    /// The stronger of two tombstones: the later timestamp, then the later deletion time.
    pub fn max(self, other: Tombstone) -> Tombstone {
        if self.is_live() {
            return other;
        }
        if other.is_live() || (self.timestamp, self.deletion_time) >= (other.timestamp, other.deletion_time) {
            self
        } else {
            other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Cell, Marker};

    #[test]
    fn cells_with_a_ttl_expire_in_2038_at_the_latest() {
        let year = 365 * 24 * 60 * 60;
        assert_eq!(expiry(1_700_000_000, year), (1_700_000_000 + year, false));
        let last = i64::from(MAX_DELETION_TIME);
        for written in [last - 2 * i64::from(year), last - 1, last, last + 1, last + 2, last + 5 * i64::from(year)] {
            let (expiry, capped) = expiry(written, MAX_TTL);
            assert_eq!((expiry, capped), (MAX_DELETION_TIME, true));
            let (cell, marker) = (
                Cell::live(crate::ColumnId(0), 1, b"").with_ttl(MAX_TTL, expiry),
                Marker::expiring(1, MAX_TTL, expiry),
            );
            for now in [written, last - 1, last, last + 1, last + 2, 2 * last, i64::MAX] {
                let stored = stored_seconds(now);
                assert_eq!(cell.is_live(stored), now < last, "written at {written}, read at {now}");
                assert_eq!(marker.is_live(stored), now < last, "written at {written}, read at {now}");
            }
        }
        assert_eq!((stored_seconds(-5), stored_seconds(i64::MIN)), (-5, i32::MIN));
        assert!(stored_seconds(i64::MAX) < NO_DELETION_TIME, "a deletion is a deletion");
    }
}
