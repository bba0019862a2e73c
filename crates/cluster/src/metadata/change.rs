//! Makes a change: on shard 0, based on the newest metadata of the cluster, agreed on by the group,
//! and applied here before the answer.

use super::definition::{Change, Op};
use super::service::{MetadataService, NodeInfo};
use super::state::{Metadata, MetadataError};
use crate::raft::{GroupError, Outcome};
use rt::ShardId;
use rt::shard::PerShard;
use rt::sync::Deadline;
use rt::time::Duration;
use std::rc::Rc;
use thiserror::Error;

/// How long a change waits for other nodes to apply it.
const MEMBER_WAIT: Duration = Duration::from_secs(1);

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ChangeError<E> {
    /// The function that makes the change refused.
    #[error("{0}")]
    Refused(E),
    /// The change does not fit the metadata.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The change was not agreed on, logged or applied.
    #[error("{0}")]
    Storage(String),
}

/// Makes a change. Runs `make` on shard 0 with the newest metadata, and has the group agree on the
/// returned operations. Returns once every shard of this node has applied them. Without operations,
/// nothing changes. `make` runs again if another node made a change first. Callable from any shard.
pub async fn change<T, E, F>(services: PerShard<MetadataService>, make: F) -> Result<T, ChangeError<E>>
where
    F: Fn(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let change = move |service: Rc<MetadataService>| async move {
        // A change continues even if the client disconnects: whether it is made must not depend on
        // the client.
        let task = rt::task::spawn(async move { change_here(&service, make).await });
        task.await.unwrap_or_else(|_| Err(ChangeError::Storage("the node is stopping".into())))
    };
    services.call(ShardId(0), change).await
}

async fn change_here<T, E, F>(service: &Rc<MetadataService>, make: F) -> Result<T, ChangeError<E>>
where
    F: Fn(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E>,
{
    let (leading, until) = (service.leading(), Deadline::after(service.leading().timeout.get()));
    let busy = |_| ChangeError::Storage("earlier metadata changes are still waiting to be agreed upon".into());
    let _turn = until.limit(leading.turn.acquire()).await.map_err(busy)?;
    loop {
        if !leading.group.is_alone() {
            leading.group.barrier(until).await.map_err(not_begun)?;
        }
        let current = service.current();
        let (ops, result) = make(&current, service.info()).map_err(ChangeError::Refused)?;
        if ops.is_empty() {
            return Ok(result);
        }
        let change = Change { previous: current.version, new: rt::random::time_uuid(), ops };
        current.apply(&change)?.check_restorable(&change.ops)?;
        drop(current);
        if let Some(why) = leading.following.apply_failure() {
            return Err(not_begun(GroupError::Stuck(why)));
        }
        let (outcome, index) = propose(service, &change, until).await.map_err(not_made)?;
        match outcome {
            Outcome::Applied => {
                leading.group.wait_for_members(index, MEMBER_WAIT).await;
                return Ok(result);
            }
            // Another node made a change first.
            Outcome::Stale => {}
            Outcome::Failed(why) => return Err(ChangeError::Storage(why)),
        }
    }
}

/// The error of a change that was not proposed.
fn not_begun<E>(error: GroupError) -> ChangeError<E> {
    match error {
        GroupError::Stuck(_) => ChangeError::Storage(format!("{error}; nothing was changed")),
        error => not_made(error),
    }
}

fn not_made<E>(error: GroupError) -> ChangeError<E> {
    ChangeError::Storage(match error {
        GroupError::NoMajority { .. } => format!("the metadata cannot be changed now: {error}; nothing was changed"),
        GroupError::Stuck(_) => format!("{error}; it is unknown whether this statement takes effect then"),
        error => error.to_string(),
    })
}

/// Proposes a change until its outcome is known. Also returns its index in the log.
async fn propose(service: &MetadataService, change: &Change, until: Deadline) -> Result<(Outcome, u64), GroupError> {
    let (group, bytes) = (&service.leading().group, change.encoded());
    loop {
        let unknown = match group.propose(bytes.clone(), until).await {
            // An earlier proposal of this change was applied after all.
            Ok(proposed) if proposed.outcome == Outcome::Stale && service.has_reached(change.new) => {
                return Ok((Outcome::Applied, proposed.index));
            }
            Ok(proposed) => return Ok((proposed.outcome, proposed.index)),
            Err(GroupError::Unknown(why)) => why,
            Err(error) => return Err(error),
        };
        let index = group.barrier(until).await;
        let index = index.map_err(|error| GroupError::Unknown(format!("{unknown}; {error}")))?;
        if service.has_reached(change.new) {
            return Ok((Outcome::Applied, index));
        }
        if service.current().version != change.previous {
            return Ok((Outcome::Stale, index));
        }
        // The change is not applied yet. Proposing it twice is harmless, because it fits only one
        // version of the metadata.
    }
}
