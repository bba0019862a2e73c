//! Opening the sstables of a table's directory, and sorting them by tablet.
//!
//! A file that cannot be opened is reported and left alone, not deleted. Nobody knows which keys it held, so reads of its table
//! fail: without it they would miss rows, and find deleted ones. Nor does compaction purge anything of the table.

use crate::datadir::Made;
use crate::deletion_log::{self, Replacement};
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::marks::{Marks, is_name_of_marks};
use crate::memtable::Interval;
use crate::metrics::add;
use crate::sstable_set::{Attached, SstableSet};
use crate::table::Table;
use model::TableId;
use model::key::DecoratedKey;
use model::schema::TableSchema;
use rt::ShardId;
use sstable::{Component, Corrupt, Sstable, SstablePath, Version, WriterOptions};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
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
    pub(crate) marks: Vec<(ShardId, Marks)>,
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
    /// What [`Engine::reshard`] found, for other shards' [`Engine::expect`].
    pub fn found_sstables(&self) -> Vec<(TableId, FoundSstables)> {
        self.prepared().borrow().iter().map(|(table, prepared)| (*table, prepared.found.clone())).collect()
    }

    /// Takes over what shard 0 found, so that nothing is looked for again and only this shard's sstables are opened. Holds until
    /// [`Engine::start`].
    pub fn expect(&self, found: Vec<(TableId, FoundSstables)>) {
        let prepared = found.into_iter().map(|(table, found)| (table, Prepared { found, open: Vec::new() }));
        self.prepared().borrow_mut().extend(prepared);
    }

    /// Opens what belongs to these tablets.
    pub(crate) async fn open_sstables(
        &self,
        dir: &Path,
        tablets: &[TabletRange],
        prepared: Option<Prepared>,
    ) -> Result<Opened, EngineError> {
        let Prepared { found, open } = match prepared {
            Some(prepared) => prepared,
            None if self.is_started() && is_absent(dir).await? => {
                Prepared { found: FoundSstables::default(), open: Vec::new() }
            }
            None => {
                let names = names_in(dir).await?;
                let marks = Marks::read_all(dir, &names, self.config().host_id).await?;
                let found = FoundSstables { places: sealed_places(dir, &names), keys: Vec::new(), marks };
                Prepared { found, open: Vec::new() }
            }
        };
        let sets = vec![SstableSet::default(); tablets.len()];
        let mut opened = Opened { sets, unreadable: Vec::new(), missing: None, marks: found.marks };
        for place in found.places {
            if is_void(&opened.marks, &place) {
                continue;
            }
            let is_it = |other: &SstablePath| other.generation == place.generation && *other == place;
            let known = found.keys.iter().find(|known| is_it(&known.place));
            if known.is_some_and(|known| owner(tablets, &known.first, &known.last) == Ok(None)) {
                continue;
            }
            let opening = async {
                match open.iter().find(|open| is_it(open.place())) {
                    Some(open) => Ok(open.clone()),
                    None => Sstable::open_at(&place, self.cache()).await,
                }
            };
            let sstable = match opening.await {
                Ok(sstable) => sstable,
                // Another shard's compaction, or drop, has just removed it: its TOC.txt goes first.
                Err(_) if !is_sealed(&place).await => continue,
                // Not for the sstable's sake: it can be served at the next start.
                Err(error) if error.is_of_process() => return Err(error.into()),
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
        self.make_directories(&table.dir).await?;
        table.has_directory.set(true);
        self.made(Made::Directory(table.schema().id));
        Ok(())
    }

    /// The same for a table that may not be open.
    pub(crate) async fn make_directories(&self, dir: &Path) -> Result<(), EngineError> {
        rt::fs::create_dir_all(dir).await.map_err(EngineError::io(dir))?;
        let above = dir.ancestors().skip(1).take_while(|above| above.starts_with(&self.config().data_dir));
        for above in above {
            rt::fs::sync_dir(above).await.map_err(EngineError::io(above))?;
        }
        Ok(())
    }

    /// How sstables of a table are written.
    pub(crate) fn writer_options(&self, schema: &TableSchema) -> WriterOptions {
        WriterOptions {
            compression: crate::flush::compression_of(&schema.options.compression),
            bloom_fp_chance: schema.options.bloom_filter_fp_chance,
            min_index_interval: schema.options.min_index_interval.max(1) as u32,
            large: self.large_limits(),
            large_counts: self.large_counts().clone(),
            ..WriterOptions::new(self.config().host_id)
        }
    }

    /// Removes the files of sstables that are no longer in any set, all of them or, after a crash, none or all.
    pub(crate) async fn delete_files(&self, table: &Table, sstables: &[Rc<Attached>]) -> Result<(), EngineError> {
        if sstables.is_empty() {
            return Ok(());
        }
        for own in sstables.iter().filter(|own| own.is_read()) {
            if let Err(error) = own.sstable.keep_open().await {
                tracing::warn!(generation = %own.generation(), %error,
                    "an sstable goes while it is being read, and cannot be kept open: its readers will fail");
            }
        }
        let places: Vec<_> = sstables.iter().map(|own| own.sstable.place().clone()).collect();
        remove_all(&table.dir, &places).await?;
        add(&self.counters().sstables_deleted, places.len() as u64);
        Ok(())
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
pub(crate) fn is_void(marks: &[(ShardId, Marks)], place: &SstablePath) -> bool {
    let generation = place.generation.to_string();
    marks.iter().any(|(_, marks)| marks.void.contains(&generation))
}

/// Whether there is nothing at a path. Looking needs no file descriptor.
async fn is_absent(path: &Path) -> Result<bool, EngineError> {
    match rt::fs::metadata(path).await {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(EngineError::io(path)(error)),
    }
}

/// Whether an entry counts as a file. A directory in the place of a TOC.txt does: its sstable was sealed, and cannot be read. So does one in
/// the place of marks: without them truncated rows would return.
fn is_file(dir: &Path, entry: &rt::fs::DirEntry) -> bool {
    !entry.is_dir
        || is_name_of_marks(&entry.name)
        || SstablePath::parse_name(dir, &entry.name).is_some_and(|(_, component)| component == Component::Toc)
}

/// The names of the files in a directory; none if there is no such directory.
pub(crate) async fn names_in(dir: &Path) -> Result<Vec<String>, EngineError> {
    match rt::fs::read_dir(dir).await {
        Ok(entries) => Ok(entries.into_iter().filter(|entry| is_file(dir, entry)).map(|entry| entry.name).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(EngineError::io(dir)(error)),
    }
}

/// The sealed sstables among the names of a directory.
pub(crate) fn sealed_places(dir: &Path, names: &[String]) -> Vec<SstablePath> {
    names
        .iter()
        .filter_map(|name| match SstablePath::parse_name(dir, name)? {
            (place, Component::Toc) => Some(place),
            _ => None,
        })
        .collect()
}

/// The files among the names of a directory that bear the name of an sstable of a format that cannot be read, by format.
pub(crate) fn foreign_files(names: &[String]) -> BTreeMap<String, Vec<&str>> {
    let mut foreign: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some(format) = sstable::unreadable_format(name) {
            foreign.entry(format).or_default().push(name);
        }
    }
    foreign
}

/// Removes sstables of a directory: those of our own format all or none, whatever happens.
pub(crate) async fn remove_all(dir: &Path, places: &[SstablePath]) -> Result<(), EngineError> {
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

async fn is_sealed(place: &SstablePath) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_foreign_formats_are_named() {
        let names = [
            "oa-1-big-Data.db",
            "oa-1-big-TOC.txt",
            "da-3gsm_17kx_1m7yk2rabu8kc8hm6-bti-Data.db",
            "me-1-big-Data.db",
            "manifest.json",
        ];
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let foreign = foreign_files(&names);
        let of_cassandra = foreign.iter().find(|(format, _)| format.starts_with("oa")).expect("oa is foreign");
        assert_eq!(of_cassandra.1, &["oa-1-big-Data.db", "oa-1-big-TOC.txt"]);
        assert!(foreign.values().flatten().all(|name| !name.starts_with("me") && !name.starts_with("manifest")));
    }
}
