//! Disk space that a running node keeps for its next start: the file `messina.reserve`.
//!
//! A start needs a little space, for manifests, directories and the first segment of each commitlog. On a full disk it would fail, and
//! not even reads would be served. So a node allocates the reserve once it runs, and the next start removes the file first.
//!
//! The reserve is a convenience: a missing or shorter one refuses nothing.

use rt::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "messina.reserve";

/// A reserve below this size, in bytes, is not worth a file.
const SMALLEST: u64 = 1 << 20;

/// The reserve of a data directory.
#[derive(Clone, Debug)]
pub struct StartReserve {
    path: PathBuf,
}

impl StartReserve {
    /// The reserve of a data directory, whether it is there or not.
    pub fn of(data_dir: &Path) -> StartReserve {
        StartReserve { path: data_dir.join(NAME) }
    }

    /// Gives the reserved space back to the file system. Whether there was any.
    pub async fn release(&self) -> io::Result<bool> {
        match fs::remove_file(&self.path).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reserves `bytes`, or as much as the disk has, but at least 1 MiB. Returns how many bytes are reserved: 0 if
    /// there is no room, or if `bytes` is 0.
    pub async fn keep(&self, bytes: u64) -> io::Result<u64> {
        if bytes > 0 && fs::metadata(&self.path).await.is_ok_and(|file| file.len == bytes) {
            return Ok(bytes);
        }
        self.release().await?;
        let mut size = bytes;
        while size >= SMALLEST.min(bytes) && size > 0 {
            match self.allocate(size).await {
                Ok(()) => return Ok(size),
                Err(error) if crate::journal::is_full(&error) => size -= size.div_ceil(8),
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
            self.release().await?;
        }
        allocated
    }
}
