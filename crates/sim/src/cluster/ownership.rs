//! The checker `tablet_owned_once`: once no tablet moves, each shard has the tablets that the
//! metadata gives to it, and the data directory has no files of others.

use crate::layers::LAYERS;
use cluster::metadata::Table;
use model::schema::TableSchema;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Files are removed, and flushes and compactions end, within this time.
const SETTLED: Duration = Duration::from_secs(10);
/// The interval between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Checks all tables of the clients on this node. Runs on shard 0.
pub async fn check() -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    for table in metadata.tables().filter(|table| table.schema.keyspace == "c") {
        let until = rt::time::now() + SETTLED;
        while let Err(why) = check_table(table).await {
            if rt::time::now() >= until {
                return Err(format!("tablet_owned_once is broken: table {}: {why}", table.schema.name));
            }
            rt::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

async fn check_table(table: &Rc<Table>) -> Result<(), String> {
    let id = table.schema.id;
    let shards = rt::shard::call_all(move || async move {
        let service = LAYERS.metadata.get();
        let (metadata, host) = (service.current(), service.info().host_id);
        let table = metadata.table_by_id(id);
        let owned: BTreeSet<u32> =
            table.map(|table| table.tablets.on_shard(host, rt::shard::this()).collect()).unwrap_or_default();
        let engine = LAYERS.engine.get();
        (owned, engine.tablets_of(id), engine.table_stats(id).map_or(0, |stats| stats.sstables))
    });
    let mut sstables = 0;
    for (shard, (owned, there, of_shard)) in shards.await.into_iter().enumerate() {
        if owned != there {
            return Err(format!("shard {shard} has the tablets {there:?} instead of {owned:?}"));
        }
        sstables += of_shard;
    }
    let engine = LAYERS.engine.get();
    let sessions = engine.session_dirs(&table.schema).await.map_err(|error| error.to_string())?;
    if !sessions.is_empty() {
        return Err(format!("files of sessions are left: {sessions:?}"));
    }
    let sealed = sealed_sstables(&table.schema).await?;
    match sealed.len() as u64 == sstables {
        true => Ok(()),
        false => Err(format!("the directory has the sstables {sealed:?}, and tablets have {sstables}")),
    }
}

/// The names of the tables of contents of a table's sstables.
async fn sealed_sstables(schema: &TableSchema) -> Result<Vec<String>, String> {
    let name = engine::datadir::table_dir_name(&schema.name, schema.id);
    let dir = LAYERS.engine.get().tables_root().join(&schema.keyspace).join(name);
    let entries = match rt::fs::read_dir(&dir).await {
        // A table without data has none.
        Err(error) if rt::fs::is_absence(&error) => return Ok(Vec::new()),
        entries => entries.map_err(|error| error.to_string())?,
    };
    Ok(entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with("-TOC.txt")).collect())
}
