//! Partition locks: writes that read their partition first exclude each other, from the read until
//! the mutation is in the memtable.
//!
//! Locks are granted in the order of arrival. The queue of a partition is bounded: beyond it, a
//! write is refused at once as Overloaded.

use crate::error::{Overload, ReplicaError};
use bytes::Bytes;
use model::TableId;
use model::key::DecoratedKey;
use rt::hash::HashMap;
use rt::sync::{OwnedSemaphorePermit, Semaphore};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The most writes to one partition that may wait. More are refused.
const MAX_WAITING: usize = 10_000;

type PartitionId = (TableId, Bytes);

/// The partition locks of this shard.
#[derive(Default)]
pub(crate) struct PartitionLocks {
    busy: RefCell<HashMap<PartitionId, Rc<Queue>>>,
}

/// The queue of a partition. Each write in it has one reference.
#[derive(Debug)]
struct Queue(Arc<Semaphore>);

/// A write that waits for a partition, or holds its lock. Dropping it leaves the queue, also before
/// the lock is granted.
struct LockWaiter<'a> {
    locks: &'a PartitionLocks,
    partition: PartitionId,
    queue: Rc<Queue>,
}

/// A lock on a partition. Dropping it releases the partition.
pub(crate) struct PartitionLock<'a> {
    // Dropped first: the next write gets the lock before the queue is examined.
    _permit: OwnedSemaphorePermit,
    _waiter: LockWaiter<'a>,
}

impl PartitionLocks {
    fn queue(&self, table: TableId, key: &DecoratedKey) -> Result<LockWaiter<'_>, ReplicaError> {
        let partition = (table, key.key.clone());
        let new = || Rc::new(Queue(Arc::new(Semaphore::new(1))));
        let queue = self.busy.borrow_mut().entry(partition.clone()).or_insert_with(new).clone();
        let waiter = LockWaiter { locks: self, partition, queue };
        // One reference is the map's.
        if Rc::strong_count(&waiter.queue) > MAX_WAITING + 1 {
            return Err(ReplicaError::Overloaded(Overload::Counters));
        }
        Ok(waiter)
    }

    /// Locks a partition.
    ///
    /// # Errors
    ///
    /// Overloaded if too many writes wait for it already.
    pub async fn lock(&self, table: TableId, key: &DecoratedKey) -> Result<PartitionLock<'_>, ReplicaError> {
        let waiter = self.queue(table, key)?;
        let permit = waiter.queue.0.clone().acquire_owned().await.map_err(|_| ReplicaError::Cancelled)?;
        Ok(PartitionLock { _permit: permit, _waiter: waiter })
    }

    #[cfg(test)]
    fn is_idle(&self) -> bool {
        self.busy.borrow().is_empty()
    }
}

impl Drop for LockWaiter<'_> {
    fn drop(&mut self) {
        debug_assert!(
            self.locks.busy.borrow().get(&self.partition).is_some_and(|own| Rc::ptr_eq(own, &self.queue)),
            "all writes to a partition wait for the same lock"
        );
        // Only the map's reference and this one are left: no other write waits.
        if Rc::strong_count(&self.queue) == 2 {
            self.locks.busy.borrow_mut().remove(&self.partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn partition(name: &'static str) -> (TableId, DecoratedKey) {
        (TableId::from_bytes([1; 16]), DecoratedKey::new(Bytes::from_static(name.as_bytes())))
    }

    #[test]
    fn a_lock_is_removed_once_no_write_holds_or_awaits_it() {
        let locks = PartitionLocks::default();
        let (table, key) = partition("key");
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut first = pin!(locks.lock(table, &key));
            let Poll::Ready(Ok(held)) = first.as_mut().poll(&mut context) else { panic!("it is the first") };
            let mut second = pin!(locks.lock(table, &key));
            assert!(second.as_mut().poll(&mut context).is_pending(), "one after the other");
            drop(held);
            assert!(!locks.is_idle(), "the second waits");
            assert!(second.as_mut().poll(&mut context).is_ready());
        }
        assert!(locks.is_idle());
    }

    #[test]
    fn a_write_that_gives_up_waiting_leaves_the_queue() {
        let locks = PartitionLocks::default();
        let (table, key) = partition("key");
        let mut context = Context::from_waker(Waker::noop());
        let mut first = Box::pin(locks.lock(table, &key));
        let Poll::Ready(Ok(held)) = first.as_mut().poll(&mut context) else { panic!("it is the first") };
        let mut second = Box::pin(locks.lock(table, &key));
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(second);
        drop(held);
        drop(first);
        assert!(locks.is_idle());
    }

    #[test]
    fn too_many_are_refused() {
        let locks = PartitionLocks::default();
        let (table, key) = partition("key");
        let mut context = Context::from_waker(Waker::noop());
        let mut all: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(locks.lock(table, &key))).collect();
        let waiting = all.iter_mut().filter_map(|lock| match lock.as_mut().poll(&mut context) {
            Poll::Ready(held) => Some(held.expect("there is room")),
            Poll::Pending => None,
        });
        let held: Vec<_> = waiting.collect();
        assert_eq!(held.len(), 1, "the others wait");
        assert!(matches!(locks.queue(table, &key), Err(ReplicaError::Overloaded(_))));
        let (_, other) = partition("other");
        assert!(locks.queue(table, &other).is_ok());
        drop(held);
        drop(all);
        assert!(locks.is_idle());
    }
}
