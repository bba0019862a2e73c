//! Threads beside the shards, for work off the hot path: the admin and metrics servers, signals.
//!
//! A side thread reaches shards only by [`crate::Remote`]; it has no shard context. The simulation
//! has no side threads.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A running side thread. Dropping it requests a stop without waiting.
pub struct SideThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a thread called `name` with its own tokio runtime (sockets, timers, signals). It runs the
/// future of `main` until that ends or the thread is stopped.
pub fn start<F, Fut>(name: &str, main: F) -> io::Result<SideThread>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            tokio::select! {
                () = main() => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(SideThread { stop: Some(stop), thread: Some(thread) })
}

impl SideThread {
    /// Drops the thread's future and waits for the thread. Blocks: not for a shard that has other
    /// work.
    pub fn stop(mut self) {
        drop(self.stop.take());
        self.join_thread();
    }

    /// Waits until the thread's future has ended by itself.
    pub fn join(mut self) {
        self.join_thread();
    }

    fn join_thread(&mut self) {
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, MachineConfig, ShardId, shard};

    #[test]
    fn a_side_thread_calls_shards() {
        let machine = Machine::start(MachineConfig { shards: 2, ..MachineConfig::default() }, |_| async {
            shard::stopping().cancelled().await;
        })
        .expect("starts");
        let remote = machine.remote();
        let side = super::start("side", move || async move {
            assert_eq!(remote.call(ShardId(1), || async { shard::this() }).await, Ok(ShardId(1)));
        })
        .expect("starts");
        side.join();
        machine.stop();
        machine.join();
        super::start("waits", std::future::pending::<()>).expect("starts").stop();
    }
}
