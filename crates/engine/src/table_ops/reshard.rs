//! Preparing a table's directory at startup, on one shard and before any shard adds the table.
//!
//! This finishes interrupted operations and removes sstables that were never sealed or were
//! truncated. (Shard 0 does that for every table that it adds before [`Engine::start`].) Sstables
//! that span tablets are split, so that each belongs to one tablet and one shard. Such sstables
//! were put there by an operator, or written when the tablets were different. Open sstables are
//! kept for [`Engine::add_table`].

use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::flush::Output;
use crate::table::Attached;
use crate::table_dir::{
    CleanDirectory, FoundSstables, Prepared, SstableKeys, finish_interrupted, names_in, sealed_places,
};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use sstable::{Sstable, SstablePath};
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// See the module. `tablets` are all tablets of the table, `own` the numbers of those on this
    /// node, of every shard.
    pub async fn reshard(
        &self,
        schema: Rc<TableSchema>,
        tablets: &[TabletRange],
        own: &BTreeSet<u32>,
    ) -> Result<(), EngineError> {
        let dir = self.table_dir(&schema);
        let mut clean = finish_interrupted(&dir, self.config()).await?;
        let (mut places, mut keys, mut open, mut is_split) = (clean.places.clone(), Vec::new(), Vec::new(), false);
        for place in &places {
            match Sstable::open_at(place, self.cache()).await {
                Ok(sstable) => {
                    let whole = PartitionRange {
                        start: model::key::RingCut::before_key(sstable.first_key()),
                        end: model::key::RingCut::after_key(sstable.last_key()),
                    };
                    let pieces: Vec<_> =
                        tablets.iter().filter_map(|tablet| tablet.range.intersection(&whole)).collect();
                    if pieces.len() > 1 || (pieces.len() == 1 && pieces[0] != whole) {
                        self.split(&schema, &dir, place, sstable, pieces).await?;
                        clean.remove(&dir, self.config(), std::slice::from_ref(place)).await?;
                        is_split = true;
                    } else {
                        keys.push(SstableKeys::of(&sstable));
                        open.push(sstable);
                    }
                }
                Err(error) if error.is_of_process() => return Err(error.into()),
                // [`Engine::add_table`] reports it.
                Err(_) => {}
            }
        }
        if is_split {
            places = sealed_places(&dir, &names_in(&dir).await?);
        }
        let is_own = |sstable: &SstableKeys| {
            let mut holders = tablets.iter().filter(|tablet| tablet.range.contains(&sstable.first));
            holders.any(|tablet| own.contains(&tablet.id))
        };
        let foreign = keys.iter().filter(|sstable| !is_own(sstable)).cloned().collect();
        let CleanDirectory { incomplete, missing, filters, lists, .. } = clean;
        let found = FoundSstables { places, incomplete, missing, keys, foreign, filters, lists };
        self.prepared().borrow_mut().insert(schema.id, Prepared { found, open });
        Ok(())
    }

    /// Writes an sstable again as one per piece. The caller removes it.
    async fn split(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        place: &SstablePath,
        sstable: Rc<Sstable>,
        pieces: Vec<PartitionRange>,
    ) -> Result<(), EngineError> {
        tracing::info!(
            generation = %place.generation, keyspace = schema.keyspace, table = schema.name, pieces = pieces.len(),
            "splitting an sstable by tablet"
        );
        let attached = Attached::open(sstable, self.config().host_id);
        let options = sstable::ReadOptions::BACKGROUND;
        for piece in pieces {
            let mut reader = attached.sstable.reader(schema, piece, Rc::new(Slice::full()), options);
            let mut output = Output::create(dir, schema.clone(), self.writer_options(schema)).await?;
            let mut buffer = VecDeque::new();
            loop {
                let more = reader.fill(&mut buffer).await?;
                output.write(&mut buffer).await?;
                if !more {
                    break;
                }
                rt::task::maybe_yield().await;
            }
            output.seal(&attached.intervals, self).await?;
        }
        Ok(())
    }
}
