//! Decides which tombstones a compaction may purge.
//!
//! A tombstone may be purged only if no memtable and no other sstable can hold older data for its
//! key. Memtables hold all data of the commitlog that is not in sstables. Other records of the
//! commitlog are never replayed, because the outputs keep the commitlog intervals of the inputs.
//! While data of a tablet is arriving from other nodes, nothing of it is purged.

use crate::table::{Attached, SstableSet, Table, Tablet};
use model::key::DecoratedKey;
use model::time::{Seconds, Timestamp};
use std::cell::RefCell;
use std::rc::Rc;

/// See the module. Uses the current state of the tablet at each call.
pub(crate) struct Purge<'a> {
    table: &'a Table,
    tablet: &'a Tablet,
    inputs: &'a [Rc<Attached>],
    outside: RefCell<Outside>,
}

/// The sstables outside the compaction, of one version of the tablet's set.
struct Outside {
    of: Rc<SstableSet>,
    sstables: Vec<Rc<Attached>>,
}

impl<'a> Purge<'a> {
    pub fn new(table: &'a Table, tablet: &'a Tablet, inputs: &'a [Rc<Attached>]) -> Self {
        let outside = RefCell::new(Outside::of(tablet.sstables(), inputs));
        Purge { table, tablet, inputs, outside }
    }

    /// Whether there may be data, here or on its way, that neither memtables nor sstables show.
    fn may_get_other_data(&self) -> bool {
        self.tablet.is_pending.get() || self.table.may_hold_other_data()
    }

    fn refresh(&self) {
        let now = self.tablet.sstables();
        if !Rc::ptr_eq(&self.outside.borrow().of, &now) {
            self.outside.replace(Outside::of(now, self.inputs));
        }
    }

    /// Tombstones of this key with a smaller timestamp than this cover nothing outside of the
    /// compaction.
    pub fn max_purgeable(&self, key: &DecoratedKey) -> Timestamp {
        if self.may_get_other_data() {
            return Timestamp::MIN;
        }
        self.refresh();
        let outside = self.outside.borrow();
        outside
            .sstables
            .iter()
            .filter(|own| own.may_contain(key))
            .map(|own| if own.corrupt.get() { Timestamp::MIN } else { own.sstable.stats().min_timestamp })
            .fold(self.tablet.min_timestamp_in_memtables(key), Timestamp::min)
    }

    /// The inputs that have only data past the grace period and cover nothing elsewhere. They need
    /// not be read.
    pub fn fully_expired(&self, gc_before: Seconds) -> Vec<Rc<Attached>> {
        if self.may_get_other_data() {
            return Vec::new();
        }
        self.refresh();
        let outside = self.outside.borrow();
        let (mut expired, kept): (Vec<_>, Vec<_>) =
            self.inputs.iter().cloned().partition(|own| own.sstable.stats().max_deletion_time < gc_before);
        expired.retain(|own| {
            let stats = own.sstable.stats();
            let (first, last) = (own.sstable.first_key(), own.sstable.last_key());
            let older_on_disk = outside.sstables.iter().chain(&kept).any(|other| {
                other.overlaps_with(own)
                    && (other.corrupt.get() || other.sstable.stats().min_timestamp <= stats.max_timestamp)
            });
            let mut older_in_memory = false;
            self.tablet.for_each_memtable(|memtable| {
                older_in_memory |=
                    memtable.min_timestamp_within(first, last).is_some_and(|least| least <= stats.max_timestamp);
            });
            !older_on_disk && !older_in_memory
        });
        expired
    }
}

impl Outside {
    fn of(set: Rc<SstableSet>, inputs: &[Rc<Attached>]) -> Self {
        let sstables = set.iter().filter(|own| !inputs.iter().any(|input| Rc::ptr_eq(own, input))).cloned().collect();
        Outside { of: set, sstables }
    }
}
