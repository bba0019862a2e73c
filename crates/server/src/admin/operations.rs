//! The operations of administrators: on which tables, by which shards.

use super::refusal::Refusal;
use super::{AdminShards, RemoteServices};
use cluster::observe::storage;
use engine::{Engine, EngineError};
use model::TableId;
use rt::ShardId;
use std::future::Future;
use std::rc::Rc;

/// A table by all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// Its keyspace.
    pub keyspace: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: TableId,
}

/// All keyspaces, including keyspaces of virtual tables.
pub async fn keyspaces(remote: &RemoteServices) -> Result<Vec<String>, Refusal> {
    let names = remote.call(ShardId(0), |services| async move {
        let metadata = services.cluster.metadata.get().current();
        let own = cql::system::KEYSPACES.iter().map(|name| (*name).to_owned());
        let mut names: Vec<String> = metadata.keyspaces.keys().cloned().chain(own).collect();
        names.sort();
        names
    });
    names.await.map_err(Refusal::failed)
}

/// All tables that hold data.
pub async fn all_tables(remote: &RemoteServices) -> Result<Vec<TableName>, Refusal> {
    let tables = remote.call(ShardId(0), |services| async move {
        let metadata = services.cluster.metadata.get().current();
        let mut tables: Vec<TableName> = metadata
            .tables()
            .map(|table| TableName {
                keyspace: table.schema.keyspace.clone(),
                name: table.schema.name.clone(),
                id: table.schema.id,
            })
            .collect();
        tables.sort_by(|a, b| (&a.keyspace, &a.name).cmp(&(&b.keyspace, &b.name)));
        tables
    });
    tables.await.map_err(Refusal::failed)
}

/// The tables of `keyspace`: those in the comma-separated `names`, or all.
pub async fn tables(remote: &RemoteServices, keyspace: &str, names: Option<&str>) -> Result<Vec<TableName>, Refusal> {
    if !keyspaces(remote).await?.iter().any(|known| known == keyspace) {
        return Err(Refusal::Bad(format!("Can't find a keyspace {keyspace}")));
    }
    let mut tables = all_tables(remote).await?;
    tables.retain(|table| table.keyspace == keyspace);
    let Some(names) = names.filter(|names| !names.is_empty()) else { return Ok(tables) };
    names
        .split(',')
        .map(|name| {
            let found = tables.iter().find(|table| table.name == name).cloned();
            found.ok_or_else(|| Refusal::Bad(format!("Can't find a column family {name} in keyspace {keyspace}")))
        })
        .collect()
}

/// Does `work` for each of `tables` on every shard. Skips a table that is dropped meanwhile.
pub async fn on_every_shard<W, Fut>(remote: &RemoteServices, tables: &[TableName], work: W) -> Result<(), Refusal>
where
    W: Fn(Rc<Engine>, TableId) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<(), EngineError>> + 'static,
{
    let tables = tables.to_vec();
    let done = remote.call_all(move |services| {
        let (tables, work) = (tables.clone(), work.clone());
        async move {
            let engine = services.cluster.engine.get();
            for table in tables {
                let done = work(engine.clone(), table.id).await;
                if done.is_err() && engine.is_dropped(table.id) {
                    tracing::info!(keyspace = table.keyspace, table = table.name, "skipped a table that was dropped");
                    continue;
                }
                done.map_err(|why| {
                    let place = format!("{}.{} on shard {}", table.keyspace, table.name, rt::shard::this());
                    Refusal::of_engine(why).at(place)
                })?;
            }
            Ok(())
        }
    });
    done.await.map_err(Refusal::failed)?.into_iter().collect()
}

/// Flushes the memtables of `tables`.
pub async fn flush(remote: &RemoteServices, tables: &[TableName]) -> Result<(), Refusal> {
    on_every_shard(remote, tables, |engine, table| async move { engine.flush(Some(table)).await }).await
}

/// Runs a major compaction of each tablet of `tables`.
pub async fn compact(remote: &RemoteServices, tables: &[TableName]) -> Result<(), Refusal> {
    on_every_shard(remote, tables, |engine, table| async move { engine.compact_major(table).await }).await
}

/// Loads the sstables in the `upload` directory of a table.
pub async fn refresh(remote: &RemoteServices, table: &TableName) -> Result<cluster::refresh::Refreshed, Refusal> {
    let id = table.id;
    let loaded = remote.call(ShardId(0), move |services| cluster::refresh::refresh(services.cluster, id));
    loaded
        .await
        .map_err(Refusal::failed)?
        .map_err(|why| Refusal::Failed(format!("{}.{}: {why}", table.keyspace, table.name)))
}

/// Turns automatic compaction on or off for `tables`, until the node stops.
pub async fn set_auto_compaction(remote: &RemoteServices, tables: &[TableName], on: bool) -> Result<(), Refusal> {
    on_every_shard(remote, tables, move |engine, table| async move { engine.set_auto_compaction(table, on) }).await
}

/// Bytes that all sstables take on disk.
pub async fn load(remote: &RemoteServices) -> Result<u64, Refusal> {
    observed(remote, |services| async move { storage::disk_state(services.cluster.engine).await.load_bytes }).await
}

/// Reads values of [`cluster::observe`], which shard 0 collects.
pub async fn observed<R, Fut>(
    remote: &RemoteServices,
    read: impl FnOnce(AdminShards) -> Fut + Send + 'static,
) -> Result<R, Refusal>
where
    R: Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    remote.call(ShardId(0), read).await.map_err(Refusal::failed)
}
