//! The tasks that wait for their records to be acknowledged, by batch.
//!
//! Records are written in batches, one after the other: one is being filled while at most one is on its way to the disk. A
//! waiter belongs to one of the two, and all of a batch are woken together; nothing is allocated per waiter once the lists
//! have grown. A waiter that is dropped leaves an empty place behind.

use std::task::{Context, Waker};

/// The two lists.
#[derive(Default)]
pub(super) struct Waiters {
    /// The number of the batch that is being filled.
    filling: u64,
    lists: [Vec<Option<Waker>>; 2],
}

/// Where a waiter stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    batch: u64,
    index: usize,
}

impl Waiters {
    fn list(&mut self, batch: u64) -> &mut Vec<Option<Waker>> {
        &mut self.lists[(batch % 2) as usize]
    }

    /// Registers a waiter for the batch that is being filled, or for the one before it. A waiter whose place is still good
    /// keeps it.
    pub fn wait(&mut self, place: &mut Option<Place>, in_filling: bool, cx: &Context<'_>) {
        let batch = if in_filling { self.filling } else { self.filling.wrapping_sub(1) };
        let list = self.list(batch);
        if let Some(Place { batch: before, index }) = *place
            && before == batch
            && let Some(waker) = list.get_mut(index)
        {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return;
        }
        list.push(Some(cx.waker().clone()));
        *place = Some(Place { batch, index: list.len() - 1 });
    }

    /// Takes a waiter off.
    pub fn leave(&mut self, place: Place) -> Option<Waker> {
        if place.batch != self.filling && place.batch.wrapping_add(1) != self.filling {
            return None;
        }
        self.list(place.batch).get_mut(place.index).and_then(Option::take)
    }

    /// The batch that was filled goes on its way; another one begins.
    pub fn advance(&mut self) {
        self.filling += 1;
        let filling = self.filling;
        debug_assert!(self.list(filling).is_empty(), "the batch before last was woken");
    }

    /// Takes the list of the batch on its way, to wake it without holding a borrow; give it back with `put_back`.
    pub fn take_on_its_way(&mut self) -> Vec<Option<Waker>> {
        let batch = self.filling.wrapping_sub(1);
        std::mem::take(self.list(batch))
    }

    /// Gives the memory of a list that was woken back.
    pub fn put_back(&mut self, mut list: Vec<Option<Waker>>) {
        list.clear();
        let batch = self.filling.wrapping_sub(1);
        let place = self.list(batch);
        if place.is_empty() {
            *place = list;
        }
    }

    /// Takes everyone.
    pub fn take_all(&mut self) -> Vec<Option<Waker>> {
        let [first, second] = &mut self.lists;
        let mut all = std::mem::take(first);
        all.append(second);
        all
    }
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
    fn a_batch_is_woken_together_and_who_left_is_not() {
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
        let wake = |list: &Vec<Option<Waker>>| list.iter().flatten().for_each(Waker::wake_by_ref);
        let list = waiters.take_on_its_way();
        wake(&list);
        waiters.put_back(list);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        waiters.advance();
        assert!(waiters.leave(places[0].expect("registered")).is_none());
        let list = waiters.take_on_its_way();
        wake(&list);
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }
}
