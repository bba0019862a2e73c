//! What a start finds in the directory of a table, so that other shards need not look again.

use super::ReplayFilters;
use model::key::DecoratedKey;
use rt::ShardId;
use sstable::{Sstable, SstablePath};
use std::rc::Rc;

/// What is known of a table's sstables when it is added, from [`Engine::reshard`]. Looking for them costs trips to the disk, and with many
/// tables most of them are another shard's.
pub(crate) struct Prepared {
    pub found: FoundSstables,
    /// Those that shard 0 has opened, for itself.
    pub open: Vec<Rc<Sstable>>,
}

impl Prepared {
    /// For adding the table; what was found stays, for other shards.
    pub fn take(&mut self) -> Prepared {
        Prepared { found: self.found.clone(), open: std::mem::take(&mut self.open) }
    }
}

/// What shard 0 found in a table's directory when what a crash interrupted there was finished. It holds until the first compaction.
#[derive(Clone, Debug, Default)]
pub struct FoundSstables {
    /// The sealed ones that are not void.
    pub(crate) places: Vec<SstablePath>,
    /// The first and last key of those that could be opened. They never change: files are written once.
    pub(crate) keys: Vec<SstableKeys>,
    pub(crate) filters: Vec<(ShardId, ReplayFilters)>,
}

/// The range that an sstable spans.
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
