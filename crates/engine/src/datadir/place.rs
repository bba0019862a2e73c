//! Where a data directory may be: not inside the data directory of another node, and not around it.
//! Otherwise one node would remove or count the files of the other.

use super::{DataDirError, STAMP};
use rt::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Checks the place of a data directory. One that is in use already is only warned of.
pub(super) async fn check(path: &Path) -> Result<(), DataDirError> {
    let (is_in_use, outer) = (has_stamp(path).await?, enclosing(path).await?);
    if !is_in_use {
        return match (outer, inner(path).await?) {
            (Some(other), _) => Err(DataDirError::Inside { path: path.to_path_buf(), other }),
            (None, Some(other)) => Err(DataDirError::Around { path: path.to_path_buf(), other }),
            (None, None) => Ok(()),
        };
    }
    if let Some(other) = outer {
        tracing::warn!(dir = %path.display(), other = %other.display(),
            "the data directory is inside the data directory of another node: move one of them while both nodes are stopped");
    }
    Ok(())
}

/// The data directory of another node in which `path` is, if there is one.
async fn enclosing(path: &Path) -> Result<Option<PathBuf>, DataDirError> {
    let absolute = std::path::absolute(path).map_err(failed(path))?;
    // The part that does not exist yet has no links.
    for existing in absolute.ancestors() {
        let place = match fs::canonicalize(existing).await {
            Ok(place) => place,
            Err(error) if fs::is_absence(&error) => continue,
            Err(error) => return Err(failed(existing)(error)),
        };
        let is_path = existing == absolute;
        for parent in place.ancestors().skip(usize::from(is_path)) {
            if has_stamp(parent).await? {
                return Ok(Some(parent.to_path_buf()));
            }
        }
        break;
    }
    Ok(None)
}

/// A data directory of another node that is in the directory `path`.
async fn inner(path: &Path) -> Result<Option<PathBuf>, DataDirError> {
    let entries = match fs::read_dir(path).await {
        Ok(entries) => entries,
        // To make the directory, or to read it, fails with an error of its own.
        Err(_) => return Ok(None),
    };
    for entry in entries.iter().filter(|entry| entry.is_dir) {
        let inner = path.join(&entry.name);
        match has_stamp(&inner).await {
            Ok(true) => return Ok(Some(inner)),
            Ok(false) => {}
            // Such as `lost+found`, which only root may search: nor can this process change it.
            Err(DataDirError::Io { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a directory has the stamp of a data directory.
async fn has_stamp(dir: &Path) -> Result<bool, DataDirError> {
    let stamp = dir.join(STAMP);
    match fs::metadata(&stamp).await {
        Ok(found) => Ok(!found.is_dir && found.len > 0),
        Err(error) if fs::is_absence(&error) => Ok(false),
        Err(error) => Err(failed(&stamp)(error)),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_path_buf();
    move |error| DataDirError::Io { path, error }
}
