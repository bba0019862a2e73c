//! How many tablets a new table gets. Pure.
//!
//! The largest of all minimums wins, the table's maximum caps it, the goal for the replicas that a shard holds of all tables scales
//! it down, and the nearest power of two is taken.

use super::{INITIAL_SCALE_FACTOR, MAX_LOG2_COUNT};

/// The replicas that a shard should hold of all tables together, at most (`tablets_per_shard_goal`).
pub const REPLICAS_PER_SHARD_GOAL: u32 = 100;

/// A datacenter that is to hold copies of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Shards of all its nodes.
    pub shards: u32,
    /// Copies of each tablet there.
    pub factor: u32,
    /// Tablet replicas of other tables that its shards hold already.
    pub held: u32,
}

/// What the options of the table and of its keyspace request.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct TabletCountHints {
    /// `min_tablet_count`, the keyspace's `initial`, or what an expected size needs: the largest.
    pub at_least: u32,
    /// `min_per_shard_tablet_count`.
    pub per_shard: Option<f64>,
    /// `max_tablet_count`; it wins over every minimum.
    pub at_most: Option<u32>,
}

/// How many tablets a new table gets: a power of two.
pub fn for_new_table(homes: &[Home], hints: TabletCountHints) -> u32 {
    let per_shard = hints.per_shard.unwrap_or(0.0).max(0.0);
    let scale = f64::from(INITIAL_SCALE_FACTOR).max(per_shard);
    let wanted_by = |home: &Home| f64::from(home.shards) * scale / f64::from(home.factor.max(1));
    let wanted = homes.iter().map(wanted_by).fold(f64::from(hints.at_least), f64::max).max(1.0);
    let capped = hints.at_most.map_or(wanted, |most| wanted.min(f64::from(most.max(1))));
    let room = |home: &Home| {
        let goal = f64::from(REPLICAS_PER_SHARD_GOAL) * f64::from(home.shards);
        let would_hold = f64::from(home.held) + capped * f64::from(home.factor);
        if would_hold > goal { goal / would_hold } else { 1.0 }
    };
    let scaled = capped * homes.iter().map(room).fold(1.0, f64::min);
    // What was asked for explicitly is not scaled away.
    let floor = hints.at_most.map_or(hints.at_least, |most| hints.at_least.min(most.max(1)));
    nearest_power(scaled.max(f64::from(floor)).max(1.0))
}

/// The power of two that is nearest, at most `2^MAX_LOG2_COUNT`.
fn nearest_power(wanted: f64) -> u32 {
    let most = 1u32 << MAX_LOG2_COUNT;
    if wanted >= f64::from(most) {
        return most;
    }
    let below = 1u32 << (wanted as u32).ilog2();
    if wanted - f64::from(below) > f64::from(2 * below) - wanted { 2 * below } else { below }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(shards: u32, factor: u32, held: u32) -> Home {
        Home { shards, factor, held }
    }

    #[test]
    fn counts_by_the_rule() {
        let plain = TabletCountHints::default();
        let cases = [
            (vec![home(1, 1, 0)], plain, 8),
            (vec![home(2, 1, 0)], plain, 16),
            (vec![home(6, 3, 0)], plain, 16),
            (vec![home(6, 3, 0)], TabletCountHints { at_least: 100, ..plain }, 128),
            (vec![home(6, 3, 0)], TabletCountHints { at_least: 100, at_most: Some(4), ..plain }, 4),
            (vec![home(6, 3, 0)], TabletCountHints { per_shard: Some(40.0), ..plain }, 64),
            (vec![home(6, 3, 0), home(24, 3, 0)], plain, 64),
            // 600 replicas are the goal: with as many again, half of what was wanted.
            (vec![home(6, 3, 600)], plain, 16),
            (vec![home(6, 3, 6000)], plain, 2),
            (vec![home(6, 3, 60_000)], plain, 1),
            (vec![home(6, 3, 60_000)], TabletCountHints { at_least: 16, ..plain }, 16),
            (vec![], plain, 1),
            (vec![home(1, 1, 0)], TabletCountHints { at_least: u32::MAX, ..plain }, 1 << MAX_LOG2_COUNT),
            (vec![home(1, 1, 0)], TabletCountHints { at_most: Some(0), ..plain }, 1),
        ];
        for (homes, hints, expected) in cases {
            assert_eq!(for_new_table(&homes, hints), expected, "{homes:?} {hints:?}");
        }
    }

    #[test]
    fn powers_are_the_nearest() {
        for (wanted, power) in
            [(1.0, 1), (1.4, 1), (1.6, 2), (3.0, 2), (3.1, 4), (20.0, 16), (25.0, 32), (1e9, 1 << 16)]
        {
            assert_eq!(nearest_power(wanted), power, "{wanted}");
        }
    }
}
