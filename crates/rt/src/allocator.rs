//! Settings of the process's allocator. The binary uses mimalloc; other programs are not affected.
#![allow(unsafe_code)]

use crate::time::Duration;
use std::sync::Mutex;

/// The number in `mi_option_t` of mimalloc's option for the time after which freed memory returns
/// to the kernel.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// The number of mimalloc's option for the largest object, in KiB, that it allocates from its own
/// arenas. A larger object is mapped, and unmapped when it is freed.
const MOST_IN_ARENA: libmimalloc_sys::mi_option_t = 45;

/// The least size, in bytes, of objects for which mimalloc takes memory of their own, so that this
/// memory is returned as soon as the object is freed. Smaller objects are beside others of their
/// size (up to 512 KiB; memory is taken in steps of 64 KiB).
pub const LEAST_SEPARATE: usize = 576 << 10;

/// Keeps freed memory for `time` before it returns to the kernel. Each read of a large partition
/// allocates and frees pages of a megabyte. If these returned to the kernel at once, clearing them
/// again would cost more than the read itself (measured: 390 against 560 MB/s per core).
pub fn keep_freed_memory(time: Duration) {
    // SAFETY: sets a number in the allocator's table of options; allowed at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, time.as_millis() as std::ffi::c_long) };
}

/// Maps objects larger than `bytes` one by one, and unmaps them when they are freed. Otherwise
/// memory kept after rows and requests of many megabytes would be a large part of a small node's
/// memory. Measured with 512 MiB and rows of 14 MB: 187 MiB were kept for more than a second,
/// because other sizes do not fit into the holes.
pub fn return_objects_beyond(bytes: usize) {
    // SAFETY: sets a number in the allocator's table of options; allowed at any time.
    unsafe { libmimalloc_sys::mi_option_set(MOST_IN_ARENA, (bytes / 1024) as std::ffi::c_long) };
}

/// Disables transparent huge pages for this process. With them, the kernel keeps two megabytes
/// where a few kilobytes are in use, even in memory that the allocator returned piece by piece.
pub fn no_huge_pages() -> std::io::Result<()> {
    refuse_huge_pages(true)
}

fn refuse_huge_pages(refuse: bool) -> std::io::Result<()> {
    // SAFETY: sets a flag of the process; the other arguments have to be zero.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(refuse), 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs a short and rare operation with transparent huge pages enabled, even if the process has
/// disabled them.
pub(crate) fn with_huge_pages<R>(make: impl FnOnce() -> R) -> R {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    // SAFETY: reads a flag of the process.
    let refused = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 1;
    // If enabling fails, memory is in small pages. If disabling fails afterwards, other memory may
    // be in huge pages. Both cost little.
    let lifted = refused && refuse_huge_pages(false).is_ok();
    let made = make();
    if lifted && let Err(error) = refuse_huge_pages(true) {
        tracing::debug!(%error, "huge pages cannot be disabled again");
    }
    made
}
