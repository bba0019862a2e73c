//! The oracle of a table with rate limits: a hot partition that clients use far too often, and a
//! cool one far below the limit. Pure.
//!
//! Checkers: `rate_limit_bounds`: without faults the hot partition gets its limit, whatever
//! coordinators and levels it is used by, and the cool one is never refused, whatever faults
//! happen. `refused_is_not_done`: no replica has a write that a coordinator refused.

use std::collections::BTreeSet;

/// Reads per second, and writes per second, of a partition.
pub const LIMIT: u32 = 10;
/// The hot partition.
pub const HOT: i32 = 0;
/// The cool partition.
pub const COOL: i32 = 1;
/// The table.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS c.l (k int, c int, v int, PRIMARY KEY (k, c)) WITH \
     per_partition_rate_limit = {'max_reads_per_second': 10, 'max_writes_per_second': 10}";
/// Fewer offered operations than so many times the limit prove nothing.
const LEAST_OFFERED: u64 = 3;
/// The accepted operations, by the limit, in percent. The draws vary: over ten seconds, one in a
/// thousand runs is outside.
const BOUNDS: std::ops::RangeInclusive<u64> = 65..=140;

/// Operations of the hot partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operations {
    /// Those that clients have begun.
    pub offered: u64,
    /// Those that were not refused.
    pub accepted: u64,
}

/// The oracle of the table.
#[derive(Debug, Default)]
pub struct RateLimits {
    writes: i32,
    never: BTreeSet<i32>,
    /// The reads and the writes of the hot partition.
    pub hot: [Operations; 2],
}

impl RateLimits {
    /// A client begins a write. Returns its clustering key.
    pub fn begin(&mut self) -> i32 {
        self.writes += 1;
        self.writes
    }

    /// An operation of a partition has ended. `kind`: 0 for a read, 1 for a write.
    pub fn ended(&mut self, key: i32, kind: usize, refused: bool) -> Result<(), String> {
        if key == HOT {
            self.hot[kind].offered += 1;
            self.hot[kind].accepted += u64::from(!refused);
        } else if refused {
            let kind = ["read", "write"][kind];
            return Err(format!("rate_limit_bounds is broken: a {kind} of a partition far below the limit is refused"));
        }
        Ok(())
    }

    /// A coordinator has refused a write.
    pub fn never(&mut self, write: i32) {
        self.never.insert(write);
    }

    /// Checks the clustering keys that a read has shown.
    pub fn check(&self, shown: impl Iterator<Item = i32>) -> Result<(), String> {
        for write in shown {
            if self.never.contains(&write) {
                return Err(format!("refused_is_not_done is broken: write {write} was refused by its coordinator"));
            }
        }
        Ok(())
    }

    /// Checks what was accepted in so many seconds without faults, since `before`.
    pub fn check_accepted(&self, before: [Operations; 2], seconds: u64) -> Result<(), String> {
        for (kind, name) in ["reads", "writes"].into_iter().enumerate() {
            let (now, before) = (self.hot[kind], before[kind]);
            let (offered, accepted) = (now.offered - before.offered, now.accepted - before.accepted);
            let limit = u64::from(LIMIT) * seconds;
            if offered < LEAST_OFFERED * limit {
                return Err(format!("only {offered} {name} were offered in {seconds} s"));
            }
            if !BOUNDS.contains(&(accepted * 100 / limit)) {
                return Err(format!(
                    "rate_limit_bounds is broken: of {offered} {name} {accepted} were accepted in {seconds} s, at a limit \
                     of {LIMIT} per second"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_below_the_limit_and_refused_writes_that_were_done_are_found() {
        let mut oracle = RateLimits::default();
        let (first, second) = (oracle.begin(), oracle.begin());
        oracle.never(first);
        assert_eq!(oracle.ended(HOT, 1, true), Ok(()));
        assert_eq!(oracle.ended(COOL, 0, false), Ok(()));
        assert!(oracle.ended(COOL, 1, true).is_err());
        assert_eq!(oracle.check([second].into_iter()), Ok(()));
        assert!(oracle.check([second, first].into_iter()).is_err());
    }

    #[test]
    fn too_much_too_little_and_no_attack_are_found() {
        for (offered, accepted, fine) in [(400, 100, true), (400, 60, false), (400, 150, false), (200, 100, false)] {
            let before = [Operations { offered: 7, accepted: 7 }; 2];
            let hot = [Operations { offered: 7 + offered, accepted: 7 + accepted }; 2];
            let oracle = RateLimits { hot, ..RateLimits::default() };
            assert_eq!(oracle.check_accepted(before, 10).is_ok(), fine, "{accepted} of {offered}");
        }
    }
}
