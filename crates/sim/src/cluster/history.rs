//! What clients of a cluster were told, and what a read may therefore show. Pure.
//!
//! Every write carries a timestamp of its own, given out here in order, so what a row holds is decided by which of the writes a reader knows:
//! the one with the highest. A row's floor is the highest write that a majority is known to have: one that was acknowledged at a quorum, or that
//! a quorum's read has shown. A read at QUORUM that begins after that must show the floor or a later write. A write that failed, or whose
//! client died, may show up at any time or never; one that was refused as `Unavailable` never.
//!
//! Checkers: `reads_are_merged`, `no_resurrection` and, once all is well again, `acked_writes_survive`.

use std::collections::BTreeMap;

/// The clustering key under which the static column is booked.
pub const STATIC: i32 = -1;
/// Partitions of the table.
pub const PARTITIONS: i32 = 8;
/// Clustering keys are below this.
pub const ROWS: i32 = 6;

/// A row, or the static column, of a partition.
pub type Place = (i32, i32);

/// What is known of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// It may have been done, or be done yet.
    Maybe,
    /// It was refused: it was not done and never will be.
    Never,
}

/// What a write does to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Write {
    puts: bool,
    known: Known,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// By their numbers.
    writes: BTreeMap<i32, Write>,
    /// What a read at QUORUM that begins now shows at least.
    floor: i32,
    /// What must be there in the end: acknowledged at any level.
    promised: i32,
}

/// What one read may not fall below: the floors when it began.
pub type Floors = BTreeMap<Place, i32>;

/// What a read has shown: each place that it covered with the number of the write there, or nothing.
pub type Shown = Vec<(Place, Option<i32>)>;

/// The book of a table.
#[derive(Debug, Default)]
pub struct History {
    rows: BTreeMap<Place, Row>,
    last: i32,
    /// Writes acknowledged, failed, refused.
    pub counts: [u64; 3],
    /// Reads checked.
    pub reads: u64,
}

impl History {
    /// All places.
    pub fn places() -> impl Iterator<Item = Place> {
        (0..PARTITIONS).flat_map(|pk| (STATIC..ROWS).map(move |ck| (pk, ck)))
    }

    /// A write begins: gives its number. A place is given a value (its number) or is emptied.
    pub fn begin(&mut self, places: &[(Place, bool)]) -> i32 {
        self.last += 1;
        for (place, puts) in places {
            let write = Write { puts: *puts, known: Known::Maybe };
            self.rows.entry(*place).or_default().writes.insert(self.last, write);
        }
        self.last
    }

    fn touched(&mut self, number: i32) -> impl Iterator<Item = &mut Row> {
        self.rows.values_mut().filter(move |row| row.writes.contains_key(&number))
    }

    /// It was acknowledged; `by_quorum`: a majority of the replicas has it.
    pub fn acknowledged(&mut self, number: i32, by_quorum: bool) {
        self.counts[0] += 1;
        for row in self.touched(number) {
            row.promised = row.promised.max(number);
            if by_quorum {
                row.floor = row.floor.max(number);
            }
        }
    }

    /// It failed, and may have been done.
    pub fn failed(&mut self) {
        self.counts[1] += 1;
    }

    /// It was refused before anybody was asked.
    pub fn refused(&mut self, number: i32) {
        self.counts[2] += 1;
        for row in self.touched(number) {
            if let Some(write) = row.writes.get_mut(&number) {
                write.known = Known::Never;
            }
        }
    }

    /// A read at QUORUM of a partition, or of all, begins.
    pub fn floors(&self, pk: Option<i32>) -> Floors {
        let wanted = self.rows.iter().filter(|((own, _), _)| pk.is_none_or(|pk| pk == *own));
        wanted.map(|(place, row)| (*place, row.floor)).collect()
    }

    /// What must be there once all is well: what was acknowledged at any level too.
    pub fn promises(&self) -> Floors {
        self.rows.iter().map(|(place, row)| (*place, row.floor.max(row.promised))).collect()
    }

    /// What a read at QUORUM has shown, having begun when the floors were these; later ones must show it too.
    pub fn check(&mut self, shown: &Shown, floors: &Floors) -> Result<(), String> {
        self.reads += 1;
        for (place, number) in shown {
            let row = self.rows.entry(*place).or_default();
            let known = row.check(*place, *number, floors.get(place).copied().unwrap_or(0))?;
            row.floor = row.floor.max(known);
        }
        Ok(())
    }

    /// What a read of fewer replicas has shown: it may be old, but somebody must have written it.
    pub fn check_weak(&mut self, shown: &Shown) -> Result<(), String> {
        self.reads += 1;
        for (place, number) in shown {
            self.rows.entry(*place).or_default().check(*place, *number, 0)?;
        }
        Ok(())
    }
}

impl Row {
    /// The least write that a reader of this knows; an error if there can be no such reader.
    fn check(&self, place: Place, shown: Option<i32>, floor: i32) -> Result<i32, String> {
        let known = |number: i32| self.writes.get(&number).filter(|write| write.known == Known::Maybe);
        match shown {
            Some(number) if !known(number).is_some_and(|write| write.puts) => {
                let refused = self.writes.contains_key(&number);
                let why = if refused { "refused as not done" } else { "never begun" };
                Err(format!("no_resurrection is broken: {place:?} shows write {number}, which was {why}"))
            }
            Some(number) if number < floor => {
                let hidden = known(floor).is_some_and(|write| !write.puts);
                let promise = if hidden { "no_resurrection" } else { "reads_are_merged" };
                Err(format!("{promise} is broken: {place:?} shows write {number}, and a majority has write {floor}"))
            }
            Some(number) => Ok(number),
            None => {
                // Whoever sees nothing knows the floor itself, if that is a deletion, or one that is later.
                let mut deletions =
                    self.writes.range(floor..).filter(|(_, write)| write.known == Known::Maybe && !write.puts);
                match deletions.next() {
                    _ if floor == 0 => Ok(0),
                    Some((number, _)) => Ok(*number),
                    None => Err(format!(
                        "acked_writes_survive is broken: {place:?} shows nothing, and a majority has write {floor}"
                    )),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = (1, 2);

    fn read(history: &mut History, floors: &Floors, shown: Option<i32>) -> Result<(), String> {
        history.check(&vec![(PLACE, shown)], floors)
    }

    #[test]
    fn what_a_majority_has_is_shown_from_then_on() {
        let mut history = History::default();
        let (old, new) = (history.begin(&[(PLACE, true)]), history.begin(&[(PLACE, true)]));
        let before = history.floors(None);
        assert_eq!(read(&mut history, &before, None), Ok(()), "nobody has been told of anything");
        history.acknowledged(new, true);
        assert_eq!(read(&mut history, &before, Some(old)), Ok(()), "it began before");
        let floors = history.floors(Some(PLACE.0));
        let stale = read(&mut history, &floors, Some(old)).unwrap_err();
        assert!(stale.starts_with("reads_are_merged is broken"), "{stale}");
        let lost = read(&mut history, &floors, None).unwrap_err();
        assert!(lost.starts_with("acked_writes_survive is broken"), "{lost}");
        assert_eq!(read(&mut history, &floors, Some(new)), Ok(()));
    }

    #[test]
    fn what_was_read_is_there_for_later_reads() {
        let mut history = History::default();
        let (first, second) = (history.begin(&[(PLACE, true)]), history.begin(&[(PLACE, true)]));
        let floors = history.floors(None);
        assert_eq!(read(&mut history, &floors, Some(second)), Ok(()));
        let later = history.floors(None);
        assert!(read(&mut history, &later, Some(first)).is_err());
        assert_eq!(read(&mut history, &floors, Some(first)), Ok(()), "one that ran beside it may be behind");
    }

    #[test]
    fn what_is_deleted_stays_away() {
        let mut history = History::default();
        let put = history.begin(&[(PLACE, true)]);
        let deletion = history.begin(&[(PLACE, false)]);
        let again = history.begin(&[(PLACE, true)]);
        history.acknowledged(deletion, true);
        let floors = history.floors(None);
        let back = read(&mut history, &floors, Some(put)).unwrap_err();
        assert!(back.starts_with("no_resurrection is broken"), "{back}");
        assert_eq!(read(&mut history, &floors, None), Ok(()));
        assert_eq!(read(&mut history, &floors, Some(again)), Ok(()), "it may have been done");
        history.refused(again);
        assert!(read(&mut history, &floors, Some(again)).is_err(), "it was refused");
        assert!(read(&mut history, &floors, Some(77)).is_err(), "nobody wrote it");
    }

    #[test]
    fn a_write_at_one_is_promised_in_the_end_only() {
        let mut history = History::default();
        let write = history.begin(&[(PLACE, true)]);
        history.acknowledged(write, false);
        let floors = history.floors(None);
        assert_eq!(read(&mut history, &floors, None), Ok(()));
        let promises = history.promises();
        assert!(read(&mut history, &promises, None).is_err());
    }
}
