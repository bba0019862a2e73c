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
    #[error("{}: {source}{}", path.display(), rt::fs::way_out(.path, .source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Damage.
    #[error("{0}")]
    Corrupt(Corrupt),
    /// A sound file, or request, that this version cannot handle.
    #[error("unsupported: {0}")]
    Unsupported(String),
}

impl Error {
    /// For `map_err` on an operation on the file or directory at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_path_buf(), source }
    }

    /// Whether the operating system refused for a reason that says nothing of the file: the process has no descriptors or no memory. Other
    /// files would be refused as well, and this one may be served later.
    pub fn is_of_process(&self) -> bool {
        const ENOMEM: i32 = 12;
        let Error::Io { source, .. } = self else { return false };
        crate::is_out_of_files(source) || source.raw_os_error() == Some(ENOMEM)
    }

    /// Damage at a place.
    pub(crate) fn corrupt(file: &Path, offset: u64, why: impl Into<String>) -> Error {
        Error::Corrupt(Corrupt { file: file.to_path_buf(), offset, why: why.into() })
    }
}
