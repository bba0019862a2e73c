//! The memory of results that are being collected on a shard.
//!
//! A page of a result is small. An unpaged result is collected until its last row was read. So is a
//! result that is sorted, grouped or filtered before its first row is returned. Each collected
//! result has a limit (`max_memory_for_unlimited_query_hard_limit`). Together they have the limit
//! of this shard, so that many concurrent results do not exceed the node's memory.

use super::CoordinatorError;
use std::cell::Cell;
use std::rc::Rc;

/// Results up to this size, in bytes, are not counted: a page has about this size.
pub(super) const UNCOUNTED: usize = 2 << 20;

/// The bytes of all results that are being collected on this shard.
pub struct ResultMemory {
    used: Cell<usize>,
    most: Cell<usize>,
    refused: Cell<u64>,
}

impl ResultMemory {
    pub(super) fn new() -> Rc<ResultMemory> {
        Rc::new(ResultMemory { used: Cell::new(0), most: Cell::new(usize::MAX), refused: Cell::new(0) })
    }

    pub(super) fn set_most(&self, bytes: usize) {
        self.most.set(bytes);
    }

    /// The bytes of the results that are counted.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// The results that were refused for lack of memory.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// A charge for a result that is still empty.
    pub fn charge(self: &Rc<Self>) -> ResultCharge {
        ResultCharge { memory: self.clone(), bytes: 0 }
    }
}

/// The bytes that a result has in [`ResultMemory`], until this is dropped.
pub struct ResultCharge {
    memory: Rc<ResultMemory>,
    bytes: usize,
}

impl ResultCharge {
    /// Sets the size of the result in bytes. A result that is alone may exceed the shard's limit,
    /// because it has a limit of its own.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::ResultMemoryExceeded`]: others need the memory.
    #[inline]
    pub fn set(&mut self, bytes: usize) -> Result<(), CoordinatorError> {
        if bytes <= UNCOUNTED && self.bytes == 0 { Ok(()) } else { self.count(bytes) }
    }

    #[cold]
    fn count(&mut self, bytes: usize) -> Result<(), CoordinatorError> {
        let memory = &self.memory;
        let (others, most) = (memory.used.get() - self.bytes, memory.most.get());
        if others > 0 && bytes > self.bytes && others + bytes > most {
            memory.refused.set(memory.refused.get() + 1);
            return Err(CoordinatorError::ResultMemoryExceeded { bytes, others, most });
        }
        memory.used.set(others + bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for ResultCharge {
    fn drop(&mut self) {
        self.memory.used.set(self.memory.used.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn results_together_have_a_limit_and_one_alone_has_none() {
        let memory = ResultMemory::new();
        memory.set_most(10 * MIB);
        let (mut first, mut second) = (memory.charge(), memory.charge());
        first.set(50 * MIB).expect("it is alone");
        second.set(UNCOUNTED).expect("a page is not counted");
        assert_eq!(memory.used(), 50 * MIB);
        let error = second.set(3 * MIB).expect_err("the first one has it");
        assert_eq!(error, CoordinatorError::ResultMemoryExceeded { bytes: 3 * MIB, others: 50 * MIB, most: 10 * MIB });
        first.set(4 * MIB).expect("less than before");
        second.set(6 * MIB).expect("both fit");
        first.set(4 * MIB + 1).expect_err("too much for both");
        drop(second);
        first.set(20 * MIB).expect("it is alone again");
        drop(first);
        assert_eq!((memory.used(), memory.refused()), (0, 2));
    }
}
