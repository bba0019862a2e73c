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
//!
//! Many more partitions are tracked than reported, so that the sums of a report are complete before
//! the highest of them are chosen. Otherwise small reads of a hot partition would be displaced, one
//! by one, by larger reads of others.

use crate::limiter::LimitKey;
use rt::hash::HashMap;
use std::cmp::Reverse;

/// The most partitions that are reported at once.
pub const MAX_SPENT: usize = 64;
/// The most partitions that are tracked.
const MAX_SUMS: usize = 4096;

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
    /// Adds bytes of a partition. `budget`: the bytes of a second. `is_share`: whether bytes are a
    /// good part of this owner's share of a budget. If there are too many partitions, the half with
    /// the fewest bytes is dropped. Those without a good part are dropped first.
    pub fn add(&mut self, key: LimitKey, bytes: u64, budget: u64, is_share: impl Fn(u64, u64) -> bool) {
        if self.sums.len() >= MAX_SUMS && !self.sums.contains_key(&key) {
            self.drop_half(is_share);
        }
        let sum = self.sums.entry(key).or_default();
        *sum = Sum { bytes: sum.bytes.saturating_add(bytes), budget, is_new: true };
    }

    #[cold]
    fn drop_half(&mut self, is_share: impl Fn(u64, u64) -> bool) {
        let mut all: Vec<(LimitKey, Sum)> = self.sums.drain().collect();
        let most = MAX_SUMS / 2;
        all.select_nth_unstable_by_key(most, |(_, sum)| Reverse((is_share(sum.bytes, sum.budget), sum.bytes)));
        all.truncate(most);
        self.sums.extend(all);
    }

    /// Takes the partitions to report, at most [`MAX_SPENT`], with their bytes. `is_share`: see
    /// [`Spent::add`].
    pub fn take(&mut self, is_share: impl Fn(u64, u64) -> bool) -> Vec<(LimitKey, u64)> {
        let mut taken = Vec::new();
        self.sums.retain(|key, sum| {
            let is_reported = is_share(sum.bytes, sum.budget);
            if is_reported {
                taken.push((*key, sum.bytes));
            }
            !is_reported && std::mem::take(&mut sum.is_new)
        });
        if taken.len() > MAX_SPENT {
            taken.select_nth_unstable_by_key(MAX_SPENT, |(_, bytes)| Reverse(*bytes));
            taken.truncate(MAX_SPENT);
        }
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
        let mut taken = spent.take(is_share);
        taken.sort_by_key(|(key, _)| key.token);
        taken.into_iter().map(|(key, bytes)| (key.token, bytes)).collect()
    }

    fn is_share(bytes: u64, budget: u64) -> bool {
        bytes * 10 >= budget
    }

    #[test]
    fn bytes_are_reported_once_they_are_a_good_part() {
        let mut spent = Spent::default();
        for expected in [vec![], vec![], vec![(1, 120)], vec![]] {
            spent.add(key(1), 40, 1_000, is_share);
            assert_eq!(taken(&mut spent), expected);
        }
        assert_eq!(taken(&mut spent), []);
        spent.add(key(1), 99, 1_000, is_share);
        assert_eq!(taken(&mut spent), []);
        assert_eq!(taken(&mut spent), [], "forgotten, because nothing was added");
        spent.add(key(1), 99, 1_000, is_share);
        assert_eq!(taken(&mut spent), []);
    }

    #[test]
    fn a_hot_partition_is_reported_beside_many_others_with_larger_reads() {
        let mut spent = Spent::default();
        for token in 1..20_000 {
            spent.add(key(0), 5, 1_000, is_share);
            // Far below their limits, and beyond them.
            let budget = if token % 2 == 0 { u64::MAX / 64 } else { 10 };
            spent.add(key(token), 60, budget, is_share);
            assert!(spent.sums.len() <= MAX_SUMS);
        }
        let taken = taken(&mut spent);
        assert_eq!(taken.len(), MAX_SPENT);
        assert!(taken.contains(&(0, 19_999 * 5)));
    }
}
