//! What can go wrong with a file set. Corruption is a value: reported and quarantined by the caller, never served, never an assert.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that cannot be what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// The file.
    pub file: PathBuf,
    /// About where in it, in bytes (of the content, for a compressed Data.db).
    pub offset: u64,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt file {} at {}: {}", self.file.display(), self.offset, self.why)
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system's.
    #[error("sstable I/O: {0}")]
    Io(#[from] io::Error),
    /// Damage.
    #[error("{0}")]
    Corrupt(Corrupt),
    /// A sound file, or request, that this version cannot handle.
    #[error("unsupported: {0}")]
    Unsupported(String),
}

impl Error {
    /// Damage at a place.
    pub(crate) fn corrupt(file: &Path, offset: u64, why: impl Into<String>) -> Error {
        Error::Corrupt(Corrupt { file: file.to_path_buf(), offset, why: why.into() })
    }
}
