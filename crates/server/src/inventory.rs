//! The inventory of the data directory: checks that required files exist at a start, and records
//! the files for the next start.
//!
//! If data of the last run is missing, the start is refused. With `accept_loss` it continues, and
//! logs the loss. The inventory itself is the engine's ([`engine::datadir`]).

use crate::stack_config::StackConfig;
use crate::start_error::StartError;
use cluster::metadata::{Metadata, MetadataService, Recovered, Table};
use cluster::tablets::TabletReplica;
use coordinator::hints::{self, Witnessed, WitnessedNotes};
use engine::commitlog::{self, LoggedRun, OldLogs, ReplayReport};
use engine::datadir::{DataDir, DataDirError, HintNotes, Inventory, InventoryKeeper, Lacks, Made, Missing};
use engine::{Engine, LogLeft, Unwritten};
use model::id::TableId;
use rt::ShardId;
use rt::shard::PerShard;
use rt::sync::Notify;
use rt::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

/// After changes of the metadata, the end of its log is recorded this often.
const LOG_END_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which it is tried again to record directories of tables.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Checks that the logs of the last run are in the data directory. Returns the losses that are
/// accepted.
pub async fn check_logs(data_dir: &DataDir, config: &StackConfig) -> Result<Vec<Missing>, StartError> {
    let missing = data_dir.missing().await.map_err(StartError::because)?;
    refuse_or_give_up(data_dir, config, &missing).await?;
    Ok(missing)
}

/// Checks that the table directories of the last run are in the data directory, with the records of
/// their truncations. Returns the losses that are accepted.
pub async fn check_tables(
    data_dir: &DataDir,
    config: &StackConfig,
    recovered: &Recovered,
) -> Result<Vec<Missing>, StartError> {
    if data_dir.stamp.inventory.is_none() {
        return Ok(Vec::new());
    }
    let metadata = recovered.metadata().map_err(StartError::because)?;
    let mut missing = Vec::new();
    for table in metadata.tables() {
        let of_table = data_dir.missing_of_table(&table.schema, table.epoch).await;
        missing.extend(of_table.map_err(StartError::because)?);
    }
    refuse_or_give_up(data_dir, config, &missing).await?;
    Ok(missing)
}

/// Refuses a data directory with missing files, or logs the losses that are accepted.
async fn refuse_or_give_up(data_dir: &DataDir, config: &StackConfig, missing: &[Missing]) -> Result<(), StartError> {
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
            "the data directory {path} lacks files that it had when the node last ran: {list}. A member of a cluster cannot start \
             without its metadata log, which holds the node's votes; --accept-loss does not help here. Restore the files as they \
             were when the node stopped. If they are lost, replace the node: start a new one with an empty data directory{alone}"
        )));
    }
    if !config.accept_loss {
        return Err(StartError(format!(
            "the data directory {path} lacks files that it had when the node last ran: {list}. Restore the files as they were when \
             the node stopped; or start once with --accept-loss: the contents of the missing files are then lost"
        )));
    }
    for missing in missing {
        tracing::error!(
            missing = missing.what,
            lost = missing.loses,
            "starting without a missing file, because accept_loss is set"
        );
        if let Some(path) = &missing.in_its_place {
            let aside = data_dir.move_away(path).await.map_err(StartError::because)?;
            tracing::warn!(path = %path.display(), to = %aside.display(), "moved unusable files away");
        }
    }
    Ok(())
}

/// Records that this node misses writes, because the start accepted the loss of files or of
/// commitlog parts that replay skipped. This is durable before anything is removed from the
/// inventory or the old logs, so that a crash does not lose the record. On shard 0, once the
/// metadata is loaded.
pub async fn note_given_up(
    config: &StackConfig,
    service: &MetadataService,
    given_up: &[Missing],
    replayed: &ReplayReport,
) -> Result<(), StartError> {
    let mut lacks: BTreeSet<Lacks> = given_up.iter().map(|missing| missing.lacks).collect();
    if !replayed.skipped.is_empty() {
        lacks.insert(Lacks::AnyTable);
    }
    let (metadata, own) = (service.current(), service.info().host_id);
    let is_elsewhere = |table: &Table| {
        let map = &table.tablets;
        let has_both = |replicas: &[TabletReplica]| replicas.len() > 1 && replicas.iter().any(|one| one.host == own);
        (0..map.count()).any(|tablet| has_both(map.replicas(tablet)))
    };
    let tables: Vec<Option<TableId>> = lacks
        .into_iter()
        .filter_map(|lacks| match lacks {
            Lacks::Nothing => None,
            Lacks::AnyTable => metadata.tables().any(|table| is_elsewhere(table)).then_some(None),
            Lacks::Table(id) => metadata.table_by_id(id).filter(|table| is_elsewhere(table)).map(|_| Some(id)),
        })
        .collect();
    if tables.is_empty() {
        return Ok(());
    }
    let notes = hints::notes_directory(&config.data_dir);
    hints::note_accepted_loss(&notes, own, &tables).await.map_err(|error| {
        StartError(format!(
            "cannot record in {} that this node misses writes: {error}; start the node again with --accept-loss",
            notes.display()
        ))
    })
}

/// Logs the directories of tables that the metadata does not have: their data is not served.
pub async fn name_unknown_tables(data_dir: &DataDir, service: &MetadataService) -> Result<(), StartError> {
    let metadata = service.current();
    let unknown = data_dir.unknown_tables(|id| metadata.table_by_id(id).is_some()).await;
    for table in unknown.map_err(StartError::because)? {
        tracing::error!(dir = %table.dir.display(), table_id = %table.id,
            "the directory has sstables of a table that is not in the metadata: the sstables are kept, and not served. If they are \
             needed, create the table again, and load them from its `upload` directory (docs/backup.md); otherwise move the directory away");
    }
    Ok(())
}

/// Logs the mutations of the commitlog that were left out, because the metadata does not have their
/// tables. Tables that were dropped are no cause for concern. But a table that is newer than all
/// others may be missing because the metadata is older than the commitlog.
pub fn name_unknown_mutations(metadata: &Metadata, unknown: &BTreeMap<TableId, u64>) {
    let created = |id: TableId| id.0.get_timestamp().map(|time| time.to_unix());
    let newest = metadata.tables().filter_map(|table| created(table.schema.id)).max();
    for (id, mutations) in unknown {
        if created(*id) > newest {
            tracing::warn!(table_id = %id, mutations,
                "replay skipped mutations in the commitlog: their table is not in the metadata. If the table was not \
                 dropped, the metadata log is older than the commitlog");
        } else {
            tracing::info!(table_id = %id, mutations, "replay skipped mutations of a dropped table in the commitlog");
        }
    }
}

/// From now on, every shard adds the tables that get a directory to the inventory.
pub async fn watch_directories(keepers: PerShard<InventoryKeeper>, engines: PerShard<Engine>) {
    let watch =
        engines.call_all(move |engine| async move { rt::task::spawn(record_directories(keepers, engine)).detach() });
    watch.await;
}

/// The notes of hints that the inventory records.
pub fn witnessed_notes(keeper: &InventoryKeeper) -> Witnessed {
    let witnessed = |HintNotes { sequence, nodes }| WitnessedNotes { sequence, nodes };
    keeper.hint_notes().into_iter().map(|(name, notes)| (name, witnessed(notes))).collect()
}

/// Stores changes of this shard's notes of hints in the inventory.
pub fn store_of_notes(keepers: PerShard<InventoryKeeper>) -> hints::Store {
    Box::new(move |changes| {
        Box::pin(async move {
            let stored = rt::shard::call(ShardId(0), move || async move {
                let keeper = keepers.try_get().ok_or("the node is stopping")?;
                let change = |inventory: &mut Inventory| {
                    for (name, notes) in changes {
                        match notes {
                            Some(WitnessedNotes { sequence, nodes }) => {
                                inventory.hint_notes.insert(name, HintNotes { sequence, nodes });
                            }
                            None => drop(inventory.hint_notes.remove(&name)),
                        }
                    }
                };
                keeper.change(change).await.map_err(|error| error.to_string())
            });
            stored.await.map_err(io::Error::other)
        })
    })
}

/// Removes the logs that were deleted while the node ran from the inventory. So the next start
/// neither misses them nor replays their remains: their writes are in sstables.
pub async fn forget_removed_logs(keepers: PerShard<InventoryKeeper>, unwritten: &[Unwritten]) {
    let run = |shard: &Unwritten| match &shard.log {
        Some(LogLeft::Removed { run, .. }) => Some(run.clone()),
        _ => None,
    };
    let removed = OldLogs { runs: unwritten.iter().filter_map(run).collect() };
    if removed.is_empty() {
        return;
    }
    // Until this is set, the inventory does not list the logs of this run.
    let keeper = keepers.try_get();
    let forgotten = async {
        if let Some(keeper) = keeper {
            let is_removed = |logged: &LoggedRun| removed.runs.iter().any(|run| run.run == logged.run);
            keeper
                .change(|inventory| inventory.runs.retain(|run| !is_removed(run)))
                .await
                .map_err(|error| error.to_string())?;
        }
        commitlog::retire(&removed).await.map_err(|error| error.to_string())
    };
    if let Err(error) = forgotten.await {
        tracing::error!(
            error,
            "the next start will report the removed commitlogs as missing: start it with --accept-loss, no data is lost"
        );
    }
}

/// Adds the tables of this shard that get a directory to the inventory.
async fn record_directories(keepers: PerShard<InventoryKeeper>, engine: Rc<Engine>) {
    let mut warned = false;
    loop {
        let made = if warned {
            // What could not be recorded is tried again.
            rt::time::timeout(RETRY_INTERVAL, engine.next_made()).await.unwrap_or_else(|_| Some(Vec::new()))
        } else {
            engine.next_made().await
        };
        let Some(made) = made else { return };
        let recorded = add_made(keepers, made).await;
        let failed = recorded.is_err();
        match recorded {
            Ok(()) if warned => tracing::info!("directories of tables are recorded in the inventory again"),
            Err(error) if !warned => tracing::warn!(
                error,
                "directories of tables cannot be recorded in the inventory: the next start would not detect their loss; retrying"
            ),
            _ => {}
        }
        warned = failed;
    }
}

/// Adds changes in directories of tables to the inventory, once there is one. After an error they
/// are added with the next change.
pub async fn add_made(keepers: PerShard<InventoryKeeper>, made: Vec<Made>) -> Result<(), String> {
    let added = rt::shard::call(ShardId(0), move || async move {
        let Some(keeper) = keepers.try_get() else { return Ok(()) };
        keeper.add(made).await.map_err(|error| error.to_string())
    });
    added.await
}

/// Adds the last changes in directories of tables, at the end of a stop.
pub async fn add_last_made(keepers: PerShard<InventoryKeeper>, made: Vec<Made>) {
    if let Err(error) = add_made(keepers, made).await {
        tracing::warn!(error, "directories of tables could not be recorded: the next start does not detect their loss");
    }
}

/// The sources of the inventory.
#[derive(Clone)]
pub struct InventoryRecord {
    /// The data directory.
    pub data_dir: Rc<DataDir>,
    /// Writes the inventory.
    pub keeper: Rc<InventoryKeeper>,
    /// The engines of all shards.
    pub engines: PerShard<Engine>,
    /// The metadata.
    pub metadata: Rc<MetadataService>,
    /// Whether the node is alone in its cluster.
    pub alone: bool,
}

impl InventoryRecord {
    /// Records the files that the next start requires. These are the logs of this run and the `old`
    /// logs, the durable end of the metadata log, and the tables with a directory. Logs that are
    /// not listed any more may be removed afterwards. Missing files whose loss was accepted are not
    /// required any more, even if an earlier call has failed.
    pub async fn write(&self, old: &OldLogs) -> Result<(), DataDirError> {
        let mut runs = self.engines.call_all(|engine| async move { engine.logged_run() }).await;
        runs.extend(old.runs.iter().map(|run| LoggedRun { shard: run.shard.0, run: run.run }));
        let (raft, alone) = (self.data_dir.noted_raft_end().await?, self.alone);
        let metadata = self.metadata.current();
        let mut tables = self.data_dir.durable_tables().await?;
        tables.retain(|id| metadata.table_by_id(*id).is_some());
        drop(metadata);
        // The loss was accepted at this start, or the table was dropped.
        let gone = self.data_dir.tables_without_directory().await?;
        let found = self.engines.get().found_in_directories();
        let change = |inventory: &mut Inventory| {
            inventory.retain(|id| !gone.contains(&id));
            if let Some(at_start) = &self.data_dir.stamp.inventory {
                inventory.forget_files_of(at_start);
            }
            found.iter().for_each(|made| inventory.add(made));
            // Shards may have added tables since the directories were listed.
            tables.append(&mut inventory.tables);
            let before = std::mem::take(inventory);
            *inventory = Inventory { raft, alone, runs, tables, ..before };
        };
        self.keeper.change(change).await
    }

    /// Records the end of the metadata log after changes, until the shard stops. So the next start
    /// detects an older copy of the log, also together with the file that has its end.
    pub async fn follow_metadata_log(self) {
        let changed: Rc<Notify> = Rc::default();
        let notify = changed.clone();
        self.metadata.on_change(move |_, _| notify.notify_one());
        // Changes before this call are recorded as well.
        let (mut is_due, mut warned) = (true, false);
        loop {
            if !is_due && rt::shard::stopping().unless(changed.notified()).await.is_none() {
                return;
            }
            // Changes that follow each other are recorded together.
            if rt::shard::stopping().unless(rt::time::sleep(LOG_END_INTERVAL)).await.is_none() {
                return;
            }
            let recorded = self.record_log_end().await;
            is_due = recorded.is_err();
            match recorded {
                Ok(()) if warned => tracing::info!("the end of the metadata log is recorded in the inventory again"),
                Err(error) if !warned => tracing::warn!(
                    %error,
                    "the end of the metadata log cannot be recorded in the inventory: the next start would not detect an older log; \
                     retrying"
                ),
                _ => {}
            }
            warned = is_due;
        }
    }

    async fn record_log_end(&self) -> Result<(), DataDirError> {
        let end = self.data_dir.noted_raft_end().await?;
        self.keeper.change(|inventory| inventory.raft = inventory.raft.max(end)).await
    }
}
