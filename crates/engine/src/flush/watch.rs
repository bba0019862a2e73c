//! Starts flushes when memtables or the commitlog are full.
//!
//! Memory pressure flushes the tablet that frees most memory. A full log flushes the tablets that
//! hold its oldest segments.

use crate::commitlog::Position;
use crate::config::RETRY_AFTER;
use crate::engine::Engine;
use crate::table::{Table, Tablet};
use rt::time::Duration;
use std::rc::Rc;

impl Engine {
    /// Flushes whenever memtables exceed their threshold. Runs until the engine stops.
    pub(crate) async fn watch_memory(&self) {
        loop {
            self.pool().flush.notified().await;
            while self.pool().wants_flush() {
                let Some((table, tablet)) = self.largest_memtable() else {
                    // All of it is being flushed already.
                    rt::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                if self.flush_tablet(&table, &tablet).await.is_err() {
                    rt::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// The tablet whose flush frees most memory. Tablets whose flushes fail come last.
    fn largest_memtable(&self) -> Option<(Rc<Table>, Rc<Tablet>)> {
        let mut best = None;
        let mut best_rank = (std::cmp::Reverse(u32::MAX), 0);
        for table in self.all_tables() {
            for tablet in table.tablets().iter() {
                let rank = (std::cmp::Reverse(tablet.failed_flushes.get()), tablet.memtable_bytes());
                if rank.1 > 0 && (best.is_none() || rank > best_rank) {
                    best_rank = rank;
                    best = Some((table.clone(), tablet.clone()));
                }
            }
        }
        best
    }

    /// Flushes the tablets that hold the oldest segments, when the log is large. Runs until the
    /// engine stops.
    pub(crate) async fn watch_log(&self, every: Duration) {
        loop {
            // The log notifies when it begins a segment. The timeout catches segments that were
            // dirty then.
            let _ = rt::time::timeout(every, self.log().pressure()).await;
            while self.log().wants_flush() {
                let slots = self.log().oldest_dirty_slots();
                if slots.is_empty() {
                    break;
                }
                let dirty = slots.len();
                let slots = self.relog_small(slots).await;
                let mut flushed = slots.len() < dirty;
                for slot in slots {
                    match self.registry().tablet_of_slot(slot) {
                        Some((table, tablet)) => flushed |= self.flush_tablet(&table, &tablet).await.is_ok(),
                        // Its table was dropped meanwhile.
                        None => {
                            self.log().clean(slot, Position::MAX);
                            flushed = true;
                        }
                    }
                }
                if !flushed {
                    rt::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}
