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
