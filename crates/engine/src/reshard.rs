//! Preparing a table's directory at start-up, on one shard and before any shard adds the table.
//!
//! Finishes what a crash interrupted and removes what was never sealed or is void (shard 0 does so for every table that it adds
//! before [`Engine::start`]); splits sstables that span tablets (put there by hand, or written when the tablets were others), so
//! that each belongs to one tablet and so to one shard. What was opened for that is kept for [`Engine::add_table`].

use crate::deletion_log::{self, Finished};
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::flush::Output;
use crate::marks::Marks;
use crate::open::{FoundSstables, Prepared, SstableKeys, foreign_files, is_void, names_in, remove_all, sealed_places};
use crate::sstable_set::Attached;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::ShardId;
use sstable::{Sstable, SstablePath};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

/// A table's directory when nothing is left undone in it.
#[derive(Default)]
pub(crate) struct Undisturbed {
    /// The sealed sstables that are not void.
    pub places: Vec<SstablePath>,
    /// By the shard that wrote them.
    pub marks: Vec<(ShardId, Marks)>,
}

impl Engine {
    /// See the module. `tablets` are all of the table's tablets on this node, of every shard.
    pub async fn reshard(&self, schema: Rc<TableSchema>, tablets: &[TabletRange]) -> Result<(), EngineError> {
        let dir = self.table_dir(&schema);
        let finished = self.finish_interrupted(&dir).await?;
        let (mut places, mut keys, mut open, mut is_split) = (finished.places, Vec::new(), Vec::new(), false);
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
                        is_split = true;
                    } else {
                        keys.push(SstableKeys::of(&sstable));
                        open.push(sstable);
                    }
                }
                Err(error) if error.is_of_process() => return Err(error.into()),
                // Whoever adds the table reports it.
                Err(_) => {}
            }
        }
        if is_split {
            places = sealed_places(&dir, &names_in(&dir).await?);
        }
        let found = FoundSstables { places, keys, marks: finished.marks };
        self.prepared().borrow_mut().insert(schema.id, Prepared { found, open });
        Ok(())
    }

    /// Finishes what the last run left undone in a table's directory, and says which files there nobody can read. Only one shard may
    /// do this, and only while no other uses the directory.
    pub(crate) async fn finish_interrupted(&self, dir: &Path) -> Result<Undisturbed, EngineError> {
        let mut names = names_in(dir).await?;
        if names.is_empty() {
            return Ok(Undisturbed::default());
        }
        for (format, files) in foreign_files(&names) {
            tracing::warn!(dir = %dir.display(), files = files.len(), first = files[0], format,
                "files of a format that cannot be read lie in a table's directory: what they hold is not served");
        }
        // A killed process may leave names that were never synced. Replay skips what a sealed sstable covers, so its name must not
        // go with the power after the log was retired.
        rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        let finished = deletion_log::finish_pending(dir).await?;
        if !finished.deleted.is_empty() || !finished.orphans.is_empty() {
            tracing::info!(dir = %dir.display(), removed = finished.deleted.len(), unsealed = finished.orphans.len(),
                "finished what the last run left undone");
        }
        for generation in &finished.rebuilt {
            tracing::warn!(dir = %dir.display(), generation,
                "TOC.txt of an sstable was missing: rebuilt from Checksums.db, no data is lost");
        }
        for file in &finished.quarantined {
            tracing::warn!(file = %file.display(),
                "file of an sstable without TOC.txt and without a mark of being unfinished: moved to quarantine, its rows are not served");
        }
        if finished != Finished::default() {
            names = names_in(dir).await?;
        }
        let marks = Marks::read_all(dir, &names, self.config().host_id).await?;
        let (void, sound): (Vec<_>, Vec<_>) =
            sealed_places(dir, &names).into_iter().partition(|place| is_void(&marks, place));
        if !void.is_empty() {
            remove_all(dir, &void).await?;
        }
        Ok(Undisturbed { places: sound, marks })
    }

    /// Rewrites an sstable as one per piece.
    async fn split(
        &self,
        schema: &Rc<TableSchema>,
        dir: &Path,
        place: &SstablePath,
        sstable: Rc<Sstable>,
        pieces: Vec<PartitionRange>,
    ) -> Result<(), EngineError> {
        tracing::info!(generation = %place.generation, table = %schema.name, pieces = pieces.len(), "splitting an sstable by tablet");
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
        remove_all(dir, std::slice::from_ref(place)).await
    }
}
