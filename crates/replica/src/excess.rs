//! By how much a partition exceeds its limit, and when a client should try again. Pure.

use crate::limiter::debt;

/// The longest time that a refusal by a count asks a client to wait, in ms, without the jitter.
const MAX_RETRY_AFTER_MS: u64 = 60_000;
/// The same for a refusal by a debt: one read of a large row may use up minutes of the budget.
const MAX_PAYING_MS: u64 = 3_600_000;

/// The length of a window in ms.
const WINDOW_MS: u64 = 1_000;

/// By how much a partition exceeds its limit. All numbers are in operations, for a limit of bytes
/// in KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Excess {
    /// The limit per second.
    pub limit: u32,
    /// For operations the estimated rate per second, refused operations included. For bytes what
    /// was used and is not covered by the budget yet.
    pub observed: u32,
    /// After how many ms the client should try again. With a jitter of one second, so that clients
    /// do not return at the same time.
    pub retry_after_ms: u32,
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A jitter from the draw of the decision. Its low bits are used: the high ones are larger than
/// usual in a refusal.
pub(crate) fn jitter_ms(draw: u32) -> u32 {
    ((u64::from(draw & 0xffff) * WINDOW_MS) >> 16) as u32
}

impl Excess {
    /// The excess of a partition with a count of operations that is halved in each window.
    /// `elapsed_ms`: since the current window began.
    pub(crate) fn of_count(count: u64, limit: u32, elapsed_ms: u64, draw: u32) -> Excess {
        let elapsed_ms = elapsed_ms.min(WINDOW_MS);
        // At a steady rate the count grows from that rate to twice of it in each window.
        let rate = count.saturating_mul(WINDOW_MS).div_ceil(WINDOW_MS + elapsed_ms);
        let accepted = 2 * u64::from(limit);
        // Until the count is halved so far that it is always accepted with one more operation.
        let windows = if accepted == 0 { u64::from(u64::BITS) } else { halvings(count, accepted - 1) };
        let wait_ms = (windows.max(1) * WINDOW_MS).min(MAX_RETRY_AFTER_MS).saturating_sub(elapsed_ms);
        let retry_after_ms = wait_ms as u32 + jitter_ms(draw);
        Excess { limit, observed: saturated(rate), retry_after_ms }
    }

    /// The excess of a partition with a debt in units, of which each second pays off a budget.
    pub(crate) fn of_debt(units: u64, limit: u32, budget: u64, draw: u32) -> Excess {
        // Until the debt is less than a budget.
        let due = (units.saturating_sub(budget) + 1).saturating_mul(WINDOW_MS);
        let wait_ms = if budget == 0 { MAX_RETRY_AFTER_MS } else { due.div_ceil(budget).min(MAX_PAYING_MS) };
        Excess { limit, observed: saturated(debt::kib(units)), retry_after_ms: wait_ms as u32 + jitter_ms(draw) }
    }
}

/// How often a count is halved until it is at most `most`, which is not 0.
fn halvings(count: u64, most: u64) -> u64 {
    let mut halved = 0;
    while count >> halved > most {
        halved += 1;
    }
    halved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::debt::budget;

    #[test]
    fn the_rate_is_that_of_a_steady_load_at_any_time_of_the_window() {
        for elapsed in [0, 250, 500, 999] {
            let count = 8_000 + 8 * elapsed;
            let found = Excess::of_count(count, 100, elapsed, 7).observed;
            assert!((7_990..=8_010).contains(&found), "{found} after {elapsed} ms");
        }
        assert_eq!(Excess::of_count(u64::MAX >> 24, 1, 0, 0).observed, u32::MAX);
    }

    #[test]
    fn a_client_that_waits_finds_the_count_low_enough() {
        for (count, limit, elapsed, wait) in [
            (201u64, 100, 0, 1_000),
            (201, 100, 900, 100),
            (399, 100, 900, 100),
            (400, 100, 900, 1_100),
            (6_401, 100, 500, 5_500),
            (9, 0, 500, 59_500),
            (1 << 40, 1, 0, 40_000),
        ] {
            let found = Excess::of_count(count, limit, elapsed, 0).retry_after_ms;
            assert_eq!(found, wait, "{count} of {limit}");
            let late = Excess::of_count(count, limit, elapsed, u32::MAX).retry_after_ms;
            assert!(late > wait && late < wait + 1_000, "a jitter of less than a second");
        }
    }

    #[test]
    fn a_client_that_waits_finds_the_debt_paid() {
        for (kib, limit, wait) in [
            (100, 100, 1),
            (110, 100, 101),
            (200, 100, 1_001),
            (1 << 14, 100, 162_841),
            (1 << 20, 1, 3_600_000),
            (9, 0, 60_000),
        ] {
            let found = Excess::of_debt(budget(kib), limit, budget(limit), 0);
            assert_eq!(found, Excess { limit, observed: kib, retry_after_ms: wait });
        }
    }
}
