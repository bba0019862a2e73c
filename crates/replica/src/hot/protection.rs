//! Decides which partitions of an overloaded shard are refused, and how much of them. Pure.
//!
//! The shard's time is given out by max-min fairness: partitions that want less than the level get
//! all that they want, the others get the level. The level follows from the time that there is, and
//! from what the partitions want that are too small to be listed. While requests wait, less time is
//! given out, but never less than half of what the shard can do. When they no longer wait, more is
//! given out again, until nothing is refused.

use super::sketch::PartitionId;
use super::tracker::Demand;

/// The time that is given out, after an update with overload and after one without.
const CUT: f64 = 0.9;
const GROWTH: f64 = 0.02;
/// The least part of the capacity that is given out.
const LEAST_GIVEN: f64 = 0.5;
/// How much of the highest capacity is remembered by an update.
const KEPT: f64 = 0.99;
/// The share of the shard's capacity below which a partition is never refused.
pub const LEAST_SHARE: f64 = 0.002;
/// The most operations that a coordinator has accepted and that the replica has not begun.
const MOST_PASSES: u32 = 256;

/// A partition of which operations are refused.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    /// The partition.
    pub id: PartitionId,
    /// The part of its operations that is accepted.
    pub accept: f64,
    /// Operations that may be accepted, from 0 to 1. So the part is exact without random numbers.
    credit: f64,
    /// Operations that the coordinator on this shard has accepted: the replica accepts them too.
    passes: u32,
}

/// The protection of a shard.
#[derive(Debug)]
pub struct Protection {
    /// The highest CPU time of operations lately, in seconds per second.
    capacity: f64,
    /// The part of the capacity that is given out.
    given: f64,
    shares: Vec<Share>,
}

impl Default for Protection {
    fn default() -> Protection {
        Protection { capacity: 0.0, given: 1.0, shares: Vec::new() }
    }
}

impl Protection {
    /// Updates the shares. `total`: the CPU time of all operations, in seconds per second.
    pub fn update(&mut self, overloaded: bool, total: f64, mut demands: Vec<Demand>) {
        if !overloaded && self.shares.is_empty() {
            return self.reset();
        }
        self.capacity = total.max(self.capacity * KEPT);
        self.given = if overloaded { (self.given * CUT).max(LEAST_GIVEN) } else { self.given + GROWTH };
        let listed: f64 = demands.iter().map(|demand| demand.got).sum();
        let rest = self.given * self.capacity - (total - listed).max(0.0);
        demands.sort_by(|a, b| a.wanted.total_cmp(&b.wanted));
        let level = level(rest, &demands).max(LEAST_SHARE * self.capacity);
        let before = std::mem::take(&mut self.shares);
        let share = |Demand { id, wanted, .. }| {
            let credit = before.iter().find(|share| share.id == id).map_or(0.0, |share| share.credit);
            Share { id, accept: level / wanted, credit, passes: 0 }
        };
        self.shares = demands.into_iter().filter(|demand| demand.wanted > level).map(share).collect();
    }

    /// Accepts this part of the operations of a partition, until the next update.
    #[cfg(feature = "sim")]
    pub fn give(&mut self, id: PartitionId, accept: f64) {
        if self.share(id).is_none() {
            self.shares.push(Share { id, accept, credit: 0.0, passes: 0 });
        }
    }

    /// Drops all demands and shares: nothing is refused.
    pub fn reset(&mut self) {
        *self = Protection::default();
    }

    /// The partitions of which operations are refused.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Whether an operation of a partition is accepted by the coordinator on this shard. Then
    /// [`Protection::performs`] accepts it as well.
    pub fn admits(&mut self, id: PartitionId) -> bool {
        let Some(share) = self.share(id) else { return true };
        let admitted = share.draw();
        share.passes = (share.passes + u32::from(admitted)).min(MOST_PASSES);
        admitted
    }

    /// Whether an operation of a partition is performed.
    pub fn performs(&mut self, id: PartitionId) -> bool {
        let Some(share) = self.share(id) else { return true };
        match share.passes.checked_sub(1) {
            Some(left) => {
                share.passes = left;
                true
            }
            None => share.draw(),
        }
    }

    fn share(&mut self, id: PartitionId) -> Option<&mut Share> {
        self.shares.iter_mut().find(|share| share.id == id)
    }
}

impl Share {
    fn draw(&mut self) -> bool {
        self.credit += self.accept;
        let accepted = self.credit >= 1.0;
        self.credit -= f64::from(u8::from(accepted));
        accepted
    }
}

/// The level at which demands, sorted by what they want, take `rest` together.
fn level(mut rest: f64, demands: &[Demand]) -> f64 {
    for (at, demand) in demands.iter().enumerate() {
        let fair = rest.max(0.0) / (demands.len() - at) as f64;
        if demand.wanted > fair {
            return fair;
        }
        rest -= demand.wanted;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests;
