//! The bytes that this shard has read of partitions with a limit of bytes, until it reports them to
//! the other owners. Pure: no clock, no I/O.
//!
//! A read is performed by one owner, whatever the level: the others send digests at most. So each
//! owner charges what it reads itself and what others report, and all of them have the same debt.
//! Writes need no reports, because every owner performs them.
//!
//! A report that is lost is not repeated. The debts of owners then differ by its bytes until they
//! are paid off.

use crate::limiter::LimitKey;
use rt::hash::HashMap;

/// The most partitions that are reported at once.
pub const MAX_SPENT: usize = 64;

/// The bytes since the last report.
#[derive(Default)]
pub struct Spent {
    bytes: HashMap<LimitKey, u64>,
}

impl Spent {
    /// Adds bytes of a partition. If there are too many partitions, the one with the fewest bytes
    /// is left out.
    pub fn add(&mut self, key: LimitKey, bytes: u64) {
        if self.bytes.len() >= MAX_SPENT && !self.bytes.contains_key(&key) {
            let fewest = self.bytes.iter().map(|(key, bytes)| (*bytes, *key)).min_by_key(|(bytes, _)| *bytes);
            match fewest {
                Some((fewest, least)) if fewest < bytes => self.bytes.remove(&least),
                _ => return,
            };
        }
        let sum = self.bytes.entry(key).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// The partitions and their bytes since the last call.
    pub fn take(&mut self) -> impl Iterator<Item = (LimitKey, u64)> {
        std::mem::take(&mut self.bytes).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::LimitKind;

    #[test]
    fn the_partitions_with_the_most_bytes_are_reported_once() {
        let key = |token| LimitKey { token, table: 7, kind: LimitKind::ReadBytes };
        let mut spent = Spent::default();
        for token in 0..1_000 {
            spent.add(key(token), 1_000 + token as u64);
        }
        spent.add(key(999), 5);
        spent.add(key(0), 5);
        let mut taken: Vec<_> = spent.take().map(|(key, bytes)| (key.token, bytes)).collect();
        taken.sort();
        let last = 1_000 - MAX_SPENT as i64;
        let mut expected: Vec<_> = (last..1_000).map(|token| (token, 1_000 + token as u64)).collect();
        expected[MAX_SPENT - 1].1 += 5;
        assert_eq!(taken, expected);
        assert_eq!(spent.take().count(), 0);
    }
}
