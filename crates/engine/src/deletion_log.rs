//! Replacing sstables by others, atomically even if the node crashes.
//!
//! An sstable exists if and only if its `me-<generation>-big-TOC.txt` does. While the sstable is
//! written, its table of contents is named `TOC.txt.tmp`. The table of contents is created first
//! and removed last.
//!
//! A replacement is recorded durably as `replacement-<id>.log` in the table's directory. At this
//! moment the outputs replace the inputs. Then the outputs are sealed, the inputs removed, and the
//! record after them. Files in the table's `upload` directory are replaced in the same way
//! ([`load`]). If they cannot be removed, a record of them alone remains
//! (`replacement-uploads-<id>.log`). The removal is repeated at each start, and before the next
//! load ([`remove_loaded`]). It leaves later uploads of the same names alone (see `uploads`).
//!
//! At startup [`finish_pending`] completes interrupted replacements, and removes files with a
//! `TOC.txt.tmp`, which were never sealed. Files without any table of contents were not left by a
//! crash: the sstable was sealed, and has lost its `TOC.txt` since. The same holds for a listed
//! sstable (see `table_dir/sstable_list.rs`) with a `TOC.txt.tmp`. If a list cannot be used, such
//! files are moved to the table's `quarantine` directory. If only `TOC.txt` is missing, it is
//! written again. Otherwise the sstable is incomplete: its files are kept, and its table cannot be
//! read. Only a single file in a format of another database, which this node never writes, is moved
//! to `quarantine`. No such file is ever deleted. A directory in the place of a `TOC.txt` is moved
//! there when its sstable is removed.
//!
//! Invariants: after `finish_pending` either all inputs or all outputs of a replacement exist,
//! never both, never neither; repeating it changes nothing. Files of unknown formats, and files
//! that are no component of an sstable, are never touched.

mod uploads;

use crate::files::sealed::{self, Unsealed};
use rt::fs;
use serde::{Deserialize, Serialize};
use sstable::{Component, SstablePath, Version};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use uploads::LoadedUploads;
pub use uploads::{FileIdentity, UploadedFiles};

const KIND: &str = "replacement";
const FORMAT: u32 = 1;
const PREFIX: &str = "replacement-";
const SUFFIX: &str = ".log";
/// The prefix of a record of uploaded sstables that were loaded and could not be removed.
const UPLOADS_PREFIX: &str = "replacement-uploads-";
const TOC: &str = "TOC.txt";
const TEMPORARY_TOC: &str = "TOC.txt.tmp";
/// The directory in a table's directory for sstables that are to be loaded.
pub const UPLOAD: &str = "upload";
/// The directory in a table's directory for files of sstables of unknown origin.
pub const QUARANTINE: &str = "quarantine";
/// The most files of one name in the quarantine.
const QUARANTINE_NAMES: u32 = 10_000;

/// Which sstables replace which, by generation (the part between `me-` and `-big`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// Complete and durable, except for the name of their table of contents.
    pub seal: Vec<String>,
    /// To be removed.
    pub delete: Vec<String>,
}

/// A replacement as it is stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Written {
    #[serde(flatten)]
    replacement: Replacement,
    /// Uploaded sstables to be removed.
    #[serde(flatten)]
    loaded: LoadedUploads,
}

/// The outcome of [`finish_pending`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Generations that were sealed.
    pub sealed: Vec<String>,
    /// Generations that were removed because they were replaced.
    pub deleted: Vec<String>,
    /// All generations that were replaced, even if their files were removed before.
    pub replaced: Vec<String>,
    /// Generations that were removed because they were never sealed.
    pub orphans: Vec<String>,
    /// Generations whose lost table of contents was written again.
    pub rebuilt: Vec<String>,
    /// Sealed sstables that lost files, and among these their table of contents.
    pub incomplete: Vec<Incomplete>,
    /// Files of unknown origin, where they are now.
    pub quarantined: Vec<PathBuf>,
    /// The number of files in the quarantine.
    pub in_quarantine: usize,
}

/// A sealed sstable that has no table of contents any more, and cannot get it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// The sstable.
    pub place: SstablePath,
    /// Why its table of contents cannot be rebuilt.
    pub why: String,
}

/// Why a replacement failed.
#[derive(Debug, thiserror::Error)]
pub enum DeletionLogError {
    /// A replacement cannot be read.
    #[error("{file} is damaged ({why}): it records which sstables of its directory replace which others")]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The damage.
        why: &'static str,
    },
    /// A later release wrote it.
    #[error("{file} was written by a later release (format {found}, this release reads up to {known})")]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// The replacement could not be written down. Nothing has changed.
    #[error("{path}: {error}")]
    NotBegun {
        /// The replacement.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An output is missing, and its inputs may be removed: data is lost.
    #[error("{file} names the sstable {generation}, which has no table of contents")]
    Lost {
        /// The replacement.
        file: PathBuf,
        /// The output.
        generation: String,
    },
    /// A file of an sstable that was replaced by others could not be removed.
    #[error(
        "{path} cannot be removed: {error}. The sstable was replaced by others and must not be read. Find the cause (`lsattr`: \
         then `chattr -i`; owner and mode of its directory), make it removable, and start again"
    )]
    NotRemoved {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A table of contents could not be written again.
    #[error("{path}: the sstable's table of contents is lost and cannot be rebuilt: {error}")]
    Rebuild {
        /// The sstable.
        path: PathBuf,
        /// Why.
        error: sstable::Error,
    },
    /// The operating system refused.
    #[error("{path}: {error}")]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DeletionLogError {
    let path = path.to_path_buf();
    move |error| DeletionLogError::Io { path, error }
}

/// The generation and the component in the name of a file of an sstable of Messina's own format.
fn component(name: &str) -> Option<(&str, &str)> {
    let (sstable, component) = parts(name)?;
    Some((sstable.strip_prefix("me-")?.strip_suffix("-big-")?, component))
}

/// Splits the file name of an sstable in a known format: `<version>-<generation>-big-`, and the
/// component.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (version, rest) = name.split_once('-')?;
    let known = Version::ALL.iter().any(|known| known.name() == version);
    let (generation, component) = rest.split_once("-big-")?;
    let plain = |text: &str, more: &[u8]| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let is_file = known && plain(generation, b"_-") && plain(component, b".");
    is_file.then(|| name.split_at(name.len() - component.len()))
}

fn file_of(dir: &Path, generation: &str, component: &str) -> PathBuf {
    dir.join(format!("me-{generation}-big-{component}"))
}

/// Seals `replacement.seal` and removes `replacement.delete` in the table directory `dir`. After
/// any error but [`DeletionLogError::NotBegun`] the inputs must not be used any more, nor the
/// outputs before a restart has finished the replacement.
pub async fn replace(dir: &Path, replacement: &Replacement) -> Result<(), DeletionLogError> {
    carry_out(dir, Written { replacement: replacement.clone(), loaded: LoadedUploads::default() }).await
}

/// Records that sstables of the table directory `dir` are sealed in place of uploaded ones. Only
/// after the error [`DeletionLogError::NotBegun`] nothing has changed. The caller calls
/// [`Load::finish`] next.
pub async fn load(dir: &Path, seal: Vec<String>, uploads: Vec<UploadedFiles>) -> Result<Load, DeletionLogError> {
    let written = Written { replacement: Replacement { seal, delete: Vec::new() }, loaded: LoadedUploads::of(uploads) };
    let load = Load { dir: dir.to_path_buf(), path: new_path(dir), written, is_recorded: Cell::new(false) };
    match load.record().await {
        Ok(()) => Ok(load),
        Err(error) => match take_back(dir, &load.path, error).await {
            // A restart may find the record or not. As long as this is unknown, the load continues.
            DeletionLogError::Io { .. } => Ok(load),
            error => Err(error),
        },
    }
}

/// A load whose record is durable, or may be: a restart completes it.
pub struct Load {
    dir: PathBuf,
    path: PathBuf,
    written: Written,
    /// Whether the record is durable for certain.
    is_recorded: Cell<bool>,
}

impl Load {
    async fn record(&self) -> io::Result<()> {
        sealed::write(&self.path, KIND, FORMAT, &self.written).await?;
        self.is_recorded.set(true);
        Ok(())
    }

    /// Seals the sstables and removes the uploads. After an error other than
    /// [`DeletionLogError::Lost`] it is repeated. Before the end the sstables must not be removed.
    pub async fn finish(&self) -> Result<(), DeletionLogError> {
        if !self.is_recorded.get() {
            self.record().await.map_err(io_error(&self.path))?;
        }
        finish(&self.dir, &self.path, &self.written, &mut Finished::default()).await
    }
}

/// Removes the uploads in the table directory `dir` that were loaded and could not be removed. Only
/// while no load of the table runs.
pub async fn remove_loaded(dir: &Path) -> Result<(), DeletionLogError> {
    for entry in fs::read_dir(dir).await.map_err(io_error(dir))? {
        if !entry.is_dir && entry.name.starts_with(UPLOADS_PREFIX) && entry.name.ends_with(SUFFIX) {
            let path = dir.join(&entry.name);
            read(&path).await?.loaded.remove(dir, &path).await?;
            remove_if_there(&path).await.map_err(io_error(&path))?;
            fs::sync_dir(dir).await.map_err(io_error(dir))?;
        }
    }
    Ok(())
}

async fn carry_out(dir: &Path, written: Written) -> Result<(), DeletionLogError> {
    let path = new_path(dir);
    if let Err(error) = sealed::write(&path, KIND, FORMAT, &written).await {
        return Err(take_back(dir, &path, error).await);
    }
    finish(dir, &path, &written, &mut Finished::default()).await
}

/// The path of a new record.
fn new_path(dir: &Path) -> PathBuf {
    dir.join(format!("{PREFIX}{}{SUFFIX}", rt::random::uuid_v4().simple()))
}

/// Ensures that a replacement that could not be written does not exist after a restart either.
async fn take_back(dir: &Path, path: &Path, error: io::Error) -> DeletionLogError {
    let taken_back = async {
        match fs::remove_file(path).await {
            Ok(()) => fs::sync_dir(dir).await,
            // It was not renamed to this path.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    };
    let path = path.to_path_buf();
    match taken_back.await {
        Ok(()) => DeletionLogError::NotBegun { path, error },
        Err(_) => DeletionLogError::Io { path, error },
    }
}

/// What is known about sstables with a `TOC.txt.tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The sstable was sealed.
    Yes,
    /// It was not: it is removed.
    No,
    /// That is not known: its files are moved to the quarantine.
    Unknown,
}

/// Finishes interrupted replacements in the table directory `dir`, and removes sstables that were
/// never sealed. It must run before any sstable of the directory is opened or written.
pub async fn finish_pending(
    dir: &Path,
    was_sealed: impl Fn(&SstablePath) -> Sealed,
) -> Result<Finished, DeletionLogError> {
    let mut finished = Finished::default();
    let mut changed = false;
    let mut entries = fs::read_dir(dir).await.map_err(io_error(dir))?;
    let pending: Vec<_> = entries.extract_if(.., |entry| !entry.is_dir && entry.name.starts_with(PREFIX)).collect();
    for entry in &pending {
        let path = dir.join(&entry.name);
        if entry.name.ends_with(SUFFIX) {
            let written = read(&path).await?;
            finish(dir, &path, &written, &mut finished).await?;
        } else {
            // A replacement whose record was not complete never began.
            fs::remove_file(&path).await.map_err(io_error(&path))?;
            changed = true;
        }
    }
    if !pending.is_empty() {
        entries = fs::read_dir(dir).await.map_err(io_error(dir))?;
    }
    // A directory in place of a TOC.txt stays: it is reported when the sstable is opened.
    let files: Vec<(&str, &str)> = entries
        .iter()
        .filter_map(|entry| parts(&entry.name).filter(|(_, name)| !entry.is_dir || *name == TOC))
        .collect();
    let sstables: BTreeSet<&str> = files.iter().map(|(sstable, _)| *sstable).collect();
    for sstable in sstables {
        if files.contains(&(sstable, TOC)) {
            continue;
        }
        let generation = sstable.split('-').nth(1).unwrap_or(sstable).to_string();
        let place = SstablePath::parse_name(dir, &format!("{sstable}{TOC}")).map(|(place, _)| place);
        let has_temporary = files.contains(&(sstable, TEMPORARY_TOC));
        let own = files.iter().filter(|(of, _)| *of == sstable);
        let names = || own.clone().map(|(of, component)| format!("{of}{component}")).collect();
        if has_temporary {
            changed = true;
            match place.as_ref().map_or(Sealed::No, &was_sealed) {
                Sealed::Yes => {}
                Sealed::No => {
                    remove(dir, sstable).await?;
                    finished.orphans.push(generation);
                    continue;
                }
                Sealed::Unknown => {
                    finished.quarantined.extend(quarantine(dir, names()).await?);
                    continue;
                }
            }
        }
        match place.filter(|place| place.version == Version::Me || own.clone().count() > 1) {
            Some(place) => match rebuild_toc(&place).await? {
                Ok(()) => {
                    if has_temporary {
                        let path = place.path(Component::TemporaryToc);
                        remove_if_there(&path).await.map_err(io_error(&path))?;
                    }
                    finished.rebuilt.push(generation);
                    changed = true;
                }
                Err(why) => finished.incomplete.push(Incomplete { place, why }),
            },
            None => {
                finished.quarantined.extend(quarantine(dir, names()).await?);
                changed = true;
            }
        }
    }
    if changed {
        fs::sync_dir(dir).await.map_err(io_error(dir))?;
    }
    finished.in_quarantine = files_in_quarantine(dir).await?;
    Ok(finished)
}

/// Writes the table of contents of an sstable again, or says why that cannot be done.
async fn rebuild_toc(place: &SstablePath) -> Result<Result<(), String>, DeletionLogError> {
    let rebuilt = sstable::directory::rebuild_toc(place).await;
    rebuilt.map_err(|error| DeletionLogError::Rebuild { path: place.path(Component::Data), error })
}

async fn files_in_quarantine(dir: &Path) -> Result<usize, DeletionLogError> {
    let dir = dir.join(QUARANTINE);
    match fs::read_dir(&dir).await {
        Ok(entries) => Ok(entries.iter().filter(|entry| !entry.is_dir).count()),
        Err(error) if fs::is_absence(&error) => Ok(0),
        Err(error) => Err(io_error(&dir)(error)),
    }
}

/// Moves files to the quarantine. Returns their new paths. Existing files there are kept.
async fn quarantine(dir: &Path, names: Vec<String>) -> Result<Vec<PathBuf>, DeletionLogError> {
    let to = dir.join(QUARANTINE);
    fs::create_dir_all(&to).await.map_err(io_error(&to))?;
    let mut moved = Vec::new();
    for name in names {
        let from = dir.join(&name);
        let mut target = to.join(&name);
        for again in 1..QUARANTINE_NAMES {
            if !is_there(&target).await? {
                break;
            }
            target = to.join(format!("{name}.{again}"));
        }
        fs::rename(&from, &target).await.map_err(io_error(&from))?;
        moved.push(target);
    }
    fs::sync_dir(&to).await.map_err(io_error(&to))?;
    Ok(moved)
}

async fn read(path: &Path) -> Result<Written, DeletionLogError> {
    let text = fs::read(path).await.map_err(io_error(path))?;
    let written: Written = sealed::unseal(KIND, FORMAT, &text).map_err(|error| match error {
        Unsealed::Corrupt(why) => DeletionLogError::Corrupt { file: path.to_path_buf(), why },
        Unsealed::Newer { found, known } => DeletionLogError::Newer { file: path.to_path_buf(), found, known },
    })?;
    let names = written.replacement.seal.iter().chain(&written.replacement.delete);
    for generation in names {
        if component(&format!("me-{generation}-big-{TOC}")).is_none() {
            return Err(DeletionLogError::Corrupt { file: path.to_path_buf(), why: "a generation is not one" });
        }
    }
    if !written.loaded.are_valid() {
        return Err(DeletionLogError::Corrupt { file: path.to_path_buf(), why: "an upload is not one" });
    }
    Ok(written)
}

/// Completes the replacement that is recorded at `path`.
async fn finish(dir: &Path, path: &Path, written: &Written, finished: &mut Finished) -> Result<(), DeletionLogError> {
    let Written { replacement, loaded } = written;
    for generation in &replacement.seal {
        let toc = file_of(dir, generation, TOC);
        let temporary = file_of(dir, generation, TEMPORARY_TOC);
        match fs::rename(&temporary, &toc).await {
            Ok(()) => finished.sealed.push(generation.clone()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&temporary)(error)),
            Err(_) if is_there(&toc).await? => {}
            Err(_) => {
                let generation = generation.clone();
                return Err(DeletionLogError::Lost { file: path.to_path_buf(), generation });
            }
        }
    }
    // The names of the outputs are durable before the first input is removed.
    fs::sync_dir(dir).await.map_err(io_error(dir))?;
    finished.replaced.extend(replacement.delete.iter().cloned());
    for generation in &replacement.delete {
        if remove(dir, &format!("me-{generation}-big-")).await? {
            finished.deleted.push(generation.clone());
        }
    }
    fs::sync_dir(dir).await.map_err(io_error(dir))?;
    if let Err(error) = loaded.remove(dir, path).await {
        tracing::warn!(dir = %dir.join(UPLOAD).display(), %error,
            "sstables that were loaded cannot be removed from the upload directory: the next start and the next refresh try again");
        if *replacement == Replacement::default() {
            return Ok(());
        }
        // This record must go before its outputs are replaced. So another one names the uploads.
        let later = later_path(path);
        let left = Written { replacement: Replacement::default(), loaded: loaded.clone() };
        sealed::write(&later, KIND, FORMAT, &left).await.map_err(io_error(&later))?;
    }
    remove_if_there(path).await.map_err(io_error(path))?;
    // The record must not return after its outputs were replaced.
    fs::sync_dir(dir).await.map_err(io_error(dir))
}

/// The path of the record of the uploads that a load leaves. It depends on the path of the load's
/// record: a repeated load writes the same one.
fn later_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{UPLOADS_PREFIX}{}", name.strip_prefix(PREFIX).unwrap_or(&name)))
}

/// Whether a path exists. An error if that cannot be checked.
async fn is_there(path: &Path) -> Result<bool, DeletionLogError> {
    fs::is_there(path).await.map_err(io_error(path))
}

/// Removes a file. One that is already gone is not a failure.
async fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes all components of an sstable, given by the prefix of their names: the table of
/// contents first, the mark of an unfinished sstable last. False if there was none.
async fn remove(dir: &Path, sstable: &str) -> Result<bool, DeletionLogError> {
    let entries = fs::read_dir(dir).await.map_err(io_error(dir))?;
    let mut names: Vec<&str> = entries
        .iter()
        .filter(|entry| !entry.is_dir && parts(&entry.name).is_some_and(|(of, _)| of == sstable))
        .map(|entry| entry.name.as_str())
        .collect();
    names.sort_by_key(|name| (!name.ends_with(TOC), name.ends_with(TEMPORARY_TOC)));
    for name in &names {
        let path = dir.join(name);
        if let Err(error) = remove_if_there(&path).await {
            return Err(DeletionLogError::NotRemoved { path, error });
        }
    }
    // A directory in the place of the TOC.txt may have files of an operator.
    let is_toc = |entry: &&fs::DirEntry| entry.is_dir && parts(&entry.name) == Some((sstable, TOC));
    if let Some(entry) = entries.iter().find(is_toc) {
        quarantine(dir, vec![entry.name.clone()]).await?;
    }
    Ok(!names.is_empty())
}

#[cfg(test)]
mod tests;
