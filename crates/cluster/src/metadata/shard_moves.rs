//! Tablets that move between shards of this node, with a change of the metadata. The engine hands
//! them over ([`Engine::hand_over`]).
//!
//! A change never waits for that. Only a change that gives a tablet to a third shard, or back to
//! the first one, waits until the tablet has arrived.

use super::service::MetadataService;
use super::state::Table;
use crate::tablets::transition::TransitionKind;
use engine::TabletRange;
use model::id::{HostId, TableId};
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeSet;

/// How long an attempt to apply a change waits for a tablet.
const ARRIVAL: Duration = Duration::from_secs(1);
/// The interval at which its arrival is looked for.
const LOOK: Duration = Duration::from_millis(1);

/// The shard of a host with a complete replica of a tablet.
fn complete_on(table: &Table, tablet: u32, host: HostId) -> Option<ShardId> {
    let replicas = table.tablets.read_set(tablet);
    replicas.iter().find(|replica| replica.host == host).map(|replica| ShardId(replica.shard))
}

/// The shards of a host between which a change moves a tablet. `None` if the tablet stays, or does
/// not move between shards.
fn moved(before: &Table, after: &Table, tablet: u32, host: HostId) -> Option<(ShardId, ShardId)> {
    let is_handed_over = |table: &Table| {
        let moving = table.tablets.transition(tablet);
        moving.is_some_and(|moving| moving.kind == TransitionKind::IntranodeMigration)
    };
    let is_same_table = before.tablets.count() == after.tablets.count() && before.has_directory_of(after);
    if !is_same_table || !(is_handed_over(before) || is_handed_over(after)) {
        return None;
    }
    let (from, to) = (complete_on(before, tablet, host)?, complete_on(after, tablet, host)?);
    (from != to).then_some((from, to))
}

impl MetadataService {
    /// Whether a change has another shard of this node hand a tablet over to this one.
    pub(super) fn is_handed_here(&self, before: Option<&Table>, after: &Table, tablet: u32) -> bool {
        let moved = before.and_then(|before| moved(before, after, tablet, self.info().host_id));
        moved.is_some_and(|(_, to)| to == rt::shard::this())
    }

    /// The shard of this node to which a change moves a tablet of this shard.
    pub(super) fn handed_to(&self, before: &Table, after: &Table, tablet: u32) -> Option<ShardId> {
        let (from, to) = moved(before, after, tablet, self.info().host_id)?;
        (from == rt::shard::this()).then_some(to)
    }

    /// Whether this shard is handing a tablet over. Nothing else may remove it.
    pub(super) fn is_handing(&self, table: TableId, tablet: u32) -> bool {
        self.handing.borrow().contains(&(table, tablet))
    }

    /// Hands a tablet over to another shard, in the background.
    pub(super) fn hand_over(&self, table: TableId, tablet: u32, to: ShardId) {
        self.handing.borrow_mut().insert((table, tablet));
        let (engine, services, engines) = (self.engine.clone(), self.shards.metadata, self.shards.engine);
        rt::task::spawn(async move {
            match engine.hand_over(table, tablet, to, engines).await {
                Ok(()) => tracing::debug!(table_id = %table, tablet, to = to.0, "a tablet has moved to another shard"),
                // The table is dropped, or the node stops.
                Err(error) => {
                    tracing::debug!(table_id = %table, tablet, %error, "a tablet does not move to another shard")
                }
            }
            if let Some(service) = services.try_get() {
                service.handing.borrow_mut().remove(&(table, tablet));
            }
        })
        .detach();
    }

    /// Sets which tablets of a table arrive at this shard, and which are on other shards of this
    /// node.
    pub(super) fn show_shard_moves(&self, before: Option<&Table>, table: &Table) {
        let (id, map) = (table.schema.id, &table.tablets);
        let (there, expected) = (self.engine.tablets_of(id), self.engine.expected_tablets(id));
        for tablet in self.own_tablets(table) {
            if !there.contains(&tablet) && !expected.contains(&tablet) && self.is_handed_here(before, table, tablet) {
                self.engine.expect_tablet(id, TabletRange { id: tablet, range: map.range(tablet) });
            }
        }
        let elsewhere = map.elsewhere_on(self.info().host_id, rt::shard::this());
        self.engine.set_tablets_elsewhere(id, elsewhere.map(|tablet| map.range(tablet)));
    }

    /// Waits until the tablets of a table have arrived that a change moves on, or back.
    pub(super) async fn finish_shard_moves(&self, table: &Table) -> Result<(), String> {
        let (id, own, until) = (table.schema.id, self.own_tablets(table), Deadline::after(ARRIVAL));
        while let Some(tablet) = self.moving_tablet(id, &own) {
            if until.is_past() {
                return Err(format!("tablet {tablet} of table {id} still moves between shards"));
            }
            rt::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A tablet that is to leave this shard and has not arrived yet, or that is to come back and
    /// has not left yet.
    fn moving_tablet(&self, table: TableId, own: &BTreeSet<u32>) -> Option<u32> {
        let arriving = self.engine.expected_tablets(table).into_iter().find(|tablet| !own.contains(tablet));
        let leaving = own.iter().copied().find(|tablet| self.is_handing(table, *tablet));
        arriving.or(leaving)
    }
}
