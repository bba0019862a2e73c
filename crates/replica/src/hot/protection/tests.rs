//! Which partitions are refused on an overloaded shard, and at what rate.

use super::*;
use model::id::TableId;
use model::token::Token;
use proptest::prelude::*;

fn id(token: i64) -> PartitionId {
    PartitionId { table: TableId::from_bytes([7; 16]), token: Token(token) }
}

fn demand(token: i64, wanted: f64, got: f64) -> Demand {
    Demand { id: id(token), wanted, got }
}

#[test]
fn a_shard_that_keeps_up_refuses_nothing() {
    let mut protection = Protection::default();
    for _ in 0..100 {
        protection.update(false, 0.9, vec![demand(1, 0.8, 0.8)]);
        assert!(protection.shares().is_empty() && protection.admits(id(1)) && protection.performs(id(1)));
    }
}

#[test]
fn no_operation_is_refused_if_no_partition_takes_much() {
    let mut protection = Protection::default();
    for _ in 0..100 {
        protection.update(true, 0.9, (0..80).map(|token| demand(token, 0.001, 0.001)).collect());
        assert!(protection.shares().is_empty());
    }
}

/// A shard of which operations take up to `capacity` of its time. Small partitions want `small`,
/// hot ones want `hot`. What does not fit is cut in proportion, and requests wait.
struct Shard {
    capacity: f64,
    small: f64,
    hot: Vec<f64>,
    protection: Protection,
    /// What the small and the hot ones got in the last update.
    got: (f64, Vec<f64>),
}

impl Shard {
    fn new(capacity: f64, small: f64, hot: &[f64]) -> Shard {
        Shard { capacity, small, hot: hot.to_vec(), protection: Protection::default(), got: (0.0, hot.to_vec()) }
    }

    fn step(&mut self) {
        let accept = |token: usize| {
            let share = self.protection.shares().iter().find(|share| share.id == id(token as i64));
            share.map_or(1.0, |share| share.accept)
        };
        let offered: Vec<f64> = self.hot.iter().enumerate().map(|(token, wanted)| wanted * accept(token)).collect();
        let sum = self.small + offered.iter().sum::<f64>();
        let fits = (self.capacity / sum).min(1.0);
        self.got = (self.small * fits, offered.iter().map(|offered| offered * fits).collect());
        let total = self.got.0 + self.got.1.iter().sum::<f64>();
        let demands = self.hot.iter().zip(&self.got.1).enumerate();
        let demands = demands.map(|(token, (wanted, got))| demand(token as i64, *wanted, *got)).collect();
        self.protection.update(sum > self.capacity, total, demands);
    }

    /// What the small ones and the hot ones get on average, once the shares have settled.
    fn settle(&mut self) -> (f64, Vec<f64>) {
        (0..200).for_each(|_| self.step());
        let (mut small, mut hot) = (0.0, vec![0.0; self.hot.len()]);
        for _ in 0..100 {
            self.step();
            small += self.got.0 / 100.0;
            hot.iter_mut().zip(&self.got.1).for_each(|(sum, got)| *sum += got / 100.0);
        }
        (small, hot)
    }
}

#[test]
fn small_partitions_get_what_they_want_and_hot_ones_the_rest() {
    for hot in [vec![5.0], vec![1.0, 5.0], vec![0.5; 10], vec![0.05; 100]] {
        let mut shard = Shard::new(0.5, 0.3, &hot);
        let (small, got) = shard.settle();
        assert!(small > 0.28, "small ones got {small} beside {hot:?}");
        let all: f64 = got.iter().sum();
        assert!(all > 0.08, "hot ones got {all} of {hot:?}");
        let (least, most) = (got.iter().copied().fold(1.0, f64::min), got.iter().copied().fold(0.0, f64::max));
        assert!(most - least < 0.01, "equal shares: {got:?}");
    }
}

#[test]
fn a_partition_below_the_level_is_not_refused() {
    let mut shard = Shard::new(0.5, 0.1, &[0.05, 2.0]);
    let (small, got) = shard.settle();
    assert!(small > 0.09 && got[0] > 0.045 && got[1] > 0.25, "{small} {got:?}");
    assert!(shard.protection.shares().iter().all(|share| share.id == id(1)));
}

#[test]
fn a_partition_alone_keeps_half_of_the_shard() {
    let mut shard = Shard::new(0.5, 0.0, &[50.0]);
    let (_, got) = shard.settle();
    assert!(got[0] >= 0.24, "{got:?}");
}

#[test]
fn refusals_end_with_the_overload() {
    let mut shard = Shard::new(0.5, 0.3, &[5.0]);
    shard.settle();
    shard.hot = vec![0.1];
    (0..50).for_each(|_| shard.step());
    assert!(shard.protection.shares().is_empty());
    assert_eq!(shard.got, (0.3, vec![0.1]));
}

#[test]
fn the_replica_performs_operations_that_the_coordinator_accepted() {
    let mut protection = Protection::default();
    (0..3).for_each(|_| protection.update(true, 0.5, vec![demand(1, 5.0, 0.4)]));
    let accept = protection.shares()[0].accept;
    let mut performed = 0;
    for _ in 0..10_000 {
        if protection.admits(id(1)) {
            assert!(protection.performs(id(1)));
            performed += 1;
        }
    }
    assert!((f64::from(performed) - accept * 10_000.0).abs() <= 1.0, "{performed} of {accept}");
    let direct = (0..10_000).filter(|_| protection.performs(id(1))).count();
    assert!((direct as f64 - accept * 10_000.0).abs() <= 1.0);
}

proptest! {
    #[test]
    fn the_level_gives_out_all_there_is(rest in 0.0..2.0f64, mut wanted in prop::collection::vec(0.001..1.0f64, 0..30)) {
        wanted.sort_by(f64::total_cmp);
        let demands: Vec<Demand> = wanted.iter().map(|wanted| demand(1, *wanted, 0.0)).collect();
        let level = level(rest, &demands);
        let given: f64 = wanted.iter().map(|wanted| wanted.min(level)).sum();
        let all: f64 = wanted.iter().sum();
        prop_assert!((given - rest.min(all)).abs() < 1e-9, "{given} of {rest} and {all}");
    }
}
