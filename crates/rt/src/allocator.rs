//! The process's allocator, as far as it has to be told something. The binary chooses mimalloc; whoever does not is not affected.
#![allow(unsafe_code)]

use crate::time::Duration;
use std::sync::Mutex;

/// mimalloc's option for the time after which freed memory goes back to the kernel, by its number in `mi_option_t`.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// mimalloc's option for the largest object, in KiB, that it takes from its own areas; a larger one is mapped, and unmapped when it is freed.
const MOST_IN_ARENA: libmimalloc_sys::mi_option_t = 45;

/// Keeps freed memory for a while before it goes back to the kernel. Pages of a megabyte are made and freed at every read of a large
/// partition; giving them back at once costs the kernel more to clear them again than the read itself (measured: 390 against
/// 560 MB/s and core).
pub fn keep_freed_memory(time: Duration) {
    // SAFETY: sets a number in the allocator's table of options; allowed at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, time.as_millis() as std::ffi::c_long) };
}

/// Maps objects larger than `bytes` one by one, and unmaps them when they are freed. What is kept of rows and requests of many megabytes would be
/// a large part of a small node's memory (measured: 512 MiB, rows of 14 MB: 187 MiB kept for a second and longer, since other sizes do not fit
/// into the holes).
pub fn return_objects_beyond(bytes: usize) {
    // SAFETY: sets a number in the allocator's table of options; allowed at any time.
    unsafe { libmimalloc_sys::mi_option_set(MOST_IN_ARENA, (bytes / 1024) as std::ffi::c_long) };
}

/// Asks the kernel not to make huge pages for this process. It keeps two megabytes where a few kilobytes are used, also of what the
/// allocator gave back piece by piece.
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

/// Runs something rare and short that wants huge pages, also where the process has refused them.
pub(crate) fn with_huge_pages<R>(make: impl FnOnce() -> R) -> R {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    // SAFETY: reads a flag of the process.
    let refused = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 1;
    // If it stays refused, memory is in small pages; if it cannot be refused again, other memory may be in huge ones. Both just cost a little.
    let lifted = refused && refuse_huge_pages(false).is_ok();
    let made = make();
    if lifted && let Err(error) = refuse_huge_pages(true) {
        tracing::debug!(%error, "huge pages cannot be refused again");
    }
    made
}
