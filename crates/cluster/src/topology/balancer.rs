//! Begins the moves of tablets that are planned ([`planner`]). Tablets move away from leaving
//! nodes, and to nodes and shards that have fewer than others. Tables also get the replicas that
//! their keyspaces ask for. The migration driver completes them.

use super::features;
use super::planner::{self, Move};
use crate::metadata::{ChangeError, MetadataService, Op, change};
use crate::tablets::transition::{Stage, Transition};
use model::id::HostId;
use rt::shard::PerShard;
use rt::sync::Notify;
use rt::time::{Duration, Instant};
use std::convert::Infallible;
use std::rc::Rc;

/// The longest interval between two plans: nodes may be up or down again. Usually a change of the
/// metadata, such as the end of a move, causes a plan.
const LOOK: Duration = Duration::from_secs(1);
/// The minimum interval between log lines.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Begins moves whenever this node is the leader, until the node stops. On shard 0. `is_down` says
/// which nodes are down.
pub async fn run(services: PerShard<MetadataService>, is_down: impl Fn(HostId) -> bool) {
    let wake: Rc<Notify> = Rc::default();
    let notify = wake.clone();
    let Some(service) = services.try_get() else { return };
    service.on_change(move |_, _| notify.notify_one());
    drop(service);
    let mut logged: Option<Instant> = None;
    while rt::shard::stopping().unless(rt::time::timeout(LOOK, wake.notified())).await.is_some() {
        let Some(service) = services.try_get() else { return };
        if !service.is_leader() {
            continue;
        }
        let metadata = service.current();
        let down = metadata.topology.down(&is_down);
        let count = planner::next_moves(&metadata, &down).len();
        let is_due = count > 0 || !planner::replication_is_due(&metadata).is_empty();
        drop((service, metadata));
        if !is_due {
            continue;
        }
        if count > 0 && logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            logged = Some(rt::time::now());
            tracing::info!(tablets = count, "tablets begin to move");
        }
        let made = change::<(), Infallible, _>(services, move |metadata, _| {
            let moves = planner::next_moves(metadata, &down).into_iter().map(begun);
            Ok((moves.chain(planner::replication_is_due(metadata)).collect(), ()))
        });
        if let Err(error) = made.await {
            tracing::info!(%error, "tablets could not begin to move; retrying");
        }
    }
}

fn begun(Move { table, tablet, new, kind }: Move) -> Op {
    let stage = Stage::AllowWriteBothReadOld;
    let begun = Transition { kind, stage, new_replicas: new, session: None };
    Op::PutTransition(Box::new(begun.written(table, tablet)))
}

/// Sets whether tablets move by themselves to nodes that have fewer. Moves under way continue.
pub async fn set_balancing(services: PerShard<MetadataService>, on: bool) -> Result<(), ChangeError<String>> {
    change(services, move |metadata, _| {
        features::check_streaming(&metadata.topology)?;
        let is_due = metadata.topology.is_balancing() != on;
        Ok((if is_due { vec![Op::SetBalancing(on)] } else { Vec::new() }, ()))
    })
    .await
}
