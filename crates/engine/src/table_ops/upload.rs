//! Loading sstables that an operator put into a table's `upload` directory.
//!
//! The files may come from anywhere: a snapshot of this node, another node, Cassandra. So nothing
//! in them is trusted. Each sstable is read entirely and verified, then copied by tablet into new
//! sstables. The copies have no commitlog intervals: the intervals of a foreign file may refer to
//! another node's log, or to records of another table. A record in the deletion log
//! ([`deletion_log::load`]) then seals all copies and removes all originals. After a crash at any
//! moment either all are loaded, or all are still in `upload`.
//!
//! There are several steps because the tablets of a table are on several shards. In order:
//! [`Engine::uploaded`] on one shard, [`Engine::copy_uploaded`] and [`Engine::expect_loaded`] on
//! all, [`Engine::seal_loaded`] on one, [`Engine::attach_loaded`] on all. The caller ensures that
//! only one load of a table runs at a time. Before the seal nothing in `upload` is removed, and
//! afterwards only sstables that were loaded.
//!
//! Once the load is recorded, a restart completes it. So this run does, too: it repeats the steps
//! that fail because of the disk or for lack of descriptors. From [`Engine::expect_loaded`] on, a
//! truncation includes the pieces ([`crate::table::Loading`]).

use crate::config::RETRY_AFTER;
use crate::deletion_log::{self, DeletionLogError, FileIdentity, UPLOAD, UploadedFiles};
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::table::{Attached, Table};
use crate::table_dir::{MANIFEST, names_in};
use model::TableId;
use model::key::RingCut;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::fs::OpenOptions;
use rt::task::Group;
use sstable::{
    Component, Corrupt, Generation, PageCache, ReadOptions, Sstable, SstablePath, Unsealed, Version, Writer,
    WriterOptions, unreadable_format,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The files are read once: the reads neither fill the cache nor use it.
const READ: ReadOptions = ReadOptions { use_cache: false, ..ReadOptions::BACKGROUND };

/// An sstable in an `upload` directory.
#[derive(Clone, Debug)]
pub struct Uploaded {
    place: SstablePath,
    files: UploadedFiles,
}

/// A copy of (a part of) an uploaded sstable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPiece {
    /// The tablet it belongs to.
    pub tablet: u32,
    /// Its files.
    pub generation: Generation,
    /// Its partitions.
    pub partitions: u64,
    /// Its bytes on disk.
    pub bytes: u64,
}

impl Engine {
    /// The `upload` directory of a table.
    pub fn upload_dir(&self, id: TableId) -> Result<PathBuf, EngineError> {
        Ok(self.table_or_error(id)?.dir.join(UPLOAD))
    }

    /// The sstables in a table's `upload` directory, which is created if needed. An unknown
    /// version or a missing file is an error.
    pub async fn uploaded(&self, id: TableId) -> Result<Vec<Uploaded>, EngineError> {
        let table = self.table_or_error(id)?;
        self.make_directory(&table).await?;
        let dir = table.dir.join(UPLOAD);
        rt::fs::create_dir_all(&dir).await.map_err(EngineError::io(&dir))?;
        // Uploads that were loaded before are not loaded again: the table may have been truncated.
        deletion_log::remove_loaded(&table.dir).await?;
        let names = names_in(&dir).await?;
        // Grouped by all their files: otherwise an sstable without Data.db would be ignored without
        // an error.
        let mut sstables: BTreeMap<(Version, Generation), (SstablePath, Vec<&str>)> = BTreeMap::new();
        for name in &names {
            match SstablePath::of_file(&dir, name) {
                Some((place, component)) => {
                    let key = (place.version, place.generation);
                    sstables.entry(key).or_insert_with(|| (place, Vec::new())).1.push(component);
                }
                None if is_foreign(name) => {
                    let why = "not an sstable of a version that can be read (mc, md, me, na, nb)";
                    return Err(EngineError::Upload { path: dir.join(name), why: why.to_owned() });
                }
                None => {}
            }
        }
        let mut uploads = Vec::new();
        for (place, components) in sstables.into_values() {
            check_regular(&place, &components).await?;
            check_whole(&place, &components).await?;
            let files = identified(&place, &components).await?;
            uploads.push(Uploaded { place, files });
        }
        if !uploads.is_empty() && names.iter().any(|name| name == MANIFEST) {
            check_manifest(&dir, &names).await?;
        }
        Ok(uploads)
    }

    /// Verifies uploaded sstables and copies them, one piece per tablet. `tablets` are all
    /// tablets of the table on this node. The pieces are durable but not sealed: a restart
    /// removes them. On an error none is left.
    pub async fn copy_uploaded(
        &self,
        id: TableId,
        uploads: Vec<Uploaded>,
        tablets: Vec<TabletRange>,
    ) -> Result<Vec<LoadedPiece>, EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(|engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            engine.make_directory(&table).await?;
            let mut pieces = Vec::new();
            for Uploaded { place, .. } in &uploads {
                let copied =
                    rt::task::in_group(Group::Maintenance, engine.copy_sstable(&table, place, &tablets, &mut pieces))
                        .await;
                if let Err(error) = copied {
                    remove_pieces(&table.dir, &pieces).await;
                    return Err(error);
                }
            }
            Ok(pieces)
        })
        .await
    }

    /// Adds the pieces of this shard's tablets to those that are being loaded, before the load is
    /// recorded. The caller ensures that these tablets stay on this shard until the pieces are
    /// attached. A piece of another tablet is an error, and nothing is added.
    pub fn expect_loaded(&self, id: TableId, pieces: &[LoadedPiece]) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        let tablets = table.tablets();
        if let Some(piece) = pieces.iter().find(|piece| !tablets.iter().any(|own| own.id == piece.tablet)) {
            return Err(without_tablet(&table, piece.tablet));
        }
        table.loading.begin(pieces.iter().map(|piece| SstablePath::new(&table.dir, piece.generation)).collect());
        Ok(())
    }

    /// Removes pieces of a load that was not recorded.
    pub async fn discard_loaded(&self, id: TableId, pieces: &[LoadedPiece]) -> Result<(), EngineError> {
        self.forget_loaded(id, pieces);
        remove_pieces(&self.table_or_error(id)?.dir, pieces).await;
        Ok(())
    }

    /// Drops pieces of a load that was not recorded.
    pub fn forget_loaded(&self, id: TableId, pieces: &[LoadedPiece]) {
        let Some(table) = self.table(id) else { return };
        for piece in pieces {
            table.loading.end(&SstablePath::new(&table.dir, piece.generation));
        }
    }

    /// Atomically replaces the uploaded sstables by the pieces. Every shard has to attach its own
    /// pieces afterwards. On an error that [changed nothing](EngineError::changed_nothing) the
    /// pieces are removed. After other errors a restart completes the load: the table was dropped,
    /// or the shard stops, or a piece is lost.
    pub async fn seal_loaded(
        &self,
        id: TableId,
        pieces: Vec<LoadedPiece>,
        uploads: Vec<Uploaded>,
    ) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(|engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            let seal = pieces.iter().map(|piece| piece.generation.to_string()).collect();
            let uploads = uploads.into_iter().map(|upload| upload.files).collect();
            let load = match deletion_log::load(&table.dir, seal, uploads).await {
                Ok(load) => load,
                Err(error) => {
                    remove_pieces(&table.dir, &pieces).await;
                    return Err(error.into());
                }
            };
            loop {
                match load.finish().await {
                    Ok(()) => return Ok(()),
                    Err(error @ DeletionLogError::Lost { .. }) => return Err(error.into()),
                    Err(error) => {
                        tracing::warn!(dir = %table.dir.display(), %error, "loaded sstables cannot be sealed; retrying");
                        engine.wait_to_retry(&table).await?;
                    }
                }
            }
        })
        .await
    }

    /// Waits before another attempt, unless the table is dropped or the shard stops.
    pub(crate) async fn wait_to_retry(&self, table: &Table) -> Result<(), EngineError> {
        if table.work.is_closed() {
            return Err(EngineError::Cancelled);
        }
        self.stopping().unless(rt::time::sleep(RETRY_AFTER)).await.ok_or(EngineError::Cancelled)
    }

    /// Opens the pieces of this shard's tablets and attaches them in one step. If one cannot be
    /// opened, reads of the table fail from then on, because it is part of the table. Pieces that
    /// were truncated meanwhile are removed. A piece of a tablet that has left the shard is an
    /// error, and its files stay.
    pub async fn attach_loaded(&self, id: TableId, pieces: Vec<LoadedPiece>) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(|engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            let mut tried = Vec::new();
            for piece in &pieces {
                let opened = loop {
                    match Sstable::open(&table.dir, piece.generation, engine.cache()).await {
                        Err(error) if error.is_of_process() => {
                            tracing::warn!(dir = %table.dir.display(), %error, "a loaded sstable cannot be opened; retrying");
                            engine.wait_to_retry(&table).await?;
                        }
                        opened => break opened,
                    }
                };
                tried.push((piece.tablet, SstablePath::new(&table.dir, piece.generation), opened));
            }
            // Nothing is awaited from here on until all are attached.
            let (mut opened, mut truncated, mut failed) = (Vec::new(), Vec::new(), None);
            let tablets = table.tablets();
            for (tablet, place, sstable) in tried {
                if !table.loading.end(&place) {
                    truncated.push(place);
                    continue;
                }
                match sstable {
                    Ok(_) if !tablets.iter().any(|own| own.id == tablet) => {
                        failed = failed.or(Some(without_tablet(&table, tablet)));
                    }
                    Ok(sstable) => opened.push((tablet, Attached::new(sstable, Vec::new()))),
                    Err(error) => {
                        let why = format!("the loaded sstable cannot be opened, and its table cannot be read: {error}");
                        let file = place.path(Component::Data);
                        table.unreadable.add(place, Corrupt { file, offset: 0, why });
                        failed = failed.or(Some(error.into()));
                    }
                }
            }
            for tablet in tablets.iter() {
                let own: Vec<_> =
                    opened.iter().filter(|(id, _)| *id == tablet.id).map(|(_, attached)| attached.clone()).collect();
                if !own.is_empty() {
                    tablet.replace(&[], own);
                }
            }
            engine.compactions().wake();
            // They are durable. The next flush or compaction lists them.
            if let Err(error) = engine.list_sstables(&table).await {
                tracing::warn!(dir = %table.dir.display(), %error, "loaded sstables are not listed yet: a start would not detect their loss");
            }
            // Until their files are removed, the next truncation names them.
            table.leftovers.add(&truncated);
            engine.remove_leftovers(&table, truncated).await?;
            failed.map_or(Ok(()), Err)
        })
        .await
    }

    /// Verifies and copies one sstable; each piece is added to `pieces`.
    async fn copy_sstable(
        &self,
        table: &Table,
        place: &SstablePath,
        tablets: &[TabletRange],
        pieces: &mut Vec<LoadedPiece>,
    ) -> Result<(), EngineError> {
        let schema = table.schema();
        let refused = |why: String| EngineError::Upload { path: place.path(Component::Data), why };
        let sstable = Sstable::open_at(place, &PageCache::new(0)).await?;
        fits(&sstable, &schema).map_err(refused)?;
        sstable.verify(|_| {}).await?;
        let whole = PartitionRange {
            start: RingCut::before_key(sstable.first_key()),
            end: RingCut::after_key(sstable.last_key()),
        };
        let mut copied = 0;
        for tablet in tablets {
            let Some(range) = tablet.range.intersection(&whole) else { continue };
            let options =
                WriterOptions { expected_partitions: sstable.stats().partitions(), ..self.writer_options(&schema) };
            let Some(unsealed) = copy(table, &sstable, &schema, range, options).await? else { continue };
            let outcome = unsealed.outcome();
            copied += outcome.partitions;
            pieces.push(LoadedPiece {
                tablet: tablet.id,
                generation: outcome.generation,
                partitions: outcome.partitions,
                bytes: outcome.total_bytes,
            });
        }
        if copied != sstable.stats().partitions() {
            let missing = sstable.stats().partitions() - copied;
            return Err(refused(format!(
                "{missing} of its partitions belong to no tablet of this node: load the sstable on the node that took the \
                 snapshot, or write its rows with COPY or DSBulk"
            )));
        }
        Ok(())
    }
}

/// The error of a piece of a tablet that this shard does not have.
fn without_tablet(table: &Table, tablet: u32) -> EngineError {
    let why =
        format!("sstables of tablet {tablet} cannot be loaded: the tablet is not on shard {}", rt::shard::this().0);
    EngineError::Upload { path: table.dir.join(UPLOAD), why }
}

/// Whether the name belongs to an sstable of an unknown version.
fn is_foreign(name: &str) -> bool {
    unreadable_format(name).is_some() || name.ends_with(&format!("-{}", Component::Data.name()))
}

/// Refuses FIFOs, sockets and devices with the name of a file of an sstable. They are
/// files of the operator: the node has lost none.
async fn check_regular(place: &SstablePath, components: &[&str]) -> Result<(), EngineError> {
    for component in components {
        let path = place.dir.join(place.file_name(component));
        match rt::fs::open(&path, &OpenOptions { read: true, ..OpenOptions::default() }).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let why = format!(
                    "{error}: remove it from the upload directory, or copy the file of the sstable there again"
                );
                return Err(EngineError::Upload { path, why });
            }
            other => drop(other.map_err(EngineError::io(&path))?),
        }
    }
    Ok(())
}

/// Refuses an sstable without a table of contents, or without a file that is listed there.
async fn check_whole(place: &SstablePath, components: &[&str]) -> Result<(), EngineError> {
    let missing = |component: &str| EngineError::Upload {
        path: place.dir.join(place.file_name(component)),
        why: "the file is missing: its sstable is incomplete".to_owned(),
    };
    if !components.contains(&Component::Toc.name()) {
        return Err(missing(Component::Toc.name()));
    }
    let toc = place.path(Component::Toc);
    let text = rt::fs::read(&toc).await.map_err(EngineError::io(&toc))?;
    let text = String::from_utf8_lossy(&text);
    let listed = text.lines().filter(|line| !line.is_empty());
    match [Component::Data.name()].into_iter().chain(listed).find(|name| !components.contains(name)) {
        Some(name) => Err(missing(name)),
        None => Ok(()),
    }
}

/// The files of an sstable, before they are read: only these count as loaded later.
async fn identified(place: &SstablePath, components: &[&str]) -> Result<UploadedFiles, EngineError> {
    let mut files = BTreeMap::new();
    for component in components {
        let name = place.file_name(component);
        let path = place.dir.join(&name);
        let identity = FileIdentity::of(&path).await.map_err(EngineError::io(&path))?;
        files.insert(name, identity);
    }
    Ok(UploadedFiles { prefix: place.file_name(""), files })
}

/// Refuses an upload without a file that the manifest of its snapshot names. Newer manifests of
/// ScyllaDB have another form and are not checked.
async fn check_manifest(dir: &Path, names: &[String]) -> Result<(), EngineError> {
    #[derive(serde::Deserialize)]
    struct Manifest {
        #[serde(default)]
        files: Vec<String>,
    }
    let path = dir.join(MANIFEST);
    let text = rt::fs::read(&path).await.map_err(EngineError::io(&path))?;
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| EngineError::Upload { path: path.clone(), why: format!("not a manifest: {error}") })?;
    match manifest.files.iter().find(|file| !names.contains(file)) {
        Some(file) => Err(EngineError::Upload {
            path,
            why: format!("it names {file}, which is missing. Copy all of the snapshot, or remove {MANIFEST}"),
        }),
        None => Ok(()),
    }
}

/// Whether the table has all columns of the sstable, and the types of both are the same.
pub(crate) fn fits(sstable: &Sstable, schema: &TableSchema) -> Result<(), String> {
    let header = sstable.header();
    for (columns, own) in [(&header.statics, &schema.statics), (&header.regulars, &schema.regulars)] {
        for column in columns {
            let known = own.iter().any(|own| own.name == column.name)
                || schema.dropped.iter().any(|dropped| dropped.name == column.name);
            if !known {
                let table = format!("{}.{}", schema.keyspace, schema.name);
                return Err(format!("its column {} is not one of {table}", column.name));
            }
        }
    }
    sstable.check_schema(schema)
}

/// Copies the partitions of a range. On an error nothing of the copy is left.
async fn copy(
    table: &Table,
    sstable: &Rc<Sstable>,
    schema: &Rc<TableSchema>,
    range: PartitionRange,
    options: WriterOptions,
) -> Result<Option<Unsealed>, EngineError> {
    let mut reader = sstable.reader(schema, range, Rc::new(Slice::full()), READ);
    let mut writer = Writer::create(&table.dir, Generation::fresh(), schema.clone(), options).await?;
    let mut buffer = VecDeque::new();
    loop {
        let step = async {
            if table.work.is_closed() {
                return Err(EngineError::Cancelled);
            }
            let more = reader.fill(&mut buffer).await?;
            while let Some(fragment) = buffer.pop_front() {
                writer.push(fragment).await?;
            }
            Ok(more)
        };
        match step.await {
            Ok(true) => rt::task::maybe_yield().await,
            Ok(false) => break,
            Err(error) => {
                writer.abort().await;
                return Err(error);
            }
        }
    }
    Ok(writer.finish_unsealed(&[]).await?)
}

pub(crate) async fn remove_pieces(dir: &Path, pieces: &[LoadedPiece]) {
    for piece in pieces {
        if let Err(error) = sstable::directory::remove(&SstablePath::new(dir, piece.generation)).await {
            tracing::warn!(generation = %piece.generation, %error, "a copy of an uploaded sstable could not be removed: the next start removes it");
        }
    }
}
