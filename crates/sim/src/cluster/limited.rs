//! The clients' work on the tables with rate limits.

use super::client::{Failed, Row, counter, execute, execute_as, first_int};
use super::rate_limits::{COOL, Decider, HOT, Limited, OperationKind, RateLimits, VALUE_BYTES};
use super::shared::{PlantedBug, Shared};
use super::workload::{any, int};
use crate::layers::LAYERS;
use crate::reads::client_at;
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use cql::api::Consistency;
use model::key::DecoratedKey;
use model::token::Token;
use replica::PartitionId;
use rt::time::Duration;
use std::cell::RefCell;

/// One operation in this number is of the cool partition.
const COOL_ONE_IN: i32 = 100;
/// Rows of a page of the scan that checks a table. Scans are not limited.
const PAGE: i32 = 1000;

/// The owners of a table's hot partition, as this shard knows them, and whether it is one of them.
fn owners(table: &str) -> (Vec<TabletReplica>, bool) {
    let Some(service) = LAYERS.metadata.try_get() else { return (Vec::new(), false) };
    let metadata = service.current();
    let Some(table) = metadata.table("c", table) else { return (Vec::new(), false) };
    let owners = table.tablets.read_set(table.tablets.tablet_of(hot_token())).to_vec();
    let own = TabletReplica { host: service.info().host_id, shard: rt::shard::this().0 };
    let is_own = owners.contains(&own);
    (owners, is_own)
}

/// The hot partitions of all tables, as this shard knows them.
pub fn hot_partitions(shared: &Shared) -> Vec<PartitionId> {
    let metadata = LAYERS.metadata.get().current();
    let tables = shared.plan.limited.iter().filter_map(|table| metadata.table("c", table.name));
    tables.map(|table| PartitionId { table: table.schema.id, token: hot_token() }).collect()
}

fn hot_token() -> Token {
    DecoratedKey::new(Bytes::copy_from_slice(&HOT.to_be_bytes())).token
}

/// An operation of a partition.
struct Operation {
    key: i32,
    kind: OperationKind,
    /// The number of a write.
    number: i32,
    level: Consistency,
    text: String,
    /// The least value that a read of a counter may show.
    floor: i64,
}

impl Operation {
    /// A random one.
    fn any(limits: &mut RateLimits) -> Operation {
        let key = if any(COOL_ONE_IN) == 0 { COOL } else { HOT };
        let (name, limited) = (limits.table.name, limits.table.limited);
        let level = match any(3) {
            0 if limited != Limited::Counters => Consistency::One,
            1 => Consistency::All,
            _ => Consistency::Quorum,
        };
        let kind = if any(2) == 0 { OperationKind::Read } else { OperationKind::Write };
        let number = if kind == OperationKind::Read { 0 } else { limits.begin(key) };
        let order = ["", " ORDER BY c DESC"][any(2) as usize];
        let text = match (limited, kind) {
            (Limited::Counters, OperationKind::Read) => format!("SELECT n FROM c.{name} WHERE k = {key}"),
            (Limited::Counters, OperationKind::Write) => format!("UPDATE c.{name} SET n = n + 1 WHERE k = {key}"),
            (_, OperationKind::Read) => format!("SELECT c FROM c.{name} WHERE k = {key}{order} LIMIT 1"),
            (Limited::Bytes, OperationKind::Write) => {
                let value = "v".repeat(VALUE_BYTES);
                format!("INSERT INTO c.{name} (k, c, v) VALUES ({key}, {number}, '{value}')")
            }
            (_, OperationKind::Write) => format!("INSERT INTO c.{name} (k, c, v) VALUES ({key}, {number}, 1)"),
        };
        Operation { key, kind, number, level, text, floor: limits.counters.floor(key) }
    }

    /// Executes it as a client of this shard.
    async fn execute(&self, planted_bug: PlantedBug, node: usize) -> Result<Vec<Row>, Failed> {
        let client = client_at(Some(([127, 0, 0, 1], 1).into()));
        let done = execute_as(client, &self.text, self.level, 10).await;
        match (&done, planted_bug) {
            // The node's own statements are not limited.
            (Err(Failed::Limited { .. }), PlantedBug::OneUnlimited) if node == 0 => {
                return execute(&self.text, self.level, 10).await;
            }
            (Err(Failed::Limited { by_coordinator: true, .. }), PlantedBug::RefusedIsDone) => {
                let _ = execute(&self.text, self.level, 10).await;
            }
            _ => {}
        }
        done
    }

    /// Records its answer, and checks what it shows. `keeps_up`: no shard was overloaded as it
    /// began and ended.
    fn ended(&self, limits: &mut RateLimits, done: &Result<Vec<Row>, Failed>, keeps_up: bool) -> Result<(), String> {
        let is_counter = limits.table.limited == Limited::Counters;
        match (done, self.kind) {
            (Err(Failed::Limited { by_coordinator: true, .. }), OperationKind::Write) => {
                limits.never(self.key, self.number)
            }
            (Err(Failed::Refused(_)), OperationKind::Write) if is_counter => limits.counters.refused(self.key),
            (Ok(_), OperationKind::Write) if is_counter => limits.counters.acknowledged(self.key),
            (Ok(rows), OperationKind::Read) if is_counter => {
                limits.counters.check(self.key, counter(rows)?, self.floor)?
            }
            (Ok(rows), OperationKind::Read) => limits.check(first_int(rows, "c").into_iter())?,
            _ => {}
        }
        if matches!(done, Err(Failed::Limited { by_protection: true, .. })) {
            return match keeps_up || self.key != HOT {
                true => Err(format!("a shard that keeps up, or a cool partition: refused as hot: {}", self.text)),
                false => Ok(()),
            };
        }
        limits.ended(self.key, self.kind, matches!(done, Err(Failed::Limited { .. })))
    }
}

/// Reads or writes one of the partitions of one of the tables, as a client of a node.
pub async fn work(shared: &Shared, node: usize) -> Result<(), Failed> {
    let limits = &shared.limits[any(shared.limits.len() as i32) as usize];
    let operation = Operation::any(&mut limits.borrow_mut());
    let name = limits.borrow().table.name;
    let ((_, owned), keeps_up) = (owners(name), shared.keeps_up());
    let done = operation.execute(shared.plan.planted_bug, node).await;
    shared.tell(|| format!("{} at {:?} -> {done:?}", operation.text, operation.level));
    let by_protection = matches!(done, Err(Failed::Limited { by_protection: true, .. }));
    shared.protected.set(shared.protected.get() + u64::from(by_protection));
    let mut limits = limits.borrow_mut();
    let mut checked = operation.ended(&mut limits, &done, keeps_up && shared.keeps_up());
    if operation.key == HOT && done.is_ok() {
        checked = checked.and(record_decision(&mut limits, operation.kind, owned, node, shared.elapsed()));
    }
    if let Err(why) = checked {
        shared.broken(why);
    }
    match done {
        Ok(_) | Err(Failed::Limited { .. }) => Ok(()),
        Err(failed) => Err(failed),
    }
}

/// Records which shards accepted an operation of the hot partition, which the client of a node has
/// done. `owned`: whether this shard owned the partition before.
fn record_decision(
    limits: &mut RateLimits,
    kind: OperationKind,
    owned: bool,
    node: usize,
    now: Duration,
) -> Result<(), String> {
    let (owners, owns) = owners(limits.table.name);
    let by = if owned && owns { Decider::Owner(node, rt::shard::this().0) } else { Decider::Others };
    let owners = owners.iter().map(|owner| (owner.host.0.as_u128(), owner.shard)).collect();
    limits.done(kind, by, owners, now)
}

/// Reads all tables and checks them.
pub async fn read_all(shared: &Shared, level: Consistency) -> Result<(), String> {
    for limits in &shared.limits {
        let (name, limited) = (limits.borrow().table.name, limits.borrow().table.limited);
        match limited {
            Limited::Counters => read_counters(limits, level).await?,
            _ => {
                let text = format!("SELECT c FROM c.{name}");
                let rows: Vec<Row> = execute(&text, level, PAGE).await.map_err(Failed::why)?;
                let shown = rows.iter().filter_map(|row| row.get("c")).map(|bytes| int(bytes));
                let shown: Vec<i32> = shown.collect::<Result<_, String>>()?;
                limits.borrow().check(shown.into_iter())?;
            }
        }
    }
    Ok(())
}

async fn read_counters(limits: &RefCell<RateLimits>, level: Consistency) -> Result<(), String> {
    let name = limits.borrow().table.name;
    for key in [HOT, COOL] {
        let floor = limits.borrow().counters.floor(key);
        let text = format!("SELECT n FROM c.{name} WHERE k = {key}");
        let rows = execute(&text, level, 10).await.map_err(Failed::why)?;
        limits.borrow_mut().counters.check(key, counter(&rows)?, floor)?;
    }
    Ok(())
}
