//! The ways a shard reaches its files.
//!
//! A request owns its file and its memory; whoever carries it out keeps both until it is complete.

use super::IoClass;
use super::buffer::AlignedBuf;
use crate::ctx::Ctx;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

/// The most that one operation moves; longer ones are split by their callers.
pub(crate) const MAX_OPERATION: usize = 1 << 30;

/// What to do to a file.
pub(crate) enum Op {
    /// Read up to this many bytes into the buffer, from its start.
    Read { into: AlignedBuf, len: usize },
    /// Write the data from this position on.
    Write { data: Payload, skip: usize },
    /// fdatasync.
    SyncData,
    /// fsync.
    SyncAll,
    /// Reserve space without changing the length.
    Allocate { len: u64 },
}

/// Memory that is written from.
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
    /// Carries the request out on the calling thread. The result counts bytes.
    #[allow(unsafe_code)]
    fn run(&mut self) -> io::Result<usize> {
        let fd = self.file.as_raw_fd();
        let offset = self.offset as libc::off_t;
        loop {
            // SAFETY: the file is open as long as `self.file` lives; the memory is owned by `self`, and the lengths stay
            // within it.
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

/// A shard's way to its files.
pub(crate) enum Io {
    /// Helper threads.
    Threads,
}

impl Io {
    /// The best the operating system allows.
    pub fn production() -> Self {
        Self::Threads
    }

    /// Carries out `request`; gives it back with the number of bytes moved.
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
            Self::Threads => in_thread(request).await,
        };
        if result.is_err() {
            ctx.counters.io_errors.add(1);
        }
        (result, request)
    }

    /// Submits what tasks asked for and takes what is complete. True when something was complete.
    pub fn turn(&self, ctx: &Ctx) -> bool {
        let _ = ctx;
        false
    }

    pub fn has_completed(&self) -> bool {
        false
    }

    /// Arms the wake-up by completions. True when some are there already.
    pub fn about_to_sleep(&self) -> bool {
        false
    }

    pub fn awake(&self) {}

    /// Registers the shard to be woken by completions. True when it should take a turn at once.
    pub fn poll_wake(&self, cx: &mut Context<'_>) -> bool {
        let _ = cx;
        false
    }

    /// Waits until the kernel has let go of all memory.
    pub fn shut_down(&self, ctx: &Ctx) {
        let _ = ctx;
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
            // The runtime is going away; so is the task that waits here.
            Err(_) => std::future::pending().await,
        },
    }
}
