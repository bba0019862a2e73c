//! Waiting until a record is as durable as the sync mode promises.

use super::error::LogError;
use super::log::Commitlog;
use super::position::Position;
use super::waiters::WaiterPosition;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for an acknowledgement; made by [`Commitlog::acknowledged`].
#[must_use = "a record is safe only when this resolved"]
pub struct Acknowledged<'a> {
    log: &'a Commitlog,
    position: Position,
    place: Option<WaiterPosition>,
}

impl<'a> Acknowledged<'a> {
    pub(super) fn new(log: &'a Commitlog, position: Position) -> Self {
        Acknowledged { log, position, place: None }
    }
}

impl Future for Acknowledged<'_> {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.position < this.log.acknowledged.get() {
            return Poll::Ready(Ok(()));
        }
        let state = this.log.state.borrow();
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        if state.no_space_to_write {
            return Poll::Ready(Err(LogError::NoSpace));
        }
        let in_filling = this.position >= state.batch_start;
        this.log.waiters.borrow_mut().wait(&mut this.place, in_filling, cx);
        Poll::Pending
    }
}

impl Drop for Acknowledged<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.log.waiters.borrow_mut().leave(place);
            drop(waker);
        }
    }
}
