//! Errors of sstables. Corruption is a value that the caller reports and quarantines. It is never
//! served, and never an assertion.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that differ from the written bytes, or cannot be valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// The file.
    pub file: PathBuf,
    /// The approximate offset in bytes (in the content, for a compressed Data.db).
    pub offset: u64,
    /// The defect.
    pub why: String,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt file {} at byte {}: {}", self.file.display(), self.offset, self.why)
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the operating system.
    #[error("{}: {source}{}", path.display(), rt::fs::remedy(.path, .source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error itself.
        source: io::Error,
    },
    /// Damage.
    #[error("{0}")]
    Corrupt(Corrupt),
    /// A valid file or request that this version does not support.
    #[error("unsupported: {0}")]
    Unsupported(String),
}

impl Error {
    /// For `map_err` on an operation on the file or directory at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_path_buf(), source }
    }

    /// Whether the process has no descriptors or memory left, so that the error says nothing about
    /// the file. Other files would fail as well, and this one may be readable later.
    pub fn is_of_process(&self) -> bool {
        const ENOMEM: i32 = 12;
        let Error::Io { source, .. } = self else { return false };
        crate::is_out_of_files(source) || source.raw_os_error() == Some(ENOMEM)
    }

    /// Damage at an offset.
    pub(crate) fn corrupt(file: &Path, offset: u64, why: impl Into<String>) -> Error {
        Error::Corrupt(Corrupt { file: file.to_path_buf(), offset, why: why.into() })
    }
}
