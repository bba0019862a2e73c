//! Restores the metadata from the metadata log when a node starts.
//!
//! A single node also updates its own part of the metadata here, before other modules run. This
//! moves tablets from shards that it no longer has, updates its description in the topology, and
//! adds a first key for paging states. In a larger group these are normal changes, made once the
//! node runs.

use super::definition::{Change, Op, TabletsDefinition};
use super::paging_keys::{self, PagingKeyPolicy};
use super::service::NodeInfo;
use super::state::{Metadata, MetadataError, Table};
use super::touched::Touched;
use super::{builtin, decode, encode};
use crate::raft::{self, Opened};
use crate::tablets::{self, TabletReplica};
use crate::topology::{self, Node, NodeState, features};
use engine::raft_log::{RaftLog, RaftLogError};
use model::id::{HostId, TableId};
use model::range::PartitionRange;
use rt::ShardId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// Bytes of a piece of a snapshot that is being encoded.
pub(super) const SNAPSHOT_PIECE: usize = 64 << 10;

/// Why the metadata could not be restored.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The log is damaged or cannot be read.
    #[error("metadata: {0}")]
    Log(#[from] RaftLogError),
    /// A logged change does not fit.
    #[error("metadata: {0}")]
    Metadata(#[from] MetadataError),
    /// An entry cannot be decoded.
    #[error("metadata: the changes after version {0} cannot be read: {1}")]
    Entry(Uuid, String),
    /// The cluster uses features that this release does not have.
    #[error("the cluster uses features that this release does not have: {}; start a newer release", .0.join(", "))]
    Features(Vec<String>),
    /// A member of a cluster is configured to be in another datacenter or rack.
    #[error("{0}")]
    Moved(String),
    /// A change is based on a refused one: this release interprets the log differently from the
    /// release that wrote it.
    #[error(
        "metadata: change {change} is based on change {refused}, which this release refuses ({why}); start the release that wrote \
         it"
    )]
    Diverged {
        /// The version that the change leads to.
        change: Uuid,
        /// The version that the change is for.
        refused: Uuid,
        /// Why the change that leads to that version was refused.
        why: String,
    },
    /// The group could not be started.
    #[error("metadata: {0}")]
    Group(String),
}

/// The restored log, not in use yet. For shard 0.
pub struct MetadataLog {
    pub(super) opened: Opened,
    pub(super) dir: PathBuf,
}

impl MetadataLog {
    /// Whether this node is the only voter.
    pub fn is_alone(&self) -> bool {
        self.opened.is_alone()
    }
}

/// Tables and tablets that changes removed from a node. A crash may have interrupted the removal of
/// the data.
pub(super) struct RemovedData {
    /// Dropped tables, as they were. No current table uses the directory of one of them.
    pub tables: Vec<Rc<Table>>,
    /// Tablets whose token ranges, or parts of them, moved away from the node.
    pub tablets: Vec<(Rc<Table>, u32)>,
}

/// The restored metadata: encoded changes, which every shard applies.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    snapshot: Option<Vec<u8>>,
    changes: Vec<Vec<u8>>,
}

impl Recovered {
    /// The metadata of a snapshot, without changes.
    pub(super) fn of_snapshot(snapshot: Vec<u8>) -> Recovered {
        Recovered { snapshot: Some(snapshot), changes: Vec::new() }
    }

    /// The resulting metadata.
    pub fn metadata(&self) -> Result<Metadata, OpenError> {
        self.replay(|_, _, _| {})
    }

    /// The resulting metadata, and the data that the changes removed from the node.
    pub(super) fn metadata_and_removed(&self, host: HostId) -> Result<(Metadata, RemovedData), OpenError> {
        // By ranges: the number of a tablet does not outlive a split.
        let (mut tables, mut ranges): (Vec<Rc<Table>>, Vec<(TableId, PartitionRange)>) = Default::default();
        let metadata = self.replay(|before, after, ops| {
            tables.extend(Touched::by(before, after, ops).dropped);
            for op in ops {
                if let Op::EndTransition { table, tablet, .. } = op
                    && let Some(known) = before.table_by_id(*table)
                    && known.tablets.shard_on(*tablet, host).is_some()
                {
                    ranges.push((*table, known.tablets.range(*tablet)));
                }
            }
        })?;
        // The directory of a dropped table may belong to a later table with the same id, which
        // starts empty because of its epoch.
        let is_gone = |table: &Rc<Table>| {
            metadata.table_by_id(table.schema.id).is_none_or(|known| !known.has_directory_of(table))
        };
        tables.retain(is_gone);
        tables.sort_by(|a, b| directory(a).cmp(&directory(b)));
        tables.dedup_by(|a, b| directory(a) == directory(b));
        let mut parted: BTreeSet<(TableId, u32)> = BTreeSet::new();
        for (id, range) in ranges {
            let Some(map) = metadata.table_by_id(id).map(|table| &table.tablets) else { continue };
            let is_gone = |tablet: &u32| {
                map.shard_on(*tablet, host).is_none() && map.range(*tablet).intersection(&range).is_some()
            };
            parted.extend((0..map.count()).filter(is_gone).map(|tablet| (id, tablet)));
        }
        let table_of = |(id, tablet)| Some((metadata.table_by_id(id)?.clone(), tablet));
        let tablets = parted.into_iter().filter_map(table_of).collect();
        Ok((metadata, RemovedData { tables, tablets }))
    }

    /// Applies the changes. `dropping` is called for each change that may remove something, with
    /// the metadata before and after it and its operations. The outcome of a change is the same as
    /// when the node followed it ([`super::follow`]): applied, stale, or refused.
    fn replay(&self, mut dropping: impl FnMut(&Metadata, &Metadata, &[Op])) -> Result<Metadata, OpenError> {
        // Refused changes by index, and the versions that they would have led to.
        let (mut refused, mut versions): (BTreeSet<usize>, BTreeMap<Uuid, String>) = Default::default();
        loop {
            match self.replay_without(&refused, &versions, &mut dropping)? {
                Replayed::All(metadata) => return Ok(*metadata),
                // A failed operation leaves unusable metadata, so the replay starts again without
                // that change.
                Replayed::Refuses { at, version, why } => {
                    tracing::warn!(%version, why, "replay of the metadata log refused a change: the change has no effect");
                    refused.insert(at);
                    versions.insert(version, why);
                }
            }
        }
    }

    fn replay_without(
        &self,
        refused: &BTreeSet<usize>,
        versions: &BTreeMap<Uuid, String>,
        dropping: &mut impl FnMut(&Metadata, &Metadata, &[Op]),
    ) -> Result<Replayed, OpenError> {
        let mut metadata = Metadata::empty().with(&builtin::ops())?;
        if let Some(snapshot) = &self.snapshot {
            let (number, version, ops): (u64, Uuid, Vec<Op>) =
                decode(snapshot).map_err(|why| OpenError::Entry(Uuid::nil(), why))?;
            metadata = metadata.with(&ops)?;
            metadata.number = number;
            metadata.version = version;
        }
        for (at, bytes) in self.changes.iter().enumerate() {
            let change: Change = decode(bytes).map_err(|why| OpenError::Entry(metadata.version, why))?;
            if let Some(why) = versions.get(&change.previous) {
                let (refused, why) = (change.previous, why.clone());
                return Err(OpenError::Diverged { change: change.new, refused, why });
            }
            // Two nodes made a change at the same time, and this one was later. It had no effect
            // then either.
            if change.previous != metadata.version || refused.contains(&at) {
                continue;
            }
            let drops = change
                .ops
                .iter()
                .any(|op| matches!(op, Op::DropTable { .. } | Op::DropKeyspace(_) | Op::EndTransition { .. }));
            let before = drops.then(|| metadata.clone());
            if let Err(error) = metadata.advance(&change) {
                return Ok(Replayed::Refuses { at, version: change.new, why: error.to_string() });
            }
            if let Some(before) = before {
                dropping(&before, &metadata, &change.ops);
            }
        }
        Ok(Replayed::All(Box::new(metadata)))
    }
}

/// The parts of the name of a table's directory.
fn directory(table: &Table) -> (TableId, &str, &str) {
    (table.schema.id, &table.schema.keyspace, &table.schema.name)
}

/// The result of a replay.
enum Replayed {
    /// The metadata after all changes.
    All(Box<Metadata>),
    /// A change does not fit.
    Refuses { at: usize, version: Uuid, why: String },
}

/// The bytes of a snapshot of the metadata, encoded in pieces, because a large schema takes longer
/// than one task may hold a shard.
pub(super) async fn snapshot_of(metadata: Rc<Metadata>) -> Vec<u8> {
    let (mut count, mut pieces, mut piece) = (0usize, Vec::new(), Vec::new());
    for op in snapshot_ops(&metadata) {
        piece = postcard::to_extend(&op, piece).expect("metadata can be encoded");
        count += 1;
        if piece.len() >= SNAPSHOT_PIECE {
            pieces.push(std::mem::take(&mut piece));
        }
        rt::task::maybe_yield().await;
    }
    pieces.push(piece);
    // The form of (number, version, list of operations).
    let mut all = encode(&(metadata.number, metadata.version, count));
    all.reserve_exact(pieces.iter().map(Vec::len).sum());
    for piece in pieces {
        all.extend_from_slice(&piece);
        rt::task::maybe_yield().await;
    }
    all
}

/// The operations in a snapshot.
fn snapshot_ops(metadata: &Metadata) -> impl Iterator<Item = Op> {
    let built_in = metadata.keyspace(builtin::TRACES).map(|keyspace| &keyspace.definition);
    let altered = built_in.filter(|found| **found != builtin::keyspace()).cloned().map(Op::PutKeyspace);
    metadata.ops(builtin::is_built_in).chain(altered)
}

/// Opens the log in a data directory, on shard 0 and before any shard's service starts. A node
/// without a log becomes a cluster of one.
pub async fn open_log(data_dir: &Path, info: &NodeInfo) -> Result<(MetadataLog, Recovered), OpenError> {
    let dir = data_dir.join("raft");
    let first = snapshot_of(Rc::new(Recovered::default().metadata()?)).await;
    let mut opened = raft::open(&dir, info.host_id, first).await?;
    keep_end(&opened, data_dir).await;
    let mut recovered = Recovered { snapshot: opened.snapshot.take(), changes: std::mem::take(&mut opened.commands) };
    let metadata = recovered.metadata()?;
    let missing = features::missing(&metadata.topology, &features::supported());
    if !missing.is_empty() {
        return Err(OpenError::Features(missing));
    }
    let own = own_node(info, NodeState::Normal);
    topology::admit::check_location(&metadata.topology, &own).map_err(OpenError::Moved)?;
    if opened.is_alone() {
        let ops = own_affairs(&metadata, info)?;
        if !ops.is_empty() {
            let bytes = Change { previous: metadata.version, new: rt::random::uuid_v4(), ops }.encoded();
            opened.append(bytes.clone()).await?;
            recovered.changes.push(bytes);
        }
    }
    Ok((MetadataLog { opened, dir }, recovered))
}

/// This node's entry in the topology.
pub fn own_node(info: &NodeInfo, state: NodeState) -> Node {
    Node {
        host: info.host_id,
        state,
        rpc_address: info.rpc_address,
        listen_address: info.listen_address,
        broadcast_address: info.broadcast_address,
        native_port: info.native_port,
        shard_aware_port: info.shard_aware_port,
        storage_port: info.storage_port,
        datacenter: info.datacenter.clone(),
        rack: info.rack.clone(),
        shards: info.shards as u16,
        release_version: info.release_version.clone(),
        features: features::supported(),
    }
}

/// The operations that update a single node's part of the metadata at a start.
fn own_affairs(metadata: &Metadata, info: &NodeInfo) -> Result<Vec<Op>, MetadataError> {
    let mut ops = respread(metadata, info.host_id, info.shards);
    if !ops.is_empty() {
        let shards = info.shards;
        tracing::info!(shards, tables = ops.len(), "the shard count has changed: spreading tablets over the shards");
    }
    if metadata.paging_keys.newest().is_none() {
        let (policy, now) = (PagingKeyPolicy::default(), rt::time::wall_seconds());
        ops.extend(paging_keys::due(&metadata.paging_keys, policy, now, paging_keys::fresh_secret));
    }
    let own = own_node(info, NodeState::Normal);
    if metadata.topology.node(info.host_id).is_none_or(|known| **known != own) {
        ops.push(Op::PutNode(Box::new(own)));
    }
    let enabled = features::to_enable(&metadata.with(&ops)?.topology);
    if !enabled.is_empty() {
        ops.push(Op::EnableFeatures(enabled));
    }
    Ok(ops)
}

/// The operations that redistribute tablets after a change of this node's number of shards. They
/// move tablets from shards that no longer exist, and balance the others.
fn respread(metadata: &Metadata, host: HostId, shards: usize) -> Vec<Op> {
    let mut load = vec![0; shards];
    let mut ops = Vec::new();
    for table in metadata.tables().filter(|table| !builtin::is_built_in(&table.schema.keyspace)) {
        let map = &table.tablets;
        let used = (0..shards as u16).filter(|shard| map.on_shard(host, ShardId(*shard)).next().is_some()).count();
        let homeless = (0..map.count()).any(|tablet| {
            let gone = |replica: &TabletReplica| replica.host == host && replica.shard as usize >= shards;
            map.replicas(tablet).is_empty() || map.replicas(tablet).iter().any(gone)
        });
        let spread = if homeless || used < shards.min(map.count() as usize) {
            let spread = tablets::allocate(map.count(), host, &load);
            ops.push(Op::PutTablets(TabletsDefinition {
                table: table.schema.id,
                replicas: (0..spread.count()).map(|tablet| spread.replicas(tablet).to_vec()).collect(),
            }));
            Rc::new(spread)
        } else {
            map.clone()
        };
        for (shard, load) in load.iter_mut().enumerate() {
            *load += spread.on_shard(host, ShardId(shard as u16)).count() as u32;
        }
    }
    ops
}

/// Whether the data directory belongs to a member of a cluster, including a cluster of one. A node
/// that was admitted and received no metadata is not a member yet.
pub async fn is_member(data_dir: &Path, info: &NodeInfo) -> Result<bool, OpenError> {
    let dir = data_dir.join("raft");
    if !RaftLog::exists(&dir).await? {
        return Ok(false);
    }
    let mut opened = raft::open_to_join(&dir, info.host_id).await?;
    if opened.is_alone() {
        return Ok(true);
    }
    let recovered = Recovered { snapshot: opened.snapshot.take(), changes: std::mem::take(&mut opened.commands) };
    Ok(recovered.metadata()?.topology.node(info.host_id).is_some())
}

/// Opens the log of a node that a cluster has admitted. The node receives all metadata from the
/// other members.
pub async fn open_log_to_join(data_dir: &Path, info: &NodeInfo) -> Result<(MetadataLog, Recovered), OpenError> {
    let dir = data_dir.join("raft");
    let mut opened = raft::open_to_join(&dir, info.host_id).await?;
    keep_end(&opened, data_dir).await;
    let recovered = Recovered { snapshot: opened.snapshot.take(), changes: std::mem::take(&mut opened.commands) };
    Ok((MetadataLog { opened, dir }, recovered))
}

/// Records the end of the log outside of the log's directory. Without this record, a start may not
/// notice that the log was cut off. A node can serve without it, so a failure is only logged.
async fn keep_end(opened: &Opened, data_dir: &Path) {
    if let Err(error) = opened.keep_end(&engine::datadir::raft_end_path(data_dir)).await {
        tracing::warn!(%error, "the end of the metadata log cannot be recorded: the next start may not detect that the log was cut off");
    }
}
