//! The share of the shard's time that maintenance requests while statements wait. It depends on the
//! compaction backlog, on how full the memtables are, and on whether tablets are streamed.
//!
//! The governor ([`rt::governor`]) grants this share, or less while statements exceed their latency
//! target. It always grants the share that the flush of full memtables needs. The backlog (bytes to
//! be written) is compared with the shard's memory. Without a backlog, compaction requests little.
//! With a backlog of many times the memory, it requests half of the time. A flush requests more the
//! fuller the memtables are, because writes wait for it. While no request waits, maintenance can
//! use the whole shard.

use crate::config::FLUSH_FROM;
use crate::engine::Engine;
use rt::task::Group;
use rt::time::Duration;

/// The smallest share, in 1/1000.
const MIN_SHARE: f64 = 50.0;
/// The largest share, in 1/1000.
const MAX_SHARE: f64 = 800.0;
/// Backlog in multiples of the shard's memory, and the share for it, in 1/1000.
const COMPACTION: [(f64, f64); 3] = [(0.0, 50.0), (1.5, 100.0), (30.0, 500.0)];
/// Fraction of the memtable budget in use, and the share for the flush, in 1/1000.
const FLUSH: [(f64, f64); 3] = [(0.0, 100.0), (FLUSH_FROM, 200.0), (0.95, 700.0)];
/// The share for streaming, in 1/1000.
const STREAMING: f64 = 150.0;
/// The share while none of these runs, in 1/1000.
const IDLE_SHARE: u32 = 200;
/// How often the share is updated while one runs.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// The share of maintenance. If a compaction runs, it depends on the backlog in multiples of
/// memory. If a flush runs, it depends on the used fraction of the memtable budget. It also depends
/// on whether tablets are streamed.
pub(super) fn permille(backlog: Option<f64>, memtables: Option<f64>, streams: bool) -> u32 {
    let compaction = backlog.map_or(0.0, |backlog| between(&COMPACTION, backlog));
    let flush = memtables.map_or(0.0, |fill| between(&FLUSH, fill));
    let streaming = if streams { STREAMING } else { 0.0 };
    (compaction + flush + streaming).clamp(MIN_SHARE, MAX_SHARE) as u32
}

/// The value at `x` by linear interpolation of `points`; outside of their range, the value of the
/// nearest point.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let above = points.partition_point(|(at, _)| *at <= x);
    match (above.checked_sub(1).and_then(|i| points.get(i)), points.get(above)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        (Some((_, y)), None) | (None, Some((_, y))) => *y,
        (None, None) => 0.0,
    }
}

impl Engine {
    /// Updates the share while flushes, compactions or streams run, until the engine stops.
    pub(crate) async fn share_loop(&self) {
        loop {
            self.compactions().share_wanted.notified().await;
            loop {
                let counters = self.counters();
                let (flushes, compactions) = (counters.flushes_running.get(), counters.compactions_running.get());
                let streams = counters.streams_running.get();
                if flushes + compactions + streams == 0 {
                    // Other maintenance, such as freeing memtables, is small.
                    rt::governor::demand(Group::Maintenance, IDLE_SHARE, 0);
                    break;
                }
                let backlog = self.compactions().backlog.get() / self.config().memory.max(1) as f64;
                let fill = self.pool().used() as f64 / self.config().memtable_budget().max(1) as f64;
                let share = permille((compactions > 0).then_some(backlog), (flushes > 0).then_some(fill), streams > 0);
                let full = (flushes > 0).then_some(fill).filter(|fill| *fill >= FLUSH_FROM);
                let granted = rt::governor::demand(Group::Maintenance, share, permille(None, full, false));
                self.compactions().share.set(granted);
                rt::time::sleep(UPDATE_INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_with_what_has_to_be_done() {
        assert_eq!(permille(None, None, false), 50);
        assert_eq!(permille(None, None, true), 150);
        assert_eq!(permille(Some(1.5), None, true), 250);
        assert_eq!(permille(Some(0.0), None, false), 50);
        assert_eq!(permille(Some(1.5), None, false), 100);
        assert_eq!(permille(Some(30.0), None, false), 500);
        assert_eq!(permille(Some(1e9), None, false), 500);
        assert_eq!(permille(None, Some(0.3), false), 150);
        assert_eq!(permille(None, Some(FLUSH_FROM), false), 200);
        assert_eq!(permille(None, Some(2.0), false), 700);
        assert_eq!(permille(Some(1e9), Some(2.0), false), 800);
        let mut before = 0;
        for i in 0..400 {
            let share = permille(Some(f64::from(i) / 10.0), Some(f64::from(i) / 400.0), false);
            assert!(share >= before);
            before = share;
        }
    }
}
