//! The end of replay: replayed data becomes durable, the old commitlogs are removed, and compaction
//! starts.
//!
//! On a full disk, or without descriptors, replayed memtables can be neither flushed nor logged
//! again. The node serves nevertheless: reads see the replayed data, and the old logs stay on disk
//! in case of another crash. A background task retries until it succeeds. Compaction waits for it,
//! because a purge before that could drop data that a second replay needs.

use crate::inventory::InventoryRecord;
use crate::start_error::StartError;
use engine::commitlog::{self, LogError, OldLogs};
use engine::datadir::DataDirError;
use engine::{DiskReserve, EngineError};
use rt::time::Duration;

/// Pause between two attempts to make replayed data durable.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The number of failed attempts between two log lines.
const ATTEMPTS_PER_LINE: u32 = 6;

/// The work that remains after replay.
#[derive(Clone)]
pub struct AfterReplay {
    /// The logs that were replayed.
    pub logs: OldLogs,
    /// The inventory for the next start.
    pub inventory: InventoryRecord,
    /// The disk space that is reserved for the next start.
    pub reserve: DiskReserve,
}

/// Why an attempt failed.
struct Failure {
    /// Another attempt may succeed: the disk is full, or the process has no descriptors left.
    may_pass: bool,
    why: String,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure { may_pass: error.may_pass(), why: error.to_string() }
    }
}

impl From<DataDirError> for Failure {
    fn from(error: DataDirError) -> Failure {
        Failure { may_pass: error.may_pass(), why: error.to_string() }
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Failure {
        Failure { may_pass: error.may_pass(), why: error.to_string() }
    }
}

impl AfterReplay {
    /// Makes the replayed data durable and lets compaction start: at once if possible, otherwise in
    /// the background. On shard 0.
    pub async fn finish(self) -> Result<(), StartError> {
        let safe = self.make_safe().await;
        let is_safe = safe.is_ok();
        let done = match safe {
            Ok(()) => self.retire().await,
            failed => failed,
        };
        match done {
            Err(Failure { may_pass: true, why }) => {
                tracing::error!(
                    why,
                    "replayed data cannot be written; the node serves reads, keeps the old commitlogs, and will retry"
                );
                if !is_safe && let Err(error) = self.inventory.write(&self.logs).await {
                    // Both the old logs and this run's have writes now.
                    tracing::warn!(
                        %error,
                        "the inventory of the data directory cannot be written: until it is, a start would not detect the loss of this \
                         run's commitlogs; retrying"
                    );
                }
                rt::task::spawn(self.retry(is_safe)).detach();
                Ok(())
            }
            other => other.map_err(|failure| StartError(failure.why)),
        }
    }

    async fn retry(self, mut is_safe: bool) {
        for attempt in 1u32.. {
            if rt::shard::stopping().unless(rt::time::sleep(RETRY_AFTER)).await.is_none() {
                return;
            }
            let mut done = Ok(());
            if !is_safe {
                done = self.make_safe().await;
                is_safe = done.is_ok();
            }
            if is_safe {
                done = self.retire().await;
            }
            match done {
                Ok(()) => {
                    tracing::warn!("replayed data was written, and the old commitlogs were removed");
                    return;
                }
                Err(Failure { why, may_pass }) if !may_pass || attempt.is_multiple_of(ATTEMPTS_PER_LINE) => {
                    tracing::error!(why, attempt, "replayed data still cannot be written; retrying");
                }
                Err(_) => {}
            }
        }
    }

    /// Flushes the replayed data, and removes the old logs from the inventory, so that the next
    /// start does not expect them.
    async fn make_safe(&self) -> Result<(), Failure> {
        let engines = self.inventory.engines;
        let finished = engines.call_all(|engine| async move { engine.replay_finished().await.map_err(Failure::from) });
        finished.await.into_iter().collect::<Result<(), Failure>>()?;
        Ok(self.inventory.write(&OldLogs::default()).await?)
    }

    async fn retire(&self) -> Result<(), Failure> {
        commitlog::retire(&self.logs).await?;
        self.inventory.engines.call_all(|engine| async move { engine.start() }).await;
        self.reserve.take().await;
        Ok(())
    }
}
