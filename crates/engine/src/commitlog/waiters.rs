//! The tasks that wait for their records to be acknowledged, by batch.
//!
//! Records are written in batches, one after the other: one is being filled while at most one is
//! being written. A waiter belongs to one of the two, and all waiters of a batch are woken
//! together. Nothing is allocated per waiter once the lists have grown. A waiter that is dropped
//! leaves an empty entry.

use std::task::{Context, Waker};

/// The two lists.
#[derive(Default)]
pub(super) struct Waiters {
    /// The number of the batch that is being filled.
    filling: u64,
    /// Numbers the entries, so that a reused index is not mistaken for a dropped waiter's.
    tickets: u64,
    lists: [Vec<Waiting>; 2],
}

/// One waiter; no waker after it was woken or dropped.
pub(super) struct Waiting {
    ticket: u64,
    waker: Option<Waker>,
}

/// The place of a waiter in the lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaiterPosition {
    ticket: u64,
    batch: u64,
    index: usize,
}

impl Waiters {
    fn list(&mut self, batch: u64) -> &mut Vec<Waiting> {
        &mut self.lists[(batch % 2) as usize]
    }

    fn at(&mut self, place: WaiterPosition) -> Option<&mut Waiting> {
        self.list(place.batch).get_mut(place.index).filter(|waiting| waiting.ticket == place.ticket)
    }

    /// Registers a waiter for the batch that is being filled, or for the one before it. A waiter
    /// whose place is still valid keeps it.
    pub fn wait(&mut self, place: &mut Option<WaiterPosition>, in_filling: bool, cx: &Context<'_>) {
        if let Some(waiting) = place.and_then(|place| self.at(place)) {
            match &mut waiting.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => waiting.waker = Some(cx.waker().clone()),
            }
            return;
        }
        self.tickets += 1;
        let ticket = self.tickets;
        let batch = if in_filling { self.filling } else { self.filling.wrapping_sub(1) };
        let list = self.list(batch);
        list.push(Waiting { ticket, waker: Some(cx.waker().clone()) });
        *place = Some(WaiterPosition { ticket, batch, index: list.len() - 1 });
    }

    /// Removes a waiter.
    pub fn leave(&mut self, place: WaiterPosition) -> Option<Waker> {
        self.at(place).and_then(|waiting| waiting.waker.take())
    }

    /// The filled batch is being written now; a new one begins.
    pub fn advance(&mut self) {
        self.filling += 1;
        let filling = self.filling;
        debug_assert!(self.list(filling).is_empty(), "the batch before last was woken");
    }

    /// Takes the list of the batch being written, to wake it without holding a borrow. Return it
    /// with `put_back`.
    pub fn take_on_its_way(&mut self) -> Vec<Waiting> {
        let batch = self.filling.wrapping_sub(1);
        std::mem::take(self.list(batch))
    }

    /// Returns the memory of a list whose waiters were woken.
    pub fn put_back(&mut self, mut list: Vec<Waiting>) {
        list.clear();
        let batch = self.filling.wrapping_sub(1);
        let place = self.list(batch);
        if place.is_empty() {
            *place = list;
        }
    }

    /// Takes all waiters.
    pub fn take_all(&mut self) -> Vec<Waiting> {
        let [first, second] = &mut self.lists;
        let mut all = std::mem::take(first);
        all.append(second);
        all
    }
}

/// Wakes all waiters of a list.
pub(super) fn wake(list: &mut [Waiting]) {
    list.iter_mut().filter_map(|waiting| waiting.waker.take()).for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Count(AtomicU32);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_batch_of_waiters_is_woken_together_without_those_that_left() {
        let count = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let mut waiters = Waiters::default();
        let mut places = [None; 4];
        waiters.wait(&mut places[0], true, &cx);
        waiters.wait(&mut places[1], true, &cx);
        waiters.wait(&mut places[1], true, &cx);
        waiters.advance();
        waiters.wait(&mut places[2], true, &cx);
        waiters.wait(&mut places[3], false, &cx);
        assert!(waiters.leave(places[1].expect("registered")).is_some());
        let mut list = waiters.take_on_its_way();
        wake(&mut list);
        waiters.put_back(list);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        waiters.advance();
        waiters.wait(&mut places[1], true, &cx);
        assert!(waiters.leave(places[0].expect("registered")).is_none(), "another has its index now");
        let mut list = waiters.take_on_its_way();
        wake(&mut list);
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }
}
