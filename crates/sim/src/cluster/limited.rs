//! The clients' work on the table with rate limits.

use super::client::{Failed, Row, execute, execute_as, first_int};
use super::rate_limits::{COOL, Decider, HOT};
use super::shared::{Canary, Shared};
use super::workload::{any, int};
use crate::layers::LAYERS;
use crate::reads::client_at;
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use cql::api::Consistency;
use model::key::DecoratedKey;

/// One operation in so many is of the cool partition.
const SELDOM: i32 = 100;
/// Rows of a page of the scan that checks the table. Scans are not limited.
const PAGE: i32 = 1000;

/// The owners of the hot partition, as this shard knows them.
fn owners() -> Vec<TabletReplica> {
    let metadata = LAYERS.metadata.get().current();
    let Some(table) = metadata.table("c", "l") else { return Vec::new() };
    let key = DecoratedKey::new(Bytes::copy_from_slice(&HOT.to_be_bytes()));
    table.tablets.read_set(table.tablets.tablet_of(key.token)).to_vec()
}

/// Whether this shard is one of the owners.
fn is_one_of(owners: &[TabletReplica]) -> bool {
    let own = TabletReplica { host: LAYERS.metadata.get().info().host_id, shard: rt::shard::this().0 };
    owners.contains(&own)
}

/// Reads or writes one of the partitions, as a client of a node.
pub async fn work(shared: &Shared, node: usize) -> Result<(), String> {
    let key = if any(SELDOM) == 0 { COOL } else { HOT };
    let level = [Consistency::One, Consistency::Quorum, Consistency::All][any(3) as usize];
    let (kind, number) = match any(2) {
        0 => (0, 0),
        _ => (1, shared.limits.borrow_mut().begin()),
    };
    let text = match kind {
        0 => format!("SELECT c FROM c.l WHERE k = {key}{} LIMIT 1", ["", " ORDER BY c DESC"][any(2) as usize]),
        _ => format!("INSERT INTO c.l (k, c, v) VALUES ({key}, {number}, 1)"),
    };
    let client = client_at(Some(([127, 0, 0, 1], 1).into()));
    let before = owners();
    let mut done = execute_as(client, &text, level, 10).await;
    shared.tell(|| format!("{text} at {level:?} -> {done:?}"));
    let by_coordinator = matches!(done, Err(Failed::Limited { by_coordinator: true }));
    if shared.plan.canary == Canary::RefusedIsDone && by_coordinator {
        // The node's own statements are not limited.
        let _ = execute(&text, level, 1).await;
    }
    if shared.plan.canary == Canary::OneUnlimited && node == 0 && matches!(done, Err(Failed::Limited { .. })) {
        done = execute(&text, level, 1).await;
    }
    let after = if LAYERS.metadata.try_get().is_some() { owners() } else { Vec::new() };
    let mut limits = shared.limits.borrow_mut();
    let refused = matches!(done, Err(Failed::Limited { .. }));
    let mut judged = limits.ended(key, kind, refused);
    if key == HOT && done.is_ok() {
        let decides = is_one_of(&before) && is_one_of(&after);
        let by = if decides { Decider::Owner(node, rt::shard::this().0) } else { Decider::Others };
        let owners = after.iter().map(|owner| (owner.host.0.as_u128(), owner.shard)).collect();
        judged = judged.and(limits.done(kind, by, owners, shared.elapsed()));
    }
    match done {
        Err(Failed::Limited { .. }) if kind == 1 && by_coordinator => limits.never(number),
        Ok(rows) => judged = judged.and(limits.check(first_int(&rows, "c").into_iter())),
        Err(Failed::Limited { .. }) => {}
        Err(failed) => return Err(failed.why()),
    }
    if let Err(why) = judged {
        shared.broken(why);
    }
    Ok(())
}

/// Reads the whole table and checks it.
pub async fn read_all(shared: &Shared, level: Consistency) -> Result<(), String> {
    let rows: Vec<Row> = execute("SELECT c FROM c.l", level, PAGE).await.map_err(Failed::why)?;
    let shown: Result<Vec<i32>, String> = rows.iter().filter_map(|row| row.get("c")).map(|bytes| int(bytes)).collect();
    shared.limits.borrow().check(shown?.into_iter())
}
