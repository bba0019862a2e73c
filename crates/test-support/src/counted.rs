//! Items whose comparisons are counted: for tests of the time that an algorithm takes.

use std::cell::Cell;
use std::cmp::Ordering;

thread_local! {
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// An item with a number. Items are compared by it, and each comparison is counted.
#[derive(Debug)]
pub struct Counted(pub usize);

impl Counted {
    /// The comparisons on this thread since the last call.
    pub fn take_comparisons() -> usize {
        COMPARISONS.take()
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Counted {}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}
