//! Which part of the shard's time maintenance asks for while statements wait: what compaction's backlog and the memtables need.
//!
//! The governor ([`rt::governor`]) grants it, or less while statements are slower than their target; what the flush of full memtables needs it
//! always grants. Compaction's backlog (bytes still to be written) is held against the shard's memory: with none it gets little, with as much
//! as memory holds several times over it gets half. Flushes get more the fuller the memtables are, for writes wait for them. While no
//! request waits, maintenance has the shard to itself, whatever the share.

use crate::config::FLUSH_FROM;
use crate::engine::Engine;
use rt::task::Group;
use rt::time::Duration;

/// The least share, in 1/1000.
const LEAST: f64 = 50.0;
/// The greatest.
const MOST: f64 = 800.0;
/// Backlog in multiples of the shard's memory, and compaction's part of the time for it, in 1/1000.
const COMPACTION: [(f64, f64); 3] = [(0.0, 50.0), (1.5, 100.0), (30.0, 500.0)];
/// Memtables' part of their budget, and flushing's part of the time for it, in 1/1000.
const FLUSH: [(f64, f64); 3] = [(0.0, 100.0), (FLUSH_FROM, 200.0), (0.95, 700.0)];
/// The share while neither flushes nor compactions run, in 1/1000.
const RESTING: u32 = 200;
/// How often the share is looked at while anything runs.
const EVERY: Duration = Duration::from_millis(100);

/// The share for a backlog, in multiples of memory, if compaction runs, and for memtables' fill, if a flush runs.
pub(super) fn permille(backlog: Option<f64>, memtables: Option<f64>) -> u32 {
    let compaction = backlog.map_or(0.0, |backlog| between(&COMPACTION, backlog));
    let flush = memtables.map_or(0.0, |fill| between(&FLUSH, fill));
    (compaction + flush).clamp(LEAST, MOST) as u32
}

/// The value at `x` on the line through `points`; beyond them that of the nearest.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let above = points.partition_point(|(at, _)| *at <= x);
    match (above.checked_sub(1).and_then(|i| points.get(i)), points.get(above)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        (Some((_, y)), None) | (None, Some((_, y))) => *y,
        (None, None) => 0.0,
    }
}

impl Engine {
    /// Sets the share as long as flushes or compactions run. Runs for the engine's life.
    pub(crate) async fn share_loop(&self) {
        loop {
            self.compactions().share_wanted.notified().await;
            loop {
                let counters = self.counters();
                let (flushes, compactions) = (counters.flushes_running.get(), counters.compactions_running.get());
                if flushes + compactions == 0 {
                    // What else there is, such as the freeing of memtables, is small.
                    rt::governor::demand(Group::Maintenance, RESTING, 0);
                    break;
                }
                let backlog = self.compactions().backlog.get() / self.config().memory.max(1) as f64;
                let fill = self.pool().used() as f64 / self.config().memtable_budget().max(1) as f64;
                let share = permille((compactions > 0).then_some(backlog), (flushes > 0).then_some(fill));
                let full = (flushes > 0).then_some(fill).filter(|fill| *fill >= FLUSH_FROM);
                let granted = rt::governor::demand(Group::Maintenance, share, permille(None, full));
                self.compactions().share.set(granted);
                rt::time::sleep(EVERY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_with_what_has_to_be_done() {
        assert_eq!(permille(None, None), 50);
        assert_eq!(permille(Some(0.0), None), 50);
        assert_eq!(permille(Some(1.5), None), 100);
        assert_eq!(permille(Some(30.0), None), 500);
        assert_eq!(permille(Some(1e9), None), 500);
        assert_eq!(permille(None, Some(0.3)), 150);
        assert_eq!(permille(None, Some(FLUSH_FROM)), 200);
        assert_eq!(permille(None, Some(2.0)), 700);
        assert_eq!(permille(Some(1e9), Some(2.0)), 800);
        let mut before = 0;
        for i in 0..400 {
            let share = permille(Some(f64::from(i) / 10.0), Some(f64::from(i) / 400.0));
            assert!(share >= before);
            before = share;
        }
    }
}
