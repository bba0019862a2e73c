//! Which segments are live, and which memtables keep them alive. Pure.
//!
//! The ledger has, for each segment, the last record of every memtable (slot) that wrote to it. A
//! flush makes a slot's records up to a position durable. A sealed segment that no slot needs is
//! free.

use super::position::{Position, SlotId};
use rt::hash::HashMap;
use std::collections::VecDeque;

/// The live segments of an open log, oldest first.
#[derive(Default)]
pub(super) struct Ledger {
    segments: VecDeque<Segment>,
}

struct Segment {
    id: u64,
    /// No record will be added, and all are in the file.
    complete: bool,
    /// The offset of each slot's last record.
    last: HashMap<SlotId, u32>,
}

impl Ledger {
    /// Adds the segment that is written to from now on.
    pub fn begin(&mut self, id: u64) {
        assert!(self.segments.back().is_none_or(|last| last.id < id), "segment ids grow");
        self.segments.push_back(Segment { id, complete: false, last: HashMap::default() });
    }

    /// A record of `slot` was appended to the newest segment.
    #[inline]
    pub fn dirty(&mut self, slot: SlotId, offset: u32) {
        let Some(segment) = self.segments.back_mut() else { panic!("a record belongs to a segment") };
        let before = segment.last.insert(slot, offset);
        debug_assert!(before.is_none_or(|before| before <= offset), "the records of a slot are appended in order");
        debug_assert!(!segment.complete, "no record follows in a complete segment");
    }

    /// All records of `slot` up to and including `upto` are durable elsewhere.
    pub fn clean(&mut self, slot: SlotId, upto: Position) {
        for segment in &mut self.segments {
            if segment.id > upto.segment {
                break;
            }
            let safe = segment.id < upto.segment || segment.last.get(&slot).is_some_and(|last| *last <= upto.offset);
            if safe {
                segment.last.remove(&slot);
            }
        }
    }

    /// All records of segment `id` are in its file.
    pub fn complete(&mut self, id: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.id == id) {
            debug_assert!(!segment.complete, "a segment is completed once");
            segment.complete = true;
        }
    }

    /// Removes the complete segments that no slot needs.
    pub fn take_free(&mut self) -> Vec<u64> {
        let mut free = Vec::new();
        self.segments.retain(|segment| {
            let gone = segment.complete && segment.last.is_empty();
            if gone {
                free.push(segment.id);
            }
            !gone
        });
        free
    }

    /// Whether there is something for [`Ledger::take_free`].
    pub fn has_free(&self) -> bool {
        self.segments.iter().any(|segment| segment.complete && segment.last.is_empty())
    }

    /// The ids of all live segments, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.segments.iter().map(|segment| segment.id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// The slots that keep the oldest segment alive, except for the active segment; sorted.
    pub fn oldest_dirty(&self) -> Vec<SlotId> {
        let older = self.segments.len().saturating_sub(1);
        let oldest = self.segments.iter().take(older).find(|segment| !segment.last.is_empty());
        let mut slots: Vec<SlotId> = oldest.map(|segment| segment.last.keys().copied().collect()).unwrap_or_default();
        slots.sort();
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_segment_is_free_when_complete_and_clean() {
        let (a, b) = (SlotId(1), SlotId(2));
        let mut ledger = Ledger::default();
        ledger.begin(10);
        ledger.dirty(a, 64);
        ledger.dirty(b, 100);
        ledger.clean(a, Position { segment: 10, offset: 64 });
        assert!(ledger.take_free().is_empty());
        ledger.begin(11);
        ledger.dirty(a, 64);
        assert_eq!(ledger.oldest_dirty(), [b]);
        ledger.clean(b, Position { segment: 10, offset: 99 });
        assert_eq!(ledger.oldest_dirty(), [b]);
        ledger.clean(b, Position { segment: 10, offset: 100 });
        assert!(ledger.take_free().is_empty(), "its last record may not be in the file yet");
        ledger.complete(10);
        assert!(ledger.has_free());
        assert_eq!(ledger.take_free(), [10]);
        assert_eq!(ledger.ids().collect::<Vec<_>>(), [11]);
        assert_eq!(ledger.oldest_dirty(), [], "the segment in use does not count");
    }

    proptest! {
        /// Against a list of all records.
        #[test]
        fn no_segment_with_an_unsafe_record_is_freed(steps in prop::collection::vec((0u32..6, 0u32..4), 1..200)) {
            let mut ledger = Ledger::default();
            let mut unsafe_records: BTreeMap<Position, SlotId> = BTreeMap::new();
            let (mut segment, mut offset) = (1u64, 64u32);
            let mut live = vec![1u64];
            ledger.begin(1);
            for (action, slot) in steps {
                let slot = SlotId(slot);
                match action {
                    0 => {
                        ledger.complete(segment);
                        segment += 1;
                        offset = 64;
                        ledger.begin(segment);
                        live.push(segment);
                    }
                    1 => {
                        let upto = Position { segment: segment - u64::from(offset % 2), offset: offset / 2 };
                        ledger.clean(slot, upto);
                        unsafe_records.retain(|position, owner| *owner != slot || *position > upto);
                    }
                    _ => {
                        ledger.dirty(slot, offset);
                        unsafe_records.insert(Position { segment, offset }, slot);
                        offset += 8;
                    }
                }
                let free = ledger.take_free();
                for id in &free {
                    prop_assert!(!unsafe_records.keys().any(|position| position.segment == *id));
                }
                live.retain(|id| !free.contains(id));
                prop_assert_eq!(ledger.ids().collect::<Vec<_>>(), live.clone());
                for id in &live {
                    let needed = unsafe_records.keys().any(|position| position.segment == *id);
                    prop_assert!(needed || *id == segment, "segment {} is kept for nothing", id);
                }
            }
        }
    }
}
