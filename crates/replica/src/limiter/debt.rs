//! Debts: the bytes that a partition has used and that its budget does not cover yet.
//!
//! Bytes are charged after an operation, because only then their number is known. The budget is
//! paid off steadily, and an operation is accepted while the debt is less than the budget of one
//! second. So over any time, a partition gets the budget of that time and of one second more. It
//! exceeds this only by the bytes of operations that were accepted before others were charged.
//! These bytes are paid off before the next operation is accepted, however many they are. A count
//! that is halved would forgive them.
//!
//! Debts are not paid off once in a window: the windows of nodes begin at different times, so the
//! debts of several owners would differ. The first owner would then use up the budget alone.

use super::{LimitKey, Limiter, MAX_COUNT, SWEEP, Slot, WINDOW_MASK};

/// The bytes of a unit of debt. With it, the highest limit, a 32-bit number of KiB, is below the
/// highest debt.
const UNIT: u64 = 8;

/// The length of a window in milliseconds.
const WINDOW_MS: u64 = 1_000;

/// Units of a KiB.
const PER_KIB: u64 = 1024 / UNIT;

/// The number of ticks in a window. A debt is paid off at each tick.
const TICKS: u64 = 16;

/// The budget of a window in units, for a limit in KiB per second.
#[inline]
pub const fn budget(kib: u32) -> u64 {
    kib as u64 * PER_KIB
}

/// The bytes of a budget.
pub(crate) fn bytes(budget: u64) -> u64 {
    budget * UNIT
}

/// A debt in KiB, rounded up.
pub fn kib(units: u64) -> u64 {
    units.div_ceil(PER_KIB)
}

impl Slot {
    fn is_debt(self) -> bool {
        self.tag & 1 == 1
    }

    /// Ticks since the slot of a debt was touched. Right over wraps of the tick number, because
    /// each slot is swept in a shorter time. 0 if the tick is an earlier one.
    fn ticks(self, tick: u64) -> u64 {
        let passed = tick.wrapping_sub(self.state) & WINDOW_MASK;
        if passed > WINDOW_MASK / 2 { 0 } else { passed }
    }

    /// Windows since the slot was touched.
    pub(super) fn idle(self, window: u64) -> u64 {
        match self.is_debt() {
            true => self.ticks(window.wrapping_mul(TICKS).wrapping_add(TICKS - 1)) / TICKS,
            false => self.age(window),
        }
    }

    /// The slot with the lowest rank is evicted. A KiB of debt ranks like one operation. The limit
    /// of an untouched debt is unknown, so its rank is halved in each window like a count.
    pub(super) fn rank(self, window: u64) -> u64 {
        let count = self.count().checked_shr(self.idle(window).min(64) as u32).unwrap_or(0);
        if self.is_debt() { count / PER_KIB } else { count }
    }

    /// The count after a sweep. None: the slot is left as it is.
    pub(super) fn swept_at(self, window: u64) -> Option<u64> {
        match self.is_debt() {
            true => (self.idle(window) >= SWEEP).then_some(0),
            false => Some(self.count_at(window)),
        }
    }
}

/// When a debt is charged or looked at.
#[derive(Clone, Copy)]
pub struct At {
    /// The window: see [`Limiter::add`].
    pub window: u64,
    /// Milliseconds since the window began.
    pub into_window: u64,
}

impl Limiter {
    /// Adds bytes to the debt of a key, rounded up to units, at least one unit. `budget`: the units
    /// that each window pays off.
    pub fn charge(&mut self, key: LimitKey, bytes: u64, budget: u64, at: At) {
        self.change_debt(key, bytes.div_ceil(UNIT).max(1), budget, at);
    }

    /// The debt of a key in units.
    pub fn debt(&mut self, key: LimitKey, budget: u64, at: At) -> u64 {
        self.change_debt(key, 0, budget, at)
    }

    fn change_debt(&mut self, key: LimitKey, units: u64, budget: u64, at: At) -> u64 {
        debug_assert!(key.kind.is_bytes(), "counts of operations are halved");
        let (tag, lines) = self.at(key, at.window);
        let tick = self.window.wrapping_mul(TICKS).wrapping_add(at.into_window.min(WINDOW_MS - 1) * TICKS / WINDOW_MS);
        let Some(slot) = self.find(lines, |slot| slot.tag == tag && slot.count() > 0) else {
            return if units == 0 { 0 } else { self.take(tag, lines, units, tick) };
        };
        // A budget is a multiple of the ticks.
        let left = slot.count().saturating_sub((budget / TICKS).saturating_mul(slot.ticks(tick)));
        let debt = left.saturating_add(units).min(MAX_COUNT);
        slot.set(debt, tick);
        self.occupied -= usize::from(debt == 0);
        self.counters.successful_lookups += u64::from(units > 0);
        debt
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DEFAULT_BYTES, LimitKind};
    use super::*;
    use proptest::prelude::*;

    const SALT: [u64; 4] = [3, 5, 7, 11];

    fn limiter() -> Limiter {
        Limiter::new(DEFAULT_BYTES, SALT)
    }

    /// The start of a window.
    fn start(window: u64) -> At {
        At { window, into_window: 0 }
    }

    /// A moment in milliseconds.
    fn moment(millis: u64) -> At {
        At { window: millis / WINDOW_MS, into_window: millis % WINDOW_MS }
    }

    fn key(token: i64) -> LimitKey {
        LimitKey { token, table: 7, kind: LimitKind::ReadBytes }
    }

    /// The KiB that a client gets which tries an operation of `kib` KiB ten times a window.
    fn accepted(kib: u64, limit: u32, windows: u64) -> u64 {
        let (mut limiter, budget) = (limiter(), budget(limit));
        let mut sum = 0;
        for attempt in 0..windows * 10 {
            let at = moment(attempt * 100);
            if limiter.debt(key(1), budget, at) < budget {
                limiter.charge(key(1), kib << 10, budget, at);
                sum += kib;
            }
        }
        sum
    }

    #[test]
    fn the_limit_is_accepted_whatever_the_size_of_operations() {
        for (kib, limit) in [(1, 5), (10, 100), (100, 100), (1_000, 100), (1_000, 700), (16_384, 100)] {
            let windows = 1_000;
            let ratio = accepted(kib, limit, windows) as f64 / (u64::from(limit) * windows) as f64;
            assert!(
                (0.99..=1.01 + kib as f64 / (f64::from(limit) * windows as f64)).contains(&ratio),
                "{kib}: {ratio}"
            );
        }
        assert_eq!(accepted(1, 100, 10), 100, "below the limit nothing is refused");
        assert_eq!(accepted(1, 0, 10), 0);
    }

    #[test]
    fn a_debt_follows_a_changed_limit() {
        let mut limiter = limiter();
        limiter.charge(key(1), 1 << 20, budget(1), start(0));
        assert_eq!(limiter.debt(key(1), budget(1), start(24)), budget(1_000));
        assert_eq!(limiter.debt(key(1), budget(500), start(25)), budget(500));
        assert_eq!(limiter.debt(key(1), budget(500), start(26)), 0);
        for millis in [0, 500, 900, 999] {
            let mut limiter = self::limiter();
            limiter.charge(key(1), 10 << 10, budget(100 << 10), moment(millis));
            let debt = limiter.debt(key(1), budget(1 << 10), moment(millis + 1_000));
            assert_eq!(debt, 0, "a lower limit adds nothing, {millis} ms into a window");
        }
    }

    #[test]
    fn small_operations_are_rounded_up_and_the_highest_limit_can_take_effect() {
        let mut limiter = limiter();
        for bytes in [0, 1, 8, 9] {
            limiter.charge(key(1), bytes, budget(1), start(0));
        }
        assert_eq!(limiter.debt(key(1), budget(1), start(0)), 5);
        let most = budget(u32::MAX);
        limiter.charge(key(1), u64::MAX, most, start(0));
        assert!(limiter.debt(key(1), most, start(0)) > most);
        limiter.charge(key(1), u64::MAX, most, moment(999));
        assert!(limiter.debt(key(1), most, moment(999)) > most);
    }

    #[test]
    fn a_debt_is_kept_until_it_is_paid_and_its_slot_is_free_then() {
        let mut limiter = Limiter::new(1 << 12, SALT);
        limiter.charge(key(1), 1 << 30, budget(16), start(0));
        for window in 1..60_000 {
            limiter.add(LimitKey { kind: LimitKind::Read, ..key(2) }, 1, window);
        }
        assert_eq!(
            limiter.debt(key(1), budget(16), start(60_000)),
            budget((1 << 20) - 16 * 60_000),
            "the sweep halves no debt"
        );
        assert_eq!(limiter.debt(key(1), budget(16), start(70_000)), 0);
        assert_eq!(limiter.debt(key(9), budget(16), start(70_000)), 0, "a question takes no slot");
        limiter.charge(key(3), 8, budget(1), start(70_000));
        limiter.add(LimitKey { kind: LimitKind::Read, ..key(2) }, 1, 70_000 + (2 << 16));
        limiter.add(LimitKey { kind: LimitKind::Read, ..key(2) }, 1, 70_001 + (4 << 16));
        assert!(limiter.load_factor() < 0.01, "an old debt is forgotten");
    }

    #[test]
    fn many_small_debts_hide_no_operations_of_a_hot_partition() {
        for millis in [0, 500, 999] {
            small_debts_hide_nothing_at(moment(millis));
        }
    }

    fn small_debts_hide_nothing_at(now: At) {
        let mut limiter = Limiter::new(1 << 12, SALT);
        let hot = LimitKey { kind: LimitKind::Write, ..key(1) };
        limiter.add(hot, 50, 0);
        for token in 0..100_000 {
            limiter.charge(key(token), 2 << 10, budget(100), now);
        }
        assert_eq!(limiter.add(hot, 1, 0), 51);
        limiter.charge(key(-1), 1 << 20, budget(100), now);
        for token in 0..100_000 {
            limiter.add(LimitKey { kind: LimitKind::Read, ..key(token) }, 1, 0);
        }
        assert_eq!(limiter.debt(key(-1), budget(100), now), budget(1 << 10));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// No pattern of operations gets more than the budget of its time, of one second more, and
        /// one operation.
        #[test]
        fn no_pattern_beats_the_budget(
            steps in prop::collection::vec((0u64..20_000, 0u64..2_500), 1..500),
            limit in 0u32..20,
        ) {
            let (mut limiter, budget) = (limiter(), budget(limit));
            let (mut millis, mut got) = (0, 0);
            for (bytes, passed) in steps {
                millis += passed;
                if limiter.debt(key(1), budget, moment(millis)) < budget {
                    limiter.charge(key(1), bytes, budget, moment(millis));
                    let units = bytes.div_ceil(UNIT).max(1);
                    got += units;
                    prop_assert!(got <= budget + budget * (millis + WINDOW_MS / TICKS) / WINDOW_MS + units);
                }
            }
        }
    }
}
