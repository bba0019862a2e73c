//! Cancellation tokens and deadlines.

use super::waiters::{WaiterSlot, Waiters};
use crate::time::{Duration, Instant, Timeout};
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A cancellation token. All clones share one state. For one shard.
#[derive(Clone, Default)]
pub struct Cancel {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    cancelled: Cell<bool>,
    waiting: Waiters,
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish()
    }
}

impl Cancel {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels, and wakes all tasks in [`Cancel::cancelled`]. Calling it again has no effect.
    pub fn cancel(&self) {
        self.inner.cancelled.set(true);
        self.inner.waiting.wake_all();
    }

    /// Whether [`Cancel::cancel`] was called.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.get()
    }

    /// Waits until cancelled.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { inner: self.inner.clone(), slot: WaiterSlot::default() }
    }

    /// Runs `future` until it ends or the token is cancelled. `None` if cancelled first.
    pub fn unless<F: Future>(&self, future: F) -> Unless<F> {
        Unless { future, cancelled: self.cancelled() }
    }

    /// Runs `future`; if it has to wait, until the token is cancelled at most. `None` if cancelled.
    /// Costs nothing unless the future has to wait.
    #[inline]
    pub fn interrupt<F: Future>(&self, future: F) -> Interruptible<'_, F> {
        Interruptible { future, cancel: self, cancelled: None }
    }
}

pin_project! {
    /// A future whose waits end when it is cancelled; made by [`Cancel::interrupt`].
    #[must_use = "a future does nothing unless awaited"]
    pub struct Interruptible<'c, F> {
        #[pin]
        future: F,
        cancel: &'c Cancel,
        cancelled: Option<Cancelled>,
    }
}

impl<F: Future> Future for Interruptible<'_, F> {
    type Output = Option<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(out) = this.future.poll(cx) {
            return Poll::Ready(Some(out));
        }
        let cancelled = this.cancelled.get_or_insert_with(|| this.cancel.cancelled());
        Pin::new(cancelled).poll(cx).map(|()| None)
    }
}

pin_project! {
    /// A future that ends when it is cancelled; created by [`Cancel::unless`].
    #[must_use = "a future does nothing unless awaited"]
    pub struct Unless<F> {
        #[pin]
        future: F,
        #[pin]
        cancelled: Cancelled,
    }
}

impl<F: Future> Future for Unless<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.cancelled.poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        this.future.poll(cx).map(Some)
    }
}

/// Waits for a cancellation; created by [`Cancel::cancelled`].
#[must_use = "a future does nothing unless awaited"]
pub struct Cancelled {
    inner: Rc<Inner>,
    slot: WaiterSlot,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.inner.cancelled.get() {
            return Poll::Ready(());
        }
        this.inner.waiting.wait(&mut this.slot, cx);
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.inner.waiting.leave(&mut self.slot);
    }
}

/// Why the result of a future is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// The deadline has passed.
    Late,
    /// It was cancelled.
    Cancelled,
}

pin_project! {
    /// A future that runs while its result is wanted; made by [`Deadline::limit_unless`].
    #[must_use = "a future does nothing unless awaited"]
    pub struct WhileWanted<'c, F> {
        #[pin]
        future: Interruptible<'c, Timeout<F>>,
    }
}

impl<F: Future> Future for WhileWanted<'_, F> {
    type Output = Result<F::Output, Unwanted>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().future.poll(cx).map(|ended| match ended {
            Some(in_time) => in_time.map_err(|_| Unwanted::Late),
            None => Err(Unwanted::Cancelled),
        })
    }
}

/// The instant after which a result is no longer useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// `duration` from now (by the coarse clock).
    pub fn after(duration: Duration) -> Self {
        Self(crate::time::coarse_now() + duration)
    }

    /// Whether it has passed (by the coarse clock).
    #[inline]
    pub fn is_past(&self) -> bool {
        crate::time::coarse_now() >= self.0
    }

    /// The remaining time; zero if past.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(crate::time::now())
    }

    /// Runs `future` until the deadline at most. Reads the clock and creates a timer only if the
    /// future has to wait.
    pub fn limit<F: Future>(&self, future: F) -> Timeout<F> {
        crate::time::timeout_at(self.0, future)
    }

    /// Like [`Deadline::limit`], but also ends when `cancel` fires. That, too, costs nothing unless
    /// the future has to wait.
    #[inline]
    pub fn limit_unless<'c, F: Future>(&self, cancel: &'c Cancel, future: F) -> WhileWanted<'c, F> {
        WhileWanted { future: cancel.interrupt(self.limit(future)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancel_wakes_every_waiter_and_stays() {
        crate::block_on(async {
            let cancel = Cancel::new();
            let waiters: Vec<_> = (0..3).map(|_| crate::task::spawn(cancel.cancelled())).collect();
            let work = crate::task::spawn({
                let cancel = cancel.clone();
                async move { cancel.unless(std::future::pending::<()>()).await }
            });
            crate::task::yield_now().await;
            assert!(waiters.iter().all(|w| !w.is_finished()));
            cancel.cancel();
            for waiter in waiters {
                waiter.await.expect("not aborted");
            }
            assert_eq!(work.await.expect("not aborted"), None);
            assert!(cancel.is_cancelled());
            cancel.cancelled().await;
        });
    }

    #[test]
    fn deadline_limits() {
        crate::block_on(async {
            let deadline = Deadline::after(Duration::from_millis(5));
            assert!(deadline.limit(std::future::pending::<()>()).await.is_err());
            assert_eq!(Deadline::after(Duration::from_secs(60)).limit(async { 7 }).await.ok(), Some(7));
        });
    }

    #[test]
    fn late_and_cancelled_work_ends() {
        crate::block_on(async {
            let (cancel, soon) = (Cancel::new(), Deadline::after(Duration::from_millis(5)));
            let never = std::future::pending::<()>;
            assert_eq!(soon.limit_unless(&cancel, never()).await, Err(Unwanted::Late));
            let later = Deadline::after(Duration::from_secs(60));
            let work = crate::task::spawn({
                let cancel = cancel.clone();
                async move { later.limit_unless(&cancel, never()).await }
            });
            crate::task::yield_now().await;
            cancel.cancel();
            assert_eq!(work.await.expect("not aborted"), Err(Unwanted::Cancelled));
            assert_eq!(
                later.limit_unless(&cancel, async { 7 }).await,
                Ok(7),
                "a future that never waits is not cancelled"
            );
        });
    }
}
