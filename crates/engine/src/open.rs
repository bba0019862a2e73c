//! Opening the sstables of a table's directory, and sorting them by tablet.
//!
//! A file that cannot be opened is reported and left alone, not deleted. Nobody knows which keys it held, so reads of its table
//! fail: without it they would miss rows, and find deleted ones. Nor does compaction purge anything of the table.

use crate::deletion_log::{self, Replacement};
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::marks::Marks;
use crate::memtable::Interval;
use crate::sstable_set::{Attached, SstableSet};
use crate::table::Table;
use model::key::DecoratedKey;
use model::schema::TableSchema;
use rt::ShardId;
use sstable::{Component, Corrupt, Place, Sstable, Version, WriterOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What a table's directory holds for this shard.
pub(crate) struct Opened {
    /// One set per tablet, in the order of the tablets that were asked for.
    pub sets: Vec<SstableSet>,
    pub unreadable: Vec<PathBuf>,
    /// Why the first of these cannot be read.
    pub missing: Option<Corrupt>,
    /// By the shard that wrote them.
    pub marks: Vec<(ShardId, Marks)>,
}

impl Engine {
    /// Opens what belongs to these tablets.
    pub(crate) async fn open_sstables(&self, dir: &Path, tablets: &[TabletRange]) -> Result<Opened, EngineError> {
        let names = names_in(dir).await?;
        let marks = Marks::read_all(dir, &names).await?;
        let sets = vec![SstableSet::default(); tablets.len()];
        let mut opened = Opened { sets, unreadable: Vec::new(), missing: None, marks };
        for place in sealed_places(dir, &names) {
            if is_void(&opened.marks, &place) {
                continue;
            }
            let sstable = match Sstable::open_at(&place, self.cache()).await {
                Ok(sstable) => sstable,
                // Another shard's compaction, or drop, has just removed it.
                Err(sstable::Error::Io(error))
                    if error.kind() == io::ErrorKind::NotFound && !is_sealed(&place).await =>
                {
                    continue;
                }
                Err(error @ sstable::Error::Io(_)) => return Err(error.into()),
                Err(error) => {
                    tracing::error!(generation = %place.generation, dir = %dir.display(), %error,
                        "an sstable cannot be opened: its table cannot be read until it is repaired or moved away");
                    let file = place.path(Component::Data);
                    opened.unreadable.push(file.clone());
                    let why =
                        format!("its table cannot be read without it, and it could not be opened at start: {error}");
                    opened.missing.get_or_insert(Corrupt { file, offset: 0, why });
                    continue;
                }
            };
            let Some(i) = owner(tablets, sstable.first_key(), sstable.last_key())
                .map_err(|()| EngineError::SpansTablets(place.path(Component::Data)))?
            else {
                continue;
            };
            self.saw_timestamp(sstable.stats().max_timestamp);
            let attached = Attached::open(sstable, self.config().host_id);
            opened.sets[i] = opened.sets[i].replace(&[], [attached]);
        }
        Ok(opened)
    }

    /// Makes sure, once per run and before anything is put into it, that a table's directory is there and would be after a power
    /// loss.
    pub(crate) async fn make_directory(&self, table: &Table) -> Result<(), EngineError> {
        if table.has_directory.get() {
            return Ok(());
        }
        let dir = &table.dir;
        rt::fs::create_dir_all(dir).await.map_err(EngineError::io(dir))?;
        let above = dir.ancestors().skip(1).take_while(|above| above.starts_with(&self.config().data_dir));
        for above in above {
            rt::fs::sync_dir(above).await.map_err(EngineError::io(above))?;
        }
        table.has_directory.set(true);
        Ok(())
    }

    /// How sstables of a table are written.
    pub(crate) fn writer_options(&self, schema: &TableSchema) -> WriterOptions {
        WriterOptions {
            compression: crate::flush::compression_of(&schema.options.compression),
            bloom_fp_chance: schema.options.bloom_filter_fp_chance,
            min_index_interval: schema.options.min_index_interval.max(1) as u32,
            ..WriterOptions::new(self.config().host_id)
        }
    }

    /// Removes the files of sstables that are no longer in any set, all of them or, after a crash, none or all.
    pub(crate) async fn delete_files(&self, table: &Table, sstables: &[Rc<Attached>]) -> Result<(), EngineError> {
        if sstables.is_empty() {
            return Ok(());
        }
        let places: Vec<_> = sstables.iter().map(|own| own.sstable.place().clone()).collect();
        remove_all(&table.dir, &places).await
    }
}

/// The tablet that holds both keys; `None` if the keys lie outside of all; an error if they lie in more than one place.
fn owner(tablets: &[TabletRange], first: &DecoratedKey, last: &DecoratedKey) -> Result<Option<usize>, ()> {
    let holds = |key| tablets.iter().position(|tablet| tablet.range.contains(key));
    let (a, b) = (holds(first), holds(last));
    let within = |tablet: &TabletRange| {
        tablet.range.start.cmp_key(first.token, &first.key).is_gt()
            && tablet.range.end.cmp_key(last.token, &last.key).is_lt()
    };
    if a != b || (a.is_none() && tablets.iter().any(within)) { Err(()) } else { Ok(a) }
}

/// Whether a truncation made an sstable void.
pub(crate) fn is_void(marks: &[(ShardId, Marks)], place: &Place) -> bool {
    let generation = place.generation.to_string();
    marks.iter().any(|(_, marks)| marks.void.contains(&generation))
}

/// The names in a directory; none if there is no such directory.
pub(crate) async fn names_in(dir: &Path) -> Result<Vec<String>, EngineError> {
    match rt::fs::read_dir(dir).await {
        Ok(entries) => Ok(entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(EngineError::io(dir)(error)),
    }
}

/// The sealed sstables among the names of a directory.
pub(crate) fn sealed_places(dir: &Path, names: &[String]) -> Vec<Place> {
    names
        .iter()
        .filter_map(|name| match Place::parse_name(dir, name)? {
            (place, Component::Toc) => Some(place),
            _ => None,
        })
        .collect()
}

/// Removes sstables of a directory: those of our own format all or none, whatever happens.
pub(crate) async fn remove_all(dir: &Path, places: &[Place]) -> Result<(), EngineError> {
    let (own, foreign): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.version == Version::Me);
    if !own.is_empty() {
        let delete = own.iter().map(|place| place.generation.to_string()).collect();
        deletion_log::replace(dir, &Replacement { seal: Vec::new(), delete }).await?;
    }
    for place in foreign {
        sstable::directory::remove(place).await?;
    }
    Ok(())
}

async fn is_sealed(place: &Place) -> bool {
    rt::fs::exists(&place.path(Component::Toc)).await
}

impl Attached {
    /// An sstable that was opened; the intervals count only if this node wrote it.
    pub fn open(sstable: Rc<Sstable>, host_id: model::HostId) -> Rc<Attached> {
        let stats = sstable.stats();
        let intervals = match stats.host_id == Some(host_id) {
            true => stats.log_intervals.iter().filter_map(Interval::of_stats).collect(),
            false => Vec::new(),
        };
        Attached::new(sstable, intervals)
    }
}
