//! The bounds of the limiter: what steady and sudden load is accepted, over wraps, jumps of the
//! clock, and any number of other keys.

use super::*;
use proptest::prelude::*;

const SALT: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

fn limiter() -> Limiter {
    Limiter::new(DEFAULT_BYTES, SALT)
}

fn key(token: i64) -> LimitKey {
    LimitKey { token, table: 7 << 64 | 9, kind: LimitKind::Read }
}

/// Evenly distributed draws.
struct Draws(u32);

impl Draws {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9);
        self.0
    }
}

/// The accepted operations of each of some seconds at a steady rate.
fn accepted(rate: u64, limit: u32, windows: std::ops::Range<u64>) -> Vec<u64> {
    let (mut limiter, mut draws) = (limiter(), Draws(1));
    let mut second = |window| (0..rate).filter(|_| decide(limiter.add(key(1), 1, window), limit, draws.next())).count();
    windows.map(|window| second(window) as u64).collect()
}

#[test]
fn nothing_is_refused_up_to_the_limit() {
    for (rate, limit) in [(1, 1), (10, 10), (999, 1_000), (50_000, 50_000)] {
        assert!(accepted(rate, limit, 0..30).iter().all(|count| *count == rate), "{rate} of {limit}");
    }
}

#[test]
fn the_limit_is_accepted_at_twice_the_limit_and_more() {
    for (rate, limit) in [(2_000, 1_000), (5_000, 1_000), (100_000, 1_000), (20_000, 100)] {
        let steady = &accepted(rate, limit, 0..20)[4..];
        let mean = steady.iter().sum::<u64>() as f64 / steady.len() as f64 / f64::from(limit);
        assert!((0.9..=1.1).contains(&mean), "{rate} of {limit}: {mean}");
    }
}

#[test]
fn the_first_second_is_bounded() {
    for (rate, limit) in [(10_000u64, 1_000u32), (100_000, 1_000), (50_000, 100)] {
        let first = accepted(rate, limit, 0..1)[0] as f64;
        let limit = f64::from(limit);
        let most = 2.0 * limit + limit * (rate as f64 / (2.0 * limit)).log2();
        assert!(first <= most * 1.05 && first >= most * 0.95, "{first} of {most}");
    }
}

#[test]
fn a_limit_of_zero_refuses_everything_and_the_highest_can_take_effect() {
    assert!((0..1_000).all(|draw| !decide(1, 0, draw)));
    assert!(decide(2 * u64::from(u32::MAX), u32::MAX, u32::MAX));
    assert!(!decide(MAX_COUNT, u32::MAX, u32::MAX));
    let mut limiter = limiter();
    assert_eq!(limiter.add(key(1), u64::from(u32::MAX) * 4, 0), u64::from(u32::MAX) * 4);
    assert_eq!(limiter.add(key(1), MAX_COUNT, 0), MAX_COUNT);
}

#[test]
fn counts_are_halved_in_each_window() {
    let mut limiter = limiter();
    limiter.add(key(1), 1 << 20, 5);
    assert_eq!(limiter.add(key(1), 0, 6), 1 << 19);
    assert_eq!(limiter.add(key(1), 0, 16), 1 << 9);
    assert_eq!(limiter.add(key(1), 1, 26), 1, "the count was lost, and the key starts again");
}

#[test]
fn kinds_tables_and_tokens_are_counted_apart() {
    let mut limiter = limiter();
    limiter.add(key(1), 100, 0);
    assert_eq!(limiter.add(key(2), 1, 0), 1);
    assert_eq!(limiter.add(LimitKey { kind: LimitKind::Write, ..key(1) }, 1, 0), 1);
    assert_eq!(limiter.add(LimitKey { table: 8, ..key(1) }, 1, 0), 1);
    assert_eq!(limiter.add(LimitKey { table: 1 << 127, ..key(1) }, 1, 0), 1);
    assert_eq!(limiter.add(key(1), 1, 0), 101);
}

#[test]
fn window_numbers_wrap() {
    let mut limiter = limiter();
    let wrap = 1 << WINDOW_BITS;
    limiter.add(key(1), 1, wrap - 2);
    limiter.add(key(1), 1_024, wrap - 1);
    assert_eq!(limiter.add(key(1), 0, wrap), 512);
    assert_eq!(limiter.add(key(1), 0, wrap + 1), 256);
}

#[test]
fn an_expired_slot_stays_expired_after_a_wrap() {
    let mut limiter = Limiter::new(1 << 12, SALT);
    limiter.add(key(1), MAX_COUNT, 0);
    assert!(limiter.load_factor() > 0.0);
    let mut window = 0;
    while window < 2 << WINDOW_BITS {
        window += 1 << 10;
        limiter.add(key(2), 1, window);
    }
    assert_eq!(limiter.add(key(1), 1, window), 1);
}

#[test]
fn a_clock_that_jumps_back_keeps_no_count_longer() {
    let mut limiter = limiter();
    limiter.add(key(1), 1_024, 100_000);
    assert_eq!(limiter.add(key(1), 0, 96_400), 1_024, "no window has passed");
    assert_eq!(limiter.add(key(1), 0, 96_401), 512, "from now on they pass as before");
    assert_eq!(limiter.add(key(1), 0, 96_403), 128);
}

#[test]
fn a_clock_that_jumps_ahead_clears_counts() {
    for jump in [41, 70_000, 1 << 23, 1 << 24, u64::MAX - 10] {
        let mut limiter = limiter();
        limiter.add(key(1), MAX_COUNT, 1);
        assert_eq!(limiter.add(key(1), 1, 1 + jump), 1, "{jump}");
    }
}

#[test]
fn ten_million_keys_take_no_memory_and_no_slot_of_a_hot_one() {
    let mut limiter = limiter();
    let bytes = limiter.bytes();
    let hot: Vec<LimitKey> = (0..100).map(|n| key(-1 - n)).collect();
    for key in &hot {
        limiter.add(*key, 50, 0);
    }
    for token in 0..10_000_000 {
        let count = limiter.add(key(token), 1, 0);
        assert_eq!(count, 1, "a new key inherits nothing");
        if token % 100_000 == 0 {
            for key in &hot {
                limiter.add(*key, 1, 0);
            }
        }
    }
    assert_eq!(limiter.bytes(), bytes);
    assert!(limiter.load_factor() <= 1.0);
    for key in hot {
        assert_eq!(limiter.add(key, 1, 0), 151);
    }
    let counters = limiter.counters();
    assert!(counters.allocations >= 10_000_000 && counters.failed_allocations > 9_000_000);
}

#[test]
fn slots_are_free_again() {
    let mut limiter = Limiter::new(1 << 14, SALT);
    for token in 0..10_000 {
        limiter.add(key(token), 1, 0);
    }
    assert!(limiter.load_factor() > 0.99);
    limiter.add(key(-1), 1, 1_000_000);
    assert!(limiter.load_factor() < 0.01, "{}", limiter.load_factor());
    assert_eq!(limiter.counters().probe_count, 20_002);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No pattern of arrivals gets a key of a steady rate below the limit refused.
    #[test]
    fn others_get_no_key_refused(
        steps in prop::collection::vec((0i64..5_000, 1u64..1_000, any::<bool>()), 1..2_000),
        limit in 1u32..20,
    ) {
        let mut limiter = Limiter::new(1 << 12, SALT);
        let (mut window, mut in_window) = (0, 0);
        for (token, weight, tick) in steps {
            if tick {
                (window, in_window) = (window + 1, 0);
            }
            limiter.add(key(token), weight, window);
            if in_window < limit {
                in_window += 1;
                let count = limiter.add(key(-1), 1, window);
                prop_assert!(decide(count, limit, u32::MAX), "{count} of {limit}");
            }
        }
    }

    /// A count is never higher than the operations of the key, halved each second, and equal to it
    /// while the key keeps its slot.
    #[test]
    fn a_count_is_that_of_its_key(
        steps in prop::collection::vec((0i64..8, 1u64..1 << 20, 0u64..4), 1..300),
    ) {
        let mut limiter = limiter();
        let mut model = [(0u64, 0u64); 8];
        let mut window = 0u64;
        for (token, weight, passed) in steps {
            window += passed;
            let (count, at) = &mut model[token as usize];
            *count = count.checked_shr((window - *at).min(64) as u32).unwrap_or(0) + weight;
            *at = window;
            prop_assert_eq!(limiter.add(key(token), weight, window), *count);
        }
    }
}
