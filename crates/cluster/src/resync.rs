//! Bringing a node what it lacks when hints will not: the tables whose writes it missed are read as
//! a whole at consistency ALL.
//!
//! A read at ALL compares what all replicas have and gives each what it lacks before it ends
//! ([`crate::coordinator`]), so afterwards the node has every row. Every node keeps notes of the
//! writes that others missed ([`crate::hints`]); they are asked for, and forgotten, over the wire.
//! On shard 0.

use crate::coordinator::{Consistency, Partitions};
use crate::hints::MissedWrites;
use crate::internode::{Internode, NodeStatus, Peer, Refusal, Verb};
use crate::metadata::{Metadata, MetadataService, Table};
use crate::{Coordinator, CoordinatorError, PageRequest, Query, RequestOptions};
use bytes::Bytes;
use model::id::{HostId, TableId};
use model::range::{PartitionRange, Slice};
use replica::wire::Pieces;
use replica::{Class, Context, Output, OutputColumn};
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// The version of the messages.
const FORMAT: u8 = 1;
/// How long another node may take to say what it knows.
const ANSWER: Duration = Duration::from_secs(2);
/// Rows of a page.
const PAGE: u64 = 1000;
/// How long a page may take.
const PAGE_TIME: Duration = Duration::from_secs(30);
/// How often a page is read that failed.
const TRIES: u32 = 3;

/// What a node is asked. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Request {
    /// Which nodes miss writes, as far as it knows.
    List,
    /// To forget what it noted of a node until a time; of these tables, or everything.
    Forget { target: HostId, tables: Option<Vec<Option<TableId>>>, by: i64 },
}

/// Answers other nodes.
pub fn serve(internode: &Internode) {
    internode.serve(Verb::Missed, |_, body| async move {
        let request = body.split_first().filter(|(version, _)| **version == FORMAT);
        let request = request.and_then(|(_, body)| postcard::from_bytes::<Request>(body).ok());
        match request.ok_or_else(|| Refusal::malformed("not a question about missed writes"))? {
            Request::List => {
                let known = here().await;
                let body = postcard::to_stdvec(&known).map_err(Refusal::failed)?;
                Ok(Pieces::from(Bytes::from([&[FORMAT], &body[..]].concat())))
            }
            Request::Forget { target, tables, by } => {
                forget_here(target, tables, by).await;
                Ok(Pieces::default())
            }
        }
    });
}

/// What the shards of this node know, without tables that are gone.
async fn here() -> Vec<MissedWrites> {
    let known = rt::shard::call_all(|| async {
        let hints = rt::shard::try_service::<Coordinator>().and_then(|coordinator| coordinator.hints());
        hints.map_or_else(Vec::new, |hints| hints.missed())
    });
    let known: Vec<MissedWrites> = known.await.into_iter().flatten().collect();
    let Some(service) = rt::shard::try_service::<MetadataService>() else { return known };
    let metadata = service.current();
    let is_there = |one: &MissedWrites| {
        let table = one.table.is_none_or(|table| metadata.table_by_id(table).is_some());
        table && metadata.topology.node(one.target).is_some_and(|node| node.state.is_member())
    };
    known.into_iter().filter(is_there).collect()
}

async fn forget_here(target: HostId, tables: Option<Vec<Option<TableId>>>, by: i64) {
    rt::shard::call_all(move || {
        let tables = tables.clone();
        async move {
            let hints = rt::shard::try_service::<Coordinator>().and_then(|coordinator| coordinator.hints());
            if let Some(hints) = hints {
                hints.forget_missed(target, tables.as_deref(), by).await;
            }
        }
    })
    .await;
}

async fn ask_others(request: &Request) -> Vec<Bytes> {
    let Some(internode) = rt::shard::try_service::<Internode>() else { return Vec::new() };
    let body =
        postcard::to_stdvec(request).map(|body| Bytes::from([&[FORMAT], &body[..]].concat())).unwrap_or_default();
    let liveness = internode.liveness();
    let up = liveness.nodes.iter().filter(|(_, node)| node.status == NodeStatus::Up).map(|(host, _)| *host);
    let asked = up.map(|host| {
        let (internode, body) = (internode.clone(), body.clone());
        async move { internode.call(Peer { host, shard: 0 }, Verb::Missed, body, Deadline::after(ANSWER)).await.ok() }
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Which nodes miss writes, as far as this node and those that answer know: each node and table
/// once.
pub async fn missed() -> Vec<MissedWrites> {
    let mut all = here().await;
    for answer in ask_others(&Request::List).await {
        let body = answer.split_first().filter(|(version, _)| **version == FORMAT);
        all.extend(body.and_then(|(_, body)| postcard::from_bytes::<Vec<MissedWrites>>(body).ok()).unwrap_or_default());
    }
    all.sort_by_key(|one| (one.target, one.table, one.since));
    all.dedup_by_key(|one| (one.target, one.table));
    all
}

/// Forgets that a node missed writes: an operator says that it has them.
pub async fn forget(target: HostId) {
    forget_by(target, None, rt::time::wall_micros()).await;
}

async fn forget_by(target: HostId, tables: Option<Vec<Option<TableId>>>, by: i64) {
    let request = Request::Forget { target, tables: tables.clone(), by };
    forget_here(target, tables, by).await;
    ask_others(&request).await;
}

/// Brings a node all that it missed. Gives the names of the tables that were read. The error names
/// the table that could not be.
pub async fn resync(target: HostId) -> Result<Vec<String>, String> {
    let noted: Vec<Option<TableId>> =
        missed().await.into_iter().filter(|one| one.target == target).map(|one| one.table).collect();
    let began = rt::time::wall_micros();
    let coordinator = rt::shard::service::<Coordinator>();
    let tables: Vec<TableId> = {
        let metadata = coordinator.metadata();
        let has_copies = |table: &Table| {
            let map = &table.tablets;
            (0..map.count()).any(|tablet| map.replicas(tablet).iter().any(|replica| replica.host == target))
        };
        let is_meant =
            |table: &&Rc<Table>| (noted.contains(&None) || noted.contains(&Some(table.schema.id))) && has_copies(table);
        metadata.tables().filter(is_meant).map(|table| table.schema.id).collect()
    };
    let mut names = Vec::new();
    for table in tables {
        let Some((name, read)) = read_all(&coordinator, table).await else { continue };
        read.map_err(|error| format!("{name} could not be read at consistency ALL: {error}"))?;
        tracing::info!(target_node = %target, table = name, "a table was read as a whole: the node has what it missed");
        names.push(name);
    }
    forget_by(target, Some(noted), began).await;
    Ok(names)
}

/// Reads all of a table. Nothing, if it is gone.
async fn read_all(coordinator: &Rc<Coordinator>, table: TableId) -> Option<(String, Result<(), CoordinatorError>)> {
    let first = query(&coordinator.metadata(), table)?;
    let name = format!("{}.{}", first.table.schema.keyspace, first.table.schema.name);
    let mut state = None;
    let mut tries = 0;
    loop {
        let metadata = coordinator.metadata();
        let query = query(&metadata, table)?;
        let context = Context {
            class: Class::Maintenance,
            deadline: Deadline::after(PAGE_TIME),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: metadata.number,
        };
        drop(metadata);
        let page = PageRequest { size: Some(PAGE), state: state.clone(), budget: None };
        match coordinator.read(&query, &page, &RequestOptions { context, consistency: Consistency::All }).await {
            Ok(page) => {
                tries = 0;
                state = page.next;
                if state.is_none() {
                    return Some((name, Ok(())));
                }
            }
            Err(CoordinatorError::NoSuchTable) => return None,
            Err(error) => {
                tries += 1;
                if tries == TRIES {
                    return Some((name, Err(error)));
                }
            }
        }
    }
}

/// A query of every row. What replicas compare is all that they have of a row, whatever the query
/// selects.
fn query(metadata: &Metadata, table: TableId) -> Option<Query> {
    let table = metadata.table_by_id(table)?.clone();
    Some(Query {
        table,
        partitions: Partitions::Range(PartitionRange::FULL),
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(vec![OutputColumn::PartitionKey(0)], false, false)),
        limit: None,
        per_partition_limit: None,
        now: (rt::time::wall_micros() / 1_000_000) as i32,
        bypass_cache: false,
    })
}
