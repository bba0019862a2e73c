//! Failures that stop a running node: each watcher reports one kind of failure.

use crate::node_ops::{NodeOps, OperationMode};
use crate::runs::Runs;
use crate::start_error::StartError;
use crate::stopping::FailureSender;
use cluster::MetadataService;
use engine::Engine;
use rt::shard::PerShard;
use std::rc::Rc;

/// Waits for a failure to log or apply changes of the metadata. The node must then stop serving.
pub async fn watch_metadata(service: Rc<MetadataService>, failures: FailureSender) {
    let Some(group) = service.group() else { return };
    let error = group.failure().await;
    failures.send(StartError::of_group(&error).0);
}

/// Waits until another process replaces this node in the cluster, or an operator has removed it.
/// The node must then stop. A decommissioned node keeps running until the operator stops it.
pub async fn watch_runs(runs: Option<Rc<Runs>>, ops: PerShard<NodeOps>, failures: FailureSender) {
    let Some(runs) = runs else { return };
    tokio::select! {
        why = runs.displaced() => failures.send(why),
        why = runs.left() => {
            let is_leaving = |ops: Rc<NodeOps>| {
                matches!(ops.mode(), OperationMode::Leaving | OperationMode::Decommissioned)
            };
            if !ops.try_get().is_some_and(is_leaving) {
                failures.send(why);
            }
        }
    }
}

/// If the commitlog cannot be written any more, no write becomes durable: the node stops, and
/// flushes the writes that the log held.
pub async fn watch_log(engine: Rc<Engine>, failures: FailureSender) {
    let error = engine.failure().await;
    failures.send_log_failure(format!("shard {}: {error}", rt::shard::this()));
}
