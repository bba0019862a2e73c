//! Preparing a table's directory at start-up, on one shard and before any shard adds the table.
//!
//! Finishes what a crash interrupted and removes what was never sealed or is void (shard 0 does so for every table that it adds
//! before [`Engine::start`]); splits sstables that span tablets (put there by hand, or written when the tablets were others), so
//! that each belongs to one tablet and so to one shard.

use crate::deletion_log;
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::flush::Output;
use crate::marks::Marks;
use crate::open::{is_void, names_in, remove_all, sealed_places};
use crate::sstable_set::Attached;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::fs::IoClass;
use sstable::{Place, Sstable};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// See the module. `tablets` are all of the table's tablets on this node, of every shard.
    pub async fn reshard(&self, schema: Rc<TableSchema>, tablets: &[TabletRange]) -> Result<(), EngineError> {
        let dir = self.table_dir(&schema);
        for place in self.finish_interrupted(&dir).await? {
            match Sstable::open_at(&place, self.cache()).await {
                Ok(sstable) => {
                    let whole = PartitionRange {
                        start: model::key::RingCut::before_key(sstable.first_key()),
                        end: model::key::RingCut::after_key(sstable.last_key()),
                    };
                    let pieces: Vec<_> =
                        tablets.iter().filter_map(|tablet| tablet.range.intersection(&whole)).collect();
                    if pieces.len() > 1 || (pieces.len() == 1 && pieces[0] != whole) {
                        self.split(&schema, &dir, &place, sstable, pieces).await?;
                    }
                }
                Err(error @ sstable::Error::Io(_)) => return Err(error.into()),
                // Whoever adds the table reports it.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Finishes what the last run left undone in a table's directory; gives the sstables that are left. Only one shard may do
    /// this, and only while no other uses the directory.
    pub(crate) async fn finish_interrupted(&self, dir: &Path) -> Result<Vec<Place>, EngineError> {
        if names_in(dir).await?.is_empty() {
            return Ok(Vec::new());
        }
        // A killed process may leave names that were never synced. Replay skips what a sealed sstable covers, so its name must not
        // go with the power after the log was retired.
        rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        let finished = deletion_log::finish_pending(dir).await?;
        if !finished.deleted.is_empty() || !finished.orphans.is_empty() {
            tracing::info!(dir = %dir.display(), removed = finished.deleted.len(), unsealed = finished.orphans.len(),
                "finished what the last run left undone");
        }
        let names = names_in(dir).await?;
        let marks = Marks::read_all(dir, &names).await?;
        let (void, sound): (Vec<_>, Vec<_>) =
            sealed_places(dir, &names).into_iter().partition(|place| is_void(&marks, place));
        if !void.is_empty() {
            remove_all(dir, &void).await?;
        }
        Ok(sound)
    }

    /// Rewrites an sstable as one per piece.
    async fn split(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        place: &Place,
        sstable: Rc<Sstable>,
        pieces: Vec<PartitionRange>,
    ) -> Result<(), EngineError> {
        tracing::info!(generation = %place.generation, table = %schema.name, pieces = pieces.len(), "splitting an sstable by tablet");
        let attached = Attached::open(sstable, self.config().host_id);
        let options =
            sstable::ReadOptions { class: IoClass::Background, fill_cache: false, use_cache: true, read_ahead: true };
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
        remove_all(dir, std::slice::from_ref(place)).await
    }
}
