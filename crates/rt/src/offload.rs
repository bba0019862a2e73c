//! Runs long computations of a shard's tasks on a helper thread, so that the shard can do other
//! work meanwhile.
//!
//! For pieces that cannot yield, such as parsing a text of megabytes. A shard runs one piece at a
//! time; the others wait. So pieces use at most one core per shard, and leave the other helper
//! threads to files. A piece that has begun is finished even if nothing waits for it any more.

use crate::{ctx, fs, task};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The permit of a shard's one piece.
pub(crate) fn permit() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

/// Runs `f` on the shard's helper thread. In the simulation, on the shard itself.
pub async fn run<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let ctx = ctx::current();
    ctx.counters.offloaded.add(1);
    #[cfg(feature = "sim")]
    if ctx.simulated.is_some() {
        task::yield_now().await;
        return f();
    }
    // The piece itself holds the permit, so it counts also if its future is dropped.
    let permit = ctx.offload.clone().acquire_owned().await;
    fs::blocking(move || {
        let out = f();
        drop(permit);
        out
    })
    .await
}

/// Drops a value of many parts on the helper thread, without waiting for it.
pub fn discard<T: Send + 'static>(value: T) {
    task::spawn(run(move || drop(value))).detach();
}

/// The number of pieces that were given to the helper thread of this shard.
pub fn count() -> u64 {
    ctx::with(|c| c.counters.offloaded.get())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    #[test]
    fn a_shard_works_while_its_helper_thread_computes() {
        crate::block_on(async {
            let (answer, question) = mpsc::channel();
            // The piece ends only if another task of the shard runs meanwhile.
            let other = crate::task::spawn(async move { answer.send(7).expect("the piece waits") });
            assert_eq!(super::run(move || question.recv()).await, Ok(7));
            other.await.expect("it ran");
            assert_eq!(super::count(), 1);
        });
    }

    #[test]
    fn the_pieces_of_a_shard_run_one_after_the_other() {
        crate::block_on(async {
            let (begin, begun) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let first = crate::task::spawn(super::run(move || {
                begin.send(1).expect("the test waits");
                ended.recv().expect("the test ends it");
                begin.send(2).expect("the test waits");
                begin
            }));
            crate::task::yield_now().await;
            let second = crate::task::spawn(super::run(|| ()));
            while begun.try_recv().is_err() {
                crate::task::yield_now().await;
            }
            assert!(!second.is_finished(), "it waits for the first piece");
            end.send(()).expect("the piece waits");
            drop(first.await.expect("it ends"));
            second.await.expect("it ends");
            assert_eq!(begun.recv(), Ok(2));
        });
    }
}
