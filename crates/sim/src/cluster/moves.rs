//! Tablets that move between nodes while clients work. The copy is simulated: it reads all data of
//! the leaving replica and writes it to the pending one, over the simulated network.

use super::shared::{Canary, Plan, Shared};
use super::workload::any;
use crate::layers::LAYERS;
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::{Replicas, TransitionKind};
use cluster::topology::NodeState;
use cluster::topology::migration_driver::{self, StreamTask, Streamer, Streaming};
use internode::{Peer, Verb};
use model::fragment::Fragment;
use model::id::HostId;
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::range::Slice;
use model::schema::TableSchema;
use replica::wire::{Header, decode_response, encode_request};
use replica::{Class, Context, Limits, Output, RateLimitMode, ReadCommand, ReplicaAnswer, ReplicaRequest};
use rt::ShardId;
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// The longest time that one request of a copy may take.
const STEP: Duration = Duration::from_secs(3);
/// The most rows that one mutation of a copy has.
const MOST_ROWS: usize = 16;
/// Tables whose tablets move.
const TABLES: [&str; 2] = ["t", "n"];

/// Copies a tablet.
struct ByWrites(Rc<Shared>);

impl Streamer for ByWrites {
    fn copy(&self, what: StreamTask) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        let shared = self.0.clone();
        Box::pin(async move {
            if shared.plan.canary != Canary::NoCopy {
                let copied = copy(&what).await;
                shared.tell(|| format!("tablet {} of table {} is copied: {copied:?}", what.tablet, what.table));
                copied?;
            }
            shared.copied.set(shared.copied.get() + 1);
            Ok(())
        })
    }
}

async fn copy(what: &StreamTask) -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let table = metadata.table_by_id(what.table).ok_or("the table is gone")?;
    let moving = table.tablets.transition(what.tablet).ok_or("the tablet does not move any more")?;
    // Data of another replica could lack writes, and a majority would lose them.
    let leaving = what.from.iter().find(|replica| !moving.new_replicas.contains(replica));
    let leaving = *leaving.ok_or("no copy leaves")?;
    let schema = &table.schema;
    let everything = ReadCommand {
        table: what.table,
        schema_version: schema.version,
        ranges: smallvec::smallvec![table.tablets.range(what.tablet)],
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(Vec::new(), false, false)),
        limits: Limits {
            rows: u64::MAX,
            per_partition: u64::MAX,
            bytes: u64::MAX,
            tombstones: u64::MAX,
            paged: false,
            unpaged_bytes: u64::MAX,
        },
        now: model::time::stored_seconds(rt::time::wall_seconds()),
        resumed_rows: 0,
        bypass_cache: false,
        query: None,
        first_page: true,
        ends_with_rows: false,
    };
    let ReplicaAnswer::Fragments(part) =
        ask(leaving, ReplicaRequest::MutationRead(everything.into()), metadata.number).await?
    else {
        return Err("a read was answered otherwise".into());
    };
    if part.last.is_some() {
        return Err("the tablet is too large for one part".into());
    }
    for mutation in mutations(schema, &part.fragments) {
        for pending in &what.to {
            ask(*pending, ReplicaRequest::write(mutation.clone()), metadata.number).await?;
        }
    }
    Ok(())
}

/// The mutations of the fragments, each with so many rows of a partition that it fits into the log.
fn mutations(schema: &TableSchema, fragments: &[Fragment]) -> Vec<Mutation> {
    let (mut all, mut own, mut open) = (Vec::new(), None::<MutationBuilder>, None);
    let (mut partition, mut rows) = (Bytes::new(), 0);
    for fragment in fragments {
        match (fragment, own.as_mut()) {
            (Fragment::PartitionStart { key, tombstone }, _) => {
                let mut builder = MutationBuilder::new(schema.id, schema.version, &key.key);
                if !tombstone.is_live() {
                    builder.delete_partition(*tombstone);
                }
                own = Some(builder);
                (partition, rows) = (key.key.clone(), 0);
            }
            (Fragment::Static(row), Some(own)) => own.static_row(row.clone()),
            (Fragment::Row { key, row }, Some(own)) => {
                own.row(key.clone(), row.clone());
                rows += 1;
            }
            (Fragment::Change { at, tombstone }, Some(own)) => {
                if let Some((start, tombstone)) = open.take() {
                    own.delete_range(RangeTombstone { start, end: at.clone(), tombstone });
                }
                open = (!tombstone.is_live()).then(|| (at.clone(), *tombstone));
            }
            (Fragment::PartitionEnd, _) => {
                all.extend(own.take().filter(|own| !own.is_empty()).map(|own| own.finish(schema)));
            }
            (_, None) => {}
        }
        if rows == MOST_ROWS {
            all.extend(own.take().filter(|own| !own.is_empty()).map(|own| own.finish(schema)));
            own = Some(MutationBuilder::new(schema.id, schema.version, &partition));
            rows = 0;
        }
    }
    all
}

async fn ask(to: TabletReplica, request: ReplicaRequest, metadata_number: u64) -> Result<ReplicaAnswer, String> {
    let context = Context {
        class: Class::Maintenance,
        deadline: Deadline::after(STEP),
        cancel: Cancel::new(),
        trace: None,
        metadata_number,
        large_data: None,
        rate_limit: RateLimitMode::Off,
    };
    let bytes = encode_request(&Header::of(&context), &request);
    let answer = if to.host == LAYERS.metadata.get().info().host_id {
        rt::shard::call(ShardId(to.shard), move || async move { LAYERS.replica.get().serve(bytes, None).await }).await
    } else {
        let internode = LAYERS.internode.get();
        let peer = Peer { host: to.host, shard: to.shard };
        internode.call(peer, Verb::Replica, bytes, context.deadline).await.map_err(|error| error.to_string())?.into()
    };
    let response = decode_response(answer).map_err(|error| error.to_string())?;
    response.result.map_err(|error| error.to_string())
}

/// Makes copying of tablets possible. Runs on shard 0.
pub fn serve(shared: &Rc<Shared>) {
    LAYERS.streaming.set(Rc::new(Streaming(Rc::new(ByWrites(shared.clone())))));
}

/// Ends it. Runs on shard 0.
pub fn stop() {
    LAYERS.streaming.clear();
}

/// Whether a tablet is moving, according to this node's metadata.
pub fn is_moving() -> bool {
    LAYERS.metadata.get().current().transitions().next().is_some()
}

/// Moves tablets, and aborts some moves, while clients work and until the node stops. Runs on shard
/// 0.
pub async fn run(shared: Rc<Shared>, node: usize) {
    loop {
        rt::time::sleep(Duration::from_millis(100 + rt::random::below(2000))).await;
        if shared.nodes[node].is_stopping() {
            return;
        }
        if !shared.plan.moving || !shared.is_working() || !shared.nodes[node].is_ready() {
            continue;
        }
        let done = if any(5) == 0 { give_up_one().await } else { begin_one(&shared.plan).await };
        shared.tell(|| format!("node {node} has a tablet moved: {done:?}"));
    }
}

/// Begins to move a random tablet. Another node may have begun to move it; a refused change does no
/// harm.
async fn begin_one(plan: &Plan) -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let mut tables = TABLES.to_vec();
    tables.extend(plan.paging.then_some("p"));
    tables.extend(plan.limited.iter().map(|table| table.name));
    let table = metadata.table("c", tables[any(tables.len() as i32) as usize]).ok_or("no table")?;
    let tablet = any(table.tablets.count() as i32) as u32;
    let old = table.tablets.replicas(tablet);
    let members = metadata.topology.members().filter(|node| node.state == NodeState::Normal);
    let others: Vec<(HostId, u16)> = members
        .filter(|node| old.iter().all(|replica| replica.host != node.host))
        .map(|node| (node.host, node.shards))
        .collect();
    let (host, shards) = *others.get(any(others.len() as i32) as usize).ok_or("all nodes have a copy")?;
    let leaving = any(old.len() as i32) as usize;
    let mut new = Replicas::from_slice(old);
    new[leaving] = TabletReplica { host, shard: any(i32::from(shards)) as u16 };
    let begun = migration_driver::begin(LAYERS.metadata, table.schema.id, tablet, TransitionKind::Migration, new).await;
    begun.map_err(|error| error.to_string())
}

async fn give_up_one() -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let moving: Vec<_> = metadata.transitions().map(|(table, tablet, _)| (table.schema.id, tablet)).collect();
    let (table, tablet) = *moving.get(any(moving.len() as i32) as usize).ok_or("nothing moves")?;
    migration_driver::give_up(LAYERS.metadata, table, tablet).await.map_err(|error| error.to_string())
}
