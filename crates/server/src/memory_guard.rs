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
/// The pause after the shards were told to flush. It doubles while this does not help.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Watches the memory of a node that may use `memory` bytes, until its shards stop.
pub fn begin(memory: u64, remote: &Remote, engines: PerShard<Engine>) {
    rt::task::spawn(watch(memory, RemoteShards::new(remote.clone(), engines))).detach();
}

async fn watch(memory: u64, shards: RemoteShards<PerShard<Engine>>) {
    let limit = memory / 100 * FLUSH_FROM;
    let mut pause = PAUSE;
    loop {
        sleep(EVERY).await;
        let resident = match rt::host::resident_memory() {
            Ok(resident) => resident,
            Err(error) => return tracing::warn!(%error, "the resident memory cannot be read, so it is not limited"),
        };
        if resident <= limit {
            pause = PAUSE;
            continue;
        }
        tracing::info!(
            resident_mib = resident >> 20,
            memory_mib = memory >> 20,
            "much memory is resident: the shards flush their memtables, the oldest first"
        );
        let told = shards.call_all(|engine| async move {
            if let Some(engine) = engine.try_get() {
                engine.flush_existing_memtables();
            }
        });
        if told.await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
