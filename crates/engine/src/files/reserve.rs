//! Disk space that a running node reserves: the file `messina.reserve`.
//!
//! Two operations must not fail on a full disk. A start needs manifests, directories and the
//! first segment of each commitlog: without them not even reads would be served. A committed
//! change of the metadata needs replay filters and epochs of truncated tables. Both release the
//! reserve when they need it, and take it again afterwards. Meanwhile the commitlog creates no
//! segment in its space ([`DiskReserve::missing`]).
//!
//! The reserve is optional: a missing or shorter one is not an error.

use super::is_full;
use rt::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "messina.reserve";

/// A smaller reserve, in bytes, is not worth a file.
const SMALLEST: u64 = 1 << 20;

/// The file of the reserve could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}{}", fs::remedy(.path, .error))]
pub struct ReserveError {
    path: PathBuf,
    error: io::Error,
}

/// The reserve of a data directory.
#[derive(Clone, Debug)]
pub struct DiskReserve {
    path: PathBuf,
    bytes: u64,
}

impl DiskReserve {
    /// The reserve of a data directory of at most `bytes`, whether it exists or not; 0 for none.
    pub fn of(data_dir: &Path, bytes: u64) -> DiskReserve {
        DiskReserve { path: data_dir.join(NAME), bytes }
    }

    /// Bytes of the reserve that are released, or could not be taken.
    pub async fn missing(&self) -> u64 {
        let taken = fs::metadata(&self.path).await.map_or(0, |file| file.len);
        self.bytes.saturating_sub(taken)
    }

    /// Returns the reserved space to the file system.
    pub async fn release(&self) -> Result<(), ReserveError> {
        self.remove().await.map_err(|error| ReserveError { path: self.path.clone(), error })
    }

    async fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reserves the space, or as much as the disk has, but at least 1 MiB. A shortage is logged.
    pub async fn take(&self) {
        match self.try_take().await {
            Ok(taken) if taken < self.bytes => tracing::warn!(
                reserved_bytes = taken,
                wanted_bytes = self.bytes,
                "the disk has too little space for the reserve of the next start"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "disk space for the next start cannot be reserved: a start on a full disk may fail")
            }
        }
    }

    async fn try_take(&self) -> io::Result<u64> {
        if self.bytes > 0 && fs::metadata(&self.path).await.is_ok_and(|file| file.len == self.bytes) {
            return Ok(self.bytes);
        }
        self.remove().await?;
        let mut size = self.bytes;
        while size >= SMALLEST.min(self.bytes) && size > 0 {
            match self.allocate(size).await {
                Ok(()) => return Ok(size),
                Err(error) if is_full(&error) => size -= size.div_ceil(8),
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }

    async fn allocate(&self, size: u64) -> io::Result<()> {
        let file = fs::open(&self.path, &OpenOptions { write: true, create: true, ..OpenOptions::default() }).await?;
        let allocated = async {
            file.allocate(size).await?;
            file.set_len(size).await
        };
        let allocated = allocated.await;
        drop(file);
        if allocated.is_err() {
            self.remove().await?;
        }
        allocated
    }
}
