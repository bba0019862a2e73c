//! The bounds of reports: memory, expiry, and which partitions are reported.

use super::*;
use crate::limiter::LimitKind;
use proptest::prelude::*;
use uuid::Uuid;

fn key(token: i64) -> LimitKey {
    LimitKey { token, table: 7 << 64 | 9, kind: LimitKind::Read }
}

fn origin(n: u128) -> Origin {
    Origin { host: HostId(Uuid::from_u128(n)), shard: 0 }
}

fn arrivals(coordinators: u64) -> Arrivals {
    let mut arrivals = Arrivals::default();
    arrivals.set_coordinators(coordinators);
    arrivals
}

fn arrival(token: i64, rate: u64) -> Arrival {
    Arrival { key: key(token), rate }
}

const NONE: fn(LimitKey) -> u64 = |_| 0;

#[test]
fn a_report_replaces_the_last_one_and_is_answered_by_what_comes_to_others() {
    let mut arrivals = arrivals(3);
    assert_eq!(arrivals.take(origin(1), vec![arrival(1, 100), arrival(2, 5)], 0, NONE), [0, 0]);
    assert_eq!(arrivals.take(origin(2), vec![arrival(1, 30)], 10, |_| 7), [107], "with what comes here");
    assert_eq!(arrivals.reported(key(1), 10), 130);
    assert_eq!(arrivals.take(origin(1), vec![arrival(1, 50)], 20, NONE), [30], "not its own share");
    assert_eq!((arrivals.reported(key(1), 20), arrivals.reported(key(2), 20)), (80, 0));
    assert!(arrivals.take(origin(2), vec![], 30, NONE).is_empty());
    assert_eq!(arrivals.reported(key(1), 30), 50);
}

#[test]
fn reports_of_a_silent_coordinator_expire() {
    let mut arrivals = arrivals(3);
    arrivals.take(origin(1), vec![arrival(1, 100)], 0, NONE);
    for now in (100..=EXPIRY_MILLIS + SWEEP_MILLIS).step_by(100) {
        arrivals.take(origin(2), vec![arrival(1, 30)], now, NONE);
        let expected = if now < EXPIRY_MILLIS { 130..=130 } else { 30..=130 };
        assert!(expected.contains(&arrivals.reported(key(1), now)), "{now}");
    }
    let now = EXPIRY_MILLIS + SWEEP_MILLIS;
    assert_eq!(arrivals.reported(key(1), now), 30);
    assert_eq!(arrivals.reported(key(1), now + EXPIRY_MILLIS), 0, "although nothing has come since");
    arrivals.sweep(now + 2 * EXPIRY_MILLIS);
    assert_eq!((arrivals.shares, arrivals.totals.len(), arrivals.reports.len()), (0, 0, 0));
}

#[test]
fn only_partitions_near_their_limits_are_reported() {
    let mut alone = arrivals(1);
    alone.track(key(1), 1_000, 1, 0);
    assert!(
        alone.to_report(MAX_REPORTED, 0, |_| 1).is_empty() && alone.tracked.is_empty(),
        "no other shard needs a report"
    );
    let mut arrivals = arrivals(10);
    arrivals.track(key(1), 12, 1_000, 0);
    arrivals.track(key(4), 3, 100, 0);
    arrivals.track(key(2), 1_000, 0, 0);
    assert!(arrivals.tracked.is_empty(), "too few, and a limit that refuses everything");
    arrivals.track(key(5), 1, 2, 0);
    assert!(arrivals.tracked.is_empty(), "too few of a low limit");
    arrivals.track(key(3), 13, 1_000, 0);
    assert_eq!(arrivals.to_report(MAX_REPORTED, IDLE_MILLIS, |key| key.token as u64), [arrival(3, 3)]);
    assert!(arrivals.to_report(MAX_REPORTED, IDLE_MILLIS, NONE).is_empty());
    assert!(arrivals.to_report(MAX_REPORTED, IDLE_MILLIS + 1, |_| 1).is_empty(), "it is idle");
}

#[test]
fn low_limits_are_reported_once_they_are_reached() {
    for limit in 1..4 {
        let mut arrivals = arrivals(3);
        arrivals.track(key(1), u64::from(limit), limit, 0);
        assert_eq!(arrivals.to_report(MAX_REPORTED, 0, |_| 7), [arrival(1, 7)], "{limit}");
    }
}

#[test]
fn answers_are_known_for_a_while() {
    let mut arrivals = arrivals(3);
    arrivals.learn(key(1), 5, 0);
    assert_eq!(arrivals.track(key(1), 10, 10, 0), None, "it was not tracked");
    arrivals.learn(key(1), u64::MAX, 100);
    assert_eq!(arrivals.track(key(1), 11, 10, 100), Some(MAX_RATE));
    arrivals.learn(key(1), 0, 200);
    assert_eq!(arrivals.track(key(1), 12, 10, 199 + EXPIRY_MILLIS), Some(0));
    assert_eq!(arrivals.track(key(1), 13, 10, 200 + EXPIRY_MILLIS), None);
}

#[test]
fn many_partitions_hide_no_hot_one_and_take_no_memory() {
    let mut arrivals = arrivals(4);
    for token in 0..100 {
        arrivals.track(key(-1 - token), 1_000 + token as u64, 40, 0);
    }
    for token in 0..1_000_000 {
        arrivals.track(key(token), 4, 40, 1);
    }
    assert_eq!(arrivals.tracked.iter().flatten().flatten().count(), MAX_TRACKED);
    let rate_of = |key: LimitKey| if key.token < 0 { 1_000_000 } else { 4_000 };
    let told = arrivals.to_report(MAX_REPORTED, 2, rate_of);
    assert_eq!(told.len(), MAX_REPORTED);
    assert!(told.iter().take(100).all(|arrival| arrival.key.token < 0), "the highest excess first");
}

/// The tokens of a report of so many partitions.
fn reported(arrivals: &mut Arrivals, most: usize, now: u64, rate_of: impl Fn(i64) -> u64) -> Vec<i64> {
    let report = arrivals.to_report(most, now, |key| rate_of(key.token) * PER_OPERATION);
    report.into_iter().map(|arrival| arrival.key.token).collect()
}

#[test]
fn the_operations_beyond_a_limit_decide_which_partitions_are_reported() {
    let mut arrivals = arrivals(2);
    let partitions = [(1, 1_000, 10_000), (2, 100, 10), (3, 2, 1), (4, 600, 1_000)];
    for (token, count, limit) in partitions {
        arrivals.track(key(token), count, limit, 0);
    }
    let rate_of = |token: i64| partitions[token as usize - 1].1;
    assert_eq!(reported(&mut arrivals, 3, 0, rate_of), [2, 4, 3], "as if the others received as much");
    for now in [0, SETTLING_MILLIS - 1] {
        arrivals.learn(key(4), 350_000, now);
        arrivals.learn(key(1), 9_200_000, now);
    }
    let at_first = reported(&mut arrivals, 3, SETTLING_MILLIS - 1, rate_of);
    assert_eq!(at_first, [1, 2, 4], "the rate at the others may be incomplete");
    assert_eq!(reported(&mut arrivals, 3, SETTLING_MILLIS, rate_of), [1, 2, 3], "by what the others receive");
}

#[test]
fn one_operation_does_not_show_a_high_rate() {
    let mut arrivals = arrivals(100);
    arrivals.track(key(1), 60, 600, 0);
    arrivals.track(key(2), 1, 1, 0);
    assert_eq!(reported(&mut arrivals, 1, 0, |token| if token == 1 { 60 } else { 1 }), [1]);
}

#[test]
fn counts_of_partitions_without_operations_fade() {
    let mut arrivals = arrivals(2);
    let same_set: Vec<i64> = (0..).filter(|token| set_of(key(*token), 0) == set_of(key(0), 0)).take(WAYS + 1).collect();
    for token in &same_set[..WAYS] {
        arrivals.track(key(*token), 200, 10, 0);
    }
    arrivals.track(key(same_set[WAYS]), 101, 10, 500);
    let is_tracked = |arrivals: &Arrivals, token: i64| {
        arrivals.tracked.iter().flatten().flatten().any(|known| known.key == key(token))
    };
    assert!(!is_tracked(&arrivals, same_set[WAYS]));
    arrivals.track(key(same_set[WAYS]), 101, 10, 1_500);
    assert!(is_tracked(&arrivals, same_set[WAYS]));
}

#[test]
fn shares_are_bounded_and_too_long_reports_cut() {
    let mut arrivals = arrivals(3);
    for n in 0..200 {
        let report = (0..1_000).map(|token| arrival(n as i64 * 1_000 + token, u64::MAX)).collect();
        assert_eq!(arrivals.take(origin(n), report, 0, NONE).len(), 1_000, "all are answered");
    }
    assert!(arrivals.shares <= MAX_SHARES && arrivals.totals.len() <= MAX_SHARES, "{}", arrivals.shares);
    let mut same = super::Arrivals::default();
    for n in 0..200 {
        same.take(origin(n), vec![arrival(1, u64::MAX); MAX_REPORTED], 0, |_| 1 << 50);
    }
    assert!(same.reported(key(1), 0) > MAX_RATE);
    (0..200).for_each(|n| drop(same.take(origin(n), vec![], 0, NONE)));
    assert_eq!((same.shares, same.totals.len()), (0, 0));
}

proptest! {
    /// The totals are the sums of the newest reports, whatever comes and expires.
    #[test]
    fn totals_are_sums(
        steps in prop::collection::vec(
            (0u128..4, prop::collection::vec((0i64..3, 0u64..100), 0..4), 0u64..900), 1..60),
    ) {
        let mut arrivals = arrivals(3);
        let mut model: HashMap<u128, (u64, Vec<(i64, u64)>)> = HashMap::default();
        let mut now = 0;
        for (from, report, passed) in steps {
            now += passed + SWEEP_MILLIS;
            model.retain(|_, (at, _)| *at + EXPIRY_MILLIS > now);
            model.insert(from, (now, report.clone()));
            arrivals.take(origin(from), report.iter().map(|(token, rate)| arrival(*token, *rate)).collect(), now, NONE);
            for token in 0..3 {
                let sum: u64 = model.values().flat_map(|(_, all)| all).filter(|(one, _)| *one == token).map(|(_, rate)| rate).sum();
                prop_assert_eq!(arrivals.reported(key(token), now), sum);
            }
        }
    }
}
