//! Reads of pages that are in progress: a page that several readers miss at once is read once.

use super::{Key, PageCache};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The duty to read some pages. Dropping it wakes the waiting readers, even if a page was not read.
pub(crate) struct Claim {
    cache: Rc<PageCache>,
    keys: Vec<Key>,
}

impl Claim {
    /// A claim of pages, for which the cache has flights.
    pub(super) fn new(cache: Rc<PageCache>, keys: Vec<Key>) -> Claim {
        Claim { cache, keys }
    }

    /// The number of claimed pages.
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Stores the `i`-th page in the cache, and gives it to the waiting readers.
    pub fn complete(&self, i: usize, bytes: &Bytes) {
        debug_assert!(i < self.keys.len(), "only claimed pages are completed");
        let mut inner = self.cache.inner.borrow_mut();
        if let Some(&key) = self.keys.get(i) {
            inner.insert(key, bytes);
            if let Some(flight) = inner.flights.get(&key) {
                *flight.bytes.borrow_mut() = Some(bytes.clone());
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let flights: Vec<_> = {
            let mut inner = self.cache.inner.borrow_mut();
            self.keys.iter().filter_map(|key| inner.flights.remove(key)).collect()
        };
        for flight in flights {
            flight.landed.set(true);
            flight.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A read of a page that is in progress.
#[derive(Default)]
pub(crate) struct Flight {
    landed: Cell<bool>,
    bytes: RefCell<Option<Bytes>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Flight {
    /// Waits for the page. `None` if its reader gave up: the caller must look again.
    pub async fn wait(&self) -> Option<Bytes> {
        poll_fn(|cx| {
            if self.landed.get() {
                return Poll::Ready(self.bytes.borrow().clone());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
