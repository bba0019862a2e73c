//! An open file.
//!
//! With `direct`, reads and aligned writes bypass the page cache. Any offset and length can be
//! read: the enclosing aligned range is read and sliced. Unaligned writes to a direct file use a
//! second, buffered descriptor.

use super::IoClass;
use super::buffer::AlignedBuf;
use super::directory::is_absence;
use super::io::{Op, Payload, Request, blocking};
#[cfg(feature = "sim")]
use super::io::{is_simulated, simulated};
use super::os_file::{OsFile, open_os};
use crate::ctx;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The options for opening a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file; fail if it exists.
    pub create_new: bool,
    /// Truncate the file to length 0.
    pub truncate: bool,
    /// Bypass the page cache (`O_DIRECT`) if the file system supports it.
    pub direct: bool,
}

impl OpenOptions {
    /// For reading, bypassing the page cache.
    pub fn read_direct() -> Self {
        Self { read: true, direct: true, ..Self::default() }
    }

    /// For reading through the page cache.
    pub fn read() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// A new file, for writing; fails if it exists.
    pub fn create_new() -> Self {
        Self { read: true, write: true, create_new: true, ..Self::default() }
    }
}

/// An open file. Cheap to clone; closed when the last clone and the last operation on it are gone.
#[derive(Clone)]
pub struct File {
    inner: Rc<Inner>,
}

struct Inner {
    path: PathBuf,
    handle: Handle,
}

enum Handle {
    Os(OsFile),
    #[cfg(feature = "sim")]
    Sim(crate::sim::SimFile),
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(&self.inner.path).finish()
    }
}

/// Opens the file at `path`.
pub async fn open(path: &Path, opts: &OpenOptions) -> io::Result<File> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        let file = simulated(|disk, boot, now| disk.open(boot, now, path, opts)).await?;
        return Ok(File { inner: Rc::new(Inner { path: path.to_path_buf(), handle: Handle::Sim(file) }) });
    }
    let handle = Handle::Os(open_os(path.to_path_buf(), *opts).await?);
    Ok(File { inner: Rc::new(Inner { path: path.to_path_buf(), handle }) })
}

impl File {
    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        match &self.inner.handle {
            Handle::Os(os) => os.alignment.is_some(),
            #[cfg(feature = "sim")]
            Handle::Sim(file) => file.is_direct(),
        }
    }

    /// Reads `len` bytes at `offset`; fewer only if the file ends before.
    pub async fn read_at(&self, offset: u64, len: usize, class: IoClass) -> io::Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let ctx = ctx::current();
        match &self.inner.handle {
            Handle::Os(os) => os.read_at(&ctx, offset, len, class).await,
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, _| file.read(offset, len)).await,
        }
    }

    /// Writes all of `data` at `offset`.
    pub async fn write_at(&self, offset: u64, data: impl Into<Bytes>, class: IoClass) -> io::Result<()> {
        let data = data.into();
        if data.is_empty() {
            return Ok(());
        }
        let ctx = ctx::current();
        match &self.inner.handle {
            Handle::Os(os) => os.write_at(&ctx, offset, Payload::Bytes(data), class).await,
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, now| file.write(now, offset, &data)).await,
        }
    }

    /// Like [`File::write_at`], from memory that suits `O_DIRECT`. Returns the memory.
    pub(crate) async fn write_aligned(&self, offset: u64, data: AlignedBuf, class: IoClass) -> io::Result<AlignedBuf> {
        let ctx = ctx::current();
        match &self.inner.handle {
            Handle::Os(os) => {
                match os.write_payload(&ctx, os.file.clone(), offset, Payload::Aligned(data), 0, class).await? {
                    Payload::Aligned(buffer) => Ok(buffer),
                    Payload::Bytes(_) => unreachable!("the payload comes back as it was given"),
                }
            }
            #[cfg(feature = "sim")]
            Handle::Sim(file) => {
                simulated(|_, _, now| file.write(now, offset, data.as_ref())).await?;
                Ok(data)
            }
        }
    }

    /// Waits until the data, and the metadata for reading it, is on the device. An error means that
    /// data may be lost: calling again does not help.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(Op::SyncData).await
    }

    /// Like [`File::sync_data`], with all metadata.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(Op::SyncAll).await
    }

    async fn sync(&self, op: Op) -> io::Result<()> {
        let ctx = ctx::current();
        match &self.inner.handle {
            Handle::Os(os) => {
                let request = Request { file: os.file.clone(), offset: 0, op };
                ctx.io.run(&ctx, IoClass::Log, request).await.0.map(drop)
            }
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, now| file.sync(now)).await,
        }
    }

    /// Reserves space for the first `len` bytes, without changing the file's length. No effect if
    /// the file system does not support it.
    pub async fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let ctx = ctx::current();
        match &self.inner.handle {
            Handle::Os(os) => {
                let request = Request { file: os.file.clone(), offset: 0, op: Op::Allocate { len } };
                match ctx.io.run(&ctx, IoClass::Background, request).await.0 {
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                    other => other.map(drop),
                }
            }
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, now| file.allocate(now, len)).await,
        }
    }

    /// Truncates the file or extends it with zeros, to `len` bytes.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.inner.handle {
            Handle::Os(os) => {
                let file = os.file.clone();
                blocking(move || file.set_len(len)).await
            }
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, now| file.set_len(now, len)).await,
        }
    }

    /// The file's length in bytes.
    pub async fn len(&self) -> io::Result<u64> {
        match &self.inner.handle {
            // Answered from memory: not worth a helper thread.
            Handle::Os(os) => os.file.metadata().map(|m| m.len()),
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, _| file.len()).await,
        }
    }

    /// Whether the path by which the file was opened still refers to it. Otherwise the file
    /// disappears when it is closed.
    pub async fn is_in_place(&self) -> io::Result<bool> {
        match &self.inner.handle {
            Handle::Os(os) => {
                let (file, path) = (os.file.clone(), self.inner.path.clone());
                blocking(move || {
                    let open = file.metadata()?;
                    match std::fs::metadata(path) {
                        Ok(found) => Ok((found.dev(), found.ino()) == (open.dev(), open.ino())),
                        Err(error) if is_absence(&error) => Ok(false),
                        Err(error) => Err(error),
                    }
                })
                .await
            }
            #[cfg(feature = "sim")]
            Handle::Sim(file) => simulated(|_, _, _| file.is_at(&self.inner.path)).await,
        }
    }

    /// Whether the file is empty.
    pub async fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len().await? == 0)
    }
}
