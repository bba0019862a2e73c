//! Compares the process's resident memory with the configured memory.
//!
//! Budgets count what is in use. Memory that is freed beside what stays is kept by the allocator: a
//! few rows of old memtables can keep the memory of many flushed ones resident. So when much is
//! resident, each shard flushes the memtables that it has, the oldest first.

use crate::remote::RemoteShards;
use engine::Engine;
use rt::shard::{PerShard, Remote};
use rt::time::{Duration, sleep};

/// Memtables are flushed when more than this part of the configured memory is resident, in percent.
const FLUSH_FROM: u64 = 92;
/// How often the resident memory is read.
const EVERY: Duration = Duration::from_millis(250);
/// The pause after the shards began to flush. It doubles while this does not help.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Watches the memory of a node that may use `memory` bytes, until its shards stop.
pub fn begin(memory: u64, remote: &Remote, engines: PerShard<Engine>) {
    rt::task::spawn(watch(memory, RemoteShards::new(remote.clone(), engines))).detach();
}

async fn watch(memory: u64, shards: RemoteShards<PerShard<Engine>>) {
    let mut guard = Guard::new(memory);
    loop {
        sleep(EVERY).await;
        let resident = match rt::host::resident_memory() {
            Ok(resident) => resident,
            Err(error) => {
                return tracing::warn!(%error, "cannot read the resident memory of the node: it is not limited");
            }
        };
        let Some(pause) = guard.pause_after_flush(resident) else { continue };
        tracing::info!(
            resident_mib = resident >> 20,
            memory_mib = memory >> 20,
            "most of `memory` is resident: the shards flush their memtables, the oldest first"
        );
        let begun = shards.call_all(|engine| async move {
            if let Some(engine) = engine.try_get() {
                engine.flush_existing_memtables();
            }
        });
        if begun.await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

/// Decides when the shards flush.
struct Guard {
    /// The resident memory above which they do, in bytes.
    limit: u64,
    /// The pause after the next flush.
    pause: Duration,
}

impl Guard {
    fn new(memory: u64) -> Guard {
        Guard { limit: memory / 100 * FLUSH_FROM, pause: PAUSE }
    }

    /// The pause after the flush that this much resident memory requires. `None` if it requires
    /// none.
    fn pause_after_flush(&mut self, resident: u64) -> Option<Duration> {
        if resident <= self.limit {
            self.pause = PAUSE;
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_that_do_not_help_become_rare() {
        let mut guard = Guard::new(1000);
        assert_eq!(guard.pause_after_flush(920), None);
        let pauses: Vec<u64> =
            (0..8).filter_map(|_| guard.pause_after_flush(921)).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 120, 120]);
        assert_eq!(guard.pause_after_flush(500), None);
        assert_eq!(guard.pause_after_flush(1000), Some(PAUSE), "it helped");
    }
}
