//! The file `messina.write-marks`: the write mark of this node, and the marks that other nodes have
//! announced to it. `cluster::topology::write_marks` explains their purpose.

use crate::files::sealed;
use model::HostId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const FILE: &str = "messina.write-marks";
/// The kind of the sealed text.
const KIND: &str = "write-marks";
/// The newest format that this release reads and writes.
const FORMAT: u32 = 1;

/// A write mark that another node announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnnouncedMark {
    /// The process that announced it.
    pub process: Uuid,
    /// The mark.
    pub mark: u64,
}

/// The write marks that a data directory has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredMarks {
    /// The node that wrote the file.
    pub host: HostId,
    /// Its own write mark.
    pub own: u64,
    /// The marks of other nodes.
    pub others: BTreeMap<HostId, AnnouncedMark>,
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

impl StoredMarks {
    /// The marks in the data directory of a node. `None` if the file is missing, is damaged or
    /// belongs to another node. The other members know whether the node had a mark.
    pub async fn read(dir: &Path, host: HostId) -> io::Result<Option<StoredMarks>> {
        let path = path(dir);
        Ok(match sealed::read::<StoredMarks>(&path, KIND, FORMAT).await? {
            Ok(marks) if marks.host == host => Some(marks),
            Ok(marks) => {
                tracing::warn!(file = %path.display(), owner = %marks.host, "the write marks belong to another node");
                None
            }
            Err(unusable) => {
                if unusable.is_there {
                    tracing::warn!(
                        file = %path.display(),
                        why = unusable.why,
                        "the write marks cannot be read: the node stops if another member knows a write mark of it. If only this file \
                         is damaged, start the node once with --accept-loss"
                    );
                }
                None
            }
        })
    }

    /// Replaces the marks in a data directory, durably.
    pub async fn write(&self, dir: &Path) -> io::Result<()> {
        sealed::write(&path(dir), KIND, FORMAT, self).await
    }
}
