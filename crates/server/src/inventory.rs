//! The inventory of the data directory at a start: what must be there, and what is written down for the next start.
//!
//! A start that lacks what the node held when it last ran is refused, or names what it gives up (`accept_loss`). The inventory itself
//! is the engine's ([`engine::datadir`]).

use crate::stack::{StackConfig, StartError};
use cluster::metadata::{MetadataService, Recovered};
use engine::Engine;
use engine::commitlog::{LoggedRun, OldLogs};
use engine::datadir::{DataDir, DataDirError, Inventory, InventoryKeeper, Missing};
use model::schema::TableSchema;
use rt::ShardId;
use std::rc::Rc;

/// Checks that the logs are there which the data directory held when the node last ran.
pub async fn check_logs(data_dir: &DataDir, config: &StackConfig) -> Result<(), StartError> {
    let missing = data_dir.missing().await.map_err(StartError::because)?;
    refuse_or_give_up(data_dir, config, &missing)
}

/// Checks that the directories of tables are there which the data directory held when the node last ran.
pub async fn check_tables(data_dir: &DataDir, config: &StackConfig, recovered: &Recovered) -> Result<(), StartError> {
    let without = data_dir.tables_without_directory().await.map_err(StartError::because)?;
    if without.is_empty() {
        return Ok(());
    }
    let metadata = recovered.metadata().map_err(StartError::because)?;
    let tables = without.into_iter().filter_map(|id| metadata.table_by_id(id));
    let dir = |schema: &TableSchema| data_dir.table_dir(&schema.keyspace, &schema.name, schema.id);
    let missing: Vec<Missing> = tables.map(|table| Missing::table_directory(&dir(&table.schema))).collect();
    refuse_or_give_up(data_dir, config, &missing)
}

/// Refuses a data directory that lacks what it held when the node last ran, or names in the log what is given up.
fn refuse_or_give_up(data_dir: &DataDir, config: &StackConfig, missing: &[Missing]) -> Result<(), StartError> {
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(Missing::to_string).collect();
    let (path, list) = (data_dir.path.display(), list.join("; "));
    let was_alone = data_dir.stamp.inventory.as_ref().is_none_or(|inventory| inventory.alone);
    if missing.iter().any(|missing| missing.is_raft) && (config.cluster.is_some() || !was_alone) {
        let alone = match was_alone {
            true => ". If no other node has joined its cluster: start it once with --accept-loss and without `seeds`",
            false => "",
        };
        return Err(StartError(format!(
            "the data directory {path} lacks what it held when the node last ran: {list}. A member of a cluster cannot go on without \
             its metadata log, because its votes are in it; --accept-loss does not help here. Restore the files as they were when \
             the node stopped. If they are lost, replace the node: start a new one with an empty data directory{alone}"
        )));
    }
    if !config.accept_loss {
        return Err(StartError(format!(
            "the data directory {path} lacks what it held when the node last ran: {list}. Restore the files as they were when the \
             node stopped; or start once with --accept-loss to go on without them: what they held is lost then"
        )));
    }
    for missing in missing {
        tracing::error!(
            missing = missing.what,
            lost = missing.loses,
            "going on without a missing file, as accept_loss says"
        );
    }
    Ok(())
}

/// Names the directories of tables that the metadata does not have: their data is not served.
pub async fn name_unknown_tables(data_dir: &DataDir) -> Result<(), StartError> {
    let metadata = rt::shard::service::<MetadataService>().current();
    let unknown = data_dir.unknown_tables(|id| metadata.table_by_id(id).is_some()).await;
    for table in unknown.map_err(StartError::because)? {
        tracing::error!(dir = %table.dir.display(), id = %table.id,
            "the directory has sstables of a table that the metadata does not have: they are kept, and not served");
    }
    Ok(())
}

/// Lets every shard add the tables that get a directory to the inventory, from now on.
pub async fn watch_directories(keeper: Rc<InventoryKeeper>) {
    rt::shard::install(keeper);
    rt::shard::call_all(|| async {
        rt::task::spawn(record_directories(rt::shard::service::<Engine>())).detach();
    })
    .await;
}

/// Adds the tables of this shard that get a directory to the inventory.
async fn record_directories(engine: Rc<Engine>) {
    let mut made = Vec::new();
    while let Some(more) = engine.directories_made().await {
        made.extend(more);
        let tables = made.clone();
        let recorded = rt::shard::call(ShardId(0), || async move {
            let Some(keeper) = rt::shard::try_service::<InventoryKeeper>() else { return Ok(()) };
            keeper.change(|inventory| inventory.tables.extend(tables)).await.map_err(|error| error.to_string())
        });
        match recorded.await {
            Ok(()) => made.clear(),
            Err(error) => tracing::warn!(
                error,
                tables = made.len(),
                "directories of tables are not noted: a start would not notice that they are missing"
            ),
        }
    }
}

/// What the inventory is made of.
#[derive(Clone)]
pub struct InventoryRecord {
    /// The data directory.
    pub data_dir: Rc<DataDir>,
    /// What writes the inventory.
    pub keeper: Rc<InventoryKeeper>,
    /// The node is alone in its cluster.
    pub alone: bool,
}

impl InventoryRecord {
    /// Writes down what the next start must find: this run's logs and the `old` ones, how far the log of the metadata goes, the tables
    /// with a directory. Logs that it does not name any more may be removed afterwards.
    pub async fn write(&self, old: &OldLogs) -> Result<(), DataDirError> {
        let mut runs = rt::shard::call_all(|| async { rt::shard::service::<Engine>().logged_run() }).await;
        runs.extend(old.runs.iter().map(|run| LoggedRun { shard: run.shard.0, run: run.run }));
        let (raft, alone) = (self.data_dir.noted_raft_end().await?, self.alone);
        let metadata = rt::shard::service::<MetadataService>().current();
        let mut tables = self.data_dir.durable_tables().await?;
        tables.retain(|id| metadata.table_by_id(*id).is_some());
        drop(metadata);
        // Given up at this start, or dropped.
        let gone = self.data_dir.tables_without_directory().await?;
        let change = |inventory: &mut Inventory| {
            inventory.tables.retain(|id| !gone.contains(id));
            // Shards may have added tables since the directories were listed.
            tables.append(&mut inventory.tables);
            *inventory = Inventory { raft, alone, runs, tables };
        };
        self.keeper.change(change).await
    }
}
