//! Resync: repairs a node that missed writes which hint replay will not deliver. The tables that
//! the node missed writes of are read completely at consistency ALL.
//!
//! A maintenance read merges the data of all replicas, tombstones included, and repairs each
//! replica before it ends ([`Coordinator`]). So afterwards the node has every row and every
//! deletion. Digests are not compared, because they leave tombstones out.
//!
//! Every node records the writes that other nodes missed ([`crate::hints`]). A resync requests
//! these entries from all nodes. It marks the entries before it reads the tables, and removes the
//! entries that are still marked afterwards. An entry that was noted again meanwhile is kept. No
//! clocks are compared. Entries of a node with pending hints are kept, too.
//!
//! A node that missed writes for longer than `gc_grace_seconds` may lack tombstones that other
//! replicas have purged. The deleted data would spread from the node to all others. So such a
//! resync is refused, unless it is forced. If no node has an entry for the target, a forced resync
//! reads all tables of the target. This is for losses that no node detected. Runs on shard 0.

use crate::hints::{Cause, Hints, MissedWrites};
use crate::{Consistency, Coordinator, CoordinatorError, PageRequest, Query, QueryPartitions, RequestOptions};
use bytes::Bytes;
use cluster::metadata::{ClusterShards, Metadata, Table};
use internode::{Internode, NodeStatus, Peer, Refusal, Verb};
use model::id::{HostId, TableId};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use model::time::stored_seconds;
use replica::{Class, Context, Output, OutputColumn, RateLimitMode};
use rt::Pieces;
use rt::shard::PerShard;
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::rc::Rc;
use uuid::Uuid;

mod handover;

pub use handover::hand_over;

/// The version of the messages.
const FORMAT: u8 = 1;
/// The time limit for the answer of another node.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a node may take to deliver its hints at the end of a resync.
const DELIVERY: Duration = Duration::from_secs(20);
/// Rows of a page.
const PAGE: u64 = 1000;
/// How long a page may take.
const PAGE_TIME: Duration = Duration::from_secs(30);
/// The number of attempts to read a page.
const TRIES: u32 = 3;

/// A request to another node. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Request {
    /// List the nodes that are recorded as missing writes.
    List,
    /// Remove the entries of a node that were noted last at `by` (the receiver's clock) or before:
    /// of these tables, or all.
    Forget { target: HostId, tables: Option<Vec<Option<TableId>>>, by: i64 },
    /// Mark the entries of a node.
    Mark { target: HostId, mark: Uuid },
    /// Remove the marked entries of a node for these tables, unless hints for the node are pending.
    /// The answer is [`Remaining`].
    ForgetMarked { target: HostId, tables: Vec<Option<TableId>>, mark: Uuid },
    /// Take over these entries of the sender, which leaves the cluster. The answer says that they
    /// are durable.
    TakeOver(Vec<MissedWrites>),
    /// Take over a hint that the sender, which leaves the cluster, has kept for a node. The answer
    /// says that it is stored.
    TakeOverHint { target: HostId, record: Vec<u8> },
}

/// The remaining entries and hints for a node after [`Request::ForgetMarked`]. Append-only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Remaining {
    /// Notes that are not removed yet.
    notes: u64,
    /// Bytes of hints that are not delivered yet.
    hint_bytes: u64,
}

/// The services of every shard of a node that a resync uses.
#[derive(Clone, Copy, Debug)]
pub struct ResyncShards {
    /// The services of the control plane.
    pub cluster: ClusterShards,
    /// The coordinators. Not set while the node starts.
    pub coordinator: PerShard<Coordinator>,
}

impl ResyncShards {
    /// The hints of the running shard.
    fn own_hints(self) -> Option<Rc<Hints>> {
        self.coordinator.try_get().and_then(|coordinator| coordinator.hints())
    }
}

/// Answers other nodes.
pub fn serve(internode: &Internode, shards: ResyncShards) {
    internode.serve(Verb::Missed, move |_, body| async move {
        let request = body.split_first().filter(|(version, _)| **version == FORMAT);
        let request = request.and_then(|(_, body)| postcard::from_bytes::<Request>(body).ok());
        match request.ok_or_else(|| Refusal::malformed("not a question about missed writes"))? {
            Request::List => {
                let known = here(shards).await;
                let body = postcard::to_stdvec(&known).map_err(Refusal::failed)?;
                Ok(Pieces::from(Bytes::from([&[FORMAT], &body[..]].concat())))
            }
            Request::Forget { target, tables, by } => {
                forget_here(shards, target, tables, by).await;
                Ok(Pieces::default())
            }
            Request::Mark { target, mark } => {
                mark_here(shards, target, mark).await;
                Ok(Pieces::default())
            }
            Request::ForgetMarked { target, tables, mark } => {
                let kept = forget_marked_here(shards, target, tables, mark).await;
                let body = postcard::to_stdvec(&kept).map_err(Refusal::failed)?;
                Ok(Pieces::from(Bytes::from([&[FORMAT], &body[..]].concat())))
            }
            Request::TakeOver(notes) => handover::take_over_notes(shards, notes).await,
            Request::TakeOverHint { target, record } => handover::take_over_hint(shards, target, record.into()).await,
        }
    });
}

/// The entries of this node's shards, without entries for dropped tables.
async fn here(shards: ResyncShards) -> Vec<MissedWrites> {
    let known =
        rt::shard::call_all(move || async move { shards.own_hints().map_or_else(Vec::new, |hints| hints.missed()) });
    let known: Vec<MissedWrites> = known.await.into_iter().flatten().collect();
    let Some(service) = shards.cluster.metadata.try_get() else { return known };
    let metadata = service.current();
    let is_there = |one: &MissedWrites| {
        let table = one.table.is_none_or(|table| metadata.table_by_id(table).is_some());
        table && metadata.topology.is_member(one.target)
    };
    known.into_iter().filter(is_there).collect()
}

async fn forget_here(shards: ResyncShards, target: HostId, tables: Option<Vec<Option<TableId>>>, by: i64) {
    rt::shard::call_all(move || {
        let tables = tables.clone();
        async move {
            if let Some(hints) = shards.own_hints() {
                hints.forget_missed(target, tables.as_deref(), by).await;
            }
        }
    })
    .await;
}

async fn mark_here(shards: ResyncShards, target: HostId, mark: Uuid) {
    rt::shard::call_all(move || async move {
        if let Some(hints) = shards.own_hints() {
            hints.mark_missed(target, mark);
        }
    })
    .await;
}

/// Bytes of hints for a node that this node has not delivered yet.
async fn pending_here(shards: ResyncShards, target: HostId) -> u64 {
    let pending =
        rt::shard::call_all(move || async move { shards.own_hints().map_or(0, |hints| hints.pending(target)) });
    pending.await.into_iter().sum()
}

async fn forget_marked_here(
    shards: ResyncShards,
    target: HostId,
    tables: Vec<Option<TableId>>,
    mark: Uuid,
) -> Remaining {
    if pending_here(shards, target).await > 0 {
        let delivered = rt::shard::call_all(move || async move {
            if let Some(coordinator) = shards.coordinator.try_get() {
                // Only the wait is limited, not the replay.
                let replay = rt::task::spawn(async move { coordinator.replay_hints().await });
                let _ = replay.await;
            }
        });
        // What takes longer is pending.
        drop(rt::time::timeout(DELIVERY, delivered).await);
    }
    let hint_bytes = pending_here(shards, target).await;
    let notes = rt::shard::call_all(move || {
        let tables = tables.clone();
        async move {
            let Some(hints) = shards.own_hints() else { return 0 };
            if hint_bytes == 0 {
                hints.forget_marked(target, &tables, mark).await;
            }
            hints.missed().iter().filter(|one| one.target == target && tables.contains(&one.table)).count() as u64
        }
    });
    Remaining { notes: notes.await.into_iter().sum(), hint_bytes }
}

/// Sends a request to all nodes that are up. Nodes that do not know the request, or do not answer
/// in time, are left out.
async fn ask_others(shards: ResyncShards, request: &Request, limit: Duration) -> Vec<(HostId, Bytes)> {
    let Some(internode) = shards.cluster.internode.try_get() else { return Vec::new() };
    let body =
        postcard::to_stdvec(request).map(|body| Bytes::from([&[FORMAT], &body[..]].concat())).unwrap_or_default();
    let liveness = internode.liveness();
    let up = liveness.nodes.iter().filter(|(_, node)| node.status == NodeStatus::Up).map(|(host, _)| *host);
    let asked = up.map(|host| {
        let (internode, body) = (internode.clone(), body.clone());
        async move {
            let peer = Peer { host, shard: 0 };
            let answer = internode.call(peer, Verb::Missed, body, Deadline::after(limit)).await;
            answer.ok().map(|answer| (host, answer))
        }
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

fn decoded<T: serde::de::DeserializeOwned>(answer: &Bytes) -> Option<T> {
    let (_, body) = answer.split_first().filter(|(version, _)| **version == FORMAT)?;
    postcard::from_bytes(body).ok()
}

/// The entries of this node and of all nodes that answer.
async fn all_notes(shards: ResyncShards) -> Vec<MissedWrites> {
    let mut all = here(shards).await;
    for (_, answer) in ask_others(shards, &Request::List, ANSWER).await {
        all.extend(decoded::<Vec<MissedWrites>>(&answer).unwrap_or_default());
    }
    all
}

/// The nodes that miss writes, according to this node and all nodes that answer. Each node and
/// table is listed once.
pub async fn missed(shards: ResyncShards) -> Vec<MissedWrites> {
    let mut all = all_notes(shards).await;
    all.sort_by_key(|one| (one.target, one.table, one.since));
    all.dedup_by_key(|one| (one.target, one.table));
    all
}

/// Removes all entries of a node at an operator's request: the node was repaired in another way.
pub async fn forget(shards: ResyncShards, target: HostId) {
    forget_here(shards, target, None, i64::MAX).await;
    ask_others(shards, &Request::Forget { target, tables: None, by: i64::MAX }, ANSWER).await;
}

/// Repairs a node that missed writes. Returns the names of the tables that were read. The error
/// names the tables that could not be read. If none was read, it gives the reason: the node is
/// down, or it missed writes for longer than `gc_grace_seconds` and the resync is not forced.
pub async fn resync(shards: ResyncShards, target: HostId, is_forced: bool) -> Result<Vec<String>, String> {
    let coordinator = shards.coordinator.get();
    let is_down = || !coordinator.nodes().is_alive(target);
    if is_down() {
        return Err(format!(
            "nothing was read: node {target} is down. Start it first: then its hints are delivered, and a resync reads the other \
            missed writes"
        ));
    }
    let mark = rt::random::uuid_v4();
    mark_here(shards, target, mark).await;
    ask_others(shards, &Request::Mark { target, mark }, ANSWER).await;
    // Whatever is marked is among these.
    let noted: Vec<MissedWrites> = all_notes(shards).await.into_iter().filter(|one| one.target == target).collect();
    let tables = {
        let metadata = coordinator.metadata();
        let has_copies = |table: &Table| {
            let map = &table.tablets;
            (0..map.count()).any(|tablet| map.replicas(tablet).iter().any(|replica| replica.host == target))
        };
        let reads_all = is_forced && noted.is_empty();
        let is_noted =
            |table: &&Rc<Table>| reads_all || noted.iter().any(|one| one.table.is_none_or(|id| id == table.schema.id));
        metadata.tables().filter(|table| is_noted(table) && has_copies(table)).cloned().collect::<Vec<_>>()
    };
    if !is_forced {
        let now = rt::time::wall_micros();
        let schemas = tables.iter().map(|table| &*table.schema);
        let late: Vec<&TableSchema> = schemas.filter(|schema| is_too_late(&noted, schema, now)).collect();
        if !late.is_empty() {
            return Err(too_late(target, &late));
        }
    }
    let mut unread: BTreeSet<TableId> = tables.iter().map(|table| table.schema.id).collect();
    let (mut names, mut failures) = (Vec::new(), Vec::new());
    for table in tables {
        let id = table.schema.id;
        if let Some((name, read)) = read_all(&coordinator, id).await {
            match read {
                Ok(()) => {
                    let schema = &table.schema;
                    tracing::info!(
                        node = %target, keyspace = schema.keyspace, table = schema.name,
                        "a table was read completely: the node has the writes that it missed"
                    );
                    names.push(name);
                }
                // One table does not keep the others from being read.
                Err(error) => {
                    failures.push(format!("{name} could not be read at consistency ALL: {error}"));
                    if is_down() {
                        break;
                    }
                    continue;
                }
            }
        }
        unread.remove(&id);
    }
    let is_read = |table: &Option<TableId>| table.map_or(unread.is_empty(), |id| !unread.contains(&id));
    let forgotten =
        forget_marked(shards, target, noted.iter().map(|one| one.table).filter(is_read).collect(), mark).await;
    failures.extend(forgotten.err());
    if failures.is_empty() { Ok(names) } else { Err(failures.join("; ")) }
}

/// Removes the marked entries on all nodes. An error names the nodes that keep entries, and the
/// reasons.
async fn forget_marked(
    shards: ResyncShards,
    target: HostId,
    tables: Vec<Option<TableId>>,
    mark: Uuid,
) -> Result<(), String> {
    let own = shards.cluster.metadata.get().info().host_id;
    let mut kept = vec![(own, forget_marked_here(shards, target, tables.clone(), mark).await)];
    let answers = ask_others(shards, &Request::ForgetMarked { target, tables, mark }, DELIVERY + ANSWER).await;
    kept.extend(answers.iter().filter_map(|(host, answer)| Some((*host, decoded::<Remaining>(answer)?))));
    let pending: Vec<String> = kept
        .iter()
        .filter(|(_, kept)| kept.notes > 0 && kept.hint_bytes > 0)
        .map(|(host, kept)| format!("{host} ({} bytes)", kept.hint_bytes))
        .collect();
    if pending.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the tables were read, but hints for node {target} are still pending on {}. The node is shown as \
         missing writes until a resync after their delivery. Run `messina admin resync {target}` again later",
        pending.join(", ")
    ))
}

/// Whether a node missed writes of a table for so long that other replicas may have purged
/// tombstones among them. `now` is in microseconds since the epoch.
fn is_too_late(noted: &[MissedWrites], table: &TableSchema, now: i64) -> bool {
    let grace = i64::from(table.options.gc_grace_seconds) * 1_000_000;
    let is_late = |one: &MissedWrites| one.cause == Cause::Expired || now.saturating_sub(one.since) > grace;
    noted.iter().any(|one| one.table.is_none_or(|id| id == table.id) && is_late(one))
}

fn too_late(target: HostId, tables: &[&TableSchema]) -> String {
    let name =
        |table: &&TableSchema| format!("{}.{} ({} s)", table.keyspace, table.name, table.options.gc_grace_seconds);
    let names: Vec<String> = tables.iter().map(name).collect();
    let first = tables.first().map_or_else(String::new, |table| format!("{} {}", table.keyspace, table.name));
    format!(
        "nothing was read: node {target} has missed writes for longer than gc_grace_seconds of {}. Other nodes \
         may have purged deletions that this node missed, so deleted rows would spread from it to all nodes. \
         Rebuild these tables on the node instead. Run `messina admin flush {first}` there, stop the node, and \
         remove the directory of the table from its data directory. Then start the node once with \
         --accept-loss, and run `messina admin resync {target} --force`. With --force, rows that only this node \
         has count as live",
        names.join(", ")
    )
}

/// Reads all of a table. Nothing, if the table was dropped.
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
            large_data: None,
            rate_limit: RateLimitMode::Off,
        };
        drop(metadata);
        let page = PageRequest { size: Some(PAGE), state: state.clone(), ..PageRequest::default() };
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

/// A query of every row. What replicas exchange is all that they have of a row, whatever the query
/// selects.
fn query(metadata: &Metadata, table: TableId) -> Option<Query> {
    let table = metadata.table_by_id(table)?.clone();
    Some(Query {
        table,
        partitions: QueryPartitions::Range(PartitionRange::FULL),
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(vec![OutputColumn::PartitionKey(0)], false, false)),
        limit: None,
        per_partition_limit: None,
        now: stored_seconds(rt::time::wall_seconds()),
        bypass_cache: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::SchemaVersion;
    use model::options::TableOptions;
    use model::schema::{Column, ColumnKind};

    fn table(n: u128, gc_grace_seconds: i32) -> TableSchema {
        let options = TableOptions { gc_grace_seconds, ..TableOptions::default() };
        let (id, version) = (TableId(Uuid::from_u128(n)), SchemaVersion(Uuid::from_u128(1)));
        let key = Column {
            id: model::ColumnId(0),
            name: "k".into(),
            kind: ColumnKind::PartitionKey,
            position: 0,
            ty: model::CqlType::Int,
            descending: false,
        };
        let (name, none) = (format!("t{n}"), Vec::new);
        TableSchema::new(id, version, "ks", name, vec![key], none(), none(), none(), Vec::new(), options)
    }

    #[test]
    fn a_node_that_may_have_missed_purged_deletions_is_not_read_from() {
        let target = HostId(Uuid::from_u128(5));
        let noted = |table: Option<u128>, cause, since| MissedWrites {
            target,
            table: table.map(|n| TableId(Uuid::from_u128(n))),
            cause,
            since,
        };
        let second = 1_000_000;
        let (short, long) = (table(1, 10), table(2, 1000));
        let late = |noted: &[MissedWrites], now: i64| {
            (is_too_late(noted, &short, now * second), is_too_late(noted, &long, now * second))
        };
        let full = noted(None, Cause::Full, 0);
        assert_eq!((late(&[full], 10), late(&[full], 11)), ((false, false), (true, false)));
        assert_eq!(late(&[noted(Some(2), Cause::Full, 0)], 500), (false, false));
        assert_eq!(late(&[noted(Some(2), Cause::Full, 0)], 1001), (false, true));
        // The hint was older than that when it was noted.
        assert_eq!(late(&[noted(Some(1), Cause::Expired, 0)], 0), (true, false));
        let why = too_late(target, &[&short]);
        for part in ["ks.t1 (10 s)", "messina admin flush ks t1", "--accept-loss", "--force"] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn the_form_of_messages_stays() {
        let (target, mark) = (HostId(Uuid::from_u128(5)), Uuid::from_u128(6));
        let id = |n: u8| [&[16][..], &[0; 15], &[n]].concat();
        let bytes = |request: &Request| postcard::to_stdvec(request).expect("plain values can be encoded");
        assert_eq!(bytes(&Request::List), [0]);
        let all = Request::Forget { target, tables: None, by: 1 };
        assert_eq!(bytes(&all), [&[1][..], &id(5), &[0, 2]].concat());
        assert_eq!(bytes(&Request::Mark { target, mark }), [&[2][..], &id(5), &id(6)].concat());
        let marked = Request::ForgetMarked { target, tables: vec![None], mark };
        assert_eq!(bytes(&marked), [&[3][..], &id(5), &[1, 0], &id(6)].concat());
        let note = MissedWrites { target, table: None, cause: Cause::NotesLost, since: 1 };
        assert_eq!(bytes(&Request::TakeOver(vec![note])), [&[4, 1][..], &id(5), &[0, 7, 2]].concat());
        let hint = Request::TakeOverHint { target, record: vec![9] };
        assert_eq!(bytes(&hint), [&[5][..], &id(5), &[1, 9]].concat());
        let kept = Remaining { notes: 1, hint_bytes: 2 };
        assert_eq!(postcard::to_stdvec(&kept), Ok(vec![1, 2]));
    }
}
