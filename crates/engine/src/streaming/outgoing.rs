//! The source of a streamed tablet: its sstables, pinned by hard links.
//!
//! The links are complete when the session's directory has a description of them ([`FILE`]). A
//! source that restarts finds the description and continues with the same files. Later writes reach
//! the receiver without streaming.

use super::layout::{SMALL_FILE, StreamLayout, StreamedSstable};
use super::session_dir::{self, Direction};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::files::sealed;
use crate::table::{Attached, Table, Tablet};
use crate::table_dir::remove_tree;
use bytes::Bytes;
use futures_util::future::try_join_all;
use model::TableId;
use rt::Pieces;
use rt::fs::{File, IoClass, OpenOptions};
use rt::sync::Semaphore;
use smallvec::SmallVec;
use sstable::{Component, SstablePath};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uuid::Uuid;

/// The description of pinned sstables, in the session's directory.
const FILE: &str = "sstables.json";
const KIND: &str = "streamed-sstables";
const FORMAT: u32 = 1;

/// The size of a tablet's sstables, all of them together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TabletSize {
    /// Partitions. One in several sstables counts several times.
    pub partitions: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// The sstables of a tablet, pinned for one session.
pub struct Pinned {
    dir: PathBuf,
    sstables: Vec<StreamedSstable>,
    layout: StreamLayout,
    /// The large file that was read last.
    open: RefCell<Option<(usize, File)>>,
    /// The number of sstables at the beginning whose links are removed.
    released: Cell<usize>,
    releasing: Semaphore,
}

impl Engine {
    /// Flushes a tablet, and pins its sstables for a session. If that was done before, even in an
    /// earlier run, returns the sstables that were pinned then. `epoch`: the table's epoch in the
    /// metadata of this shard. The sstables have no data of an earlier epoch.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotStreamable`] if an sstable is damaged.
    /// [`EngineError::OnlyAsMutations`] if another database wrote an sstable.
    /// [`EngineError::Cancelled`] if the table is being truncated.
    pub async fn pin_tablet(
        &self,
        id: TableId,
        tablet: u32,
        session: Uuid,
        epoch: u64,
    ) -> Result<Rc<Pinned>, EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            // The engine begins an epoch before the metadata shows it. In between, the sets still
            // have what is being truncated.
            if table.epoch.get() != epoch {
                return Err(EngineError::Cancelled);
            }
            let dir = session_dir::path(&table.dir, Direction::Out, session, epoch);
            let known = sealed::read::<Vec<StreamedSstable>>(&dir.join(FILE), KIND, FORMAT).await;
            if let Ok(sstables) = known.map_err(EngineError::io(dir.join(FILE)))? {
                return Pinned::new(dir, sstables);
            }
            let own = table.tablets().iter().find(|own| own.id == tablet).cloned();
            let own = own.ok_or(EngineError::Cancelled)?;
            engine.flush_tablet(&table, &own).await?;
            engine.make_directory(&table).await?;
            session_dir::make(&table.dir, &dir).await?;
            let sstables = pin(&table, &own, &dir).await?;
            sealed::write(&dir.join(FILE), KIND, FORMAT, &sstables).await.map_err(EngineError::io(dir.join(FILE)))?;
            Pinned::new(dir, sstables)
        })
        .await
    }

    /// The size of a tablet's sstables. `None` if it is not on this shard.
    pub fn size_of_tablet(&self, id: TableId, tablet: u32) -> Option<TabletSize> {
        let own = self.table(id)?.tablets().iter().find(|own| own.id == tablet)?.sstables();
        Some(TabletSize { partitions: own.iter().map(|one| one.partitions()).sum(), bytes: own.disk_bytes() })
    }

    /// Flushes what a tablet has in memory now.
    ///
    /// # Errors
    ///
    /// [`EngineError::Cancelled`] if the tablet is not on this shard.
    pub async fn flush_one_tablet(&self, id: TableId, tablet: u32) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        let own = table.tablets().iter().find(|own| own.id == tablet).cloned();
        self.flush_tablet(&table, &own.ok_or(EngineError::Cancelled)?).await
    }

    /// Removes what is pinned for a session, so that the next [`Engine::pin_tablet`] pins again.
    pub async fn unpin_tablet(&self, id: TableId, session: Uuid, epoch: u64) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        remove_tree(&session_dir::path(&table.dir, Direction::Out, session, epoch)).await
    }
}

/// Links all sstables of a tablet into a directory, durably.
async fn pin(table: &Table, tablet: &Tablet, dir: &Path) -> Result<Vec<StreamedSstable>, EngineError> {
    // Removals wait until all files are linked. Compactions continue until they remove inputs.
    let _linking = table.sstable_files.write().await;
    if let Some(place) = table.unreadable.places().into_iter().next() {
        return Err(not_streamable(&place, "it could not be opened".to_owned()));
    }
    let set = tablet.sstables();
    let mut pinned = Vec::with_capacity(set.len());
    for own in set.iter() {
        pinned.push(link(own, dir).await?);
        rt::task::maybe_yield().await;
    }
    rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
    Ok(pinned)
}

async fn link(own: &Attached, dir: &Path) -> Result<StreamedSstable, EngineError> {
    let from = own.sstable.place();
    if own.corrupt.get() {
        return Err(not_streamable(from, "it is damaged".to_owned()));
    }
    let files = match own.sstable.files_to_send().await {
        Err(sstable::Error::Unsupported(why)) => {
            return Err(EngineError::OnlyAsMutations { path: from.path(Component::Data), why });
        }
        files => files?,
    };
    let to = SstablePath::new(dir, from.generation);
    for (component, _) in &files {
        let target = to.path(*component);
        match rt::fs::hard_link(&from.path(*component), &target).await {
            // An earlier attempt did not complete.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(EngineError::io(target))?,
        }
    }
    Ok(StreamedSstable::new(from.generation, files))
}

fn not_streamable(place: &SstablePath, why: String) -> EngineError {
    EngineError::NotStreamable { path: place.path(Component::Data), why }
}

impl Pinned {
    fn new(dir: PathBuf, sstables: Vec<StreamedSstable>) -> Result<Rc<Pinned>, EngineError> {
        let layout = StreamLayout::new(&sstables)?;
        let (open, released, releasing) = (RefCell::default(), Cell::new(0), Semaphore::new(1));
        Ok(Rc::new(Pinned { dir, sstables, layout, open, released, releasing }))
    }

    /// The sstables, as the receiver needs them.
    pub fn sstables(&self) -> &[StreamedSstable] {
        &self.sstables
    }

    /// The order of their bytes.
    pub fn layout(&self) -> &StreamLayout {
        &self.layout
    }

    fn path(&self, file: usize) -> PathBuf {
        let file = self.layout.files()[file];
        SstablePath::new(&self.dir, self.layout.generations()[file.sstable]).path(file.component)
    }

    /// Reads a range of the sequence.
    pub async fn read(&self, range: Range<u64>) -> Result<Pieces, EngineError> {
        let parts = self.layout.spans(range).map(|span| async move {
            let path = self.path(span.file);
            let is_small = self.layout.files()[span.file].len <= SMALL_FILE;
            let file = self.open(span.file, &path, is_small).await.map_err(EngineError::io(&path))?;
            let bytes = file.read_at(span.offset, span.len as usize, IoClass::Background).await;
            let bytes = bytes.map_err(EngineError::io(&path))?;
            if bytes.len() as u64 != span.len {
                return Err(EngineError::NotStreamable { path, why: "it is shorter than it was".to_owned() });
            }
            Ok(bytes)
        });
        let parts: Vec<Bytes> = try_join_all(parts).await?;
        Ok(Pieces::from(SmallVec::from_vec(parts)))
    }

    async fn open(&self, file: usize, path: &Path, is_small: bool) -> std::io::Result<File> {
        if is_small {
            return rt::fs::open(path, &OpenOptions::read()).await;
        }
        if let Some((known, open)) = &*self.open.borrow()
            && *known == file
        {
            return Ok(open.clone());
        }
        let opened = rt::fs::open(path, &OpenOptions::read_direct()).await?;
        self.open.replace(Some((file, opened.clone())));
        Ok(opened)
    }

    /// Removes the links of the sstables that end before `position`: the receiver has them durably.
    /// Their disk space is free once compaction has removed the sstables as well.
    pub async fn release_before(&self, position: u64) -> Result<(), EngineError> {
        let Ok(_turn) = self.releasing.acquire().await else { return Ok(()) };
        let mut next = self.released.get();
        while next < self.layout.generations().len() && self.layout.bytes_of(next).end <= position {
            for file in self.layout.files_of(next) {
                let path = self.path(file);
                match rt::fs::remove_file(&path).await {
                    Err(error) if rt::fs::is_absence(&error) => {}
                    removed => removed.map_err(EngineError::io(path))?,
                }
            }
            next += 1;
            self.released.set(next);
        }
        Ok(())
    }
}
