//! The oracle of counters. A read shows at least the increments that were acknowledged or read
//! before it began, and at most the increments that were begun before it ended. Pure.

use super::workload::COUNTERS;

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    begun: i64,
    floor: i64,
    refused: i64,
}

/// The oracle of counters that are only incremented, by one each time.
#[derive(Debug)]
pub struct Counters {
    each: [Counter; COUNTERS as usize],
    /// The number of acknowledged updates of each counter. Unlike the floor, it does not include
    /// what reads have shown.
    acknowledged: [i64; COUNTERS as usize],
}

impl Default for Counters {
    fn default() -> Self {
        Counters { each: [Counter::default(); COUNTERS as usize], acknowledged: [0; COUNTERS as usize] }
    }
}

impl Counters {
    /// A client begins an update.
    pub fn begin(&mut self, k: i32) {
        self.each[k as usize].begun += 1;
    }

    /// The update was acknowledged.
    pub fn acknowledged(&mut self, k: i32) {
        self.acknowledged[k as usize] += 1;
        let own = &mut self.each[k as usize];
        own.floor = own.floor.max(self.acknowledged[k as usize]);
    }

    /// The update was refused, and is never applied.
    pub fn refused(&mut self, k: i32) {
        self.each[k as usize].refused += 1;
    }

    /// The least value that a read at QUORUM must show if it begins now.
    pub fn floor(&self, k: i32) -> i64 {
        self.each[k as usize].floor
    }

    /// Checks the value of a read that began with this floor.
    pub fn check(&mut self, k: i32, found: i64, floor: i64) -> Result<(), String> {
        let own = &mut self.each[k as usize];
        if found < floor {
            return Err(format!(
                "acked_writes_survive is broken: counter {k} shows {found}, and a majority has {floor}"
            ));
        }
        if found > own.begun - own.refused {
            let (begun, refused) = (own.begun, own.refused);
            return Err(format!(
                "a counter counts twice: counter {k} shows {found}, of {begun} updates {refused} were refused"
            ));
        }
        own.floor = own.floor.max(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_between_what_was_acknowledged_and_what_was_begun() {
        let mut counters = Counters::default();
        (0..4).for_each(|_| counters.begin(0));
        counters.acknowledged(0);
        counters.refused(0);
        for (found, fine) in [(0, false), (1, true), (3, true), (4, false)] {
            let floor = counters.floor(0).min(1);
            assert_eq!(counters.check(0, found, floor).is_ok(), fine, "{found}");
        }
        assert_eq!(counters.floor(0), 3, "later reads include increments that a read has shown");
    }
}
