//! The data directory of a node: its owner and its layout.
//!
//! ```text
//! messina.stamp                         host id, cluster, format, shards, inventory (sealed text)
//! messina.raft-end                      how far the metadata log is durable
//! messina.write-marks                   write marks of this node and others (sealed text)
//! messina.counter-id                    what the node counts under, and what its last run left
//! messina.reserve                       disk space for starts and changes on a full disk
//! lock                                  locked by the running process, as the directory itself
//! data/<keyspace>/<table>-<table id>/   sstables of a table
//! data/<keyspace>/<table>-<table id>/snapshots/<name>/
//! commitlog/<shard>/                    that shard's log
//! raft/                                 the metadata log, and a snapshot of the metadata
//! hints/<shard>/<node>/                 writes that other nodes missed (or in `hints_directory`)
//! hint-notes/                           which hint files must exist, which nodes missed writes
//! ```
//!
//! Guarantees: an open [`DataDir`] belongs to this process alone, to this cluster, and has a
//! format that this release can write. A directory of another origin is refused, never repaired
//! or taken over.

mod counter_id;
mod inventory;
mod layout;
mod place;
mod snapshots;
mod stamp;
mod write_marks;

pub use crate::table_dir::TABLE_SNAPSHOTS;
pub use counter_id::{CounterSstables, leave_counter_id};
pub use inventory::{FoundTable, HintNotes, Inventory, InventoryKeeper, Lacks, Made, Missing, raft_end_path};
pub use layout::{table_dir_name, table_of_dir_name};
pub use snapshots::{FoundSnapshot, directories, entries, find_snapshots};
pub use stamp::{FORMAT, Stamp};
pub use write_marks::{AnnouncedMark, StoredMarks};

use crate::files::may_pass;
use crate::files::sealed::{self, Unsealed};
use model::HostId;
use rt::fs::{self, FileLock};
use std::io;
use std::path::{Path, PathBuf};

const STAMP: &str = "messina.stamp";
const LOCK: &str = "lock";
/// The directories that a node makes first.
const PARTS: [&str; 3] = ["data", "commitlog", "raft"];

/// A data directory that this process holds.
#[derive(Debug)]
pub struct DataDir {
    /// Where it is.
    pub path: PathBuf,
    /// The node's permanent identity.
    pub host_id: HostId,
    /// The number of shards of the last run; `None` in a fresh directory.
    pub previous_shards: Option<u16>,
    /// The directory is new: no run has joined a cluster, or kept data. Earlier runs may have
    /// waited for a cluster.
    pub is_new: bool,
    /// The stamp when the directory was opened.
    pub stamp: Stamp,
    _locks: Vec<FileLock>,
}

/// The remedies for a stamp that cannot be read.
const REMEDY_FOR_LOST_STAMP: &str = "restore the stamp as it was when the node stopped. An older copy may need a start with \
     --accept-loss. If no copy is left, replace a member of a cluster by a new node with an empty data directory";

/// Why a data directory cannot be used. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process runs on it.
    #[error(
        "the data directory {path} is in use by another process{}: stop that process first. Removing {path}/lock does not help, the \
         directory itself is locked",
        process.map(|id| format!(" (process {id})")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The id of the process, if it is known.
        process: Option<u32>,
    },
    /// It is inside the data directory of another node.
    #[error(
        "the data directory {path} is inside the data directory {other} of another node: choose a directory of its own"
    )]
    Inside {
        /// The directory.
        path: PathBuf,
        /// The directory of the other node.
        other: PathBuf,
    },
    /// The data directory of another node is in it.
    #[error("the directory {path} has the data directory {other} of another node in it: choose a directory of its own")]
    Around {
        /// The directory.
        path: PathBuf,
        /// The directory of the other node.
        other: PathBuf,
    },
    /// It belongs to another cluster.
    #[error(
        "the data directory {path} belongs to cluster '{found}', and this node is configured for cluster '{wanted}': \
         set cluster_name to '{found}' or choose another data directory"
    )]
    ForeignCluster {
        /// The directory.
        path: PathBuf,
        /// Its cluster.
        found: String,
        /// The configured one.
        wanted: String,
    },
    /// A later release wrote it.
    #[error(
        "the data directory {path} was written by a later release of Messina (format {found}; this release reads up to {known}): \
         run that release or a later one"
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// The stamp cannot be understood.
    #[error(
        "the stamp {path} is damaged ({why}). The stamp identifies the node and lists its files: {REMEDY_FOR_LOST_STAMP}"
    )]
    CorruptStamp {
        /// The stamp.
        path: PathBuf,
        /// The damage.
        why: String,
    },
    /// There is data, but no stamp.
    #[error(
        "the directory {0} has data but no stamp (messina.stamp): it is not a data directory, or its stamp was lost. The stamp \
         identifies the node and lists its files: {REMEDY_FOR_LOST_STAMP}"
    )]
    NoStamp(PathBuf),
    /// The directory itself could not be made.
    #[error("the data directory (data_dir) {path}: {error}{}", fs::remedy_for_new_dir(.path, .error))]
    NotMade {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The operating system refused.
    #[error("{path}: {error}{}", fs::remedy(.path, .error))]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl DataDirError {
    /// Whether the operation may succeed later, without any data loss: the disk is full, or the
    /// process has no descriptors left.
    pub fn may_pass(&self) -> bool {
        matches!(self, DataDirError::Io { error, .. } | DataDirError::NotMade { error, .. } if may_pass(error))
    }
}

impl DataDir {
    /// Takes the directory at `path` for this process. A new directory is created and stamped.
    /// `shards` is the number of shards of this run; it is recorded, and any number is accepted.
    ///
    /// A directory that never joined a cluster is not bound to the name in its stamp, which may
    /// have been misspelt. It is stamped again.
    pub async fn open(path: &Path, cluster_name: &str, shards: u16) -> Result<DataDir, DataDirError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| DataDirError::Io { path, error }
        };
        place::check(path).await?;
        let made = fs::create_dir_all(path).await;
        made.map_err(|error| DataDirError::NotMade { path: path.to_path_buf(), error })?;
        let locks = lock(path).await?;
        let stamp_path = path.join(STAMP);
        let found = match fs::read(&stamp_path).await {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&stamp_path)(error)),
        };
        let mut before = match &found {
            Some(text) => Some(read_stamp(path, &stamp_path, text)?),
            None => None,
        };
        let is_new = match &before {
            Some(before) => before.inventory.is_none() && before.runs.is_empty() && has_nothing(path).await,
            None => true,
        };
        if let Some(other) = before.take_if(|before| before.cluster_name != cluster_name) {
            if !is_new {
                return Err(DataDirError::ForeignCluster {
                    path: path.to_path_buf(),
                    found: other.cluster_name,
                    wanted: cluster_name.to_string(),
                });
            }
            tracing::info!(dir = %path.display(), former = other.cluster_name, cluster_name,
                "changed the cluster name of the data directory: its node never joined a cluster");
        }
        for part in PARTS {
            let part = path.join(part);
            if before.is_none() && fs::read_dir(&part).await.is_ok_and(|entries| !entries.is_empty()) {
                return Err(DataDirError::NoStamp(path.to_path_buf()));
            }
            // If a directory with data lacks this part, a later check reports it.
            if is_new || fs::is_there(&part).await.map_err(failed(&part))? {
                fs::create_dir_all(&part).await.map_err(failed(&part))?;
            }
        }
        if before.is_none() {
            tracing::info!(dir = %path.display(), "the data directory is new and empty");
        }
        fs::sync_dir(path).await.map_err(failed(path))?;
        let stamp = match &before {
            Some(before) => Stamp { shards, ..before.clone() },
            None => Stamp {
                host_id: HostId(rt::random::uuid_v4()),
                cluster_name: cluster_name.to_string(),
                shards,
                created_micros: rt::time::wall_micros(),
                inventory: None,
                runs: Vec::new(),
            },
        };
        // Also if only the format differs: the earlier release must not open what this one
        // changes.
        if found.as_deref() != Some(sealed::seal(stamp::KIND, FORMAT, &stamp).as_bytes()) {
            sealed::write(&stamp_path, stamp::KIND, FORMAT, &stamp).await.map_err(failed(&stamp_path))?;
        }
        // At every start: an earlier one may have been killed before this step.
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::sync_dir(parent).await.map_err(failed(parent))?;
        }
        Ok(DataDir {
            path: path.to_path_buf(),
            host_id: stamp.host_id,
            is_new,
            previous_shards: before.map(|before| before.shards),
            stamp,
            _locks: locks,
        })
    }
}

/// Whether there are neither data nor metadata.
async fn has_nothing(path: &Path) -> bool {
    for part in PARTS {
        match fs::read_dir(&path.join(part)).await {
            Ok(entries) if entries.is_empty() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return false,
        }
    }
    true
}

/// Locks the directory for this process: the directory itself, so that removing files does not
/// unlock it, and the file `lock`, which earlier releases check.
async fn lock(path: &Path) -> Result<Vec<FileLock>, DataDirError> {
    let file = path.join(LOCK);
    let locked = async {
        let dir = match fs::lock_dir(path).await {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(dir = %path.display(), %error,
                    "the file system locks no directories: do not remove the file 'lock' from the data directory while the node runs");
                None
            }
            locked => Some(locked?),
        };
        let file = fs::lock_file(&file).await?;
        io::Result::Ok(dir.into_iter().chain([file]).collect())
    };
    match locked.await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let text = fs::read(&file).await.unwrap_or_default();
            let process = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
            Err(DataDirError::Locked { path: path.to_path_buf(), process })
        }
        locked => locked.map_err(|error| DataDirError::Io { path: file, error }),
    }
}

fn read_stamp(dir: &Path, path: &Path, text: &[u8]) -> Result<Stamp, DataDirError> {
    sealed::unseal(stamp::KIND, FORMAT, text).map_err(|error| match error {
        Unsealed::Newer { found, known } => DataDirError::NewerFormat { path: dir.to_path_buf(), found, known },
        Unsealed::Corrupt(why) => DataDirError::CorruptStamp { path: path.to_path_buf(), why: why.to_string() },
    })
}

#[cfg(test)]
mod tests;
