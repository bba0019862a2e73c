//! Reads a partition of one row from the sstables, yields it, and puts it into the row cache. If
//! the read is dropped, the fragments read so far stay here.

use super::source::SstableSource;
use crate::error::ReadError;
use crate::memtable::Stored;
use crate::table::{CachedTablet, Content, RowCache};
use model::fragment::Fragment;
use model::key::DecoratedKey;
use model::merge::{LargeRow, Merger, Step};
use model::row::{Row, State};
use model::schema::TableSchema;
use std::collections::VecDeque;
use std::rc::Rc;

/// See the module. It yields the entire partition at once.
pub(super) struct Filling {
    pub sstables: Vec<SstableSource>,
    pub schema: Rc<TableSchema>,
    pub key: DecoratedKey,
    pub cache: Rc<RowCache>,
    pub tablet: CachedTablet,
    /// Of the set of sstables.
    pub version: u64,
    /// Created on demand.
    pub merger: Option<Merger>,
    /// A large row that is being merged.
    pub large: Option<Box<LargeRow>>,
    /// The fragments read so far.
    pub fragments: VecDeque<Fragment>,
}

impl Filling {
    /// Yields the partition. Nothing comes after it.
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>) -> Result<(), ReadError> {
        debug_assert!(!self.sstables.is_empty(), "the cache is filled from sstables");
        match &mut self.sstables[..] {
            [one] => while one.fill(&mut self.fragments).await? {},
            several => {
                let merger = self
                    .merger
                    .get_or_insert_with(|| Merger::new(self.schema.clone(), self.schema.order.clone(), several.len()));
                loop {
                    if let Some(large) = &mut self.large {
                        match large.run(&self.schema) {
                            Some(fragment) => {
                                self.fragments.push_back(fragment);
                                self.large = None;
                            }
                            None => rt::task::maybe_yield().await,
                        }
                        continue;
                    }
                    match merger.step() {
                        Step::Emit(fragment) => self.fragments.push_back(fragment),
                        Step::Merge(large) => self.large = Some(large),
                        Step::Need(i) => {
                            if !several[i].fill(merger.buffer(i)).await? {
                                merger.finish(i);
                            }
                        }
                        Step::End => break,
                    }
                }
            }
        }
        if let Some((stored, bytes)) = Stored::of_fragments(&self.schema, &self.key.key, self.fragments.iter()) {
            let may_purge = self.fragments.iter().any(may_purge);
            self.cache.insert(self.tablet, self.key.token, self.version, Content { stored, bytes, may_purge });
        }
        out.append(&mut self.fragments);
        Ok(())
    }
}

/// Whether a compaction may purge some of it.
fn may_purge(fragment: &Fragment) -> bool {
    let of_row = |row: &Row| {
        let (marker, deletion, mut cells) = row.parts();
        marker.is_some_and(|marker| marker.ttl != 0)
            || !deletion.is_live()
            || cells.any(|cell| !matches!(cell.state, State::Live))
    };
    match fragment {
        Fragment::PartitionStart { tombstone, .. } => !tombstone.is_live(),
        Fragment::Static(row) | Fragment::Row { row, .. } => of_row(row),
        Fragment::Change { .. } => true,
        Fragment::PartitionEnd => false,
    }
}
