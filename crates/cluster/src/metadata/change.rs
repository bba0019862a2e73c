//! Making a change: on shard 0, against the newest metadata of the cluster, agreed by the group, and applied here before the answer.

use super::definition::{Change, Op};
use super::service::{MetadataService, NodeInfo};
use super::state::{Metadata, MetadataError};
use crate::raft::{GroupError, Outcome};
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::rc::Rc;
use thiserror::Error;

/// How long a client is kept waiting for nodes to follow that are up, and do not.
const SPREAD: Duration = Duration::from_secs(1);

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ChangeError<E> {
    /// The one who makes it refused.
    #[error("{0}")]
    Refused(E),
    /// It does not fit.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It could not be agreed upon, written down or carried out.
    #[error("{0}")]
    Storage(String),
}

/// Makes a change: runs `make` on shard 0 against the newest metadata, has the group agree on the steps that it returns, and returns
/// once they are applied on every shard of this node. No steps: nothing to change. `make` runs again when another node was quicker.
/// From any shard.
pub async fn change<T, E, F>(make: F) -> Result<T, ChangeError<E>>
where
    F: Fn(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    rt::shard::call(ShardId(0), move || async move {
        let service = rt::shard::service::<MetadataService>();
        // A change that began is finished even if the client goes away: whether it was made must not depend on that.
        let task = rt::task::spawn(async move { change_here(&service, make).await });
        task.await.unwrap_or_else(|_| Err(ChangeError::Storage("the node is stopping".into())))
    })
    .await
}

async fn change_here<T, E, F>(service: &Rc<MetadataService>, make: F) -> Result<T, ChangeError<E>>
where
    F: Fn(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E>,
{
    let (leading, until) = (service.leading(), Deadline::after(service.leading().timeout.get()));
    let busy = |_| ChangeError::Storage("earlier changes of the metadata are still waiting to be agreed upon".into());
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
        current.apply(&change)?;
        drop(current);
        if let Some(why) = leading.following.trouble() {
            return Err(not_begun(GroupError::Stuck(why)));
        }
        let (outcome, index) = propose(service, &change, until).await.map_err(not_made)?;
        match outcome {
            Outcome::Applied => {
                leading.group.spread(index, SPREAD).await;
                return Ok(result);
            }
            // Another node was quicker.
            Outcome::Stale => {}
            Outcome::Failed(why) => return Err(ChangeError::Storage(why)),
        }
    }
}

/// An error from before the change was proposed.
fn not_begun<E>(error: GroupError) -> ChangeError<E> {
    match error {
        GroupError::Stuck(_) => ChangeError::Storage(format!("{error}; nothing was changed")),
        error => not_made(error),
    }
}

fn not_made<E>(error: GroupError) -> ChangeError<E> {
    ChangeError::Storage(match error {
        GroupError::NoMajority { .. } => format!("the metadata cannot be changed now: {error}; nothing was changed"),
        GroupError::Stuck(_) => format!("{error}; whether this statement takes effect then is not known"),
        error => error.to_string(),
    })
}

/// Proposes a change until it is known what became of it, and at which place in the history.
async fn propose(service: &MetadataService, change: &Change, until: Deadline) -> Result<(Outcome, u64), GroupError> {
    let (group, bytes) = (&service.leading().group, change.encoded());
    loop {
        let unknown = match group.propose(bytes.clone(), until).await {
            // An earlier proposal of it has been carried out after all.
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
        // It is not there yet. Proposing it twice is harmless: it fits the metadata only once.
    }
}
