//! Memory for disk I/O in huge pages.
//!
//! If a buffer is in pages of 4 KiB, a read of 512 KiB is a list of 128 segments, each of which the
//! kernel looks up and pins. A device accepts a limited number of segments at once: the queue of a
//! virtual disk without indirect descriptors has 256 entries for all requests. In a huge page, the
//! same read is one segment. Measured on a virtual disk with eight concurrent reads: 950 against
//! 1,850 MB/s.
//!
//! A [`Slab`] is one huge page, with a bitmap of its free units. Only the thread that owns the slab
//! takes units; any thread may return them. So a unit that the owner found free stays free. A
//! thread keeps its slabs, as many as [`keep`] allows. If there is no room, memory comes from the
//! heap, which only costs time.
#![allow(unsafe_code)]

use crate::allocator::with_huge_pages;
use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size and alignment of a slab, in bytes: the same as of a huge page.
const SLAB: usize = 2 << 20;
/// Bytes of a unit. A slab has as many units as a word has bits.
const UNIT: usize = SLAB / u64::BITS as usize;
/// The minimum that is taken from a slab: smaller buffers have few segments anyway.
const LEAST: usize = 2 * UNIT;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { slabs: Vec::new(), most: 0 }) };
}

struct Pool {
    slabs: Vec<Arc<Slab>>,
    most: usize,
}

/// Allows this thread to keep this many bytes of huge pages. None before the first call.
pub(crate) fn keep(bytes: usize) {
    POOL.with_borrow_mut(|pool| pool.most = bytes / SLAB);
}

/// Memory for this many bytes. `None` if there is no room, or if the buffer is too small or too
/// large.
pub(super) fn take(bytes: usize) -> Option<Piece> {
    if !(LEAST..=SLAB).contains(&bytes) {
        return None;
    }
    // The pool is not accessible while the thread ends.
    POOL.try_with(|pool| pool.borrow_mut().take(bytes.div_ceil(UNIT) as u32)).ok()?
}

impl Pool {
    fn take(&mut self, units: u32) -> Option<Piece> {
        if let Some(piece) = self.slabs.iter().find_map(|slab| Slab::take(slab, units)) {
            return Some(piece);
        }
        if self.slabs.len() >= self.most {
            return None;
        }
        let slab = match Slab::map() {
            Ok(slab) => Arc::new(slab),
            Err(error) => {
                tracing::warn!(%error, slabs = self.slabs.len(), "no more memory for huge pages; using the heap for further buffers of disk I/O");
                self.most = self.slabs.len();
                return None;
            }
        };
        let piece = Slab::take(&slab, units);
        self.slabs.push(slab);
        piece
    }
}

struct Slab {
    start: NonNull<u8>,
    /// A bit for each unit, set if the unit is free.
    free: AtomicU64,
}

impl Slab {
    fn map() -> io::Result<Slab> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        with_huge_pages(|| {
            // SAFETY: new memory of twice the size. Everything around the aligned half is unmapped.
            // The rest is written to within its bounds, and is not at address zero.
            unsafe {
                let start = libc::mmap(std::ptr::null_mut(), 2 * SLAB, prot, flags, -1, 0);
                if start == libc::MAP_FAILED {
                    return Err(io::Error::last_os_error());
                }
                let before = start.align_offset(SLAB);
                let slab = start.byte_add(before);
                if before > 0 {
                    libc::munmap(start, before);
                }
                libc::munmap(slab.byte_add(SLAB), SLAB - before);
                // Fails if the kernel has no huge pages: then this is normal memory.
                libc::madvise(slab, SLAB, libc::MADV_HUGEPAGE);
                slab.cast::<u8>().write(0);
                Ok(Slab { start: NonNull::new_unchecked(slab.cast()), free: AtomicU64::new(u64::MAX) })
            }
        })
    }

    /// Only for the owner of the slab.
    fn take(slab: &Arc<Slab>, units: u32) -> Option<Piece> {
        let first = run_of(slab.free.load(Ordering::Acquire), units)?;
        let units = bits(units) << first;
        let free = slab.free.fetch_and(!units, Ordering::Relaxed);
        debug_assert_eq!(free & units, units, "no two buffers share memory");
        Some(Piece { slab: slab.clone(), units })
    }
}

// SAFETY: the memory belongs to the slab, and no two pieces share a byte.
unsafe impl Send for Slab {}
// SAFETY: as above; the bitmap is atomic.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no piece is left that points into it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), SLAB) };
    }
}

/// The lowest `count` bits; 1 to 64.
fn bits(count: u32) -> u64 {
    debug_assert!((1..=u64::BITS).contains(&count), "a buffer has units of one slab");
    u64::MAX >> (u64::BITS - count)
}

/// The start of the first run of `count` set bits.
fn run_of(set: u64, count: u32) -> Option<u32> {
    // Bits at which a run of `known` set bits starts.
    let (mut starts, mut known) = (set, 1);
    while known < count {
        let more = known.min(count - known);
        starts &= starts >> more;
        known += more;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Units of a slab, owned by the holder of this value.
pub(super) struct Piece {
    slab: Arc<Slab>,
    /// Their bits in the slab's bitmap.
    units: u64,
}

impl Piece {
    /// The start of the memory.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: within the slab.
        unsafe { self.slab.start.add(self.units.trailing_zeros() as usize * UNIT) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let free = self.slab.free.fetch_or(self.units, Ordering::Release);
        debug_assert_eq!(free & self.units, 0, "a buffer returns its memory once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(piece: &Piece) -> usize {
        piece.start().as_ptr() as usize
    }

    /// Runs `look` on its own thread, with its own pool.
    fn with_pool(bytes: usize, look: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            keep(bytes);
            look();
        });
        thread.join().expect("the assertions hold");
    }

    #[test]
    fn runs_are_found_where_they_begin() {
        assert_eq!((run_of(u64::MAX, 64), run_of(u64::MAX, 1), run_of(0, 1)), (Some(0), Some(0), None));
        assert_eq!(run_of(0b0111_0110_1101, 3), Some(8));
        assert_eq!(run_of(u64::MAX << 1, 64), None);
        assert_eq!(run_of(u64::MAX << 1, 63), Some(1));
        for count in 1..=64 {
            assert_eq!(run_of(bits(count) << (64 - count), count), Some(64 - count));
            assert_eq!(run_of(bits(count) << (64 - count) & !(1 << 63), count), None);
        }
    }

    #[test]
    fn pieces_do_not_overlap_and_are_reused() {
        with_pool(2 * SLAB, || {
            let sizes = [520 << 10, 520 << 10, 100 << 10, 520 << 10, 64 << 10, SLAB];
            for _ in 0..3 {
                let pieces = sizes.map(|size| take(size).expect("there is room"));
                for (n, (piece, size)) in pieces.iter().zip(sizes).enumerate() {
                    let start = place(piece);
                    assert_eq!(start % UNIT, 0);
                    let apart = |other: &Piece, its: usize| start + size <= place(other) || place(other) + its <= start;
                    assert!((n + 1..sizes.len()).all(|m| apart(&pieces[m], sizes[m])));
                    // SAFETY: the piece has as many bytes as were asked for.
                    unsafe { piece.start().as_ptr().write_bytes(n as u8, size) };
                }
                assert!(take(SLAB / 2).is_none(), "the limit holds");
            }
            assert!(take(LEAST - 1).is_none() && take(SLAB + 1).is_none());
        });
    }

    #[test]
    fn other_threads_give_back() {
        with_pool(SLAB, || {
            let piece = take(SLAB).expect("there is room");
            assert!(take(SLAB).is_none());
            std::thread::spawn(move || drop(piece)).join().expect("it drops");
            assert!(take(SLAB).is_some());
        });
    }

    #[test]
    fn a_piece_outlives_its_thread() {
        let piece = std::thread::spawn(|| {
            keep(SLAB);
            take(SLAB).inspect(|piece| {
                // SAFETY: within the piece.
                unsafe { piece.start().as_ptr().write_bytes(7, SLAB) };
            })
        });
        let piece = piece.join().expect("it ends").expect("there is room");
        // SAFETY: as above.
        assert_eq!(unsafe { piece.start().as_ptr().add(SLAB - 1).read() }, 7);
    }

    #[test]
    fn no_slab_is_allocated_below_a_limit_of_one_slab() {
        with_pool(SLAB - 1, || assert!(take(LEAST).is_none()));
    }
}
