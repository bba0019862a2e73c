//! Tablets that move between nodes while clients work, also because the replication of their
//! keyspace changes.

use super::client::execute;
use super::shared::{Plan, PlantedBug, Shared};
use super::workload::any;
use crate::layers::LAYERS;
use cluster::tablets::TabletReplica;
use cluster::tablets::strategy::{Replication, racks_by_datacenter};
use cluster::tablets::transition::{Replicas, TransitionKind};
use cluster::topology::migration_driver::{self, StreamError, StreamTask, Streamer, Streaming};
use cluster::topology::{NodeState, balancer, leave};
use cql::api::Consistency;
use futures_util::future::LocalBoxFuture;
use model::id::{HostId, TableId};
use rt::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;
use streaming::{StreamSettings, TabletStreamer};

/// Tables whose tablets move.
const TABLES: [&str; 2] = ["t", "n"];
/// How long a client waits until all tablets have the replicas of an altered keyspace. The change
/// continues without it.
const ALTERING: Duration = Duration::from_secs(2);
/// The replication factors and rack lists that a keyspace may get.
const FACTORS: [&str; 9] = [
    "2",
    "3",
    "3",
    "4",
    "4",
    "['rack0', 'rack1']",
    "['rack2', 'rack1']",
    "['rack2', 'rack0']",
    "['rack0', 'rack1', 'rack2']",
];

/// One of this number of requests for a copy is repeated later.
const LATE: i32 = 4;
/// How much later at most, in milliseconds.
const LATEST: u64 = 6_000;

/// Streams a tablet as a node does, and counts that.
struct Counted {
    shared: Rc<Shared>,
    streamer: TabletStreamer,
}

impl Streamer for Counted {
    fn copy(&self, what: StreamTask) -> LocalBoxFuture<'static, Result<(), StreamError>> {
        let (shared, tablet, table) = (self.shared.clone(), what.tablet, what.table);
        if any(LATE) == 0 {
            rt::task::spawn(repeat_late(shared.clone(), self.streamer, what.clone())).detach();
        }
        let copied = (shared.plan.planted_bug != PlantedBug::NoCopy).then(|| self.streamer.copy(what));
        Box::pin(async move {
            if let Some(copied) = copied {
                let copied = copied.await;
                shared.tell(|| format!("tablet {tablet} of table {table} is copied: {copied:?}"));
                copied?;
            }
            shared.copied.set(shared.copied.get() + 1);
            Ok(())
        })
    }
}

/// Repeats the request for a copy later, as a delayed message does. If the session has ended, it
/// must have no effect: `tablet_owned_once` and `streamed_files_identical` would find one.
async fn repeat_late(shared: Rc<Shared>, streamer: TabletStreamer, what: StreamTask) {
    rt::time::sleep(Duration::from_millis(rt::random::below(LATEST))).await;
    let (tablet, table) = (what.tablet, what.table);
    let copied = streamer.copy(what).await;
    shared.tell(|| format!("a late request to copy tablet {tablet} of table {table}: {copied:?}"));
}

/// Makes copying of tablets possible. Runs on shard 0.
pub fn serve(shared: &Rc<Shared>) {
    let streamer = TabletStreamer { shards: LAYERS.cluster(), services: LAYERS.streams };
    LAYERS.streaming.set(Rc::new(Streaming(Rc::new(Counted { shared: shared.clone(), streamer }))));
}

/// Ends it. Runs on shard 0.
pub fn stop() {
    LAYERS.streaming.clear();
}

/// Whether a tablet is moving, or may begin to, according to this node's metadata.
pub fn is_moving() -> bool {
    let metadata = LAYERS.metadata.get().current();
    let leaves = metadata.topology.members().any(|node| node.state == NodeState::Leaving);
    let is_altered = metadata.keyspace("c").is_some_and(|keyspace| keyspace.wanted_replication.is_some());
    metadata.transitions().next().is_some() || metadata.topology.is_balancing() || leaves || is_altered
}

/// The number of replicas that the keyspace asks for, according to this node's metadata. An error
/// if it lists racks, and a tablet has its replicas in others.
pub fn asked_replicas() -> Result<usize, String> {
    let metadata = LAYERS.metadata.get().current();
    let keyspace = metadata.keyspace("c").ok_or("there is no keyspace")?;
    let replication = &keyspace.definition.replication;
    for (datacenter, mut racks) in racks_by_datacenter(replication) {
        racks.sort();
        for table in keyspace.tables.values() {
            for tablet in 0..table.tablets.count() {
                let nodes = table.tablets.replicas(tablet).iter().filter_map(|own| metadata.topology.node(own.host));
                let found = nodes.filter(|node| node.datacenter == datacenter).map(|node| node.rack.clone());
                let mut found: Vec<String> = found.collect();
                found.sort();
                if found != racks {
                    let name = &table.schema.name;
                    return Err(format!(
                        "copies_as_asked is broken: tablet {tablet} of {name} is in racks {found:?} instead of {racks:?}"
                    ));
                }
            }
        }
    }
    let datacenters: BTreeSet<&str> = metadata.topology.members().map(|node| &*node.datacenter).collect();
    Ok(Replication::of(replication, datacenters).map_err(|error| error.to_string())?.total() as usize)
}

/// Moves tablets, and aborts some moves, while clients work and until the node stops. Runs on shard
/// 0.
pub async fn run(shared: Rc<Shared>, node: usize) {
    loop {
        rt::time::sleep(Duration::from_millis(100 + rt::random::below(2000))).await;
        if shared.nodes[node].is_stopping() {
            return;
        }
        if !shared.nodes[node].is_ready() {
            continue;
        }
        count_handed_over(&shared).await;
        if !shared.is_working() {
            end_moves().await;
            continue;
        }
        if !shared.plan.moving {
            continue;
        }
        let (what, done) = match any(18) {
            0 | 1 if !shared.plan.member_changes => ("leaves or stays", begin_or_cancel_leaving().await),
            2 => ("turns balancing on or off", set_balancing(any(2) == 0).await),
            16 | 17 => ("turns file streaming on or off", set_file_streaming(any(2) == 0).await),
            13..=15 if shared.plan.replicating => ("alters the replication", alter_replication().await),
            3..=5 => ("gives up a move", give_up_one().await),
            _ => ("moves a tablet", begin_one(&shared.plan).await),
        };
        shared.tell(|| format!("node {node} {what}: {done:?}"));
    }
}

async fn count_handed_over(shared: &Shared) {
    let counts = LAYERS.engine.call_all(|engine| async move { engine.metrics().tablets_taken_over }).await;
    shared.handed_over.set(shared.handed_over.get().max(counts.into_iter().sum()));
}

/// Begins to move a random tablet to another node, or to another shard of its node. Another node
/// may have begun to move it; a refused change does no harm.
async fn begin_one(plan: &Plan) -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let mut tables = TABLES.to_vec();
    tables.extend(plan.paging.then_some("p"));
    tables.extend(plan.limited.iter().map(|table| table.name));
    let table = metadata.table("c", tables[any(tables.len() as i32) as usize]).ok_or("no table")?;
    let tablet = any(table.tablets.count() as i32) as u32;
    let old = table.tablets.replicas(tablet);
    let leaving = any(old.len() as i32) as usize;
    let mut new = Replicas::from_slice(old);
    if any(3) == 0 {
        let TabletReplica { host, shard } = old[leaving];
        let shards = metadata.topology.node(host).map_or(1, |node| node.shards);
        new[leaving].shard = (shard + 1) % shards;
        return begin(table.schema.id, tablet, TransitionKind::IntranodeMigration, new).await;
    }
    let members = metadata.topology.members().filter(|node| node.state == NodeState::Normal);
    let others: Vec<(HostId, u16)> = members
        .filter(|node| old.iter().all(|replica| replica.host != node.host))
        .map(|node| (node.host, node.shards))
        .collect();
    let (host, shards) = *others.get(any(others.len() as i32) as usize).ok_or("all nodes have a copy")?;
    new[leaving] = TabletReplica { host, shard: any(i32::from(shards)) as u16 };
    begin(table.schema.id, tablet, TransitionKind::Migration, new).await
}

async fn begin(table: TableId, tablet: u32, kind: TransitionKind, new: Replicas) -> Result<(), String> {
    let begun = migration_driver::begin(LAYERS.metadata, table, tablet, kind, new).await;
    begun.map_err(|error| error.to_string())
}

/// Alters the replication of the keyspace, mostly by one replica or rack: other steps are refused.
async fn alter_replication() -> Result<(), String> {
    let factor = FACTORS[any(FACTORS.len() as i32) as usize];
    let text =
        format!("ALTER KEYSPACE c WITH replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': {factor}}}");
    match rt::time::timeout(ALTERING, execute(&text, Consistency::Quorum, 1)).await {
        Ok(done) => done.map(drop).map_err(|failed| format!("{factor}: {failed:?}")),
        Err(_) => Err(format!("{factor}: not done yet")),
    }
}

/// Has no more tablets move. A failure is repeated.
async fn end_moves() {
    // Refused unless the node is leaving.
    let _ = leave::cancel(LAYERS.metadata, own_host()).await;
    let _ = set_balancing(false).await;
}

async fn set_balancing(on: bool) -> Result<(), String> {
    balancer::set_balancing(LAYERS.metadata, on).await.map_err(|error| error.to_string())
}

fn own_host() -> HostId {
    LAYERS.metadata.get().info().host_id
}

/// Begins to decommission this node, which moves its tablets to the others. If it is leaving
/// already, cancels that.
async fn begin_or_cancel_leaving() -> Result<(), String> {
    let (own, liveness) = (own_host(), LAYERS.internode.try_get().map(|internode| internode.liveness()));
    let is_leaving = {
        let metadata = LAYERS.metadata.get().current();
        metadata.topology.node(own).is_some_and(|node| node.state == NodeState::Leaving)
    };
    let done = match is_leaving {
        true => leave::cancel(LAYERS.metadata, own).await,
        false => {
            let is_down = |host| liveness.as_ref().is_some_and(|liveness| liveness.is_down(host));
            leave::request(LAYERS.metadata, is_down).await
        }
    };
    done.map_err(|error| error.to_string())
}

/// Sets whether this node streams tablets as files or as mutations.
async fn set_file_streaming(whole_files: bool) -> Result<(), String> {
    let settings = StreamSettings { whole_files, ..StreamSettings::default() };
    LAYERS.streams.call_all(move |streams| async move { streams.set(settings) }).await;
    Ok(())
}

async fn give_up_one() -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let moving: Vec<_> = metadata.transitions().map(|(table, tablet, _)| (table.schema.id, tablet)).collect();
    let (table, tablet) = *moving.get(any(moving.len() as i32) as usize).ok_or("nothing moves")?;
    migration_driver::give_up(LAYERS.metadata, table, tablet).await.map_err(|error| error.to_string())
}
