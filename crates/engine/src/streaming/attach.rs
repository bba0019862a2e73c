//! The sstables of a session become part of their tablet, all in one durable step.
//!
//! They are opened and checked in the session's directory. Then their files are linked into the
//! directory of the table, unsealed: a crash before the seal leaves the session's files. The seal
//! and the later steps are the same as for a [load](crate::Engine::seal_loaded).

use super::arrived::{Arrived, ArrivedSource};
use super::session_dir::{self, Direction};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::{Table, Tablet};
use crate::table_dir::{is_absent, remove_tree};
use crate::table_ops::{LoadedPiece, fits, remove_pieces};
use model::TableId;
use sstable::{Component, Generation, PageCache, Sstable, SstablePath};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::rc::Rc;
use uuid::Uuid;

/// The name of the empty file that marks a session whose sstables are part of their tablet.
const ATTACHED: &str = "attached";

/// A session whose sstables become part of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamTarget {
    /// The table.
    pub table: TableId,
    /// The tablet, which is on this shard.
    pub tablet: u32,
    /// The session.
    pub session: Uuid,
    /// The epoch of the table in the metadata of this shard.
    pub epoch: u64,
}

/// The sstables that have become part of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttachedFiles {
    /// The number of sstables.
    pub sstables: u64,
    /// Their bytes on disk.
    pub bytes: u64,
}

impl StreamTarget {
    fn refused(&self, why: impl Into<String>) -> EngineError {
        EngineError::NotAttached { table: self.table, tablet: self.tablet, why: why.into() }
    }
}

impl Engine {
    /// Makes the sstables that have arrived from all sources part of the tablet. Sstables that the
    /// tablet has already are left out. `enter` is called when all is prepared. It refuses if the
    /// session has ended. Its result is held until the sstables are part of the tablet. May be
    /// called again after an error.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotAttached`] if the sstables do not belong to the tablet, or `enter`
    /// refused.
    /// [`EngineError::Cancelled`] if the table was truncated or dropped.
    pub async fn attach_streamed<G: 'static>(
        &self,
        target: StreamTarget,
        arrived: Vec<ArrivedSource>,
        enter: impl FnOnce() -> Result<G, String> + 'static,
    ) -> Result<AttachedFiles, EngineError> {
        let table = self.table_or_error(target.table)?;
        self.detached(move |engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            engine.make_directory(&table).await?;
            let fresh = fresh_ones(&table, target, &arrived)?;
            let pieces = match engine.pieces(&table, target, &fresh).await {
                Err(error @ EngineError::Sstable(sstable::Error::Corrupt(_))) => {
                    // The disk has damaged what had arrived: the next attempt asks for it again.
                    remove_sources(&arrived).await?;
                    return Err(error);
                }
                pieces => pieces?,
            };
            let attached =
                AttachedFiles { sstables: pieces.len() as u64, bytes: pieces.iter().map(|piece| piece.bytes).sum() };
            if !pieces.is_empty() {
                if let Err(error) = link_all(&table.dir, &fresh).await {
                    remove_pieces(&table.dir, &pieces).await;
                    return Err(error);
                }
                engine.attach_pieces(&table, target, pieces, enter).await?;
            }
            drop(fresh);
            mark_attached(&session_dir::path(&table.dir, Direction::In, target.session, target.epoch)).await?;
            remove_sources(&arrived).await?;
            Ok(attached)
        })
        .await
    }

    /// Whether the sstables of a session have become part of their tablet.
    pub async fn is_attached(&self, target: StreamTarget) -> Result<bool, EngineError> {
        let table = self.table_or_error(target.table)?;
        let dir = session_dir::path(&table.dir, Direction::In, target.session, target.epoch);
        let path = dir.join(ATTACHED);
        match rt::fs::metadata(&path).await {
            Ok(_) => Ok(true),
            Err(error) if rt::fs::is_absence(&error) => Ok(false),
            Err(error) => Err(EngineError::io(path)(error)),
        }
    }

    /// Checks the sstables.
    async fn pieces(
        &self,
        table: &Table,
        target: StreamTarget,
        arrived: &[Arrived<'_>],
    ) -> Result<Vec<LoadedPiece>, EngineError> {
        let (cache, schema) = (PageCache::new(0), table.schema());
        let tablet = tablet_of(table, target)?;
        let mut pieces = Vec::with_capacity(arrived.len());
        for one in arrived {
            let generation = one.place.generation;
            if is_in_use(table, generation).await? {
                return Err(target.refused(format!("files of sstable {generation} are still being removed")));
            }
            let sstable = Sstable::open_at(&one.place, &cache).await?;
            fits(&sstable, &schema).map_err(|why| target.refused(format!("sstable {generation}: {why}")))?;
            if !tablet.range.contains(sstable.first_key()) || !tablet.range.contains(sstable.last_key()) {
                return Err(target.refused(format!("sstable {generation} has keys outside of it")));
            }
            self.saw_timestamp(sstable.stats().max_timestamp);
            let (partitions, bytes) = (sstable.stats().partitions(), one.bytes());
            pieces.push(LoadedPiece { tablet: target.tablet, generation, partitions, bytes });
            rt::task::maybe_yield().await;
        }
        Ok(pieces)
    }

    async fn attach_pieces<G>(
        &self,
        table: &Table,
        target: StreamTarget,
        pieces: Vec<LoadedPiece>,
        enter: impl FnOnce() -> Result<G, String>,
    ) -> Result<(), EngineError> {
        let may_attach = || {
            tablet_of(table, target)?;
            match table.epoch.get() == target.epoch {
                true => enter().map_err(|why| target.refused(why)),
                false => Err(EngineError::Cancelled),
            }
        };
        let _entered = match may_attach() {
            Ok(entered) => entered,
            Err(error) => {
                remove_pieces(&table.dir, &pieces).await;
                return Err(error);
            }
        };
        // From here on a truncation includes the pieces.
        table.loading.begin(pieces.iter().map(|piece| SstablePath::new(&table.dir, piece.generation)).collect());
        if let Err(error) = self.seal_loaded(target.table, pieces.clone(), Vec::new()).await {
            if error.changed_nothing() {
                self.forget_loaded(target.table, &pieces);
            }
            return Err(error);
        }
        self.attach_loaded(target.table, pieces).await
    }
}

pub(super) fn tablet_of(table: &Table, target: StreamTarget) -> Result<Rc<Tablet>, EngineError> {
    let tablets = table.tablets();
    let tablet = tablets.iter().find(|own| own.id == target.tablet);
    tablet.cloned().ok_or_else(|| target.refused(format!("it is not on shard {}", rt::shard::this().0)))
}

/// Whether the directory of a table has an sstable with this generation that is not one of the
/// tablet's. It was here before, and its files are being removed.
async fn is_in_use(table: &Table, generation: Generation) -> Result<bool, EngineError> {
    let place = SstablePath::new(&table.dir, generation);
    Ok(table.leftovers.places().contains(&place) || !is_absent(&place.path(Component::Toc)).await?)
}

/// The sstables of all sources that the tablet does not have. One that several sources have is
/// taken once.
fn fresh_ones<'a>(
    table: &Table,
    target: StreamTarget,
    arrived: &'a [ArrivedSource],
) -> Result<Vec<Arrived<'a>>, EngineError> {
    let mut known: BTreeSet<Generation> =
        tablet_of(table, target)?.sstables().iter().map(|own| own.generation()).collect();
    let all = arrived.iter().flat_map(ArrivedSource::sstables);
    Ok(all.filter(|one| known.insert(one.place.generation)).collect())
}

/// Links the files of sstables into the directory of their table, durably and unsealed.
async fn link_all(dir: &Path, arrived: &[Arrived<'_>]) -> Result<(), EngineError> {
    for Arrived { place: from, files } in arrived {
        let to = SstablePath::new(dir, from.generation);
        // The mark of an unfinished sstable comes first: a restart removes the other files with it.
        link(&from.path(Component::Toc), &to.path(Component::TemporaryToc)).await?;
        for file in files.iter().filter(|file| file.component != Component::Toc) {
            link(&from.path(file.component), &to.path(file.component)).await?;
        }
        rt::task::maybe_yield().await;
    }
    rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))
}

async fn link(from: &Path, to: &Path) -> Result<(), EngineError> {
    match rt::fs::hard_link(from, to).await {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked.map_err(EngineError::io(from)),
    }
}

/// Marks a session whose sstables are part of their tablet. If the session has ended meanwhile, its
/// directory is gone and stays so.
async fn mark_attached(dir: &Path) -> Result<(), EngineError> {
    let path = dir.join(ATTACHED);
    match rt::fs::write_durably(&path, b"").await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        marked => marked.map_err(EngineError::io(path)),
    }
}

/// Removes what has arrived from all sources.
async fn remove_sources(arrived: &[ArrivedSource]) -> Result<(), EngineError> {
    for source in arrived {
        remove_tree(&source.dir).await?;
    }
    Ok(())
}
