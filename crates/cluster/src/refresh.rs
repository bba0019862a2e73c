//! Refresh: loads the sstables in a table's `upload` directory into the table, on all shards.
//!
//! Shard 0 leads, and every shard copies a share of the files. Either all sstables are loaded or
//! none, even after a crash (`engine/upload.rs`).
//!
//! A refresh and the transition of a tablet of this node exclude each other, because rows that are
//! loaded after the streaming would leave with the old replica. A refresh is refused while such a
//! transition runs. It checks that again before it records the load. From then on it holds the
//! metadata, so that a transition does not reach the stage `Streaming` before the pieces are
//! attached.

use crate::metadata::{ClusterShards, Metadata, MetadataService};
use engine::{Engine, TabletRange};
use engine::{LoadedPiece, Uploaded};
use model::id::{HostId, TableId};
use rt::ShardId;
use rt::hash::HashMap;
use rt::shard::PerShard;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// The result of a refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// The `upload` directory.
    pub dir: PathBuf,
    /// Number of sstables that were found and loaded.
    pub sstables: usize,
    /// Number of partitions in the loaded pieces.
    pub partitions: u64,
    /// Bytes on disk of the loaded pieces.
    pub bytes: u64,
}

/// Marks a table as loading until dropped. On shard 0.
struct Turn(Rc<MetadataService>, TableId);

impl Turn {
    fn take(service: Rc<MetadataService>, table: TableId) -> Result<Turn, String> {
        let is_free = service.refreshing.borrow_mut().insert(table);
        match is_free {
            true => Ok(Turn(service, table)),
            false => Err("sstables are being loaded into this table already".into()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.refreshing.borrow_mut().remove(&self.1);
    }
}

/// Loads the sstables in a table's `upload` directory. Callable from any shard. The load continues
/// if the caller stops waiting. The error says why nothing was loaded, or that a restart is needed.
pub async fn refresh(shards: ClusterShards, table: TableId) -> Result<Refreshed, String> {
    rt::shard::call(ShardId(0), move || async move {
        let task = rt::task::spawn(lead(shards, table));
        task.await.unwrap_or_else(|_| Err("the node is stopping".into()))
    })
    .await
}

async fn lead(shards: ClusterShards, table: TableId) -> Result<Refreshed, String> {
    let (service, engine) = (shards.metadata.get(), shards.engine.get());
    let _turn = Turn::take(service.clone(), table)?;
    let dir = engine.upload_dir(table).map_err(|error| error.to_string())?;
    let uploads = engine.uploaded(table).await.map_err(|error| error.to_string())?;
    if uploads.is_empty() {
        return Ok(Refreshed { dir, ..Refreshed::default() });
    }
    let host = service.info().host_id;
    // The metadata is not held while files are copied: that takes long, and barriers would wait.
    let own = OwnTablets::of(&service.current(), table, host)?;
    let pieces = copy(shards.engine, table, &uploads, &own.ranges).await?;
    let done = Refreshed {
        dir,
        sstables: uploads.len(),
        partitions: pieces.iter().map(|piece| piece.partitions).sum(),
        bytes: pieces.iter().map(|piece| piece.bytes).sum(),
    };
    // Held until the pieces are attached: a transition that begins now waits in its first stage,
    // because its barrier waits until this metadata is unused. So the pieces are attached before
    // the streaming begins.
    let held = service.current();
    let owners = match OwnTablets::of(&held, table, host).and_then(|own| own.owners_of(&pieces)) {
        Ok(owners) => Arc::new(owners),
        Err(why) => {
            discard(&engine, table, &pieces).await;
            return Err(format!("{why}. Nothing was loaded"));
        }
    };
    load(shards.engine, table, uploads, pieces, owners).await?;
    Ok(done)
}

/// Replaces the uploads by the pieces: all of them or none. `owners` are the shards of the pieces'
/// tablets. The tablets must not leave these shards meanwhile.
async fn load(
    engines: PerShard<Engine>,
    table: TableId,
    uploads: Vec<Uploaded>,
    pieces: Vec<LoadedPiece>,
    owners: Arc<Owners>,
) -> Result<(), String> {
    let engine = engines.get();
    let expected = engines.call_all({
        let (pieces, owners) = (pieces.clone(), owners.clone());
        move |engine| {
            let expected = engine.expect_loaded(table, &own_pieces(&pieces, &owners));
            async move { expected.map_err(|error| error.to_string()) }
        }
    });
    if let Err(error) = expected.await.into_iter().collect::<Result<(), String>>() {
        forget(engines, table, &pieces).await;
        discard(&engine, table, &pieces).await;
        return Err(error);
    }
    if let Err(error) = engine.seal_loaded(table, pieces.clone(), uploads).await {
        if error.changed_nothing() {
            forget(engines, table, &pieces).await;
        }
        return Err(error.to_string());
    }
    let attached = engines.call_all(move |engine| {
        let (shard, own) = (rt::shard::this(), own_pieces(&pieces, &owners));
        async move { engine.attach_loaded(table, own).await.map_err(|error| format!("shard {}: {error}", shard.0)) }
    });
    attached.await.into_iter().collect()
}

/// Removes pieces that were not recorded.
async fn discard(engine: &Engine, table: TableId, pieces: &[LoadedPiece]) {
    // The directory of a dropped table is already deleted.
    let _ = engine.discard_loaded(table, pieces).await;
}

/// The pieces of this shard's tablets.
fn own_pieces(pieces: &[LoadedPiece], owners: &Owners) -> Vec<LoadedPiece> {
    let shard = rt::shard::this();
    pieces.iter().filter(|piece| owners.get(&piece.tablet) == Some(&shard)).cloned().collect()
}

/// Makes every shard drop the pieces of a load that was not recorded.
async fn forget(engines: PerShard<Engine>, table: TableId, pieces: &[LoadedPiece]) {
    let pieces = pieces.to_vec();
    let forgotten = engines.call_all(move |engine| {
        engine.forget_loaded(table, &pieces);
        async {}
    });
    forgotten.await;
}

/// The shards of tablets.
type Owners = HashMap<u32, ShardId>;

/// A table's tablets on this node. Partitions of other tablets are refused, because this node does
/// not serve them.
struct OwnTablets {
    ranges: Vec<TabletRange>,
    owners: Owners,
}

impl OwnTablets {
    /// Refuses if a tablet moves to this node or away from it: if its data was streamed already,
    /// loaded rows would leave with this node's replica.
    fn of(metadata: &Metadata, table: TableId, host: HostId) -> Result<OwnTablets, String> {
        let tablets = &metadata.table_by_id(table).ok_or("the table was dropped")?.tablets;
        let is_here = |tablet: u32| tablets.holders(tablet).any(|replica| replica.host == host);
        if let Some((tablet, moving)) = tablets.transitions().find(|(tablet, _)| is_here(*tablet)) {
            let stage = moving.stage.name();
            return Err(format!(
                "tablet {tablet} of this node is in a transition (stage {stage}), and rows that are loaded now could be \
                 lost: refresh again after the transition"
            ));
        }
        let shard_of = |tablet: u32| Some((tablet, ShardId(tablets.shard_on(tablet, host)?)));
        let owners: Owners = (0..tablets.count()).filter_map(shard_of).collect();
        let ids = (0..tablets.count()).filter(|id| owners.contains_key(id));
        Ok(OwnTablets { ranges: ids.map(|id| TabletRange { id, range: tablets.range(id) }).collect(), owners })
    }

    /// The shards of the tablets. An error if one of the pieces belongs to a tablet that is not
    /// here any more.
    fn owners_of(self, pieces: &[LoadedPiece]) -> Result<Owners, String> {
        match pieces.iter().find(|piece| !self.owners.contains_key(&piece.tablet)) {
            Some(LoadedPiece { tablet, .. }) => {
                Err(format!("tablet {tablet} moved to another node while its sstables were copied: load them there"))
            }
            None => Ok(self.owners),
        }
    }
}

/// Makes every shard copy a share of the files. After an error no copy is left.
async fn copy(
    engines: PerShard<Engine>,
    table: TableId,
    uploads: &[Uploaded],
    tablets: &[TabletRange],
) -> Result<Vec<LoadedPiece>, String> {
    let shards = rt::shard::count();
    let (all, tablets) = (uploads.to_vec(), tablets.to_vec());
    let copied = engines.call_all(move |engine| {
        let shard = usize::from(rt::shard::this().0);
        let share = all.iter().skip(shard).step_by(shards).cloned().collect();
        let tablets = tablets.clone();
        async move { engine.copy_uploaded(table, share, tablets).await.map_err(|error| error.to_string()) }
    });
    let copied = copied.await;
    let (mut pieces, mut failure) = (Vec::new(), None);
    for part in copied {
        match part {
            Ok(part) => pieces.extend(part),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None => Ok(pieces),
        Some(failure) => {
            discard(&engines.get(), table, &pieces).await;
            Err(failure)
        }
    }
}
