//! Paths in a data directory, and the names of tables' directories.

use super::DataDir;
use model::TableId;
use std::path::{Path, PathBuf};

/// The directory of the commitlogs in a data directory.
pub(super) fn commitlog_root(data_dir: &Path) -> PathBuf {
    data_dir.join("commitlog")
}

impl DataDir {
    /// `data/<keyspace>`.
    pub fn keyspace_dir(&self, keyspace: &str) -> PathBuf {
        self.data_dir().join(keyspace)
    }

    /// `data`.
    pub fn data_dir(&self) -> PathBuf {
        self.path.join("data")
    }

    /// `data/<keyspace>/<table>-<id>`.
    pub fn table_dir(&self, keyspace: &str, table: &str, id: TableId) -> PathBuf {
        self.keyspace_dir(keyspace).join(table_dir_name(table, id))
    }

    /// `commitlog`: one directory per shard, including the shards of earlier runs.
    pub fn commitlog_root(&self) -> PathBuf {
        commitlog_root(&self.path)
    }

    /// `raft`.
    pub fn raft_dir(&self) -> PathBuf {
        self.path.join("raft")
    }
}

/// The name of a table's directory: its name, a dash, its id as 32 hex digits.
pub fn table_dir_name(table: &str, id: TableId) -> String {
    format!("{table}-{}", id.0.simple())
}

/// The table's name and id of a directory's name, if it is one of a table.
pub fn table_of_dir_name(name: &str) -> Option<(&str, TableId)> {
    let (table, id) = name.rsplit_once('-')?;
    let plain = id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if table.is_empty() || !plain {
        return None;
    }
    Some((table, TableId(uuid::Uuid::try_parse(id).ok()?)))
}
