//! Runs openraft on a shard's tasks, clock and random numbers, so that a simulated cluster is
//! reproducible from its seed.

use openraft::AsyncRuntime;
use openraft::async_runtime::AsyncOneshotSendExt;
use rt::sync::oneshot;
use rt::task::{Aborted, Task};
use rt::time::{Duration, Elapsed, Instant};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The current shard.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shard;

/// A timer.
type Sleep = Pin<Box<dyn Future<Output = ()>>>;

pin_project_lite::pin_project! {
    /// A future with a time limit.
    pub struct Limited<T> {
        #[pin]
        future: T,
        limit: Sleep,
    }
}

impl<T: Future> Future for Limited<T> {
    type Output = Result<T::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(out) = this.future.poll(cx) {
            return Poll::Ready(Ok(out));
        }
        this.limit.as_mut().poll(cx).map(|()| Err(Elapsed))
    }
}

/// The sender of one value.
pub struct Sender<T>(oneshot::Sender<T>);

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> AsyncOneshotSendExt<T> for Sender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

/// The shard's random numbers.
pub struct Random;

impl rand::RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        rt::random::u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        rt::random::u64()
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        rt::random::fill(out);
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), rand::Error> {
        rt::random::fill(out);
        Ok(())
    }
}

impl AsyncRuntime for Shard {
    type JoinError = Aborted;
    type JoinHandle<T: 'static> = Task<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R>> = Limited<T>;
    type ThreadLocalRng = Random;
    type OneshotSender<T> = Sender<T>;
    type OneshotReceiverError = oneshot::error::RecvError;
    type OneshotReceiver<T> = oneshot::Receiver<T>;

    fn spawn<T>(future: T) -> Task<T::Output>
    where
        T: Future + 'static,
        T::Output: 'static,
    {
        rt::task::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Box::pin(rt::time::sleep(duration))
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Box::pin(rt::time::sleep_until(deadline))
    }

    fn timeout<R, F: Future<Output = R>>(duration: Duration, future: F) -> Limited<F> {
        Limited { future, limit: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R>>(deadline: Instant, future: F) -> Limited<F> {
        Limited { future, limit: Self::sleep_until(deadline) }
    }

    fn is_panic(_: &Aborted) -> bool {
        false
    }

    fn thread_rng() -> Random {
        Random
    }

    fn oneshot<T>() -> (Sender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Sender(sender), receiver)
    }
}
