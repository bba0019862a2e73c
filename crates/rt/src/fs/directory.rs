//! Operations on names: directories, renames, removals, locks. Also reading and writing of small
//! files.
//!
//! A created, renamed or removed name survives a power loss for certain only after [`sync_dir`] of
//! its directory.

use super::IoClass;
use super::file::{OpenOptions, open};
use super::io::blocking;
#[cfg(feature = "sim")]
use super::io::{is_simulated, simulated};
use super::regular;
use std::ffi::{CString, OsString};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One name in a directory. A symbolic link counts as its target: operators move directories to
/// other disks and link them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory. Names that are not UTF-8 are shown with replacement
    /// characters.
    pub name: String,
    /// Whether it is a directory, or a link to one. False for a link to nothing.
    pub is_dir: bool,
    /// Length in bytes; 0 for directories and links to nothing.
    pub len: u64,
}

/// The metadata of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Length in bytes.
    pub len: u64,
    /// The time of the last change of contents, in microseconds since 1970.
    pub mtime_micros: i64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Runs a file system call on a helper thread.
async fn at<T: Send + 'static>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let path = path.to_path_buf();
    blocking(move || f(&path)).await
}

/// Renames `from` to `to`, replacing an existing file.
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.rename(boot, now, from, to)).await;
    }
    let to = to.to_path_buf();
    at(from, move |from| std::fs::rename(from, to)).await
}

/// Gives the file at `existing` a second name.
pub async fn hard_link(existing: &Path, new: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.hard_link(boot, now, existing, new)).await;
    }
    let new = new.to_path_buf();
    at(existing, move |existing| std::fs::hard_link(existing, new)).await
}

/// Removes a file.
pub async fn remove_file(path: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.remove_file(boot, now, path)).await;
    }
    at(path, |path| std::fs::remove_file(path)).await
}

/// Removes a directory with all it contains. Of a link to a directory the link is removed, and
/// nothing of its target.
pub async fn remove_dir_all(path: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.remove_dir_all(boot, now, path)).await;
    }
    at(path, |path| std::fs::remove_dir_all(path)).await
}

/// Creates a directory and its missing parents. Existing ones are not an error. Does not sync them.
pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.create_dir_all(boot, now, path)).await;
    }
    at(path, |path| std::fs::create_dir_all(path)).await
}

/// Makes the names in `path` durable.
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.sync_dir(boot, now, path)).await;
    }
    at(path, |path| std::fs::File::open(path)?.sync_all()).await
}

/// What `path` contains, sorted by name. Links are followed. An error if the target of a link
/// cannot be examined, unless the target does not exist: data behind a link must not be overlooked.
pub async fn read_dir(path: &Path) -> io::Result<Vec<DirEntry>> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, _| disk.read_dir(boot, path)).await;
    }
    at(path, |path| {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let Some((is_dir, len)) = look_at(&entry)? else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir, len: if is_dir { 0 } else { len } });
        }
        entries.sort();
        Ok(entries)
    })
    .await
}

/// Whether an entry is a directory, and its length in bytes. `None` if it has been removed
/// meanwhile.
fn look_at(entry: &std::fs::DirEntry) -> io::Result<Option<(bool, u64)>> {
    let found = match entry.metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !found.is_symlink() {
        return Ok(Some((found.is_dir(), found.len())));
    }
    match std::fs::metadata(entry.path()) {
        Ok(target) => Ok(Some((target.is_dir(), target.len()))),
        Err(error) if is_absence(&error) || error.raw_os_error() == Some(libc::ELOOP) => Ok(Some((false, 0))),
        Err(error) => Err(error),
    }
}

/// The metadata of `path`.
pub async fn metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, _| disk.metadata(boot, path)).await;
    }
    at(path, |path| {
        use std::os::unix::fs::MetadataExt;
        let m = std::fs::metadata(path)?;
        let mtime_micros = m.mtime() * 1_000_000 + m.mtime_nsec() / 1_000;
        Ok(Metadata { len: m.len(), mtime_micros, is_dir: m.is_dir() })
    })
    .await
}

/// The absolute path without links, `.` and `..`. An error if `path` does not exist.
pub async fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return metadata(path).await.map(|_| path.to_path_buf());
    }
    at(path, |path| std::fs::canonicalize(path)).await
}

/// Whether an error means that a path does not exist.
pub fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether `path` exists. An error if that cannot be checked: such a path must not count as missing
/// where data or records are forgotten for that.
pub async fn is_there(path: &Path) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if is_absence(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The whole contents of a small file.
pub async fn read(path: &Path) -> io::Result<Vec<u8>> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        let file = open(path, &OpenOptions::read()).await?;
        let len = file.len().await? as usize;
        return Ok(file.read_at(0, len, IoClass::Foreground).await?.into());
    }
    at(path, read_regular).await
}

fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    regular::check(path)?;
    std::fs::read(path)
}

/// Reads several small files and the lengths in bytes of several others, in one trip to a helper
/// thread. The results are in the order of the paths.
pub async fn read_and_measure(
    small: Vec<PathBuf>,
    large: Vec<PathBuf>,
) -> (Vec<io::Result<Vec<u8>>>, Vec<io::Result<u64>>) {
    #[cfg(feature = "sim")]
    if is_simulated() {
        let (mut contents, mut lengths) = (Vec::new(), Vec::new());
        for path in &small {
            contents.push(read(path).await);
        }
        for path in &large {
            lengths.push(metadata(path).await.map(|found| found.len));
        }
        return (contents, lengths);
    }
    blocking(move || {
        let contents = small.iter().map(|path| read_regular(path)).collect();
        let lengths = large.iter().map(|path| std::fs::metadata(path).map(|found| found.len())).collect();
        (contents, lengths)
    })
    .await
}

/// Replaces the contents of `path` atomically. After a crash at any moment, either the old or the
/// new contents are there. On return, the new contents are durable.
pub async fn write_durably(path: &Path, data: &[u8]) -> io::Result<()> {
    write_durably_owned(path, data.to_vec()).await
}

/// Like [`write_durably`], without a copy of the data.
pub async fn write_durably_owned(path: &Path, data: Vec<u8>) -> io::Result<()> {
    replace_durably(path, data, 0).await
}

/// Like [`write_durably`], with the first `room` bytes of the file reserved on the device. Later
/// writes within them need no free space.
pub async fn write_durably_with_room(path: &Path, data: &[u8], room: u64) -> io::Result<()> {
    replace_durably(path, data.to_vec(), room).await
}

async fn replace_durably(path: &Path, data: Vec<u8>, room: u64) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut name = OsString::from(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".tmp");
    let temporary = parent.join(name);
    let options = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
    let file = open(&temporary, &options).await?;
    let written = async {
        file.allocate(room).await?;
        file.write_at(0, data, IoClass::Foreground).await?;
        file.sync_all().await
    };
    if let Err(error) = written.await {
        // On a full disk, the temporary file takes space that is missing elsewhere. If the removal
        // fails, the next attempt overwrites the file.
        let _ = remove_file(&temporary).await;
        return Err(error);
    }
    rename(&temporary, path).await?;
    sync_dir(&parent).await
}

/// An exclusive lock on a file or directory, held until dropped or the process ends.
#[derive(Debug)]
pub struct FileLock {
    _held: Held,
}

#[derive(Debug)]
enum Held {
    Os(#[allow(dead_code)] std::fs::File),
    #[cfg(feature = "sim")]
    Sim(#[allow(dead_code)] crate::sim::SimLock),
}

/// Locks the file at `path`, creating it if needed, and writes the id of this process into it.
/// Fails with `WouldBlock` if another process holds the lock. The simulated machine has no
/// processes, so the file stays empty there.
pub async fn lock_file(path: &Path) -> io::Result<FileLock> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, now| disk.lock(boot, now, path))
            .await
            .map(|lock| FileLock { _held: Held::Sim(lock) });
    }
    let file = at(path, |path| {
        regular::check(path)?;
        let mut file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        flock(&file)?;
        // The id is only for messages. A full disk may have no room for it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(file)
    })
    .await?;
    Ok(FileLock { _held: Held::Os(file) })
}

/// Locks the directory at `path`, independently of the files in it. Fails with `WouldBlock` if
/// another process holds the lock, and with `Unsupported` if the file system cannot lock
/// directories (NFS).
pub async fn lock_dir(path: &Path) -> io::Result<FileLock> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, _| disk.lock_dir(boot, path))
            .await
            .map(|lock| FileLock { _held: Held::Sim(lock) });
    }
    let dir = at(path, |path| {
        let dir = std::fs::File::open(path)?;
        flock(&dir).map_err(|error| match error.raw_os_error() {
            Some(libc::EBADF | libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP) => {
                io::Error::new(io::ErrorKind::Unsupported, error)
            }
            _ => error,
        })?;
        Ok(dir)
    })
    .await?;
    Ok(FileLock { _held: Held::Os(dir) })
}

#[allow(unsafe_code)]
fn flock(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: a plain call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Total and free bytes (for unprivileged users) of the file system of `path`.
pub async fn disk_space(path: &Path) -> io::Result<(u64, u64)> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated(|disk, boot, _| disk.space(boot)).await;
    }
    let stat = at(path, statvfs).await?;
    Ok((stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))
}

/// The number of files that can still be created on the file system of `path` (inodes for
/// unprivileged users). `None` if their number has no limit of its own.
pub async fn free_files(path: &Path) -> io::Result<Option<u64>> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return Ok(None);
    }
    let stat = at(path, statvfs).await?;
    Ok((stat.f_files > 0).then_some(stat.f_favail))
}

#[allow(unsafe_code)]
fn statvfs(path: &Path) -> io::Result<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string and a zeroed struct that the call fills.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(path.as_ptr(), &mut stat) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat
    };
    Ok(stat)
}
