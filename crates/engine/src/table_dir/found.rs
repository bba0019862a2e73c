//! The files that shard 0 finds in the directory of a table at startup, so that other shards need
//! not list it again.

use super::{ReplayFilters, SstableLists};
use crate::deletion_log::Incomplete;
use model::key::DecoratedKey;
use rt::ShardId;
use sstable::{Sstable, SstablePath};
use std::rc::Rc;

/// The files that [`crate::Engine::reshard`] found in a table's directory. It saves disk accesses
/// when the table is added: with many tables most sstables belong to other shards.
pub(crate) struct Prepared {
    pub found: FoundSstables,
    /// The sstables that shard 0 has opened, for itself.
    pub open: Vec<Rc<Sstable>>,
}

impl Prepared {
    /// Takes the open sstables. The rest stays, for other shards.
    pub fn take(&mut self) -> Prepared {
        Prepared { found: self.found.clone(), open: std::mem::take(&mut self.open) }
    }
}

/// The files that shard 0 found in a table's directory after interrupted operations were finished.
/// The list is valid until the first compaction.
#[derive(Clone, Debug, Default)]
pub struct FoundSstables {
    /// The sealed sstables that were not truncated.
    pub(crate) places: Vec<SstablePath>,
    /// Sealed sstables without a table of contents: the table cannot be read.
    pub(crate) incomplete: Vec<Incomplete>,
    /// Listed sstables of which no file is left.
    pub(crate) missing: Vec<SstablePath>,
    /// The first and last key of each sstable that could be opened. They never change, because
    /// files are written once.
    pub(crate) keys: Vec<SstableKeys>,
    /// The sstables that lie outside of all tablets of this node: what interrupted removals of
    /// tablets have left. They are removed when such a tablet returns.
    pub(crate) foreign: Vec<SstableKeys>,
    pub(crate) filters: Vec<(ShardId, ReplayFilters)>,
    /// The lists on disk.
    pub(crate) lists: SstableLists,
}

/// The first and last key of an sstable.
#[derive(Clone, Debug)]
pub struct SstableKeys {
    pub(crate) place: SstablePath,
    pub(crate) first: DecoratedKey,
    pub(crate) last: DecoratedKey,
}

impl SstableKeys {
    pub(crate) fn of(sstable: &Sstable) -> Self {
        let (first, last) = (sstable.first_key().clone(), sstable.last_key().clone());
        SstableKeys { place: sstable.place().clone(), first, last }
    }
}
