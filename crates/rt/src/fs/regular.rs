//! Checks that a path is a regular file before it is opened: opening a FIFO could block forever.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Refuses a path that is neither a regular file nor a directory. The system itself refuses to read
/// directories.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        // The file may be created by the open.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    check_found(&found)
}

/// Like [`check`], for a file that was found.
pub(crate) fn check_found(found: &Metadata) -> io::Result<()> {
    if found.is_file() || found.is_dir() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a regular file, but {}", kind(found))))
}

fn kind(found: &Metadata) -> &'static str {
    let kind = found.file_type();
    match () {
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}
