//! The counter id of the node, over starts and stops ([`engine::datadir`] has the rules).

use crate::start_error::StartError;
use engine::Engine;
use engine::datadir::{self, CounterSstables, DataDir, DataDirError};
use model::CounterId;
use replica::Replica;
use rt::shard::PerShard;

/// The counter id of this run.
pub(crate) struct ChosenCounterId {
    /// The id.
    pub id: CounterId,
    /// It is the id of the last run.
    is_kept: bool,
}

/// Chooses the counter id of this run, and stores it. `loses`: the start accepts the loss of files.
/// Must be called before other files than the stamp change in the data directory. On shard 0.
pub(crate) async fn choose(data_dir: &DataDir, loses: bool) -> Result<ChosenCounterId, StartError> {
    let proven = data_dir.proven_counter_id().await.map_err(StartError::because)?;
    match proven {
        Ok(id) if !loses => {
            let stored = data_dir.begin_counting(id).await;
            tolerate_full_disk(stored)?;
            Ok(ChosenCounterId { id, is_kept: true })
        }
        _ if data_dir.is_new => begin(data_dir).await,
        Ok(_) => renew(data_dir, "the start accepts the loss of files").await,
        Err(why) => renew(data_dir, &why).await,
    }
}

impl ChosenCounterId {
    /// Takes a new id if replay has skipped a part of the commitlog.
    pub async fn after_replay(self, data_dir: &DataDir, skipped: bool) -> Result<ChosenCounterId, StartError> {
        match self.is_kept && skipped {
            true => renew(data_dir, "replay has skipped a part of the commitlog").await,
            false => Ok(self),
        }
    }
}

async fn renew(data_dir: &DataDir, why: &str) -> Result<ChosenCounterId, StartError> {
    let id = CounterId(rt::random::uuid_v4());
    tracing::info!(%id, why, "this node uses a new counter id: the sums of its earlier ids are kept");
    begin_with(data_dir, id).await
}

/// Takes the first id of a new node. There is nothing to report.
async fn begin(data_dir: &DataDir) -> Result<ChosenCounterId, StartError> {
    begin_with(data_dir, CounterId(rt::random::uuid_v4())).await
}

async fn begin_with(data_dir: &DataDir, id: CounterId) -> Result<ChosenCounterId, StartError> {
    tolerate_full_disk(data_dir.begin_counting(id).await)?;
    Ok(ChosenCounterId { id, is_kept: false })
}

/// A node starts on a full disk, too. The file of the last run may remain: it cannot match at a
/// later start, because this run has begun commitlogs of its own.
fn tolerate_full_disk(stored: Result<(), DataDirError>) -> Result<(), StartError> {
    match stored {
        Err(error) if error.may_pass() => {
            tracing::warn!(%error, "the counter id is not stored: the next start takes a new one");
            Ok(())
        }
        stored => stored.map_err(StartError::because),
    }
}

/// Records that the next start can use the same id. After all shards were stopped in order. On
/// shard 0.
pub(crate) async fn keep(engines: PerShard<Engine>, replicas: PerShard<Replica>) {
    let (Some(engine), Some(replica)) = (engines.try_get(), replicas.try_get()) else { return };
    let of_shards = rt::shard::call_all(move || async move {
        replicas.try_get()?;
        engines.try_get()?.counter_sstables()
    });
    let Some(of_shards) = of_shards.await.into_iter().collect::<Option<Vec<CounterSstables>>>() else { return };
    let mut all = CounterSstables::new();
    for (dir, mut names) in of_shards.into_iter().flatten() {
        all.entry(dir).or_default().append(&mut names);
    }
    let kept = datadir::leave_counter_id(engine.data_dir(), engine.host_id(), replica.counter_id(), all).await;
    if let Err(error) = kept {
        tracing::warn!(%error, "the counter id could not be saved: the next start takes a new one");
    }
}
