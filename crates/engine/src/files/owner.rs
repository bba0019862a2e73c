//! The node that a file belongs to. It is written into files that a node would accept as its own
//! if they were copied from another node.
//!
//! Sealed texts have the host id, binary headers a digest of it. A file without either is refused.

use super::sealed::{self, Unusable};
use model::{HostId, TableId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use uuid::Uuid;

/// The message for a file of another node, after its path.
pub(crate) const IS_FOREIGN: &str = "is of another node";

/// The digest of a host id in a header: never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeDigest(u64);

impl NodeDigest {
    /// The digest of a node.
    pub fn of(host: HostId) -> NodeDigest {
        let (high, low) = host.0.as_u64_pair();
        NodeDigest((high ^ low).max(1))
    }

    /// As it is written.
    pub fn long(self) -> u64 {
        self.0
    }

    /// As it is written where there is room for 32 bits only.
    pub fn short(self) -> u32 {
        ((self.0 >> 32) as u32 ^ self.0 as u32).max(1)
    }

    /// Whether a file with this digest may be the node's own.
    pub fn accepts(self, written: u64) -> bool {
        written == self.long()
    }

    /// Like [`NodeDigest::accepts`], for a digest of 32 bits.
    pub fn accepts_short(self, written: u32) -> bool {
        written == self.short()
    }
}

/// The node and the table that a small file in a table's directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileOwner {
    pub host: HostId,
    /// `None` unless the name of the directory is the name of a table's directory.
    pub table: Option<TableId>,
}

impl FileOwner {
    /// The owner of the files of a node in a table's directory.
    pub fn of_files_in(dir: &Path, host: HostId) -> FileOwner {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let id = name.rsplit_once('-').and_then(|(_, id)| Uuid::try_parse(id).ok());
        FileOwner { host, table: id.map(TableId) }
    }

    /// Why a file with the owner `written` cannot be used, for a message after its path.
    pub fn refuses(&self, written: Option<FileOwner>) -> Option<String> {
        let Some(written) = written else { return Some("names no node".to_owned()) };
        if written.host != self.host {
            return Some(format!("{IS_FOREIGN} ({})", written.host));
        }
        let (table, own) = (written.table?, self.table?);
        (table != own).then(|| format!("is of another table ({table})"))
    }
}

/// Reads a sealed file of this kind and format in a table's directory. A file is unusable if it
/// names another owner than the node `host` and that table.
pub(crate) async fn read_owned<T: DeserializeOwned>(
    path: &Path,
    host: HostId,
    (kind, format): (&str, u32),
    named: impl FnOnce(&T) -> Option<FileOwner>,
) -> io::Result<Result<T, Unusable>> {
    let owner = FileOwner::of_files_in(path.parent().unwrap_or(path), host);
    let read = sealed::read::<T>(path, kind, format).await?;
    Ok(read.and_then(|value| match owner.refuses(named(&value)) {
        Some(why) => Err(Unusable { why, is_there: true }),
        None => Ok(value),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_accepts_its_own_node_only() {
        let [one, other] = [7, 8].map(|n| NodeDigest::of(HostId(Uuid::from_u128(n))));
        assert!(one.accepts(one.long()) && !one.accepts(other.long()) && !one.accepts(0));
        assert!(one.accepts_short(one.short()) && !one.accepts_short(other.short()) && !one.accepts_short(0));
        let twice = NodeDigest::of(HostId(Uuid::from_u64_pair(5, 5)));
        assert!(twice.long() != 0 && twice.short() != 0);
    }

    #[test]
    fn an_owner_refuses_files_of_other_nodes_and_tables() {
        let owner = |host: u128, dir: &str| FileOwner::of_files_in(Path::new(dir), HostId(Uuid::from_u128(host)));
        let t = "ks/t-00000000000000000000000000000005";
        let own = owner(1, t);
        assert!(own.refuses(None).is_some_and(|why| why.contains("no node")));
        assert_eq!(own.refuses(Some(own)), None);
        assert_eq!(own.refuses(Some(owner(1, "elsewhere"))), None);
        assert!(own.refuses(Some(owner(2, t))).is_some_and(|why| why.contains("another node")));
        let u = owner(1, "ks/u-00000000000000000000000000000006");
        assert!(own.refuses(Some(u)).is_some_and(|why| why.contains("another table")));
    }
}
