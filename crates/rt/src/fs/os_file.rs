//! A file of the operating system: direct or through the page cache.
//!
//! Any range of a direct file can be read: the enclosing aligned range is read and sliced. Aligned
//! writes bypass the page cache; others use a second, buffered descriptor. Small log writes are one
//! system call on the shard's thread.

use super::IoClass;
use super::buffer::{ALIGN, AlignedBuf};
use super::file::OpenOptions;
use super::io::{MAX_OPERATION, Op, Payload, Request, blocking};
use super::regular;
use crate::ctx::Ctx;
use bytes::Bytes;
use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An open file.
pub(super) struct OsFile {
    pub file: Arc<std::fs::File>,
    /// The alignment that `O_DIRECT` requires; `None` if the page cache is used.
    pub alignment: Option<Alignment>,
    /// The same file through the page cache, for unaligned writes to a direct file.
    buffered: OnceCell<Arc<std::fs::File>>,
    inline: Inline,
}

/// The history of inline log writes to this file.
#[derive(Default)]
struct Inline {
    /// The file system does not support `RWF_NOWAIT` (ext4 does not).
    no_nowait: Cell<bool>,
    /// The number of consecutive slow writes. A single one may only mean that the thread lost its
    /// CPU.
    slow: Cell<u8>,
    /// Until then the ring is used.
    pause_until: Cell<Option<Instant>>,
}

/// The maximum length of an inline log write, in bytes.
const INLINE_LIMIT: usize = 64 << 10;
/// A slower inline write means that the kernel is short of clean pages, or busy with its journal.
const INLINE_SLOW: Duration = Duration::from_millis(2);
/// After this many consecutive slow writes, log writes use the ring.
const INLINE_SLOW_TIMES: u8 = 2;
/// How long log writes to the file then use the ring.
const INLINE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct Alignment {
    offset: u64,
    memory: usize,
}

/// Opens the file at `path`.
pub(super) async fn open_os(path: PathBuf, opts: OpenOptions) -> io::Result<OsFile> {
    let (file, alignment) = blocking(move || -> io::Result<_> {
        if !opts.create_new {
            regular::check(&path)?;
        }
        let mut options = std::fs::OpenOptions::new();
        options.read(opts.read).write(opts.write).truncate(opts.truncate);
        options.create(opts.create).create_new(opts.create_new);
        if opts.direct {
            match options.custom_flags(libc::O_DIRECT).open(&path) {
                Ok(file) => {
                    if let Some(alignment) = direct_alignment(&file) {
                        return Ok((file, Some(alignment)));
                    }
                    refused(&path, "statx reports no alignment");
                    clear_direct(&file)?;
                    return Ok((file, None));
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    refused(&path, "EINVAL");
                    // A failed open with O_CREAT may have created the file already.
                    options.create(opts.create || opts.create_new).create_new(false).custom_flags(0);
                    return options.open(&path).map(|file| (file, None));
                }
                Err(error) => return Err(error),
            }
        }
        options.open(&path).map(|file| (file, None))
    })
    .await?;
    Ok(OsFile { file: Arc::new(file), alignment, buffered: OnceCell::new(), inline: Inline::default() })
}

/// Logs once per process that `O_DIRECT` does not work here.
fn refused(path: &Path, why: &str) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!(file = %path.display(), why, "O_DIRECT is not supported here; using the page cache of the kernel");
    });
}

#[allow(unsafe_code)]
fn clear_direct(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: plain fcntl calls on an open descriptor.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The alignment that direct I/O on `file` requires. If the kernel does not report it, a page is
/// assumed.
#[allow(unsafe_code)]
fn direct_alignment(file: &std::fs::File) -> Option<Alignment> {
    // SAFETY: an all-zero statx is valid; the call fills it for an open descriptor and an empty
    // path.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH;
        if libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_DIOALIGN, &mut stat) != 0 {
            return Some(Alignment { offset: ALIGN as u64, memory: ALIGN });
        }
        stat
    };
    if stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Some(Alignment { offset: ALIGN as u64, memory: ALIGN });
    }
    let (offset, memory) = (u64::from(stat.stx_dio_offset_align), stat.stx_dio_mem_align as usize);
    let usable = offset > 0 && memory > 0 && offset <= ALIGN as u64 && memory <= ALIGN;
    usable.then_some(Alignment { offset, memory })
}

impl OsFile {
    #[allow(unsafe_code)]
    pub async fn read_at(&self, ctx: &Rc<Ctx>, offset: u64, len: usize, class: IoClass) -> io::Result<Bytes> {
        let unit = self.alignment.map_or(1, |a| a.offset);
        // A length from a damaged file must not cause an allocation of that size.
        let len = if len < MAX_OPERATION {
            len
        } else {
            (self.file.metadata()?.len().saturating_sub(offset) as usize).min(len)
        };
        let end = offset.checked_add(len as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let start = offset - offset % unit;
        let stop = end.checked_next_multiple_of(unit).ok_or(io::ErrorKind::InvalidInput)?;
        let skip = (offset - start) as usize;
        let total = (stop - start) as usize;
        let mut filled = 0usize;
        let mut buffer = AlignedBuf::with_capacity(total);
        if total <= MAX_OPERATION {
            let op = Op::Read { into: buffer, len: total };
            let (n, request) = ctx.io.run(ctx, class, Request { file: self.file.clone(), offset: start, op }).await;
            filled = n?;
            buffer = request.into_buffer();
        }
        // The kernel may return fewer bytes before the end of the file: continue after them, in
        // pieces.
        let huge = total > MAX_OPERATION;
        while filled < skip + len && (filled > 0 || huge) && (filled as u64).is_multiple_of(unit) {
            let want = (total - filled).min(MAX_OPERATION);
            let op = Op::Read { into: AlignedBuf::with_capacity(want), len: want };
            let at = start + filled as u64;
            let (n, request) = ctx.io.run(ctx, class, Request { file: self.file.clone(), offset: at, op }).await;
            let n = n?;
            if n == 0 {
                break;
            }
            let piece = request.into_buffer();
            // SAFETY: `n` bytes were read into `piece` and `filled` into `buffer`.
            unsafe {
                buffer.set_len(filled);
                let mut piece = piece;
                piece.set_len(n);
                buffer.fill_from(piece.as_ref());
            }
            filled += n;
        }
        // SAFETY: the kernel has written `filled` bytes.
        unsafe { buffer.set_len(filled) };
        let from = skip.min(filled);
        let to = (skip + len).min(filled);
        Ok(Bytes::from_owner(buffer).slice(from..to))
    }

    pub async fn write_at(&self, ctx: &Rc<Ctx>, offset: u64, data: Payload, class: IoClass) -> io::Result<()> {
        let Some(alignment) = self.alignment else {
            let mut done = 0;
            if class == IoClass::Log && data.as_ref().len() <= INLINE_LIMIT {
                done = self.write_inline(ctx, offset, data.as_ref())?;
            }
            return self.write_payload(ctx, self.file.clone(), offset, data, done, class).await.map(drop);
        };
        let (start, len) = (data.as_ref().as_ptr() as usize, data.as_ref().len());
        if !offset.is_multiple_of(alignment.offset) || !(len as u64).is_multiple_of(alignment.offset) {
            let file = self.buffered()?;
            return self.write_payload(ctx, file, offset, data, 0, class).await.map(drop);
        }
        let data = if start % alignment.memory == 0 {
            data
        } else {
            let mut copy = AlignedBuf::with_capacity(len);
            copy.fill_from(data.as_ref());
            Payload::Aligned(copy)
        };
        self.write_payload(ctx, self.file.clone(), offset, data, 0, class).await.map(drop)
    }

    /// Writes a log record by one system call on the shard's own thread. Into the page cache this
    /// is cheaper than using the ring, because several file systems (ext4) pass each buffered write
    /// from a ring to a kernel thread. Returns the number of bytes written; 0 if the ring must be
    /// used.
    #[allow(unsafe_code)]
    fn write_inline(&self, ctx: &Ctx, offset: u64, data: &[u8]) -> io::Result<usize> {
        let started = Instant::now();
        if self.inline.pause_until.get().is_some_and(|until| started < until) {
            return Ok(0);
        }
        self.inline.pause_until.set(None);
        loop {
            let flags = if self.inline.no_nowait.get() { 0 } else { libc::RWF_NOWAIT };
            let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
            // SAFETY: the file is open and `part` describes `data`, which the call only reads.
            let n = unsafe { libc::pwritev2(self.file.as_raw_fd(), &part, 1, offset as libc::off_t, flags) };
            if n >= 0 {
                let counters = &ctx.counters.io[IoClass::Log as usize];
                counters.writes.add(1);
                counters.written_bytes.add(n as u64);
                ctx.counters.io_submits.add(1);
                let slow = if started.elapsed() > INLINE_SLOW { self.inline.slow.get() + 1 } else { 0 };
                self.inline.slow.set(slow % INLINE_SLOW_TIMES);
                if slow == INLINE_SLOW_TIMES {
                    self.inline.pause_until.set(Some(started + INLINE_PAUSE));
                }
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP) if flags != 0 => self.inline.no_nowait.set(true),
                Some(libc::EAGAIN) => return Ok(0),
                _ => {
                    ctx.counters.io_errors.add(1);
                    return Err(error);
                }
            }
        }
    }

    pub async fn write_payload(
        &self,
        ctx: &Rc<Ctx>,
        file: Arc<std::fs::File>,
        offset: u64,
        data: Payload,
        skip: usize,
        class: IoClass,
    ) -> io::Result<Payload> {
        let mut op = Op::Write { data, skip };
        loop {
            let Op::Write { data, skip } = op else { unreachable!("the operation comes back as it was given") };
            if skip == data.as_ref().len() {
                return Ok(data);
            }
            let request = Request { file: file.clone(), offset: offset + skip as u64, op: Op::Write { data, skip } };
            let (n, request) = ctx.io.run(ctx, class, request).await;
            let n = n?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            op = request.op;
            if let Op::Write { skip, .. } = &mut op {
                *skip += n;
            }
        }
    }

    #[allow(unsafe_code)]
    fn buffered(&self) -> io::Result<Arc<std::fs::File>> {
        if let Some(file) = self.buffered.get() {
            return Ok(file.clone());
        }
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        // SAFETY: a C string; the new descriptor has no other owner.
        let file = unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            std::fs::File::from_raw_fd(fd)
        };
        Ok(self.buffered.get_or_init(|| Arc::new(file)).clone())
    }
}

impl Drop for OsFile {
    fn drop(&mut self) {
        use std::os::unix::fs::MetadataExt;
        // Closing the last descriptor of a removed file frees its blocks, which can take long. So
        // it does not happen on the shard's thread.
        let removed = self.file.metadata().is_ok_and(|m| m.nlink() == 0);
        if removed && tokio::runtime::Handle::try_current().is_ok() {
            let file = self.file.clone();
            drop(tokio::task::spawn_blocking(move || drop(file)));
        }
    }
}

impl Request {
    fn into_buffer(self) -> AlignedBuf {
        match self.op {
            Op::Read { into, .. } => into,
            _ => unreachable!("the operation comes back as it was given"),
        }
    }
}
