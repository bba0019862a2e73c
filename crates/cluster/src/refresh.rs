//! Refresh: loads the sstables in a table's `upload` directory into the table, on all shards.
//!
//! Shard 0 leads, and every shard copies a share of the files. Either all sstables are loaded or
//! none, also after a crash (`engine/upload.rs`).

use crate::metadata::{ClusterShards, MetadataService};
use engine::{Engine, TabletRange};
use engine::{LoadedPiece, Uploaded};
use model::id::TableId;
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
    let (tablets, owners) = tablets_of(&service, table)?;
    let pieces = copy(shards.engine, table, &uploads, &tablets).await?;
    let done = Refreshed {
        dir,
        sstables: uploads.len(),
        partitions: pieces.iter().map(|piece| piece.partitions).sum(),
        bytes: pieces.iter().map(|piece| piece.bytes).sum(),
    };
    let owners = Arc::new(owners);
    let expected = shards.engine.call_all({
        let (pieces, owners) = (pieces.clone(), owners.clone());
        move |engine| {
            let expected = engine.expect_loaded(table, &own_pieces(&pieces, &owners));
            async move { expected.map_err(|error| error.to_string()) }
        }
    });
    if let Err(error) = expected.await.into_iter().collect::<Result<(), String>>() {
        forget(shards.engine, table, &pieces).await;
        // The directory of a dropped table is already deleted.
        let _ = engine.discard_loaded(table, &pieces).await;
        return Err(error);
    }
    if let Err(error) = engine.seal_loaded(table, pieces.clone(), uploads).await {
        if error.changed_nothing() {
            forget(shards.engine, table, &pieces).await;
        }
        return Err(error.to_string());
    }
    let attached = shards.engine.call_all(move |engine| {
        let (shard, own) = (rt::shard::this(), own_pieces(&pieces, &owners));
        async move { engine.attach_loaded(table, own).await.map_err(|error| format!("shard {}: {error}", shard.0)) }
    });
    attached.await.into_iter().collect::<Result<(), String>>()?;
    Ok(done)
}

/// The pieces of this shard's tablets.
fn own_pieces(pieces: &[LoadedPiece], owners: &HashMap<u32, ShardId>) -> Vec<LoadedPiece> {
    let shard = rt::shard::this();
    pieces.iter().filter(|piece| owners.get(&piece.tablet) == Some(&shard)).cloned().collect()
}

/// Makes every shard forget the pieces of a load that was not recorded.
async fn forget(engines: PerShard<Engine>, table: TableId, pieces: &[LoadedPiece]) {
    let pieces = pieces.to_vec();
    let forgotten = engines.call_all(move |engine| {
        engine.forget_loaded(table, &pieces);
        async {}
    });
    forgotten.await;
}

/// A table's tablets on this node, and the shard of each tablet. Partitions of other tablets are
/// refused, because this node does not serve them.
fn tablets_of(service: &MetadataService, table: TableId) -> Result<(Vec<TabletRange>, HashMap<u32, ShardId>), String> {
    let metadata = service.current();
    let table = metadata.table_by_id(table).ok_or("the table was dropped")?;
    let host = service.info().host_id;
    let own = |id| table.tablets.replicas(id).iter().find(|replica| replica.host == host);
    let owners: HashMap<u32, ShardId> =
        (0..table.tablets.count()).filter_map(|id| Some((id, ShardId(own(id)?.shard)))).collect();
    let ids = (0..table.tablets.count()).filter(|id| owners.contains_key(id));
    Ok((ids.map(|id| TabletRange { id, range: table.tablets.range(id) }).collect(), owners))
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
            // The directory of a dropped table is already deleted.
            let _ = engines.get().discard_loaded(table, &pieces).await;
            Err(failure)
        }
    }
}
