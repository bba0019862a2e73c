//! Buffers that suit `O_DIRECT`.

use super::huge;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of every buffer: no block device requires more than a page.
pub(crate) const ALIGN: usize = 4096;

/// A buffer of fixed capacity, aligned to [`ALIGN`]. Its first `len` bytes are initialised.
pub(crate) struct AlignedBuf {
    start: NonNull<u8>,
    capacity: usize,
    len: usize,
    /// The source of its memory, if not the heap.
    huge: Option<huge::Piece>,
}

impl AlignedBuf {
    /// An empty buffer. The capacity is rounded up to a multiple of [`ALIGN`], and at least that.
    #[allow(unsafe_code)]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(ALIGN);
        if let Some(piece) = huge::take(capacity) {
            return Self { start: piece.start(), capacity, len: 0, huge: Some(piece) };
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, capacity, len: 0, huge: None },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(capacity: usize) -> Layout {
        match Layout::from_size_align(capacity, ALIGN) {
            Ok(layout) => layout,
            Err(_) => panic!("buffer of {capacity} bytes"),
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory to which the kernel may write up to [`AlignedBuf::capacity`] bytes.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Sets the number of initialised bytes.
    ///
    /// SAFETY: the first `len` bytes must have been written.
    #[allow(unsafe_code)]
    pub unsafe fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity);
        self.len = len;
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends as much of `data` as fits. Returns the number of bytes.
    #[allow(unsafe_code)]
    pub fn fill_from(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.capacity - self.len);
        // SAFETY: `n` bytes fit behind `len`, and `data` cannot overlap memory we own exclusively.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.as_ptr().add(self.len), n) };
        self.len += n;
        n
    }

    /// Appends zeros up to a multiple of `unit` (which divides the capacity).
    #[allow(unsafe_code)]
    pub fn pad_to(&mut self, unit: usize) {
        let target = self.len.next_multiple_of(unit).min(self.capacity);
        // SAFETY: `target` is within the capacity.
        unsafe { std::ptr::write_bytes(self.start.as_ptr().add(self.len), 0, target - self.len) };
        self.len = target;
    }
}

impl AsRef<[u8]> for AlignedBuf {
    #[allow(unsafe_code)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised and owned by us.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.huge.is_some() {
            return;
        }
        // SAFETY: allocated in `with_capacity` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) };
    }
}

// SAFETY: exclusive owner of plain bytes.
#[allow(unsafe_code)]
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only.
#[allow(unsafe_code)]
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_pads_and_aligns() {
        let mut buf = AlignedBuf::with_capacity(5000);
        assert_eq!((buf.capacity(), buf.as_ref().as_ptr() as usize % ALIGN), (8192, 0));
        assert_eq!(buf.fill_from(&[7; 513]), 513);
        buf.pad_to(512);
        assert_eq!(buf.len(), 1024);
        assert!(buf.as_ref()[..513].iter().all(|&b| b == 7) && buf.as_ref()[513..].iter().all(|&b| b == 0));
        assert_eq!(buf.fill_from(&[1; 9000]), 8192 - 1024);
        buf.clear();
        assert_eq!(buf.len(), 0);
    }
}
