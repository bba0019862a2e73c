//! The bytes that this shard has read of partitions with a limit of bytes, until it reports them to
//! the other owners. Pure: no clock, no I/O.
//!
//! A read is performed by one owner, whatever the level: the others send digests at most. Each
//! owner charges its own reads and the reads that others report. So all owners have the same debt.
//! Writes need no reports, because every owner performs them.
//!
//! A count below a part of the owner's share of the budget waits for the next report. If no bytes
//! are added until then, the count is dropped: a partition far below its limit is not reported. A
//! report that is lost is not repeated. The debts of owners then differ by its bytes until they are
//! paid off.

use crate::limiter::LimitKey;
use rt::hash::HashMap;

/// The most partitions that are tracked, and reported at once.
pub const MAX_SPENT: usize = 64;

/// The bytes of a partition since they were last reported.
#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    /// The bytes of a second's budget.
    budget: u64,
    /// Whether bytes were added since the last call of [`Spent::take`].
    is_new: bool,
}

/// The bytes since the last report.
#[derive(Default)]
pub struct Spent {
    sums: HashMap<LimitKey, Sum>,
}

impl Spent {
    /// Adds bytes of a partition. `budget`: the bytes of a second. If there are too many
    /// partitions, the one with the fewest bytes is evicted.
    pub fn add(&mut self, key: LimitKey, bytes: u64, budget: u64) {
        if self.sums.len() >= MAX_SPENT && !self.sums.contains_key(&key) {
            let fewest = self.sums.iter().min_by_key(|(_, sum)| sum.bytes).map(|(key, _)| *key);
            self.sums.remove(&fewest.expect("there are partitions"));
        }
        let sum = self.sums.entry(key).or_default();
        *sum = Sum { bytes: sum.bytes.saturating_add(bytes), budget, is_new: true };
    }

    /// Takes the partitions to report, with their bytes. `is_share`: whether bytes are a good part
    /// of this owner's share of a budget.
    pub fn take(&mut self, is_share: impl Fn(u64, u64) -> bool) -> Vec<(LimitKey, u64)> {
        let mut taken = Vec::new();
        self.sums.retain(|key, sum| {
            let is_reported = is_share(sum.bytes, sum.budget);
            if is_reported {
                taken.push((*key, sum.bytes));
            }
            !is_reported && std::mem::take(&mut sum.is_new)
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::LimitKind;

    fn key(token: i64) -> LimitKey {
        LimitKey { token, table: 7, kind: LimitKind::ReadBytes }
    }

    fn taken(spent: &mut Spent) -> Vec<(i64, u64)> {
        let mut taken = spent.take(|bytes, budget| bytes * 10 >= budget);
        taken.sort_by_key(|(key, _)| key.token);
        taken.into_iter().map(|(key, bytes)| (key.token, bytes)).collect()
    }

    #[test]
    fn bytes_are_reported_once_they_are_a_good_part() {
        let mut spent = Spent::default();
        for expected in [vec![], vec![], vec![(1, 120)], vec![]] {
            spent.add(key(1), 40, 1_000);
            assert_eq!(taken(&mut spent), expected);
        }
        assert_eq!(taken(&mut spent), []);
        spent.add(key(1), 99, 1_000);
        assert_eq!(taken(&mut spent), []);
        assert_eq!(taken(&mut spent), [], "forgotten, because nothing was added");
        spent.add(key(1), 99, 1_000);
        assert_eq!(taken(&mut spent), []);
    }

    #[test]
    fn a_hot_partition_is_reported_beside_many_others() {
        let mut spent = Spent::default();
        for token in 1..1_000 {
            spent.add(key(0), 50, 1_000);
            spent.add(key(token), 60, 1_000);
        }
        assert_eq!(taken(&mut spent).into_iter().find(|(token, _)| *token == 0), Some((0, 999 * 50)));
        assert_eq!(spent.sums.len(), MAX_SPENT - 1);
    }
}
