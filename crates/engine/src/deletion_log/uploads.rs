//! Uploaded sstables that were loaded, and their removal.
//!
//! Until its files are removed, a loaded sstable must not be loaded again: its table may have been
//! truncated since. But the name does not identify it: other databases number sstables from 1, so
//! a later upload often has the name of an earlier one. So a record names each loaded file with its
//! length and the time of its last change. Both stay if the data directory is copied with these
//! times (`cp -a`), which inode numbers would not. A file that was copied to `upload` since has
//! another time, or another length.
//!
//! An sstable is removed if all of its files that are left are those which were loaded. Otherwise
//! it is another sstable, and all of its files stay.
//!
//! Records of earlier releases name no files. There an sstable counts as loaded if none of its
//! files is newer than the record.

use super::{DeletionLogError, UPLOAD, io_error, remove_if_there};
use rt::fs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Distinguishes a file of an upload from another one with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Length in bytes.
    length: u64,
    /// The time of its last change, in microseconds since 1970.
    changed: i64,
}

impl FileIdentity {
    /// The identity of the file at `path`.
    pub async fn of(path: &Path) -> io::Result<FileIdentity> {
        let found = fs::metadata(path).await?;
        Ok(FileIdentity { length: found.len, changed: found.mtime_micros })
    }
}

/// An uploaded sstable, as it was before it was read.
#[derive(Clone, Debug)]
pub struct UploadedFiles {
    /// The prefix of the names of its files, up to and including `-big-`.
    pub prefix: String,
    /// Its files by name.
    pub files: BTreeMap<String, FileIdentity>,
}

/// The part of a record that names uploaded sstables which were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoadedUploads {
    /// The prefixes of the names of their files, up to and including `-big-`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    uploads: Vec<String>,
    /// Their files by name. Earlier releases do not write them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    upload_files: BTreeMap<String, FileIdentity>,
}

impl LoadedUploads {
    pub fn of(uploads: Vec<UploadedFiles>) -> LoadedUploads {
        let mut loaded = LoadedUploads::default();
        for UploadedFiles { prefix, files } in uploads {
            loaded.uploads.push(prefix);
            loaded.upload_files.extend(files);
        }
        loaded
    }

    /// Whether each prefix is `<version>-<generation>-big-`.
    pub fn are_valid(&self) -> bool {
        self.uploads.iter().all(|name| is_upload(name))
    }

    /// Removes them from the `upload` directory of the table directory `dir`, durably, before the
    /// record at `record` that names them.
    pub async fn remove(&self, dir: &Path, record: &Path) -> Result<(), DeletionLogError> {
        if self.uploads.is_empty() {
            return Ok(());
        }
        let dir = &dir.join(UPLOAD);
        let entries = match fs::read_dir(dir).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(io_error(dir))?,
        };
        for upload in &self.uploads {
            let mut files = BTreeMap::new();
            for entry in entries.iter().filter(|entry| !entry.is_dir && entry.name.starts_with(upload.as_str())) {
                let path = dir.join(&entry.name);
                match FileIdentity::of(&path).await {
                    Ok(found) => drop(files.insert(entry.name.as_str(), found)),
                    // Removed meanwhile, or a link to nothing.
                    Err(error) if fs::is_absence(&error) => {}
                    Err(error) => return Err(io_error(&path)(error)),
                }
            }
            if !self.are_loaded(&files, record).await? {
                tracing::warn!(dir = %dir.display(), sstable = upload,
                    "kept an sstable in the upload directory: its content differs from the loaded sstable of the same name");
                continue;
            }
            for name in files.into_keys().filter(|name| self.names(name)) {
                let path = dir.join(name);
                remove_if_there(&path).await.map_err(io_error(&path))?;
            }
        }
        fs::sync_dir(dir).await.map_err(io_error(dir))
    }

    /// Whether a file is one that was loaded, if its sstable is.
    fn names(&self, name: &str) -> bool {
        self.upload_files.is_empty() || self.upload_files.contains_key(name)
    }

    /// Whether the files of an sstable that are left are those which were loaded.
    async fn are_loaded(&self, files: &BTreeMap<&str, FileIdentity>, record: &Path) -> Result<bool, DeletionLogError> {
        if self.upload_files.is_empty() {
            let recorded = FileIdentity::of(record).await.map_err(io_error(record))?.changed;
            return Ok(files.values().all(|found| found.changed <= recorded));
        }
        let is_loaded =
            |(name, found): (&&str, &FileIdentity)| self.upload_files.get(*name).is_none_or(|known| known == found);
        Ok(files.iter().all(is_loaded))
    }
}

/// Whether a text is `<version>-<generation>-big-`.
fn is_upload(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    matches!(parts.as_slice(), [version, generation, "big", ""] if plain(version) && plain(generation))
}
