//! Services of the shards, for threads that are not shards: administration and metrics.

use rt::shard::{Remote, ShardId, ShardStopped};
use std::future::Future;

/// The handles `S` of services, with a way to the shards that have the instances.
#[derive(Clone)]
pub struct RemoteShards<S> {
    remote: Remote,
    shards: S,
}

impl<S: Copy + Send + 'static> RemoteShards<S> {
    /// The services of the node with these shards.
    pub fn new(remote: Remote, shards: S) -> RemoteShards<S> {
        RemoteShards { remote, shards }
    }

    /// Runs `f` on a shard, as [`Remote::call`] does.
    #[track_caller]
    pub fn call<R, Fut>(
        &self,
        to: ShardId,
        f: impl FnOnce(S) -> Fut + Send + 'static,
    ) -> impl Future<Output = Result<R, ShardStopped>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let shards = self.shards;
        self.remote.call(to, move || f(shards))
    }

    /// Runs `f` on every shard, as [`Remote::call_all`] does.
    pub fn call_all<R, Fut>(
        &self,
        f: impl Fn(S) -> Fut + Clone + Send + 'static,
    ) -> impl Future<Output = Result<Vec<R>, ShardStopped>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let shards = self.shards;
        self.remote.call_all(move || f(shards))
    }
}
