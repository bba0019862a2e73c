//! The file `epoch` in the directory of a table: the newest epoch that the node has begun.

use crate::error::EngineError;
use crate::files::sealed::{self, Unusable};
use crate::files::{FileOwner, read_owned};
use model::HostId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const KIND: &str = "epoch";
const FORMAT: u32 = 1;
const FILE: &str = "epoch";

/// The content of the file, for error messages.
pub(crate) const HOLDS: &str = "the epoch of the table's rows: without it the node treats them as truncated, and removes all its rows of the table";

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    epoch: u64,
    /// The node that wrote it: another node may have removed data that this node still has.
    owner: FileOwner,
}

/// Writes durably that the node `host` has begun an epoch of the table with the directory `dir`.
pub(crate) async fn write(dir: &Path, epoch: u64, host: HostId) -> Result<(), EngineError> {
    let path = self::path(dir);
    let owner = FileOwner::of_files_in(dir, host);
    sealed::write(&path, KIND, FORMAT, &Written { epoch, owner }).await.map_err(EngineError::io(path))
}

/// The path of the file in a table's directory.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The newest epoch that the node `host` has begun, according to a table's directory.
pub(crate) async fn begun(dir: &Path, host: HostId) -> Result<u64, EngineError> {
    let path = self::path(dir);
    match read_at(&path, host).await.map_err(EngineError::io(&path))? {
        Ok(written) => Ok(written.epoch),
        Err(Unusable { is_there: false, .. }) => Ok(0),
        Err(Unusable { why, .. }) => Err(EngineError::Damaged { path, why, holds: HOLDS }),
    }
}

async fn read_at(path: &Path, host: HostId) -> io::Result<Result<Written, Unusable>> {
    read_owned(path, host, (KIND, FORMAT), |written: &Written| Some(written.owner)).await
}

/// The defect of the file, for a table with this epoch on the node `host`.
pub(crate) async fn defect(path: &Path, epoch: u64, host: HostId) -> io::Result<Option<Unusable>> {
    Ok(match read_at(path, host).await? {
        Ok(written) if written.epoch >= epoch => None,
        Ok(written) => {
            let why = format!("is older than it was (it has epoch {}, and the table has begun {epoch})", written.epoch);
            Some(Unusable { why, is_there: false })
        }
        Err(unusable) => Some(unusable),
    })
}
