//! The inventory: the files that a data directory must have. It is written into the stamp at each
//! start, and compared with the directory at the next start.
//!
//! A log that was removed entirely leaves no trace. So the stamp, another file, names the runs of
//! the commitlog with acknowledged writes, the end of the metadata log, and the tables with a
//! directory. It also names the small files in these directories that record truncations, and the
//! files in `hint-notes` that record missed writes of other nodes.
//!
//! The inventory is a lower bound after any crash. A run or a directory is named after it is
//! complete on the device. A run is dropped from the inventory before it is removed. The directory
//! of a table is removed after the metadata no longer has the table. The later end of the metadata
//! log is in `messina.raft-end` ([`crate::raft_log::read_end`]).
//!
//! A new directory has no inventory until its first start has opened all files. Until then,
//! missing files are not detected.

use super::{DataDir, DataDirError, STAMP, Stamp, stamp};
use crate::commitlog::{self, LoggedRun};
use crate::deletion_log::QUARANTINE;
use crate::files::IS_FOREIGN;
use crate::files::sealed::{self, Unusable};
use crate::raft_log::{self, FoundLog, LogEnd, NotedEnd, RaftLogError};
use crate::table_dir::{epoch_file, replay_filters};
use model::id::NodeRun;
use model::schema::TableSchema;
use model::{HostId, TableId};
use rt::ShardId;
use rt::fs;
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

const RAFT_END: &str = "messina.raft-end";

/// The contents that a data directory must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The metadata log reaches at least this position.
    pub raft: LogEnd,
    /// The node was alone in its cluster when this was written.
    pub alone: bool,
    /// The runs of the commitlog with writes that may be in no sstable.
    pub runs: Vec<LoggedRun>,
    /// The tables with a directory. A table that was dropped since may still be named.
    #[serde(default)]
    pub tables: BTreeSet<TableId>,
    /// The epochs that tables have begun. Other entries of a table count only in this epoch, or
    /// in 0 if none is named.
    #[serde(default)]
    pub epochs: BTreeMap<TableId, u64>,
    /// The shards that have replay filters of a table.
    #[serde(default, rename = "marks")]
    pub filters: BTreeMap<TableId, BTreeSet<u16>>,
    /// How often each shard has written its replay filters of a table. Nothing is known of files
    /// that are not named here.
    #[serde(default, rename = "marks_written")]
    pub filters_written: BTreeMap<TableId, BTreeMap<u16, u64>>,
    /// The files in `hint-notes` by name, which record that other nodes miss writes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hint_notes: BTreeMap<String, HintNotes>,
}

/// A file of notes of hints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintNotes {
    /// How often it was changed, at least.
    pub sequence: u64,
    /// The nodes that miss writes if it is lost, and since when: microseconds since 1970.
    pub nodes: BTreeMap<HostId, i64>,
}

/// Something in the directory of a table that the next start must find. It is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// The directory.
    Directory(TableId),
    /// The replay filters of a shard, and how often they were written.
    ReplayFilters(TableId, ShardId, u64),
    /// An epoch has begun.
    Epoch(TableId, u64),
    /// An epoch has begun in a new or emptied directory: earlier entries do not count any more.
    Emptied(TableId, u64),
}

impl Made {
    /// Adds this to a queue, and drops an earlier state of the same file.
    pub fn add_to(self, all: &mut Vec<Made>) {
        if let Made::ReplayFilters(table, shard, _) = self {
            all.retain(|made| !matches!(*made, Made::ReplayFilters(of, by, _) if (of, by) == (table, shard)));
        }
        all.push(self);
    }
}

impl Inventory {
    /// Adds a change.
    pub fn add(&mut self, made: &Made) {
        match *made {
            Made::Directory(table) => {
                self.tables.insert(table);
            }
            Made::ReplayFilters(table, shard, sequence) => {
                self.filters.entry(table).or_default().insert(shard.0);
                let written = self.filters_written.entry(table).or_default().entry(shard.0).or_default();
                *written = sequence.max(*written);
            }
            Made::Epoch(table, epoch) => {
                self.epochs.insert(table, epoch);
            }
            Made::Emptied(table, epoch) => {
                self.filters.remove(&table);
                self.filters_written.remove(&table);
                self.tables.insert(table);
                self.epochs.insert(table, epoch);
            }
        }
    }

    /// Removes the epochs and filters that are as they were at the start. The start has found these
    /// files, and adds them again, or their loss was accepted.
    pub fn forget_files_of(&mut self, at_start: &Inventory) {
        self.epochs.retain(|table, epoch| at_start.epochs.get(table) != Some(epoch));
        let of = |inventory: &Inventory, table: TableId, shard: u16| {
            inventory.filters_written.get(&table).and_then(|written| written.get(&shard)).copied()
        };
        let known = |table: TableId, shard: u16| at_start.filters.get(&table).is_some_and(|all| all.contains(&shard));
        let kept: BTreeSet<(TableId, u16)> = (self.filters.iter())
            .flat_map(|(table, shards)| shards.iter().map(|shard| (*table, *shard)))
            .filter(|(table, shard)| !known(*table, *shard) || of(self, *table, *shard) != of(at_start, *table, *shard))
            .collect();
        self.filters.iter_mut().for_each(|(table, shards)| shards.retain(|shard| kept.contains(&(*table, *shard))));
        for (table, written) in &mut self.filters_written {
            written.retain(|shard, _| kept.contains(&(*table, *shard)));
        }
        self.filters.retain(|_, shards| !shards.is_empty());
        self.filters_written.retain(|_, written| !written.is_empty());
    }

    /// Keeps only the entries of these tables.
    pub fn retain(&mut self, is_kept: impl Fn(TableId) -> bool) {
        self.tables.retain(|table| is_kept(*table));
        self.epochs.retain(|table, _| is_kept(*table));
        self.filters.retain(|table, _| is_kept(*table));
        self.filters_written.retain(|table, _| is_kept(*table));
    }
}

/// The tables with writes that a node lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lacks {
    /// None.
    Nothing,
    /// Unknown, so any table.
    AnyTable,
    /// This one.
    Table(TableId),
}

/// A part of the data directory that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// A path, and how it is known to be missing.
    pub what: String,
    /// The lost contents.
    pub loses: &'static str,
    /// Whether it belongs to the metadata log.
    pub is_raft: bool,
    /// The tables with writes that the node lacks if it starts without this part.
    pub lacks: Lacks,
    /// A path that must be moved away before the node can start without it.
    pub in_its_place: Option<PathBuf>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (holds {})", self.what, self.loses)
    }
}

impl Missing {
    /// The directory of a table that the metadata has.
    pub fn table_directory(dir: &Path, table: TableId) -> Missing {
        let what = format!("{} is missing", dir.display());
        let lacks = Lacks::Table(table);
        Missing { what, loses: "the sstables of the table", is_raft: false, lacks, in_its_place: None }
    }

    /// An sstable of a table.
    pub fn sstable(data: &Path, table: TableId) -> Missing {
        let what = format!("{} and all other files of the sstable are missing", data.display());
        let lacks = Lacks::Table(table);
        Missing { what, loses: "the rows that only this sstable held", is_raft: false, lacks, in_its_place: None }
    }

    fn file(path: PathBuf, unusable: Unusable, loses: &'static str, lacks: Lacks) -> Missing {
        let what = format!("{} {}", path.display(), unusable.why);
        Missing { what, loses, is_raft: false, lacks, in_its_place: unusable.is_there.then_some(path) }
    }

    /// A file of the metadata log belongs to another node, so no file in the directory is trusted.
    fn foreign_raft(file: &Path, dir: PathBuf) -> Missing {
        Missing { in_its_place: Some(dir), ..Missing::raft(format!("{} {IS_FOREIGN}", file.display())) }
    }

    fn raft(what: String) -> Missing {
        let loses = "the metadata: keyspaces, tables, their rows in the commitlog, topology, votes of this node";
        Missing { what, loses, is_raft: true, lacks: Lacks::AnyTable, in_its_place: None }
    }
}

/// The directory of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTable {
    /// Where it is.
    pub dir: PathBuf,
    /// The table's id.
    pub id: TableId,
}

impl DataDir {
    /// The file with the end of the metadata log.
    pub fn raft_end_path(&self) -> PathBuf {
        raft_end_path(&self.path)
    }

    /// The parts of the directory that are missing since the node last ran. Must be called before
    /// any log is opened, changed or removed.
    pub async fn missing(&self) -> Result<Vec<Missing>, DataDirError> {
        let mut missing = Vec::new();
        let found = match raft_log::inspect(&self.raft_dir(), self.host_id).await {
            Ok(found) => found,
            Err(RaftLogError::Foreign(file)) => {
                missing.push(Missing::foreign_raft(&file, self.raft_dir()));
                None
            }
            // Damage is reported with its place when the log is opened.
            Err(_) => return Ok(missing),
        };
        match &self.stamp.inventory {
            Some(inventory) => {
                if missing.is_empty() {
                    missing.extend(self.missing_of_raft(inventory, found).await?);
                }
                let root = self.commitlog_root();
                let lost = commitlog::missing(&root, &inventory.runs, self.host_id).await;
                let lost = lost.map_err(|error| self.failed(&root)(io::Error::other(error)))?;
                missing.extend(lost.into_iter().map(|what| Missing {
                    what,
                    loses: "acknowledged writes that are in no sstable",
                    is_raft: false,
                    lacks: Lacks::AnyTable,
                    in_its_place: None,
                }));
            }
            None if found.is_none() && missing.is_empty() => {
                if let Some(witness) = self.sign_of_metadata().await? {
                    missing.push(Missing::raft(format!(
                        "{} is missing, although there is {}",
                        self.raft_dir().display(),
                        witness.display()
                    )));
                }
            }
            None => {}
        }
        Ok(missing)
    }

    async fn missing_of_raft(
        &self,
        inventory: &Inventory,
        found: Option<FoundLog>,
    ) -> Result<Vec<Missing>, DataDirError> {
        let (dir, path) = (self.raft_dir(), self.raft_end_path());
        let (mut missing, mut noted) = (Vec::new(), None);
        match raft_log::read_end(&path, self.host_id).await.map_err(self.failed(&path))? {
            NotedEnd::At(end) => noted = Some(end),
            NotedEnd::Nothing => {}
            NotedEnd::Foreign => {
                let unusable = Unusable { why: IS_FOREIGN.into(), is_there: true };
                let loses = "the end of the metadata log: without it a start may not detect that the log was cut off";
                missing.push(Missing::file(path.clone(), unusable, loses, Lacks::Nothing));
            }
        }
        let wanted = inventory.raft.max(noted.unwrap_or_default());
        missing.extend(match found {
            None => Some(Missing::raft(format!("{}, with log-{}, is missing", dir.display(), wanted.number))),
            Some(found) if found.end.number < wanted.number => {
                let newest = found.end.number;
                Some(Missing::raft(format!(
                    "{}/log-{} is missing, the newest log there is log-{newest}",
                    dir.display(),
                    wanted.number
                )))
            }
            Some(found) if found.end < wanted => {
                let path = dir.join(format!("log-{}", wanted.number));
                let len = fs::metadata(&path).await.map_or(0, |file| file.len);
                let (what, path) = (if len < wanted.at { "cut off" } else { "damaged" }, path.display());
                Some(Missing::raft(format!(
                    "{path} is {what}: it can be read up to byte {}, and {} bytes of it were durable",
                    found.end.at, wanted.at
                )))
            }
            Some(found) if noted.is_none() && !found.marked => Some(Missing::raft(format!(
                "{} is missing or damaged, and {}/log-{} has no end mark: it may be cut off",
                path.display(),
                dir.display(),
                found.end.number
            ))),
            Some(_) => None,
        });
        Ok(missing)
    }

    /// Evidence of earlier metadata: a run of the commitlog, or an sstable.
    async fn sign_of_metadata(&self) -> Result<Option<PathBuf>, DataDirError> {
        let root = self.commitlog_root();
        let runs = commitlog::runs_in(&root).await.map_err(|error| self.failed(&root)(io::Error::other(error)))?;
        if let Some(run) = runs.into_iter().next() {
            return Ok(Some(run));
        }
        for table in self.tables_on_disk().await? {
            if has_sstables(&table.dir).await.map_err(self.failed(&table.dir))? {
                return Ok(Some(table.dir));
            }
        }
        Ok(None)
    }

    /// The missing parts of a table that the metadata has in this epoch: its directory, or a file
    /// in it. An older copy of a file counts as missing: with it, acknowledged rows would be
    /// removed, or truncated rows would return.
    pub async fn missing_of_table(&self, schema: &TableSchema, epoch: u64) -> Result<Vec<Missing>, DataDirError> {
        let Some(inventory) = &self.stamp.inventory else { return Ok(Vec::new()) };
        let (id, mut missing) = (schema.id, Vec::new());
        let dir = self.table_dir(&schema.keyspace, &schema.name, id);
        // Data that a later epoch discards is not missed.
        let is_discarded = inventory.epochs.get(&id).copied().unwrap_or(0) != epoch && epoch > 0;
        if inventory.tables.contains(&id) {
            match fs::metadata(&dir).await {
                Ok(_) => {}
                Err(error) if is_discarded && fs::is_absence(&error) => {
                    tracing::warn!(dir = %dir.display(),
                        "the directory of a truncated table is missing: its snapshot lacks the rows that were in its sstables");
                }
                Err(error) if fs::is_absence(&error) => return Ok(vec![Missing::table_directory(&dir, id)]),
                Err(error) => return Err(self.failed(&dir)(error)),
            }
        }
        if is_discarded {
            return Ok(missing);
        }
        if epoch > 0 {
            let path = epoch_file::path(&dir);
            let defect = epoch_file::defect(&path, epoch, self.host_id).await.map_err(self.failed(&path))?;
            missing.extend(defect.map(|defect| {
                // The node counts the rows as truncated.
                Missing::file(path, defect, epoch_file::HOLDS, Lacks::Table(id))
            }));
        }
        let written = inventory.filters_written.get(&id);
        for shard in inventory.filters.get(&id).into_iter().flatten() {
            let path = replay_filters::path(&dir, ShardId(*shard));
            let sequence = written.and_then(|written| written.get(shard)).copied().unwrap_or(0);
            let defect = replay_filters::defect(&path, sequence, self.host_id).await.map_err(self.failed(&path))?;
            missing.extend(defect.map(|defect| Missing::file(path, defect, replay_filters::HOLDS, Lacks::Nothing)));
        }
        let is_noted = |shard: u16| inventory.filters.get(&id).is_some_and(|shards| shards.contains(&shard));
        missing.extend(self.unusable_in(&dir, epoch == 0, is_noted).await?);
        Ok(missing)
    }

    /// Small files in a table's directory that the inventory does not name, and that cannot be
    /// used: they may be copies from another node. With `of_epoch` this includes the file
    /// `epoch`.
    async fn unusable_in(
        &self,
        dir: &Path,
        of_epoch: bool,
        is_noted: impl Fn(u16) -> bool,
    ) -> Result<Vec<Missing>, DataDirError> {
        let mut unusable = Vec::new();
        let names = match fs::read_dir(dir).await {
            Ok(names) => names,
            Err(error) if fs::is_absence(&error) => return Ok(unusable),
            Err(error) => return Err(self.failed(dir)(error)),
        };
        for entry in names {
            let path = dir.join(&entry.name);
            let (defect, holds) = if replay_filters::shard_of_name(&entry.name).is_some_and(|shard| !is_noted(shard)) {
                (replay_filters::defect(&path, 0, self.host_id).await, replay_filters::HOLDS)
            } else if of_epoch && path == epoch_file::path(dir) {
                (epoch_file::defect(&path, 0, self.host_id).await, epoch_file::HOLDS)
            } else {
                continue;
            };
            let defect = defect.map_err(self.failed(&path))?;
            unusable.extend(defect.map(|defect| Missing::file(path, defect, holds, Lacks::Nothing)));
        }
        Ok(unusable)
    }

    /// Moves away the path of a part after its loss was accepted. Returns the new path.
    pub async fn move_away(&self, path: &Path) -> Result<PathBuf, DataDirError> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".given-up-{}", rt::time::wall_micros() / 1000));
        let aside = PathBuf::from(name);
        let moved = async {
            fs::rename(path, &aside).await?;
            match path.parent() {
                Some(dir) => fs::sync_dir(dir).await,
                None => Ok(()),
            }
        };
        moved.await.map_err(self.failed(path))?;
        Ok(aside)
    }

    /// The tables of the inventory that have no directory: they were dropped, or are missing.
    pub async fn tables_without_directory(&self) -> Result<Vec<TableId>, DataDirError> {
        let Some(inventory) = &self.stamp.inventory else { return Ok(Vec::new()) };
        let there: BTreeSet<TableId> = self.tables_on_disk().await?.into_iter().map(|table| table.id).collect();
        Ok(inventory.tables.difference(&there).copied().collect())
    }

    /// The tables with a durable directory.
    pub async fn durable_tables(&self) -> Result<BTreeSet<TableId>, DataDirError> {
        let tables = self.tables_on_disk().await?;
        let root = self.data_dir();
        let mut dirs: Vec<&Path> = tables.iter().filter_map(|table| table.dir.parent()).collect();
        dirs.push(&root);
        dirs.dedup();
        for dir in dirs {
            fs::sync_dir(dir).await.map_err(self.failed(dir))?;
        }
        Ok(tables.iter().map(|table| table.id).collect())
    }

    /// The writer of the inventory while the node runs. `alone`: whether the node is alone in its
    /// cluster.
    pub fn inventory_keeper(&self, alone: bool) -> InventoryKeeper {
        let (path, stamp) = (self.path.join(STAMP), RefCell::new(self.stamp.clone()));
        InventoryKeeper { path, stamp, pending: RefCell::default(), alone, turn: Semaphore::new(1) }
    }

    /// The end of the metadata log, as it was recorded.
    pub async fn noted_raft_end(&self) -> Result<LogEnd, DataDirError> {
        let path = self.raft_end_path();
        Ok(match raft_log::read_end(&path, self.host_id).await.map_err(self.failed(&path))? {
            NotedEnd::At(end) => end,
            NotedEnd::Nothing | NotedEnd::Foreign => LogEnd::default(),
        })
    }

    /// The directories with sstables of tables for which `is_known` returns false.
    pub async fn unknown_tables(&self, is_known: impl Fn(TableId) -> bool) -> Result<Vec<FoundTable>, DataDirError> {
        let mut unknown = Vec::new();
        for table in self.tables_on_disk().await? {
            if !is_known(table.id) && has_sstables(&table.dir).await.map_err(self.failed(&table.dir))? {
                unknown.push(table);
            }
        }
        Ok(unknown)
    }

    /// The directories of tables.
    async fn tables_on_disk(&self) -> Result<Vec<FoundTable>, DataDirError> {
        let (root, mut tables) = (self.data_dir(), Vec::new());
        for keyspace in fs::read_dir(&root).await.map_err(self.failed(&root))? {
            let dir = root.join(&keyspace.name);
            if !keyspace.is_dir {
                continue;
            }
            for table in fs::read_dir(&dir).await.map_err(self.failed(&dir))? {
                let Some((_, id)) = super::table_of_dir_name(&table.name) else { continue };
                let path = dir.join(&table.name);
                if table.is_dir {
                    tables.push(FoundTable { dir: path, id });
                }
            }
        }
        Ok(tables)
    }

    pub(super) fn failed(&self, path: &Path) -> impl Fn(io::Error) -> DataDirError + use<> {
        let path = path.to_path_buf();
        move |error| DataDirError::Io { path: path.clone(), error }
    }
}

/// Changes the inventory and the runs in the stamp of a data directory.
pub struct InventoryKeeper {
    path: PathBuf,
    stamp: RefCell<Stamp>,
    /// Changes in directories of tables that are not in the stamp yet: the next change that
    /// succeeds writes them, too.
    pending: RefCell<Vec<Made>>,
    /// For an inventory that is created by its first change.
    alone: bool,
    /// One change at a time.
    turn: Semaphore,
}

impl InventoryKeeper {
    /// The files of notes of hints in the inventory.
    pub fn hint_notes(&self) -> BTreeMap<String, HintNotes> {
        let stamp = self.stamp.borrow();
        stamp.inventory.as_ref().map(|inventory| inventory.hint_notes.clone()).unwrap_or_default()
    }

    /// Changes the inventory, durably. Parts that it no longer names may be removed afterwards.
    pub async fn change(&self, change: impl FnOnce(&mut Inventory)) -> Result<(), DataDirError> {
        let alone = self.alone;
        let change = |stamp: &mut Stamp| {
            change(stamp.inventory.get_or_insert_with(|| Inventory { alone, ..Inventory::default() }));
        };
        self.change_stamp(change).await
    }

    /// Adds changes in directories of tables, durably. After an error they are kept, and added by
    /// the next change.
    pub async fn add(&self, made: Vec<Made>) -> Result<(), DataDirError> {
        made.into_iter().for_each(|one| one.add_to(&mut self.pending.borrow_mut()));
        self.change(|_| {}).await
    }

    /// The runs that the stamp names: see [`Stamp::runs`].
    pub fn runs(&self) -> Vec<NodeRun> {
        self.stamp.borrow().runs.clone()
    }

    /// Changes the runs that the stamp names, durably.
    pub async fn change_runs(&self, change: impl FnOnce(&mut Vec<NodeRun>)) -> Result<(), DataDirError> {
        self.change_stamp(|stamp| change(&mut stamp.runs)).await
    }

    async fn change_stamp(&self, change: impl FnOnce(&mut Stamp)) -> Result<(), DataDirError> {
        let failed = |error| DataDirError::Io { path: self.path.clone(), error };
        let _turn = self.turn.acquire().await.map_err(|_| failed(io::Error::other("the node is stopping")))?;
        let before = self.stamp.borrow().clone();
        let mut stamp = before.clone();
        change(&mut stamp);
        let mut added = self.pending.take();
        if !added.is_empty() {
            let alone = self.alone;
            let inventory = stamp.inventory.get_or_insert_with(|| Inventory { alone, ..Inventory::default() });
            added.iter().for_each(|made| inventory.add(made));
        }
        if stamp == before {
            return Ok(());
        }
        let written = sealed::write(&self.path, stamp::KIND, stamp::FORMAT, &stamp).await;
        match written {
            Ok(()) => drop(self.stamp.replace(stamp)),
            Err(_) => {
                // Others may have been added meanwhile.
                self.pending.take().into_iter().for_each(|newer| newer.add_to(&mut added));
                self.pending.replace(added);
            }
        }
        written.map_err(failed)
    }
}

/// The file with the end of the metadata log in the data directory at `path`.
pub fn raft_end_path(path: &Path) -> PathBuf {
    path.join(RAFT_END)
}

/// Whether there are files of sstables in a table's directory, the quarantine included.
async fn has_sstables(dir: &Path) -> io::Result<bool> {
    let is_data = |name: &str| name.ends_with("-Data.db") || name.ends_with("-TOC.txt");
    let entries = match fs::read_dir(dir).await {
        // A concurrent DROP has just removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    Ok(entries
        .iter()
        .any(|entry| (!entry.is_dir && is_data(&entry.name)) || (entry.is_dir && entry.name == QUARANTINE)))
}
