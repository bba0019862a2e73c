//! Whether a shard has idle time. Waits on a shard that has some are not due to its load:
//! statements wait for disks or other nodes.

use rt::time::{Duration, Instant};
use std::cell::Cell;

/// The least time between two samples.
const PERIOD: Duration = Duration::from_millis(100);
/// A shard is saturated if less than this fraction (one divided by the number) of the time was
/// idle. It includes system calls between turns.
const IDLE_PART: u32 = 4;

/// The values at the last sample.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    idle: Duration,
    is_saturated: bool,
}

/// The saturation of a shard. It is sampled only while requests wait for long.
#[derive(Default)]
pub(super) struct Saturation(Cell<Option<Sample>>);

impl Saturation {
    /// Whether the shard was saturated between the last two samples. False before the second one.
    pub fn sample(&self, now: Instant) -> bool {
        let last = self.0.get();
        let passed = last.map_or(Duration::MAX, |last| now.saturating_duration_since(last.at));
        match last {
            Some(last) if passed < PERIOD => last.is_saturated,
            _ => {
                let idle = rt::metrics::snapshot().idle;
                let is_saturated = last.is_some_and(|last| is_saturated(passed, idle.saturating_sub(last.idle)));
                self.0.set(Some(Sample { at: now, idle, is_saturated }));
                is_saturated
            }
        }
    }
}

fn is_saturated(passed: Duration, idle: Duration) -> bool {
    idle < passed / IDLE_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_saturated_while_it_has_no_idle_time() {
        rt::block_on(async {
            let saturation = Saturation::default();
            assert!(!saturation.sample(rt::time::now()), "nothing is known");
            rt::time::sleep(2 * PERIOD).await;
            assert!(!saturation.sample(rt::time::now()), "it slept");
            let end = rt::time::now() + 2 * PERIOD;
            while rt::time::now() < end {
                std::hint::spin_loop();
            }
            assert!(saturation.sample(rt::time::now()), "it was busy");
            assert!(saturation.sample(rt::time::now()), "it was so at the last sample");
            assert!(!is_saturated(PERIOD, PERIOD / 3) && is_saturated(PERIOD, PERIOD / 50));
        });
    }
}
