//! Starts flushes when memtables or the commitlog are full.
//!
//! Full memtables flush the tablet that frees most memory. Much resident memory flushes the
//! memtables that exist, the oldest first ([`Engine::flush_existing_memtables`]). A full log
//! flushes the tablets that hold its oldest segments.

use crate::commitlog::Position;
use crate::config::RETRY_AFTER;
use crate::engine::Engine;
use crate::metrics::add;
use crate::table::{Table, Tablet};
use rt::time::Duration;
use std::rc::Rc;

impl Engine {
    /// Starts to flush all memtables that exist now, the oldest first. Rows of old memtables keep
    /// memory resident that was freed beside them.
    pub fn flush_existing_memtables(&self) {
        self.pool().request_flush(Some(self.log().position()));
    }

    /// Flushes whenever memtables exceed their threshold, or are to be flushed for their age. Runs
    /// until the engine stops.
    pub(crate) async fn watch_memory(&self) {
        loop {
            self.pool().flush.notified().await;
            // In turn: old memtables are flushed also while memtables are full all the time.
            while self.flush_largest().await | self.flush_oldest().await {}
        }
    }

    /// If memtables exceed their threshold, flushes the one that frees most memory.
    async fn flush_largest(&self) -> bool {
        let wanted = self.pool().wants_flush();
        if wanted {
            match self.largest_memtable() {
                Some((table, tablet)) => {
                    if self.flush_tablet(&table, &tablet).await.is_err() {
                        rt::time::sleep(RETRY_AFTER).await;
                    }
                }
                // All of it is being flushed already.
                None => rt::time::sleep(Duration::from_millis(1)).await,
            }
        }
        wanted
    }

    /// If memtables are to be flushed for their age, flushes the oldest one.
    async fn flush_oldest(&self) -> bool {
        let Some(before) = self.pool().flush_before() else { return false };
        let flushed = match self.oldest_memtable(before) {
            Some((table, tablet)) => self.flush_tablet(&table, &tablet).await.is_ok(),
            None => false,
        };
        if flushed {
            add(&self.counters().flushed_for_memory, 1);
        } else {
            self.pool().request_flush(None);
        }
        flushed
    }

    /// The tablet with the oldest memtable, unless it began at or after a position of the log.
    fn oldest_memtable(&self, before: Position) -> Option<(Rc<Table>, Rc<Tablet>)> {
        let mut oldest: Option<(Position, Rc<Table>, Rc<Tablet>)> = None;
        for table in self.all_tables() {
            for tablet in table.tablets().iter() {
                if let Some(first) = tablet.first_unflushed().filter(|first| *first < before)
                    && oldest.as_ref().is_none_or(|(least, ..)| first < *least)
                {
                    oldest = Some((first, table.clone(), tablet.clone()));
                }
            }
        }
        oldest.map(|(_, table, tablet)| (table, tablet))
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
