//! The manifest of a run: which segments replay needs. Written durably before a segment is used,
//! and after its last use.

use super::error::LogError;
use super::position::Position;
use crate::files::sealed::{self, Unsealed};
use model::HostId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The name of the manifest in the run's directory.
pub(super) const NAME: &str = "manifest";
/// The name a manifest gets when its run is retired.
pub(super) const RETIRED: &str = "retired";
const KIND: &str = "commitlog-manifest";
const FORMAT: u32 = 1;

/// The contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The run: the id of its first segment.
    pub run: u64,
    /// The ids of the segments that hold what replay needs, in order.
    pub segments: Vec<u64>,
    /// All records below this position are on the device.
    pub synced: Position,
    /// The run was ended properly: nothing follows `synced`.
    pub closed: bool,
    /// The node, if it was known. Runs of other nodes have the same names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
}

impl Manifest {
    /// Whether the run may be the node's own, if the node is known.
    pub fn is_of(&self, host: Option<HostId>) -> bool {
        host.is_none() || self.host == host
    }

    pub async fn write(&self, run_dir: &Path) -> io::Result<()> {
        sealed::write(&run_dir.join(NAME), KIND, FORMAT, self).await
    }

    /// The manifest in `run_dir`; `None` when there is none.
    pub async fn read(run_dir: &Path) -> Result<Option<Manifest>, LogError> {
        let path = run_dir.join(NAME);
        let text = match rt::fs::read(&path).await {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LogError::io(&path)(error)),
        };
        match sealed::unseal(KIND, FORMAT, &text) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(Unsealed::Corrupt(why)) => Err(LogError::Corrupt { file: path, offset: 0, why }),
            Err(Unsealed::Newer { found, known }) => {
                Err(LogError::Newer { file: path, what: "manifest format", found, known })
            }
        }
    }
}

/// The path of a segment.
pub(super) fn segment_path(run_dir: &Path, id: u64) -> PathBuf {
    run_dir.join(format!("segment-{id:016x}"))
}

/// The id in a segment's file name.
pub(super) fn segment_of_name(name: &str) -> Option<u64> {
    let hex = name.strip_prefix("segment-")?;
    if hex.len() != 16 { None } else { u64::from_str_radix(hex, 16).ok() }
}
