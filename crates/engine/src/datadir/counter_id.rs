//! The counter id of the node: the id of its shards of counters ([`model::counter`]).
//!
//! A counter update continues the shard that the node has stored. If the node has lost counter
//! updates, the continued shard would replace the correct shard on all other replicas, because its
//! clock is higher. So a node uses the id of its last run only if no update can be missing.
//! Otherwise it takes a new id. The shard of the earlier id, which other replicas have, remains
//! part of the sum.
//!
//! `messina.counter-id` has the id and, after an orderly stop, the ends of the node's commitlogs
//! and the sstables of its tables with counters. A start compares this record with the data
//! directory before it changes a file there. It takes a new id if
//!
//! - the last run had no orderly stop (also in the mode `batch`: readers and other replicas may
//!   have received states that were not synced yet),
//! - a commitlog does not end at the recorded position, or a recorded sstable is missing,
//! - the file is missing, damaged, of another node, or of an earlier release, which had none,
//! - the node starts without lost files or records (`accept_loss`, a damaged commitlog).
//!
//! A table that cannot be read refuses updates. A stop then records nothing to compare, because
//! that table may be readable at the next start, without its present rows.

use super::layout::commitlog_root;
use super::{DataDir, DataDirError};
use crate::commitlog::{self, EndedRun};
use crate::files::{IS_FOREIGN, sealed};
use model::{CounterId, HostId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "messina.counter-id";
const KIND: &str = "counter-id";
const FORMAT: u32 = 1;

/// The sstables of tables with counters: the names of their tables of contents, by directory,
/// relative to the data directory.
pub type CounterSstables = BTreeMap<PathBuf, BTreeSet<String>>;

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    host: HostId,
    id: CounterId,
    /// None while the node runs.
    left: Option<Left>,
}

/// The record of a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Left {
    logs: Vec<EndedRun>,
    sstables: CounterSstables,
}

impl DataDir {
    /// The counter id of the last run if the directory still has all that was counted under it, or
    /// why a new one is needed.
    pub async fn proven_counter_id(&self) -> Result<Result<CounterId, String>, DataDirError> {
        let path = path_in(&self.path);
        let stored = sealed::read::<Stored>(&path, KIND, FORMAT).await.map_err(self.failed(&path))?;
        let Stored { host, id, left } = match stored {
            Ok(stored) => stored,
            Err(unusable) => return Ok(Err(format!("{} {}", path.display(), unusable.why))),
        };
        if host != self.host_id {
            return Ok(Err(format!("{} {IS_FOREIGN}", path.display())));
        }
        let Some(left) = left else { return Ok(Err("the last run did not stop in order".to_owned())) };
        if commitlog::ended(&self.commitlog_root(), host).await.ok().flatten() != Some(left.logs) {
            return Ok(Err("the commitlog does not end where the last run ended it".to_owned()));
        }
        for (dir, sstables) in left.sstables {
            if let Some(lost) = first_missing(&self.path.join(&dir), &sstables).await {
                return Ok(Err(format!("{} is missing", self.path.join(dir).join(lost).display())));
            }
        }
        Ok(Ok(id))
    }

    /// Stores the counter id of this run, durably, before anything is counted under it.
    pub async fn begin_counting(&self, id: CounterId) -> Result<(), DataDirError> {
        let path = path_in(&self.path);
        let stored = Stored { host: self.host_id, id, left: None };
        sealed::write(&path, KIND, FORMAT, &stored).await.map_err(self.failed(&path))
    }
}

/// Records the current state for the next start. It uses the same id if the sstables and commitlogs
/// are unchanged. Call it when everything was stopped in order.
pub async fn leave_counter_id(
    data_dir: &Path,
    host: HostId,
    id: CounterId,
    sstables: CounterSstables,
) -> io::Result<()> {
    let logs = commitlog::ended(&commitlog_root(data_dir), host).await.map_err(io::Error::other)?;
    let Some(logs) = logs else { return Ok(()) };
    let stored = Stored { host, id, left: Some(Left { logs, sstables }) };
    sealed::write(&path_in(data_dir), KIND, FORMAT, &stored).await
}

fn path_in(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// The first of these files that is not in `dir`, or not known to be there.
async fn first_missing(dir: &Path, names: &BTreeSet<String>) -> Option<String> {
    let found = match rt::fs::read_dir(dir).await {
        Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
        Err(_) => BTreeSet::new(),
    };
    names.difference(&found).next().cloned()
}
