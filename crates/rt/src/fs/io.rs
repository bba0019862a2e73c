//! The backends of a shard's file operations: io_uring, helper threads, or a simulated disk.
//!
//! A request owns its file and its memory; the backend keeps both until the request is complete.

use super::IoClass;
use super::buffer::AlignedBuf;
use super::ring::Ring;
use crate::ctx::Ctx;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use tokio::sync::Semaphore;

/// The maximum number of bytes of one operation. Callers split longer ones.
pub(crate) const MAX_OPERATION: usize = 1 << 30;

/// Without a ring: the maximum number of helper threads that background operations use at once.
const BACKGROUND_THREADS: usize = 2;

/// An operation on a file.
pub(crate) enum Op {
    /// Read up to `len` bytes into the buffer, from its start.
    Read { into: AlignedBuf, len: usize },
    /// Write the data after its first `skip` bytes.
    Write { data: Payload, skip: usize },
    /// fdatasync.
    SyncData,
    /// fsync.
    SyncAll,
    /// Reserve space without changing the length.
    Allocate { len: u64 },
}

/// The data of a write.
pub(crate) enum Payload {
    Bytes(Bytes),
    Aligned(AlignedBuf),
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Aligned(buffer) => buffer.as_ref(),
        }
    }
}

/// One operation on one file.
pub(crate) struct Request {
    pub file: Arc<File>,
    pub offset: u64,
    pub op: Op,
}

impl Request {
    /// The maximum number of bytes that it moves.
    pub fn len(&self) -> usize {
        match &self.op {
            Op::Read { into, len } => (*len).min(into.capacity()),
            Op::Write { data, skip } => data.as_ref().len() - skip,
            Op::SyncData | Op::SyncAll | Op::Allocate { .. } => 0,
        }
    }

    /// Executes the request on the calling thread. Returns the number of bytes.
    #[allow(unsafe_code)]
    fn run(&mut self) -> io::Result<usize> {
        let fd = self.file.as_raw_fd();
        let offset = self.offset as libc::off_t;
        loop {
            // SAFETY: the file is open as long as `self.file` lives; the memory is owned by `self`,
            // and the lengths stay within it.
            let n = unsafe {
                match &mut self.op {
                    Op::Read { into, len } => {
                        libc::pread(fd, into.as_mut_ptr().cast(), (*len).min(into.capacity()), offset)
                    }
                    Op::Write { data, skip } => {
                        let data = &data.as_ref()[*skip..];
                        libc::pwrite(fd, data.as_ptr().cast(), data.len().min(MAX_OPERATION), offset)
                    }
                    Op::SyncData => libc::fdatasync(fd) as isize,
                    Op::SyncAll => libc::fsync(fd) as isize,
                    Op::Allocate { len } => {
                        libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, offset, *len as libc::off_t) as isize
                    }
                }
            };
            if n >= 0 {
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// The backend of a shard.
pub(crate) enum Io {
    /// The shard's io_uring.
    Ring(Box<Ring>),
    /// Helper threads. The semaphore keeps background operations from using all of them.
    Threads { background: Semaphore },
    /// The disk of a simulated node.
    #[cfg(feature = "sim")]
    Disk { disk: crate::sim::Disk, boot: u64 },
}

impl Io {
    /// The best backend that the operating system allows. Must be called inside the shard's tokio
    /// runtime.
    pub fn production() -> Self {
        static SAID: std::sync::Once = std::sync::Once::new();
        if std::env::var_os("MESSINA_NO_IO_URING").is_some_and(|v| v == "1") {
            SAID.call_once(|| tracing::warn!("MESSINA_NO_IO_URING=1: using helper threads for files"));
            return Self::threads();
        }
        match Ring::new() {
            Ok(ring) => Self::Ring(Box::new(ring)),
            Err(error) => {
                SAID.call_once(
                    || tracing::warn!(%error, "io_uring is not available here; using helper threads for files"),
                );
                Self::threads()
            }
        }
    }

    fn threads() -> Self {
        Self::Threads { background: Semaphore::new(BACKGROUND_THREADS) }
    }

    /// Whether the shard's disk has lost its power. Then nothing on the shard runs any more.
    #[inline]
    pub fn is_dead(&self) -> bool {
        match self {
            #[cfg(feature = "sim")]
            Self::Disk { disk, boot } => !disk.is_on() || disk.boot() != *boot,
            _ => false,
        }
    }

    /// The ring. Only called for requests that went to a ring.
    pub fn ring(&self) -> &Ring {
        match self {
            Self::Ring(ring) => ring,
            _ => unreachable!("no ring on this shard"),
        }
    }

    /// Executes `request`. Returns it with the number of bytes moved.
    pub async fn run(&self, ctx: &Rc<Ctx>, class: IoClass, request: Request) -> (io::Result<usize>, Request) {
        let counters = &ctx.counters.io[class as usize];
        match &request.op {
            Op::Read { len, .. } => {
                counters.reads.add(1);
                counters.read_bytes.add(*len as u64);
            }
            Op::Write { data, skip } => {
                counters.writes.add(1);
                counters.written_bytes.add((data.as_ref().len() - skip) as u64);
            }
            Op::SyncData | Op::SyncAll => counters.syncs.add(1),
            Op::Allocate { .. } => {}
        }
        let (result, request) = match self {
            Self::Ring(_) => Ring::start(ctx, class, request).await,
            Self::Threads { background } => {
                let permit = match class {
                    IoClass::Background | IoClass::Scan => background.acquire().await.ok(),
                    IoClass::Foreground | IoClass::Log => None,
                };
                let done = in_thread(request).await;
                drop(permit);
                done
            }
            #[cfg(feature = "sim")]
            Self::Disk { .. } => unreachable!("simulated files have their own operations"),
        };
        if result.is_err() {
            ctx.counters.io_errors.add(1);
        }
        (result, request)
    }

    /// Scales the limits of scans and background work.
    pub fn set_allowance(&self, allowance: f64) {
        if let Self::Ring(ring) = self {
            ring.set_allowance(allowance);
        }
    }

    /// Submits requests and takes completions. Returns true if something completed.
    #[inline]
    pub fn turn(&self, ctx: &Ctx) -> bool {
        match self {
            Self::Ring(ring) => ring.turn(ctx),
            _ => false,
        }
    }

    /// Whether completions wait to be taken.
    pub fn has_completed(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.has_completed(),
            _ => false,
        }
    }

    /// Arms the wake-up by completions. Returns true if there already are some.
    pub fn about_to_sleep(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.about_to_sleep(),
            _ => false,
        }
    }

    /// Disarms the wake-up.
    pub fn awake(&self) {
        if let Self::Ring(ring) = self {
            ring.awake();
        }
    }

    /// Registers the shard to be woken by completions. Returns true if it must take a turn at once.
    pub fn poll_wake(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Ring(ring) => ring.poll_wake(cx),
            _ => false,
        }
    }

    /// Waits until the kernel has released all memory.
    pub fn shut_down(&self, ctx: &Ctx) {
        if let Self::Ring(ring) = self {
            ring.shut_down(ctx);
        }
    }
}

async fn in_thread(mut request: Request) -> (io::Result<usize>, Request) {
    blocking(move || {
        let result = request.run();
        (result, request)
    })
    .await
}

/// Runs `f` on a helper thread of the shard.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(f).await {
        Ok(out) => out,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and with it the waiting task.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Whether this shard's files are simulated.
#[cfg(feature = "sim")]
pub(crate) fn is_simulated() -> bool {
    crate::ctx::with(|c| matches!(c.io, Io::Disk { .. }))
}

/// Runs one operation of the shard's simulated disk, before or after a delay. Never completes if
/// the machine dies meanwhile.
#[cfg(feature = "sim")]
pub(crate) async fn simulated<T>(
    f: impl FnOnce(&crate::sim::Disk, u64, i64) -> Result<T, crate::sim::Failed>,
) -> io::Result<T> {
    use crate::sim::Failed;
    let ctx = crate::ctx::current();
    let Io::Disk { disk, boot } = &ctx.io else { unreachable!("the shard's files are not simulated") };
    let delay = disk.next_delay();
    let wait_first = crate::random::below(2) == 0;
    if wait_first && let Some(delay) = delay {
        crate::time::sleep(delay).await;
    }
    let out = f(disk, *boot, crate::time::wall_micros());
    if matches!(out, Err(Failed::Dead)) {
        return std::future::pending().await;
    }
    match delay {
        Some(delay) if !wait_first => crate::time::sleep(delay).await,
        Some(_) => {}
        None => {
            if crate::random::below(4) != 0 {
                crate::task::yield_now().await;
            }
        }
    }
    match out {
        Ok(out) => Ok(out),
        Err(Failed::Io(error)) => Err(error),
        Err(Failed::Dead) => unreachable!("handled above"),
    }
}
