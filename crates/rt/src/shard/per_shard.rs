//! Handles of services that have one instance on every shard.

use super::{ShardId, call, call_all};
use crate::ctx;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the next handle of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The handle of a service of type `T` that has one instance on every shard, or only on some.
///
/// It is made once, before the shards have instances, and is passed to whatever uses the service.
/// It can be copied and sent to other shards and threads. Each shard then sets its own instance.
/// Shards of different machines share no instances, even if they share a handle.
pub struct PerShard<T> {
    id: u32,
    service: PhantomData<fn() -> T>,
}

impl<T> Clone for PerShard<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PerShard<T> {}

impl<T> fmt::Debug for PerShard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerShard<{}>({})", std::any::type_name::<T>(), self.id)
    }
}

impl<T> Default for PerShard<T> {
    fn default() -> Self {
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), service: PhantomData }
    }
}

impl<T: 'static> PerShard<T> {
    /// A new handle, without an instance on any shard. Also outside of a shard.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the instance of the running shard, replacing an earlier one.
    pub fn set(self, service: Rc<T>) {
        let before = ctx::with(|c| c.services.borrow_mut().insert(self.id, service));
        drop(before);
    }

    /// Removes the instance of the running shard.
    pub fn clear(self) {
        let before = ctx::with(|c| c.services.borrow_mut().remove(&self.id));
        drop(before);
    }

    /// The instance of the running shard. Panics if it is not set: that is a wrong order at the
    /// start.
    #[track_caller]
    pub fn get(self) -> Rc<T> {
        match self.try_get() {
            Some(service) => service,
            None => panic!("{self:?} is not set on this shard"),
        }
    }

    /// The instance of the running shard, if set.
    pub fn try_get(self) -> Option<Rc<T>> {
        ctx::try_with(|c| c.services.borrow().get(&self.id).cloned())
            .flatten()
            .and_then(|service| service.downcast::<T>().ok())
    }

    /// Runs `f` with the instance of shard `to`, as [`call`] does. Panics there if it is not set.
    #[track_caller]
    pub fn call<R, Fut>(self, to: ShardId, f: impl FnOnce(Rc<T>) -> Fut + Send + 'static) -> impl Future<Output = R>
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        call(to, move || f(self.get()))
    }

    /// Runs `f` with the instance of every shard concurrently, as [`call_all`] does. Panics on a
    /// shard where it is not set.
    pub async fn call_all<R, Fut>(self, f: impl Fn(Rc<T>) -> Fut + Clone + Send + 'static) -> Vec<R>
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        call_all(move || f(self.get())).await
    }
}
