//! The contents of each source of a partition, unmerged, to examine the inputs of a read.
//!
//! It is for debugging, not for serving. Each fragment is passed to the caller when it is read, and
//! the caller decides how much to keep.

use super::ReadOptions;
use crate::config::FILL_BYTES;
use crate::engine::Engine;
use crate::error::{NoSuchTable, ReadError};
use crate::memtable::{MemtableSource, Slices};
use crate::table::{Attached, Tablet};
use model::TableId;
use model::fragment::Fragment;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use sstable::{Component, ReadId};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;

/// The source of a fragment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A memtable: 0 is the active one, higher ones wait to be flushed.
    Memtable(usize),
    /// The row cache.
    RowCache,
    /// An sstable, by its Data file.
    Sstable(PathBuf),
}

/// Takes a fragment with its source, and returns whether more are wanted.
pub type Take<'t> = &'t mut dyn FnMut(&Origin, &Fragment) -> ControlFlow<()>;

impl Engine {
    /// Hands the fragments of each source of a partition to `take`: memtables from the newest to
    /// the oldest, the row cache, sstables. Nothing if the key is not on this shard.
    pub async fn dump_sources(&self, table: TableId, key: &DecoratedKey, take: Take<'_>) -> Result<(), ReadError> {
        let table = self.table(table).ok_or(NoSuchTable(table))?;
        let Some(tablet) = table.tablet_of(key) else { return Ok(()) };
        let schema = table.schema();
        if dump_memory(&tablet, &schema, key, take).is_break() {
            return Ok(());
        }
        for attached in tablet.sstables().iter() {
            if !attached.spans(key) || !attached.may_contain(key) {
                continue;
            }
            if dump_sstable(attached, &schema, key, take).await?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Up to `most` keys of a range on this shard in ring order, including deleted partitions.
    pub async fn keys(
        &self,
        table: TableId,
        range: PartitionRange,
        most: usize,
    ) -> Result<Vec<DecoratedKey>, ReadError> {
        let options = ReadOptions { fill_cache: false, ..ReadOptions::default() };
        let mut reader = self.reader(table, range, Rc::new(Slice::full()), options)?;
        let mut keys = Vec::new();
        while keys.len() < most {
            match reader.pop() {
                Some(Fragment::PartitionStart { key, .. }) => {
                    keys.push(key);
                    reader.skip_partition();
                }
                Some(_) => {}
                None => {
                    rt::task::maybe_yield().await;
                    if !reader.advance().await? {
                        break;
                    }
                }
            }
        }
        Ok(keys)
    }
}

fn dump_memory(tablet: &Tablet, schema: &Rc<TableSchema>, key: &DecoratedKey, take: Take<'_>) -> ControlFlow<()> {
    let slices = Slices::new(schema, Rc::new(Slice::full()));
    let mut sources = Vec::new();
    tablet.for_each_memtable(|memtable| {
        let number = sources.len();
        let source = MemtableSource::of_key(memtable, schema, &slices, key);
        sources.push((Origin::Memtable(number), source));
    });
    let (rows, cached) = tablet.cached();
    if schema.clustering.is_empty()
        && let Some(stored) = rows.get(cached, key, &tablet.sstables())
    {
        let source = MemtableSource::of_stored(&stored, schema, &slices, key);
        sources.push((Origin::RowCache, Some(source)));
    }
    for (origin, source) in sources {
        let Some(mut source) = source else { continue };
        let mut fragments = VecDeque::new();
        loop {
            let more = source.fill(&mut fragments, FILL_BYTES);
            for fragment in fragments.drain(..) {
                take(&origin, &fragment)?;
            }
            if !more {
                break;
            }
        }
    }
    ControlFlow::Continue(())
}

async fn dump_sstable(
    attached: &Rc<Attached>,
    schema: &Rc<TableSchema>,
    key: &DecoratedKey,
    take: Take<'_>,
) -> Result<ControlFlow<()>, ReadError> {
    let origin = Origin::Sstable(attached.sstable.place().path(Component::Data));
    let options = sstable::ReadOptions {
        class: rt::fs::IoClass::Foreground,
        fill_cache: false,
        use_cache: true,
        read_ahead: false,
        window: sstable::LARGEST_WINDOW,
        read: ReadId::NONE,
        job: ReadId::NONE,
    };
    let slice = Rc::new(Slice::full());
    let mut reader = attached.sstable.reader(schema, PartitionRange::singular(key), slice, options);
    let mut fragments = VecDeque::new();
    loop {
        let more = reader.fill(&mut fragments).await.inspect_err(|error| attached.note_error(error))?;
        for fragment in fragments.drain(..) {
            if take(&origin, &fragment).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if !more {
            return Ok(ControlFlow::Continue(()));
        }
        rt::task::maybe_yield().await;
    }
}
